"""Measures what the CPU's cores can read and copy: libc's own loops, in threads.

Nothing is compiled: `memchr`, `memcmp` and `memcpy` of every libc are written with the widest loads
of the processor, and ctypes lets other threads run while one is inside them. Which of the two
readers is faster differs: glibc's `memcmp` keeps two streams going, musl's looks at one byte at a
time. Both are tried, with one thread, two, four and so on, for a short slice each, round after
round; of each the best slice counts, since what disturbs a slice only makes it slower.

The buffer is much larger than the caches, or they would be measured. It is written first: pages
that were never written are all one page of zeros, which a cache holds.

A copy counts as what it reads and what it writes. Where a libc copies in a way that fetches the
destination first, the memory carries half as much again as is counted.

More threads than cores are never used: each would read its own small part again and again while it
has its core, out of the cache.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from decodewatch.agent.errors import AgentError
from decodewatch.agent.runtimes.cgroup_tree import Levels, find_levels
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.agent.sources.kit.kernel import KERNEL
from decodewatch.agent.sources.kit.text import kibibytes, only_number

MEBIBYTE: Final = 1 << 20
_USUAL_BYTES: Final = 256 * MEBIBYTE
_LEAST_BYTES: Final = 32 * MEBIBYTE
_TIMES_THE_CACHE: Final = 4
_MOST_CPUS: Final = 1024
# Limit and use in the two versions of cgroups.
_CGROUP_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
_SLICE_S: Final = 0.06
_NEAR: Final = 0.8
"""After the first round, cases below this share of the best of their kind are not tried again."""
# One call is long enough for its start not to matter. It is not shorter either: libc goes around
# the caches only for copies that are larger than they are.
_CALL_BYTES: Final = 256 * MEBIBYTE

READERS: Final = ("memchr", "memcmp")
COPIER: Final = "memcpy"
Buffer = ctypes.Array[ctypes.c_char]
Routine = Callable[[int, int], int]
"""Called with an address and a length; the bytes that it moved over the bus."""


class BandwidthError(AgentError):
    """The bandwidth cannot be measured here and now."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The best rate of one kind, with what and how many threads it was reached."""

    bytes_per_second: float
    routine: str
    threads: int
    running: float
    """The share of the time in which its threads ran, not others in their place; of what is read
    the lower one of this case and of all cores, since the best may be one that had a core left."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run found."""

    read: Rate
    copy: Rate
    buffer_bytes: int
    seconds: float


def measure(seconds: float, threads: int | None = None, root: Path = Path("/")) -> Measured:
    """Measure for about so long, with up to so many threads, one a core at most (None: as many).

    Raises BandwidthError where there is too little memory for it.
    """
    cores = min(threads or _cores(), _cores())
    size = buffer_bytes(root)
    began = time.perf_counter()
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise BandwidthError(f"bandwidth: no buffer of {size // MEBIBYTE} MiB: {error}") from None
    _use_huge_pages(memory)
    # Not closed here: the threads hold it too, and one that an interrupt has left reading still
    # needs it. Its pages are given back with the last that holds it.
    buffer = (ctypes.c_char * size).from_buffer(memory)
    del memory
    found = _rounds(buffer, cores, began + seconds)
    read = _best_reader([one for one in found if one.routine != COPIER])
    copy = max((one for one in found if one.routine == COPIER), key=_rate)
    return Measured(read, copy, size, time.perf_counter() - began)


