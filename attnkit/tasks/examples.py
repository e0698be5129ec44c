"""Examples: the rows of `data.source` and its like, read for a task, all their faults said at once, and split."""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.data import python_docs
from attnkit.data.readers import Row
from attnkit.data.sources import EMPTY, PYTHON_DOCS, DataConfig, paths_of, read_rows
from attnkit.errors import Fault, RowError, UsageError, repeated
from attnkit.tasks.fields import Field, shown
from attnkit.tasks.splits import stratified_split

if TYPE_CHECKING:
    from attnkit.tasks.base import Task

Example = dict[str, Any]

KEPT = "kept"
"""The role of the columns that no task reads, by name; an example has it where there are such."""
PLACE = "place"
"""The role of where an example stands, e.g. `notes.csv:3`."""
SHOWN = 3  # places, and values, that an error names
LINES = 20  # errors of one source


@dataclass(kw_only=True)
class NewExamplesConfig(DataConfig):
    """Examples, and what of them is written beside what a model says to them."""

    source: str | list[str] | None = None  # type: ignore[assignment]
    """Examples, which have to be given: files, globs and folders of jsonl, csv, tsv, parquet and arrow (plain or .gz),
    or a hub name."""
    kept_columns: list[str] = field(default_factory=list)
    """Other columns of the examples, such as an id, that files of predictions hold too."""

    def problems(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        twice = repeated(self.kept_columns)
        return super().problems() + [f"data.kept_columns: {name!r} is there twice; give it once" for name in twice]


@dataclass(kw_only=True)
class ExamplesConfig(NewExamplesConfig):
    """The examples of a fine-tuning run."""

    source: str | list[str] | None = None
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
        few = [
            f"data.{it}: {value} must be 1 or more" for it, value in values.items() if value is not None and value < 1
        ]
        return super().problems() + [f"data.test_source: {EMPTY}"] * (self.test_source == []) + few


def load_examples(task: "Task", data: ExamplesConfig, *, notes: list[str] | None = None) -> dict[str, list[Example]]:
    """The examples by split, from which the task has learnt: `train`, `held_out` and, if there is a source, `test`.

    Without `data.held_out_source`, `data.held_out_fraction` of each stratum is held out; `notes` is told why
    the part that came of it is another. Raises one `UsageError` with a line for every fault of every file: whatever
    cannot be read, examples that the task refuses, labels that no training example has.
    """
    sources = {"data.source": data.source, "data.held_out_source": data.held_out_source}
    sources["data.test_source"] = data.test_source
    if not data.source:
        raise UsageError("data.source: is missing: give the files or the hub name of the examples to train on")
    read = {
        setting: read_examples(source, task=task, data=data, setting=setting)
        for setting, source in sources.items()
        if source is not None
    }
    problems = [line for found in read.values() for line in found.faults.lines()]
    given = read["data.source"]
    if "data.held_out_source" in read:
        train, held_out = given.examples, read["data.held_out_source"].examples
    else:
        train, held_out = split(given, task=task, data=data, problems=problems, notes=[] if notes is None else notes)
    # What follows from the examples together is not said before all of them are known: it may follow from a fault.
    if train and given.has_all_answers:
        problems += task.learn(train + given.spoilt)
        problems += [line for found in read.values() for line in unknown(found.examples, task=task)]
    if problems:
        raise UsageError(*problems)
    if notes is not None:
        notes += look_alikes(task.names())
    for example in train:
        example.pop(KEPT, None)  # nothing is written of what is trained on
    splits = {
        "train": sample(train, data.max_train_samples, seed=data.seed),
        "held_out": sample(held_out, data.max_held_out_samples, seed=data.seed),
    }
    if "data.test_source" in read:
        splits["test"] = sample(read["data.test_source"].examples, data.max_test_samples, seed=data.seed)
    if notes is not None and read.keys() != {"data.source"}:
        notes += met_in_training(splits, task=task)
    if notes is not None and (untrained := task.untrained(splits["train"])):
        shown = ", ".join(map(repr, untrained[:SHOWN])) + ", …" * (len(untrained) > SHOWN)
        number = f"{len(untrained):,} of {len(task.names()):,} classes"
        notes.append(f"{number} have no example to train on ({shown}): raise data.max_train_samples, or give some")
    return splits


def look_alikes(labels: Sequence[str]) -> Iterator[str]:
    """A line where labels differ by nothing but white space around them."""
    alike: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        alike[label.strip()].append(label)
    for them in alike.values():
        if len(them) > 1:
            named = ", ".join(map(repr, them))
            yield f"{named} differ only by white space around them and are classes of their own: write them alike"


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


class ReadExamples:
    """What was read of one source."""

    def __init__(self) -> None:
        self.examples: list[Example] = []
        self.faults = Faults()
        self.spoilt: list[Example] = []
        """What could be read of rows with a fault: all of their answer, which may be the only one of its kind."""
        self.num_unanswered = 0
        """Rows of which the answer could not be read."""

    def refuse(self, error: RowError) -> None:
        """One more row that cannot be read."""
        self.faults.add(error.place, error.fault)
        self.num_unanswered += 1

    @property
    def has_all_answers(self) -> bool:
        """Whether there is no answer but those that were read."""
        return not (self.num_unanswered or self.faults.of_files)


def read_examples(
    source: str | list[str],
    *,
    task: "Task",
    data: NewExamplesConfig,
    setting: str = "data.source",
    answers: bool = True,
) -> ReadExamples:
    """All examples of one source, with or without their answers, and every fault found there; those of the source as a
    whole name its `setting`."""
    fields = {role: it for role, it in task.fields().items() if answers or not it.is_answer}
    answering = {role for role, it in fields.items() if it.is_answer}
    read = ReadExamples()
    for part in [source] if isinstance(source, str) else source:
        for file in files(part, read.faults, setting=setting):
            try:
                for row in rows_of(file, data=data, fields=fields, refuse=read.refuse):
                    example, found = read_example(row, fields, data.kept_columns)
                    found += task.check(example) if answers and not found else []
                    for fault in found:
                        read.faults.add(row[0], fault)
                    if not found:
                        read.examples.append(example)
                    elif answering <= example.keys():
                        read.spoilt.append(example)
                    else:
                        read.num_unanswered += 1
            except UsageError as error:
                read.faults.of_files.append(str(error) if Path(file).exists() else of_source(error, setting=setting))
    return read


def unknown(examples: Sequence[Example], *, task: "Task") -> list[str]:
    """A line for every kind of what is in these examples that the training examples do not know."""
    faults = Faults()
    for example, fault in task.unknown(examples):
        faults.add(example[PLACE], fault)
    return faults.lines()


class Faults:
    """The faults of a source: what its files say of themselves, and those of its rows by kind, in the order met."""

    def __init__(self) -> None:
        self.of_files: list[str] = []
        self.of_rows: dict[Fault, FaultyRows] = {}

    def add(self, place: str, fault: Fault) -> None:
        """One more fault of a row."""
        self.of_rows.setdefault(fault.kind, FaultyRows()).add(place, fault.found)

    def lines(self) -> list[str]:
        """A line for each file that cannot be read, and for each kind."""
        kinds = [f"{rows.where()}: {kind.before}{rows.what()}{kind.after}" for kind, rows in self.of_rows.items()]
        lines = self.of_files + kinds
        return lines[:LINES] + [f"{len(lines) - LINES} more faults"] * (len(lines) > LINES)


class FaultyRows:
    """The rows with a fault of one kind: the first places and values, and how many rows there are."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.found: list[str] = []
        self.count, self.last = 0, ""

    def add(self, place: str, found: str) -> None:
        """One more row, or one more such fault of the last one."""
        if found not in self.found and len(self.found) <= SHOWN:
            self.found.append(found)
        if place != self.last:
            self.count, self.last = self.count + 1, place
            self.places += [place] * (len(self.places) < SHOWN)

    def where(self) -> str:
        """The first places."""
        return ", ".join(self.places) + (f", … ({self.count:,} rows)" if self.count > SHOWN else "")

    def what(self) -> str:
        """The first values."""
        return ", ".join(self.found[:SHOWN]) + ", …" * (len(self.found) > SHOWN)


def setting_of(split: str, data: ExamplesConfig) -> str:
    """The setting that gives the examples of a split."""
    if split == "held_out":
        return "data.held_out_fraction" if data.held_out_source is None else "data.held_out_source"
    return {"test": "data.test_source"}.get(split, "data.source")


def of_source(error: UsageError, *, setting: str) -> str:
    """What is wrong with a source as a whole, with the setting that gives it, and how to do without where one can."""
    otherwise = "" if setting == "data.source" else f", or do without by --{setting} null"
    return f"{setting}: {str(error).removeprefix('data.source: ')}{otherwise}"


def files(part: str, faults: Faults, *, setting: str) -> list[str]:
    """The files that a part of a source stands for, or its name where it is none."""
    try:
        paths = None if part == PYTHON_DOCS else paths_of(part)
    except UsageError as error:
        faults.of_files.append(of_source(error, setting=setting))
        return []
    return [part] if paths is None else list(map(str, paths))


def read_example(row: Row, fields: Mapping[str, Field], kept_columns: list[str]) -> tuple[Example, list[Fault]]:
    """What can be read of one row, by role, and what is wrong with the rest of it."""
    example: Example = {PLACE: row[0]}
    faults = []
    for role, it in fields.items():
        try:
            example[role] = it.value(row)
        except RowError as error:
            faults.append(error.fault)
    if kept_columns:
        example[KEPT] = {column: row[1][column] for column in kept_columns}
        faults += unwritable(example[KEPT])
    return example, faults


def unwritable(values: dict[str, Any]) -> Iterator[Fault]:
    """What of the values by column no line of JSON can hold."""
    for column, value in values.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError):
            remedy = "which no line of JSON holds; store it as text, or leave the column out of data.kept_columns"
            yield Fault(f"column {column!r} holds ", found=shown(value), after=f", {remedy}")


def rows_of(
    source: str, *, data: NewExamplesConfig, fields: Mapping[str, Field], refuse: Callable[[RowError], None]
) -> Iterator[Row]:
    """The rows of a file or hub dataset; `python-docs` has labels of its own."""
    columns = dict.fromkeys(data.kept_columns, "data.kept_columns") | {
        it.stored_in: it.setting for it in fields.values()
    }
    if source != PYTHON_DOCS:
        yield from read_rows(source, columns=columns, data=data, refuse=refuse)
        return
    for column, setting in columns.items():
        if column not in ("text", "label"):
            raise UsageError(f"{setting}: {PYTHON_DOCS} has the columns 'text' and 'label', and no {column!r}")
    for number, example in enumerate(python_docs.labelled(), start=1):
        yield f"{PYTHON_DOCS}, example {number}", dict(example)


def split(
    given: ReadExamples, *, task: "Task", data: ExamplesConfig, problems: list[str], notes: list[str]
) -> tuple[list[Example], list[Example]]:
    """The examples in two parts, of each stratum `data.held_out_fraction` in the second, no key in both."""
    examples = given.examples
    if not 0 < data.held_out_fraction < 1:
        problems.append(f"data.held_out_fraction: got {data.held_out_fraction}; it has to lie between 0 and 1")
        return examples, []
    keys, strata = list(map(task.key, examples)), list(map(task.stratum, examples))
    train, held_out = stratified_split(keys, strata, fraction=data.held_out_fraction, seed=data.seed)
    if examples and not held_out and not given.faults.lines():
        problems.append(
            "data.source: no label, or set of labels, has two different texts, so none can be held out; give "
            "data.held_out_source"
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
