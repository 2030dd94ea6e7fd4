"""What is read of one process: real ones, and what kernels and Android make of /proc."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import DEVICES, FakeKernel, shown
from support.waiting import until

from decodewatch.agent.runtimes import smaps
from decodewatch.agent.runtimes.process import (
    MEASUREMENTS,
    ProcessReader,
    Stat,
    parse_stat,
    parse_status,
)
from decodewatch.agent.sources.kit.files import REPROBE_S

MIB = 1 << 20
PID = 4711

STATUS = """\
Name:\tllama
State:\tR (running)
Pid:\t4711
VmRSS:\t   71000 kB
RssAnon:\t   40000 kB
RssFile:\t   30000 kB
RssShmem:\t    1000 kB
VmSwap:\t    2000 kB
Threads:\t4
"""

SMAPS = """\
00400000-7ffc3d1fe000 ---p 00000000 00:00 0                              [rollup]
Rss:               71000 kB
Pss:               55000 kB
Pss_Anon:          40000 kB
Private_Clean:     10000 kB
Private_Dirty:     39500 kB
Swap:               2100 kB
SwapPss:            2000 kB
"""


def stat(
    comm: str = "llama", state: str = "R", user: int = 150, system: int = 50, start: int = 9000
) -> str:
    return (
        f"{PID} ({comm}) {state} 1 4711 4711 0 -1 4194560 100 0 2 0 {user} {system} 7 8"
        f" 20 0 4 0 {start} 123456789 17750 18446744073709551615 1 1 0 0 0\n"
    )


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    made.write(f"/proc/{PID}/stat", stat())
    made.write(f"/proc/{PID}/status", STATUS)
    made.write(f"/proc/{PID}/smaps_rollup", SMAPS)
    return made


def reader(kernel: FakeKernel) -> ProcessReader:
    return ProcessReader(PID, kernel.root, kernel, ticks_per_second=100)


# a made process


def test_what_is_read_of_a_process(kernel: FakeKernel) -> None:
    process = reader(kernel)
    assert process.identity() == 9000
    assert process.alive() is True
    assert process.memory().anon_and_swap == 42000 * 1024
    assert shown(process.read()) == {
        "runtime_rss_anon_bytes": 40000 * 1024,
        "runtime_swap_bytes": 2000 * 1024,
        "runtime_rss_file_bytes": 30000 * 1024,
        "runtime_rss_shmem_bytes": 1000 * 1024,
        "runtime_cpu_microseconds": 2_000_000,
        "runtime_pss_bytes": 55000 * 1024,
        "runtime_private_bytes": 41500 * 1024,
        "runtime_gpu_bytes": "absent",
        "cgroup_memory_limit_bytes": "absent",
        "cgroup_memory_current_bytes": "absent",
        "cgroup_oom_kills": "absent",
        "cgroup_swap_current_bytes": "absent",
        "cgroup_memory_limit_hits": "absent",
        "cgroup_cpu_throttled_microseconds": "absent",
    }


@pytest.mark.parametrize("state", ["Z", "X", "x"])
def test_a_zombie_does_not_live(kernel: FakeKernel, state: str) -> None:
    process = reader(kernel)
    kernel.write(f"/proc/{PID}/stat", stat(state=state))
    assert process.alive() is False
    assert process.memory().anon_and_swap is None


@pytest.mark.parametrize("state", list("RSDTtIPKW"))
def test_any_other_state_lives(kernel: FakeKernel, state: str) -> None:
    process = reader(kernel)
    kernel.write(f"/proc/{PID}/stat", stat(state=state))
    assert process.alive() is True


def test_a_process_that_ends_stays_ended_whoever_gets_its_pid(kernel: FakeKernel) -> None:
    process = reader(kernel)
    kernel.remove(f"/proc/{PID}")
    assert process.alive() is False
    kernel.write(f"/proc/{PID}/stat", stat(start=9500))
    kernel.write(f"/proc/{PID}/status", STATUS)
    kernel.now += REPROBE_S
    assert process.alive() is False
    assert set(shown(process.read()).values()) == {"absent"}


def test_another_start_time_is_another_process(kernel: FakeKernel) -> None:
    process = reader(kernel)
    kernel.write(f"/proc/{PID}/stat", stat(start=9001))
    assert process.alive() is False
    assert set(shown(process.read()).values()) == {"absent"}


def test_memory_never_shows_a_stranger(kernel: FakeKernel) -> None:
    """The pid is given away between two reads: the file that was open belongs to nobody."""
    process = reader(kernel)
    kernel.remove(f"/proc/{PID}")
    kernel.write(f"/proc/{PID}/status", STATUS.replace("40000", "99999"))
    assert process.memory().anon_and_swap is None
    assert process.alive() is False


def test_a_pid_that_nobody_has(kernel: FakeKernel) -> None:
    kernel.remove(f"/proc/{PID}")
    process = reader(kernel)
    assert process.identity() == "absent"
    assert process.alive() is False


def test_a_process_that_proc_hides_is_unknown_and_not_dead(kernel: FakeKernel) -> None:
    """Android and hidepid= leave other users' processes out of /proc."""
    kernel.remove(f"/proc/{PID}")
    kernel.pids.add(PID)
    process = reader(kernel)
    assert process.alive() is None
    assert set(shown(process.read()).values()) == {"absent"}
    kernel.pids.clear()
    assert process.alive() is False


