"""The model card: what a saved model is, what it was trained on, what it reached, and how it is loaded."""

import inspect
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from attnkit.attention import scorers
from attnkit.models.checks import all_parts
from attnkit.models.configuration_attnkit import AttnKitConfig

CARD, TRAINING, LOAD, USE = "README.md", "## Training", "## Load", "## Use"
FOLDER = 'folder = "…"  # this one'


def write_card(
    model: PreTrainedModel,
    folder: str | Path,
    *,
    training: str | None = None,
    use: str | None = None,
    auto_map: dict[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the card of an AttnKit model into its folder. A card that is there already stays, unless `overwrite`.

    `training` and `use` are sections (see `training_section`, `use_section`), `auto_map` says where the code lies that
    is saved with the model.
    """
    path = Path(folder) / CARD
    if overwrite or not path.exists():
        make_card(model, training=training, use=use, auto_map=auto_map).save(path)


def make_card(
    model: PreTrainedModel,
    *,
    training: str | None = None,
    use: str | None = None,
    auto_map: dict[str, str] | None = None,
) -> ModelCard:
    """The card, with the header by which the hub finds a model."""
    config = model.config
    kinds = dict.fromkeys(name for name, _ in config.all_scorers())
    header = ModelCardData(
        library_name="transformers", pipeline_tag=model.pipeline_tag, tags=["attnkit", config.architecture, *kinds]
    )
    sections = [
        f"# {type(model).__name__}, {config.architecture} with {' and '.join(kinds)} attention",
        table(describe(model)),
        "## Score\n\n" + "\n\n".join(explain(kind) for kind in kinds),
        *([training] if training else []),
        f"{LOAD}\n\n```python\n{loading(model, auto_map)}\n```",
        *([use] if use else []),
    ]
    return ModelCard(f"---\n{header.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def training_section(values: dict[str, Any]) -> str:
    """How a model came about, as a section of its card: names and values, nested where wanted."""
    return f"{TRAINING}\n\n{table(flatten(values))}"


def use_section(model: PreTrainedModel, code: str) -> str:
    """Lines of Python that ask the model in `folder` something, imports first, as a section of its card."""
    imports = own_imports(model)
    if isinstance(model.config, AttnKitConfig):
        imports.append("import attnkit  # registers the class of the model")
    lines = "\n".join([*imports, code.replace("\n\n", f"\n\n{FOLDER}\n", 1)])
    return f"{USE}\n\n```python\n{lines}\n```"


def own_imports(model: PreTrainedModel) -> list[str]:
    """Lines that import what a user has registered and the model is made of."""
    parts = all_parts(model.config) if isinstance(model.config, AttnKitConfig) else []
    own = [part for part in parts if not part.__module__.startswith("attnkit.")]
    return [f"import {part.__module__}  # registers {part.__name__}" for part in own]


def read_training(folder: str | Path) -> str | None:
    """The section on training in the card of a saved model, if it has one."""
    path = Path(folder) / CARD
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    _, found, rest = text.partition(f"\n{TRAINING}\n")
    return f"{TRAINING}\n{rest.partition(LOAD)[0].rstrip()}" if found else None


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """The shapes and parts of a model, in words."""
    config = model.config
    layers = f"{config.num_hidden_layers}"
    if config.is_encoder_decoder:
        layers = f"{config.num_hidden_layers} of the encoder, {config.num_decoder_layers} of the decoder"
    stacks = [config.get_text_config(decoder=decoder) for decoder in (False, True)]
    heads, inner = (list(dict.fromkeys(sizes)) for sizes in (map(heads_of, stacks), map(inner_of, stacks)))
    return {
        "architecture": config.architecture,
        "parameters": model.num_parameters(),
        "layers": layers,
        "hidden_size": config.hidden_size,
        "heads": "; in the decoder ".join(heads),
        "intermediate_size": "; in the decoder ".join(inner),
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "scorer": per_layer(config.own_scorers()),
        "cross_scorer": per_layer([config.scorer_of_cross_attention(0)]) if config.is_encoder_decoder else None,
        "normalizer": part(config.normalizer, config.normalizer_options),
        "pattern": per_layer(config.all_patterns()),
        "position": part(config.position, config.position_options),
        "norm": f"{config.norm}, {config.norm_position}",
    }


def heads_of(config: AttnKitConfig) -> str:
    """The heads of one stack."""
    shared = config.num_key_value_heads != config.num_attention_heads
    keys = f", {config.num_key_value_heads} for keys" if shared else ""
    return f"{config.num_attention_heads} of width {config.head_dim}{keys}"


def inner_of(config: AttnKitConfig) -> str:
    """The feed-forward layer of one stack."""
    return f"{config.intermediate_size}, {config.hidden_act}" + ", gated" * config.gated_activation


def per_layer(parts: list[tuple[str, dict[str, Any]]]) -> str:
    """One part for all layers, or one for each in order."""
    said = [part(name, options) for name, options in parts]
    return said[0] if len(set(said)) == 1 else ", ".join(said)


def part(name: str, options: dict[str, Any] | None) -> str:
    """The name of a part with its options."""
    given = ", ".join(f"{key} {value}" for key, value in (options or {}).items())
    return f"`{name}`" + (f" ({given})" if given else "")


def explain(scorer: str) -> str:
    """What a scorer computes, in the words of its own docstring."""
    return f"`{scorer}`:\n\n```text\n{inspect.getdoc(scorers[scorer]) or 'no description'}\n```"


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def table(values: dict[str, Any]) -> str:
    """Names and values, one row each, but for those that say nothing: None and empty lists."""
    rows = [f"| {name} | {say(value)} |" for name, value in values.items() if value not in (None, [])]
    return "\n".join(["| | |", "|---|---|", *rows])


def say(value: Any) -> str:
    """A value in a cell of a table."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(say, value))}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return " ".join(str(value).split()).replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def loading(model: PreTrainedModel, auto_map: dict[str, str] | None) -> str:
    """The lines that load the model: by its own class, or where its code lies beside it, by an Auto class."""
    name = type(model).__name__
    autos = [auto for auto, reference in (auto_map or {}).items() if reference.rpartition(".")[2] == name]
    if autos:
        imports = [f"from transformers import {autos[0]}, AutoTokenizer"]
        given = "folder, trust_remote_code=True"  # the tokenizer asks the model's config for its class
    else:
        imports = [*own_imports(model), f"from attnkit import {name}", "from transformers import AutoTokenizer"]
        given = "folder"
    classes = {"model": autos[0] if autos else name, "tokenizer": "AutoTokenizer"}
    loads = [f"{variable} = {loaded}.from_pretrained({given})" for variable, loaded in classes.items()]
    return "\n".join([*imports, "", FOLDER, *loads])
