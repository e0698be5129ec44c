"""YAML without its traps: numbers and booleans as in YAML 1.2, no key given twice, every key with its line.

PyYAML follows YAML 1.1, where `3e-4` is a text, `no` is false, `010` is eight and `1:30` is ninety.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from attnkit.errors import UsageError
from attnkit.files.text import read_text

NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
INT = re.compile(r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$")
FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
SCALARS = {"null": NULL, "bool": BOOL, "int": INT, "float": FLOAT, "merge": re.compile(r"^<<$")}
RESOLVERS = {None: [(f"tag:yaml.org,2002:{name}", pattern) for name, pattern in SCALARS.items()]}


class Loader(yaml.SafeLoader):
    """Reads the scalars of YAML 1.2."""

    yaml_implicit_resolvers = RESOLVERS

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Raises `ConstructorError` for a text that its tag, such as `!!int`, cannot read."""
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, ValueError) as error:
            raise yaml.constructor.ConstructorError(None, None, f"no such value: {error}", node.start_mark) from error


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)


class Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else."""

    yaml_implicit_resolvers = yaml.SafeDumper.yaml_implicit_resolvers | RESOLVERS

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Only between double quotes do the line breaks of Unicode come back as they were."""
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.represent_text)


def parse(text: str) -> Any:
    """The value of one YAML text, e.g. of a flag."""
    loader = Loader(text)
    try:
        node = _whole(loader)
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def dump(value: Any) -> str:
    """One value as YAML that `parse` reads back."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)


def read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in a file, and the line of each of its keys by dotted name.

    Raises `UsageError` naming the file (and line) when it is missing, no UTF-8, no YAML, empty, no mapping, or gives a
    key twice.
    """
    loader = Loader(_text(path))
    lines: dict[str, int] = {}
    try:
        node = _whole(loader)
        if node is None:
            raise UsageError(f"{path}: the file is empty: write `section:` and its keys, or leave it out")
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path}:{node.start_mark.line + 1}: expected `section:` and its keys")
        twice = _number_lines(node, "", lines)
        if twice:
            raise UsageError(*(f"{path}:{line}: {key} is given twice: keep one of them" for key, line in twice))
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(f"{place}: not YAML: {error.problem or error.context}") from error
    finally:
        loader.dispose()


def _whole(loader: Loader) -> yaml.Node | None:
    """The one document that a loader reads, in nodes."""
    try:
        return loader.get_single_node()
    except RecursionError as error:
        raise yaml.composer.ComposerError(None, None, "too many brackets in brackets", loader.get_mark()) from error


def _text(path: Path) -> str:
    text = read_text(path)
    control = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise UsageError(f"{path}:{line}: not YAML: it holds the control character {control.group()!r}")
    return text


def _number_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int]) -> list[tuple[str, int]]:
    """Fill `lines` and return the keys that stand twice in one mapping."""
    twice = []
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in lines and key_node.value != "<<":
            twice.append((key, line))
        lines[key] = line
        # An alias stands for a node further up, whose keys are counted there.
        if isinstance(value_node, yaml.MappingNode) and value_node.start_mark.index > key_node.start_mark.index:
            twice += _number_lines(value_node, f"{key}.", lines)
    return twice
