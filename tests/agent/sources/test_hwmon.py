"""Chips that are no thermal zones: recorded boards, PCs, garbage, what others read."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.hwmon import (
    MOST_SENSORS,
    SLOWLY_S,
    Hwmon,
    is_read_here,
    parse_power,
    parse_temp,
)
from decodewatch.agent.sources.kit.files import RELIST_S, REPROBE_S
from decodewatch.agent.sources.thermal import Thermal
from decodewatch.shared.sensors import hottest, is_junction

FOLDER = "/sys/class/hwmon"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/hwmon").mkdir(parents=True)
    return made


def chip(kernel: FakeKernel, number: int, name: str, **files: int | str) -> None:
    kernel.write(f"{FOLDER}/hwmon{number}/name", name + "\n")
    for file, content in files.items():
        kernel.write(f"{FOLDER}/hwmon{number}/{file}", f"{content}\n")


def read(kernel: FakeKernel) -> dict[str, float | str]:
    return dict(shown(Hwmon(kernel.root, kernel).read()))


# recorded boards


def test_a_pc_with_sensors_that_cannot_be_true(tmp_path: Path) -> None:
    """Reports 23, 25 and 26: netdata#23673, psutil#2959, htop#806."""
    kernel = recorded("x86_oddities", tmp_path)
    assert read(kernel) == {
        "temp_celsius:nct6793 temp15": "implausible",
        "temp_celsius:nvme temp1": 38.85,
        "power_watts:power_meter": "implausible",
    }
    assert f"{FOLDER}/hwmon2/temp1_max" not in kernel.reads, "no limit to be shown as -273.15 C"


def test_a_raspberry_pi_has_its_processor_as_a_zone(tmp_path: Path) -> None:
    kernel = recorded("rpi5", tmp_path)
    assert read(kernel) == {"temp_celsius:rp1_adc temp1": 58.47, "power_watts": "absent"}


