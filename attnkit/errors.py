"""The one exception for a user's mistake, and the words that name the nearest remedy."""

import inspect
import math
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
MAX_BATCH = 2**20
CONTROL = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""How characters are shown that would end a line or move the cursor, as names of files may hold them."""


class UsageError(ValueError):
    """Mistakes in what the user gave: a line for each, that names the place and the remedy.

    The command line prints these lines and exits with code 2; Python callers catch a `ValueError`.
    """

    def __str__(self) -> str:
        return "\n".join(str(line).translate(CONTROL) for line in self.args)


class NotFiniteError(UsageError):
    """A run that came to no finite number, which other settings may; a grid goes on without it."""


class Fault(NamedTuple):
    """What is wrong with a row. Faults that differ in what was `found` alone are of one kind, and said in one line."""

    before: str
    found: str = ""
    after: str = ""

    @property
    def kind(self) -> "Fault":
        return self._replace(found="")


class RowError(UsageError):
    """A fault of a row, with the place of the row, e.g. `notes.csv:3`."""

    def __init__(self, place: str, fault: Fault) -> None:
        super().__init__(f"{place}: {''.join(fault)}")
        self.place, self.fault = place, fault


def seed_problems(key: str, seed: int) -> list[str]:
    """What is wrong with a seed of random numbers: numpy's hold 32 bits."""
    return [] if 0 <= seed < 2**32 else [f"{key}: {seed} must be at least 0 and at most {2**32 - 1}"]


def batch_problems(key: str, size: int) -> list[str]:
    """What is wrong with a number of rows, or of passes, that is in memory at once."""
    return [] if 1 <= size <= MAX_BATCH else [f"{key}: {size} must be 1 or more, and at most {MAX_BATCH}"]


def check_number(name: str, number: object, *, least: float | None = None, most: float = math.inf) -> None:
    """Refuse what is no finite number between two bounds; without the lower one it must be more than 0."""
    if isinstance(number, bool) or not isinstance(number, Real):
        raise UsageError(f"{name} must be a number, not {number!r}")
    value = float(number)
    if not (value > 0 if least is None else value >= least) or value > most or math.isinf(value):
        lowest = "more than 0" if least is None else f"at least {least:g}"
        highest = "finite" if math.isinf(most) else f"at most {most:g}"
        raise UsageError(f"{name} must be {lowest} and {highest}, not {value:g}")


def check_count(name: str, count: object, *, least: int = 1, most: float = math.inf) -> None:
    """Refuse what is no whole number between two bounds."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise UsageError(f"{name} must be a whole number, not {count!r}")
    if not least <= count <= most:
        raise UsageError(f"{name} must be {f'at least {least}' if count < least else f'at most {most}'}, not {count}")


def repeated(values: Sequence[T]) -> list[T]:
    """What is among the values more than once."""
    return [value for value, count in Counter(values).items() if count > 1]


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Say which allowed names are nearest to a name that is not among them, the near misses first."""
    allowed = sorted(allowed)
    close = get_close_matches(str(name), allowed, n=3, cutoff=0.5)
    names = f"allowed: {', '.join(allowed)}"
    return f"did you mean {' or '.join(repr(match) for match in close)}? ({names})" if close else names


def first_line(error: BaseException) -> str:
    """The first line of what a library says, for errors that have to fit on one."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def in_one_line(error: BaseException) -> str:
    """The kind of an error and all that it says, for errors in code that is not ours."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{said and f': {said}'}"


def line_of_error(error: BaseException, file: str) -> str | None:
    """`file:line`, the last line of a file on the way to an error, or else the last one of the user's; None where there
    is neither."""
    frames = [it for it in traceback.extract_tb(error.__traceback__)[::-1] if not it.filename.startswith("<")]
    paths = sysconfig.get_paths()
    libraries = (str(Path(__file__).parent), paths["stdlib"], paths["purelib"], paths["platlib"])
    own = [it for it in frames if not any(Path(it.filename).is_relative_to(library) for library in libraries)]
    frame = next((it for it in frames if it.filename == file), own[0] if own else None)
    return None if frame is None else f"{frame.filename}:{frame.lineno}"


def place_of_error(error: BaseException, file: str) -> str:
    """`file:line`, the last line of a file on the way to an error, or else the last that is not ours."""
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    others = [it for it in frames if not Path(it.filename).is_relative_to(Path(__file__).parent)]
    frame = next((it for it in frames if it.filename == file), [*others, *frames][0])
    return f"{frame.filename}:{frame.lineno}"


def place_of_class(cls: type) -> str:
    """`file:line` where a class is defined, or its module where that was typed into an interpreter."""
    try:
        return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return cls.__module__


def at_least(minimum: float, part: str, **options: float | None) -> None:
    """Refuse options of a part that are less than a minimum; None is a default that is filled in later."""
    for name, value in options.items():
        if value is not None and value < minimum:
            raise UsageError(f"{part} option {name} must be at least {minimum}, not {value}")


def more_than(bound: float, part: str, **options: float | None) -> None:
    """Refuse options of a part that are not more than a bound; None is a default that is filled in later."""
    for name, value in options.items():
        if value is not None and value <= bound:
            raise UsageError(f"{part} option {name} must be more than {bound}, not {value}")
