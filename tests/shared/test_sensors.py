"""Which sensors count as the chip's."""

import pytest

from decodewatch.shared.sensors import hottest, is_junction


@pytest.mark.parametrize(
    "label",
    [
        "cpu-thermal",
        "CPU-therm",
        "gpu-thermal",
        "tj-thermal",
        "tj-therm",
        "soc0-thermal",
        "acpitz",
        "x86_pkg_temp",
        "coretemp Package id 0",
        "coretemp#2 Package id 1",
        "coretemp Core 0",
        "k10temp Tctl",
        "k10temp Tdie",
        "k10temp Tccd1",
        "zenpower Tdie",
        "amdgpu edge",
        "amdgpu junction",
        "i915 temp1",
        "cpu_thermal temp1",
        "tj_therm temp1",
        "scpi_sensors SoC",
        "thinkpad CPU",
        "dell_smm GPU",
    ],
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
        "nvme Composite",
        "nvme#2 Sensor 1",
        "amdgpu mem",
        "amdgpu vram",
        "nct6793 SYSTIN",
        "nct6793 CPUTIN",
        "it8688 temp1",
        "rp1_adc temp1",
        "pch_cannonlake temp1",
        "iwlwifi_1 temp1",
        "spd5118 temp1",
        "dell_smm Ambient",
        "mlx5 asic",
        "INT3400 Thermal",
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


def test_the_hottest_sensor_of_a_pc_is_its_processor() -> None:
    """Report 28: start-technologies#3644: a disk's 71 C were shown as the CPU's."""
    values = {
        "temp_celsius:nvme Composite": (71.0, 70.0, 72.0),
        "temp_celsius:pch_cannonlake temp1": (66.0, 66.0, 66.0),
        "temp_celsius:coretemp Package id 0": (48.0, 45.0, 50.0),
    }
    assert hottest(values) == ("coretemp Package id 0", 48.0)


@pytest.mark.parametrize(
    "values", [{}, {"temp_celsius": 50}, {"temp_celsius:battery": (30, 30, 30)}]
)
def test_without_a_sensor_of_the_chip_there_is_no_hottest(values: dict[str, float]) -> None:
    assert hottest(values) is None
