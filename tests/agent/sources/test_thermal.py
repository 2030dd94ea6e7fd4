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
    STUCK_READS,
    Thermal,
    celsius,
    lowest_trip,
    measures_temperature,
    proves_milli,
)
from decodewatch.shared.diagnose.showing import Heat, heat
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


def trip(kernel: FakeKernel, zone: int, number: int, kind: str, temp: int | str) -> None:
    folder = f"{FOLDER}/thermal_zone{zone}"
    kernel.write(f"{folder}/trip_point_{number}_type", kind + "\n")
    kernel.write(f"{folder}/trip_point_{number}_temp", f"{temp}\n")


def read(source: Thermal, row: str = "temp_celsius") -> dict[str, Value | str]:
    """What the source shows of a measurement, by the zone's label."""
    found = shown(source.read())
    return {key.partition(":")[2]: found[key] for key in found if key.partition(":")[0] == row}


def passive(source: Thermal) -> dict[str, Value | str]:
    return read(source, "temp_passive_celsius")


def hottest(found: dict[str, Value | str]) -> Value:
    return max(
        value for label, value in found.items() if not isinstance(value, str) and is_junction(label)
    )


# recorded boards


def test_an_orin_nano_whose_cv_zones_sleep(tmp_path: Path) -> None:
    """Report 15: node_exporter#3071: these answer EAGAIN forever, and Go's runtime kept asking."""
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
    """Reports 14, 16 and 18: node_exporter#2980, #1703 and PR#3807.

    One EINVAL or ENODATA took every zone with it, or was exported as 0 C.
    """
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    kernel.faults = {f"{FOLDER}/thermal_zone10/temp": error}
    found = read(Thermal(kernel.root, kernel))
    assert found["Tdiode_tegra"] == "transient", "not 0 C"
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
    """Report 39: kiosk-satellite#138: each denied look is a line in the device's log."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Thermal(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"temp_celsius": "denied", "temp_passive_celsius": "denied"}
        kernel.now += 1
    assert len(kernel.listings) + len(kernel.opens) == 1


def test_a_disabled_zone_is_skipped_and_a_silent_one_is_unknown(tmp_path: Path) -> None:
    """Reports 16 and 19: node_exporter#1703 and procfs#46."""
    kernel = recorded("x86_oddities", tmp_path)
    assert read(Thermal(kernel.root, kernel)) == {"iwlwifi_1": "transient"}


def test_a_raspberry_pi(tmp_path: Path) -> None:
    kernel = recorded("rpi5", tmp_path)
    assert read(Thermal(kernel.root, kernel)) == {"cpu-thermal": 82.95}


def test_a_machine_without_zones_says_so(kernel: FakeKernel) -> None:
    assert shown(Thermal(kernel.root, kernel).read()) == {
        "temp_celsius": "absent",
        "temp_passive_celsius": "absent",
    }


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
    caplog.set_level(logging.DEBUG)
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
    assert read(source) == {"": "absent"}
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
    """Report 30: telegraf#14646: names must not change with the version or the boot."""
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


# trip points


