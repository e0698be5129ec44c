"""One value against the type of its key: jsonargparse checks and converts, this file says what was expected."""

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_loader

from attnkit.config import strict_yaml
from attnkit.config.runs import keys_of, sections_of
from attnkit.errors import UsageError, nearest

MODE = "attnkit"
set_loader(MODE, strict_yaml.parse, exceptions=(yaml.YAMLError,))


def parser_of(run_class: type, usage: str | None = None) -> ArgumentParser:
    """A parser that knows the type, the default and the meaning of every key of a run, section by section."""
    parser = ArgumentParser(usage=usage, exit_on_error=False, parser_mode=MODE, default_env=False, add_help=False)
    groups = {
        name: parser.add_argument_group(name, section.__doc__) for name, section in sections_of(run_class).items()
    }
    groups[""] = parser.add_argument_group("run", run_class.__doc__)
    for name, key in keys_of(run_class).items():
        section = name.rpartition(".")[0]
        groups[section].add_argument(f"--{name}", type=key.hint, default=key.default, help=key.doc or " ")
    return parser


class Checker:
    """Checks single values of a run, so that one wrong value does not hide the next."""

    def __init__(self, run_class: type) -> None:
        self.parser = parser_of(run_class)
        self.hints = {name: key.hint for name, key in keys_of(run_class).items()}

    def value(self, name: str, value: Any) -> Any:
        """A value from a file in the type of its key; raises `UsageError` that says what was expected."""
        if value is None and not allows(self.hints[name], NoneType):
            raise self.unexpected(name, value)
        section, _, leaf = name.rpartition(".")
        try:
            namespace = self.parser.parse_object({section: {leaf: value}} if section else {leaf: value}, defaults=False)
        except ArgumentError as error:
            raise self.unexpected(name, value) from error
        return self.finite(name, namespace[name])

    def text(self, name: str, text: str) -> Any:
        """A value typed on the command line; one element stands for a list of it."""
        try:
            namespace = self.parser.parse_args([f"--{name}={text}"], defaults=False)
        except ArgumentError as error:
            if allows(self.hints[name], list) and not text.startswith("["):
                return self.value(name, [strict_yaml.parse(text)])
            raise self.unexpected(name, text) from error
        return self.finite(name, namespace[name])

    def finite(self, name: str, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name}: expected a finite number, got {value}")
        return value

    def unexpected(self, name: str, value: Any) -> UsageError:
        hint = self.hints[name]
        choices = [
            str(choice) for member in members(hint) if get_origin(member) is Literal for choice in get_args(member)
        ]
        if choices and isinstance(value, str):
            return UsageError(f"{name}: unknown name {value!r}: {nearest(value, choices)}")
        got = "null" if value is None else repr(value)
        return UsageError(f"{name}: expected {describe(hint)}, got {got}")


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other type, itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def allows(hint: Any, kind: type) -> bool:
    """Whether a value of some kind (`list`, `dict`, `NoneType`) can be of a type."""
    return any(kind in (member, get_origin(member)) for member in members(hint))


def describe(hint: Any) -> str:
    """A type in the words of a config: `int or null`, `str or list of str`."""
    return " or ".join(dict.fromkeys(_word(member) for member in members(hint)))


def _word(member: Any) -> str:
    if get_origin(member) is Literal:
        return " or ".join(map(repr, get_args(member)))
    if get_origin(member) is list:
        return f"list of ({describe(get_args(member)[0])})"
    if get_origin(member) is dict:
        return "mapping"
    words = {NoneType: "null", bool: "true or false", float: "number", str: "text", dict: "mapping", list: "list"}
    return words.get(member, member.__name__)
