"""Memory cgroups of both versions: trees as kernels and containers show them, and a real one."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, shown
from support.waiting import until

from decodewatch.agent.runtimes.cgroup import (
    MEASUREMENTS,
    CgroupReader,
    parse_hits,
    parse_limit,
    parse_oom_kills,
    parse_swap,
)
from decodewatch.agent.runtimes.cgroup_cpu import parse_quota, parse_quota_v1, parse_throttled
from decodewatch.agent.runtimes.cgroup_tree import (
    FollowedCounter,
    Membership,
    Mount,
    parse_membership,
    parse_mounts,
)
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.sources.kit.base import REASONS, Value
from decodewatch.agent.sources.kit.files import RELIST_S, REPROBE_S

PID = 4711
MIB = 1 << 20
GIB = 1 << 30
V1 = "/sys/fs/cgroup/memory"
V2 = "/sys/fs/cgroup"
V1_UNLIMITED = 9223372036854771712

V1_MOUNTS = """\
23 0 259:0 / / rw,relatime - ext4 /dev/root rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:3 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def v1(kernel: FakeKernel, path: str, limit: int, use: int = 1, kills: int | None = 0) -> None:
    folder = f"{V1}{path}".rstrip("/")
    kernel.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
    kernel.write(f"{folder}/memory.usage_in_bytes", f"{use}\n")
    kernel.write(f"{folder}/memory.use_hierarchy", "1\n")
    tail = "" if kills is None else f"oom_kill {kills}\n"
    kernel.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n" + tail)


def v2(kernel: FakeKernel, path: str, limit: int | str, use: int = 1, kills: int = 0) -> None:
    kernel.write(f"{V2}{path}/memory.max", f"{limit}\n")
    kernel.write(f"{V2}{path}/memory.current", f"{use}\n")
    events = f"low 0\nhigh 3\nmax 9\noom 2\noom_kill {kills}\noom_group_kill 0\n"
    kernel.write(f"{V2}{path}/memory.events", events)


def in_v1(kernel: FakeKernel, path: str, mounts: str = V1_MOUNTS) -> CgroupReader:
    kernel.write(
        f"/proc/{PID}/cgroup", f"5:cpu,cpuacct:/\n4:memory:{path}\n1:name=systemd:/\n0::/\n"
    )
    kernel.write("/proc/self/mountinfo", mounts)
    return CgroupReader(PID, kernel.root, kernel)


def in_v2(kernel: FakeKernel, path: str, mounts: str = V2_MOUNTS) -> CgroupReader:
    kernel.write(f"/proc/{PID}/cgroup", f"0::{path}\n")
    kernel.write("/proc/self/mountinfo", mounts)
    return CgroupReader(PID, kernel.root, kernel)


def read(reader: CgroupReader) -> tuple[Value | str, Value | str, Value | str]:
    """Limit, use and kills, or the reasons for having none."""
    limit, current, kills, *_ = shown(reader.read()).values()
    return limit, current, kills


# version 1


def test_v1_with_a_limit(kernel: FakeKernel) -> None:
    v1(kernel, "/", V1_UNLIMITED, 900)
    v1(kernel, "/docker/abc", 512 * MIB, 100 * MIB, kills=2)
    v1(kernel, "/docker", V1_UNLIMITED, 500)
    assert read(in_v1(kernel, "/docker/abc")) == (512 * MIB, 100 * MIB, 2)


@pytest.mark.parametrize(
    "limit", [V1_UNLIMITED, 9223372036854759424, 9223372036854710272, 9223372036854775807]
)
def test_v1_writes_no_limit_as_a_huge_one_that_depends_on_the_page_size(
    kernel: FakeKernel, limit: int
) -> None:
    v1(kernel, "/", limit, 900)
    v1(kernel, "/app", limit, 100)
    assert read(in_v1(kernel, "/app")) == ("unlimited", 100, 0)


