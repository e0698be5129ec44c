"""What this process was started for, as far as an import may depend on it."""

import sys
from pathlib import Path

READ_TEXT = ("prepare", "tokenizer")
"""Verbs that build no model."""


def only_help_is_wanted() -> bool:
    """Whether this process is `attnkit` or `python -m attnkit`, and will say its help or version and nothing else.

    That is also what it does without a verb, and with `scale` without a job."""
    asked = sys.argv[1:]
    return is_attnkit() and (asked in ([], ["scale"]) or not {"-h", "--help", "--version"}.isdisjoint(asked))


def models_are_wanted() -> bool:
    """Whether this process may build a model: it is another program, or does a verb that is for more than text."""
    return not only_help_is_wanted() and not (is_attnkit() and sys.argv[1] in READ_TEXT)


def is_attnkit() -> bool:
    """Whether this process is `attnkit` or `python -m attnkit`."""
    started = sys.orig_argv[-len(sys.argv) :][:1]  # the script, or the module after -m
    return [Path(word).stem for word in started] == ["attnkit"]
