"""The cgroups of a process: memory limit and use, OOM kills, CPU quota. Versions 1 and 2.

A process is held by the tightest limit of its cgroup and of all that it is within. The limit, and
what goes with it, are of the cgroup that has it; the kills are counted where the process is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.runtimes.cgroup_cpu import THROTTLED, CpuQuota
from decodewatch.agent.runtimes.cgroup_tree import FollowedCounter, Levels, find_levels, tightest
from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.files import RELIST_S, REPROBE_S, PolledFile, read_once
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
SWAP = Measurement(
    "cgroup_swap_current_bytes", "bytes", "gauge", "what of that cgroup was swapped out"
)
LIMIT_HITS = Measurement(
    "cgroup_memory_limit_hits",
    "count",
    "counter",
    "times that the cgroup with this limit reached it, or was slowed down at its `memory.high`",
)
MEASUREMENTS: Final = (LIMIT, CURRENT, OOM_KILLS, SWAP, LIMIT_HITS, THROTTLED)
"""The rows of the table of measurements that are a cgroup's."""

_OF_MEMORY: Final = MEASUREMENTS[:-1]
_LIMIT_FILE_BYTES: Final = 64

# Version 1 writes "no limit" as the largest number that a page counter holds, which depends on the
# size of pages. No memory is as large as half of it.
_UNLIMITED_FROM: Final = 1 << 62


class CgroupReadings(NamedTuple):
    """What the cgroups of a process say. Without any limit, `limit` is unknown: unlimited."""

    limit: Reading
    current: Reading
    oom_kills: Reading
    swap: Reading
    limit_hits: Reading
    cpu_throttled: Reading


class _Names(NamedTuple):
    limit: str
    current: str
    kills: str
    swap: str
    hits: str


_NAMES: Final = {
    1: _Names(
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.oom_control",
        "memory.stat",
        "memory.failcnt",
    ),
    2: _Names(
        "memory.max", "memory.current", "memory.events", "memory.swap.current", "memory.events"
    ),
}


def parse_limit(content: bytes) -> int | Reason:
    """The bytes of a limit file of either version, or why there is no number."""
    if content == b"max\n":
        return "unlimited"
    number = only_number(content)
    if number is None or number < 0:
        return "implausible"
    return number if number < _UNLIMITED_FROM else "unlimited"


def parse_oom_kills(content: bytes) -> int | Reason:
    """The kills in memory.oom_control (since 4.13) or memory.events."""
    return _count(content, b"oom_kill ")


def parse_hits(content: bytes, version: int) -> int | Reason:
    """How often a limit was reached: memory.failcnt, or `max` and `high` of memory.events."""
    if version == 1:
        return _number(content)
    most, high = _count(content, b"max "), _count(content, b"high ")
    if isinstance(most, str) or isinstance(high, str):
        return "absent"
    return most + high


def parse_swap(content: bytes, version: int) -> int | Reason:
    """The bytes in memory.swap.current, or in the memory.stat of a kernel that accounts for swap
    in version 1."""
    return _count(content, b"total_swap ") if version == 1 else _number(content)


def _number(content: bytes) -> int | Reason:
    number = only_number(content)
    return "implausible" if number is None or number < 0 else number


def _count(content: bytes, name: bytes) -> int | Reason:
    rest = after(content, name)
    number = None if rest is None else whole_number(rest)
    return "absent" if number is None or number < 0 else number


class _Places(NamedTuple):
    """Limit, use and hits are those of the tightest level, the kills those of the innermost."""

    limit: Path
    current: Path
    kills: Path
    swap: Path
    hits: Path