def test_v1_before_4_13_counts_no_kills(kernel: FakeKernel) -> None:
    v1(kernel, "/app", GIB, 100, kills=None)
    assert read(in_v1(kernel, "/app")) == (GIB, 100, "absent")


def test_v1_a_limit_further_out_that_does_not_bind_is_left_out(kernel: FakeKernel) -> None:
    v1(kernel, "/a", GIB, 700)
    v1(kernel, "/a/b", 2 * GIB, 100)
    kernel.write(f"{V1}/a/memory.use_hierarchy", "0\n")
    assert read(in_v1(kernel, "/a/b")) == (2 * GIB, 100, 0)


def test_v1_holds_the_memory_where_both_versions_are_mounted(kernel: FakeKernel) -> None:
    v1(kernel, "/app", GIB, 100)
    kernel.write("/sys/fs/cgroup/unified/memory.max", "5\n")
    assert read(in_v1(kernel, "/app"))[0] == GIB


# version 2


def test_v2_with_a_limit(kernel: FakeKernel) -> None:
    v2(kernel, "/system.slice", "max", 900)
    v2(kernel, "/system.slice/llama.service", 512 * MIB, 100 * MIB, kills=3)
    assert read(in_v2(kernel, "/system.slice/llama.service")) == (512 * MIB, 100 * MIB, 3)


def test_v2_without_a_limit_shows_the_use_of_its_own_cgroup(kernel: FakeKernel) -> None:
    v2(kernel, "/user.slice", "max", 900)
    v2(kernel, "/user.slice/app", "max", 100)
    assert read(in_v2(kernel, "/user.slice/app")) == ("unlimited", 100, 0)


def test_the_tightest_limit_counts_with_the_use_of_the_cgroup_that_has_it(
    kernel: FakeKernel,
) -> None:
    v2(kernel, "/a", GIB, 700 * MIB, kills=9)
    v2(kernel, "/a/b", 2 * GIB, 100 * MIB, kills=1)
    v2(kernel, "/a/b/c", "max", 50 * MIB, kills=1)
    assert read(in_v2(kernel, "/a/b/c")) == (GIB, 700 * MIB, 1)


def test_of_equal_limits_the_outermost_counts(kernel: FakeKernel) -> None:
    v2(kernel, "/a", GIB, 700 * MIB)
    v2(kernel, "/a/b", GIB, 100 * MIB)
    assert read(in_v2(kernel, "/a/b")) == (GIB, 700 * MIB, 0)


def test_a_cgroup_without_the_memory_controller_is_held_by_those_around_it(
    kernel: FakeKernel,
) -> None:
    v2(kernel, "/a", GIB, 700)
    kernel.write(f"{V2}/a/b/cgroup.procs", "")
    assert read(in_v2(kernel, "/a/b")) == (GIB, 700, "absent")


def test_the_root_cgroup_has_no_memory_files(kernel: FakeKernel) -> None:
    assert read(in_v2(kernel, "/")) == ("absent", "absent", "absent")


# what goes with the limit


def more(reader: CgroupReader) -> dict[str, Value | str]:
    """Swap, hits of the limit and throttled time, or the reasons for having none."""
    found = shown(reader.read())
    return {
        name: found[key]
        for name, key in (
            ("swap", "cgroup_swap_current_bytes"),
            ("hits", "cgroup_memory_limit_hits"),
            ("throttled", "cgroup_cpu_throttled_microseconds"),
        )
    }


def events(kernel: FakeKernel, path: str, high: int = 0, most: int = 0, kills: int = 0) -> None:
    lines = f"low 0\nhigh {high}\nmax {most}\noom 2\noom_kill {kills}\n"
    kernel.write(f"{V2}{path}/memory.events", lines)


def cpu_v2(kernel: FakeKernel, path: str, quota: str, throttled: int | None) -> None:
    kernel.write(f"{V2}{path}/cpu.max", quota + "\n")
    tail = "" if throttled is None else f"nr_throttled 3\nthrottled_usec {throttled}\n"
    kernel.write(f"{V2}{path}/cpu.stat", f"usage_usec 99\nnr_periods 4\n{tail}")


