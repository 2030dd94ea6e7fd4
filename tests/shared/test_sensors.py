"""Which sensors count as the chip's."""

import pytest

from decodewatch.shared.sensors import hottest, is_junction


@pytest.mark.parametrize(
    "label", ["cpu-thermal", "CPU-therm", "gpu-thermal", "tj-thermal", "soc0-thermal", "acpitz"]
)
def test_silicon_that_computes_counts(label: str) -> None:
    assert is_junction(label)


@pytest.mark.parametrize(
    "label",
    [
        "PMIC-Die",
        "Tboard_tegra",
        "Tdiode_tegra",
        "battery",
        "iwlwifi_1",
        "nvme",
        "xo-therm",
        "pm8350_tz",
    ],
)
def test_constants_limits_and_what_is_beside_the_chip_do_not(label: str) -> None:
    assert not is_junction(label)


def test_the_hottest_is_the_one_with_the_highest_mean() -> None:
    values = {
        "temp_celsius:PMIC-Die": (100.0, 100.0, 100.0),
        "temp_celsius:cpu-thermal": (71.0, 60.0, 99.0),
        "temp_celsius:gpu-thermal": (72.5, 70.0, 75.0),
        "freq_hertz:cpu0": (2e9, 1e9, 3e9),
    }
    assert hottest(values) == ("gpu-thermal", 72.5)


@pytest.mark.parametrize(
    "values", [{}, {"temp_celsius": 50}, {"temp_celsius:battery": (30, 30, 30)}]
)
def test_without_a_sensor_of_the_chip_there_is_no_hottest(values: dict[str, float]) -> None:
    assert hottest(values) is None
