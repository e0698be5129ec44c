"""Which of several texts goes on from a text, or answers it."""

from collections.abc import Iterator, Sequence
from statistics import mode
from typing import Any, final

from transformers import AutoModelForMultipleChoice, PreTrainedTokenizerBase

from attnkit.data.readers import Row as FileRow
from attnkit.errors import Fault, RowError, UsageError, repeated
from attnkit.tasks.base import Answer, Task, TaskConfig, tasks
from attnkit.tasks.examples import Example, ExamplesConfig, unknown
from attnkit.tasks.fields import Field, label, place_in, shown, text, texts
from attnkit.tasks.rows import ChoicePadding, Collator, Row, tokenize


@tasks.register("multiple_choice")
@final
class MultipleChoice(Task):
    """p(choice) = softmax over the choices of the score of (text, choice) (Radford 2018), judged by accuracy.

    The choices of a text are a list in `choices_column`, or one text in each of `choice_columns`; with
    `task.text_pair_column` each of them begins with that text, as in SWAG. Labels count the choices from 0.
    """

    auto_class = AutoModelForMultipleChoice
    reads_whole = True
    judged = {"place": "prediction"}
    usual_metrics = ("accuracy",)
    guess = "the commonest place"

    def __init__(
        self,
        task: TaskConfig,
        data: ExamplesConfig,
        *,
        choices_column: str = "choices",
        choice_columns: list[str] | None = None,
    ) -> None:
        super().__init__(task, data)
        if choice_columns is not None and (len(choice_columns) < 2 or repeated(choice_columns)):
            raise UsageError(f"task.options: choice_columns {choice_columns} must name two columns or more, each once")
        self.choices_column, self.choice_columns = choices_column, choice_columns
        self.num_choices: int | None = None  # as learnt: a saved model scores any number of them

    def fields(self) -> dict[str, Field]:
        fields = {"text": Field(column=self.data.text_column, setting="data.text_column", read=text)}
        if self.task.text_pair_column is not None:
            fields["text_pair"] = Field(column=self.task.text_pair_column, setting="task.text_pair_column", read=text)
        if self.choice_columns is None:
            fields["choices"] = Field(column=self.choices_column, setting="task.options.choices_column", read=choices)
        for place, column in enumerate(self.choice_columns or []):
            fields[f"choice_{place}"] = Field(column=column, setting="task.options.choice_columns", read=text)
        fields["label"] = Field(
            column=self.task.label_column, setting="task.label_column", read=label(None, named=False), is_answer=True
        )
        return fields

    def choices(self, example: Example) -> list[str]:
        """The texts to choose from."""
        found = example.get("choices") or [
            example[f"choice_{place}"] for place in range(len(self.choice_columns or []))
        ]
        return [f"{example['text_pair']} {choice}" for choice in found] if "text_pair" in example else list(found)

    def check(self, example: Example) -> Iterator[Fault]:
        num_choices = len(self.choices(example))
        if place_in(example["label"], num_choices) is None:
            remedy = f"; a label is the place of the right choice, from 0 to {num_choices - 1}"
            yield Fault(f"column {self.task.label_column!r} holds ", found=shown(example["label"]), after=remedy)

    def learn(self, train: Sequence[Example]) -> Iterator[str]:
        whole = [example for example in train if self.fields().keys() <= example.keys()]
        self.num_choices = mode(len(self.choices(example)) for example in whole)
        return iter(())

    def unknown(self, examples: Sequence[Example]) -> Iterator[tuple[Example, Fault]]:
        numbers = [len(self.choices(example)) for example in examples]
        usual = self.num_choices or mode(numbers)
        for example, found in zip(examples, numbers, strict=True):
            if found != usual:
                remedy = f" choices where others have {usual}; give each as many"
                yield example, Fault(f"column {self.choices_column!r} holds ", found=str(found), after=remedy)

    def texts(self, examples: Sequence[Example]) -> list[str]:
        return super().texts(examples) + [choice for example in examples for choice in self.choices(example)]

    def describe(self) -> str:
        return "the right choice"

    def encode(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> list[Row]:
        if uneven := unknown(examples, task=self):  # where there are no answers, nothing was learnt
            raise UsageError(*uneven)
        choices = [self.choices(example) for example in examples]
        firsts = [example["text"] for example, given in zip(examples, choices, strict=True) for _ in given]
        flat = tokenize(tokenizer, firsts, [choice for given in choices for choice in given], max_length=max_length)
        rows, end = [], 0
        for example, given in zip(examples, choices, strict=True):
            group, end = flat[end : end + len(given)], end + len(given)
            row: Row = {name: [one[name] for one in group] for name in group[0]}
            row["cut"] = any(row["cut"])
            if "label" in example:
                row["labels"] = int(example["label"])
            rows.append(row)
        return rows

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return ChoicePadding(tokenizer, side=tokenizer.padding_side)

    def outcomes(self, rows: list[Row], *, batch: dict[str, Any], output: Any, model: Any) -> list[Answer]:
        probabilities, places = output.logits.float().softmax(dim=-1).max(dim=-1)
        pairs = zip(places.tolist(), probabilities.tolist(), strict=True)
        return [{"prediction": str(place), "probability": probability} for place, probability in pairs]

    def gold(self, example: Example) -> str:
        return str(int(example["label"]))


def choices(row: FileRow, column: str) -> list[str]:
    """Two texts or more in a list."""
    found = texts(row, column)
    if len(found) < 2:
        said = Fault(f"column {column!r} holds ", found=str(len(found)), after=" choices; give two or more")
        raise RowError(row[0], said)
    return found
