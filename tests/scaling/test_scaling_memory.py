"""Memory: against the tensors that autograd really saves, the peaks of real steps, and the textbook."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, BertConfig, GPT2Config, MambaConfig, XLNetConfig

from attnkit import AttnKitConfig
from attnkit.errors import UsageError
from attnkit.models.language import minimising
from attnkit.models.loss import TokenLoss
from attnkit.scaling import Layout, Workload, count_flops, estimate_memory, fewest_devices, trace_memory
from attnkit.scaling.subject import Subject
from attnkit.scaling.trace import run_step
from attnkit.training.optimizer import OPTIMIZERS, build_optimizer
from attnkit.training.settings import TrainingConfig

SIZES = Path(__file__).parents[2] / "configs" / "sizes"
SMALL = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 6, "vocab_size": 40}


def saved_bytes(config: AttnKitConfig, head: str, *, backend: str, logits: str) -> int:
    """Bytes of the distinct storages that autograd keeps after a real forward pass, without weights."""
    model = Subject(config=config, head=head).build(backend=backend).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept.append(storage)
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids, labels = torch.ones(2, 2, 10, dtype=torch.long).unbind()
    inputs = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    loss = TokenLoss() if logits == "chunked" else None
    with minimising(loss, model), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(input_ids=ids, labels=labels, use_cache=False, **inputs)
    assert (out.logits is None) == (logits == "chunked")
    given = {ids.untyped_storage().data_ptr()}
    return sum(size for place, size in saved.items() if place not in own | given)


@pytest.mark.parametrize(
    ("fields", "head", "backend"),
    [
        ({"position": "learned"}, "causal_lm", "eager"),
        ({"position": "learned", "hidden_dropout": 0.1, "attention_dropout": 0.2}, "causal_lm", "eager"),
        ({"position": "rope"}, "causal_lm", "sdpa"),
        ({"scorer": "additive", "position": "alibi"}, "causal_lm", "eager"),
        ({"scorer": "gaussian", "norm": "rmsnorm", "gated_activation": True}, "causal_lm", "eager"),
        ({"architecture": "encoder", "position": "none", "norm_position": "post"}, "masked_lm", "eager"),
        ({"architecture": "encoder-decoder", "position": "t5", "num_decoder_layers": 5}, "seq2seq_lm", "eager"),
        ({"scorer": "additive", "position": "alibi"}, "causal_lm", "pairwise"),
        ({"scorer": "concat", "normalizer": "softmax1", "attention_dropout": 0.1}, "causal_lm", "pairwise"),
        ({"layer_scorers": ["dot", "additive", "cosine", "dot", "additive", "dot"]}, "causal_lm", "eager"),
    ],
    ids=[
        "plain",
        "dropout",
        "sdpa",
        "additive",
        "gaussian",
        "encoder",
        "encoder-decoder",
        "tiles",
        "sink",
        "layer-scorers",
    ],
)
@pytest.mark.parametrize("logits", ["chunked", "whole"])
def test_activations_are_what_autograd_saves(fields: dict, head: str, backend: str, logits: str) -> None:
    config = AttnKitConfig(**SMALL, **fields)
    estimate = estimate_memory(
        config, head=head, batch_size=2, seq_len=10, predicted=10, backend=backend, logits=logits
    )
    saved = saved_bytes(config, head, backend=backend, logits=logits)
    # Besides what is saved, the forward pass leaves alive what its callers hold: position ids of some bytes.
    assert saved <= estimate.activations <= saved + 8 * 2 * 10


def test_dropout_costs_its_masks() -> None:
    without = estimate_memory(AttnKitConfig(**SMALL), seq_len=16).activations
    with_masks = estimate_memory(AttnKitConfig(**SMALL, attention_dropout=0.1), seq_len=16).activations
    assert with_masks - without == 6 * (3 * 16 * 16 * 4)  # layers, heads, pairs, bytes


def test_selective_recomputation_keeps_all_but_scores_and_weights() -> None:
    kept, selective = (
        trace_memory(Workload(config=AttnKitConfig(**SMALL), seq_len=32, batch_size=2, recompute=name)).step.activations
        for name in ("none", "selective")
    )
    scores = 2 * 3 * 32 * 32  # rows, heads, pairs
    # Scores and weights in fp32, and the mask; the inputs of what is computed again are there anyway.
    assert kept - selective == pytest.approx(6 * (2 * scores * 4), rel=0.2)


def test_recomputation_keeps_the_inputs_of_blocks() -> None:
    full = trace_memory(Workload(config=AttnKitConfig(**SMALL), seq_len=32, batch_size=2, recompute="full")).step
    deeper = AttnKitConfig(**{**SMALL, "num_hidden_layers": 7})
    more = (
        trace_memory(Workload(config=deeper, seq_len=32, batch_size=2, recompute="full")).step.activations
        - full.activations
    )
    assert more == 2 * 32 * 24 * 4  # states in fp32


DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
CASES = [
    ({"architecture": "decoder", "position": "rope"}, "causal_lm", "eager"),
    ({"architecture": "encoder", "position": "learned", **DROPOUT}, "masked_lm", "eager"),
    ({"architecture": "encoder-decoder", "position": "t5"}, "seq2seq_lm", "eager"),
    ({"architecture": "decoder", "position": "alibi", "scorer": "additive"}, "causal_lm", "pairwise"),
    ({"architecture": "encoder", "position": "learned", "scorer": "additive", **DROPOUT}, "masked_lm", "pairwise"),
    ({"architecture": "encoder-decoder", "position": "t5", "scorer": "additive"}, "seq2seq_lm", "pairwise"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("chosen", "logits"),
    [
        ("eager", "chunked"),
        pytest.param("eager", "whole", marks=pytest.mark.slow),
        pytest.param("pairwise", "chunked", marks=pytest.mark.slow),
    ],
)
def test_the_peak_is_that_of_real_steps(chosen: str, logits: str) -> None:
    size = {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 4096}
    long, short = ({"batch_size": rows, "seq_len": n, "predicted": n} for rows, n in ((1, 256), (4, 128)))
    cases = [
        {"config": size | fields, "head": head, "backend": backend, "logits": logits}
        | (short if logits == "chunked" else long)
        | ({"predicted": 19} if head == "masked_lm" else {})
        for fields, head, backend in CASES
        if backend == chosen
    ]
    script = Path(__file__).with_name("measured_peak.py")
    done = subprocess.run(
        [sys.executable, script, *map(json.dumps, cases)],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # freed memory goes back at once
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for case, measured in zip(cases, map(int, done.stdout.split()), strict=True):
        estimate = estimate_memory(AttnKitConfig(**case.pop("config")), **case)
        assert estimate.peak == pytest.approx(measured, rel=0.05), case


def test_bytes_per_parameter() -> None:
    config = AttnKitConfig(**SMALL | {"num_hidden_layers": 1})
    parameters = Subject(config=config, head="causal_lm").build_without_memory().num_parameters()

    def states(precision: str, optimizer: str = "adamw") -> int:
        it = estimate_memory(config, seq_len=8, precision=precision, optimizer=optimizer)
        return it.weights + it.gradients + it.optimizer

    assert states("fp32") == states("mixed") == 16 * parameters
    assert states("mixed_fp32_gradients") == 18 * parameters
    assert states("bf16") == 8 * parameters
    assert states("fp32", "sgd") == 8 * parameters
    assert states("fp32", "sgd_momentum") == states("fp32", "lion") == 12 * parameters
    assert 10 * parameters < states("fp32", "adamw_8bit") < 10.1 * parameters


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("head", ["causal_lm", "masked_lm"])
def test_states_are_those_of_every_optimizer_of_a_run(name: str, head: str) -> None:
    fields = {"architecture": "decoder" if head == "causal_lm" else "encoder", "position": "learned"}
    config = AttnKitConfig(**SMALL | {"num_hidden_layers": 1}, **fields, scorer="multiplicative")
    model = Subject(config=config, head=head).build()
    optimizer = build_optimizer(model, TrainingConfig(optimizer=name))
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    states = [it for state in optimizer.state.values() for key, it in state.items() if key != "step"]
    held = sum(it.numel() * it.element_size() for it in states if isinstance(it, Tensor))
    assert estimate_memory(config, head=head, seq_len=8, optimizer=name).optimizer == held


def test_sharding_divides_what_it_says() -> None:
    traced = trace_memory(Workload(config=AttnKitConfig(**SMALL), seq_len=8, precision="mixed"))
    alone = traced.divided(Layout())
    for sharding, parts in (("zero1", "o"), ("zero2", "og"), ("zero3", "ogw"), ("ddp", ""), ("fsdp", "ogw")):
        divided = traced.divided(Layout(sharding=sharding, data=4))
        for name in ("optimizer", "gradients", "weights"):
            whole = vars(alone)[name]
            assert vars(divided)[name] == (-(-whole // 4) if name[0] in parts else whole), (sharding, name)


def test_tensor_parallel_activations_are_those_of_korthikanti() -> None:
    """The part that is divided lies inside attention and feed-forward layers: with fp32 and no dropout what is not
    divided are the norms' inputs and outputs."""
    traced = trace_memory(Workload(config=AttnKitConfig(**SMALL, position="none"), seq_len=16))
    halves = traced.divided(Layout(tensor=3)).activations
    assert halves == traced.step.activations - traced.step.in_parts + -(-traced.step.in_parts // 3)
    assert traced.step.in_parts > traced.step.activations / 2


def test_the_fewest_devices() -> None:
    traced = trace_memory(
        Workload(config=SIZES / "gpt-3.yaml", seq_len=2048, precision="mixed", backend="sdpa", recompute="full")
    )
    zero1, zero3 = (fewest_devices(traced, "A100", sharding=sharding) for sharding in ("zero1", "zero3"))
    assert zero1 is None  # 4 bytes per parameter stay on each device
    assert zero3 is not None
    assert traced.divided(Layout(sharding="zero3", data=zero3)).total <= 80 * 2**30
    assert traced.divided(Layout(sharding="zero3", data=zero3 - 1)).total > 80 * 2**30


@pytest.mark.parametrize("segments", [0, 2])
def test_the_cache_holds_keys_and_values(segments: int) -> None:
    position = {"position": "transformer_xl", "position_options": {"segments": segments}}
    config = AttnKitConfig(**SMALL, scorer="gaussian", **position)
    estimate = estimate_memory(config, batch_size=3, seq_len=20, training=False)
    width = 8 + 8 + (1 + 8 + 2 if segments else 0)  # key and value; with token types square, waves and types
    assert estimate.kv_cache == 3 * 20 * 6 * 3 * width * 4
    assert estimate.gradients == estimate.optimizer == 0


def test_the_cache_of_a_decoder_with_heads_of_its_own() -> None:
    own = {"num_decoder_layers": 2, "num_decoder_attention_heads": 4, "num_decoder_key_value_heads": 2}
    config = AttnKitConfig(**SMALL, **own, architecture="encoder-decoder", position="none")
    estimate = estimate_memory(config, batch_size=3, seq_len=20, target_len=7, training=False)
    assert estimate.kv_cache == 3 * (20 + 7) * 2 * 2 * 2 * config.decoder_head_dim * 4


SHARDINGS = ("ddp", "zero1", "zero2", "zero3")  # fsdp is zero3 by another name


@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2), (2, 4), (1, 4)])
def test_what_is_shared_more_takes_no_more(architecture: str, tensor: int, pipeline: int) -> None:
    config = AttnKitConfig(
        architecture=architecture, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, vocab_size=900
    )
    traced = trace_memory(Workload(config=config, seq_len=20, precision="autocast", optimizer="adamw_8bit"))
    for data in (2, 4, 64):
        layouts = [Layout(sharding=it, data=data, tensor=tensor, pipeline=pipeline) for it in SHARDINGS]
        peaks = [traced.divided(layout).peak for layout in layouts]
        assert peaks == sorted(peaks, reverse=True)
        fewer = [traced.divided(Layout(sharding=it, data=data)).peak for it in SHARDINGS]
        assert all(mine <= theirs for mine, theirs in zip(peaks, fewer, strict=True))


