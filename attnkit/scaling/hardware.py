"""Devices, what they can do at best, and the time, money and energy that a number of FLOPs takes."""

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from attnkit.errors import UsageError, check_count, check_number, nearest
from attnkit.scaling.choices import Precision

GIB = 2**30
CPU_RUNTIME = 24 * 2**20  # bytes that libraries take on their first use, measured with torch 2.13 on x86-64
RUNTIME = GIB  # likewise with the context of a driver, kernels and buffers of the links: half of it and more was seen
MFU = 0.4  # what large models usually reach on cards that are well used (Chowdhery 2022, table 3: 0.21 to 0.46)
CPU_MFU = 0.2  # small models on a processor reach from 0.1 to 0.4 of what matrix products do


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as its maker describes it; dense FLOP/s, without sparsity."""

    name: str
    peak: dict[str, float]  # FLOP/s by dtype
    memory: int  # bytes
    bandwidth: float  # bytes per second
    power: float | None  # watts
    source: str
    price: float | None = None  # money per hour, yours to give
    mfu: float = MFU
    """The model FLOPs utilization that is assumed where none is given; `attnkit scale calibrate` measures one."""
    runtime: int = RUNTIME
    """Bytes that the libraries take beside what is traced."""

    def dtype_of(self, precision: Precision) -> str:
        """The dtype of matrix products: in mixed precision bf16, or fp16 where only that is fast."""
        if precision == "fp32":
            return "fp32"
        return "fp16" if precision != "bf16" and "bf16" not in self.peak and "fp16" in self.peak else "bf16"

    def peak_of(self, dtype: str | None = None) -> float:
        """FLOP/s of a dtype; without one, of the fastest of half precision or else fp32."""
        if dtype is None:
            return max(rate for name, rate in self.peak.items() if name != "fp8")
        if dtype not in self.peak:
            raise UsageError(f"{self.name} has no peak for {dtype!r}: {nearest(dtype, self.peak)}")
        return self.peak[dtype]


def device(
    name: str, *, memory: float, bandwidth: float, power: float | None, source: str, **teraflops: float
) -> Device:
    """A device of `memory` GiB (what makers call GB), `bandwidth` in GB/s and peaks in TFLOP/s."""
    return Device(
        name=name,
        peak={dtype: rate * 1e12 for dtype, rate in teraflops.items()},
        memory=round(memory * GIB),
        bandwidth=bandwidth * 1e9,
        power=power,
        source=source,
    )


CATALOGUE = {
    it.name: it
    for it in (
        device(
            "P100", memory=16, bandwidth=732, power=300, fp32=10.6, fp16=21.2,
            source="NVIDIA Tesla P100 data sheet (SXM2, 16 GB), 2016: all figures",
        ),
        device(
            "V100", memory=32, bandwidth=900, power=300, fp32=15.7, fp16=125,
            source="NVIDIA V100 data sheet (SXM2, 32 GB), 2018: all figures; fp16 with tensor cores",
        ),
        device(
            "TPUv2", memory=16, bandwidth=700, power=280, bf16=46,
            source="Jouppi 2020, 'A domain-specific supercomputer for training deep neural networks', per chip",
        ),
        device(
            "TPUv3", memory=32, bandwidth=900, power=262, bf16=123,
            source="Google, cloud.google.com/tpu/docs/v3: per chip of two cores; the highest power measured",
        ),
        device(
            "TPUv4", memory=32, bandwidth=1200, power=192, bf16=275,
            source="Google, cloud.google.com/tpu/docs/v4: per chip; the highest power measured",
        ),
        device(
            "A100", memory=80, bandwidth=2039, power=400, fp32=19.5, tf32=156, fp16=312, bf16=312,
            source="NVIDIA A100 data sheet (nvidia-1758950), 2021: SXM4 with 80 GB, all figures",
        ),
        device(
            "H100", memory=80, bandwidth=3350, power=700, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9,
            source="dense peaks: NVIDIA H100 architecture white paper (SXM5), 2022; others: data sheet, 2023",
        ),
        device(
            "H200", memory=141, bandwidth=4800, power=700, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9,
            source="NVIDIA H200 data sheet (SXM), 2024; dense peaks: those of the H100, whose chip it has",
        ),
        device(
            "B200", memory=180, bandwidth=7700, power=1000, fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500,
            source="NVIDIA HGX B200 data sheet, 2024: a GPU of eight; dense peaks: an eighth of the board's",
        ),
        device(
            "MI300X", memory=192, bandwidth=5300, power=750, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4,
            fp8=2614.9, source="AMD Instinct MI300X data sheet, 2023: all figures, without sparsity",
        ),
    )
}  # fmt: skip


def find_device(name: str, *, price: float | None = None) -> Device:
    """A device of the catalogue by name, in any case, as one word or several; "cpu" is this machine, measured now.

    Raises `UsageError` with the nearest names.
    """
    if price is not None:
        check_number("price", price, least=0)
    plain = re.sub("[ _-]", "", str(name).lower())
    if plain == "cpu":
        return replace(measure_cpu(), price=price)
    known = {other.lower(): it for other, it in CATALOGUE.items()}
    for spelling in (plain, plain.removesuffix("s")):
        if spelling in known:
            return replace(known[spelling], price=price)
    raise UsageError(f"unknown device {name!r}: {nearest(name, [*CATALOGUE, 'cpu'])}")


def device_called(name: str) -> Device | None:
    """The device of the catalogue that its driver calls so, e.g. "NVIDIA H100 80GB HBM3"; None where there is none.

    Cards for a slot (PCIe, NVL) are slower than their namesakes, which the catalogue holds.
    """
    words = re.split("[^A-Z0-9]+", name.upper())
    if {"PCIE", "NVL"}.intersection(words):
        return None
    return next(
        (it for word, it in {known.upper(): it for known, it in CATALOGUE.items()}.items() if word in words), None
    )


def measure_cpu(*, size: int = 768, seconds: float = 0.4) -> Device:
    """This machine with torch's present threads: the best rate of square matrix products and of copies."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    products = best_rate(lambda: left @ right, 2.0 * size**3, seconds=seconds)
    given = torch.rand(2**23)
    taken = torch.empty_like(given)
    copies = best_rate(lambda: taken.copy_(given), 2.0 * given.numel() * 4, seconds=seconds)
    return Device(
        name="cpu",
        peak={"fp32": products},
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        bandwidth=copies,
        power=None,
        mfu=CPU_MFU,
        runtime=CPU_RUNTIME,
        source=f"measured here: fp32 products of {size} x {size} matrices with {torch.get_num_threads()} threads",
    )


