"""Power rails under hwmon: recorded Jetsons, totals by board, chips that move, alarms."""

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.kit.base import REASONS, Reason, Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.kit.rails import Scale, measured, parse, total
from decodewatch.agent.sources.rails import MOST_RAILS, Rails, parse_alarm

HWMON = "/sys/class/hwmon"
MILLI = Scale(volt=1000, ampere=1000, watt=1000)


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/hwmon").mkdir(parents=True)
    return made


def ina3221(kernel: FakeKernel, number: int, *rails: tuple[str | None, int, int]) -> str:
    """A chip whose channels have a label, mV and mA."""
    folder = f"{HWMON}/hwmon{number}"
    kernel.write(f"{folder}/name", "ina3221\n")
    for channel, (label, volts, amps) in enumerate(rails, 1):
        if label is not None:
            kernel.write(f"{folder}/in{channel}_label", f"{label}\n")
        kernel.write(f"{folder}/in{channel}_input", f"{volts}\n")
        kernel.write(f"{folder}/curr{channel}_input", f"{amps}\n")
    return folder


def values(source: Rails, *names: str) -> dict[str, Value | str]:
    """What the source shows of these measurements; of the power alone where none is named."""
    wanted = names or ("power_watts", "device_watts")
    return {
        key: value for key, value in shown(source.read()).items() if key.split(":")[0] in wanted
    }


# recorded boards


def test_an_orin_nano_has_one_rail_that_is_everything(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Rails(kernel.root, kernel).read()) == {
        "power_watts:VDD_IN": 9.309696,
        "rail_volts:VDD_IN": 5.016,
        "power_alarm:VDD_IN": 0,
        "power_watts:VDD_CPU_GPU_CV": 2.40384,
        "rail_volts:VDD_CPU_GPU_CV": 5.008,
        "power_alarm:VDD_CPU_GPU_CV": 0,
        "power_watts:VDD_SOC": 2.443904,
        "rail_volts:VDD_SOC": 5.008,
        "power_alarm:VDD_SOC": 0,
        "power_alarm:sum": 0,
        "device_watts:VDD_IN": 9.309696,
    }


@pytest.mark.parametrize("cut", ["VIN", "VDD_IN", "VIN_SYS_5V", ""])
def test_half_the_name_of_a_rail_is_no_other_rail(kernel: FakeKernel, cut: str) -> None:
    """What is left of VIN_SYS_5V0, the input of some parts, may read VIN, that of all."""
    folder = ina3221(
        *(kernel, 0, ("VDD_GPU", 12_000, 410), ("VDD_CPU_SOC_MSS", 12_000, 660)),
        ("VIN_SYS_5V0", 5_000, 1_333),
    )
    kernel.write(f"{folder}/in3_label", cut)
    assert values(Rails(kernel.root, kernel)) == {
        "power_watts:VDD_GPU": 4.92,
        "power_watts:VDD_CPU_SOC_MSS": 7.92,
        "device_watts": "absent",
    }
    kernel.write(f"{HWMON}/hwmon1/name", "ina238\n")
    kernel.write(f"{HWMON}/hwmon1/power1_input", "3000000\n")
    kernel.write(f"{HWMON}/hwmon1/in1_label", "VDD_FA")
    assert "device_watts:VIN" not in values(Rails(kernel.root, kernel))


@pytest.mark.parametrize("error", [errno.EIO, errno.EAGAIN, errno.EACCES])
def test_a_rail_whose_name_cannot_be_read_may_be_a_part_of_the_sum(
    tmp_path: Path, error: int
) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    (label,) = (
        path
        for path in (kernel.root / "sys/class/hwmon").glob("hwmon*/in*_label")
        if path.read_text() == "VDDQ_VDD2_1V8AO\n"
    )
    kernel.faults[kernel.name(str(label))] = error
    source = Rails(kernel.root, kernel)
    assert values(source, "device_watts") == {"device_watts:sum": "transient"}
    kernel.faults.clear()
    kernel.now += RELIST_S
    assert values(source, "device_watts") == {"device_watts:sum": pytest.approx(7.13408)}


