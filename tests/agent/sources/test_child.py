"""Children that print lines: real processes that fall silent, end, flood, and print halves."""

import logging
import os
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import ChildKernel, FastKernel, SteppedKernel, open_files, program, runs
from support.waiting import until

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.child import (
    FIRST_BACK_OFF_S,
    LINE_LIMIT,
    LONGEST_BACK_OFF_S,
    MOST_LINES,
    STEADY_S,
    Child,
)
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.kernel import Kernel, Spawned

SILENCE_S = 10.0


def child_of(folder: Path, script: str, kernel: Kernel) -> Child:
    return Child((str(program(folder, "printer", script)),), SILENCE_S, kernel)


def first_lines(child: Child) -> list[bytes]:
    """The first lines that come."""

    def read() -> list[bytes]:
        lines = child.read()
        assert not isinstance(lines, str), lines
        return lines

    return until(read)


def first_lines_again(child: Child) -> list[bytes]:
    """The first lines of the next child."""

    def read() -> list[bytes]:
        lines = child.read()
        return [] if isinstance(lines, str) else lines

    return until(read)


def reason(child: Child) -> Reason:
    """Why no lines can come, once that is so."""

    def read() -> Reason | None:
        lines = child.read()
        return lines if isinstance(lines, str) else None

    found = until(read)
    assert found is not None
    return found


def test_nothing_is_started_before_the_first_read(tmp_path: Path) -> None:
    kernel = ChildKernel()
    child_of(tmp_path, "echo one", kernel)
    assert not kernel.commands


def test_lines_are_handed_over_whole(tmp_path: Path) -> None:
    child = child_of(tmp_path, "printf 'on'; sleep 0.1; printf 'e\\ntw'; exec sleep 60", Kernel())
    assert first_lines(child) == [b"one"]
    time.sleep(0.1)
    assert child.read() == [], "the half line has to wait"
    child.close()


def test_a_read_of_a_silent_child_does_not_wait(tmp_path: Path) -> None:
    """Report 9: beszel#895. The agent hung where tegrastats was there and printed nothing."""
    child = child_of(tmp_path, "exec sleep 60", Kernel())
    child.read()
    began = time.monotonic()
    for _ in range(100):
        assert child.read() == []
    assert time.monotonic() - began < 0.5
    child.close()


def test_a_silent_child_is_ended_said_once_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FastKernel()
    child = child_of(tmp_path, "echo one; exec sleep 60", kernel)
    assert first_lines(child) == [b"one"]
    assert reason(child) == "transient"
    assert not runs(kernel.children[0].pid)
    assert len(caplog.records) == 1
    assert f"command={tmp_path / 'printer'} printed_nothing_for_s=10" in caplog.text
    assert first_lines_again(child) == [b"one"]
    assert reason(child) == "transient"
    assert len(kernel.children) == 2
    assert len(caplog.records) == 1, "the same failure is not told over and over"


def test_a_child_that_is_killed_is_said_once_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FastKernel()
    child = child_of(tmp_path, "echo one; exec sleep 60", kernel)
    first_lines(child)
    os.kill(kernel.children[0].pid, signal.SIGKILL)
    assert reason(child) == "transient"
    assert [("status=-9" in record.getMessage()) for record in caplog.records] == [True]
    assert first_lines_again(child) == [b"one"]
    child.close()


def test_half_a_line_is_not_glued_to_the_next_child(tmp_path: Path) -> None:
    kernel = FastKernel()
    child = child_of(tmp_path, "echo whole; printf 'RAM 12'; exec sleep 60", kernel)
    assert first_lines(child) == [b"whole"]
    assert reason(child) == "transient", "half a line is no sign of life"
    assert first_lines_again(child) == [b"whole"]
    child.close()


def test_the_last_lines_of_a_child_that_ends_count(tmp_path: Path) -> None:
    child = child_of(tmp_path, "echo last; printf half; exit 3", ChildKernel())
    time.sleep(0.3)
    assert first_lines(child) == [b"last"]
    assert reason(child) == "transient"


