"""Measuring the bandwidth: figures that the memory can have, bounded in time and memory."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from decodewatch.agent.hardware import bandwidth, board, command, measurements
from decodewatch.agent.hardware.bandwidth import BandwidthError, Measured, Rate
from decodewatch.agent.hardware.ceiling import Clocks, ceiling
from decodewatch.agent.hardware.measurements import Measurement
from decodewatch.shared import devices

COMMAND = [sys.executable, "-m", "decodewatch.shared.cli", "agent", "bandwidth"]
MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def measured() -> Measured:
    """One short run on this machine."""
    return bandwidth.measure(1, 2)


def test_what_is_measured_is_what_memory_can_do(measured: Measured) -> None:
    for rate in (measured.read, measured.copy):
        assert 0.3e9 < rate.bytes_per_second < 2e12
        assert rate.threads in (1, 2) and 0 < rate.running <= 1.05
    assert measured.read.routine in bandwidth.READERS
    assert measured.copy.routine == bandwidth.COPIER


def test_it_takes_about_as_long_as_was_asked_for(measured: Measured) -> None:
    # Beyond it: the first round is whole, and so is the call that was under way.
    assert 0.9 < measured.seconds < 4


def test_all_memory_and_all_threads_are_given_back() -> None:
    before, threads = resident(), threading.active_count()
    found = bandwidth.measure(0.1, 1)
    assert found.buffer_bytes >= 32 * MIB
    assert resident() - before < found.buffer_bytes / 4
    assert threading.active_count() == threads


def test_no_more_threads_than_cores_are_used() -> None:
    """Each of 256 would read its own MiB again and again out of the cache: ten times too fast."""
    cores = len(os.sched_getaffinity(0))
    found = bandwidth.measure(0.1, 256)
    assert found.read.threads <= cores and found.copy.threads <= cores


@pytest.mark.parametrize("at", [0.05, 0.3, 0.6, 0.9])
def test_ctrl_c_ends_it_at_any_moment(at: float) -> None:
    """Its threads read on for a moment: the buffer must be there for as long."""
    program = (
        "import os, signal, threading\n"
        "from decodewatch.agent.hardware import bandwidth\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"threading.Timer({at}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    bandwidth.measure(30, 2)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_every_byte_is_looked_at() -> None:
    """A reader that stopped early would be fast and wrong."""
    import ctypes

    size = 4 * MIB
    memory = ctypes.create_string_buffer(size)
    routines = bandwidth._routines()
    address = ctypes.addressof(memory)
    routines["memset"](address, size)
    assert memory.raw.count(1) == size
    assert [routines[name](address, size) for name in (*bandwidth.READERS, bandwidth.COPIER)] == [
        size
    ] * 3
    assert memory.raw.count(1) == size, "memchr finds nothing, memcmp finds no difference"


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_several_numbers_of_threads_are_tried(most: int, counts: list[int]) -> None:
    assert bandwidth.thread_counts(most) == counts


# How large the buffer is.


def machine(folder: Path, available_mib: int, *caches: tuple[int, int, str]) -> Path:
    """Files of a device with so much memory, and caches of (level, KiB, CPUs that share it)."""
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(f"MemAvailable: {available_mib * 1024} kB\n")
    for index, (level, kib, cpus) in enumerate(caches):
        for cpu in range(4):
            cache = folder / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            cache.mkdir(parents=True)
            (cache / "level").write_text(f"{level}\n")
            (cache / "size").write_text(f"{kib}K\n")
            shared = cpus if cpus else str(cpu)
            (cache / "shared_cpu_list").write_text(f"{shared}\n")
    return folder


def test_the_last_level_counts_once_for_those_that_share_it(tmp_path: Path) -> None:
    root = machine(tmp_path, 8000, (1, 64, ""), (2, 512, ""), (3, 4096, "0-3"))
    assert bandwidth.cache_bytes(root) == 4 * MIB
    assert bandwidth.buffer_bytes(root) == 256 * MIB


def test_caches_that_nobody_shares_add_up(tmp_path: Path) -> None:
    root = machine(tmp_path, 64_000, (1, 64, ""), (2, 32 * 1024, ""))
    assert bandwidth.cache_bytes(root) == 128 * MIB
    assert bandwidth.buffer_bytes(root) == 512 * MIB


def test_at_most_a_quarter_of_the_memory_is_used(tmp_path: Path) -> None:
    assert bandwidth.buffer_bytes(machine(tmp_path, 400)) == 100 * MIB


@pytest.mark.parametrize(
    ("mount", "membership", "folder", "limit", "used", "no_limit"),
    [
        (
            *("/ /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/"),
            *("sys/fs/cgroup", "memory.max", "memory.current", "max"),
        ),
        (  # a service, or a person's session, whose limit is that of the slice around it
            *("/ /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/user.slice/session-3.scope"),
            *("sys/fs/cgroup/user.slice", "memory.max", "memory.current", "max"),
        ),
        (
            *("/ /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", "4:memory:/docker/1f"),
            *("sys/fs/cgroup/memory/docker/1f", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            "9223372036854771712",
        ),
    ],
)
def test_the_limit_of_a_cgroup_counts_too(
    tmp_path: Path, mount: str, membership: str, folder: str, limit: str, used: str, no_limit: str
) -> None:
    root = machine(tmp_path, 16_000)
    (root / "proc/self").mkdir()
    (root / "proc/self/mountinfo").write_text(f"30 1 0:26 {mount}\n")
    (root / f"proc/{os.getpid()}").mkdir()
    (root / f"proc/{os.getpid()}/cgroup").write_text(f"{membership}\n")
    (root / folder).mkdir(parents=True)
    (root / folder / limit).write_text(f"{512 * MIB}\n")
    (root / folder / used).write_text(f"{112 * MIB}\n")
    assert bandwidth.buffer_bytes(root) == 100 * MIB
    (root / folder / limit).write_text(f"{no_limit}\n")
    assert bandwidth.buffer_bytes(root) == 256 * MIB


def test_too_little_memory_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(
        BandwidthError, match=r"100 MiB of memory are available.*needed are 128 MiB"
    ):
        bandwidth.measure(1, 1, machine(tmp_path, 100))


def test_where_no_memory_is_told_a_small_buffer_is_used(tmp_path: Path) -> None:
    assert bandwidth.buffer_bytes(tmp_path) == 32 * MIB


# What is said of it.


def meaning(gb_per_s: float, row: str | None, running: float = 1.0) -> str:
    found = next((one for one in devices.rows() if one.id == row), None)
    device = board.Board(
        *("A board", None, None, (), 8 << 30, 4096, None, None, None, None, None, found)
    )
    rate = Rate(gb_per_s * 1e9, "memchr", 2, running)
    kept = Measurement(1, gb_per_s * 1e9, 1e9, 2, None, None, None, None, running)
    result = ceiling(found, Clocks(), None, [kept])
    return command.meaning(device, Measured(rate, rate, 1, 1.0), kept, result)


@pytest.mark.parametrize(
    ("gb_per_s", "row", "said"),
    [
        (20.0, None, "The ceiling is 20.0 GB/s, as measured: decoding cannot read"),
        (13.0, "raspberry-pi-5", "76 % of the specification: as usual"),
        (6.0, "raspberry-pi-5", "35 % of the specification: which is low"),
        (12.0, "intel-n100", "the memory that is fitted may be slower"),
        (25.0, "raspberry-pi-5", "above the specification"),
        (90.0, "jetson-agx-orin", "The ceiling stays 204.8 GB/s, by the specification: the CPU"),
    ],
)
def test_the_figure_is_put_into_words(gb_per_s: float, row: str | None, said: str) -> None:
    assert said in meaning(gb_per_s, row)
    assert meaning(gb_per_s, row, running=0.5) == (
        f"At least {gb_per_s:.1f} GB/s; other programs used the CPU, so this is no ceiling. "
        "Measure again while the device is idle."
    )


# The command.


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def test_the_command_measures_keeps_and_prints(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run("--seconds", "1", "--json", "--state-folder", str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    found = json.loads(done.stdout)
    assert found["read_threads"] >= 1 and found["read_bytes_per_second"] > 0
    (kept,) = measurements.load(tmp_path / "s")
    assert round(kept.read_bytes_per_second) == found["read_bytes_per_second"]
    assert kept.running_share == found["cpu_running_share"]
    assert found["kept_in"] == str(tmp_path / "s" / measurements.FILE)
    assert found["not_kept"] is None
    if found["device"] is None:
        ceiling = None if kept.disturbed else found["read_bytes_per_second"]
        assert found["spec_note"] == "not in the table of known devices"
        assert found["ceiling_bytes_per_second"] == ceiling


def test_the_command_says_it_in_lines_for_people(tmp_path: Path) -> None:
    done = run("--seconds", "1", "--state-folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"kept in        {tmp_path / measurements.FILE}" in done.stdout
    starts = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert starts[:4] == ["specification", "measured read", "measured copy", "ratio"]
    assert starts[-1].startswith(("The ceiling ", "At least "))


@pytest.mark.parametrize(("all_cores", "running"), [((0.5, 0.6), 0.6), ((0.5, 0.97), 0.97)])
def test_a_core_that_others_hold_is_seen_though_the_best_case_left_it_to_them(
    all_cores: tuple[float, float], running: float
) -> None:
    first, second = all_cores
    readers = [
        Rate(12e9, "memcmp", 1, 1.0),
        Rate(9e9, "memcmp", 2, first),
        Rate(8e9, "memchr", 2, second),
        Rate(7e9, "memchr", 1, 0.4),
    ]
    best = bandwidth._best_reader(readers)
    assert (best.bytes_per_second, best.threads, best.running) == (12e9, 1, running)


def test_a_disturbed_run_says_why_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of each second of a real run counts as other programs'."""
    real = bandwidth.measure

    def shared(seconds: float, threads: int | None) -> Measured:
        found = real(seconds, threads)
        return dataclasses.replace(found, read=dataclasses.replace(found.read, running=0.5))

    monkeypatch.setattr(bandwidth, "measure", shared)
    command.run(tmp_path, 1, None, as_json=True)
    first = json.loads(capsys.readouterr().out)
    assert first["kept_in"] is not None and first["cpu_running_share"] == 0.5
    assert first["ceiling_from"] != "measured"
    (kept,) = measurements.load(tmp_path)
    better = dataclasses.replace(
        kept, at=1_800_000_000_000_000, read_bytes_per_second=21.3e9, running_share=1.0
    )
    measurements.store(tmp_path, better)
    why = "21.3 GB/s were measured in this power mode on 2027-01-15, undisturbed"
    command.run(tmp_path, 1, None, as_json=True)
    second = json.loads(capsys.readouterr().out)
    assert (second["kept_in"], second["not_kept"]) == (None, why)
    command.run(tmp_path, 1, None, as_json=False)
    assert f"not kept: {why}\nAt least " in capsys.readouterr().out
    assert measurements.load(tmp_path) == [better]


