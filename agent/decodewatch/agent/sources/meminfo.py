"""The memory of the device: /proc/meminfo.

Lines such as `MemFree:          412356 kB`, where kB are 1024 bytes (proc_meminfo(5)); some kernels
print one or the other without the space. A Jetson's kernel adds `NvMapMemUsed`, what its GPU and
the other engines were given of the same memory.
"""

from pathlib import Path
from typing import ClassVar

from decodewatch.agent.sources.kit.base import Measurement, Reading, all_unknown, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import kibibytes

TOTAL = Measurement("mem_total_bytes", "bytes", "gauge", "memory that the kernel manages")
AVAILABLE = Measurement(
    "mem_available_bytes",
    "bytes",
    "gauge",
    "memory that programs can have without swapping, by the kernel's estimate",
)
FREE = Measurement("mem_free_bytes", "bytes", "gauge", "memory that nothing uses")
SWAP_TOTAL = Measurement("swap_total_bytes", "bytes", "gauge", "swap space, zram included")
SWAP_FREE = Measurement("swap_free_bytes", "bytes", "gauge", "swap space that nothing uses")
NVMAP_USED = Measurement(
    "nvmap_used_bytes",
    "bytes",
    "gauge",
    "memory that NvMap, a Jetson's allocator for GPU and engines, has handed out; in no RSS",
)

_EMPTY_SHARE = 1 / 32
"""With more than this share of the memory free, an available memory of 0 is a kernel's bug: what
the kernel holds back of the free memory is less."""


def parse(content: bytes) -> list[Reading]:
    """The readings of a /proc/meminfo. A line that is missing (MemAvailable before 3.14) is absent.

    A part that is larger than its whole is implausible, and so is the available memory of 0 that
    some containers show while memory is free.
    """
    total = kibibytes(content, b"MemTotal")
    available = kibibytes(content, b"MemAvailable")
    free = kibibytes(content, b"MemFree")
    swap_total = kibibytes(content, b"SwapTotal")
    swap_free = kibibytes(content, b"SwapFree")
    if available == 0 and free and total and free > total * _EMPTY_SHARE:
        available_reading = unknown(AVAILABLE, "implausible")
    else:
        available_reading = _part(AVAILABLE, available, total)
    return [
        read_as(TOTAL, total, "absent"),
        available_reading,
        _part(FREE, free, total),
        read_as(SWAP_TOTAL, swap_total, "absent"),
        _part(SWAP_FREE, swap_free, swap_total),
        _part(NVMAP_USED, kibibytes(content, b"NvMapMemUsed"), total),
    ]


def _part(row: Measurement, value: int | None, whole: int | None) -> Reading:
    if value is not None and whole is not None and value > whole:
        return unknown(row, "implausible")
    return read_as(row, value, "absent")


class Meminfo:
    """Reads /proc/meminfo."""

    name = "meminfo"
    reads: ClassVar = "/proc/meminfo"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (
        TOTAL,
        AVAILABLE,
        FREE,
        SWAP_TOTAL,
        SWAP_FREE,
        NVMAP_USED,
    )

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._file = PolledFile(root / "proc/meminfo", kernel)

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        content = self._file.read()
        if isinstance(content, str):
            return all_unknown(self.measurements, content)
        return parse(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
