"""Thermal zones: recorded boards, zones that come and go, values that cannot be true."""

import errno
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources import thermal
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.thermal import (
    MOST_ZONES,
    Thermal,
    celsius,
    measures_temperature,
    proves_milli,
)
from decodewatch.shared.sensors import is_junction

FOLDER = "/sys/class/thermal"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/thermal").mkdir(parents=True)
    return made


def zone(kernel: FakeKernel, number: int, kind: str, temp: int | str | None) -> None:
    kernel.write(f"{FOLDER}/thermal_zone{number}/type", kind + "\n")
    if temp is not None:
        kernel.write(f"{FOLDER}/thermal_zone{number}/temp", f"{temp}\n")


def read(source: Thermal) -> dict[str, Value | str]:
    """What the source shows, by the zone's label."""
    return {key.removeprefix("temp_celsius:"): value for key, value in shown(source.read()).items()}


def hottest(found: dict[str, Value | str]) -> Value:
    return max(
        value for label, value in found.items() if not isinstance(value, str) and is_junction(label)
    )


# recorded boards


def test_an_orin_nano_whose_cv_zones_sleep(tmp_path: Path) -> None:
    """node_exporter#3071: these answer EAGAIN forever, and Go's runtime kept asking."""
    kernel = recorded("orin_nano_super", tmp_path)
    source = Thermal(kernel.root, kernel)
    source.read()
    kernel.reads.clear()
    began = time.perf_counter()
    found = read(source)
    assert time.perf_counter() - began < 0.1
    assert found == {
        "cpu-thermal": 57.125,
        "gpu-thermal": 58.625,
        "cv0-thermal": "transient",
        "cv1-thermal": "transient",
        "cv2-thermal": "transient",
        "soc0-thermal": 56.625,
        "soc1-thermal": 55.937,
        "soc2-thermal": 55.093,
        "tj-thermal": 58.312,
    }
    assert len(kernel.reads) == len(set(kernel.reads)) == 9, "one attempt a zone"


def test_an_agx_orin_whose_gpu_is_off(tmp_path: Path) -> None:
    """tegrastats prints -256 C for the four zones that cannot be read."""
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    found = read(Thermal(kernel.root, kernel))
    assert found["GPU-therm"] == "transient"
    assert found["Tboard_tegra"] == 32.0
    assert found["tj-therm"] == 42.593
    assert len(found) == 11
    assert hottest(found) == 42.593


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EAGAIN, errno.EIO, errno.ENODATA])
def test_one_bad_zone_costs_the_others_nothing(tmp_path: Path, error: int) -> None:
    """node_exporter#2980 and #1703: one EINVAL or ENODATA took every zone with it."""
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    kernel.faults = {f"{FOLDER}/thermal_zone10/temp": error}
    found = read(Thermal(kernel.root, kernel))
    assert found["Tdiode_tegra"] == "transient", "not 0 C: node_exporter PR#3807"
    assert found["CPU-therm"] == 42.593


def test_a_thor_whose_gpu_is_off(tmp_path: Path) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    found = read(Thermal(kernel.root, kernel))
    assert found["gpu-thermal"] == "transient"
    assert hottest(found) == 55.1