def best_rate(function: Callable[[], object], amount: float, *, seconds: float) -> float:
    """The highest of the rates of a function that does an amount of work, called for some seconds."""
    best, stop = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        start = time.perf_counter()
        function()
        best = max(best, amount / (time.perf_counter() - start))
    return best


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """What a number of FLOPs takes on some devices."""

    flops: float
    seconds: float
    mfu: float
    device: Device
    num_devices: int
    dtype: str | None
    pue: float

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def device_hours(self) -> float:
        return self.hours * self.num_devices

    @property
    def cost(self) -> float | None:
        """Device-hours times the price, where there is one."""
        return None if self.device.price is None else self.device_hours * self.device.price

    @property
    def energy(self) -> float | None:
        """Kilowatt-hours at the device's full power, times the power usage effectiveness of its house."""
        return None if self.device.power is None else self.device_hours * self.device.power / 1000 * self.pue


def estimate_time(
    flops: float,
    *,
    device: str | Device,
    num_devices: int = 1,
    mfu: float | None = None,
    seconds: float | None = None,
    dtype: str | None = None,
    price: float | None = None,
    pue: float = 1.1,
) -> TimeEstimate:
    """The time of some FLOPs at a model FLOPs utilization, or the utilization that a time implies.

    seconds = flops / (num_devices · peak · mfu). With FLOPs of the convention "hardware" the utilization is HFU
    instead of MFU. Of `mfu` (a part of 1) and `seconds` one is given; without either, the MFU is what the kind of
    device is known for. Raises `UsageError` for nonsense.
    """
    card = device if isinstance(device, Device) else find_device(device, price=price)
    check_number("flops", flops)
    check_count("num_devices", num_devices)
    if mfu is not None and seconds is not None:
        raise UsageError("give mfu or the time that the job took, not both: one follows from the other")
    check_number("pue", pue, least=1)
    rate = num_devices * card.peak_of(dtype)
    if seconds is None:
        mfu = card.mfu if mfu is None else mfu
        check_number("mfu", mfu, most=1)
        seconds = flops / (rate * mfu)
        if math.isinf(seconds):
            raise UsageError(f"flops {flops:g} at an mfu of {mfu:g} take longer than can be said: check both")
    else:
        check_number("seconds", seconds)
        mfu = flops / (rate * seconds)
        if mfu > 1:
            raise UsageError(
                f"{flops:g} FLOPs in {seconds:g} seconds are {mfu:.3g} times what the devices can do at best"
            )
    return TimeEstimate(
        flops=flops, seconds=seconds, mfu=mfu, device=card, num_devices=num_devices, dtype=dtype, pue=pue
    )
