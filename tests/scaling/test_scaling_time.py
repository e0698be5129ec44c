"""Time, money and energy from FLOPs, and back."""

import math

import pytest

from attnkit.errors import UsageError
from attnkit.scaling import CATALOGUE, estimate_time, find_device


def test_time_and_utilization_are_each_other_s_inverse() -> None:
    there = estimate_time(8.27e21, device="V100", num_devices=512, mfu=0.3)
    assert there.hours == pytest.approx(8.27e21 / (512 * 125e12 * 0.3) / 3600)
    back = estimate_time(8.27e21, device="v100", num_devices=512, seconds=there.seconds)
    assert back.mfu == pytest.approx(0.3)


def test_megatron_s_nine_days_are_an_mfu_of_16_6_percent() -> None:
    assert estimate_time(8.2707e21, device="V100", num_devices=512, seconds=9 * 86400).mfu == pytest.approx(
        0.1662, abs=5e-4
    )


def test_money_and_energy() -> None:
    it = estimate_time(1e20, device="H100", num_devices=8, mfu=0.4, price=2.5, pue=1.0)
    assert it.device_hours == pytest.approx(8 * it.hours)
    assert it.cost == pytest.approx(2.5 * it.device_hours)
    assert it.energy == pytest.approx(0.7 * it.device_hours)
    assert estimate_time(1e20, device="H100", mfu=0.4).cost is None


def test_every_device_says_where_its_figures_come_from() -> None:
    assert set(CATALOGUE) == {"P100", "V100", "TPUv2", "TPUv3", "TPUv4", "A100", "H100", "H200", "B200", "MI300X"}
    for device in CATALOGUE.values():
        assert device.source
        assert device.peak_of() > 1e13
        assert device.memory >= 16 * 2**30


@pytest.mark.parametrize(("device", "usual"), [("H100", 0.4), ("cpu", 0.2)])
def test_without_more_the_utilization_is_the_usual_one(device: str, usual: float) -> None:
    assert estimate_time(1e15, device=device).mfu == usual


def test_this_machine_is_measured() -> None:
    cpu = find_device("cpu")
    assert 1e9 < cpu.peak_of("fp32") < 1e15
    assert cpu.memory > 2**28


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"device": "H10"}, "unknown device 'H10': did you mean 'H100'"),
        ({"mfu": 1.5}, "mfu must be more than 0 and at most 1, not 1.5"),
        ({"seconds": 1e9}, "give mfu or the time"),
        ({"mfu": None, "seconds": -1.0}, "seconds must be more than 0"),
        ({"num_devices": 0}, "num_devices must be at least 1"),
        ({"num_devices": 2.5}, "num_devices must be a whole number, not 2.5"),
        ({"device": 3}, "unknown device 3"),
        ({"flops": -1.0}, "flops must be more than 0 and finite, not -1"),
        ({"dtype": "fp9"}, "H100 has no peak for 'fp9': did you mean"),
        ({"flops": math.nan}, "flops must be more than 0 and finite, not nan"),
        ({"mfu": None, "seconds": math.inf}, "seconds must be more than 0 and finite, not inf"),
        ({"mfu": None, "seconds": 1.0}, "are .* times what the devices can do at best"),
        ({"price": -1.0}, "price must be at least 0"),
        ({"pue": 0.5}, "pue must be at least 1"),
    ],
)
def test_nonsense(arguments: dict, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        estimate_time(**{"flops": 1e20, "device": "H100", "mfu": 0.4, **arguments})
