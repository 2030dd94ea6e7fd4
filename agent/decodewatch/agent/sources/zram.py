"""Swap that is compressed and kept in memory: /sys/block/zram*.

Jetsons have one device a core, whose sizes add up to half of the memory; phones have one. What lies
there still takes memory, in the place of what the kernel counts as swap that is free: only
`mem_available_bytes` says how much more there is to have.

`mm_stat` is one line of seven to nine columns, depending on the kernel: the bytes of what was
stored, of the same compressed, and of the memory taken for that; then a limit, a peak, and counts
of pages. `disksize` is one number of bytes (the kernel's Documentation/admin-guide/blockdev/
zram.rst).
"""

from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number, whole_number

ORIGINAL = Measurement(
    "zram_original_bytes", "bytes", "gauge", "memory that was swapped out into zram devices"
)
COMPRESSED = Measurement("zram_compressed_bytes", "bytes", "gauge", "the same, compressed")
USED = Measurement(
    "zram_used_bytes", "bytes", "gauge", "memory that zram devices take to hold it, overhead too"
)
SIZE = Measurement("zram_size_bytes", "bytes", "gauge", "how much all zram devices can take in")

MOST_DEVICES: Final = 64
_FEWEST_COLUMNS: Final = 7
_SIZE_LIMIT: Final = 64  # bytes read of a file that holds one number


class Stored(NamedTuple):
    """What a zram device holds, in bytes."""

    original: int
    compressed: int
    used: int


def parse(content: bytes) -> Stored | None:
    """The first columns of an mm_stat; None for anything that is not one whole line of one."""
    if not content.endswith(b"\n") or content.count(b"\n") != 1:
        return None
    columns = content.split()
    if len(columns) < _FEWEST_COLUMNS:
        return None
    numbers = [whole_number(column) for column in columns]
    original, compressed, used = numbers[:3]
    if None in numbers or original is None or compressed is None or used is None:
        return None
    return Stored(original, compressed, used) if min(original, compressed, used) >= 0 else None


class Zram:
    """Reads every zram device. The values are sums: of all devices, or there are none."""

    name = "zram"
    reads: ClassVar = "/sys/block/zram*/{mm_stat,disksize}"
    platform: ClassVar = "Linux 4.1"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (ORIGINAL, COMPRESSED, USED, SIZE)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/block"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "zram", MOST_DEVICES, kernel)
        self._devices: dict[str, PolledFile] = {}
        self._size = unknown(SIZE, "absent")
        self._no_devices: Reason = "absent"
        self._missed = False

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        if not self._devices:
            return all_unknown(self.measurements, self._no_devices)
        total = Stored(0, 0, 0)
        reason: Reason | None = None
        for file in self._devices.values():
            content = file.read()
            stored = content if isinstance(content, str) else parse(content) or "implausible"
            if isinstance(stored, str):
                reason = reason or stored
            else:
                total = Stored(*(sum(pair) for pair in zip(total, stored, strict=True)))
        missed = reason == "absent"
        if missed and not self._missed:
            self._folder.look_again()
        self._missed = missed
        if reason is not None:
            return [*all_unknown(self.measurements[:3], reason), self._size]
        rows = zip(self.measurements[:3], total, strict=True)
        return [*(read_as(row, value, "absent") for row, value in rows), self._size]

    def close(self) -> None:
        """Close the files."""
        for file in self._devices.values():
            file.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        """Follow the devices that there are now: all of them make up the sums."""
        if isinstance(members, str):
            self._no_devices = members
            members = []
        else:
            self._no_devices = "absent"
        for gone in self._devices.keys() - set(members):
            self._devices.pop(gone).close()
        for member in members:
            if member in self._devices:
                self._devices[member].retry_if_absent()
            else:
                self._devices[member] = PolledFile(self._root / member / "mm_stat", self._kernel)
        self._size = self._sizes(members)

    def _sizes(self, members: list[str]) -> Reading:
        # Once a listing: a size is set before the device is used, and stays.
        total = 0
        for member in members:
            content = read_once(self._root / member / "disksize", _SIZE_LIMIT, self._kernel)
            if isinstance(content, str):
                return unknown(SIZE, content)
            size = only_number(content)
            if size is None or size < 0:
                return unknown(SIZE, "implausible")
            total += size
        return read_as(SIZE, total, "absent")