def test_an_agx_orin_is_the_sum_of_its_rails(tmp_path: Path) -> None:
    """Channels that nothing is connected to, and the sum of shunt voltages, are left out."""
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    assert values(Rails(kernel.root, kernel)) == {
        "power_watts:VDD_GPU_SOC": 2.40096,
        "power_watts:VDD_CPU_CV": 0.40016,
        "power_watts:VIN_SYS_5V0": 4.032,
        "power_watts:VDDQ_VDD2_1V8AO": 0.30096,
        "device_watts:sum": 7.13408,
    }


def test_a_thor_whose_input_is_measured_by_a_chip_without_a_label(tmp_path: Path) -> None:
    """Its GPU is switched off: that draws 0 W, and that is known."""
    kernel = recorded("agx_thor_r38", tmp_path)
    found = values(Rails(kernel.root, kernel), "power_watts", "device_watts", "rail_volts")
    assert found == {
        "power_watts:VDD_GPU": 0.0,
        "rail_volts:VDD_GPU": 0.0,
        "power_watts:VDD_CPU_SOC_MSS": 6.508336,
        "rail_volts:VDD_CPU_SOC_MSS": 12.008,
        "power_watts:VIN_SYS_5V0": 6.5208,
        "rail_volts:VIN_SYS_5V0": 5.016,
        "power_watts:VIN": 19.78,
        "rail_volts:VIN": 20.04,
        "device_watts:VIN": 19.78,
    }


@pytest.mark.parametrize("number", [0, 9])
def test_the_input_of_a_thor_has_its_name_whatever_its_chips_number(
    tmp_path: Path, number: int
) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    kernel.move(f"{HWMON}/hwmon6", f"{HWMON}/hwmon{number}")
    assert values(Rails(kernel.root, kernel), "device_watts") == {"device_watts:VIN": 19.78}


def test_a_thor_without_its_ina238_is_the_sum_of_its_rails(tmp_path: Path) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    kernel.remove(f"{HWMON}/hwmon6")
    assert values(Rails(kernel.root, kernel), "device_watts") == {"device_watts:sum": 13.029136}


