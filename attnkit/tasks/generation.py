"""Texts that a model writes, how likely they are, and how likely the right ones are."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from attnkit.errors import UsageError
from attnkit.models.loss import IGNORED
from attnkit.tasks.rows import Row

USUAL = 64  # tokens that are written
MOST_BEAMS = 1000  # each is a row of its own in memory
MOST_PENALTY = 10  # whose power of any length is a number still


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How texts are written: the likeliest token each time, or beam search.

    `max_new_tokens`, which is the option `limit` of the task, is None where it is to follow from the room that there
    is; see `num_tokens`. `num_beams` and `length_penalty` are None where the model's own generation config says it, as
    everything else of beam search. Raises one `UsageError` for all that cannot be.
    """

    max_new_tokens: int | None
    limit: str
    num_beams: int | None
    length_penalty: float | None

    def __post_init__(self) -> None:
        problems, penalty = [], self.length_penalty
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            problems.append(f"task.options.{self.limit}: {self.max_new_tokens} must be 1 or more")
        if self.num_beams is not None and not 1 <= self.num_beams <= MOST_BEAMS:
            problems.append(f"task.options.num_beams: {self.num_beams} must be from 1 to {MOST_BEAMS}")
        if penalty is not None and not -MOST_PENALTY <= penalty <= MOST_PENALTY:
            problems.append(
                f"task.options.length_penalty: {penalty} must be from -{MOST_PENALTY} to {MOST_PENALTY}: it is an "
                "exponent of the length"
            )
        if problems:
            raise UsageError(*problems)

    def num_tokens(self, room: int | None) -> int:
        """How many tokens are written at most: as many as were given, or what is usual where there is room for it."""
        return self.max_new_tokens or min(USUAL, USUAL if room is None else room)

    def write(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        room: int | None = None,
    ) -> list[tuple[str, float]]:
        """What the model writes after, or from, each row of tokens, and the probability of it."""
        num_beams = self.num_beams or model.generation_config.num_beams or 1
        penalty = {} if self.length_penalty is None or num_beams == 1 else {"length_penalty": self.length_penalty}
        written = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            max_new_tokens=self.num_tokens(room),
            num_beams=num_beams,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,
            **penalty,
        )
        scores = model.compute_transition_scores(
            written.sequences,
            written.scores,
            written.beam_indices if num_beams > 1 else None,
            normalize_logits=num_beams == 1,
        )
        tokens = written.sequences[:, -scores.shape[1] :]
        # Up to the first end: what stands after it is padding.
        is_end = tokens == tokenizer.eos_token_id
        counts = is_end.int().cumsum(dim=1) - is_end.int() == 0
        log_probabilities = torch.where(counts, scores, 0.0).sum(dim=1)
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [(text.strip(), value) for text, value in zip(texts, log_probabilities.exp().tolist(), strict=True)]


def likelihoods(logits: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """Of each row, the nats and the number of its labels, and how many are the likeliest token.

    Logits [B, N, V] are those that predict the labels [B, N], of which -100 is not predicted.
    """
    nats = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    is_label = labels != IGNORED
    correct = (logits.argmax(dim=-1) == labels) & is_label
    sums = zip(nats.sum(dim=1).tolist(), is_label.sum(dim=1).tolist(), correct.sum(dim=1).tolist(), strict=True)
    return [{"nats": nat, "tokens": tokens, "correct": right} for nat, tokens, right in sums]


def frequency_likelihoods(train: Sequence[Row], rows: Sequence[Row], *, vocab_size: int) -> list[dict[str, Any]]:
    """As `likelihoods`, of a model that knows how often each token is a label in training and nothing else.

    p(token) = (its labels + 1) / (all labels + `vocab_size`): what training never saw has a probability too (Laplace).
    """
    counts = Counter(label for row in train for label in row["labels"] if label != IGNORED)
    total, commonest = counts.total() + vocab_size, max(counts, key=counts.__getitem__)
    found = []
    for row in rows:
        labels = [label for label in row["labels"] if label != IGNORED]
        nats = sum(math.log(total / (counts[label] + 1)) for label in labels)
        found.append({"nats": nats, "tokens": len(labels), "correct": labels.count(commonest)})
    return found
