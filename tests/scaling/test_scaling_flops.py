"""FLOPs: the closed formula against torch's own counter, and against what the publications say."""

from pathlib import Path

import pytest
import torch
from drawn import configs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, DynamicCache, LongformerConfig

from attnkit import AttnKitConfig, scorers
from attnkit.errors import UsageError
from attnkit.scaling import count_flops, count_generation_flops, count_parameters
from attnkit.scaling.subject import Subject, default_head

SIZES = Path(__file__).parents[2] / "configs" / "sizes"


def run(config: AttnKitConfig, head: str, *, batch: int, tokens: int, target: int) -> tuple[int, int]:
    """Forward and backward FLOPs of the eager model on the meta device."""
    model = Subject(config=config, head=head).build_without_memory()
    inputs = {"input_ids": torch.zeros(batch, tokens, dtype=torch.long, device="meta")}
    if head == "multiple_choice":
        inputs = {"input_ids": inputs["input_ids"][:, None]}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.zeros(batch, target, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        out = model(**inputs, use_cache=False)
        forward = counter.get_total_flops()
        sum(value.sum() for value in out.values() if isinstance(value, Tensor)).backward()
    return forward, counter.get_total_flops() - forward


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(configs(), st.sampled_from([(1, 5, 7), (2, 9, 4), (3, 16, 16)]))
def test_the_formula_is_what_torch_counts(drawn: tuple[AttnKitConfig, str], shape: tuple[int, int, int]) -> None:
    config, head = drawn
    batch, tokens, target = shape
    if (config.position_options or {}).get("scaling") == "dynamic":
        return  # it reads the values of the positions
    counted = count_flops(
        config, head=head, batch_size=batch, seq_len=tokens, target_len=target if config.is_encoder_decoder else None
    )
    assert (counted.forward, counted.backward) == run(config, head, batch=batch, tokens=tokens, target=target)


@pytest.mark.parametrize("scorer", sorted(scorers))
def test_every_scorer_in_self_and_cross_attention(scorer: str) -> None:
    config = AttnKitConfig(
        architecture="encoder-decoder", scorer=scorer, position="none", hidden_size=24, num_attention_heads=3,
        num_hidden_layers=1, vocab_size=31, max_position_embeddings=16, intermediate_size=40,
    )  # fmt: skip
    counted = count_flops(config, batch_size=2, seq_len=11)
    assert (counted.forward, counted.backward) == run(config, "seq2seq_lm", batch=2, tokens=11, target=11)
    assert bool(counted.pair_operations.forward) == (scorer in ("additive", "concat"))


@pytest.mark.parametrize("scorer", ["scaled_dot", "gaussian", "additive"])
def test_two_streams(scorer: str) -> None:
    config = AttnKitConfig(
        architecture="encoder", two_stream=True, position="transformer_xl", scorer=scorer, hidden_size=24,
        num_attention_heads=3,        num_hidden_layers=2, vocab_size=31, max_position_embeddings=16,
    )  # fmt: skip
    model = Subject(config=config, head="permutation_lm").build_without_memory()
    ids = torch.zeros(2, 12, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        out = model(input_ids=ids, target_mapping=torch.zeros(2, 4, 12, device="meta"))
        forward = counter.get_total_flops()
        out.logits.sum().backward()
    counted = count_flops(config, batch_size=2, seq_len=12, predicted=4)
    assert (counted.forward, counted.total) == (forward, counter.get_total_flops())


def test_tiles_of_a_pairwise_scorer_are_computed_again_in_backward() -> None:
    config = AttnKitConfig(
        scorer="additive", position="alibi", hidden_size=64, num_attention_heads=1, num_hidden_layers=1, vocab_size=11,
        max_position_embeddings=512,
    )  # fmt: skip
    counted = count_flops(config, batch_size=1, seq_len=512)
    assert (counted.forward, counted.backward) == run(config, "causal_lm", batch=1, tokens=512, target=0)
    width = 64
    assert counted.pair_operations.forward >= 4 * 512 * 512 * width  # at least the four of add, tanh, multiply, sum


# Forward FLOPs of one row, measured on transformers' own models.
@pytest.mark.parametrize(
    ("name", "tokens", "forward"),
    [
        ("bert-base", 128, 28_500_298_752),
        ("bert-base", 512, 121_245_404_160),
        ("bert-large", 512, 368_087_928_832),
        ("gpt-2", 1024, 3_506_703_564_800),
        ("megatron-lm", 1024, 17_948_668_329_984),
        ("turing-nlg", 1024, 36_560_992_993_280),
        ("gpt-3", 2048, 734_804_261_732_352),
    ],
)
def test_published_sizes(name: str, tokens: int, forward: int) -> None:
    counted = count_flops(SIZES / f"{name}.yaml", seq_len=tokens)
    assert counted.forward == forward
    assert counted.backward == 2 * forward


def test_a_masked_language_model_may_predict_the_masked_positions_only() -> None:
    config = AttnKitConfig(
        architecture="encoder", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=50
    )
    everywhere = count_flops(config, seq_len=20).components["head"].forward
    assert everywhere == 20 * (2 * 16 * 50 + 2 * 16 * 16)
    assert count_flops(config, seq_len=20, predicted=3).components["head"].forward == everywhere * 3 // 20


def test_useful_pairs_are_those_of_the_mask() -> None:
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}

    def scores(convention: str, **fields: object) -> int:
        count = count_flops(AttnKitConfig(**shape, **fields), seq_len=20, batch_size=3, convention=convention)
        return count.components["attention.scores"].forward

    pair = 3 * 2 * 2 * 8  # rows, heads, FLOPs of one pair
    assert scores("exact") == 400 * pair
    assert scores("causal_useful") == 20 * 21 // 2 * pair
    assert scores("causal_useful", attend_to_self=False) == 20 * 19 // 2 * pair
    assert scores("causal_useful", architecture="encoder") == 400 * pair
    window = {"pattern": "sliding_window", "pattern_options": {"window": 4}}
    assert scores("exact", **window) == 400 * pair
    assert scores("causal_useful", **window) == (4 * 20 - 6) * pair


def test_the_useful_part_of_a_causal_decoder_is_2_l_s_s_plus_1_d() -> None:
    count = count_flops(SIZES / "gpt-2.yaml", seq_len=1024, convention="causal_useful")
    attention = count.components["attention.scores"].forward + count.components["attention.values"].forward
    assert attention == 2 * 48 * 1024 * 1025 * 1600


def test_decoding_with_a_cache() -> None:
    config = AttnKitConfig(
        scorer="additive", position="alibi", hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, vocab_size=31, max_position_embeddings=64,
    )  # fmt: skip
    model = Subject(config=config, head="causal_lm").build_without_memory().eval()
    total = 0
    with torch.no_grad():
        cache = DynamicCache(config=config)
        for tokens, past in ((7, 0), (1, 7), (1, 8), (3, 9)):
            with FlopCounterMode(display=False) as counter:
                ids = torch.zeros(2, tokens, dtype=torch.long, device="meta")
                model(input_ids=ids, cache=cache, use_cache=True)
            counted = count_flops(config, batch_size=2, seq_len=tokens, past=past)
            assert counted.forward == counter.get_total_flops()
            assert counted.backward == 0 or past == 0
            if past in (7, 8):
                total += counted.forward
    prompt = count_flops(config, batch_size=2, seq_len=7, predicted=1).forward
    assert count_generation_flops(config, batch_size=2, prompt_len=7, new_tokens=3) == prompt + total


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_recomputing_blocks_costs_their_forward_pass_once_more(recompute: str) -> None:
    config = AttnKitConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=9)
    model = Subject(config=config, head="causal_lm").build_without_memory().train()
    if recompute == "full":
        model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    with FlopCounterMode(display=False) as counter:
        out = model(input_ids=torch.zeros(2, 8, dtype=torch.long, device="meta"), use_cache=False)
        out.logits.sum().backward()
    counted = count_flops(config, batch_size=2, seq_len=8, convention="hardware", recompute=recompute)
    # Recomputation stops before a block's last product, whose result no one needs again.
    last = 2 * (2 * 8) * (4 * 16) * 16 * config.num_hidden_layers if recompute == "full" else 0
    assert counted.total - last <= counter.get_total_flops() <= counted.total