@pytest.mark.parametrize("board", ["agx_orin_64gb_r35", "agx_thor_r38", "orin_nano_super"])
def test_the_rails_of_a_jetson_are_left_to_their_own_source(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    assert read(kernel) == {"temp_celsius": "absent", "power_watts": "absent"}


def test_a_machine_without_chips_says_so(tmp_path: Path) -> None:
    assert read(FakeKernel(tmp_path)) == {"temp_celsius": "absent", "power_watts": "absent"}


def test_an_app_on_a_phone_does_not_insist(kernel: FakeKernel) -> None:
    """Report 39: kiosk-satellite#138: each denied look is a line in the device's log."""
    kernel.faults[FOLDER] = errno.EACCES
    source = Hwmon(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"temp_celsius": "denied", "power_watts": "denied"}
        kernel.now += 1
    assert len(kernel.listings) + len(kernel.opens) == 1


# which sensors


def test_an_intel_pc(kernel: FakeKernel) -> None:
    """The package's sensor is the hottest of its cores; to ask each of them wakes it."""
    chip(kernel, 0, "coretemp", temp1_input=61000, temp1_label="Package id 0")
    chip(kernel, 0, "coretemp", temp2_input=60000, temp2_label="Core 0")
    chip(kernel, 0, "coretemp", temp3_input=61000, temp3_label="Core 4")
    chip(kernel, 1, "coretemp", temp1_input=51000, temp1_label="Package id 1")
    chip(kernel, 2, "nvme", temp1_input=71000, temp1_label="Composite")
    chip(kernel, 3, "acpitz", temp1_input=27800)
    kernel.write("/sys/class/thermal/thermal_zone0/type", "acpitz\n")
    assert read(kernel) == {
        "temp_celsius:coretemp Package id 0": 61.0,
        "temp_celsius:coretemp#2 Package id 1": 51.0,
        "temp_celsius:nvme Composite": 71.0,
        "power_watts": "absent",
    }


def test_an_old_intel_pc_without_a_package_sensor_has_its_cores(kernel: FakeKernel) -> None:
    chip(kernel, 0, "coretemp", temp2_input=60000, temp2_label="Core 0")
    chip(kernel, 0, "coretemp", temp3_input=61000, temp3_label="Core 1")
    assert read(kernel) == {
        "temp_celsius:coretemp Core 0": 60.0,
        "temp_celsius:coretemp Core 1": 61.0,
        "power_watts": "absent",
    }


def test_an_amd_pc_whose_control_temperature_has_an_offset(kernel: FakeKernel) -> None:
    chip(kernel, 0, "k10temp", temp1_input=77000, temp1_label="Tctl")
    chip(kernel, 0, "k10temp", temp2_input=50000, temp2_label="Tdie")
    chip(kernel, 1, "amdgpu", temp1_input=48000, temp1_label="edge", power1_average=35_000_000)
    assert read(kernel) == {
        "temp_celsius:k10temp Tdie": 50.0,
        "temp_celsius:amdgpu edge": 48.0,
        "power_watts:amdgpu": 35.0,
    }


def test_an_amd_pc_whose_control_temperature_is_the_real_one(kernel: FakeKernel) -> None:
    chip(kernel, 0, "k10temp", temp1_input=57000, temp1_label="Tctl")
    chip(kernel, 0, "k10temp", temp3_input=55000, temp3_label="Tccd1")
    assert read(kernel) == {
        "temp_celsius:k10temp Tctl": 57.0,
        "temp_celsius:k10temp Tccd1": 55.0,
        "power_watts": "absent",
    }


def test_the_hottest_sensor_is_not_the_disk(kernel: FakeKernel) -> None:
    """Report 28: start-technologies#3644: an NVMe disk's 71 C were shown as the CPU's."""
    chip(kernel, 0, "nvme", temp1_input=71000, temp1_label="Composite")
    chip(kernel, 1, "cpu_thermal", temp1_input=48000)
    kernel.write("/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
    kernel.write("/sys/class/thermal/thermal_zone0/temp", "48000\n")
    readings = Hwmon(kernel.root, kernel).read() + Thermal(kernel.root, kernel).read()
    known = {reading.key: reading.value for reading in readings if reading.value is not None}
    assert known == {"temp_celsius:nvme Composite": 71.0, "temp_celsius:cpu-thermal": 48.0}
    assert hottest(known) == ("cpu-thermal", 48.0)


def test_a_zone_is_shown_once_also_where_its_name_is_unlike(kernel: FakeKernel) -> None:
    """The device of such a chip is the zone itself, which has a type; that of a battery too."""
    chip(kernel, 0, "tj_therm", temp1_input=48000)
    kernel.write(f"{FOLDER}/hwmon0/device/type", "tj-therm#really\n")
    chip(kernel, 1, "BAT0", power1_input=12_000_000, temp1_input=30000)
    kernel.write(f"{FOLDER}/hwmon1/device/type", "Battery\n")
    assert read(kernel) == {"temp_celsius": "absent", "power_watts": "absent"}


def test_a_phone_that_shows_a_hundred_zones_as_chips_has_room_for_the_others(
    kernel: FakeKernel,
) -> None:
    for number in range(100):
        chip(kernel, number, f"cpu{number}_thermal", temp1_input=40000)
        kernel.write(f"/sys/class/thermal/thermal_zone{number}/type", f"cpu{number}-thermal\n")
    chip(kernel, 100, "pmk8350", temp1_input=31000)
    assert read(kernel) == {"temp_celsius:pmk8350 temp1": 31.0, "power_watts": "absent"}


def test_a_steam_deck_whose_kernel_numbers_the_chips_of_zones(tmp_path: Path) -> None:
    kernel = recorded("steam_deck", tmp_path)
    assert read(kernel) == {
        "temp_celsius:nvme Composite": 46.85,
        "temp_celsius:amdgpu edge": 63.0,
        "temp_celsius:k10temp Tctl": 65.0,
        "temp_celsius:steamdeck_hwmon Battery Temp": 37.0,
        "power_watts:amdgpu": 4.09,
    }


def test_a_chip_whose_name_ends_in_the_number_of_another_zone_is_none(kernel: FakeKernel) -> None:
    kernel.write("/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
    chip(kernel, 0, "cpu_thermal_0", temp1_input=40000)
    chip(kernel, 1, "cpu_thermal_1", temp1_input=41000)
    assert read(kernel) == {"temp_celsius:cpu_thermal_1 temp1": 41.0, "power_watts": "absent"}


def test_a_board_with_seven_zones_and_nothing_else(tmp_path: Path) -> None:
    kernel = recorded("orange_pi_5", tmp_path)
    assert read(kernel) == {"temp_celsius": "absent", "power_watts": "absent"}


def test_a_sensor_that_is_not_connected_has_no_value(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nct6798", temp1_input=35000, temp1_label="SYSTIN", temp1_fault=0)
    chip(kernel, 0, "nct6798", temp2_input=22000, temp2_label="AUXTIN0", temp2_fault=1)
    chip(kernel, 0, "nct6798", temp3_input=127000, temp4_input=0, temp5_input=-62000)
    source = Hwmon(kernel.root, kernel)
    label, bad = "temp_celsius:nct6798", "implausible"
    assert shown(source.read()) == {
        f"{label} SYSTIN": 35.0,
        f"{label} AUXTIN0": bad,
        f"{label} temp3": bad,
        f"{label} temp4": bad,
        f"{label} temp5": bad,
        "power_watts": "absent",
    }
    chip(kernel, 0, "nct6798", temp2_fault=0, temp4_input=1000)
    assert shown(source.read())[f"{label} AUXTIN0"] == 22.0
    # Now it is known that it measures, and 0 is what it says: also after the folder was listed.
    chip(kernel, 0, "nct6798", temp4_input=0)
    kernel.now += RELIST_S
    assert shown(source.read())[f"{label} temp4"] == 0.0


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ENXIO])
def test_whether_it_is_connected_may_be_unknown(kernel: FakeKernel, error: int) -> None:
    chip(kernel, 0, "lm90", temp1_input=35000, temp1_fault=1)
    kernel.faults[f"{FOLDER}/hwmon0/temp1_fault"] = error
    assert read(kernel)["temp_celsius:lm90 temp1"] == 35.0


def test_powers_that_have_names_go_by_them(kernel: FakeKernel) -> None:
    """The first of a Mac is what its charger gives, and 0 on its battery."""
    chip(kernel, 0, "macsmc_hwmon", power1_input=0, power1_label="AC Input Power")
    chip(kernel, 0, "macsmc_hwmon", power2_input=6_230_000, power2_label="Total System Power")
    assert read(kernel) == {
        "power_watts:macsmc_hwmon AC Input Power": 0.0,
        "power_watts:macsmc_hwmon Total System Power": 6.23,
        "temp_celsius": "absent",
    }


def test_names_do_not_depend_on_numbers(kernel: FakeKernel) -> None:
    """Report 30: telegraf#14646: other versions had other names for one sensor."""
    chip(kernel, 0, "nct6793", temp2_input=30000, temp1_input=31000, temp1_label="SYSTIN")
    chip(kernel, 1, "nvme", temp1_input=40000, temp1_label="Composite")
    first = read(kernel)
    kernel.move(f"{FOLDER}/hwmon0", f"{FOLDER}/hwmon7")
    assert (
        read(kernel)
        == first
        == {
            "temp_celsius:nct6793 SYSTIN": 31.0,
            "temp_celsius:nct6793 temp2": 30.0,
            "temp_celsius:nvme Composite": 40.0,
            "power_watts": "absent",
        }
    )


def test_two_sensors_with_one_label_are_told_apart(kernel: FakeKernel) -> None:
    chip(kernel, 0, "scmi", temp1_input=30000, temp1_label="soc", power1_input=1_500_000)
    chip(kernel, 0, "scmi", temp2_input=31000, temp2_label="soc", power2_input=2_500_000)
    chip(kernel, 0, "scmi", power3_input=3_500_000, power3_label="soc")
    assert read(kernel) == {
        "temp_celsius:scmi soc": 30.0,
        "temp_celsius:scmi soc#2": 31.0,
        "power_watts:scmi": 1.5,
        "power_watts:scmi power2": 2.5,
        "power_watts:scmi soc": 3.5,
    }


def test_a_mean_of_the_power_is_preferred(kernel: FakeKernel) -> None:
    chip(kernel, 0, "power_meter", power1_average=12_500_000, power1_input=99_000_000)
    assert read(kernel)["power_watts:power_meter"] == 12.5


def test_a_chip_has_not_more_sensors_than_are_read(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nct6793", **{f"temp{number}_input": 30000 for number in range(1, 99)})
    assert len(read(kernel)) == MOST_SENSORS + 1


def test_closing_closes_the_files_and_a_later_read_opens_them_again(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nvme", temp1_input=40000)
    chip(kernel, 1, "k10temp", temp1_input=50000, temp1_label="Tctl")
    source = Hwmon(kernel.root, kernel)
    first = shown(source.read())
    assert len(kernel.open_files) == 2
    source.close()
    assert not kernel.open_files
    assert shown(source.read()) == first


def test_a_sleeping_disk_is_not_asked(kernel: FakeKernel) -> None:
    assert not is_read_here("drivetemp")
    chip(kernel, 0, "drivetemp", temp1_input=30000)
    assert read(kernel) == {"temp_celsius": "absent", "power_watts": "absent"}
    assert f"{FOLDER}/hwmon0/temp1_input" not in kernel.opens


def test_a_disk_is_asked_seldom(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nvme", temp1_input=40000)
    source = Hwmon(kernel.root, kernel)
    file = f"{FOLDER}/hwmon0/temp1_input"
    for number in range(int(SLOWLY_S) * 3):
        chip(kernel, 0, "nvme", temp1_input=40000 + number * 1000)
        expected = 40.0 + number // SLOWLY_S * SLOWLY_S
        assert shown(source.read())["temp_celsius:nvme temp1"] == expected
        kernel.now += 1
    assert kernel.reads.count(file) == 3
    kernel.remove(f"{FOLDER}/hwmon0")
    kernel.now += RELIST_S
    assert shown(source.read())["temp_celsius:nvme temp1"] == "absent", "no value of the past"
    chip(kernel, 4, "nvme", temp1_input=33000)
    kernel.now += RELIST_S
    assert shown(source.read())["temp_celsius:nvme temp1"] == 33.0


# values


@pytest.mark.parametrize(
    "error", [errno.EAGAIN, errno.EINVAL, errno.ENODATA, errno.EIO, errno.ETIMEDOUT, errno.ENXIO]
)
def test_one_bad_sensor_costs_the_others_nothing(kernel: FakeKernel, error: int) -> None:
    """Report 18: node_exporter PR#3807: a failed read is no 0 C."""
    chip(kernel, 0, "k10temp", temp1_input=57000, temp1_label="Tctl")
    chip(kernel, 1, "iwlwifi", temp1_input=40000)
    kernel.faults[f"{FOLDER}/hwmon1/temp1_input"] = error
    found = read(kernel)
    assert found["temp_celsius:k10temp Tctl"] == 57.0
    assert found["temp_celsius:iwlwifi temp1"] == "transient"
    assert kernel.reads.count(f"{FOLDER}/hwmon1/temp1_input") == 1


def test_garbage_between_good_values_is_left_out(kernel: FakeKernel) -> None:
    source = Hwmon(kernel.root, kernel)
    found = []
    for temp in (3892313987, 48000, -273150, 127500, 150000, "", "nan", -40000, 126500):
        chip(kernel, 0, "nct6793", temp1_input=temp)
        found.append(shown(source.read())["temp_celsius:nct6793 temp1"])
    bad = "implausible"
    assert found == [bad, 48.0, bad, bad, bad, bad, bad, bad, 126.5]


@pytest.mark.parametrize(
    ("content", "watts"),
    [
        (b"4294967295000\n", None),
        (b"12500000\n", 12.5),
        (b"0\n", 0.0),
        (b"-1\n", None),
        (b"10000000000\n", None),
        (b"12500000", None),
    ],
)
def test_what_is_a_power(content: bytes, watts: float | None) -> None:
    """Report 26: htop#806: 4294967.295 W were shown."""
    assert parse_power(content) == watts


@given(st.binary(max_size=24))
def test_any_bytes_give_plausible_values_or_none(content: bytes) -> None:
    temp, power = parse_temp(content), parse_power(content)
    assert temp is None or -40 < temp < 150
    assert power is None or 0 <= power < 10_000


@given(st.integers(-(10**6), 10**12))
def test_a_number_cut_anywhere_is_not_taken_for_another(number: int) -> None:
    content = b"%d\n" % number
    for end in range(len(content)):
        assert parse_temp(content[:end]) is None
        assert parse_power(content[:end]) is None


@pytest.mark.parametrize("label", ["coretemp Package id 0", "k10temp Tctl", "amdgpu edge"])
def test_the_processor_may_be_the_hottest(label: str) -> None:
    assert is_junction(label)