@pytest.mark.parametrize("board", ["rpi5", "x86_oddities", "snapdragon_8plus_gen1_sm8475"])
def test_a_device_without_these_chips_says_so(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    assert shown(Rails(kernel.root, kernel).read()) == dict.fromkeys(
        ("power_watts", "rail_volts", "device_watts", "power_alarm"), "absent"
    )


def test_no_file_is_touched_before_the_first_read_and_none_is_open_after_close(
    tmp_path: Path,
) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    source = Rails(kernel.root, kernel)
    assert not kernel.opens and not kernel.listings
    source.read()
    assert kernel.open_files
    source.close()
    assert not kernel.open_files
    assert values(source, "device_watts") == {"device_watts:VIN": 19.78}


# one bad file


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.EAGAIN, "transient"),
        (errno.EINVAL, "transient"),
        (errno.ENODATA, "transient"),
        (errno.EIO, "transient"),
        (errno.ETIMEDOUT, "transient"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
def test_a_rail_that_cannot_be_read_costs_itself_and_the_sum(
    tmp_path: Path, error: int, reason: Reason
) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    source = Rails(kernel.root, kernel)
    kernel.faults = {f"{HWMON}/hwmon3/curr2_input": error}
    assert values(source) == {
        "power_watts:VDD_GPU_SOC": 2.40096,
        "power_watts:VDD_CPU_CV": reason,
        "power_watts:VIN_SYS_5V0": 4.032,
        "power_watts:VDDQ_VDD2_1V8AO": 0.30096,
        "device_watts:sum": reason,
    }
    kernel.faults = {}
    kernel.now += REPROBE_S
    source.read()
    assert values(source)["device_watts:sum"] == 7.13408


def test_a_denied_file_is_asked_once_in_a_long_time(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults = {f"{HWMON}/hwmon1/curr1_input": errno.EACCES}
    source = Rails(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert values(source)["device_watts:VDD_IN"] == "denied"
        kernel.now += 1
    assert kernel.opens.count(f"{HWMON}/hwmon1/curr1_input") == 1


def test_a_sensor_that_is_busy_is_asked_once_a_read(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults = {f"{HWMON}/hwmon1/in1_input": errno.EAGAIN}
    source = Rails(kernel.root, kernel)
    source.read()
    kernel.reads.clear()
    source.read()
    assert f"{HWMON}/hwmon1/in1_input" in kernel.reads
    assert len(kernel.reads) == len(set(kernel.reads))


def test_a_chip_that_measures_no_power_has_its_voltage_and_current(kernel: FakeKernel) -> None:
    ina3221(kernel, 0, ("VDD_GPU", 0, 0), ("VDD_CPU_SOC_MSS", 0, 0), ("VIN_SYS_5V0", 0, 0))
    kernel.write(f"{HWMON}/hwmon1/name", "ina238\n")
    kernel.write(f"{HWMON}/hwmon1/in1_input", "20000\n")
    kernel.write(f"{HWMON}/hwmon1/curr1_input", "1500\n")
    assert values(Rails(kernel.root, kernel), "device_watts") == {"device_watts:VIN": 30.0}


def test_the_ina238_of_another_board_is_not_the_whole_device(kernel: FakeKernel) -> None:
    kernel.write(f"{HWMON}/hwmon0/name", "ina238\n")
    kernel.write(f"{HWMON}/hwmon0/power1_input", "2500000\n")
    assert values(Rails(kernel.root, kernel)) == {
        "power_watts:ina238": 2.5,
        "device_watts": "absent",
    }


def test_rails_without_labels_are_named_by_chip_and_channel(kernel: FakeKernel) -> None:
    ina3221(kernel, 3, (None, 5000, 100), (None, 5000, 200))
    ina3221(kernel, 4, (None, 5000, 300))
    assert values(Rails(kernel.root, kernel)) == {
        "power_watts:ina3221 1": 0.5,
        "power_watts:ina3221 2": 1.0,
        "power_watts:ina3221#2 1": 1.5,
        "device_watts": "absent",
    }


def test_a_channel_whose_label_cannot_be_read_is_left_out(kernel: FakeKernel) -> None:
    """Nothing may be connected to it."""
    folder = ina3221(kernel, 0, ("VDD_IN", 5000, 1000), ("NC", 5000, 7))
    kernel.faults[f"{folder}/in2_label"] = errno.EIO
    assert values(Rails(kernel.root, kernel)) == {
        "power_watts:VDD_IN": 5.0,
        "device_watts:VDD_IN": 5.0,
    }


def test_two_rails_of_one_name_are_told_apart(kernel: FakeKernel) -> None:
    ina3221(kernel, 0, ("NC", 0, 0), ("VDD_5V", 5000, 100), ("NC", 0, 0))
    ina3221(kernel, 1, ("VDD_5V", 5000, 200))
    assert values(Rails(kernel.root, kernel), "power_watts") == {
        "power_watts:VDD_5V": 0.5,
        "power_watts:VDD_5V#2": 1.0,
    }


# chips that come and go


def test_chips_that_change_their_places_keep_their_rails(tmp_path: Path) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    source = Rails(kernel.root, kernel)
    before = values(source)
    kernel.move(f"{HWMON}/hwmon3", f"{HWMON}/hwmon9")
    kernel.move(f"{HWMON}/hwmon4", f"{HWMON}/hwmon3")
    for _ in range(3 * int(RELIST_SOON_S)):
        kernel.now += 1
        found = values(source)
        assert all(found[key] in (before[key], "absent") for key in before)
    assert found == before


def test_a_chip_that_goes_takes_its_rails_and_the_sum_with_it_until_it_returns(
    tmp_path: Path,
) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    source = Rails(kernel.root, kernel)
    before = values(source)
    kernel.move(f"{HWMON}/hwmon4", "/sys/away")
    for _ in range(int(RELIST_S) * 3):
        kernel.now += 1
        assert values(source) == {
            **before,
            "power_watts:VDDQ_VDD2_1V8AO": "absent",
            "device_watts:sum": "absent",
        }
    assert len(kernel.listings) < 20
    kernel.move("/sys/away", f"{HWMON}/hwmon7")
    kernel.now += RELIST_S
    assert values(source) == before


def test_a_chip_whose_place_another_took_never_shows_the_others_values(tmp_path: Path) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    source = Rails(kernel.root, kernel)
    source.read()
    kernel.remove(f"{HWMON}/hwmon3")
    kernel.move(f"{HWMON}/hwmon4", f"{HWMON}/hwmon3")
    for _ in range(100):
        kernel.now += 1
        found = values(source)
        assert found["power_watts:VDD_GPU_SOC"] == found["device_watts:sum"] == "absent"
        assert found["power_watts:VDDQ_VDD2_1V8AO"] in (0.30096, "absent")
    assert found["power_watts:VDDQ_VDD2_1V8AO"] == 0.30096


def test_a_thor_whose_rails_went_keeps_the_name_of_its_input(tmp_path: Path) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    source = Rails(kernel.root, kernel)
    source.read()
    kernel.remove(f"{HWMON}/hwmon4")
    for _ in range(int(RELIST_S) + 1):
        kernel.now += 1
        found = values(source)
    assert found["device_watts:VIN"] == 19.78
    assert found["power_watts:VDD_GPU"] == "absent"


def test_drivers_that_are_loaded_with_new_names_do_not_fill_the_table(kernel: FakeKernel) -> None:
    source = Rails(kernel.root, kernel)
    for number in range(MOST_RAILS):
        ina3221(kernel, 0, (f"A{number}", 5000, 100), (f"B{number}", 5000, 100))
        kernel.now += RELIST_S
        found = values(source, "power_watts")
        assert len(found) <= MOST_RAILS
    assert len(found) == MOST_RAILS


# alarms


def test_an_alarm_that_is_raised_and_cleared(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    source = Rails(kernel.root, kernel)
    seen = []
    for state in ("0", "1", "0", "7", ""):
        kernel.write(f"{HWMON}/hwmon1/curr1_max_alarm", f"{state}\n")
        seen.append(values(source, "power_alarm")["power_alarm:VDD_IN"])
    assert seen == [0, 1, 0, "implausible", "implausible"]


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ((), "absent"),
        (("absent", "absent"), "absent"),
        ((b"0\n", "absent"), 0),
        (("absent", b"0\n"), 0),
        ((b"0\n", b"1\n"), 1),
        (("denied", b"1\n"), 1),
        (("denied", b"0\n"), "denied"),
        ((b"0\n", "denied"), "denied"),
        (("transient", "absent"), "transient"),
        ((b"0", b"0\n"), "implausible"),
    ],
)
def test_alarms_of_a_rail_together(contents: tuple[Any, ...], expected: int | str) -> None:
    assert parse_alarm(contents) == expected


# totals


@pytest.mark.parametrize(
    ("rails", "label", "expected"),
    [
        ({"VDD_IN": 5.299, "VDD_CPU_GPU_CV": 2.0, "VDD_SOC": 1.0}, "VDD_IN", 5.299),
        ({"POM_5V_IN": 1.022, "POM_5V_GPU": 0.0, "POM_5V_CPU": 0.204}, "POM_5V_IN", 1.022),
        ({"VDD_SYS_GPU": 0.182, "VDD_IN": 2.93, "VDD_SYS_DDR": 1.0}, "VDD_IN", 2.93),
        (
            {"GPU": 0.0, "CPU": 0.311, "SOC": 0.932, "CV": 0.0, "VDDRQ": 0.621, "SYS5V": 1.482},
            "sum",
            3.346,
        ),
        ({"GPU": 0.0, "CPU": 0.311}, "", "absent"),
        ({"VDD_GPU_SOC": 2.412, "VDD_CPU_CV": 1.607, "VIN_SYS_5V0": 4.707}, "sum", 8.726),
        (
            {
                "VDD_GPU_SOC": 2.399,
                "VDD_CPU_CV": 0.4,
                "VIN_SYS_5V0": 4.032,
                "NC": 9.0,
                "VDDQ_VDD2_1V8AO": 0.301,
            },
            "sum",
            7.132,
        ),
        (
            {
                "VDD_GPU_SOC": 2.399,
                "VDD_CPU_CV": 0.4,
                "VIN_SYS_5V0": 4.032,
                "VDDQ_VDD2_1V8AO": "transient",
            },
            "sum",
            "transient",
        ),
        ({"VDD_GPU": 1.962, "VDD_CPU_SOC_MSS": 5.887, "VIN_SYS_5V0": 5.635}, "sum", 13.484),
        (
            {"VDD_GPU": 1.962, "VDD_CPU_SOC_MSS": 5.887, "VIN_SYS_5V0": 5.635, "VIN": 19.78},
            "VIN",
            19.78,
        ),
        ({"VIN": "denied", "VDD_GPU": 1.0}, "VIN", "denied"),
        ({"VDD_5V": 1.0, "VDD_3V3": 2.0}, "", "absent"),
        ({}, "", "absent"),
    ],
)
def test_the_power_of_a_module(
    rails: dict[str, float | Reason], label: str, expected: float | str
) -> None:
    """Report 3: DataDog/datadog-agent#17678, VDD_IN of an Orin; never added to its own parts."""
    reading = total(rails)
    assert reading.label == label
    assert (reading.value if reading.reason is None else reading.reason) == expected


# values


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"5016\n", 5016),
        (b"0\n", 0),
        (b"-8\n", -8),
        (b"32760 ma\n", 32760),
        (b"32760 mW\n\0", 32760),
        (b"32760 ma", None),
        (b"32760", None),
        (b"3276\n0\n", None),
        (b"32760 m4\n", None),
        (b"32760ma\n", None),
        (b" ma\n", None),
        (b"\n", None),
        (b"", None),
        (b"0x10\n", None),
        (b"1e3\n", None),
    ],
)
def test_numbers_with_and_without_a_unit(content: bytes, expected: int | None) -> None:
    assert parse(content) == expected