def test_v2_swap_hits_and_throttling(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    events(kernel, "/app", high=5, most=7)
    kernel.write(f"{V2}/app/memory.swap.current", "4096\n")
    cpu_v2(kernel, "/app", "150000 100000", 120034)
    assert more(in_v2(kernel, "/app")) == {"swap": 4096, "hits": 12, "throttled": 120034}


def test_v1_swap_hits_and_throttling(kernel: FakeKernel) -> None:
    v1(kernel, "/app", GIB, 100)
    kernel.write(f"{V1}/app/memory.stat", "swap 1\ntotal_rss 5\ntotal_swap 8192\n")
    kernel.write(f"{V1}/app/memory.failcnt", "17\n")
    reader = in_v1(kernel, "/app", V1_MOUNTS.replace("rw,cpu\n", "rw,cpu,cpuacct\n"))
    folder = "/sys/fs/cgroup/cpu"
    kernel.write(f"{folder}/cpu.cfs_quota_us", "50000\n")
    kernel.write(f"{folder}/cpu.cfs_period_us", "100000\n")
    kernel.write(f"{folder}/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 1234567\n")
    assert more(reader) == {"swap": 8192, "hits": 17, "throttled": 1234}


def test_a_kernel_that_accounts_for_no_swap_and_no_cpu(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    kernel.write(f"{V2}/app/cpu.stat", "usage_usec 99\n")
    absent = {"swap": "absent", "throttled": "absent"}
    assert more(in_v2(kernel, "/app")) == {**absent, "hits": 12}


def test_hits_are_those_of_the_cgroup_that_has_the_limit(kernel: FakeKernel) -> None:
    """The kernel counts them there and further out, and the kills where the process is."""
    v2(kernel, "/a", GIB, 700)
    v2(kernel, "/a/b", "max", 100)
    events(kernel, "/a", most=900, kills=4)
    events(kernel, "/a/b", most=0, kills=1)
    found = shown(in_v2(kernel, "/a/b").read())
    assert found["cgroup_memory_limit_hits"] == 900
    assert found["cgroup_oom_kills"] == 1


def test_a_limit_that_is_set_elsewhere_brings_no_hits_of_the_past(kernel: FakeKernel) -> None:
    v2(kernel, "/a", "max", 700)
    v2(kernel, "/a/b", GIB, 100)
    events(kernel, "/a", most=900)
    events(kernel, "/a/b", most=5)
    reader = in_v2(kernel, "/a/b")
    hits = [more(reader)["hits"]]
    v2(kernel, "/a", MIB, 700)
    events(kernel, "/a", most=900)
    kernel.now += RELIST_S
    hits.append(more(reader)["hits"])
    events(kernel, "/a", most=903)
    hits.append(more(reader)["hits"])
    assert hits == [5, 5, 8]


def test_a_process_that_is_moved_brings_no_kills_of_others(kernel: FakeKernel) -> None:
    v2(kernel, "/a", GIB, 100, kills=1)
    v2(kernel, "/b", GIB, 50, kills=7)
    reader = in_v2(kernel, "/a")
    kills = [read(reader)[2]]
    kernel.write(f"/proc/{PID}/cgroup", "0::/b\n")
    kernel.now += RELIST_S
    kills.append(read(reader)[2])
    v2(kernel, "/b", GIB, 50, kills=8)
    kills.append(read(reader)[2])
    assert kills == [1, 1, 2]


def test_the_throttled_time_is_that_of_the_tightest_quota(kernel: FakeKernel) -> None:
    v2(kernel, "/a/b", GIB, 100)
    cpu_v2(kernel, "/a", "200000 100000", 700)
    cpu_v2(kernel, "/a/b", "300000 100000", 1)
    assert more(in_v2(kernel, "/a/b"))["throttled"] == 700


def test_a_process_without_a_quota_was_never_throttled(kernel: FakeKernel) -> None:
    v2(kernel, "/a/b", GIB, 100)
    cpu_v2(kernel, "/a", "max 100000", 9)
    cpu_v2(kernel, "/a/b", "max 100000", 0)
    assert more(in_v2(kernel, "/a/b"))["throttled"] == 0


def test_a_quota_that_comes_later_counts_from_then(kernel: FakeKernel) -> None:
    v2(kernel, "/a/b", GIB, 100)
    cpu_v2(kernel, "/a", "max 100000", 5000)
    cpu_v2(kernel, "/a/b", "max 100000", 0)
    reader = in_v2(kernel, "/a/b")
    times = [more(reader)["throttled"]]
    cpu_v2(kernel, "/a", "50000 100000", 5000)
    kernel.now += RELIST_S
    times.append(more(reader)["throttled"])
    cpu_v2(kernel, "/a", "50000 100000", 5600)
    times.append(more(reader)["throttled"])
    assert times == [0, 0, 600]


def test_the_cpu_may_be_seen_where_the_memory_is_not(kernel: FakeKernel) -> None:
    reader = in_v2(kernel, "/a")
    cpu_v2(kernel, "/a", "50000 100000", 5000)
    found = shown(reader.read())
    assert found["cgroup_memory_limit_bytes"] == "absent"
    assert found["cgroup_cpu_throttled_microseconds"] == 5000


@pytest.mark.parametrize("denied", [V2, "/proc/self/mountinfo", f"/proc/{PID}/cgroup"])
def test_what_is_denied_is_asked_once_in_ten_minutes(kernel: FakeKernel, denied: str) -> None:
    """Report 39: kiosk-satellite#138, Android writes every refusal to its log."""
    v2(kernel, "/a", GIB, 100)
    v2(kernel, "/a/b", GIB, 100)
    cpu_v2(kernel, "/a/b", "50000 100000", 1)
    kernel.faults[denied] = errno.EACCES
    reader = in_v2(kernel, "/a/b")
    for _ in range(int(REPROBE_S) - 1):
        assert set(shown(reader.read()).values()) <= {"denied"}
        kernel.now += 1
    asked = [path for path in kernel.opens if path.startswith(denied)]
    # A file that shows a limit is asked for twice: among the limits of all levels, and as the one.
    assert all(asked.count(path) <= 2 for path in asked)
    kernel.faults.clear()
    kernel.now += 1
    assert shown(reader.read())["cgroup_memory_limit_bytes"] == GIB


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([3, 5, 5], [3, 5, 5]),
        ([3, 1, 4], [3, 3, 6]),
        ([3, None, 900, 903], [3, None, 3, 6]),
        ([None, 7], [None, 7]),
    ],
)
def test_a_counter_that_is_followed(values: list[int | None], told: list[int | None]) -> None:
    """None stands for a move; a cgroup that was made anew counts from 0."""
    counter = FollowedCounter()
    found: list[int | None] = []
    for value in values:
        if value is None:
            counter.move()
        found.append(None if value is None else counter.see(value))
    assert found == told


