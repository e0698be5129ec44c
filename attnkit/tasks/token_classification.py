"""A tag for each word of a text."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
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
    words with a space between each two, as `pipeline` would be given it. Of a word its first token is trained and
    read; what `pipeline` takes for words besides, such as a token that is a space alone and what follows a full stop
    inside of a word, learns to go on with an entity or to be outside of one. A word that was cut off by
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
        # What follows the first token of a word is not trained to say something.
        settings = ', aggregation_strategy="first"'
        return pipeline_code("token-classification", asks='"some words with spaces between"', settings=settings)

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        require_offsets(tokenizer)

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        texts, numbers = self.texts(examples), self.numbers()
        rows = tokenize(
            tokenizer,
            texts,
            max_length=max_length,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        for row, example, text in zip(rows, examples, texts, strict=True):
            offsets, special = row.pop("offset_mapping"), row.pop("special_tokens_mask")
            row["first_tokens"] = first_tokens(example["words"], offsets)
            row["missed"] = len(example["words"]) - len(row["first_tokens"])
            if "tags" in example:
                begin = words_of_pipeline(row["input_ids"], tokenizer, text=text, offsets=offsets)
                places = {token: offsets[token] for token in begin if not special[token]}
                tags = tags_at(places, example) | {
                    token: example["tags"][word] for word, token in row["first_tokens"].items()
                }
                row["labels"] = [numbers.get(tags.get(token, ""), IGNORED) for token in range(len(offsets))]
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


def words_of_pipeline(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, text: str, offsets: Sequence[tuple[int, int]]
) -> list[int]:
    """The tokens that `pipeline` begins a word with.

    Of a tokenizer that marks what goes on with a word, such as WordPiece, all that are as long as their text; of
    others, those with a space before or in them. A token that stands for the unknown always begins one.
    """
    marks = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
    names = tokenizer.convert_ids_to_tokens(list(ids))

    def begins(token: int) -> bool:
        start, end = offsets[token]
        if ids[token] == tokenizer.unk_token_id:
            return True
        if marks:
            return len(names[token]) == end - start
        return start == 0 or " " in text[start - 1 : start + 1]

    return [token for token in range(len(ids)) if begins(token)]


def tags_at(places: Mapping[int, tuple[int, int]], example: Example) -> dict[int, str]:
    """token -> its tag, of tokens that stand for places of the text: in a word, or in the space before one.

    In a word a token goes on with the word's entity, in a space with one that goes on in the next word. A space whose
    offsets were trimmed has no width, where the word begins.
    """
    words, tags = example["words"], [*example["tags"], "O"]
    starts = list(accumulate((len(word) + 1 for word in words), initial=0))
    found = {}
    for token, (start, end) in places.items():
        word = bisect_right(starts, start) - 1
        is_trimmed = start == end == starts[word]
        word -= is_trimmed  # of the first word to -1, the place of an "O"
        tag, next_tag = tags[word], tags[word + 1]
        if not is_trimmed and start < starts[word] + len(words[word]):
            found[token] = f"I-{tag[2:]}" if tag.startswith("B-") else tag
        else:
            goes_on = next_tag.startswith("I-") and tag in (next_tag, f"B-{next_tag[2:]}")
            found[token] = next_tag if goes_on else "O"
    return found