def test_six_n_d() -> None:
    config = SIZES / "gpt-2.yaml"
    count = count_flops(config, batch_size=2, seq_len=100, convention="6nd")
    assert count.total == 6 * count_parameters(config) * 200
    both = count_flops(SIZES / "transformer-base.yaml", seq_len=100, target_len=60, convention="6nd")
    assert both.total == 3 * 63_045_632 * 160


OTHERS = {
    "bert": {},
    "gpt2": {},
    "llama": {"num_key_value_heads": 2, "intermediate_size": 64},
    "t5": {"d_ff": 64},
    "bart": {},
    "xlnet": {"d_inner": 64},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "mixtral": {"num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": 3},
    "mamba": {},
}
"""Models of transformers. The code of XLNet and both DeBERTa needs more than meta tensors have."""


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_transformers_are_measured(name: str) -> None:
    config = AutoConfig.for_model(name, **{"vocab_size": 99, **OTHERS[name]})
    sizes = {"num_hidden_layers": 2, "num_decoder_layers": 2, "decoder_layers": 2, "hidden_size": 32}
    sizes |= {"num_attention_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_kv": 8}
    sizes |= {"head_dim": 8, "d_head": 8}
    for field, size in sizes.items():
        if hasattr(config, field) and getattr(config, field) is not None:
            setattr(config, field, size)
    count = count_flops(config, batch_size=2, seq_len=16)
    model = Subject(config=config, head=default_head(config)).build(experts_implementation="eager").eval()
    ids = torch.zeros(2, 16, dtype=torch.long)
    inputs = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    with FlopCounterMode(display=False) as counter:
        out = model(input_ids=ids, **inputs)
        forward = counter.get_total_flops()
        sum(value.sum() for value in out.values() if isinstance(value, Tensor) and value.requires_grad).backward()
    assert (count.forward, count.total) == (forward, counter.get_total_flops())
    assert all(work.forward > 0 and work.backward > 0 for work in count.components.values())
    with pytest.raises(UsageError, match="is for AttnKit models"):
        count_flops(config, seq_len=16, convention="causal_useful")