@given(st.lists(st.none() | st.integers(0, 2**40), max_size=20))
def test_a_followed_counter_never_goes_back(values: list[int | None]) -> None:
    counter, last = FollowedCounter(), 0
    for value in values:
        if value is None:
            counter.move()
        else:
            now = counter.see(value)
            assert now >= last
            last = now


# containers


def test_a_container_sees_its_cgroup_at_the_root_of_the_mount(kernel: FakeKernel) -> None:
    """With a namespace of its own, path and mount both begin at the container."""
    v2(kernel, "", GIB, 100, kills=1)
    assert read(in_v2(kernel, "/")) == (GIB, 100, 1)


def test_a_container_without_a_namespace_sees_the_path_of_the_host(kernel: FakeKernel) -> None:
    mounts = f"40 30 0:32 /docker/abc {V1} ro - cgroup cgroup rw,memory\n"
    v1(kernel, "/", GIB, 100)
    v1(kernel, "/inner", 2 * GIB, 50)
    assert read(in_v1(kernel, "/docker/abc/inner", mounts)) == (GIB, 100, 0)


@pytest.mark.parametrize("path", ["/docker/abcd", "/docker", "/../other", "/docker/abc/../x"])
def test_a_cgroup_that_no_mount_shows_is_absent(kernel: FakeKernel, path: str) -> None:
    mounts = f"40 30 0:32 /docker/abc {V1} ro - cgroup cgroup rw,memory\n"
    v1(kernel, "/", GIB, 100)
    assert read(in_v1(kernel, path, mounts)) == ("absent", "absent", "absent")


