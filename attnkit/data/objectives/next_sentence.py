"""Prediction of hidden tokens, and of whether one text follows another."""

from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import AutoModelForPreTraining, PreTrainedConfig, PreTrainedTokenizerBase

from attnkit.data.objectives.base import Objective, ObjectiveConfig, needed, objectives, tokens_of
from attnkit.data.objectives.masking import Masker
from attnkit.data.packing import TOKEN_IDS, Packing, TokenizedTexts, int_array, list_array
from attnkit.data.sources import PretrainDataConfig
from attnkit.errors import UsageError
from attnkit.models.configuration_attnkit import AttnKitConfig


@objectives.register("next_sentence")
@final
class NextSentence(Objective):
    """Hidden tokens as in `masked`, and whether B follows A: -mean log p(token_i) - log p(follows) (Devlin 2019, 3.1).

    A row is cls A sep B sep, with token type 0 up to the first sep and 1 after it. A and B are parts of one document, B
    next to A, or, in half of the rows, B is from another document; what would have been next then begins the next row.
    """

    auto_class = AutoModelForPreTraining
    architectures = ("encoder",)
    keeps_rows = False
    only_tokens = False

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig, *, data: PretrainDataConfig
    ) -> None:
        super().__init__(tokenizer, objective, data=data)
        self.mask = Masker(tokenizer, objective)
        self.cls = needed(tokenizer.cls_token_id, "cls_token", objective)
        self.sep = needed(tokenizer.sep_token_id, "sep_token", objective)
        if data.sequence_length < SentencePairs.SHORTEST:
            raise UsageError(
                f"data.sequence_length: got {data.sequence_length}; a row cls A sep B sep needs at least "
                f"{SentencePairs.SHORTEST} tokens"
            )

    def check_model(self, config: PreTrainedConfig) -> None:
        if isinstance(config, AttnKitConfig) and config.type_vocab_size < 2:
            raise UsageError(
                f"model.type_vocab_size: {config.type_vocab_size} is too small for objective.name 'next_sentence', "
                f"which tells two texts apart; set it to 2"
            )

    def packing(self) -> Packing:
        return SentencePairs(row_length=self.data.sequence_length, cls=self.cls, sep=self.sep, seed=self.data.seed)

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        inputs, labels = self.mask(tokens_of(row, "input_ids"))
        return {
            "input_ids": inputs,
            "labels": labels,
            "token_type_ids": tokens_of(row, "token_type_ids"),
            "next_sentence_label": torch.as_tensor(row["next_sentence_label"], dtype=torch.int64).view(1),
        }

    def complete(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        batch["next_sentence_label"] = batch["next_sentence_label"].squeeze(1)
        return batch


@final
class SentencePairs(Packing):
    """Rows cls A sep B sep, and whether B is random: `next_sentence_label` 1, or follows A: 0."""

    SHORTEST = 5
    schema = pa.schema({"input_ids": TOKEN_IDS, "token_type_ids": TOKEN_IDS, "next_sentence_label": pa.int32()})

    def __init__(self, *, row_length: int, cls: int, sep: int, seed: int) -> None:
        super().__init__(row_length=row_length)
        self.cls = np.array([cls])
        self.sep = np.array([sep])
        self.draw = np.random.default_rng(seed)

    def add(self, texts: TokenizedTexts) -> pa.Table:
        ends = np.cumsum(texts.lengths)
        documents = [texts.token_ids[end - length : end - 1] for end, length in zip(ends, texts.lengths, strict=True)]
        pairs = [pair for index in range(len(documents)) for pair in self.pairs(documents, index)]
        first = [np.concatenate([self.cls, a, self.sep]) for a, _, _ in pairs]
        second = [np.concatenate([b, self.sep]) for _, b, _ in pairs]
        sizes = [(len(a), len(b)) for a, b in zip(first, second, strict=True)]
        lengths = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        parts = [part for pair in zip(first, second, strict=True) for part in pair]
        token_ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
        types = np.repeat(np.tile([0, 1], len(pairs)), lengths.flatten())
        return pa.table(
            [
                list_array(token_ids, lengths.sum(axis=1)),
                list_array(types, lengths.sum(axis=1)),
                int_array(np.array([is_random for _, _, is_random in pairs])),
            ],
            schema=self.schema,
        )

    def pairs(self, documents: list[np.ndarray], index: int) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """(A, B, whether B is random) from the beginning of a document to its end."""
        document, room = documents[index], self.row_length - 3
        found, start = [], 0
        while len(document) - start >= 2:
            available = min(room, len(document) - start)
            middle = start + int(self.draw.integers(1, available))
            is_random = len(documents) > 1 and self.draw.random() < 0.5
            if is_random:
                other = documents[(index + int(self.draw.integers(1, len(documents)))) % len(documents)]
                begin = int(self.draw.integers(len(other)))
                second = other[begin : begin + room - (middle - start)]
            else:
                second = document[middle : start + available]
            found.append((document[start:middle], second, is_random))
            start = middle if is_random else start + available
        self.dropped_tokens += len(document) - start
        return found

    def rest(self) -> pa.Table:
        return self.schema.empty_table()

    def state(self) -> dict[str, Any]:
        return {"draw": self.draw.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        self.draw.bit_generator.state = state["draw"]