@pytest.mark.parametrize(
    ("volts", "amps", "watts", "power", "voltage"),
    [
        (b"5000\n", b"1000\n", "absent", 5.0, 5.0),
        (b"5000\n", b"-8\n", "absent", -0.04, 5.0),
        (b"5000\n", b"1000\n", b"4700\n", 4.7, 5.0),
        (b"5000\n", b"1000\n", "denied", "denied", 5.0),
        ("transient", b"1000\n", "absent", "transient", "transient"),
        ("transient", b"1000\n", b"4700\n", 4.7, "transient"),
        (b"5000\n", "denied", "absent", "denied", 5.0),
        (b"-1\n", b"1000\n", "absent", "implausible", "implausible"),
        (b"4294967295\n", b"1000\n", "absent", "implausible", "implausible"),
        (b"5000\n", b"4294967295\n", "absent", "implausible", 5.0),
        (b"5000\n", b"100\n", b"4294967295\n", "implausible", 5.0),
        (b"90000\n", b"150000\n", "absent", "implausible", 90.0),
    ],
)
def test_power_and_voltage_of_a_rail(
    volts: Any, amps: Any, watts: Any, power: float | str, voltage: float | str
) -> None:
    assert shown(measured("R", volts, amps, watts, MILLI)) == {
        "power_watts:R": power,
        "rail_volts:R": voltage,
    }