def test_of_several_mounts_the_one_that_shows_the_cgroup_is_used(kernel: FakeKernel) -> None:
    mounts = f"40 30 0:32 /other /mnt/other ro - cgroup2 cgroup rw\n{V2_MOUNTS}"
    v2(kernel, "/app", GIB, 100)
    assert read(in_v2(kernel, "/app", mounts))[0] == GIB


def test_a_mount_point_with_spaces(kernel: FakeKernel) -> None:
    mounts = "40 30 0:32 / /mnt/my\\040groups ro - cgroup2 cgroup rw\n"
    kernel.write("/mnt/my groups/app/memory.max", "5000\n")
    assert read(in_v2(kernel, "/app", mounts))[0] == 5000


# changes


def test_a_limit_that_changes_is_followed_at_once(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    reader = in_v2(kernel, "/app")
    assert read(reader)[0] == GIB
    v2(kernel, "/app", "max", 100)
    assert read(reader)[0] == "unlimited"
    v2(kernel, "/app", 2 * GIB, 100)
    assert read(reader)[0] == 2 * GIB


def test_a_tighter_limit_elsewhere_is_found_within_a_minute(kernel: FakeKernel) -> None:
    v2(kernel, "/a", "max", 700)
    v2(kernel, "/a/b", GIB, 100)
    reader = in_v2(kernel, "/a/b")
    assert read(reader) == (GIB, 100, 0)
    v2(kernel, "/a", MIB, 700)
    kernel.now += RELIST_S
    assert read(reader) == (MIB, 700, 0)
    assert len(kernel.open_files) == 3, "swap, hits and CPU are not kept open"


def test_a_process_that_is_moved_is_followed_within_a_minute(kernel: FakeKernel) -> None:
    v2(kernel, "/a", GIB, 100)
    v2(kernel, "/b", MIB, 50)
    reader = in_v2(kernel, "/a")
    read(reader)
    kernel.write(f"/proc/{PID}/cgroup", "0::/b\n")
    kernel.now += RELIST_S
    assert read(reader) == (MIB, 50, 0)


def test_the_kills_can_be_read_after_the_process_ended(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    reader = in_v2(kernel, "/app")
    read(reader)
    kernel.remove(f"/proc/{PID}")
    v2(kernel, "/app", GIB, 0, kills=1)
    kernel.now += RELIST_S
    assert read(reader) == (GIB, 0, 1)


def test_after_the_end_the_pid_is_not_followed(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    v2(kernel, "/stranger", MIB, 50)
    reader = in_v2(kernel, "/app")
    read(reader)
    kernel.write(f"/proc/{PID}/cgroup", "0::/stranger\n")
    kernel.now += RELIST_S
    assert shown(reader.read(ended=True))["cgroup_memory_limit_bytes"] == GIB


def test_a_cgroup_that_is_removed_is_absent(kernel: FakeKernel) -> None:
    v2(kernel, "/app", GIB, 100)
    reader = in_v2(kernel, "/app")
    read(reader)
    kernel.remove(f"{V2}/app")
    assert read(reader) == ("absent", "absent", "absent")


@pytest.mark.parametrize(
    ("path", "error", "reason"),
    [
        (f"/proc/{PID}/cgroup", errno.EACCES, "denied"),
        (f"/proc/{PID}/cgroup", errno.ESRCH, "absent"),
        ("/proc/self/mountinfo", errno.EACCES, "denied"),
        (f"{V2}/app", errno.EACCES, "denied"),
        (f"{V2}/app", errno.EIO, "transient"),
    ],
)
def test_what_cannot_be_read_says_why(
    kernel: FakeKernel, path: str, error: int, reason: str
) -> None:
    v2(kernel, "/app", GIB, 100)
    kernel.faults[path] = error
    assert read(in_v2(kernel, "/app")) == (reason, reason, reason)


# parsing


def test_membership() -> None:
    both = b"9:name=systemd:/x\n4:cpuset,memory:/a:b\n0::/c\n"
    assert parse_membership(both) == Membership(1, "/a:b")
    assert parse_membership(b"0::/c\n") == Membership(2, "/c")
    assert parse_membership(b"9:name=systemd:/x\n3:memoryx:/y\n") is None
    assert parse_membership(b"0::/cut") is None


def test_mounts() -> None:
    assert parse_mounts(V1_MOUNTS.encode(), 1) == [Mount("/", V1)]
    assert parse_mounts(V1_MOUNTS.encode(), 2) == [Mount("/", "/sys/fs/cgroup/unified")]
    assert parse_mounts(V2_MOUNTS.encode()[:-1], 2) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"max\n", "unlimited"),
        (b"max", "implausible"),
        (b"0\n", 0),
        (b"4096\n", 4096),
        (b"-1\n", "implausible"),
        (b"409", "implausible"),
        (b"", "implausible"),
    ],
)
def test_limits(content: bytes, expected: int | str) -> None:
    assert parse_limit(content) == expected