def test_a_process_that_may_not_be_looked_at_is_unknown(kernel: FakeKernel) -> None:
    kernel.faults[f"/proc/{PID}"] = errno.EACCES
    process = reader(kernel)
    assert process.identity() == "denied"
    assert process.alive() is None
    assert shown(process.memory())["runtime_rss_anon_bytes"] == "denied"


def test_an_error_that_passes_is_no_death(kernel: FakeKernel) -> None:
    process = reader(kernel)
    kernel.faults[f"/proc/{PID}"] = errno.EIO
    assert process.alive() is None
    assert set(shown(process.memory()).values()) == {"transient"}
    kernel.faults.clear()
    assert process.alive() is True
    assert process.memory().anon_and_swap == 42000 * 1024


def test_a_kernel_before_4_5_does_not_split_the_memory(kernel: FakeKernel) -> None:
    lines = STATUS.splitlines(keepends=True)
    kernel.write(f"/proc/{PID}/status", "".join(line for line in lines if "Rss" not in line[:4]))
    memory = reader(kernel).memory()
    assert shown(memory) == {
        "runtime_rss_anon_bytes": "absent",
        "runtime_swap_bytes": 2000 * 1024,
        "runtime_rss_file_bytes": "absent",
        "runtime_rss_shmem_bytes": "absent",
    }
    assert memory.anon_and_swap is None


def test_a_zombie_shows_no_memory_rather_than_none_used() -> None:
    assert parse_status(b"Name:\tx\nState:\tZ (zombie)\n").anon_and_swap is None


def test_files_are_opened_once_and_closed(kernel: FakeKernel) -> None:
    process = reader(kernel)
    kernel.opens.clear()
    for _ in range(5):
        process.read()
    assert f"/proc/{PID}/stat" not in kernel.opens
    assert f"/proc/{PID}/status" not in kernel.opens
    process.close()
    assert not kernel.open_files
    assert process.alive() is False


# what it shares, and what it has on the GPU


def test_shared_memory_is_read_once_a_minute(kernel: FakeKernel) -> None:
    """The kernel walks every page for it."""
    process = reader(kernel)
    values = []
    for second in range(int(smaps.EVERY_S) * 2):
        kernel.write(f"/proc/{PID}/smaps_rollup", SMAPS.replace("55000", str(55000 + second)))
        values.append(shown(process.elsewhere())["runtime_pss_bytes"])
        kernel.now += 1
    assert values == [55000 * 1024] * 60 + [55060 * 1024] * 60
    assert f"/proc/{PID}/smaps_rollup" not in kernel.open_files.values()


def test_what_takes_long_to_read_is_read_more_rarely(kernel: FakeKernel) -> None:
    class Slow(FakeKernel):
        def pread(self, fd: int, count: int, offset: int) -> bytes:
            if self.open_files[fd].endswith("smaps_rollup"):
                self.now += 0.3  # some 100 GiB
            return super().pread(fd, count, offset)

    slow = Slow(kernel.root)
    process = reader(slow)
    for _ in range(900):
        process.elsewhere()
        slow.now += 1
    assert slow.opens.count(f"/proc/{PID}/smaps_rollup") == 3, "each 300 s, not 60"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ESRCH, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.ENOENT, "absent"),
        (errno.EIO, "transient"),
    ],
)
def test_a_rollup_that_fails_costs_its_own_values_only(
    kernel: FakeKernel, error: int, reason: str
) -> None:
    """Report 38: psutil#2284 took ESRCH of smaps_rollup for a zombie."""
    kernel.faults[f"/proc/{PID}/smaps_rollup"] = error
    process = reader(kernel)
    found = shown(process.read())
    assert found["runtime_pss_bytes"] == found["runtime_private_bytes"] == reason
    assert found["runtime_rss_anon_bytes"] == 40000 * 1024
    assert process.alive() is True
    assert process.memory().anon_and_swap == 42000 * 1024


def test_a_rollup_that_is_denied_is_asked_once_in_ten_minutes(kernel: FakeKernel) -> None:
    kernel.faults[f"/proc/{PID}/smaps_rollup"] = errno.EACCES
    process = reader(kernel)
    for _ in range(int(REPROBE_S) - 1):
        process.elsewhere()
        kernel.now += 1
    assert kernel.opens.count(f"/proc/{PID}/smaps_rollup") == 1
    kernel.faults.clear()
    kernel.now += smaps.EVERY_S
    assert shown(process.elsewhere())["runtime_pss_bytes"] == 55000 * 1024


