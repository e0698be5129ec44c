"""Prediction of one text from another."""

from typing import Any, final

import numpy as np
import pyarrow as pa
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from attnkit.data.objectives.base import Objective, ObjectiveConfig, objectives, tokens_of
from attnkit.data.packing import TOKEN_IDS, Packing, TokenizedTexts, list_array, places


@objectives.register("sequence_to_sequence")
@final
class SequenceToSequence(Objective):
    """A text from another: -Σ log p(target_i | source, target_1 … target_{i-1}) (Sutskever 2014, section 2).

    A row is one pair of texts, each with its end, and cut at `data.sequence_length` tokens.
    """

    auto_class = AutoModelForSeq2SeqLM
    architectures = ("encoder-decoder",)
    keeps_rows = False

    @classmethod
    def target_column(cls, objective: ObjectiveConfig) -> str:
        return objective.target_column

    def packing(self) -> Packing:
        return TextPairs(row_length=self.data.sequence_length, end=self.end)

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        return {"input_ids": tokens_of(row, "input_ids"), "labels": tokens_of(row, "labels")}


@final
class TextPairs(Packing):
    """One pair of texts per row: the first is read, the second is written."""

    schema = pa.schema({"input_ids": TOKEN_IDS, "labels": TOKEN_IDS})

    def __init__(self, *, row_length: int, end: int) -> None:
        super().__init__(row_length=row_length)
        self.end = end

    def add(self, texts: TokenizedTexts) -> pa.Table:
        starts = np.cumsum(texts.lengths) - texts.lengths
        lengths = np.minimum(texts.lengths, self.row_length)
        self.dropped_tokens += int((texts.lengths - lengths).sum())
        token_ids = texts.token_ids.copy()
        token_ids[starts + lengths - 1] = self.end  # a text that was cut ends as well
        columns = [
            list_array(token_ids[places(starts[which::2], lengths[which::2])], lengths[which::2]) for which in (0, 1)
        ]
        return pa.table(columns, schema=self.schema)

    def rest(self) -> pa.Table:
        return self.schema.empty_table()
