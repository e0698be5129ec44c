"""A budget in words: devices and a time."""

import re
from dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.scaling.choices import BUDGETS
from attnkit.scaling.hardware import Device, find_device

HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
UNITS = r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
DEVICE_HOURS = re.compile(
    rf"({{number}})\s+([a-z][\w-]*?)[\s-]{UNITS}".format(number=r"\d[\d_,]*(?:\.\d+)?"), re.IGNORECASE
)
TIME = re.compile(rf"(?<![\w.-])(\d+(?:\.\d+)?)\s*{UNITS}(?![\w-])", re.IGNORECASE)
DEVICES = re.compile(r"(?:(\d+)\s*[x×*]?\s*)?([a-z][a-z0-9]*(?:[ _-]?v\d+)?)", re.IGNORECASE)
FILLING = re.compile(r"\b(for|on|of|with|using)\b|[,;@]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Devices, and how long they are there; without a time they say what there is, and not how much of it."""

    device: Device
    num_devices: int
    hours: float | None


def read_budget(text: str, *, price: float | None = None) -> Budget:
    """ "8xH100 24h", "8 x H100 for 1 day", "8xH100" or "200 A100-hours", in any order and case.

    `price` is money per device and hour. Raises `UsageError` for what cannot be read, names no device, or is nothing.
    """
    words = str(text).strip()
    together = DEVICE_HOURS.fullmatch(words)
    if together is not None:
        amount, name, unit = together.groups()
        return made(text, name, 1, float(re.sub("[_,]", "", amount)) * HOURS[unit[0].lower()], price=price)
    times = TIME.findall(words)
    rest = " ".join(FILLING.sub(" ", TIME.sub(" ", words)).split())
    if len(times) > 1:
        raise UsageError(f"budget {text!r} has {len(times)} times: give one")
    if times and not rest:
        raise UsageError(f"budget {text!r} names no device: give devices too, such as {BUDGETS}")
    match = DEVICES.fullmatch(rest)
    if match is None:
        raise UsageError(f"budget {text!r} cannot be read: give devices and time, such as {BUDGETS}")
    number, name = match.groups()
    hours = float(times[0][0]) * HOURS[times[0][1][0].lower()] if times else None
    return made(text, name, int(number or 1), hours, price=price)


def made(text: str, name: str, number: int, hours: float | None, *, price: float | None) -> Budget:
    """The budget of these devices; a plural names the same device."""
    if number < 1 or (hours is not None and hours <= 0):
        raise UsageError(f"budget {text!r} is none: devices and time must be more than 0")
    return Budget(device=find_device(name, price=price), num_devices=number, hours=hours)