def test_the_lowest_passive_trip_points_of_an_orin_nano(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert passive(Thermal(kernel.root, kernel)) == dict.fromkeys(
        (
            "cpu-thermal",
            "gpu-thermal",
            "soc0-thermal",
            "soc1-thermal",
            "soc2-thermal",
            "tj-thermal",
        ),
        99.0,
    )


@pytest.mark.parametrize("board", ["agx_thor_r38", "rpi5", "agx_orin_64gb_r35"])
def test_critical_trip_points_alone_are_none_at_which_clocks_fall(
    tmp_path: Path, board: str
) -> None:
    kernel = recorded(board, tmp_path)
    assert passive(Thermal(kernel.root, kernel)) == {"": "absent"}


def test_the_lowest_counts_in_whatever_order_they_are(kernel: FakeKernel) -> None:
    zone(kernel, 0, "soc-thermal", 40000)
    trip(kernel, 0, 0, "critical", 115000)
    trip(kernel, 0, 1, "passive", 95000)
    trip(kernel, 0, 2, "active", 45000)
    trip(kernel, 0, 3, "passive", 85000)
    trip(kernel, 0, 4, "hot", 60000)
    assert passive(Thermal(kernel.root, kernel)) == {"soc-thermal": 85.0}


@pytest.mark.parametrize("disabled", [0, -274000, 2147483647, -1, "", "off"])
def test_a_disabled_trip_point_is_none(kernel: FakeKernel, disabled: int | str) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    trip(kernel, 0, 0, "passive", disabled)
    source = Thermal(kernel.root, kernel)
    assert passive(source) == {"": "absent"}
    trip(kernel, 0, 1, "passive", 95000)
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": 95.0}


@pytest.mark.parametrize(("file", "content"), [("type", "pass"), ("temp", "8"), ("temp", "")])
def test_half_a_trip_point_may_be_the_lowest(kernel: FakeKernel, file: str, content: str) -> None:
    zone(kernel, 0, "cpu-thermal", 60000)
    trip(kernel, 0, 0, "passive", 85000)
    trip(kernel, 0, 1, "passive", 95000)
    source = Thermal(kernel.root, kernel)
    assert passive(source) == {"cpu-thermal": 85.0}
    kernel.write(f"{FOLDER}/thermal_zone0/trip_point_0_{file}", content)
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": "implausible"}


def test_a_power_mode_moves_trip_points(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    trip(kernel, 0, 0, "passive", 95000)
    source = Thermal(kernel.root, kernel)
    assert passive(source) == {"cpu-thermal": 95.0}
    kernel.reads.clear()
    for _ in range(int(RELIST_S) - 1):
        kernel.now += 1
        assert passive(source) == {"cpu-thermal": 95.0}
    assert not [name for name in kernel.reads if "trip" in name], "not read each second"
    trip(kernel, 0, 0, "passive", 80000)
    kernel.now += 1
    assert passive(source) == {"cpu-thermal": 80.0}
    trip(kernel, 0, 0, "passive", 0)
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": "absent"}


def test_a_zone_that_vanishes_takes_its_trip_point_with_it(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    trip(kernel, 0, 0, "passive", 95000)
    source = Thermal(kernel.root, kernel)
    read(source)
    kernel.move(f"{FOLDER}/thermal_zone0", f"{FOLDER}/thermal_zone5")
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": 95.0}
    kernel.remove(f"{FOLDER}/thermal_zone5")
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": "absent"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EINVAL, "transient"),
        (errno.EAGAIN, "transient"),
        (errno.EIO, "transient"),
        (errno.EACCES, "denied"),
    ],
)
def test_a_trip_point_that_cannot_be_read_may_be_the_lowest(
    kernel: FakeKernel, error: int, reason: str
) -> None:
    zone(kernel, 0, "cpu-thermal", 40000)
    trip(kernel, 0, 0, "passive", 85000)
    trip(kernel, 0, 1, "passive", 95000)
    zone(kernel, 1, "gpu-thermal", 40000)
    trip(kernel, 1, 0, "passive", 90000)
    source = Thermal(kernel.root, kernel)
    assert passive(source) == {"cpu-thermal": 85.0, "gpu-thermal": 90.0}
    kernel.faults[f"{FOLDER}/thermal_zone0/trip_point_0_temp"] = error
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": reason, "gpu-thermal": 90.0}
    kernel.faults.clear()
    kernel.now += RELIST_S
    assert passive(source) == {"cpu-thermal": 85.0, "gpu-thermal": 90.0}


@given(st.lists(st.binary(max_size=16), max_size=6))
def test_any_trip_points_give_a_plausible_temperature_or_none(temps: list[bytes]) -> None:
    found = lowest_trip(temps, "cpu-thermal")
    assert found is None or 0 < found < 150


@given(st.integers(2000, 149_999), st.integers(0, 6))
def test_half_a_trip_point_is_none(temp: int, end: int) -> None:
    content = b"%d\n" % temp
    found = lowest_trip([content[:end]], "cpu-thermal")
    assert found == (temp / 1000 if end >= len(content) else None)


# zones that measure nothing


def test_a_placeholder_of_290_kelvin_is_no_temperature(kernel: FakeKernel) -> None:
    """Report 29: NetSpeedTray#275: 16.85 C for ever, under any load."""
    zone(kernel, 0, "acpitz", 16850)
    source = Thermal(kernel.root, kernel)
    found = [read(source)["acpitz"] for _ in range(STUCK_READS + 100)]
    assert found == [16.85] * (STUCK_READS - 1) + ["implausible"] * 101
    zone(kernel, 0, "acpitz", 17850)
    assert read(source) == {"acpitz": 17.85}, "it does measure"


def test_a_zone_that_stays_while_load_comes_and_goes_is_stuck(kernel: FakeKernel) -> None:
    """Report 29, with another constant: that of firmware that pretends a warm room."""
    zone(kernel, 0, "acpitz", 27800)
    zone(kernel, 1, "acpitz", 29800)
    zone(kernel, 2, "Tboard_tegra", 32000)
    source = Thermal(kernel.root, kernel)
    found: dict[str, Value | str] = {}
    for number in range(STUCK_READS + 10):
        zone(kernel, 3, "cpu-thermal", 70000 if number // 100 % 2 else 45000)
        found = read(source)
    assert found == {
        "acpitz": "implausible",
        "acpitz#2": "implausible",
        "Tboard_tegra": 32.0,
        "cpu-thermal": 70.0 if (STUCK_READS + 9) // 100 % 2 else 45.0,
    }


def test_a_device_at_rest_has_no_stuck_zones(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 27000)
    source = Thermal(kernel.root, kernel)
    for number in range(STUCK_READS * 4):
        zone(kernel, 1, "gpu-thermal", 27000 + number % 3 * 1000)
        assert read(source)["cpu-thermal"] == 27.0


def test_one_warming_up_does_not_make_others_stuck(kernel: FakeKernel) -> None:
    zone(kernel, 0, "cpu-thermal", 27000)
    zone(kernel, 1, "gpu-thermal", 30000)
    source = Thermal(kernel.root, kernel)
    read(source)
    zone(kernel, 1, "gpu-thermal", 45000)
    for _ in range(STUCK_READS * 2):
        assert read(source)["cpu-thermal"] == 27.0


# values


def test_a_part_that_is_off_is_not_at_zero_degrees(kernel: FakeKernel) -> None:
    zone(kernel, 0, "npu-thermal", 0)
    source = Thermal(kernel.root, kernel)
    found = []
    for temp in (0, 45000, 0, 44000):
        zone(kernel, 0, "npu-thermal", temp)
        found.append(read(source)["npu-thermal"])
    assert found == ["implausible", 45.0, "implausible", 44.0]


def test_a_device_in_the_frost_passes_through_zero(kernel: FakeKernel) -> None:
    source = Thermal(kernel.root, kernel)
    found = []
    for temp in (3000, 1000, 0, -1000, 0):
        zone(kernel, 0, "cpu-thermal", temp)
        found.append(read(source)["cpu-thermal"])
    assert found == [3.0, 1.0, 0.0, -1.0, 0.0]


def test_small_numbers_of_a_pc_are_no_degrees(kernel: FakeKernel) -> None:
    """Its firmware counts tenths of a kelvin, so that a sensor without a value is at 50."""
    for number, (kind, temp) in enumerate(
        [("SEN2", 50), ("acpitz", 27800), ("INT3400 Thermal", 20000), ("SEN3", 150)]
    ):
        zone(kernel, number, kind, temp)
    assert read(Thermal(kernel.root, kernel)) == {
        "SEN2": "implausible",
        "acpitz": 27.8,
        "SEN3": 0.15,
    }


def test_skin_and_boards_do_not_lend_their_trip_points_to_the_processor(
    kernel: FakeKernel,
) -> None:
    """A laptop's processor is above the trip point of its case whenever it works."""
    zone(kernel, 0, "TSKN", 48000)
    trip(kernel, 0, 0, "passive", 46000)
    zone(kernel, 1, "neutral_therm", 43000)
    trip(kernel, 1, 0, "passive", 37000)
    zone(kernel, 2, "x86_pkg_temp", 88000)
    levels: dict[str, dict[str, float]] = {}
    for reading in Thermal(kernel.root, kernel).read():
        if reading.value is not None:
            levels.setdefault(reading.measurement.name, {})[reading.label] = reading.value
    assert heat(levels) == Heat("x86_pkg_temp", 88.0, None)


def test_garbage_between_good_values_is_left_out(kernel: FakeKernel) -> None:
    """Reports 23 and 24: netdata#23673 and raspberrypi/firmware#133."""
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
        (1999, "cpu-thermal", False, None),
        (546, "cpu-thermal", False, None),
        (2000, "cpu-thermal", False, 2.0),
        (1500, "cpu-thermal", True, 1.5),
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


@pytest.mark.parametrize(
    "kind",
    [
        *("vbat", "ibat", "soc", "socd", "bcl_lvl0", "pm8350b-bcl-lvl0", "pm8150l-vph-lvl0"),
        # Of phones with Google's Tensor: levels at which rails trip, and counts.
        *("vdroop1", "ocp_cpu1", "soft_ocp_tpu", "smpl_gm", "batoilo", "battery_cycle"),
        *("pca94xx-mains", "usbc-therm-adc", "critical-battery-cell"),
        "INT3400 Thermal",
    ],
)
def test_what_is_no_temperature(kind: str) -> None:
    assert not measures_temperature(kind)


@pytest.mark.parametrize(
    "kind", ["soc-thermal", "soc0-thermal", "soc_thermal", "cpu", "battery", "TPU", "batt_vs"]
)
def test_what_is_a_temperature(kind: str) -> None:
    assert measures_temperature(kind)


@pytest.mark.parametrize(
    "label",
    ["PMIC-Die", "PMIC", "Charger", "max17050_battery", "Tboard_tegra", "tboard", "Tdiode_tegra",
     "iwlwifi_1", "battery", "skin-msm-therm-usr", "thermal-fan-est", "nvme", "pch_skylake",
     "xo-therm", "quiet-therm-usr", "pm8350c_tz", "mtktspmic", "modem-mmw0", "AO-therm", "AO",
     "pmi8998_tz", "pm8998-thermal", "disp_therm", "neutral_therm", "pa-therm2-sys3", "rf1_therm",
     "usb_pwr_therm2", "qi_therm", "ap_ntc", "nrpa_ntc", "mtktsAP", "mtktsbtsmdpa", "mtktswmt",
     "bms", "maxfg", "batt_vs", "BAT1", "SEN1", "TSKN", "TMEM", "NGFF", "case_therm", "msm_therm",
     "shell_front", "cp_on_chip_0", "consys", "ufs_therm"],
)  # fmt: skip
def test_what_is_never_the_hottest_sensor(label: str) -> None:
    assert not is_junction(label)


@pytest.mark.parametrize(
    "label",
    ["CPU-therm", "GPU-therm", "tj-thermal", "tj-therm", "AUX-therm", "MCPU-therm",
     "BCPU-therm", "soc012-thermal", "cpu-thermal", "bigcore0-thermal", "x86_pkg_temp", "acpitz",
     "cpuss-0-usr", "gpuss-0-usr", "aoss-0", "mtktscpu", "cv0-thermal", "acpitz#2", "TCPU",
     "B0D4", "BIG", "G3D", "TPU", "mtkts1", "soc_max", "PLL-therm", "CV0-therm", "npu-thermal",
     "package-thermal", "main0-thermal", "a53_thermal", "pll_thermal", "tsens_tz_sensor7"],
)  # fmt: skip
def test_what_may_be_the_hottest_sensor(label: str) -> None:
    assert is_junction(label)


def test_a_constant_of_a_hundred_degrees_is_not_the_hottest_sensor(kernel: FakeKernel) -> None:
    """Report 27: a PMIC that says 100 C forever was an alarm on a cool board."""
    zone(kernel, 0, "CPU-therm", 31500)
    zone(kernel, 1, "PMIC-Die", 100000)
    zone(kernel, 2, "Tboard_tegra", 31900)
    found = read(Thermal(kernel.root, kernel))
    assert found["PMIC-Die"] == 100.0
    assert hottest(found) == 31.5


@pytest.mark.parametrize(
    ("kind", "label"),
    [("Virtual Sensor", "Virtual Sensor"), ("cpu\x01\xff", "cpu???"), ("\0 \n", "thermal_zone0")],
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
