"""Layers nearer to the input learn more slowly, or not at all; rows of a step have about one length."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    ElectraConfig,
    ElectraForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import attnkit
from attnkit.errors import UsageError
from attnkit.training.layers import depths, freeze, stacks
from attnkit.training.optimizer import build_optimizer
from attnkit.training.order import RowOrder
from attnkit.training.settings import TrainingConfig

SIZE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
MODELS = {
    "attnkit": lambda: attnkit.AttnKitForSequenceClassification(attnkit.AttnKitConfig(**SIZE, architecture="encoder")),
    "bert": lambda: BertForSequenceClassification(BertConfig(**SIZE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=3, n_head=2)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=40, d_model=16, d_ff=16, d_kv=8, num_layers=3, num_heads=2)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_the_depth_of_its_layer(name: str) -> None:
    model = MODELS[name]()
    found, last = depths(model)
    assert last == 3
    assert set(found.values()) >= {0, 1, 2, 3, 4}
    assert found.keys() == dict(model.named_parameters()).keys()
    embedding = next(key for key, value in model.named_parameters() if value is model.get_input_embeddings().weight)
    assert found[embedding] == 0
    assert max(found.values()) == 4  # the last norm, the head


BIG = {"num_labels": 2, "pad_token_id": 0, **SIZE}
SEQ2SEQ = {"vocab_size": 40, "d_model": 16, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 2}
SEQ2SEQ |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 16}
OPT = {"vocab_size": 40, "hidden_size": 16, "word_embed_proj_dim": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
OTHERS: dict[str, Callable[[], Any]] = {
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**BIG)),
    "electra": lambda: ElectraForSequenceClassification(ElectraConfig(**BIG, embedding_size=8)),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**SEQ2SEQ)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**OPT, ffn_dim=16, max_position_embeddings=16)),
    "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=3, n_head=2)),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZE)),
    "mlm": lambda: BertForMaskedLM(BertConfig(**SIZE, tie_word_embeddings=False)),
    **{
        f"attnkit {architecture} {norm_position}": lambda architecture=architecture, norm_position=norm_position: (
            attnkit.AttnKitForSequenceClassification(
                attnkit.AttnKitConfig(
                    **BIG, architecture=architecture, norm_position=norm_position, embedding_norm=True, eos_token_id=5
                )
            )
        )
        for architecture in ("encoder", "decoder", "encoder-decoder")
        for norm_position in ("pre", "post")
    },
}


def shared(one: str, two: str) -> int:
    """How many parts two paths begin with together."""
    return sum(
        1 for _ in takewhile(lambda parts: parts[0] == parts[1], zip(one.split("."), two.split("."), strict=False))
    )


@pytest.mark.parametrize("name", MODELS | OTHERS)
def test_what_is_used_before_the_layers_of_its_stack_is_at_0_and_what_comes_after_them_last(name: str) -> None:
    model = (MODELS | OTHERS)[name]().eval()
    order: list[str] = []
    for path, part in model.named_modules():
        part.register_forward_pre_hook(lambda *_, path=path: order.append(path))
    ids = torch.tensor([[7, 8, 9, 5]])
    model(input_ids=ids, **({"decoder_input_ids": ids} if name == "t5" else {}))
    first = {path: order.index(f"{path}.0") for path, _ in stacks(model)}
    found, last = depths(model)
    checked = 0
    for parameter, depth in found.items():
        path = parameter.rpartition(".")[0]
        if path not in order or any(path.startswith(f"{stack}.") for stack in first):
            continue
        nearest = max(first, key=lambda stack, path=path: shared(stack, path))
        assert depth == (0 if order.index(path) < first[nearest] else last + 1), parameter
        checked += 1
    assert checked > 1


@pytest.mark.parametrize("name", MODELS)
def test_rates_fall_towards_the_input(name: str) -> None:
    model = MODELS[name]()
    optimizer = build_optimizer(model, TrainingConfig(layer_decay=0.5))
    factors = {
        name: group["rate_factor"]
        for group in optimizer.param_groups
        for name in group["param_names"]
    }  # fmt: skip
    found, last = depths(model)
    assert factors == {name: 0.5 ** (last + 1 - depth) for name, depth in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_frozen_layers_do_not_learn(name: str) -> None:
    model = MODELS[name]()
    freeze(model, 2)
    found, _ = depths(model)
    assert {key: p.requires_grad for key, p in model.named_parameters()} == {k: d > 2 for k, d in found.items()}
    with pytest.raises(UsageError, match=r"training\.frozen_layers: 4 is more than the 3 layers of the model"):
        freeze(model, 4)


def test_impossible_settings() -> None:
    assert TrainingConfig(layer_decay=0).problems() == ["training.layer_decay: 0 must be more than 0 and at most 1"]
    assert TrainingConfig(frozen_layers=-1).problems() == ["training.frozen_layers: -1 must be 0 or more"]


def order(lengths: np.ndarray, *, processes: int, first_row: int = 0, steps: int = 40) -> list[list[int]]:
    """The rows of each step of 8, whatever the number of processes."""
    readers = [
        iter(
            RowOrder(
                len(lengths),
                seed=0,
                batch_size=8 // processes,
                num_processes=processes,
                process=process,
                first_row=first_row,
                lengths=lengths.tolist(),
                group_size=8,
            )
        )
        for process in range(processes)
    ]
    return [sorted(row for reader in readers for row in next(reader)[1]) for _ in range(steps)]


def test_rows_of_a_step_have_about_one_length() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, size=800)
    steps = order(lengths, processes=1, steps=100)
    assert sorted(row for step in steps for row in step) == list(range(800))
    assert max(np.ptp(lengths[step]) for step in steps) < 30
    means = [lengths[step].mean() for step in steps]
    assert abs(np.corrcoef(range(100), means)[0, 1]) < 0.3  # short and long ones come mixed
    assert order(lengths, processes=2) == steps[:40]
    assert order(lengths, processes=1, first_row=80, steps=30) == steps[10:40]


def test_a_group_is_another_in_the_next_epoch() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, size=80)
    steps = order(lengths, processes=1, steps=20)
    assert sorted(row for step in steps[10:] for row in step) == list(range(80))
    assert steps[:10] != steps[10:]