def test_a_phone_lists_voltages_and_charge_as_zones(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()  # as root sees it
    found = read(Thermal(kernel.root, kernel))
    assert found == {
        "aoss-0": 39.2,
        "cpuss-0-usr": 38.8,
        "gpuss-0-usr": 40.1,
        "battery": 32.0,
        "skin-msm-therm-usr": 35.4,
        "modem-mmw0": "implausible",
    }
    assert hottest(found) == 40.1


def test_an_app_on_a_phone_may_not_look_and_does_not_insist(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Thermal(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"temp_celsius": "denied"}
        kernel.now += 1
    assert len(kernel.listings) + len(kernel.opens) == 1


def test_a_disabled_zone_is_skipped_and_a_silent_one_is_unknown(tmp_path: Path) -> None:
    """procfs#46 and node_exporter#1703; cooling devices lie in the same folder (#3420)."""
    kernel = recorded("x86_oddities", tmp_path)
    assert read(Thermal(kernel.root, kernel)) == {"iwlwifi_1": "transient"}


def test_a_raspberry_pi(tmp_path: Path) -> None:
    kernel = recorded("rpi5", tmp_path)
    assert read(Thermal(kernel.root, kernel)) == {"cpu-thermal": 82.95}


def test_a_machine_without_zones_says_so(kernel: FakeKernel) -> None:
    assert shown(Thermal(kernel.root, kernel).read()) == {"temp_celsius": "absent"}


# zones that come and go


def test_a_zone_whose_number_moves_keeps_its_label(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    zone(kernel, 1, "gpu-thermal", 50000)
    source = Thermal(kernel.root, kernel)
    assert read(source) == {"cpu-thermal": 40.0, "gpu-thermal": 50.0}
    kernel.move(f"{FOLDER}/thermal_zone0", f"{FOLDER}/thermal_zone7")
    kernel.move(f"{FOLDER}/thermal_zone1", f"{FOLDER}/thermal_zone0")
    kernel.now += RELIST_SOON_S
    assert read(source) == {"cpu-thermal": "absent", "gpu-thermal": "absent"}
    kernel.now += 1
    assert read(source) == {"cpu-thermal": 40.0, "gpu-thermal": 50.0}
    assert len(kernel.open_files) == 2


def test_a_zone_never_shows_the_value_of_the_one_that_took_its_number(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    source = Thermal(kernel.root, kernel)
    read(source)
    kernel.remove(f"{FOLDER}/thermal_zone0")
    zone(kernel, 0, "iwlwifi_1", 70000)
    for _ in range(100):
        kernel.now += 1
        assert read(source)["cpu-thermal"] == "absent"
    assert read(source) == {"cpu-thermal": "absent", "iwlwifi_1": 70.0}


def test_a_zone_that_vanishes_and_returns(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    zone(kernel, 0, "cpu-thermal", 40000)
    zone(kernel, 3, "iwlwifi_1", 45000)
    source = Thermal(kernel.root, kernel)
    read(source)
    kernel.remove(f"{FOLDER}/thermal_zone3")
    for _ in range(int(RELIST_S) * 3):
        kernel.now += 1
        assert read(source) == {"cpu-thermal": 40.0, "iwlwifi_1": "absent"}
    assert len(kernel.listings) <= 6
    assert len(caplog.records) == 1
    zone(kernel, 4, "iwlwifi_1", 46000)
    kernel.now += RELIST_S
    assert read(source) == {"cpu-thermal": 40.0, "iwlwifi_1": 46.0}


def test_a_zone_that_returns_under_its_old_number(kernel: FakeKernel) -> None:
    zone(kernel, 0, "gpu-thermal", 40000)
    source = Thermal(kernel.root, kernel)
    read(source)
    for temp in (41000, 42000):
        kernel.remove(f"{FOLDER}/thermal_zone0")
        zone(kernel, 0, "gpu-thermal", temp)
        kernel.now += RELIST_SOON_S
        assert read(source) == {"gpu-thermal": "absent"}
        kernel.now += 1
        assert read(source) == {"gpu-thermal": temp / 1000}


def test_a_zone_that_appears_after_boot_is_found(kernel: FakeKernel) -> None:
    source = Thermal(kernel.root, kernel)
    assert shown(source.read()) == {"temp_celsius": "absent"}
    zone(kernel, 0, "gpu-thermal", 40000)
    kernel.now += RELIST_S
    assert read(source) == {"gpu-thermal": 40.0}


def test_a_zone_without_a_temperature_is_looked_for_once_a_minute(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cv0-thermal", None)
    source = Thermal(kernel.root, kernel)
    for _ in range(int(RELIST_S) * 5):
        assert read(source) == {"cv0-thermal": "absent"}
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/thermal_zone0/temp") <= 7
    assert len(kernel.listings) <= 7


def test_a_zone_that_is_disabled_later_becomes_absent_and_returns(kernel: FakeKernel) -> None:
    zone(kernel, 0, "gpu-thermal", 40000)
    source = Thermal(kernel.root, kernel)
    shown_at = []
    for mode in ("enabled", "disabled", "enabled"):
        kernel.write(f"{FOLDER}/thermal_zone0/mode", mode + "\n")
        kernel.now += RELIST_S
        shown_at.append(read(source)["gpu-thermal"])
    assert shown_at == [40.0, "absent", 40.0]


def test_zones_of_one_type_are_numbered_and_keep_their_numbers(kernel: FakeKernel) -> None:
    zone(kernel, 0, "acpitz", 30000)
    zone(kernel, 1, "acpitz", 31000)
    zone(kernel, 10, "acpitz", 32000)
    source = Thermal(kernel.root, kernel)
    assert read(source) == {"acpitz": 30.0, "acpitz#2": 31.0, "acpitz#3": 32.0}
    kernel.remove(f"{FOLDER}/thermal_zone0")
    kernel.now += RELIST_S
    assert read(source) == {"acpitz": "absent", "acpitz#2": 31.0, "acpitz#3": 32.0}
    zone(kernel, 11, "acpitz", 33000)
    kernel.now += RELIST_S
    assert read(source) == {"acpitz": 33.0, "acpitz#2": 31.0, "acpitz#3": 32.0}


def test_a_driver_that_is_loaded_again_and_again_does_not_fill_the_table(
    kernel: FakeKernel,
) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    source = Thermal(kernel.root, kernel)
    for number in range(MOST_ZONES + 50):
        zone(kernel, 1, f"iwlwifi_{number}", 50000)
        kernel.now += RELIST_S
        found = read(source)
        assert found["cpu-thermal"] == 40.0
        assert found[f"iwlwifi_{number}"] == 50.0
        assert len(found) <= MOST_ZONES
        kernel.remove(f"{FOLDER}/thermal_zone1")
    source.close()
    assert not kernel.open_files


def test_a_folder_that_becomes_denied_leaves_the_labels(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    source = Thermal(kernel.root, kernel)
    read(source)
    kernel.faults[FOLDER] = errno.EACCES
    kernel.now += RELIST_S
    assert read(source) == {"cpu-thermal": "absent"}
    kernel.faults.clear()
    kernel.now += REPROBE_S
    assert read(source) == {"cpu-thermal": 40.0}


# values


def test_garbage_between_good_values_is_left_out(kernel: FakeKernel) -> None:
    """raspberrypi/firmware#133 and netdata#23673."""
    source = Thermal(kernel.root, kernel)
    found = []
    for temp in (-650788984, 48000, 3892313987, 2147483647, -273150, "", "nan", 48500):
        zone(kernel, 0, "cpu-thermal", temp)
        found.append(read(source)["cpu-thermal"])
    assert found == [
        "implausible",
        48.0,
        "implausible",
        "implausible",
        "implausible",
        "implausible",
        "implausible",
        48.5,
    ]


@pytest.mark.parametrize(
    ("raw", "kind", "in_milli", "expected"),
    [
        (42593, "cpu-thermal", False, 42.593),
        (45, "mtktscpu", False, 45.0),
        (-10, "mtktscpu", False, -10.0),
        (402, "tsens_tz_sensor0", False, 40.2),
        (1500, "cpu-thermal", False, 1.5),
        (150, "cpu-thermal", True, 0.15),
        (402, "tsens_tz_sensor0", True, 0.402),
        (0, "cpu-thermal", False, 0.0),
        (-39999, "cpu-thermal", False, -39.999),
        (-40000, "cpu-thermal", False, None),
        (149999, "cpu-thermal", False, 149.999),
        (150000, "cpu-thermal", False, None),
        (150, "cpu-thermal", False, None),
        (-256000, "CV0-therm", False, None),
    ],
)
def test_units_and_the_plausible_range(
    raw: int, kind: str, in_milli: bool, expected: float | None
) -> None:
    assert celsius(raw, kind, in_milli=in_milli) == expected


def test_a_cold_night_outdoors_is_not_a_hot_day(kernel: FakeKernel) -> None:
    source = Thermal(kernel.root, kernel)
    found = []
    for temp in (2600, 90, -90, -2600):
        zone(kernel, 0, "cpu-thermal", temp)
        found.append(read(source)["cpu-thermal"])
    assert found == [2.6, 0.09, -0.09, -2.6]


@pytest.mark.parametrize("kind", ["vbat", "ibat", "soc", "socd", "bcl_lvl0", "pm8350b-bcl-lvl0"])
def test_what_is_no_temperature(kind: str) -> None:
    assert not measures_temperature(kind)


@pytest.mark.parametrize("kind", ["soc-thermal", "soc0-thermal", "soc_thermal", "cpu", "battery"])
def test_what_is_a_temperature(kind: str) -> None:
    assert measures_temperature(kind)


@pytest.mark.parametrize(
    "label",
    ["PMIC-Die", "PMIC", "Charger", "max17050_battery", "Tboard_tegra", "tboard", "Tdiode_tegra",
     "iwlwifi_1", "battery", "skin-msm-therm-usr", "thermal-fan-est", "nvme", "pch_skylake",
     "xo-therm", "quiet-therm-usr", "pm8350c_tz", "mtktspmic", "modem-mmw0"],
)  # fmt: skip
def test_what_is_never_the_hottest_sensor(label: str) -> None:
    assert not is_junction(label)


@pytest.mark.parametrize(
    "label",
    ["CPU-therm", "GPU-therm", "tj-thermal", "tj-therm", "AUX-therm", "AO-therm", "MCPU-therm",
     "BCPU-therm", "soc012-thermal", "cpu-thermal", "bigcore0-thermal", "x86_pkg_temp", "acpitz",
     "cpuss-0-usr", "gpuss-0-usr", "aoss-0", "mtktscpu", "cv0-thermal", "acpitz#2"],
)  # fmt: skip
def test_what_may_be_the_hottest_sensor(label: str) -> None:
    assert is_junction(label)


def test_a_constant_of_a_hundred_degrees_is_not_the_hottest_sensor(kernel: FakeKernel) -> None:
    zone(kernel, 0, "CPU-therm", 31500)
    zone(kernel, 1, "PMIC-Die", 100000)
    zone(kernel, 2, "Tboard_tegra", 31900)
    found = read(Thermal(kernel.root, kernel))
    assert found["PMIC-Die"] == 100.0
    assert hottest(found) == 31.5


@pytest.mark.parametrize(
    ("kind", "label"),
    [("INT3400 Thermal", "INT3400 Thermal"), ("cpu\x01\xff", "cpu???"), ("\0 \n", "thermal_zone0")],
)
def test_a_label_is_printable_text(kernel: FakeKernel, kind: str, label: str) -> None:
    zone(kernel, 0, kind, 40000)
    assert read(Thermal(kernel.root, kernel)) == {label: 40.0}


def test_a_zone_whose_type_cannot_be_read_is_left_out(kernel: FakeKernel) -> None:
    """It might be a voltage."""
    zone(kernel, 0, "vbat", 3987)
    zone(kernel, 1, "cpu-thermal", 40000)
    kernel.faults[f"{FOLDER}/thermal_zone0/type"] = errno.EACCES
    assert read(Thermal(kernel.root, kernel)) == {"cpu-thermal": 40.0}


@given(st.binary(max_size=24))
def test_any_bytes_give_a_plausible_temperature_or_none(content: bytes) -> None:
    raw = thermal.parse(content)
    if raw is None:
        return
    for in_milli in (False, True):
        value = celsius(raw, "cpu-thermal", in_milli=in_milli)
        assert value is None or -40 < value < 150


@given(st.integers(-(10**12), 10**12))
def test_a_number_cut_anywhere_is_not_taken_for_another(number: int) -> None:
    content = b"%d\n" % number
    assert thermal.parse(content) == number
    for end in range(len(content)):
        assert thermal.parse(content[:end]) is None


@given(st.integers(-(10**12), 10**12))
def test_only_what_can_be_in_milli_proves_it(raw: int) -> None:
    if proves_milli(raw, celsius(raw, "cpu-thermal", in_milli=False)):
        assert celsius(raw, "cpu-thermal", in_milli=True) == raw / 1000