def test_a_model_that_looks_at_values_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    config = LongformerConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, attention_window=4)
    with pytest.raises(UsageError, match=r"it looks at the values of tensors\); .* give convention '6nd'") as caught:
        count_flops(config, seq_len=8)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert count_flops(config, seq_len=8, convention="6nd").forward == 2 * 8 * count_parameters(config)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1, not 0"),
        ({"seq_len": 8, "batch_size": -1}, "batch_size must be at least 1, not -1"),
        ({"seq_len": 8, "past": -1}, "past must be at least 0, not -1"),
        ({"seq_len": 2.5}, "seq_len must be a whole number, not 2.5"),
        ({"seq_len": 10**25}, "seq_len must be at most 16777216, not 1"),
        ({"seq_len": 2**24, "batch_size": 64}, "too many pairs to count: lower one of them"),
        ({"seq_len": 8, "predicted": 0}, "predicted must be at least 1, not 0"),
        ({"seq_len": 8, "predicted": 9}, "predicted 9 is more than the 8 tokens of a row"),
        ({"seq_len": 8, "backend": "sdpaa"}, "unknown backend 'sdpaa': did you mean 'sdpa'"),
        ({"seq_len": 8, "convention": "6nb"}, "unknown convention '6nb': did you mean '6nd'"),
        ({"seq_len": 8, "recompute": "ful"}, "unknown recompute 'ful': did you mean 'full'"),
        ({"seq_len": 9999}, "9999 tokens for 512 positions"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        count_flops(AttnKitConfig(position="learned"), **arguments)
