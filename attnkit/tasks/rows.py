"""Rows of token ids, and batches of them."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attnkit.models.loss import IGNORED

Row = dict[str, Any]
"""`input_ids`, `attention_mask`, `labels` and whatever else the model takes by name; beside these `cut`, whether some
of the text did not fit, and what the task itself has to know of the row."""

Collator = Callable[[list[Row]], dict[str, Tensor]]

PADDED_WITH = {"attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}
SCALARS = ("start_positions", "end_positions")


@final
class Padding:
    """Rows -> batch, each input padded on one side to the longest of the batch; what no model takes is left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, side: str = "right") -> None:
        self.side, pad = side, tokenizer.pad_token_id
        self.values = {"input_ids": pad, "decoder_input_ids": pad, **PADDED_WITH}

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        return {
            name: self.stack(name, [row[name] for row in rows])
            for name in rows[0]
            if name in self.values or name in SCALARS
        }

    def stack(self, name: str, column: list[Any]) -> Tensor:
        """Lists of numbers -> [rows, longest]; numbers -> [rows]."""
        if not isinstance(column[0], list):
            return torch.tensor(column)
        width = max(map(len, column))
        padding = [[self.values[name]] * (width - len(values)) for values in column]
        pairs = zip(column, padding, strict=True)
        return torch.tensor([pad + values if self.side == "left" else values + pad for values, pad in pairs])


@final
class ChoicePadding:
    """Rows whose inputs are lists, one per choice -> batch [rows, choices, longest]."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, side: str = "right") -> None:
        self.pad = Padding(tokenizer, side=side)

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        inputs = [name for name in rows[0] if name in self.pad.values and name != "labels"]
        num_choices = len(rows[0]["input_ids"])
        flat = [{name: row[name][choice] for name in inputs} for row in rows for choice in range(num_choices)]
        batch = {name: values.view(len(rows), num_choices, -1) for name, values in self.pad(flat).items()}
        return batch | ({"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {})


def num_tokens(row: Row) -> int:
    """The tokens that a model reads at once of a row: of choices, those of the longest."""
    ids = row["input_ids"]
    return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)


def predicts(row: Row) -> bool:
    """Whether a row has anything to predict; where the labels are one number, or not known, there is."""
    labels = row.get("labels")
    return not isinstance(labels, list) or any(label != IGNORED for label in labels)


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int,
    **settings: Any,
) -> list[Row]:
    """One row per text, or pair of texts, of at most `max_length` tokens; `cut` says whether there were more.

    `settings` are further arguments of the tokenizer.
    """
    if not texts:
        return []
    given = [list(texts)] if pairs is None else [list(texts), list(pairs)]
    encoded = tokenizer(*given, truncation=True, max_length=max_length, **settings)
    rows = [dict(zip(encoded.keys(), values, strict=True)) for values in zip(*encoded.values(), strict=True)]
    full = [number for number, row in enumerate(rows) if len(row["input_ids"]) >= max_length]
    whole = tokenizer(*[[column[number] for number in full] for column in given], verbose=False) if full else {}
    lengths = dict(zip(full, map(len, whole["input_ids"]), strict=True)) if full else {}
    for number, row in enumerate(rows):
        row["cut"] = lengths.get(number, 0) > max_length
    return rows
