"""Swapping, major faults, stalls and OOM kills of the device: /proc/vmstat.

Lines such as `pswpin 1476`, counted from boot; swapping is counted in pages, whose size differs
from kernel to kernel (proc_vmstat(5)). Stalls are counted a zone: `allocstall_normal 12`.
"""

from pathlib import Path
from typing import ClassVar

from decodewatch.agent.sources.kit.base import Measurement, Reading, all_unknown, read_as
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import after, whole_number

SWAP_IN = Measurement("swap_in_bytes", "bytes", "counter", "read back from swap")
SWAP_OUT = Measurement("swap_out_bytes", "bytes", "counter", "written to swap")
MAJOR_FAULTS = Measurement(
    "major_faults", "count", "counter", "page faults that had to wait for storage"
)
OOM_KILLS = Measurement(
    "oom_kills", "count", "counter", "processes killed for want of memory, in cgroups too"
)

STALLS = Measurement(
    "alloc_stalls",
    "count",
    "counter",
    "times that a program had to free memory itself before it was given some",
)

_PAGES = ((b"pswpin ", SWAP_IN), (b"pswpout ", SWAP_OUT))
_COUNTS = ((b"pgmajfault ", MAJOR_FAULTS), (b"oom_kill ", OOM_KILLS))
_STALL = b"allocstall"  # of the whole device before 4.10, since then one line a zone
_MOST_ZONES = 8  # kernels have up to six


def parse(content: bytes, page_bytes: int) -> list[Reading]:
    """The readings of a /proc/vmstat of a kernel whose pages have `page_bytes` bytes.

    A line that is missing (oom_kill before 4.13) is absent.
    """
    readings = []
    for name, row in _PAGES:
        pages = _counter(content, name)
        readings.append(read_as(row, None if pages is None else pages * page_bytes, "absent"))
    for name, row in _COUNTS:
        readings.append(read_as(row, _counter(content, name), "absent"))
    readings.append(read_as(STALLS, _stalls(content), "absent"))
    return readings


def _counter(content: bytes, name: bytes) -> int | None:
    rest = after(content, name)
    value = None if rest is None else whole_number(rest)
    return value if value is not None and value >= 0 else None


def _stalls(content: bytes) -> int | None:
    """The stalls of all zones; None unless the lines of all of them are there.

    They stand together. So they are all there where another whole line follows.
    """
    begin = 0 if content.startswith(_STALL) else content.find(b"\n" + _STALL) + 1
    total = None
    for line in content[begin:].split(b"\n", _MOST_ZONES + 1)[:-1]:
        if not line.startswith(_STALL):
            return total
        count = whole_number(line.partition(b" ")[2])
        if count is None or count < 0:
            return None
        total = count + (total or 0)
    return None


class Vmstat:
    """Reads /proc/vmstat."""

    name = "vmstat"
    reads: ClassVar = "/proc/vmstat"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (
        SWAP_IN,
        SWAP_OUT,
        MAJOR_FAULTS,
        OOM_KILLS,
        STALLS,
    )

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._file = PolledFile(root / "proc/vmstat", kernel)
        self._page_bytes = kernel.page_bytes()

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        content = self._file.read()
        if isinstance(content, str):
            return all_unknown(self.measurements, content)
        return parse(content, self._page_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