def test_a_line_without_an_end_ends_the_child(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = ChildKernel()
    child = child_of(tmp_path, "exec tr '\\0' x < /dev/zero", kernel)
    assert reason(child) == "implausible"
    assert f"line_longer_than={LINE_LIMIT}" in caplog.text
    assert not runs(kernel.children[0].pid)


def test_of_a_flood_the_last_lines_are_taken_and_no_more_than_a_bound(tmp_path: Path) -> None:
    child = child_of(tmp_path, "exec yes line", ChildKernel())
    first_lines(child)
    began = time.monotonic()
    for _ in range(5):
        lines = child.read()
        assert not isinstance(lines, str)
        assert len(lines) <= MOST_LINES
        assert set(lines) <= {b"line"}
    assert time.monotonic() - began < 2
    child.close()


def test_a_program_that_is_absent_is_looked_for_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel = SteppedKernel()
    child = Child((str(tmp_path / "nowhere"),), SILENCE_S, kernel)
    for _ in range(int(REPROBE_S) * 3):
        assert child.read() == "absent"
        kernel.now += 1
    assert len(kernel.commands) == 3
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    program(tmp_path, "nowhere", "echo here; exec sleep 60")
    kernel.now += REPROBE_S
    assert first_lines(child) == [b"here"]
    child.close()


def test_a_program_that_may_not_be_run_is_denied(tmp_path: Path) -> None:
    program(tmp_path, "secret", "echo one").chmod(0o644)
    assert Child((str(tmp_path / "secret"),), SILENCE_S, ChildKernel()).read() == "denied"


def test_each_failure_in_a_row_doubles_the_time_to_the_next_start(tmp_path: Path) -> None:
    kernel = SteppedKernel()
    child = child_of(tmp_path, "exit 1", kernel)
    starts = []
    for _ in range(13):
        child.read()
        starts.append(kernel.now)
        before = len(kernel.commands)
        assert reason(child) == "transient"
        while len(kernel.commands) == before:
            kernel.now += 1
            child.read()
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits[:4] == [FIRST_BACK_OFF_S * factor for factor in (1, 2, 4, 8)]
    assert waits[-1] == LONGEST_BACK_OFF_S
    child.close()


def test_after_it_was_steady_a_failure_is_the_first_one_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = SteppedKernel()
    child = child_of(tmp_path, "while sleep 0.05; do echo line; done", kernel)
    for _ in range(2):
        for _ in range(int(STEADY_S / SILENCE_S) + 1):
            first_lines_again(child)
            kernel.now += SILENCE_S
        first_lines_again(child)
        os.kill(kernel.children[-1].pid, signal.SIGKILL)
        assert reason(child) == "transient"
        kernel.now += FIRST_BACK_OFF_S - 1
        assert child.read() == "transient"
        kernel.now += 1
    assert len(caplog.records) == 2, "it is news again"
    child.close()


def test_only_the_own_child_is_ended(tmp_path: Path) -> None:
    kernel = ChildKernel()
    script = "echo one; exec sleep 60"
    with subprocess.Popen([program(tmp_path, "printer", script)]) as other:
        child = child_of(tmp_path, script, kernel)
        first_lines(child)
        child.close()
        child.close()
        assert not runs(kernel.children[0].pid)
        assert other.poll() is None
        other.kill()


def test_a_closed_child_is_started_by_the_next_read(tmp_path: Path) -> None:
    kernel = ChildKernel()
    child = child_of(tmp_path, "echo one; exec sleep 60", kernel)
    before = open_files()
    for _ in range(3):
        assert first_lines(child) == [b"one"]
        child.close()
    assert len(kernel.children) == 3
    assert open_files() == before


class Printed:
    """A child that has printed these chunks."""

    pid = 0

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk]

    def read(self) -> bytes | None:
        return self._chunks.pop(0) if self._chunks else b""

    def status(self) -> int | None:
        return None

    def kill(self) -> None:
        self._chunks = []


class PrintedKernel(Kernel):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def spawn(self, command: object, environment: dict[str, str] | None = None) -> Spawned:
        return Printed(self._chunks)


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_however_the_output_is_cut_the_lines_are_the_same(chunks: list[bytes]) -> None:
    child = Child(("printer",), SILENCE_S, PrintedKernel(chunks))
    assert child.read() == b"".join(chunks).split(b"\n")[:-1][-MOST_LINES:]