@given(st.binary(max_size=200))
def test_any_bytes_parse(content: bytes) -> None:
    parse_membership(content)
    parse_mounts(content, 1)
    parse_mounts(content, 2)
    limit = parse_limit(content)
    assert isinstance(limit, str) or 0 <= limit < 2**62
    counts = [parse_oom_kills(content)]
    for version in (1, 2):
        counts += [parse_hits(content, version), parse_swap(content, version)]
        throttled = parse_throttled(content, version)
        assert throttled is None or throttled >= 0
    assert all(one in REASONS if isinstance(one, str) else one >= 0 for one in counts)
    for cpus in (parse_quota(content), parse_quota_v1(content, content)):
        assert cpus in REASONS if isinstance(cpus, str) else cpus > 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"max 100000\n", "unlimited"),
        (b"150000 100000\n", 1.5),
        (b"150000 100000", "implausible"),
        (b"150000\n", "implausible"),
        (b"0 100000\n", "implausible"),
        (b"5 0\n", "implausible"),
        (b"max\n", "implausible"),
    ],
)
def test_quotas(content: bytes, expected: float | str) -> None:
    assert parse_quota(content) == expected


def test_quotas_of_version_1() -> None:
    assert parse_quota_v1(b"-1\n", b"100000\n") == "unlimited"
    assert parse_quota_v1(b"50000\n", b"100000\n") == 0.5
    assert parse_quota_v1(b"5000", b"100000\n") == "implausible"


EVENTS = b"low 0\nhigh 3\nmax 19\noom 2\noom_kill 14\noom_group_kill 0\n"
CPU_STAT = b"nr_periods 12\nnr_throttled 34\nthrottled_usec 5678\nthrottled_time 91011121\n"


def test_a_file_cut_anywhere_shows_its_values_or_none() -> None:
    for end in range(len(EVENTS)):
        assert parse_oom_kills(EVENTS[:end]) in (14, "absent")
        assert parse_hits(EVENTS[:end], 2) in (22, "absent")
    for end in range(len(CPU_STAT)):
        assert parse_throttled(CPU_STAT[:end], 2) in (5678, None)
        assert parse_throttled(CPU_STAT[:end], 1) in (91011, None)


