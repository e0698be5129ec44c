"""Quantities in the units that people use, and back."""

import math
import re

from attnkit.errors import UsageError

SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([kmgt]i?b)?\s*", re.IGNORECASE)
UNITS = {
    f"{prefix}{unit}": base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", start=1)
}
LEAST_MEMORY = 2**20  # bytes; less was meant in another unit


def power(value: float | None) -> str:
    """1.23e45."""
    return "" if value is None else f"{value:.2e}".replace("e+", "e")


def count(value: float | None) -> str:
    """12,300,000,000 as 12.3B."""
    if value is None:
        return ""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def duration(hours: float | None) -> str:
    """Hours in the unit that people use for so many of them."""
    if hours is None:
        return ""
    if hours < 1 / 60:
        return f"{hours * 3600:.3g} s"
    if hours < 1:
        return f"{hours * 60:.3g} min"
    return f"{hours:.3g} h" if hours < 72 else f"{hours / 24:.3g} days"


def in_bytes(size: float) -> str:
    """Bytes in the largest unit of which there is one."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.2f} {name}"
    return f"{size:,.0f} B"


def read_bytes(size: float | str, *, name: str = "memory_per_device") -> float:
    """A number of bytes, or a text such as "40GiB" or "40 GB"; one too small for any model was meant otherwise."""
    match = SIZE.fullmatch(str(size))
    if match is None:
        raise UsageError(f"{name} {size!r} cannot be read: give bytes, or a text such as 40GiB or 40GB")
    number, unit = match.groups()
    found = float(number) * (1 if unit is None else UNITS[unit.lower()])
    if not LEAST_MEMORY <= found < math.inf:
        raise UsageError(f"{name} {size}: {found:g} bytes are too few to be meant: give a unit, such as {number}GiB")
    return found
