"""From files and flags to a run: every key and every value is checked, and all that is wrong is said at once."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from attnkit.config import flags
from attnkit.config.runs import ModelConfig, keys_of, sections_of
from attnkit.config.values import Checker, allows
from attnkit.errors import UsageError, nearest
from attnkit.files import strict_yaml
from attnkit.files.imports import absolute, import_part, not_replaced
from attnkit.files.saved import CONFIG, remembered_imports, run_folder
from attnkit.models.configuration_attnkit import make_config

Run = TypeVar("Run")

MOST, LARGEST = 10**12, 1e30
COMMAND_LINE, IMPORTS = "command line", "imports"
# What a model takes from the tokenizer and the text where its section is silent.
FROM_TEXT = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "max_position_embeddings")


def load(run_class: type[Run], arguments: Sequence[str], *, words: Sequence[str] = ()) -> Run:
    """A run from `--config FILE` (later files win) and `--section.key value` (flags win over files).

    `words` are the keys that the words between the flags set. Where `path` is one of the keys, those that the run there
    was saved with stand in for the defaults. The imports of a run at `path` or `model.path` come before the given ones.

    Raises one `UsageError` with a line for each problem: a file that cannot be read, an unknown or misspelt key, a
    value of the wrong type, an import that fails, settings that their section or `AttnKitConfig` refuses.
    """
    files, pairs = flags.split(run_class, arguments, words=words)
    reading = Reading(run_class)
    for text in [text for name, text in pairs if name == "path"]:
        reading.take_saved(text)
    for path in files:
        with reading.problem():
            mapping, lines = strict_yaml.read(path)
            reading.take_mapping(mapping, path, lines=lines)
    for name, text in pairs:
        reading.take_flag(name, text)
    run = reading.build()
    if reading.problems:
        raise UsageError(*dict.fromkeys(reading.problems))
    return run


def load_saved(run_class: type[Run], folder: Path, *, imports: Sequence[str]) -> Run:
    """The run that a folder holds the config of; what is imported already need not be where it was."""
    words = [f"--{IMPORTS}={json.dumps(list(imports))}"] if imports else []
    return load(run_class, ["--config", str(folder / CONFIG), *words])


def listed(value: Any) -> list[Any]:
    """A list, or a value that stands for a list of it."""
    return value if isinstance(value, list) else [] if value is None else [value]


class Reading:
    """The values given so far by key, where each was given, and what is wrong."""

    def __init__(self, run_class: type) -> None:
        self.run_class = run_class
        self.keys = keys_of(run_class)
        self.sections = sections_of(run_class)
        self.check = Checker(run_class)
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.problems: list[str] = []
        self.broken: set[str] = set()

    @contextmanager
    def problem(self, name: str = "", *, place: str = "") -> Iterator[None]:
        """Note a `UsageError` about a key with its place, and go on."""
        try:
            yield
        except UsageError as error:
            self.problems += [f"{place}: {line}" if place else line for line in str(error).splitlines()]
            self.broken.add(name.partition(".")[0])

    def take(self, name: str, value: Any, *, place: str) -> None:
        self.values[name] = value
        self.places[name] = place

    def take_mapping(self, mapping: dict, path: Path, *, lines: dict[str, int], prefix: str = "") -> None:
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            place = f"{path}:{lines[name]}" if name in lines else str(path)
            with self.problem(name, place=place):
                if name in self.keys:
                    checked = self.check.value(name, value)
                    if name == IMPORTS:
                        checked = [absolute(entry, path.parent) for entry in checked]
                    self.take(name, checked, place=place)
                elif name not in self.sections:
                    raise self.unknown(name)
                elif isinstance(value, dict):
                    self.take_mapping(value, path, lines=lines, prefix=f"{name}.")
                elif value is not None:
                    raise UsageError(f"{name}: expected its keys, got {value!r}")

    def take_saved(self, path: str) -> None:
        """Let the keys that the run at a path shares with this kind of run stand in for their defaults."""
        with self.problem():
            folder = run_folder(path)
            if folder is None or not self.sections:
                return
            mapping, lines = strict_yaml.read(folder / CONFIG)
            self.take_mapping(self.shared(mapping), folder / CONFIG, lines=lines)

    def shared(self, mapping: dict, prefix: str = "") -> dict:
        """What a mapping holds of the keys of this kind of run; imports are remembered apart."""
        kept = {}
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            if name in self.sections and isinstance(value, dict):
                kept[key] = self.shared(value, f"{name}.")
            elif name in self.keys and name not in (IMPORTS, *never_shared(self.run_class)):
                kept[key] = value
        return kept

    def take_flag(self, name: str, text: str) -> None:
        parent, _, leaf = name.rpartition(".")
        with self.problem(name, place=COMMAND_LINE):
            if name in self.keys:
                checked = self.check.text(name, text)
            elif name.removesuffix("+") in self.keys and allows(self.keys[name.removesuffix("+")], list):
                name = name.removesuffix("+")
                checked = [*listed(self.values.get(name)), *listed(self.check.text(name, text))]
            elif parent in self.keys and allows(self.keys[parent], dict):
                name = parent
                checked = {**(self.values.get(parent) or {}), leaf: self.check.parsed(name, text)}
            elif name in self.sections:
                raise UsageError(f"--{name} is a section: give its keys, --{name}.key value")
            else:
                raise self.unknown(name)
            if name == IMPORTS:
                checked = [absolute(entry, Path()) for entry in checked]
            self.take(name, checked, place=COMMAND_LINE)

    def unknown(self, name: str) -> UsageError:
        section, _, leaf = name.rpartition(".")
        if section and section not in self.sections:
            return UsageError(f"unknown section {section!r}: {nearest(section, self.sections)}")
        elsewhere = [key for key in self.keys if key.rpartition(".")[2] == leaf]
        if elsewhere:
            return UsageError(f"unknown key {name!r}: did you mean {' or '.join(map(repr, elsewhere))}?")
        beside = [key.rpartition(".")[2] for key in self.keys if key.rpartition(".")[0] == section]
        return UsageError(f"unknown key {name!r}: {nearest(leaf, beside + ([] if section else list(self.sections)))}")

    def build(self) -> Any:
        """The run, if nothing is wrong; a section whose values are right may still refuse them together."""
        self.import_parts()
        parts = {name: value for name, value in self.values.items() if "." not in name}
        for section in [name for name in self.sections if name not in self.broken]:
            try:
                parts[section] = self.build_section(section)
            except ValueError as error:
                self.problems += [self.locate(section, line) for line in str(error).splitlines()]
        if self.problems:
            return None
        run = self.run_class(**parts)
        own = {name: value for name, value in self.values.items() if "." not in name}
        self.problems += [self.locate("", line) for line in problems_of(run) or too_large(own)]
        return run

    def import_parts(self) -> None:
        """Import what the runs that this one starts from remember, then what is given; the run will name both."""
        given, found = self.values.get(IMPORTS, []), []
        for key in ("path", "model.path"):
            if IMPORTS not in self.keys or not isinstance(self.values.get(key), str):
                continue
            with self.problem(IMPORTS):
                remembered = remembered_imports(self.values[key])
                entries = not_replaced(remembered.entries, given=given)
                found += [(entry, remembered.place) for entry in entries]
        found += [(entry, self.places[IMPORTS]) for entry in given]
        for entry, place in found:
            with self.problem(IMPORTS, place=place):
                import_part(entry)
        if found:
            self.take(IMPORTS, [entry for entry, _ in found], place=found[-1][1])

    def build_section(self, section: str) -> Any:
        prefix = f"{section}."
        given = {name.removeprefix(prefix): value for name, value in self.values.items() if name.startswith(prefix)}
        settings = self.sections[section](**given)
        if problems := problems_of(settings) or too_large(given):
            raise UsageError(*problems)
        # Without its imports a model would seem to name parts that do not exist.
        return explicit(settings) if isinstance(settings, ModelConfig) and "imports" not in self.broken else settings

    def locate(self, section: str, message: str) -> str:
        """A message about a section that names one of its keys, or fields, with the place where that was given."""
        words = re.findall(r"[\w.]+", message)
        names = [name for word in words for name in (word.rstrip("."), f"{section}.{word}") if name in self.keys]
        name = next((name for name in names if name in self.places), names[0] if names else section)
        place = f"{self.places[name]}: " if name in self.places else ""
        leaf = name.rpartition(".")[2]
        for beginning in (f"{name}: ", f"{leaf}: ", f"{leaf} "):
            message = message.removeprefix(beginning)
        return f"{place}{name}: {message}"


class AlwaysGiven(ABC):
    """A kind of run with keys that no saved run stands in for."""

    @staticmethod
    @abstractmethod
    def always_given() -> tuple[str, ...]:
        """These keys."""


@runtime_checkable
class Checked(Protocol):
    """A section, or a run, that knows what is wrong with its values taken together."""

    def problems(self) -> list[str]:
        """A line for each."""


def never_shared(run_class: type) -> Sequence[str]:
    """The keys of a kind of run that are to be given each time, whatever the run at its path was saved with."""
    return run_class.always_given() if issubclass(run_class, AlwaysGiven) else ()


def too_large(given: dict[str, Any]) -> list[str]:
    """A line for each number that is beyond all that can be counted, or computed with in fp32."""
    numbers = [(name, it) for name, value in given.items() for it in (value if isinstance(value, list) else [value])]
    limits = {int: MOST, float: LARGEST}
    return [
        f"{name}: {number} must be at most {limits[type(number)]:.0e} in size"
        for name, number in numbers
        if type(number) in limits and abs(number) > limits[type(number)]
    ]


def problems_of(settings: Any) -> list[str]:
    """What settings, or a run, find wrong with themselves."""
    return settings.problems() if isinstance(settings, Checked) else []


def explicit(model: ModelConfig) -> ModelConfig:
    """A `model` section that leaves to defaults only what a saved model, the tokenizer or the text will say.

    Raises `UsageError` naming the field if `AttnKitConfig` refuses the section.
    """
    if model.path is not None:
        return model
    values = asdict(model)
    config = make_config(**{name: value for name, value in values.items() if name != "path" and value is not None})
    unset = [name for name, value in values.items() if value is None and name not in ("path", *FROM_TEXT)]
    return replace(model, **{name: vars(config)[name] for name in unset})