def test_the_rows_end_in_their_unit() -> None:
    assert all(row.name.endswith("_" + row.unit) or row.unit == "count" for row in MEASUREMENTS)


# a real one

HOG = """
import sys
open(sys.argv[1], "w").write("0")
print("in", flush=True)
sys.stdin.readline()
held = [bytearray(b"x" * (1 << 20)) for _ in range(256)]
"""


@pytest.fixture
def real_cgroup() -> Iterator[tuple[Path, str]]:
    """A memory cgroup of this machine with a limit of 64 MiB, and its inner one."""
    for top, limit in ((Path(V1), "memory.limit_in_bytes"), (Path(V2), "memory.max")):
        outer = top / f"decodewatch-test-{os.getpid()}"
        inner = outer / "inner"
        try:
            outer.mkdir()
        except OSError:
            continue
        try:
            if limit == "memory.max":
                (outer / "cgroup.subtree_control").write_text("+memory")
            inner.mkdir()
            (outer / limit).write_text(str(64 * MIB))
            yield inner, limit
            return
        except OSError:
            continue
        finally:
            for folder in (inner, outer):
                if folder.exists():
                    until(lambda folder=folder: _gone(folder), what=f"{folder} is empty")  # type: ignore[misc]
    pytest.skip("no memory cgroup of this machine may be changed by this user")


def _gone(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def test_a_real_process_is_killed_in_a_real_cgroup(real_cgroup: tuple[Path, str]) -> None:
    inner, _ = real_cgroup
    command = [sys.executable, "-c", HOG, str(inner / "cgroup.procs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout is not None and hog.stdin is not None
        assert hog.stdout.readline() == "in\n"
        process = ProcessReader(hog.pid)
        found = process.cgroup()
        assert found.limit.value == 64 * MIB, "the outer cgroup's"
        assert found.current.value is not None
        assert found.oom_kills.value == 0
        hog.stdin.write("\n")
        hog.stdin.close()
        until(lambda: process.alive() is False, what="the kernel kills it")
        after = process.cgroup()
        assert after.oom_kills.value == 1
        assert after.limit_hits.value, "it reached the limit before that"
        hog.wait()
        assert hog.returncode == -9
        assert process.cgroup().oom_kills.value == 1
        process.close()


SPIN = """
import sys, time
open(sys.argv[1], "w").write("0")
print("in", flush=True)
sys.stdin.readline()
until = time.monotonic() + 0.5
while time.monotonic() < until:
    pass
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def real_quota() -> Iterator[Path]:
    """A cgroup of this machine that may use a tenth of a CPU."""
    for top, quota in (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"), (V2, "cpu.max")):
        folder = Path(top, f"decodewatch-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if quota == "cpu.cfs_quota_us":
                (folder / "cpu.cfs_period_us").write_text("50000")
                (folder / quota).write_text("5000")
            else:
                (folder / quota).write_text("5000 50000")
            yield folder
            return
        except OSError:
            continue
        finally:
            until(lambda folder=folder: _gone(folder), what=f"{folder} is empty")  # type: ignore[misc]
    pytest.skip("no CPU quota of this machine may be set by this user")


def test_a_real_process_is_held_back_by_a_real_quota(real_quota: Path) -> None:
    command = [sys.executable, "-c", SPIN, str(real_quota / "cgroup.procs")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as spinning:
        assert spinning.stdout is not None and spinning.stdin is not None
        assert spinning.stdout.readline() == "in\n"
        process = ProcessReader(spinning.pid)
        before = process.cgroup().cpu_throttled.value
        assert before is not None
        spinning.stdin.write("\n")
        spinning.stdin.flush()
        assert spinning.stdout.readline() == "done\n"
        after = process.cgroup().cpu_throttled.value
        assert after is not None and after - before > 100_000
        process.close()
        spinning.stdin.close()
