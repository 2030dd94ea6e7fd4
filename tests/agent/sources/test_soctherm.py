"""Over-current counters of a Jetson: recorded boards, errors, counters that begin again."""

import errno
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.soctherm import Soctherm, Ticks, parse

FOLDER = "/sys/class/hwmon"
DEBUG = "/sys/kernel/debug/bpmp/debug/soctherm"
NOTHING = {"overcurrent_events": "absent", "overcurrent_microseconds": "absent"}


def chip(kernel: FakeKernel, number: int, *events: int | str) -> None:
    kernel.write(f"{FOLDER}/hwmon{number}/name", "soctherm_oc\n")
    for alarm, count in enumerate(events, 1):
        kernel.write(f"{FOLDER}/hwmon{number}/oc{alarm}_event_cnt", f"{count}\n")


def test_an_orin_nano_whose_third_alarm_ticks(tmp_path: Path) -> None:
    """27 390 events were 32 s: the time says what the count does not."""
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Soctherm(kernel.root, kernel).read()) == {
        "overcurrent_events:oc1": 0,
        "overcurrent_events:oc2": 0,
        "overcurrent_events:oc3": 27390,
        "overcurrent_microseconds:oc1": "absent",
        "overcurrent_microseconds:oc2": "absent",
        "overcurrent_microseconds:oc3": 32_068_998,
    }


def test_an_agent_that_is_not_root_has_no_times(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults["/sys/kernel/debug"] = errno.EACCES
    source = Soctherm(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        found = shown(source.read())
        kernel.now += 1
    assert found["overcurrent_events:oc3"] == 27390
    assert found["overcurrent_microseconds:oc3"] == "denied"
    assert len([name for name in kernel.opens if name.startswith(DEBUG)]) == 3


@pytest.mark.parametrize(
    ("board", "events"), [("agx_orin_64gb_r35", [0, 15, 37]), ("agx_thor_r38", [0, 0, 179])]
)
def test_other_jetsons(tmp_path: Path, board: str, events: list[int]) -> None:
    kernel = recorded(board, tmp_path)
    found = shown(Soctherm(kernel.root, kernel).read())
    assert [found[f"overcurrent_events:oc{number}"] for number in (1, 2, 3)] == events
    assert found["overcurrent_microseconds:oc3"] == "absent"


@pytest.mark.parametrize("board", ["rpi5", "x86_oddities"])
def test_other_machines_have_no_such_chip(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    assert shown(Soctherm(kernel.root, kernel).read()) == NOTHING
    assert not [name for name in kernel.opens if name.startswith("/sys/kernel")]


@pytest.mark.parametrize("error", [errno.EDOM, errno.EINVAL, errno.EAGAIN, errno.EIO])
def test_firmware_that_does_not_answer(tmp_path: Path, error: int) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    source = Soctherm(kernel.root, kernel)
    kernel.faults[f"{FOLDER}/hwmon2/oc2_event_cnt"] = error
    found = shown(source.read())
    assert found["overcurrent_events:oc2"] == "transient"
    assert found["overcurrent_events:oc3"] == 37
    kernel.faults.clear()
    assert shown(source.read())["overcurrent_events:oc2"] == 15


def test_a_chip_whose_number_moves(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    chip(kernel, 3, 0, 1, 2)
    source = Soctherm(kernel.root, kernel)
    assert shown(source.read())["overcurrent_events:oc3"] == 2
    kernel.move(f"{FOLDER}/hwmon3", f"{FOLDER}/hwmon5")
    kernel.write(f"{FOLDER}/hwmon3/name", "ina3221\n")
    kernel.now += RELIST_SOON_S
    assert shown(source.read())["overcurrent_events:oc3"] == "absent"
    kernel.now += 1
    assert shown(source.read())["overcurrent_events:oc3"] == 2


def test_a_chip_that_comes_late_and_counters_that_restart(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    (tmp_path / "sys/class/hwmon").mkdir(parents=True)
    source = Soctherm(kernel.root, kernel)
    assert shown(source.read()) == NOTHING
    found = []
    for events in (100, 7, 9):
        chip(kernel, 2, 0, 0, events)
        kernel.now += RELIST_S
        found.append(shown(source.read())["overcurrent_events:oc3"])
    assert found == [100, 7, 9]
    source.close()
    assert not kernel.open_files


def test_a_chip_without_counters_says_nothing(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    chip(kernel, 2)
    kernel.write(f"{FOLDER}/hwmon2/oc0_event_cnt", "5\n")
    assert shown(Soctherm(kernel.root, kernel).read()) == NOTHING


def test_a_time_that_begins_again_after_32_bits(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    chip(kernel, 2, 0)
    source = Soctherm(kernel.root, kernel)
    found = []
    for ticks in (4_294_900_000, 4_294_967_295, 1_000_000, 2_000_000, "x", 3_000_000):
        kernel.write(f"{DEBUG}/oc0/event_time", f"{ticks}\n")
        found.append(shown(source.read())["overcurrent_microseconds:oc1"])
        kernel.now += 1
    assert found == [
        137_436_800,
        137_438_953,
        137_438_953 + 32_000,
        137_438_953 + 64_000,
        "implausible",
        137_438_953 + 96_000,
    ]


def test_a_time_that_restarts_is_not_taken_for_one_that_wrapped() -> None:
    ticks = Ticks()
    assert [ticks.microseconds(number) for number in (2_000_000_000, 0, 31_250_000)] == [
        64_000_000,
        0,
        1_000_000,
    ]


def test_a_time_of_more_than_32_bits_stays_as_it_is() -> None:
    ticks = Ticks()
    assert [ticks.microseconds(number) for number in (1 << 40, (1 << 40) + 31_250_000)] == [
        35_184_372_088,
        35_185_372_088,
    ]


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=30))
def test_a_counter_of_32_bits_that_is_read_often_enough_loses_nothing(steps: list[int]) -> None:
    ticks = Ticks()
    found = [ticks.microseconds(total % (1 << 32)) for total in itertools.accumulate(steps)]
    assert found == [total * 32 // 1000 for total in itertools.accumulate(steps)]


@given(st.binary(max_size=24))
def test_any_bytes_give_a_count_or_none(content: bytes) -> None:
    number = parse(content)
    assert number is None or number >= 0


@given(st.integers(0, 10**15))
def test_a_number_cut_anywhere_is_not_taken_for_another(number: int) -> None:
    content = b"%d\n" % number
    assert parse(content) == number
    for end in range(len(content)):
        assert parse(content[:end]) is None