CONTENTS = st.one_of(
    st.sampled_from(REASONS),
    st.binary(max_size=24),
    st.integers(-(10**20), 10**20).map(lambda number: b"%d\n" % number),
    st.integers(0, 40_000).map(lambda number: b"%d\n" % number),
)


@given(CONTENTS, CONTENTS, CONTENTS)
def test_any_contents_give_a_plausible_power_or_a_reason(volts: Any, amps: Any, watts: Any) -> None:
    power, voltage = measured("R", volts, amps, watts, MILLI)
    assert power.value is None or abs(power.value) < 2000
    assert voltage.value is None or 0 <= voltage.value < 100
    if isinstance(volts, str):
        assert voltage.reason == volts
    if isinstance(watts, str) and watts != "absent":
        assert power.reason == watts


@given(st.integers(-(10**12), 10**12), st.sampled_from([b"", b" ma", b" mW"]))
def test_a_number_cut_anywhere_is_not_taken_for_another(number: int, unit: bytes) -> None:
    content = b"%d%s\n" % (number, unit)
    assert parse(content) == number
    for end in range(len(content)):
        assert parse(content[:end]) is None


@given(st.binary(max_size=24))
def test_any_bytes_give_a_number_that_they_hold(content: bytes) -> None:
    number = parse(content)
    if number is not None:
        assert int(content.split(b"\0")[0].split()[0]) == number


@given(st.lists(CONTENTS, max_size=4))
def test_any_alarms_give_a_state_that_one_of_them_has(contents: list[Any]) -> None:
    state = parse_alarm(contents)
    if state in (0, 1):
        assert b"%d\n" % state in [
            content.strip(b"\0 \t\n") + b"\n"
            for content in contents
            if not isinstance(content, str)
        ]
