"""What there is to train with: the devices of a budget, and what is usual where nothing was said."""

from dataclasses import dataclass

from attnkit.errors import UsageError
from attnkit.scaling.budget import Budget
from attnkit.scaling.choices import Precision
from attnkit.scaling.hardware import MFU, Device, TimeEstimate, estimate_time


@dataclass(frozen=True, kw_only=True)
class Means:
    """What there is to train with."""

    device: Device | None
    num_devices: int | None
    hours: float | None
    limit: float | None
    """Bytes of a device."""
    precision: Precision
    mfu: float

    @property
    def dtype(self) -> str | None:
        """Of matrix products, where there is a device."""
        return None if self.device is None else self.device.dtype_of(self.precision)

    @property
    def flops(self) -> float | None:
        """What the devices do in their time; null without one."""
        if self.device is None or self.num_devices is None or self.hours is None:
            return None
        return self.device.peak_of(self.dtype) * self.num_devices * self.hours * 3600 * self.mfu

    def time(self, flops: float, *, num_devices: int) -> TimeEstimate | None:
        """The time of some FLOPs, where there is a device."""
        if self.device is None:
            return None
        return estimate_time(flops, device=self.device, num_devices=num_devices, mfu=self.mfu, dtype=self.dtype)


def means_of(
    budget: Budget | None,
    *,
    num_devices: int | None,
    limit: float | None,
    precision: Precision | None,
    mfu: float | None,
    reasons: list[str],
) -> Means:
    """The devices of a budget, and what is usual where nothing was said."""
    if budget is None:
        return Means(
            device=None,
            num_devices=num_devices,
            hours=None,
            limit=limit,
            precision=precision or "autocast",
            mfu=mfu or MFU,
        )
    if num_devices is not None and num_devices != budget.num_devices:
        raise UsageError(f"num_devices {num_devices} contradicts a budget of {budget.num_devices}: give one of them")
    device = budget.device
    means = Means(
        device=device,
        num_devices=budget.num_devices,
        hours=budget.hours,
        limit=float(device.memory) if limit is None else limit,
        precision=precision or ("autocast" if {"bf16", "fp16"} & set(device.peak) else "fp32"),
        mfu=device.mfu if mfu is None else mfu,
    )
    if means.flops is not None:
        spent = f"{budget.num_devices} x {device.name} for {budget.hours:g} h in {means.dtype}"
        reasons.append(f"{spent} at {means.mfu:.0%} MFU are {means.flops:.3g} FLOPs")
    if mfu is None:
        reasons.append(f"{means.mfu:.0%} MFU is an assumption: `attnkit scale calibrate` measures it on your device")
    return means
