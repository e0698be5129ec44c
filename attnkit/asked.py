"""What this process was started for, as far as an import may depend on it."""

import sys
from pathlib import Path


def only_help_is_wanted() -> bool:
    """Whether this process is `attnkit` or `python -m attnkit`, and will say its help or version and nothing else.

    That is also what it does without a verb, and with `scale` without a job."""
    started = [Path(word).stem for word in sys.orig_argv[-len(sys.argv) :][:1]]  # the script, or the module after -m
    asked = sys.argv[1:]
    return started == ["attnkit"] and (asked in ([], ["scale"]) or not {"-h", "--help", "--version"}.isdisjoint(asked))
