"""An adapter trains what it says, a new head always, and refuses what PEFT would take without a word."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import attnkit
from attnkit.errors import UsageError
from attnkit.tasks.adapter import BESIDE_STEPS, AdapterConfig, adapt, linear_layers, merge

# What some methods need to be told for layers as small as these.
OPTIONS: dict[str, dict[str, Any]] = {
    "c3a": {"block_size": 8},
    "fourierft": {"n_frequency": 8},
    "ia3": {"feedforward_modules": []},
    "miss": {"r": 8},
    "psoft": {"r": 8},
    "road": {"group_size": 8},
    "shira": {"r": 4},
    "vblora": {"vector_length": 8},
    "waveft": {"n_frequency": 8},
}
METHODS = sorted(kind.value.lower() for kind in PEFT_TYPE_TO_CONFIG_MAPPING)
REFUSED = r"unknown method|does not merge into|trains no new head|Conv1D|use_cache|prunes between steps"


def classifier(num_layers: int = 1, **fields: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": num_layers, "num_attention_heads": 2, "vocab_size": 50}
    config = attnkit.AttnKitConfig(**sizes, architecture="encoder", num_labels=3, **fields)
    return attnkit.AttnKitForSequenceClassification(config)


@pytest.mark.parametrize("method", ["lora", "loha", "hra"])
def test_a_new_head_is_trained_and_saved_whatever_else_is(method: str) -> None:
    model = classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = AdapterConfig(method=method, options={"modules_to_save": ["tokens"]})
    adapted = adapt(model, adapter, new_head=True)
    optimizer = torch.optim.SGD([it for it in adapted.parameters() if it.requires_grad], lr=1.0)
    adapted(input_ids=torch.arange(8).view(2, 4), labels=torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    merged = merge(adapted, adapter).state_dict()
    assert merged.keys() == before.keys()
    changed = {name for name, value in merged.items() if not torch.equal(value, before[name])}
    assert {name for name in before if "tokens" in name or name.startswith("score.")} <= changed


def encoder(num_layers: int = 1) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": num_layers, "num_attention_heads": 2, "vocab_size": 50}
    return BertForSequenceClassification(BertConfig(**sizes, intermediate_size=32, num_labels=3))


def head_of_two_layers(num_layers: int = 1) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": num_layers, "num_attention_heads": 2, "vocab_size": 50}
    config = RobertaConfig(**sizes, intermediate_size=32, num_labels=3, pad_token_id=0)
    return RobertaForSequenceClassification(config)


def decoder(num_layers: int = 1) -> Any:
    sizes = {"n_embd": 16, "n_layer": num_layers, "n_head": 2, "vocab_size": 50, "n_positions": 8}
    return GPT2ForSequenceClassification(
        GPT2Config(**sizes, num_labels=3, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    )


def two_stacks(num_layers: int = 1) -> Any:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": num_layers, "num_heads": 2, "vocab_size": 50}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))


@pytest.mark.parametrize("make", [classifier, encoder, decoder, two_stacks])
def test_ln_tuning_learns_every_norm_of_the_body_and_nothing_else_of_it(make: Any) -> None:
    adapted = adapt(make(), AdapterConfig(method="ln_tuning"), new_head=False)
    learned = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    norms = {name for name, _ in adapted.named_parameters() if "ln_tuning_layers" in name}
    assert learned == norms
    vectors = {name for name, weight in make().base_model.named_parameters() if re.search(r"(?i)norm|ln_", name)}
    assert len(norms) == len(vectors)


@pytest.mark.parametrize("make", [classifier, encoder, head_of_two_layers, decoder, two_stacks])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_merged_says_the_same_when_it_is_loaded_or_the_method_is_refused(
    method: str, make: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    adapter, batch = AdapterConfig(method=method, options=OPTIONS.get(method, {})), torch.arange(8).view(2, 4)
    writes = make is two_stacks
    inputs = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
    inputs |= {"decoder_input_ids": batch} if writes else {}
    try:
        model = make()
        adapted = adapt(model, adapter, new_head=not writes, drawn=set(model.state_dict()))
    except UsageError as error:
        assert re.search(rf"^adapter\.(method|options): .*({REFUSED})", str(error))  # noqa: PT017 - not all are refused
        return
    optimizer = torch.optim.SGD([it for it in adapted.parameters() if it.requires_grad], lr=0.1)
    adapted(**inputs, labels=batch if writes else torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    with torch.no_grad():
        before = adapted.eval()(**inputs).logits
        merged = merge(adapted, adapter)
        merged.save_pretrained(tmp_path)
        loaded, info = type(merged).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values())
        torch.testing.assert_close(loaded.eval()(**inputs).logits, before, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:Detected that the base layer has no bias")
@pytest.mark.parametrize(
    ("method", "make"), [("lily", classifier), ("poly", classifier), ("shadow", classifier), ("beft", two_stacks)]
)
def test_a_method_that_does_not_merge_is_refused_before_it_is_trained(method: str, make: Any) -> None:
    message = f"adapter.method: {method!r} does not merge into the weights of this model ("
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        adapt(make(), AdapterConfig(method=method), new_head=make is classifier)
    assert len(str(error.value).splitlines()) == 1


def test_no_method_is_trained_whose_steps_no_run_makes() -> None:
    tuners = {kind.value.lower(): tuner for kind, tuner in PEFT_TYPE_TO_TUNER_MAPPING.items()}
    steps = {method for method, tuner in tuners.items() if hasattr(tuner, "update_and_allocate")}
    losses = {name for name in dir(tuners["lora"]) if name.startswith("_get_") and name.endswith("_loss")}
    assert steps == {"adalora", "adamss"}
    assert losses == {"_get_kasa_loss", "_get_monteclora_loss"}
    assert {"adalora", "use_asa", "kasa_config", "monteclora_config"} == set(BESIDE_STEPS)
    with pytest.raises(UsageError, match=r"adapter.method: 'adalora' prunes between steps, which no run does: use"):
        adapt(classifier(), AdapterConfig(method="adalora"), new_head=True)


@pytest.mark.filterwarnings("ignore:Detected that the base layer has no bias")
def test_a_method_that_merges_into_some_layers_only_is_refused() -> None:
    message = "'beft' does not merge into the weights of this model (Base layer has no bias"
    with pytest.raises(UsageError, match=re.escape(message)):
        adapt(classifier(attention_bias=False), AdapterConfig(method="beft"), new_head=True)


def test_the_linear_layers_of_a_model_that_is_its_own_body_are_adapted() -> None:
    names = linear_layers(two_stacks())
    assert "encoder.block.0.layer.0.SelfAttention.q" in names
    assert "lm_head" not in names


@pytest.mark.parametrize(
    ("method", "make"),
    [*(("lora", make) for make in (classifier, encoder, decoder, two_stacks)), ("loha", classifier), ("loha", encoder)],
)
def test_the_layers_that_are_named_are_adapted_and_no_others(method: str, make: Any) -> None:
    layer = re.compile(r"\.(?:layers|layer|h|block)\.(\d+)\.")
    for options in ({"layers_to_transform": [1]}, {"layers_to_transform": 1}):
        adapted = adapt(make(num_layers=2), AdapterConfig(method=method, options=options), new_head=False)
        names = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
        assert names
        assert {layer.search(name)[1] for name in names} == {"1"}  # type: ignore[index]
        everywhere = adapt(make(num_layers=2), AdapterConfig(method=method), new_head=False)
        of_layer = [
            name
            for name, weight in everywhere.named_parameters()
            if weight.requires_grad and layer.search(name) and layer.search(name)[1] == "1"  # type: ignore[index]
        ]
        assert names == of_layer


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("lora", {"lora_dropout": -1}, "adapter.options.lora_dropout must be at least 0 and finite, not -1"),
        ("lora", {"lora_dropout": 1}, "adapter.options.lora_dropout must be less than 1, not 1: nothing would pass"),
        ("lora", {"lora_alpha": float("nan")}, "adapter.options.lora_alpha must be at least 0 and finite, not nan"),
        ("lora", {"lora_alpha": float("inf")}, "adapter.options.lora_alpha must be at least 0 and finite, not inf"),
        ("lora", {"lora_alpha": "x"}, "adapter.options.lora_alpha must be a number, not 'x'"),
        ("lora", {"lora_alpha": 0}, "adapter.options: {'lora_alpha': 0} multiply the adapter by 0, so that it learns"),
        ("loha", {"alpha": 0}, "adapter.options: {'alpha': 0} multiply the adapter by 0, so that it learns nothing"),
        (
            "lora",
            {"r": 0},
            "ValueError: `r` should be a positive integer value but the value passed is 0); ",
        ),
        ("lora", {"r": 1.5}, "adapter.options.r must be a whole number, not 1.5"),
        ("lora", {"r": "8"}, "adapter.options.r must be a whole number, not '8'"),
        ("lora", {"peft_type": "banana"}, "adapter.options: no option 'peft_type': allowed: alora_invocation_tokens, "),
        ("lora", {"inference_mode": True}, "adapter.options: no option 'inference_mode': did you mean"),
        (
            "lora",
            {"target_modules": "("},
            "(error: missing ), unterminated subpattern at position 0); ",
        ),
        ("lora", {"exclude_modules": "*"}, "(error: nothing to repeat at position 0); correct them, or leave"),
        ("lora", {"target_modules": 3}, "target_modules must be list[str] or str or null, not 3"),
        ("lora", {"target_modules": [3]}, "target_modules must be list[str] or str or null, not [3]"),
        ("lora", {"rank_pattern": 3}, "adapter.options.rank_pattern must be dict or null, not 3"),
        ("lora", {"rank_pattern": {"(": 3}}, "(error: missing ), unterminated subpattern at position 7); "),
        ("lora", {"rank_pattern": {"query": "a"}}, "rank_pattern['query'] must be a number, not 'a'"),
        (
            "lora",
            {"rank_pattern": {"query": 3}},
            "rank_pattern keys did not match any targeted module and were",
        ),
        ("lora", {"alpha_pattern": [1]}, "adapter.options.alpha_pattern must be dict or null, not [1]"),
        (
            "lora",
            {"init_lora_weights": 7},
            "adapter.options.init_lora_weights must be bool or gaussian or eva",
        ),
        (
            "lora",
            {"init_lora_weights": "eva"},
            "init_lora_weights: 'eva' is computed from texts before training",
        ),
        ("lora", {"init_lora_weights": "pissa_niter_x"}, "invalid literal for int() with base 10: 'x'); correct them"),
        ("lora", {"loftq_config": 3}, "adapter.options.loftq_config must be LoftQConfig or dict, not 3"),
        ("lora", {"loftq_config": {"loftq_bits": 4}}, "`loftq_config` specified but will be ignored when"),
        ("lora", {"arrow_config": {}}, "adapter.options.arrow_config must be ArrowConfig or null, not {}"),
        ("lora", {"megatron_config": {"a": 3}}, "(ModuleNotFoundError: No module named 'megatron'); correct them, or"),
        ("lora", {"target_parameters": ["x"]}, "target_parameters=['x'] were set but no parameter was matched"),
        ("lora", {"trainable_token_indices": [50]}, "(IndexError: index 50 is out of bounds for dimension 0 with size"),
        ("lora", {"layer_replication": [[0]]}, "layer_replication must be list[tuple[int, int]] or null, not [[0]]"),
        ("lora", {"layers_to_transform": "a"}, "layers_to_transform must be list[int] or int or null, not 'a'"),
        (
            "lora",
            {"layers_to_transform": [0, 7]},
            "layers_to_transform: the model has no layer 7; its layers are 0",
        ),
        ("lora", {"layers_to_transform": 0, "layers_pattern": "zzz"}, "No modules were targeted for adaptation."),
        (
            "lora",
            {"layers_to_transform": 0, "target_modules": ["model.encoder.layers.0.attention.q_proj"]},
            "layers_to_transform: 'model.encoder.layers.0.attention.q_proj' of target_modules is one part in one",
        ),
        ("lora", {"use_dora": 1}, "adapter.options.use_dora must be true or false, not 1"),
        ("loha", {"rank_dropout": -0.5}, "adapter.options.rank_dropout must be at least 0 and finite, not -0.5"),
        ("lokr", {"module_dropout": 2}, "adapter.options.module_dropout must be less than 1, not 2"),
        (
            "adamss",
            {"use_asa": True},
            "adapter.options.use_asa: it has a loss of its own, or prunes between steps, which",
        ),
        ("lora", {"kasa_config": {"beta": 1}}, "adapter.options.kasa_config: it has a loss of its own, or prunes"),
        ("ia3", {"modules_to_save": "head"}, "adapter.options.modules_to_save must be list[str] or null, not 'head'"),
        (
            "lora",
            {"modules_to_save": ["scorr"]},
            "modules_to_save: the model has no part 'scorr': did you mean 'scorer'",
        ),
        ("lora", {"target_modules": ["q_proj", "quer"]}, "target_modules: the model has no part 'quer': "),
        ("lora", {"exclude_modules": ["quer"]}, "adapter.options.exclude_modules: the model has no part 'quer': "),
        ("trainable_tokens", {"token_indices": [1]}, "adapter.method: 'trainable_tokens' trains no new head"),
    ],
)
def test_what_an_adapter_cannot_be_is_one_line(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        adapt(classifier(), AdapterConfig(method=method, options=options), new_head=True)
    assert len(str(error.value).splitlines()) == 1