class _Memory:
    """Follows the memory controller."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._version = 2
        self._places: _Places | None = None
        self._files: dict[Path, PolledFile] = {}
        self._reason: Reason = "absent"
        self._kills = FollowedCounter()
        self._hits = FollowedCounter()

    def follow(self, levels: Levels | Reason) -> bool:
        """Look at the limits of all levels; whether something there may not be read."""
        if isinstance(levels, str):
            self._reason = levels
            return levels == "denied"
        self._version = levels.version
        names = _NAMES[levels.version]
        folders = self._that_count(levels)
        found = tightest(folders, lambda folder: self._limit(folder / names.limit))
        places = _Places(*(found.folder / name for name in names))
        self._use(places._replace(kills=folders[0] / names.kills))
        return found.denied

    def read(self) -> list[Reading]:
        """The first rows of `MEASUREMENTS`."""
        places, version = self._places, self._version
        if places is None:
            return all_unknown(_OF_MEMORY, self._reason)
        content = {path: file.read() for path, file in self._files.items()}
        # Not kept open: an agent with many runtimes would have too many files open.
        for path in {places.swap, places.hits} - {places.kills}:
            self._files[path].close()
        kills = _parsed(content[places.kills], parse_oom_kills)
        hits = _parsed(content[places.hits], lambda raw: parse_hits(raw, version))
        return [
            _reading(LIMIT, _parsed(content[places.limit], parse_limit)),
            _reading(CURRENT, _parsed(content[places.current], _number)),
            _reading(OOM_KILLS, kills if isinstance(kills, str) else self._kills.see(kills)),
            _reading(SWAP, _parsed(content[places.swap], lambda raw: parse_swap(raw, version))),
            _reading(LIMIT_HITS, hits if isinstance(hits, str) else self._hits.see(hits)),
        ]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _use(self, places: _Places) -> None:
        before, self._places = self._places, places
        if before == places:
            return
        if before is None or before.kills != places.kills:
            self._kills.move()
        if before is None or before.hits != places.hits:
            self._hits.move()
        self.close()
        self._files = {path: PolledFile(path, self._kernel) for path in places}

    def _limit(self, file: Path) -> int | Reason:
        content = read_once(file, _LIMIT_FILE_BYTES, self._kernel)
        return content if isinstance(content, str) else parse_limit(content)

    def _that_count(self, levels: Levels) -> list[Path]:
        # Before Linux 5.11 a cgroup of version 1 may be told not to charge its parent.
        if levels.version == 1:
            for index, folder in enumerate(levels.folders[1:], start=1):
                hierarchical = read_once(folder / "memory.use_hierarchy", 64, self._kernel)
                if hierarchical == b"0\n":
                    return levels.folders[:index]
        return levels.folders


class CgroupReader:
    """Reads the cgroups of one process.

    The limits of all levels are looked at once in `RELIST_S`, and the tightest is followed; once in
    `REPROBE_S` where not all of them may be read.
    """

    def __init__(self, pid: int, root: Path = Path("/"), kernel: Kernel = KERNEL) -> None:
        self._pid = pid
        self._root = root
        self._kernel = kernel
        self._due_at = float("-inf")
        self._memory = _Memory(kernel)
        self._cpu = CpuQuota(kernel)

    def read(self, *, ended: bool = False) -> CgroupReadings:
        """The cgroups now. With `ended`, those which the process was last seen in: its pid may be
        another one's by now."""
        now = self._kernel.monotonic()
        if now >= self._due_at and not ended:
            memory, cpu = find_levels(self._pid, (b"memory", b"cpu"), self._root, self._kernel)
            denied = [self._memory.follow(memory), self._cpu.follow(cpu)]
            self._due_at = now + (REPROBE_S if any(denied) else RELIST_S)
        return CgroupReadings._make((*self._memory.read(), self._cpu.read()))

    def close(self) -> None:
        """Close the files."""
        self._memory.close()


def _parsed(content: bytes | Reason, parse: Callable[[bytes], int | Reason]) -> int | Reason:
    return content if isinstance(content, str) else parse(content)


def _reading(row: Measurement, value: int | Reason) -> Reading:
    if isinstance(value, str):
        return unknown(row, value)
    return read_as(row, value, "implausible")
