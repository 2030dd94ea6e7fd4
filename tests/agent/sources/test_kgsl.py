"""Adreno GPUs: a recorded phone, windows that are cleared by reading, values that cannot be."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.kgsl import (
    Kgsl,
    parse_clock,
    parse_level,
    parse_percentage,
    parse_window,
)
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import REPROBE_S

FOLDER = "/sys/class/kgsl/kgsl-3d0"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    made.faults.clear()  # as root sees it
    return made


def busy(source: Kgsl) -> Value | str:
    return shown(source.read())["gpu_busy_share"]


def test_a_recorded_phone_as_root(kernel: FakeKernel) -> None:
    assert shown(Kgsl(kernel.root, kernel).read()) == {
        "gpu_busy_share": 31246 / 1006254,
        "gpu_hertz": 285_000_000,
        "gpu_max_hertz": 900_000_000,
        "gpu_thermal_level": 0,
    }


def test_an_app_that_is_denied_the_window_has_the_percentage(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Kgsl(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert busy(source) == 0.03
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/gpubusy") == 1


def test_a_window_that_reading_cleared_is_unknown_and_not_idle(kernel: FakeKernel) -> None:
    """The percentage shows 0 then, also in the first second of full load."""
    source = Kgsl(kernel.root, kernel)
    kernel.write(f"{FOLDER}/gpu_busy_percentage", "0 %\n")
    found = []
    for window in ("      0       0", " 990000 1000000", "      0 1000000"):
        kernel.write(f"{FOLDER}/gpubusy", f"{window}\n")
        found.append(busy(source))
    assert found == ["transient", 0.99, 0.0]


def test_a_gpu_that_cooling_limits(kernel: FakeKernel) -> None:
    kernel.write(f"{FOLDER}/thermal_pwrlevel", "3\n")
    kernel.write(f"{FOLDER}/max_gpuclk", "545000000\n")
    found = shown(Kgsl(kernel.root, kernel).read())
    assert found["gpu_thermal_level"] == 3
    assert found["gpu_max_hertz"] == 545_000_000


@pytest.mark.parametrize(
    ("content", "shows"),
    [
        ("1006254 1006254", 1.0),
        ("1010000 1006254", 1.0),  # two clocks counted
        ("2000000 1006254", "implausible"),
        ("5 0", "implausible"),
        ("-5 100", "implausible"),
        ("31246", "implausible"),
        ("31246 1006254 7", "implausible"),
        ("", "implausible"),
        ("a b", "implausible"),
    ],
)
def test_what_a_window_can_hold(kernel: FakeKernel, content: str, shows: Value | str) -> None:
    kernel.write(f"{FOLDER}/gpubusy", f"{content}\n")
    assert busy(Kgsl(kernel.root, kernel)) == shows


@pytest.mark.parametrize(
    ("content", "share"),
    [(b" 3 %\n", 0.03), (b"3%", 0.03), (b"100 %\n", 1.0), (b"0 %\n", 0.0), (b"3\n", None),
     (b"101 %\n", None), (b"-1 %\n", None), (b"%\n", None), (b"3 % 4\n", None)],
)  # fmt: skip
def test_what_a_percentage_can_hold(content: bytes, share: float | None) -> None:
    assert parse_percentage(content) == share


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENODEV, "absent"),
        (errno.EACCES, "denied"),
        (errno.EINVAL, "transient"),
        (errno.EIO, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("gpuclk", "gpu_hertz"),
        ("max_gpuclk", "gpu_max_hertz"),
        ("thermal_pwrlevel", "gpu_thermal_level"),
    ],
)
def test_a_file_that_fails_costs_its_own_value_only(
    kernel: FakeKernel, file: str, key: str, error: int, reason: str
) -> None:
    kernel.faults[f"{FOLDER}/{file}"] = error
    found = shown(Kgsl(kernel.root, kernel).read())
    assert found.pop(key) == reason
    assert not any(isinstance(value, str) for value in found.values())


def test_where_neither_load_can_be_read_the_reason_of_the_better_one_is_told(
    kernel: FakeKernel,
) -> None:
    kernel.faults = {
        f"{FOLDER}/gpubusy": errno.EACCES,
        f"{FOLDER}/gpu_busy_percentage": errno.ENOENT,
    }
    assert busy(Kgsl(kernel.root, kernel)) == "denied"
    kernel.faults = {
        f"{FOLDER}/gpubusy": errno.ENOENT,
        f"{FOLDER}/gpu_busy_percentage": errno.EACCES,
    }
    assert busy(Kgsl(kernel.root, kernel)) == "denied"


def test_a_machine_without_one_says_so_and_is_not_asked_again(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    source = Kgsl(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(shown(source.read()).values()) == {"absent"}
        kernel.now += 1
    assert len(kernel.opens) == 5


def test_closing_closes_every_file(kernel: FakeKernel) -> None:
    source = Kgsl(kernel.root, kernel)
    source.read()
    assert kernel.open_files
    source.close()
    assert not kernel.open_files


@given(st.binary(max_size=24) | st.from_regex(rb"[0-9 %\n-]{0,12}", fullmatch=True))
def test_any_bytes_give_plausible_values_or_none(content: bytes) -> None:
    window = parse_window(content)
    assert window is None or (0 <= window[0] and window[0] <= window[1] * 1.05)
    share = parse_percentage(content)
    assert share is None or 0 <= share <= 1
    clock = parse_clock(content)
    assert clock is None or 10**6 <= clock <= 10**10
    level = parse_level(content)
    assert level is None or 0 <= level < 64


@given(st.integers(0, 100), st.integers(0, 10**6), st.integers(0, 10**6))
def test_loads_cut_anywhere_are_none(percent: int, busy: int, more: int) -> None:
    written = b"%7d %7d\n" % (busy, busy + more)
    assert parse_window(written) == (busy, busy + more)
    assert all(parse_window(written[:end]) is None for end in range(len(written)))
    written = b" %d %%" % percent
    assert parse_percentage(written) == percent / 100
    assert all(parse_percentage(written[:end]) is None for end in range(len(written)))
