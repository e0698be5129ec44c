"""One value against the type of its key: jsonargparse checks and converts, this file says what was expected."""

import math
from copy import deepcopy
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_loader

from attnkit.config.runs import keys_of, may_be_empty
from attnkit.errors import UsageError, first_line, nearest
from attnkit.files import strict_yaml

MODE = "attnkit"
set_loader(MODE, strict_yaml.parse, exceptions=(yaml.YAMLError,))


class Checker:
    """Checks single values of a run, so that one wrong value does not hide the next."""

    def __init__(self, run_class: type) -> None:
        self.hints = keys_of(run_class)
        self.may_be_empty = may_be_empty(run_class)
        self.parser = ArgumentParser(exit_on_error=False, parser_mode=MODE, default_env=False, add_help=False)
        for name, hint in self.hints.items():
            self.parser.add_argument(f"--{name}", type=hint)

    def value(self, name: str, value: Any) -> Any:
        """A value from a file in the type of its key; raises `UsageError` that says what was expected."""
        if value is None and not allows(self.hints[name], NoneType):
            raise self.unexpected(name, value)
        if is_free_mapping(self.hints[name], value):
            return value  # the parser would read the texts in it as YAML once more
        section, _, leaf = name.rpartition(".")
        given = deepcopy(value)  # the parser converts lists in place
        try:
            namespace = self.parser.parse_object({section: {leaf: given}} if section else {leaf: given}, defaults=False)
        except ArgumentError as error:
            raise self.unexpected(name, value) from error
        if not same_kind(value, namespace[name]):
            raise self.unexpected(name, value)
        return self.sensible(name, namespace[name])

    def text(self, name: str, text: str) -> Any:
        """A value typed on the command line; one element stands for a list of it."""
        if allows(self.hints[name], list) and not text.strip():
            raise UsageError(f"{name}: is empty: give a value, or leave it out")
        try:
            namespace = self.parser.parse_args([f"--{name}={text}"], defaults=False)
        except (ArgumentError, AttributeError, RecursionError) as error:  # the last two from the parser's own YAML
            if allows(self.hints[name], list) and not text.startswith("["):
                return self.value(name, [self.parsed(name, text)])
            raise self.unexpected(name, text) from error
        return self.sensible(name, namespace[name])

    def parsed(self, name: str, text: str) -> Any:
        """A value typed on the command line that may be of any type."""
        try:
            return strict_yaml.parse(text)
        except yaml.YAMLError as error:
            raise UsageError(f"{name}: {text[:50]!r} is not YAML: {first_line(error)}") from error

    def sensible(self, name: str, value: Any) -> Any:
        """The value, unless no key can have it, or one of a list."""
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and "\0" in one:
                raise UsageError(f"{name}: {one!r} holds a null character: leave it out")
            if isinstance(one, str) and not is_unicode(one):
                raise UsageError(f"{name}: {one!a} is not UTF-8: give another name to what it names")
            if isinstance(one, str) and not one.strip() and name not in self.may_be_empty:
                raise UsageError(f"{name}: is empty: give a value, or leave it out")
            if isinstance(one, float) and not math.isfinite(one):
                raise UsageError(f"{name}: expected a finite number, got {one}")
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


def same_kind(given: Any, taken: Any) -> bool:
    """Whether texts stayed texts, at every depth ('3' in quotes is no number), and the keys of mappings are texts."""
    if isinstance(given, list) and isinstance(taken, list):
        return all(same_kind(*pair) for pair in zip(given, taken, strict=True))
    if isinstance(given, dict) and isinstance(taken, dict):
        return all(isinstance(key, str) and same_kind(value, taken[key]) for key, value in given.items())
    return isinstance(taken, str) or not isinstance(given, str)


def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of any other type, itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def allows(hint: Any, kind: type) -> bool:
    """Whether a value of some kind (`list`, `dict`, `NoneType`) can be of a type."""
    return any(kind in (member, get_origin(member)) for member in members(hint))


def is_free_mapping(hint: Any, value: Any) -> bool:
    """Whether a value is a mapping from names to whatever, and of a type that allows that."""
    is_mapping = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    return is_mapping and any(get_args(member) == (str, Any) for member in members(hint))


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


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text; the names of files need not be such."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
