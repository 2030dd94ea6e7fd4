"""The memory cgroup of a process: its limit, its use, its OOM kills. Versions 1 and 2.

A process is held by the tightest limit of its cgroup and of all that it is within. The limit and
the use reported are of the cgroup that has it; of several with the same limit, of the outermost,
which holds the others too. Cgroups that no mount shows cannot be seen: in a container, those
outside of it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.files import RELIST_S, PolledFile, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import after, only_number, whole_number

LIMIT = Measurement(
    "cgroup_memory_limit_bytes", "bytes", "gauge", "tightest memory limit of the runtime's cgroups"
)
CURRENT = Measurement(
    "cgroup_memory_current_bytes",
    "bytes",
    "gauge",
    "memory in the cgroup that has this limit, page cache included",
)
OOM_KILLS = Measurement(
    "cgroup_oom_kills", "count", "counter", "processes of the runtime's cgroup killed for memory"
)
MEASUREMENTS: Final = (LIMIT, CURRENT, OOM_KILLS)
"""The rows of the table of measurements that are a cgroup's."""

_CGROUP_FILE_LIMIT: Final = 16 * 1024
_MOUNTS_LIMIT: Final = 256 * 1024  # hosts of many containers have hundreds of mounts
_MOST_LEVELS: Final = 32

# Version 1 writes "no limit" as the largest number that a page counter holds, which depends on the
# size of pages. No memory is as large as half of it.
_UNLIMITED_FROM: Final = 1 << 62


class CgroupMemory(NamedTuple):
    """What a cgroup says of its memory. Without any limit, `limit` is unknown: unlimited."""

    limit: Reading
    current: Reading
    oom_kills: Reading


class _Names(NamedTuple):
    limit: str
    current: str
    events: str


_V1: Final = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
_V2: Final = _Names("memory.max", "memory.current", "memory.events")


class Membership(NamedTuple):
    """Where a process is in the tree of memory cgroups of one version."""

    version: int
    path: str


def parse_membership(content: bytes) -> Membership | None:
    """The memory cgroup named in a /proc/<pid>/cgroup, version 1 first; None without one."""
    unified = None
    for line in _whole_lines(content):
        hierarchy, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if not colon or not path.startswith(b"/"):
            continue
        if b"memory" in controllers.split(b","):
            return Membership(1, os.fsdecode(path))
        if hierarchy == b"0" and not controllers:
            unified = Membership(2, os.fsdecode(path))
    return unified


class Mount(NamedTuple):
    """A mount of a tree of cgroups: which cgroup is seen at which folder."""

    root: str
    folder: str


def parse_mounts(content: bytes, version: int) -> list[Mount]:
    """The mounts of the memory cgroups of a version in a /proc/<pid>/mountinfo."""
    mounts = []
    for line in _whole_lines(content):
        head, _, tail = line.partition(b" - ")
        fields, kind = head.split(b" "), tail.split(b" ")
        if len(fields) < 6 or len(kind) < 3:
            continue
        if (version == 2 and kind[0] == b"cgroup2") or (
            version == 1 and kind[0] == b"cgroup" and b"memory" in kind[2].split(b",")
        ):
            mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4])))
    return mounts


def parse_limit(content: bytes) -> int | Reason:
    """The bytes of a limit file of either version, or why there is no number."""
    if content == b"max\n":
        return "unlimited"
    number = only_number(content)
    if number is None or number < 0:
        return "implausible"
    return number if number < _UNLIMITED_FROM else "unlimited"


def parse_oom_kills(content: bytes) -> int | None:
    """The kills in memory.oom_control (since 4.13) or memory.events; None without the line."""
    rest = after(content, b"oom_kill ")
    number = None if rest is None else whole_number(rest)
    return number if number is not None and number >= 0 else None


def _whole_lines(content: bytes) -> Iterator[bytes]:
    # What follows the last newline was cut, or is nothing.
    yield from content.split(b"\n")[:-1]


def _unescape(field: bytes) -> str:
    # mountinfo writes space, tab, newline and backslash in octal.
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)


class _Files(NamedTuple):
    """What is polled. The kills are counted where the process is, not where the limit is."""

    limit: PolledFile
    current: PolledFile
    events: PolledFile


