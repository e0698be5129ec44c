"""What stands on the command line of a run: `--config FILE`, and `--section.key value`."""

from collections.abc import Sequence
from pathlib import Path

from attnkit.config.runs import keys_of
from attnkit.errors import UsageError

SHORTHANDS = {"resume": "training.resume", "overwrite": "training.overwrite", "remote-code": "remote_code"}


def split(run_class: type, arguments: Sequence[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """The config files and the (key, text) pairs of a command line.

    `--key value` and `--key=value` are the same; a boolean alone is true; `--resume` and `--overwrite` are short for
    those keys of `training`, and `--remote-code` is `--remote_code`. Raises `UsageError` for a word that belongs to no
    flag and for a flag without its value.
    """
    keys = keys_of(run_class)
    files, pairs, waiting = [], [], list(arguments)
    while waiting:
        flag, has_value, text = waiting.pop(0).partition("=")
        name = flag.removeprefix("--")
        if name == flag:
            raise UsageError(f"command line: {flag!r} belongs to no flag: write --section.key value")
        if name not in keys and SHORTHANDS.get(name) in keys:
            name = SHORTHANDS[name]
        if not has_value:
            if waiting and not waiting[0].startswith("--"):
                text = waiting.pop(0)
            elif keys.get(name) is bool:
                text = "true"
            else:
                raise UsageError(f"command line: {flag} needs a value: write {flag} value")
        if name == "config":
            files.append(Path(text))
        else:
            pairs.append((name, text))
    return files, pairs
