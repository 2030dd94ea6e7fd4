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
    CgroupReader,
    Membership,
    Mount,
    parse_limit,
    parse_membership,
    parse_mounts,
    parse_oom_kills,
)
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S

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
    limit, current, kills = shown(reader.read()).values()
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
    assert len(kernel.open_files) == 3


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
    limit, kills = parse_limit(content), parse_oom_kills(content)
    assert isinstance(limit, str) or 0 <= limit < 2**62
    assert kills is None or kills >= 0


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
        assert process.cgroup().oom_kills.value == 1
        hog.wait()
        assert hog.returncode == -9
        assert process.cgroup().oom_kills.value == 1
        process.close()
