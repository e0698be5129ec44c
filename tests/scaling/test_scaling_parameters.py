"""Parameters: the closed formula, the model built on the meta device, and what the publications say."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from drawn import configs
from hypothesis import HealthCheck, given, settings
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM, BertConfig, GPT2Config, LlamaConfig

from attnkit import AttnKitConfig, Scorer, scorers
from attnkit.errors import UsageError
from attnkit.scaling import count_flops, count_parameters, parameters_by_component
from attnkit.scaling.subject import HEADS, Subject, default_head

SIZES = Path(__file__).parents[2] / "configs" / "sizes"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(configs())
def test_the_formula_counts_what_the_model_has(drawn: tuple[AttnKitConfig, str]) -> None:
    config, head = drawn
    model = Subject(config=config, head=head).build_without_memory()
    count = parameters_by_component(config, head=head)
    assert count.total == size_of(model)
    assert count.body == size_of(model.base_model)
    assert count.components["norms"] == sum(
        size_of(module) for name, module in model.base_model.named_modules() if name.endswith("norm")
    )


def size_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(configs())
def test_the_layers_sum_up_to_the_components(drawn: tuple[AttnKitConfig, str]) -> None:
    count = parameters_by_component(drawn[0], head=drawn[1])
    summed: Counter[str] = Counter()
    for layer in count.layers:
        summed.update(layer)
    for name, value in summed.items():
        if "attention" in name or name == "feed_forward":
            assert count.components.get(name, 0) == value


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("transformer-base", 63_045_632),
        ("transformer-large", 214_171_648),
        ("bert-base", 110_106_428),
        ("bert-large", 336_226_108),
        ("roberta", 355_412_057),
        ("xlnet-large", 360_300_800),
        ("gpt-2", 1_557_611_200),
        ("megatron-lm", 8_317_040_640),
        ("turing-nlg", 17_180_859_136),
        ("gpt-3", 174_604_259_328),
    ],
)
def test_the_size_table_to_the_integer(name: str, count: int) -> None:
    assert count_parameters(SIZES / f"{name}.yaml") == count


# The sizes of Brown 2020, table 2.1: layers, width, heads. Its 24 heads of the 1.3B model do not divide the width.
@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((12, 768, 12), 125_226_240),
        ((24, 1024, 16), 355_871_744),
        ((24, 1536, 16), 760_300_032),
        ((24, 2048, 16), 1_315_723_264),
        ((32, 2560, 32), 2_651_553_280),
        ((32, 4096, 32), 6_658_404_352),
        ((40, 5120, 40), 12_853_386_240),
    ],
)
def test_the_smaller_sizes_of_gpt_3(shape: tuple[int, int, int], count: int) -> None:
    layers, width, heads = shape
    config = AttnKitConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        vocab_size=50257,
        max_position_embeddings=2048,
        position="learned",
    )
    assert count_parameters(config) == count


def test_bodies_and_heads() -> None:
    bert = SIZES / "bert-base.yaml"
    assert count_parameters(bert, head="none") == 109_482_240 == parameters_by_component(bert).body
    assert count_parameters(bert, head="masked_lm") == 109_514_298


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (BertConfig(), 110_106_428),
        (GPT2Config(), 124_439_808),
        (GPT2Config(n_embd=1600, n_layer=48, n_head=25), 1_557_611_200),
        (LlamaConfig(), 6_738_415_616),
    ],
    ids=["bert", "gpt2", "gpt2-xl", "llama-7b"],
)
def test_models_of_transformers(config: object, count: int) -> None:
    assert count_parameters(config) == count


def test_a_scorer_of_the_user_is_counted() -> None:
    @scorers.register("scaling_test")
    class Scaled(Scorer):
        def __init__(self, *, extra: int = 5, **shape: int) -> None:
            super().__init__(**shape)
            self.numbers = nn.Parameter(torch.zeros(extra))

        def reset_parameters(self) -> None:
            nn.init.zeros_(self.numbers)

    try:
        config = AttnKitConfig(scorer="scaling_test", scorer_options={"extra": 7})
        count = parameters_by_component(config)
    finally:
        del scorers["scaling_test"]
    assert count.components["attention.scorer"] == 7 * config.num_hidden_layers


def test_paths(tmp_path: Path) -> None:
    config = AttnKitConfig(hidden_size=16, num_attention_heads=2, architectures=["AttnKitForTokenClassification"])
    config.save_pretrained(tmp_path / "model")
    expected = count_parameters(config, head="token_classification")
    assert count_parameters(tmp_path) == count_parameters(tmp_path / "model") == expected
    assert count_parameters(str(tmp_path / "model" / "config.json")) == expected
    run = tmp_path / "run.yaml"
    run.write_text(
        "model: {hidden_size: 16, num_attention_heads: 2, architecture: encoder, position: learned}\n"
        "tokenizer: {vocab_size: 99}\ndata: {sequence_length: 33}\nobjective: {name: masked}\n",
        encoding="utf-8",
    )
    count = parameters_by_component(run)
    assert count.components["embeddings.tokens"] == 99 * 16
    assert count.components["embeddings.positions"] == 33 * 16
    run.write_text(f"model: {{path: {tmp_path}}}", encoding="utf-8")  # of a run, whose model is a folder inside
    assert count_parameters(run, head="token_classification") == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: {num_hidden_layers: 0}", "num_hidden_layers must be at least 1, not 0"),
        ("model: {hidden_size: 100, num_attention_heads: 3}", "no multiple of num_attention_heads 3"),
        ("model: {hiden_size: 100}", "model.hiden_size: no such key: did you mean 'hidden_size'"),
        ("model: 3", "has no section `model`"),
        ("model: {path: 3}", "model.path: 3 is no text: give the folder of a model or a run"),
        ("model: {hidden_size: 100000000000000000000}", "hidden_size must be at most 2147483647, not 1"),
        ("model: {num_hidden_layers: 100000000}", "num_hidden_layers must be at most 16384, not 100000000"),
        ("{", "not YAML"),
        ("model: {hidden_size: 64}\nobjective: {name: [1]}", r"objective.name: unknown objective \[1\]"),
        ("model: {hidden_size: 64}\nobjective: {name: maskd}", "objective.name: .* did you mean 'masked'"),
    ],
)
def test_nonsense_in_a_file(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=problem) as caught:
        count_parameters(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
def test_what_is_not_built_is_not_counted(head: str, architecture: str) -> None:
    config = AttnKitConfig(architecture=architecture, hidden_size=16, num_attention_heads=2)
    problem = None
    try:
        built = Subject(config=config, head=head).build_without_memory().num_parameters()
    except UsageError as error:
        problem = str(error).split(": ", 1)[1]
    if problem is None:
        assert count_parameters(config, head=head) == built
    else:
        with pytest.raises(UsageError, match=re.escape(problem)):
            count_parameters(config, head=head)


EXPERTS = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 6, "moe_intermediate_size": 8},
    "aria_text": {"moe_num_experts": 8, "moe_topk": 2},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 8},
    "muse_spark_text": {"num_local_experts": 4, "num_experts_per_tok": 3, "moe_hidden_size": 16},
    "deepseek_v3": {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}
    | {"first_k_dense_replace": 1, "moe_intermediate_size": 8},
}
SMALL_EXPERTS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
SMALL_EXPERTS |= {"vocab_size": 50, "intermediate_size": 16, "eos_token_id": 1}


@pytest.mark.parametrize("model_type", EXPERTS)
def test_idle_experts_are_those_that_a_token_gives_no_gradient(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](**SMALL_EXPERTS | EXPERTS[model_type])
    torch.manual_seed(0)
    model = Subject(config=config, head=default_head(config)).build(experts_implementation="eager")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ends = model(input_ids=torch.tensor([[3]]), use_cache=False)
    ends[0].square().sum().backward()
    idle = sum(
        int((parameter.grad == 0).sum())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and "expert" in name and "router" not in name
    )
    count = parameters_by_component(config)
    assert count.active is not None
    assert count.total - count.active == idle > 0


def test_experts_of_no_function_and_those_of_which_nothing_is_known() -> None:
    fields = {"n_routed_experts": 6, "zero_expert_num": 2, "moe_topk": 2, "expert_ffn_hidden_size": 8, "num_layers": 1}
    config = CONFIG_MAPPING["longcat_flash"](**SMALL_EXPERTS | fields, ffn_hidden_size=16)
    count = parameters_by_component(config)
    first, second = 8 * 16 * 32, 6 * 32 * 8  # the first matrix has rows for the two that do nothing
    assert count.active == count.total - (first * 6 // 8 + second * 4 // 6)
    jetmoe = CONFIG_MAPPING["jetmoe"](**SMALL_EXPERTS, num_local_experts=5, kv_channels=8)  # experts in attention too
    assert parameters_by_component(jetmoe).active == count_parameters(jetmoe) - 2 * 3 * (2 * 32 * 32 + 3 * 32 * 16)
    experts = {"is_moe": True, "num_experts": 16, "num_experts_per_tok": 2}
    assert parameters_by_component(CONFIG_MAPPING["doge"](**SMALL_EXPERTS | experts)).active is None
    dense = parameters_by_component(CONFIG_MAPPING["doge"](**SMALL_EXPERTS))
    assert dense.active == dense.total
    with pytest.raises(UsageError, match="it is not known how many experts of doge a token chooses"):
        count_flops(CONFIG_MAPPING["doge"](**SMALL_EXPERTS | experts), seq_len=8, convention="6nd")


def test_configs_whose_layers_differ_and_those_without_a_model() -> None:
    assert count_parameters(CONFIG_MAPPING["dots3_note_text"]()) > 1e11
    with pytest.raises(UsageError, match="transformers has no model for VoxtralRealtimeTextConfig: Could not find"):
        count_parameters(CONFIG_MAPPING["voxtral_realtime_text"]())


@pytest.mark.parametrize("model_type", ["mbart", "pegasus", "blenderbot", "bart", "t5", "marian"])
def test_two_stacks_are_counted_both_and_left_as_they_are(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](vocab_size=50, pad_token_id=0)
    before = config.to_dict()
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(CONFIG_MAPPING[model_type](vocab_size=50, pad_token_id=0))
    assert count_parameters(config) == size_of(model)
    assert config.to_dict() == before


def test_a_name_that_is_not_here_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"^'nobody/nothing' is no file or folder here, and the hub cannot .*$"):
        count_parameters("nobody/nothing")
    assert capfd.readouterr() == ("", "")


def test_nonsense_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown head 'causal': did you mean 'causal_lm'"):
        count_parameters(AttnKitConfig(), head="causal")
    with pytest.raises(UsageError, match="is for architecture 'encoder', not 'decoder'"):
        Subject(config=AttnKitConfig(), head="masked_lm").build_without_memory()
    with pytest.raises(UsageError, match=r"head 'masked_lm': .* is for architecture 'encoder', not 'decoder'"):
        count_parameters(AttnKitConfig(), head="masked_lm")
    for nowhere in (tmp_path / "nowhere", "\0"):
        with pytest.raises(UsageError, match="no such file or folder"):
            count_parameters(nowhere)
    with pytest.raises(UsageError, match="holds no config"):
        count_parameters(tmp_path)
    with pytest.raises(UsageError, match=r"^n_layer must be at least 1, not 0"):
        count_parameters(GPT2Config(n_layer=0))
    for nothing in (None, 5, {"hidden_size": 8}):
        with pytest.raises(UsageError, match="config must be a config of attnkit or transformers, or a path, not"):
            count_parameters(nothing)
    with pytest.raises(UsageError, match=r"unknown head \['x'\]"):
        count_parameters(AttnKitConfig(), head=["x"])
    path = tmp_path / "config.json"
    for values, problem in (
        ({"model_type": "llama", "num_hidden_layers": -1, "num_attention_heads": 0}, "no config can be read there"),
        ({"model_type": "gpt2", "n_embd": -4}, "n_embd must be at least 1, not -4"),
        ({"model_type": "bert", "num_attention_heads": 0}, "num_attention_heads must be at least 1, not 0"),
        ({"model_type": "llama", "num_hiden_layers": 2}, "num_hiden_layers: .* did you mean 'num_hidden_layers'"),
    ):
        path.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(UsageError, match=f"config.json: {problem}"):
            count_parameters(path)
    with pytest.raises(UsageError, match=r"bert, head .*hidden size"):
        count_parameters(BertConfig(hidden_size=100, num_attention_heads=3))
    config = AttnKitConfig()
    config.num_hidden_layers = 0
    with pytest.raises(UsageError, match="num_hidden_layers must be at least 1, not 0"):
        count_parameters(config)
