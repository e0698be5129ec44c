"""The answer to a question as a span of a text."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

from attnkit.data.readers import Row as FileRow
from attnkit.errors import Fault, UsageError
from attnkit.tasks.base import Answer, Task, TaskConfig, tasks
from attnkit.tasks.examples import Example, ExamplesConfig
from attnkit.tasks.fields import Field, any_text, misread, parsed, shown, text
from attnkit.tasks.metrics_of_texts import plain
from attnkit.tasks.rows import Row
from attnkit.tasks.token_classification import require_offsets

ANSWERS = '{"text": ["an answer"], "answer_start": [0]}'
WITH_PLACES = re.compile(r"\s*\{\s*(['\"](text|answer_start)\b|\})")
"""How a text begins that is to be answers with their places, be it good JSON or not; others in braces are answers."""
USUAL_STRIDE = 64  # tokens
NO_ANSWER = 0
"""The token that a window points at which does not hold the answer: the first, which is never one of the text."""


@tasks.register("question_answering")
@final
class QuestionAnswering(Task):
    """p(first token) and p(last token) = softmax over the tokens of a window (Devlin 2019), judged as SQuAD is.

    `data.text_column` holds the text, `question_column` the question, `task.label_column` the answers as in SQuAD,
    `{text: [...], answer_start: [...]}`, or one text that occurs once in the text. A text that does not fit into
    `data.sequence_length` is read in windows that share `stride` tokens, which null makes 64, or half of
    what the longest question leaves of a row where that is less. The answer is the span of at most
    `max_answer_tokens` with the highest sum of logits in any window; `num_best` spans are written beside it. With
    `no_answer` a question may have none, and gets none where the first token is better by `no_answer_threshold`.
    """

    auto_class = AutoModelForQuestionAnswering
    judged = {"span": "prediction"}
    usual_metrics = ("exact_match", "answer_f1")
    guess = "the commonest answer"

    def __init__(
        self,
        task: TaskConfig,
        data: ExamplesConfig,
        *,
        question_column: str = "question",
        stride: int | None = None,
        max_answer_tokens: int = 30,
        num_best: int = 5,
        no_answer: bool = False,
        no_answer_threshold: float = 0.0,
    ) -> None:
        super().__init__(task, data)
        least = {"stride": (stride, 0), "max_answer_tokens": (max_answer_tokens, 1), "num_best": (num_best, 1)}
        if problems := [
            f"task.options.{name}: {value} must be {lowest} or more"
            for name, (value, lowest) in least.items()
            if value is not None and value < lowest
        ]:
            raise UsageError(*problems)
        self.question_column, self.stride, self.max_answer_tokens = question_column, stride, max_answer_tokens
        self.num_best, self.no_answer, self.no_answer_threshold = num_best, no_answer, no_answer_threshold

    def fields(self) -> dict[str, Field]:
        return {
            "text": Field(column=self.data.text_column, setting="data.text_column", read=text),
            "question": Field(column=self.question_column, setting="task.options.question_column", read=text),
            "answers": Field(
                column=self.task.label_column, setting="task.label_column", read=read_answers, is_answer=True
            ),
        }

    def key(self, example: Example) -> str:
        return str(example["text"])

    def check(self, example: Example) -> Iterator[Fault]:
        answers, context, column = example["answers"], example["text"], f"column {self.task.label_column!r}"
        if not answers and not self.no_answer:
            yield Fault(f"{column}: there is no answer; fill it in, or set task.options.no_answer true")
        for number, (answer, start) in enumerate(answers):
            if not answer.strip():
                yield Fault(f"{column}: an answer is only white space; remove it, and its answer_start")
            elif start is None and context.count(answer) != 1:
                found = f"{shown(answer)} {context.count(answer)} times"
                remedy = f"write it as {ANSWERS}" if answer in context else "correct the answer or the text"
                yield Fault(f"{column}: the text has the answer ", found=found, after=f"; {remedy}")
            elif start is None:
                answers[number] = (answer, context.index(answer))
            elif not 0 <= start <= len(context) - len(answer):
                found = f"{len(answer)} characters from {shown(start)} of {len(context)}"
                yield Fault(f"{column}: an answer lies outside the text: ", found=found, after="; correct answer_start")
            elif context[start : start + len(answer)] != answer:
                found = f"{shown(context[start : start + len(answer)])} where the answer is said to be {shown(answer)}"
                yield Fault(f"{column}: the text has ", found=found, after="; correct answer_start, or the answer")

    def texts(self, examples: Sequence[Example]) -> list[str]:
        return [text for example in examples for text in (example["text"], example["question"])]

    def describe(self) -> str:
        return "a span of the text" + (", or that there is none" if self.no_answer else "")

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        require_offsets(tokenizer)

    def prepare_model(self, model: PreTrainedModel, train: Sequence[Example]) -> None:
        model.register_forward_hook(hide_padding, with_kwargs=True)

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        stride = self.checked_stride(examples, tokenizer, max_length=max_length)
        encoded = tokenizer(
            [example["question"] for example in examples],
            [example["text"] for example in examples],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        numbers, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        rows = []
        for window, number in enumerate(numbers):
            row: Row = {name: values[window] for name, values in encoded.items()}
            row |= {"example": number, "cut": False}
            in_text = [which == 1 for which in encoded.sequence_ids(window)]
            row["spans"] = [span if counts else None for span, counts in zip(offsets[window], in_text, strict=True)]
            if "answers" in examples[number]:
                answers = examples[number]["answers"]
                first, last = tokens_of(answers[0], row["spans"]) if answers else (NO_ANSWER, NO_ANSWER)
                row |= {"start_positions": first, "end_positions": last}
            rows.append(row)
        return rows

    def checked_stride(
        self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int
    ) -> int:
        """The tokens that windows share. Raises `UsageError` if they would not move on beside the longest question."""
        questions = tokenizer([example["question"] for example in examples], add_special_tokens=False)["input_ids"]
        room = max_length - max(map(len, questions)) - tokenizer.num_special_tokens_to_add(pair=True)
        stride = min(USUAL_STRIDE, max(room, 0) // 2) if self.stride is None else self.stride
        if stride >= room:
            raise UsageError(
                f"task.options.stride: {stride} has to be less than the {max(room, 0)} tokens that "
                f"data.sequence_length {max_length} leaves for the text beside the longest question: lower the one, "
                "raise the other, or shorten the question"
            )
        return stride

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Any]:
        starts, ends = output.start_logits.float().cpu(), output.end_logits.float().cpu()
        return [self.best_spans(row, starts[place], ends[place]) for place, row in enumerate(rows)]

    def best_spans(self, row: Row, starts: torch.Tensor, ends: torch.Tensor) -> dict[str, Any]:
        """The best spans of a window as (score, first character, character after the last), and the score of none."""
        inside = [token for token, span in enumerate(row["spans"]) if span is not None and span[0] < span[1]]
        first, last = starts[inside].numpy(), ends[inside].numpy()
        scores = first[:, None] + last[None, :]
        length = np.arange(len(inside))[None, :] - np.arange(len(inside))[:, None]
        scores = np.where((length >= 0) & (length < self.max_answer_tokens), scores, -np.inf).ravel()
        best = np.argsort(-scores, kind="stable")[: self.num_best]
        spans = []
        for place in best[np.isfinite(scores[best])].tolist():
            begin, end = divmod(place, len(inside))
            spans.append((float(scores[place]), row["spans"][inside[begin]][0], row["spans"][inside[end]][1]))
        return {"none": float(starts[NO_ANSWER] + ends[NO_ANSWER]), "spans": spans}

    def answers(self, examples: Sequence[Example], *, rows: Sequence[Row], outcomes: Sequence[Any]) -> list[Answer]:
        windows: dict[int, list[Any]] = defaultdict(list)
        for row, outcome in zip(rows, outcomes, strict=True):
            windows[row["example"]].append(outcome)
        return [self.best_answer(example["text"], windows[number]) for number, example in enumerate(examples)]

    def best_answer(self, context: str, windows: Sequence[Any]) -> Answer:
        """The best answer that any window of a text holds; windows overlap, so spans are met more than once."""
        scores: dict[str, float] = {}
        for score, start, end in sorted((span for window in windows for span in window["spans"]), reverse=True):
            scores.setdefault(context[start:end].strip(), score)
        if self.no_answer:
            scores[""] = min(window["none"] for window in windows) - self.no_answer_threshold
        if not scores:  # the tokenizer makes no token of the text
            return {"prediction": "", "probability": 1.0, "num_best": [("", 1.0)]}
        best = sorted(scores.items(), key=lambda item: -item[1])[: self.num_best]
        weights = np.exp(np.array([score for _, score in best]) - best[0][1])
        ranked = [(text, float(weight)) for (text, _), weight in zip(best, weights / weights.sum(), strict=True)]
        return {"prediction": ranked[0][0], "probability": ranked[0][1], "num_best": ranked}

    def gold(self, example: Example) -> list[str]:
        # Where there may be no answer, SQuAD 2.0 takes one without words for none (Rajpurkar 2018), and 1.1 does not.
        return [text for text, _ in example["answers"] if not self.no_answer or plain(text)]

    def guesses(self, train: Sequence[Example], examples: Sequence[Example]) -> list[str]:
        return [(guess or [""])[0] for guess in super().guesses(train, examples)]


def hide_padding(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> Any:
    """The outputs of a model whose answers cannot lie in padding.

    The heads of transformers take the softmax over padding too, so that the loss of a row depends on its batch.
    """
    is_padding = inputs["attention_mask"] == 0
    for name in ("start_logits", "end_logits"):
        logits = output[name]
        output[name] = logits.masked_fill(is_padding, torch.finfo(logits.dtype).min)
    if "start_positions" in inputs:
        pairs = [(output.start_logits, inputs["start_positions"]), (output.end_logits, inputs["end_positions"])]
        output.loss = sum(F.cross_entropy(logits.float(), positions) for logits, positions in pairs) / len(pairs)
    return output


def read_answers(row: FileRow, column: str) -> list[tuple[str, int | None]]:
    """(text, first character) of each right answer; the character is None where the file does not say it."""
    place, values = row
    value = values[column]
    if isinstance(value, str):
        answer = any_text(row, column)
        if not WITH_PLACES.match(answer):
            return [(answer, None)] if answer.strip() else []
    value = parsed(row, column, form=ANSWERS)
    match value:
        case {"text": list() as found, "answer_start": list() as starts} if len(found) == len(starts):
            if all(isinstance(it, str) and it for it in found) and all(type(it) is int for it in starts):
                return list(zip(found, starts, strict=True))
    raise misread(place, column, value, f"which is no answer; give a text, or {ANSWERS} with as many numbers as texts")


def tokens_of(answer: tuple[str, int], spans: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    """The first and the last token of an answer in a window, or `NO_ANSWER` twice where the window lacks some of it."""
    text, start = answer
    begin, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    first = [token for token, span in enumerate(spans) if span is not None and span[0] <= begin < span[1]]
    last = [token for token, span in enumerate(spans) if span is not None and span[0] < end <= span[1]]
    return (first[0], last[-1]) if first and last else (NO_ANSWER, NO_ANSWER)