class CgroupReader:
    """Reads the memory cgroup of one process.

    The limits of all levels are looked at once in `RELIST_S`, and the tightest is followed.
    """

    def __init__(self, pid: int, root: Path = Path("/"), kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._proc = root / "proc"
        self._pid = pid
        self._kernel = kernel
        self._due_at = float("-inf")
        self._paths: tuple[Path, Path, Path] | None = None
        self._files: _Files | None = None
        self._reason: Reason = "absent"

    def read(self, *, ended: bool = False) -> CgroupMemory:
        """The cgroup now. With `ended`, that which the process was last seen in: its pid may be
        another one's by now."""
        now = self._kernel.monotonic()
        if now >= self._due_at and not ended:
            self._due_at = now + RELIST_S
            self._resolve()
        if self._files is None:
            return CgroupMemory(
                unknown(LIMIT, self._reason),
                unknown(CURRENT, self._reason),
                unknown(OOM_KILLS, self._reason),
            )
        limit, current, events = (file.read() for file in self._files)
        return CgroupMemory(_limit_reading(limit), _current_reading(current), _kills(events))

    def close(self) -> None:
        """Close the files."""
        for file in self._files or ():
            file.close()

    def _resolve(self) -> None:
        found = self._find()
        if isinstance(found, str):
            self._reason = found
            return
        if found == self._paths:
            return
        self.close()
        self._paths = found
        self._files = _Files(*(PolledFile(path, self._kernel) for path in found))

    def _find(self) -> tuple[Path, Path, Path] | Reason:
        """The files of limit, use and kills."""
        own = self._proc / str(self._pid) / "cgroup"
        content = read_once(own, _CGROUP_FILE_LIMIT, self._kernel)
        if isinstance(content, str):
            return content
        membership = parse_membership(content)
        if membership is None:
            return "absent"
        mounts = read_once(self._proc / "self/mountinfo", _MOUNTS_LIMIT, self._kernel)
        if isinstance(mounts, str):
            return mounts
        levels: list[Path] = []
        for mount in parse_mounts(mounts, membership.version):
            levels = self._levels(membership.path, mount)
            if levels:
                break
        if not levels:
            return "absent"
        names = _V1 if membership.version == 1 else _V2
        if membership.version == 1:
            levels = self._that_count(levels)
        tightest = self._tightest(levels, names.limit)
        return tightest / names.limit, tightest / names.current, levels[0] / names.events

    def _levels(self, path: str, mount: Mount) -> list[Path]:
        """The folders of the cgroup and of those it is within, innermost first."""
        inner = [part for part in path.split("/") if part]
        outer = [part for part in mount.root.split("/") if part]
        if ".." in inner or inner[: len(outer)] != outer:
            return []  # the mount shows another part of the tree
        below = inner[len(outer) :][:_MOST_LEVELS]
        top = self._root / mount.folder.lstrip("/")
        return [top.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]

    def _that_count(self, levels: list[Path]) -> list[Path]:
        # Before Linux 5.11 a cgroup of version 1 may be told not to charge its parent.
        for index, level in enumerate(levels[1:], start=1):
            hierarchical = read_once(level / "memory.use_hierarchy", 64, self._kernel)
            if hierarchical == b"0\n":
                return levels[:index]
        return levels

    def _tightest(self, levels: list[Path], limit_name: str) -> Path:
        """The level with the lowest limit; the innermost that has a limit file without any."""
        tightest: Path | None = None
        lowest: int | None = None
        for level in levels:
            content = read_once(level / limit_name, 64, self._kernel)
            if isinstance(content, str):
                continue
            limit = parse_limit(content)
            if isinstance(limit, str):
                tightest = tightest or level
            elif lowest is None or limit <= lowest:
                tightest, lowest = level, limit
        return tightest or levels[0]


def _limit_reading(content: bytes | Reason) -> Reading:
    if isinstance(content, str):
        return unknown(LIMIT, content)
    limit = parse_limit(content)
    return unknown(LIMIT, limit) if isinstance(limit, str) else read_as(LIMIT, limit, "absent")


def _current_reading(content: bytes | Reason) -> Reading:
    if isinstance(content, str):
        return unknown(CURRENT, content)
    number = only_number(content)
    return read_as(CURRENT, number if number is not None and number >= 0 else None, "implausible")


def _kills(content: bytes | Reason) -> Reading:
    if isinstance(content, str):
        return unknown(OOM_KILLS, content)
    return read_as(OOM_KILLS, parse_oom_kills(content), "absent")