def test_scores_of_a_forward_pass_are_divided_among_tensor_ranks() -> None:
    config = AttnKitConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=8, vocab_size=50)
    traced = trace_memory(Workload(config=config, seq_len=128, training=False))
    alone, shared = (traced.divided(Layout(tensor=tensor)) for tensor in (1, 8))
    scores = 8 * 128 * 128 * 4
    assert alone.temporary > scores
    assert shared.temporary < scores / 4 + (alone.temporary - scores) / 2


def test_unlike_blocks_are_traced_all() -> None:
    config = CONFIG_MAPPING["recurrent_gemma"](
        num_hidden_layers=6, hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=8, vocab_size=50,
        intermediate_size=96, lru_width=32, attention_window_size=16, pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    traced = trace_memory(Workload(config=config, seq_len=16, batch_size=2))
    assert traced.step == run_step(traced.subject, traced.setting)


def test_rows_beyond_the_positions_of_another_model_are_named() -> None:
    small = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}
    config = BertConfig(**small, max_position_embeddings=7)
    for count in (estimate_memory, count_flops):
        with pytest.raises(UsageError, match="seq_len: 20 tokens for the 7 positions of bert"):
            count(config, seq_len=20)


def test_models_of_transformers() -> None:
    small = {"num_hidden_layers": 5, "hidden_size": 32, "vocab_size": 99}
    for config in (
        GPT2Config(n_head=2, **small),
        XLNetConfig(n_layer=5, d_model=32, n_head=2, d_inner=64, vocab_size=99),
        MambaConfig(**small),
    ):
        estimate = estimate_memory(config, seq_len=4)
        assert estimate.peak > estimate.weights + estimate.activations > 0


