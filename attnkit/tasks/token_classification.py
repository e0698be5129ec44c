"""A tag for each word of a text."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, final

from transformers import AutoModelForTokenClassification, PreTrainedTokenizerBase

from attnkit.errors import Fault, UsageError
from attnkit.models.loss import IGNORED
from attnkit.tasks.base import Answer, pipeline_code, tasks
from attnkit.tasks.examples import Example
from attnkit.tasks.fields import Field, tags, words
from attnkit.tasks.label_task import LabelTask
from attnkit.tasks.metrics_of_labels import MISSED, EntityMetric
from attnkit.tasks.rows import Row, tokenize

BIO = re.compile(r"O|[BI]-.+")


@tasks.register("token_classification")
@final
class TokenClassification(LabelTask):
    """p(tag | word) = softmax(logits at the first token of the word), judged by entities and by words.

    Words are in a list, or in a text with white space between them, and so are their tags; what the model reads is the
    words with a space between each two, as `pipeline` would be given it. Only the first token of a word is trained on
    and read; what `pipeline` takes for words besides, a token that is a space alone and further bytes of a first
    character, learns to go on with an entity or to be outside of one. A word that was cut off by
    `data.sequence_length` is wrong, and counted.
    """

    auto_class = AutoModelForTokenClassification
    judged = {"tags": "prediction"}
    usual_metrics = ("entity_f1", "entity_precision", "entity_recall", "tag_accuracy")
    guess = "the commonest tag"

    def fields(self) -> dict[str, Field]:
        return {
            "words": Field(column=self.data.text_column, setting="data.text_column", read=words),
            "tags": Field(
                column=self.task.label_column,
                setting="task.label_column",
                read=tags(self.task.label_names),
                is_answer=True,
            ),
        }

    def check(self, example: Example) -> Iterator[Fault]:
        if len(example["words"]) != len(example["tags"]):
            columns = f"columns {self.data.text_column!r} and {self.task.label_column!r}"
            found = f"{len(example['tags'])} tags for {len(example['words'])} words"
            yield Fault(f"{columns}: there are ", found=found, after="; give one tag for each word")

    def labels_of(self, example: Example) -> list[str]:
        return list(example["tags"])

    def learn(self, train: Sequence[Example]) -> Iterator[str]:
        yield from super().learn(train)
        odd = [name for name in self.classes if not BIO.fullmatch(name)]
        if odd and any(isinstance(metric, EntityMetric) for metric, _ in self.metrics().values()):
            are_numbers = all(map(str.isdecimal, odd)) and self.task.label_names is None
            remedy = "name the tags by task.label_names, or " if are_numbers else ""
            yield (
                f"task.metrics: {odd[0]!r} is no BIO tag (O, B-class, I-class), so there are no entities; "
                f"{remedy}set task.metrics to [tag_accuracy]"
            )

    def texts(self, examples: Sequence[Example]) -> list[str]:
        return [" ".join(example["words"]) for example in examples]

    def describe(self) -> str:
        return f"one of {len(self.classes)} tags for each word"

    def code(self) -> str:
        # Only the first token of a word is trained to say something.
        settings = ', aggregation_strategy="first"'
        return pipeline_code("token-classification", asks='"some words with spaces between"', settings=settings)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        require_offsets(tokenizer)

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        rows = tokenize(tokenizer, self.texts(examples), max_length=max_length, return_offsets_mapping=True)
        numbers, special = self.numbers(), set(tokenizer.all_special_ids)
        for row, example in zip(rows, examples, strict=True):
            offsets = row.pop("offset_mapping")
            row["first_tokens"] = first_tokens(example["words"], offsets)
            row["missed"] = len(example["words"]) - len(row["first_tokens"])
            if "tags" in example:
                row["labels"] = [IGNORED] * len(row["input_ids"])
                for word, token in row["first_tokens"].items():
                    row["labels"][token] = numbers[example["tags"][word]]
                for token, tag in tags_beside(example, row["first_tokens"], offsets).items():
                    if tag in numbers and row["input_ids"][token] not in special:
                        row["labels"][token] = numbers[tag]
        return rows

    def notes(self, rows: Sequence[Row], *, sequence_length: int) -> list[str]:
        missed = sum(row["missed"] for row in rows)
        said = f"{missed:,} words have no token in their row and count as wrong"
        return super().notes(rows, sequence_length=sequence_length) + ([said] if missed else [])

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Any]:
        probabilities, numbers = (it.tolist() for it in output.logits.float().softmax(dim=-1).max(dim=-1))
        return [
            {word: (self.classes[numbers[place][token]], probabilities[place][token])
             for word, token in row["first_tokens"].items()}
            for place, row in enumerate(rows)
        ]  # fmt: skip

    def answers(self, examples: Sequence[Example], *, rows: Sequence[Row], outcomes: Sequence[Any]) -> list[Answer]:
        found = []
        for example, by_word in zip(examples, outcomes, strict=True):
            pairs = [by_word.get(word, (MISSED, 0.0)) for word in range(len(example["words"]))]
            found.append({"prediction": [tag for tag, _ in pairs], "probability": [value for _, value in pairs]})
        return found

    def gold(self, example: Example) -> list[str]:
        return list(example["tags"])

    def guesses(self, train: Sequence[Example], examples: Sequence[Example]) -> list[list[str]]:
        ((tag, _),) = Counter(tag for example in train for tag in example["tags"]).most_common(1)
        return [[tag] * len(example["words"]) for example in examples]


def require_offsets(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `UsageError` for a tokenizer that does not know which characters a token stands for."""
    if not tokenizer.is_fast:
        raise UsageError(
            "tokenizer.path: this task has to know which characters a token stands for, and a tokenizer without "
            "tokenizer.json does not; give one with it"
        )


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> dict[int, int]:
    """word -> its first token, for words with one space between each two; without the words that have no token.

    A token that two words share is that of the first.
    """
    found: dict[int, int] = {}
    token, start = 0, 0
    for word, text in enumerate(words):
        end = start + len(text)
        while token < len(offsets) and (offsets[token][1] <= start or offsets[token][0] == offsets[token][1]):
            token += 1
        if token < len(offsets) and offsets[token][0] < end:
            found[word] = token
            token += 1
        start = end + 1
    return found


def tags_beside(example: Example, first: Mapping[int, int], offsets: Sequence[tuple[int, int]]) -> dict[int, str]:
    """token -> its tag, of the tokens beside the first ones that `pipeline`, which goes by spaces, takes for words too:
    the space alone before a word, and the further bytes of its first character."""
    words, tags = example["words"], example["tags"]
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    found = {}
    for word, token in first.items():
        start, tag = starts[word], tags[word]
        if word > 0 and start - 1 <= offsets[token - 1][0] and offsets[token - 1][1] <= start:
            goes_on = tag.startswith("I-") and tags[word - 1] in (tag, f"B-{tag[2:]}")
            found[token - 1] = tag if goes_on else "O"
        num_bytes = sum(1 for _ in takewhile((start, start + 1).__eq__, offsets[token + 1 :]))
        within = f"I-{tag[2:]}" if tag.startswith("B-") else tag
        found |= dict.fromkeys(range(token + 1, token + 1 + num_bytes), within)
    return found
