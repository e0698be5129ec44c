"""Prediction of spans that were cut out of the text."""

from typing import Any, final

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from attnkit.data.objectives.base import Objective, ObjectiveConfig, objectives, tokens_of
from attnkit.data.objectives.masking import TextTokens, num_noise, num_spans, random_spans
from attnkit.data.packing import Packing, packings
from attnkit.data.sources import MIN_ROW, PretrainDataConfig
from attnkit.errors import UsageError


@objectives.register("denoising")
@final
class Denoising(Objective):
    """Spans, each after the sentinel that stands for it: -Σ log p(target_i | inputs, target_1 … target_{i-1}).

        row      one two three four five six seven end
        inputs   one two <extra_id_0> five <extra_id_1> seven end
        targets  <extra_id_0> three four <extra_id_1> six end

    (Raffel 2020, section 3.1.4.) Of a row of n tokens m = mask_rate · n are cut out, in s = m / span_length spans, both
    rounded, so inputs have n - m + s + 1 tokens and targets m + s + 1. Rows are packed with the largest n for which
    neither is longer than `data.sequence_length`. Ends of documents stay in the inputs; a span may reach over one.
    """

    auto_class = AutoModelForSeq2SeqLM
    architectures = ("encoder-decoder",)
    keeps_rows = False

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, objective: ObjectiveConfig, *, data: PretrainDataConfig
    ) -> None:
        super().__init__(tokenizer, objective, data=data)
        self.objective = objective
        self.text = TextTokens(tokenizer)
        names = self.extra_tokens(objective, data=data)
        vocabulary = tokenizer.get_vocab()
        missing = [name for name in names if name not in vocabulary]
        if missing:
            raise UsageError(
                f"objective.name: {objective.name!r} needs {len(names)} sentinels for rows of this length, and the "
                f"tokenizer lacks {missing[0]}; train one with objective.name {objective.name}, or add them with "
                f'tokenizer.add_special_tokens({{"additional_special_tokens": [...]}})'
            )
        self.sentinels = torch.tensor([vocabulary[name] for name in names])

    @classmethod
    def extra_tokens(cls, objective: ObjectiveConfig, *, data: PretrainDataConfig) -> list[str]:
        noise = num_noise(cls.row_length(objective, data=data), objective.mask_rate)
        return [f"<extra_id_{number}>" for number in range(num_spans(noise, objective.span_length))]

    @classmethod
    def row_length(cls, objective: ObjectiveConfig, *, data: PretrainDataConfig) -> int:
        """The longest row of which neither inputs nor targets have more than `data.sequence_length` tokens."""
        longest = data.sequence_length

        def needed_for(length: int) -> int:
            noise = num_noise(length, objective.mask_rate)
            spans = num_spans(noise, objective.span_length)
            return max(length - noise, noise) + spans + 1

        length = MIN_ROW
        if needed_for(length) > longest:
            raise UsageError(
                f"data.sequence_length: got {longest}; objective.name 'denoising' needs {needed_for(length)} or more"
            )
        while needed_for(length + 1) <= longest:
            length += 1
        return length

    def packing(self) -> Packing:
        return packings[self.data.packing](row_length=self.row_length(self.objective, data=self.data))

    def example(self, row: dict[str, Any]) -> dict[str, Tensor]:
        tokens = tokens_of(row, "input_ids")
        places = self.text(tokens)
        number = num_noise(len(tokens), self.objective.mask_rate)
        is_cut = torch.zeros(len(tokens), dtype=torch.bool)
        is_cut[places] = random_spans(len(places), number, span_length=self.objective.span_length)
        # A span is a run of cut tokens; ends of documents in it do not divide it.
        text_cut = is_cut[places]
        starts = places[text_cut & ~text_cut.roll(1).index_fill(0, torch.tensor([0]), False)]
        sentinels = self.sentinels[: len(starts)]
        inputs = tokens.index_put((starts,), sentinels)
        is_kept = (~is_cut).index_fill(0, starts, True)
        span_of = torch.searchsorted(starts, places[text_cut], right=True)  # counted from 1
        order = torch.cat([torch.arange(len(starts)) + 1, span_of]).sort(stable=True).indices
        targets = torch.cat([sentinels, tokens[places[text_cut]]])[order]
        end = torch.tensor([self.end])
        inputs = inputs[is_kept]
        return {
            "input_ids": inputs if inputs[-1] == self.end else torch.cat([inputs, end]),
            "labels": torch.cat([targets, end]),
        }