@pytest.mark.parametrize(
    ("model_type", "fields", "numbers"),
    [  # in the cache of one layer for one row of 16 tokens (5 of a decoder's)
        ("llama", {"num_key_value_heads": 2}, 16 * 2 * (16 + 16)),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": 8}, (8 - 1) * 2 * (16 + 16)),
        ("falcon", {"multi_query": True}, 16 * 1 * (16 + 16)),
        (
            "deepseek_v3",
            {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
            16 * (512 + 64),
        ),
        ("mamba", {"state_size": 3, "conv_kernel": 4, "expand": 2}, 128 * (4 + 3)),
        ("bart", {"encoder_layers": 3, "decoder_layers": 2, "d_model": 64}, 5 * (64 + 64) + 16 * (64 + 64)),
        ("bert", {}, 0),
    ],
)
def test_the_cache_of_models_of_transformers(model_type: str, fields: dict, numbers: int) -> None:
    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 50}
    small |= {"num_key_value_heads": 4, "pad_token_id": 1}
    config = CONFIG_MAPPING[model_type](**small | fields)
    target = 5 if config.is_encoder_decoder else None
    estimate = estimate_memory(config, batch_size=3, seq_len=16, target_len=target, training=False)
    assert estimate.kv_cache == 3 * 2 * numbers * 4  # rows, layers, bytes