def test_fewer_threads_are_a_trial_that_is_not_kept(tmp_path: Path) -> None:
    done = run("--seconds", "1", "--threads", "1", "--json", "--state-folder", str(tmp_path))
    found = json.loads(done.stdout)
    assert found["read_threads"] == 1 and found["kept_in"] is None
    assert found["not_kept"] == "--threads makes it a trial"
    assert measurements.load(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seconds", "0"], "'0'; accepted is a number from 1 to 60"),
        (["--seconds", "nan"], "'nan'; accepted is a number from 1 to 60"),
        (["--threads", "1.5"], "'1.5'; accepted is a number from 1 to 256"),
        (["--threads", "1000"], "'1000'; accepted is a number from 1 to 256"),
    ],
)
def test_wrong_arguments_exit_with_2(flags: list[str], message: str) -> None:
    done = run(*flags)
    assert done.returncode == 2 and message in done.stderr


def test_a_state_folder_that_cannot_be_used_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--seconds", "1", "--state-folder", str(tmp_path / "file"))
    assert done.returncode == 1
    assert f"state_folder: {tmp_path}/file: File exists" in done.stderr


def test_too_little_memory_exits_with_1(tmp_path: Path) -> None:
    """A limit of this process stands for a device that has no more."""
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (150 << 20,) * 2)\n"
    program = limit + "from decodewatch.shared.cli import main\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMAND[3:], "--state-folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "bandwidth: no buffer of" in done.stderr
    assert not (tmp_path / measurements.FILE).exists()