def test_shared_memory_never_shows_a_stranger(kernel: FakeKernel) -> None:
    """Another process has the pid by the time that the rollup is opened."""
    process = reader(kernel)
    kernel.remove(f"/proc/{PID}")
    kernel.write(f"/proc/{PID}/smaps_rollup", SMAPS)
    kernel.write(f"/proc/{PID}/stat", stat(start=9500))
    assert set(shown(process.elsewhere()).values()) == {"absent"}
    kernel.opens.clear()
    assert set(shown(process.elsewhere()).values()) == {"absent"}
    assert not kernel.opens, "not even opened"


def test_memory_on_the_gpu_is_told_by_those_who_know(kernel: FakeKernel) -> None:
    known: dict[int, int] = {PID + 1: 5}
    process = ProcessReader(PID, kernel.root, kernel, gpu_bytes=known.get, ticks_per_second=100)
    assert shown(process.elsewhere())["runtime_gpu_bytes"] == "absent"
    known[PID] = 512 * MIB
    assert shown(process.elsewhere())["runtime_gpu_bytes"] == 512 * MIB
    assert process.memory().anon_and_swap == 42000 * 1024, "not a part of it"
    kernel.remove(f"/proc/{PID}")
    assert shown(process.elsewhere())["runtime_gpu_bytes"] == "absent"


# parsing


def test_a_recorded_rollup() -> None:
    content = (DEVICES / "x86_oddities/proc/26231/smaps_rollup").read_bytes()
    assert shown(smaps.parse(content)) == {
        "runtime_pss_bytes": 29944 * 1024,
        "runtime_private_bytes": (14396 + 1940) * 1024,
    }


def test_a_rollup_cut_anywhere_shows_its_values_or_none() -> None:
    values = shown(smaps.parse(SMAPS.encode()))
    for end in range(len(SMAPS)):
        for key, value in shown(smaps.parse(SMAPS.encode()[:end])).items():
            assert value in (values[key], "absent")


@pytest.mark.parametrize(
    "comm", ["a b", ")", "(", "a) R (b", ") Z 1 2 3", "x\ny", "", "()", "weird) Z 0 (name"]
)
def test_a_name_may_hold_anything(comm: str) -> None:
    assert parse_stat(stat(comm=comm).encode()) == Stat("R", 200, 9000)


def test_a_stat_cut_anywhere_is_none() -> None:
    whole = stat(comm="a) R (b").encode()
    assert all(parse_stat(whole[:end]) is None for end in range(len(whole)))


def test_a_status_cut_anywhere_shows_its_values_or_none() -> None:
    whole = STATUS.encode()
    values = shown(parse_status(whole))
    for end in range(len(whole)):
        for key, value in shown(parse_status(whole[:end])).items():
            assert value in (values[key], "absent")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_stat_or_none(content: bytes) -> None:
    found = parse_stat(content)
    assert found is None or (found.cpu_ticks >= 0 and found.started >= 0)
    for reading in (*parse_status(content), *smaps.parse(content)):
        assert reading.value is None or 0 <= reading.value < 2**63


@given(st.text(max_size=15), st.sampled_from("RSDTZ"), st.integers(0, 2**40))
def test_any_name_gives_the_same_numbers(comm: str, state: str, start: int) -> None:
    found = parse_stat(stat(comm=comm, state=state, start=start).encode("utf-8", "surrogatepass"))
    assert found == Stat(state, 200, start)


# real processes

CHILD = """
import sys
open("/proc/self/comm", "w").write("a) Z 1 (b c")
held = bytearray(b"x" * (32 << 20))
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(3_000_000):
        pass
    print("done", flush=True)
"""


@pytest.fixture
def child() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_real_process(child: "subprocess.Popen[str]") -> None:
    process = ProcessReader(child.pid)
    assert isinstance(process.identity(), int)
    assert process.alive() is True
    memory = process.memory()
    assert memory.anon_and_swap is not None
    assert 32 * MIB < memory.anon_and_swap < 200 * MIB
    assert memory.rss_file.value
    pss, private, gpu = process.elsewhere()
    assert pss.value is not None and private.value is not None
    assert 32 * MIB < private.value < pss.value < 200 * MIB
    assert gpu.reason == "absent"
    before = process.cpu().value
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("work\n")
    child.stdin.flush()
    child.stdout.readline()
    after = process.cpu().value
    assert before is not None and after is not None and after > before
    process.close()


def test_a_real_process_that_is_killed_is_dead_before_its_parent_takes_note(
    child: "subprocess.Popen[str]",
) -> None:
    process = ProcessReader(child.pid)
    assert process.alive() is True
    child.kill()
    until(lambda: process.alive() is False, what="the zombie is seen as dead")
    assert process.memory().anon_and_swap is None
    child.wait()
    assert process.alive() is False
    process.close()


def test_this_process_by_two_readers() -> None:
    one, other = ProcessReader(os.getpid()), ProcessReader(os.getpid())
    assert one.identity() == other.identity()
    assert one.read()[0].value
    one.close()
    other.close()


def test_the_rows_end_in_their_unit() -> None:
    assert all(row.name.endswith("_" + row.unit) for row in MEASUREMENTS)
