"""Small text files that people and programs write: read whole, and refused with their place."""

import json
from pathlib import Path
from typing import Any

from attnkit.errors import UsageError


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
