"""What stands on the command line of a run: words, `--config FILE`, and `--section.key value`."""

from collections.abc import Sequence
from pathlib import Path

from attnkit.config.runs import keys_of
from attnkit.config.values import allows
from attnkit.errors import UsageError

SHORTHANDS = {name: f"training.{name}" for name in ("resume", "overwrite", "push_to_hub")}
SHORTHANDS["remote-code"] = "remote_code"
BOOLEANS = ("true", "false")
SPELLING = "write --section.key value"


def split(
    run_class: type, arguments: Sequence[str], *, words: Sequence[str] = ()
) -> tuple[list[Path], list[tuple[str, str]]]:
    """The config files and the (key, text) pairs of a command line.

    `words` are the keys that the words between the flags set, in their order; the last takes all words that are left
    where it is a list. `--key value` and `--key=value` are the
    same; a boolean alone is true; `--resume`, `--overwrite` and `--push_to_hub` are short for those keys of `training`,
    and `--remote-code` is `--remote_code`. Raises `UsageError` for a word too many and for a flag without its value.
    """
    keys = keys_of(run_class)
    files, pairs, waiting, unset = [], [], list(arguments), list(words)
    while waiting:
        flag, has_value, text = waiting.pop(0).partition("=")
        name = flag.removeprefix("--")
        if name == flag:
            if not unset and words and allows(keys[words[-1]], list):
                unset.append(f"{words[-1]}+")
            if not unset:
                raise UsageError(f"command line: {flag + has_value + text!r} belongs to no flag: {SPELLING}")
            pairs.append((unset.pop(0), flag + has_value + text))
            continue
        if name not in keys and SHORTHANDS.get(name) in keys:
            name = SHORTHANDS[name]
        if not has_value:
            is_switch = keys.get(name) is bool
            follows = bool(waiting) and not waiting[0].startswith("--")
            if follows and not (is_switch and unset and waiting[0].lower() not in BOOLEANS):
                text = waiting.pop(0)
            elif is_switch:
                text = "true"
            else:
                raise UsageError(f"command line: {flag} needs a value: write {flag} VALUE, or {flag}=--VALUE")
        if name == "config":
            files.append(Path(text))
        else:
            pairs.append((name, text))
    return files, pairs