def buffer_bytes(root: Path) -> int:
    """How large the buffer is: beyond the caches, and at most a quarter of what is available.

    Raises BandwidthError where that is too little.
    """
    cache = cache_bytes(root)
    wanted = max(_USUAL_BYTES, _TIMES_THE_CACHE * cache)
    least = max(_LEAST_BYTES, _TIMES_THE_CACHE * cache // 2)
    available = _available_bytes(root)
    size = min(wanted, available // 4) if available is not None else least
    if size < least:
        raise BandwidthError(
            f"bandwidth: {(available or 0) // MEBIBYTE} MiB of memory are available, and a quarter "
            f"of that is used at most; needed are {4 * least // MEBIBYTE} MiB, for a buffer of "
            f"{least // MEBIBYTE} MiB beyond the caches of {cache // MEBIBYTE} MiB"
        )
    return size // MEBIBYTE * MEBIBYTE


def cache_bytes(root: Path) -> int:
    """All caches of the last level that the kernel knows of; 0 where it tells of none."""
    found: dict[tuple[int, bytes], int] = {}
    for cpu in range(_MOST_CPUS):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        if not folder.is_dir():
            break
        for index in range(8):
            level = read_once(folder / f"index{index}/level", 64)
            size = read_once(folder / f"index{index}/size", 64)
            shared = read_once(folder / f"index{index}/shared_cpu_list", 1024)
            if isinstance(level, str) or isinstance(size, str) or isinstance(shared, str):
                continue
            number, kib = only_number(level), only_number(size.replace(b"K\n", b"\n"))
            if number is not None and kib is not None:
                found[number, shared] = kib * 1024
    highest = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == highest)


def _available_bytes(root: Path) -> int | None:
    """Memory that can be had: of the device, and of this process's cgroups where these limit it."""
    meminfo = read_once(root / "proc/meminfo", 4096)
    available = None if isinstance(meminfo, str) else kibibytes(meminfo, b"MemAvailable")
    (levels,) = find_levels(os.getpid(), (b"memory",), root, KERNEL)
    if isinstance(levels, Levels):
        for folder in levels.folders:
            left = _left_bytes(folder, _CGROUP_FILES[levels.version])
            if left is not None:
                available = left if available is None else min(available, left)
    return available


def _left_bytes(folder: Path, files: tuple[str, str]) -> int | None:
    """What a cgroup may still take; None where it has no limit. Its page cache counts as taken."""
    limit, used = (read_once(folder / file, 64) for file in files)
    if isinstance(limit, str) or isinstance(used, str):
        return None
    most, taken = only_number(limit), only_number(used)
    return None if most is None or taken is None else max(most - taken, 0)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_counts(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most: a few cores often fill the bus better than all."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def _use_huge_pages(memory: mmap.mmap) -> None:
    """Fewer misses of the TLB; a kernel without them measures all the same."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError):
        pass


def _rounds(buffer: Buffer, cores: int, until: float) -> list[Rate]:
    """The best rate of each case; the first round is whole, however late it is."""
    routines = _routines()
    _slice(routines["memset"], buffer, cores, 0.0)  # each thread once over all of its part
    best = {
        (name, count): (0.0, 0.0) for name in (*READERS, COPIER) for count in thread_counts(cores)
    }
    cases = list(best)
    first = True
    while first or (cases and time.perf_counter() < until):
        for case in cases:
            name, count = case
            rate = _slice(routines[name], buffer, count, _SLICE_S)
            best[case] = max(best[case], rate)
            if not first and time.perf_counter() >= until:
                break
        first = False
        cases = _near(best)
    return [Rate(rate, name, count, ran) for (name, count), (rate, ran) in best.items()]


def _near(best: "dict[tuple[str, int], tuple[float, float]]") -> "list[tuple[str, int]]":
    """The cases that may yet turn out to be the best of their kind."""
    copied = max(rate for (name, _), (rate, _) in best.items() if name == COPIER)
    read = max(rate for (name, _), (rate, _) in best.items() if name != COPIER)
    return [
        (name, count)
        for (name, count), (rate, _) in best.items()
        if rate >= _NEAR * (copied if name == COPIER else read)
    ]


def _slice(routine: Routine, buffer: Buffer, threads: int, seconds: float) -> tuple[float, float]:
    """Bytes a second that so many threads move together, each over its own part of the buffer, and
    the share of the time in which they ran."""
    part = len(buffer) // threads // mmap.PAGESIZE * mmap.PAGESIZE
    start = threading.Barrier(threads)
    rates: list[float] = []
    ran: list[float] = []

    def work(place: int) -> None:
        moved = 0
        at = ctypes.addressof(buffer) + place * part
        try:
            start.wait()
        except threading.BrokenBarrierError:
            return
        began, used = time.perf_counter(), time.thread_time()
        now = began
        while now <= began + seconds:
            moved += routine(at, part)
            now = time.perf_counter()
        rates.append(moved / (now - began))
        ran.append((time.thread_time() - used) / (now - began))

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except RuntimeError as error:  # a limit of this user or container
        raise BandwidthError(f"bandwidth: no {threads} threads: {error}") from None
    finally:
        start.abort()  # those that wait for one that will never come would wait for ever
    return sum(rates), sum(ran) / threads


def _routines() -> dict[str, Routine]:
    libc = ctypes.CDLL(None)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t

    def function(name: str, *arguments: type) -> Callable[..., int | None]:
        found = getattr(libc, name)
        found.argtypes = arguments
        found.restype = ctypes.c_int if name == "memcmp" else pointer
        return found  # type: ignore[no-any-return]

    memchr = function("memchr", pointer, ctypes.c_int, size)
    memcmp = function("memcmp", pointer, pointer, size)
    memcpy = function("memcpy", pointer, pointer, size)
    memset = function("memset", pointer, ctypes.c_int, size)

    def filled(at: int, length: int) -> int:
        memset(at, 1, length)
        return length

    def searched(at: int, length: int) -> int:
        memchr(at, 0, length)  # there is none: it looks at every byte
        return length

    def halves(copy: Callable[..., int | None]) -> Routine:
        def both(at: int, length: int) -> int:
            half = length // 2
            for offset in range(0, half, _CALL_BYTES):
                copy(at + half + offset, at + offset, min(_CALL_BYTES, half - offset))
            return 2 * half

        return both

    # The halves are equal: memcmp reads both of them to their ends.
    return {
        "memset": filled,
        "memchr": searched,
        "memcmp": halves(memcmp),
        COPIER: halves(memcpy),
    }


def _best_reader(readers: list[Rate]) -> Rate:
    """The fastest; where other programs hold a core it is one that leaves it to them."""
    best = max(readers, key=_rate)
    most = max(one.threads for one in readers)
    everywhere = max(one.running for one in readers if one.threads == most)
    return replace(best, running=min(best.running, everywhere))


def _rate(one: Rate) -> float:
    return one.bytes_per_second
