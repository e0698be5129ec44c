"""How many parameters a model has, per component: by closed formula, and by building it without memory.

Symbols: d hidden size, H and G query and key-value heads, D head width, f inner width of the feed-forward layer, V
vocabulary.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from attnkit.scaling.parts import build_normalizer, build_pattern, build_position, build_scorer, num_parameters
from attnkit.scaling.subject import Config, FilledConfig, Subject, read_subject

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k")
ROUTER = re.compile(r"router|\.gate\.")
FEED_FORWARD_NAMES = ("mlp", "ffn", ".ff.", "feed_forward", "intermediate", "fc1", "fc2", "expert", "dense")


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """The parameters of a model; tied ones count once, where they are first met."""

    components: dict[str, int]
    layers: list[dict[str, int]]
    """The components of each layer, the encoder's before the decoder's; empty for models of transformers."""
    body: int
    """Without what only the head has."""
    active: int | None
    """Those that one token meets at most: of experts only the chosen ones; None where it is not known how many."""

    @property
    def total(self) -> int:
        return sum(self.components.values())


def count_parameters(config: Config, *, head: str | None = None) -> int:
    """All parameters of the model of a config, tied ones once.

    `config` is an `AttnKitConfig`, a config of transformers or a path; `head` a name of `attnkit.scaling.HEADS`, by
    default the one that the model is pretrained with. An AttnKit model is counted by closed formula, others are built
    on the meta device. Raises `UsageError` for what is no config or has no such head.
    """
    return parameters_by_component(config, head=head).total


def parameters_by_component(config: Config, *, head: str | None = None) -> ParameterCount:
    """The same per component and layer."""
    subject = read_subject(config, head=head)
    if subject.ours is not None:
        return closed_formula(subject.ours, head=subject.head)
    return built(subject)


def closed_formula(config: FilledConfig, *, head: str) -> ParameterCount:
    """The parameters of an AttnKit model as sums of products of its fields.

    Only what a scorer, normalizer, pattern or position holds is asked of that part, on the meta device.
    """
    layers = [
        layer_parameters(stack, depth=depth, causal=causal, cross=cross)
        for depth, (stack, causal, cross) in enumerate(kinds_of_layers(config))
    ]
    components = Counter(embedding_parameters(config))
    for layer in layers:
        components.update(layer)
    num_stacks = 2 if config.is_encoder_decoder else 1
    components["norms"] += num_stacks * (config.embedding_norm + config.final_norm) * norm_size(config)
    body_head = pooler_parameters(config) if keeps_pooler(config, head) else 0
    components["pooler"] += body_head
    body = components.total()
    components["head"] += head_parameters(config, head=head)
    present = {name: count for name, count in components.items() if count}
    return ParameterCount(components=present, layers=layers, body=body, active=components.total())


def kinds_of_layers(config: FilledConfig) -> list[tuple[FilledConfig, bool, bool]]:
    """The config with the sizes of each layer, whether it is causal and whether it has cross attention, the encoder's
    layers first."""
    first = (config, config.architecture == "decoder", False)
    if not config.is_encoder_decoder:
        return [first] * config.num_hidden_layers
    return [first] * config.num_hidden_layers + [(decoder_of(config), True, True)] * (config.num_decoder_layers or 0)


def decoder_of(config: FilledConfig) -> FilledConfig:
    """The config with the sizes of its decoder."""
    return cast(FilledConfig, config.get_text_config(decoder=True))


def embedding_parameters(config: FilledConfig) -> dict[str, int]:
    """V·d for each input embedding that is not shared, and what types and positions hold."""
    width, two = config.hidden_size, config.is_encoder_decoder
    tables = 2 if two and not config.share_encoder_decoder_embeddings else 1
    stacks = [(config, config.architecture == "decoder")] + [(decoder_of(config), True)] * two  # causal or not
    return {
        "embeddings.tokens": tables * config.vocab_size * width,
        "embeddings.types": config.type_vocab_size * width,
        "embeddings.target": config.two_stream * len(stacks) * width,
        "embeddings.positions": sum(
            num_parameters(build_position(stack, causal=causal, in_layer=False)) for stack, causal in stacks
        ),
    }


def layer_parameters(config: FilledConfig, *, depth: int, causal: bool, cross: bool) -> dict[str, int]:
    """Attention, cross attention, feed-forward layer, and one norm for each of them."""
    scorer = build_scorer(config, *config.scorer_of_layer(depth))
    counts = {
        "attention.projections": projection_parameters(config, sharing=config.sharing),
        "attention.scorer": num_parameters(scorer),
        "attention.normalizer": num_parameters(build_normalizer(config)),
        "attention.pattern": num_parameters(build_pattern(config, *config.pattern_of_layer(depth))),
        "attention.position": num_parameters(build_position(config, causal=causal, in_layer=True)),
        "feed_forward": feed_forward_parameters(config),
        "norms": (3 if cross else 2) * norm_size(config),
    }
    if cross:
        scorer = build_scorer(config, *config.scorer_of_cross_attention(depth))
        counts["cross_attention.projections"] = projection_parameters(config, sharing="separate")
        counts["cross_attention.scorer"] = num_parameters(scorer)
        counts["cross_attention.normalizer"] = num_parameters(build_normalizer(config))
    return counts


def projection_parameters(config: FilledConfig, *, sharing: str) -> int:
    """d·H·D for queries and for the output, d·G·D for keys and for values as far as they have their own."""
    width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    own = (sharing in ("separate", "key_value")) + (sharing in ("separate", "query_key"))
    weights = 2 * width * queries + own * width * keys
    return weights + config.attention_bias * (queries + own * keys) + config.attention_output_bias * width


def feed_forward_parameters(config: FilledConfig) -> int:
    """2·d·f, or 3·d·f where it is gated, and the biases."""
    width, inner, entries = config.hidden_size, config.intermediate_size, 1 + config.gated_activation
    return (entries + 1) * width * inner + config.mlp_bias * (entries * inner + width)


def norm_size(config: FilledConfig) -> int:
    """Weight and bias of layer norm, or the weight alone."""
    return (2 if config.norm == "layernorm" else 1) * config.hidden_size


def linear(width: int, outputs: int) -> int:
    """A layer with a bias."""
    return width * outputs + outputs


def pooler_parameters(config: FilledConfig) -> int:
    """A layer from the pooled state to itself."""
    return linear(config.hidden_size, config.hidden_size) if config.pooler else 0


def keeps_pooler(config: FilledConfig, head: str) -> bool:
    """Whether a head has a use for the pooled state."""
    return config.pooler and head in ("none", "pre_training", "sequence_classification", "multiple_choice")


def head_parameters(config: FilledConfig, *, head: str) -> int:
    """What stands after the body."""
    width, outputs = config.hidden_size, {"token_classification": config.num_labels, "question_answering": 2}
    outputs |= {"none": 0, "sequence_classification": config.num_labels, "multiple_choice": 1}
    if head in outputs:
        return linear(width, outputs[head]) if outputs[head] else 0
    count = (0 if config.tie_word_embeddings else config.vocab_size * width) + config.output_bias * config.vocab_size
    if config.output_transform:
        count += linear(width, width) + norm_size(config)
    return count + (linear(width, 2) if head == "pre_training" else 0)


def built(subject: Subject) -> ParameterCount:
    """The parameters of any model of transformers, built on the meta device and sorted by what holds them."""
    model = subject.build_without_memory()
    components: Counter[str] = Counter()
    outside, seen = 0, set[int]()
    body = {id(parameter) for parameter in model.base_model.parameters()}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                components[component_of(name, module)] += parameter.numel()
                outside += 0 if id(parameter) in body else parameter.numel()
    total, idle = components.total(), idle_experts(model)
    active = None if idle is None else total - idle
    return ParameterCount(components=dict(components), layers=[], body=total - outside, active=active)


def component_of(name: str, module: nn.Module) -> str:
    """The component that a module of transformers belongs to, from its class and its path."""
    if isinstance(module, nn.Embedding):
        return "embeddings"
    if "Norm" in type(module).__name__:
        return "norms"
    path = name.lower()
    if "attn" in path or "attention" in path:
        return "attention"
    if any(word in path for word in ("head", "cls", "pooler", "predictions", "lm_loss")):
        return "head"
    return "feed_forward" if any(word in path for word in FEED_FORWARD_NAMES) else "other"


def idle_experts(model: PreTrainedModel) -> int | None:
    """Parameters of the experts that a token does not choose; None where it is not known how many it does.

    Experts that do nothing may be among those that a token chooses: then these are the fewest that are idle.
    """
    values = model.config.get_text_config().to_dict()
    inner = [values, *(it for it in values.values() if isinstance(it, dict))]
    chosen = next((it[name] for it in inner for name in EXPERTS_PER_TOKEN if it.get(name)), None)
    experts = [one for name, module in model.named_modules() for one in experts_of(name, module)]
    if not experts:
        routed = chosen is not None and any(ROUTER.search(name) for name, _ in model.named_parameters())
        return None if routed else 0
    if not isinstance(chosen, int):
        return None
    return sum(size - size * min(chosen, num) // num for num, size in experts if num)


def experts_of(name: str, module: nn.Module) -> list[tuple[int, int]]:
    """How many experts a module of experts has and what they hold: one module each, or a stack with a matrix each.

    What else is in such a module, a norm say, every token meets.
    """
    last = name.rpartition(".")[2]
    if not (last == "experts" or (type(module).__name__.endswith("Experts") and "shared" not in last)):
        return []
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [(len(module), sum(it.numel() for it in module.parameters()))] if len(module) else []
    own = list(module.parameters(recurse=False))
    counts = {it.shape[0] for it in own if it.dim() > 2}
    return [(it.shape[0], it.numel()) for it in own if it.dim() and it.shape[0] in counts]
