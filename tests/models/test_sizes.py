"""The size table: each row builds with the exact count of its publication, and its cut learns."""

from pathlib import Path

import pytest
import torch
import yaml

from attnkit import (
    AttnKitConfig,
    AttnKitForCausalLM,
    AttnKitForMaskedLM,
    AttnKitForPermutationLM,
    AttnKitForPreTraining,
    AttnKitForSeq2SeqLM,
)

SIZES = Path(__file__).parents[2] / "configs" / "sizes"
ROWS = {
    "transformer-base": (AttnKitForSeq2SeqLM, 63_045_632),
    "transformer-large": (AttnKitForSeq2SeqLM, 214_171_648),
    "bert-base": (AttnKitForPreTraining, 110_106_428),
    "bert-large": (AttnKitForPreTraining, 336_226_108),
    "xlnet-large": (AttnKitForPermutationLM, 360_300_800),
    "roberta": (AttnKitForMaskedLM, 355_412_057),
    "gpt-2": (AttnKitForCausalLM, 1_557_611_200),
    "megatron-lm": (AttnKitForCausalLM, 8_317_040_640),
    "turing-nlg": (AttnKitForCausalLM, 17_180_859_136),
    "gpt-3": (AttnKitForCausalLM, 174_604_259_328),
}


def load_row(row: str, **cut: object) -> AttnKitConfig:
    return AttnKitConfig(**(yaml.safe_load((SIZES / f"{row}.yaml").read_text(encoding="utf-8"))["model"] | cut))


def test_every_file_has_a_row() -> None:
    assert {path.stem for path in SIZES.glob("*.yaml")} == set(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_its_exact_count(row: str) -> None:
    model_class, count = ROWS[row]
    with torch.device("meta"):
        model = model_class(load_row(row))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("row", ROWS)
def test_a_cut_of_a_row_trains_one_step(row: str) -> None:
    """Two layers per stack, and the width of a few dimensions per head."""
    full = load_row(row)
    width = 2 * full.num_attention_heads
    cut = {"num_hidden_layers": 2, "hidden_size": width, "intermediate_size": 4 * width, "vocab_size": 64}
    cut |= {"pad_token_id": 1, "bos_token_id": 0, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    if full.is_encoder_decoder:
        cut["num_decoder_layers"] = 2
    model = ROWS[row][0](load_row(row, **cut))
    ids = torch.randint(2, 64, (4, 12))
    batch = {"input_ids": ids, "labels": ids}
    if isinstance(model, AttnKitForPreTraining):
        batch["next_sentence_label"] = torch.tensor([0, 1, 0, 1])
    if isinstance(model, AttnKitForPermutationLM):
        order = torch.stack([torch.randperm(12) for _ in range(4)])
        batch["perm_mask"] = (order[:, :, None] <= order[:, None]).float()
        batch["target_mapping"] = torch.eye(12).expand(4, -1, -1)
        batch["token_type_ids"] = torch.randint(0, 2, (4, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model(**batch).loss
    before.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    optimizer.step()
    assert model(**batch).loss < before
