"""Small text files that people and programs write: read whole, and refused with their place; numbers, and JSON."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import UsageError, repeated

NUMBER = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf|nan)", re.IGNORECASE)


def parse_number(text: str) -> float:
    """The number that a text is, between white space, inf and nan among them. Raises `ValueError` for any other.

    `float` takes `1_000` and the digits of all scripts too, which no other program takes for numbers.
    """
    if not NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no number")
    return float(text)


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises `UsageError` for a key that is in it twice, of which `json` would take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UsageError(f"the key {repeated([key for key, _ in pairs])[0]!r} is given twice; keep one of them")
    return found


JSON = json.JSONDecoder(object_pairs_hook=without_repetition)
"""JSON without keys that are given twice; made once, which `json.loads` with a hook does for every text."""


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON. Numbers that are not finite become null: JSON has no NaN and no infinity."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_text(path: Path) -> str:
    """The text of a file. Raises `UsageError` naming the file (and line) that is missing, unreadable or not UTF-8."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8 at byte {error.start}: save the file as UTF-8") from error


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises `UsageError` naming the file and line of what is damaged."""
    try:
        values = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg}: the file is damaged") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not JSON that can be read: it is nested too deeply") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: holds {type(values).__name__} and no mapping: the file is damaged")
    return values