def test_models_without_blocks_of_one_kind() -> None:
    with pytest.raises(UsageError, match=r"mistral3 has no num_hidden_layers, .*: give the config of its text model"):
        estimate_memory(CONFIG_MAPPING["mistral3"](), seq_len=8)


def test_a_model_that_does_not_run_without_values(capfd: pytest.CaptureFixture[str]) -> None:
    config = XLNetConfig(n_layer=1, n_head=2, d_model=32, d_inner=64, vocab_size=99)
    with pytest.raises(UsageError, match=r"xlnet does not run .*; another precision may be traced") as caught:
        estimate_memory(config, seq_len=16, precision="mixed")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1, not 0"),
        ({"precision": "fp12"}, "unknown precision 'fp12': did you mean 'fp32'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam': did you mean"),
        ({"backend": "sdpaa"}, "memory is estimated for no backend 'sdpaa': did you mean 'sdpa'"),
        ({"layout": Layout(data=2)}, "2 data-parallel ranks need a sharding"),
        ({"layout": Layout(sharding="zero4")}, "unknown sharding 'zero4'"),
        ({"layout": Layout(tensor=2)}, "tensor 2 does not divide 3 key-value heads"),
        ({"layout": Layout(pipeline=9)}, "pipeline 9 is more than 6 layers"),
        ({"layout": Layout(tensor=0)}, "tensor must be at least 1, not 0"),
        ({"layout": Layout(data=math.nan)}, "data must be a whole number, not nan"),
        ({"runtime": -1}, "runtime must be at least 0, not -1"),
        ({"precision": 3}, r"unknown precision 3: allowed"),
        ({"fragmentation": 1.0}, "fragmentation must be at least 0 and at most 0.99, not 1"),
        ({"fragmentation": "x"}, "fragmentation must be a number, not 'x'"),
        ({"layout": {"data": 2}}, "layout must be an attnkit.scaling.Layout"),
        ({"logits": "hole"}, "unknown logits 'hole': did you mean 'whole'"),
        ({"logits": "chunked", "training": False}, "logits 'chunked' is a training step of AttnKit language models"),
        ({"logits": "chunked", "head": "none"}, "give 'whole'"),
        ({"recompute": "selectiv"}, "unknown recompute 'selectiv': did you mean 'selective'"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        estimate_memory(AttnKitConfig(**SMALL), **{"seq_len": 8, **arguments})


def test_a_backend_that_cannot() -> None:
    with pytest.raises(UsageError, match="backend 'sdpa': Additive scores are no dot product"):
        estimate_memory(AttnKitConfig(**SMALL, scorer="additive"), seq_len=8, backend="sdpa")


@pytest.mark.parametrize(("model_type", "stack"), [("llama", "body"), ("bert", "encoder")])
def test_phases_name_the_stack_as_its_model_does(model_type: str, stack: str) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 5, "intermediate_size": 128}
    config = CONFIG_MAPPING[model_type](**sizes, vocab_size=30)
    found = estimate_memory(config, seq_len=64, batch_size=8, recompute="full")
    assert found.peak_phase == f"backward of {stack}, first block"
