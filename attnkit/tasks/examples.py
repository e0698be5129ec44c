"""Examples: the rows of `data.source` and its like, read for a task, all their faults said at once, and split."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnkit.data import python_docs
from attnkit.data.readers import Row
from attnkit.data.sources import PYTHON_DOCS, DataConfig, paths_of, read_rows
from attnkit.errors import UsageError, repeated
from attnkit.tasks.fields import Field, shown
from attnkit.tasks.splits import stratified_split

if TYPE_CHECKING:
    from attnkit.tasks.base import Task

Example = dict[str, Any]

KEPT = "kept"
"""The role of the columns that no task reads, by name; an example has it where there are such."""
SHOWN = 3  # places that an error names
LINES = 20  # errors of one source


@dataclass(kw_only=True)
class NewExamplesConfig(DataConfig):
    """Examples, and what of them is written beside what a model says to them."""

    kept_columns: list[str] = field(default_factory=list)
    """Other columns of the examples, such as an id, that files of predictions hold too."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        twice = repeated(self.kept_columns)
        return super().problems() + [f"data.kept_columns: {name!r} is there twice; give it once" for name in twice]


@dataclass(kw_only=True)
class ExamplesConfig(NewExamplesConfig):
    """The examples of a fine-tuning run."""

    source: str | list[str] | None = None  # type: ignore[assignment]
    """Examples to train on, which have to be given: `python-docs`, or files, globs and folders of jsonl, csv, tsv,
    parquet and arrow (plain or .gz), or a hub name (`org/name`, with `@revision` and `:split` where these are not
    `main` and `train`)."""
    held_out_fraction: float = 0.05
    """The part of the examples of `source` that is held out when there is no `held_out_source`."""
    sequence_length: int | None = None  # type: ignore[assignment]
    """Tokens of a text that are read, those of a pair together; null for as many as the model has positions, but at
    most 256."""
    test_source: str | list[str] | None = None
    """Examples that are judged once, after training."""
    max_train_samples: int | None = None
    """Examples to train on at most; the others are left out by lot."""
    max_held_out_samples: int | None = None
    """Held-out examples at most; the others are left out by lot."""
    max_test_samples: int | None = None
    """Test examples at most; the others are left out by lot."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        names = ("max_train_samples", "max_held_out_samples", "max_test_samples")
        values = {name: vars(self)[name] for name in names}
        return super().problems() + [
            f"data.{name}: {value} must be 1 or more"
            for name, value in values.items()
            if value is not None and value < 1
        ]


def load_examples(task: "Task", data: ExamplesConfig, *, notes: list[str] | None = None) -> dict[str, list[Example]]:
    """The examples by split, from which the task has learnt: `train`, `held_out` and, if there is a source, `test`.

    Without `data.held_out_source`, `data.held_out_fraction` of each stratum is held out; `notes` is told why
    the part that came of it is another. Raises one `UsageError` with a line for every fault of every file: whatever
    cannot be read, examples that the task refuses, labels that no training example has.
    """
    sources = {"data.source": data.source, "data.held_out_source": data.held_out_source}
    sources["data.test_source"] = data.test_source
    if data.source is None:
        raise UsageError("data.source: is missing: give the files or the hub name of the examples to train on")
    read, problems = {}, []
    for setting, source in sources.items():
        if source is not None:
            read[setting], faults = read_examples(source, task=task, data=data)
            problems += faults
    if "data.held_out_source" in read:
        train, held_out = read["data.source"], read["data.held_out_source"]
    else:
        train, held_out = split(
            read["data.source"], task=task, data=data, problems=problems, notes=[] if notes is None else notes
        )
    if train:
        problems += task.learn(train)
        for setting, examples in {
            "data.held_out_source": held_out,
            "data.test_source": read.get("data.test_source"),
        }.items():
            problems += task.unknown(examples or [], setting=setting)
    if problems:
        raise UsageError("\n".join(problems))
    for example in train:
        example.pop(KEPT, None)  # nothing is written of what is trained on
    splits = {
        "train": sample(train, data.max_train_samples, seed=data.seed),
        "held_out": sample(held_out, data.max_held_out_samples, seed=data.seed),
    }
    if "data.test_source" in read:
        splits["test"] = sample(read["data.test_source"], data.max_test_samples, seed=data.seed)
    if notes is not None and read.keys() != {"data.source"}:
        notes += met_in_training(splits, task=task)
    return splits


def met_in_training(splits: dict[str, list[Example]], *, task: "Task") -> Iterator[str]:
    """A line for each split that asks what training examples ask too."""
    known = {hash(task.question(example)) for example in splits["train"]}  # hashes, as texts take much memory
    for split in [name for name in splits if name != "train"]:
        shared = sum(hash(task.question(example)) in known for example in splits[split])
        if shared:
            yield (
                f"{shared:,} of {len(splits[split]):,} {split.replace('_', '-')} examples are trained on too, which "
                "makes their figures too good: remove them from one side"
            )


def read_examples(
    source: str | list[str], *, task: "Task", data: NewExamplesConfig, answers: bool = True
) -> tuple[list[Example], list[str]]:
    """All examples of one source, with or without their answers, and a line for every fault found there."""
    fields = {role: it for role, it in task.fields().items() if answers or not it.is_answer}
    examples: list[Example] = []
    faults: dict[str, list[str]] = defaultdict(list)
    for part in [source] if isinstance(source, str) else source:
        for file in files(part, faults):
            try:
                for row in rows_of(file, data=data, fields=fields):
                    example = read_example(row, fields, faults)
                    wrong = [] if example is None or not answers else list(task.check(example))
                    if data.kept_columns and example is not None:
                        example[KEPT] = {column: row[1][column] for column in data.kept_columns}
                        wrong += unwritable(example[KEPT])
                    for message in wrong:
                        faults[message].append(row[0])
                    if example is not None and not wrong:
                        examples.append(example)
            except UsageError as error:
                faults[str(error)]
    lines = [said(message, places) for message, places in faults.items()]
    return examples, lines[:LINES] + [f"{len(lines) - LINES} more faults"] * (len(lines) > LINES)


def unwritable(values: dict[str, Any]) -> Iterator[str]:
    """What of the values by column no line of JSON can hold."""
    for column, value in values.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError):
            yield (
                f"column {column!r} holds {shown(value)}, which no line of JSON holds; store it as text, or leave the "
                "column out of data.kept_columns"
            )


def files(part: str, faults: dict[str, list[str]]) -> Iterator[str]:
    """The files that a part of a source stands for, or its name where it is none."""
    try:
        paths = None if part == PYTHON_DOCS else paths_of(part)
    except UsageError as error:
        faults[str(error)]
        return
    yield from [part] if paths is None else map(str, paths)


def read_example(row: Row, fields: Mapping[str, Field], faults: dict[str, list[str]]) -> Example | None:
    """One row by role; None, and its faults noted with its place, where a cell cannot be read."""
    example, place, is_whole = {}, row[0], True
    for role, it in fields.items():
        try:
            example[role] = it.value(row)
        except UsageError as error:
            faults[str(error).removeprefix(f"{place}: ")].append(place)
            is_whole = False
    return example if is_whole else None


def said(message: str, places: list[str]) -> str:
    """A fault and where it was found."""
    if not places:
        return message
    more = f", … ({len(places)} rows)" if len(places) > SHOWN else ""
    return f"{', '.join(places[:SHOWN])}{more}: {message}"


def rows_of(source: str, *, data: NewExamplesConfig, fields: Mapping[str, Field]) -> Iterator[Row]:
    """The rows of a file or hub dataset; `python-docs` has labels of its own."""
    columns = dict.fromkeys(data.kept_columns, "data.kept_columns") | {
        it.stored_in: it.setting for it in fields.values()
    }
    if source != PYTHON_DOCS:
        yield from read_rows(source, columns=columns, data=data)
        return
    for column, setting in columns.items():
        if column not in ("text", "label"):
            raise UsageError(f"{setting}: {PYTHON_DOCS} has the columns 'text' and 'label', and no {column!r}")
    for number, example in enumerate(python_docs.labelled(), start=1):
        yield f"{PYTHON_DOCS}, example {number}", dict(example)


def split(
    examples: list[Example], *, task: "Task", data: ExamplesConfig, problems: list[str], notes: list[str]
) -> tuple[list[Example], list[Example]]:
    """The examples in two parts, of each stratum `data.held_out_fraction` in the second, no key in both."""
    if not 0 < data.held_out_fraction < 1:
        problems.append(f"data.held_out_fraction: got {data.held_out_fraction}; it has to lie between 0 and 1")
        return examples, []
    keys, strata = list(map(task.key, examples)), list(map(task.stratum, examples))
    train, held_out = stratified_split(keys, strata, fraction=data.held_out_fraction, seed=data.seed)
    if examples and not held_out:
        problems.append(
            "data.source: no label has two different texts, so none can be held out; give data.held_out_source"
        )
    elif account := split_account(keys, strata, held_out=held_out, fraction=data.held_out_fraction):
        notes.append(account)
    return [examples[index] for index in train], [examples[index] for index in held_out]


def split_account(keys: list[str], strata: list[str], *, held_out: list[int], fraction: float) -> str | None:
    """Why another part of the examples is held out than was asked for; None where no text is repeated."""
    strata_of: dict[str, set[str]] = defaultdict(set)
    for key, stratum in zip(keys, strata, strict=True):
        strata_of[key].add(stratum)
    repeated, ambiguous = len(keys) - len(strata_of), sum(len(strata_of[key]) > 1 for key in keys)
    if not repeated:
        return None
    share = len(held_out) / len(keys)
    said = f"{share:.1%} are held out: {repeated:,} of {len(keys):,} repeat a text and stay on its side"
    if ambiguous:
        said += f", and {ambiguous:,} are of texts with several labels, which are trained on"
    if share < fraction / 2:
        said += f"; that is far below data.held_out_fraction {fraction:g}: remove the repeated or give "
        said += "data.held_out_source"
    return said


def sample(examples: list[Example], limit: int | None, *, seed: int) -> list[Example]:
    """At most `limit` of the examples, drawn by lot, in their order."""
    if limit is None or limit >= len(examples):
        return examples
    return [examples[index] for index in sorted(random.Random(seed).sample(range(len(examples)), limit))]
