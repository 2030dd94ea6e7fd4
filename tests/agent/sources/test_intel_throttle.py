"""Throttle counters of Intel processors: once a package, whichever of its CPUs is online."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.intel_throttle import MOST_PACKAGES, IntelThrottle, parse
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S

FOLDER = "/sys/devices/system/cpu"
NOTHING = {"cpu_throttle_microseconds": "absent", "cpu_throttle_events": "absent"}


def cpu(
    kernel: FakeKernel, number: int, package: int | None, events: int, ms: int | None = None
) -> None:
    folder = f"{FOLDER}/cpu{number}"
    if package is not None:
        kernel.write(f"{folder}/topology/physical_package_id", f"{package}\n")
    kernel.write(f"{folder}/thermal_throttle/package_throttle_count", f"{events}\n")
    if ms is not None:
        kernel.write(f"{folder}/thermal_throttle/package_throttle_total_time_ms", f"{ms}\n")


def test_a_pc_without_a_recorded_topology_has_one_package(tmp_path: Path) -> None:
    kernel = recorded("x86_oddities", tmp_path)
    assert shown(IntelThrottle(kernel.root, kernel).read()) == {
        "cpu_throttle_microseconds:package0": 112_000,
        "cpu_throttle_events:package0": 30,
    }


def test_two_packages_are_counted_once_each(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    for number in range(16):
        cpu(kernel, number, number % 2, 5 + number % 2, 40)
    source = IntelThrottle(kernel.root, kernel)
    assert shown(source.read()) == {
        "cpu_throttle_microseconds:package0": 40_000,
        "cpu_throttle_events:package0": 5,
        "cpu_throttle_microseconds:package1": 40_000,
        "cpu_throttle_events:package1": 6,
    }
    assert len(kernel.open_files) == 4
    kernel.reads.clear()
    kernel.now += 1
    source.read()
    assert len(kernel.reads) == 4


def test_a_kernel_before_5_5_has_no_times(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    cpu(kernel, 0, 0, 5)
    source = IntelThrottle(kernel.root, kernel)
    for _ in range(int(RELIST_S) * 3):
        assert shown(source.read()) == {
            "cpu_throttle_microseconds:package0": "absent",
            "cpu_throttle_events:package0": 5,
        }
        kernel.now += 1
    assert kernel.listings.count(FOLDER) == 3


@pytest.mark.parametrize("package", [-1, None])
def test_a_package_without_a_number_is_the_first(tmp_path: Path, package: int | None) -> None:
    kernel = FakeKernel(tmp_path)
    cpu(kernel, 0, package, 5)
    cpu(kernel, 1, package, 5)
    assert shown(IntelThrottle(kernel.root, kernel).read())["cpu_throttle_events:package0"] == 5


@pytest.mark.parametrize("board", ["rpi5", "orin_nano_super", "snapdragon_8plus_gen1_sm8475"])
def test_other_processors_have_no_such_counters(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    assert shown(IntelThrottle(kernel.root, kernel).read()) == NOTHING


def test_an_offline_cpu_hands_its_package_to_the_next(tmp_path: Path) -> None:
    """Their numbers differ a little; the difference is no throttling."""
    kernel = FakeKernel(tmp_path)
    cpu(kernel, 0, 0, 100, 1000)
    cpu(kernel, 1, 0, 180, 1500)
    source = IntelThrottle(kernel.root, kernel)

    def read() -> tuple[object, object]:
        found = shown(source.read())
        return found["cpu_throttle_events:package0"], found["cpu_throttle_microseconds:package0"]

    assert read() == (100, 1_000_000)
    cpu(kernel, 0, 0, 101, 1010)
    kernel.now += RELIST_SOON_S
    assert read() == (101, 1_010_000)
    kernel.remove(f"{FOLDER}/cpu0/thermal_throttle")
    kernel.now += 1
    assert read() == ("absent", "absent")
    kernel.now += 1
    assert read() == (101, 1_010_000), "goes on from where it was"
    cpu(kernel, 1, 0, 183, 1530)
    kernel.now += 1
    assert read() == (104, 1_040_000)
    cpu(kernel, 0, 0, 0, 0)
    kernel.now += RELIST_S
    assert read() == (104, 1_040_000), "stays with the one that it has"
    assert len(kernel.open_files) == 2


def test_a_counter_that_restarts_is_shown_as_it_is(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    source = IntelThrottle(kernel.root, kernel)
    found = []
    for events in (100, 2, -1, 3):
        cpu(kernel, 0, 0, events)
        found.append(shown(source.read())["cpu_throttle_events:package0"])
        kernel.now += 1
    assert found == [100, 2, "implausible", 3]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.EACCES, "denied"), (errno.EIO, "transient"), (errno.EINVAL, "transient")],
)
def test_one_bad_counter_costs_the_other_nothing(tmp_path: Path, error: int, reason: str) -> None:
    kernel = recorded("x86_oddities", tmp_path)
    kernel.faults[f"{FOLDER}/cpu0/thermal_throttle/package_throttle_total_time_ms"] = error
    assert shown(IntelThrottle(kernel.root, kernel).read()) == {
        "cpu_throttle_microseconds:package0": reason,
        "cpu_throttle_events:package0": 30,
    }


def test_a_folder_that_is_denied_says_so(tmp_path: Path) -> None:
    kernel = recorded("x86_oddities", tmp_path)
    kernel.faults[FOLDER] = errno.EACCES
    source = IntelThrottle(kernel.root, kernel)
    assert shown(source.read()) == dict.fromkeys(NOTHING, "denied")


def test_the_packages_are_bounded_and_their_files_are_closed(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    for number in range(MOST_PACKAGES + 5):
        cpu(kernel, number, number, 1, 1)
    source = IntelThrottle(kernel.root, kernel)
    assert len(source.read()) == MOST_PACKAGES * 2
    source.close()
    assert not kernel.open_files


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
