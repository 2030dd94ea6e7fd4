"""Memory of a Jetson's GPU and engines, by process: NvMap's list of clients in debugfs.

What nvgpu boards (Nano to Orin) allocate for the GPU lies in the same memory as everything else and
is in no process's RSS. /sys/kernel/debug/nvmap/iovmm/clients has a row a client, `user  vlm-server
4321  524288K`, and ends in a row with the total. The name of a process is as it likes it to be,
with spaces or without a letter. A Thor lists its clients with 0K each: it does not account for them
here, and NVML does.
"""

from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import whole_number
from decodewatch.agent.sources.meminfo import NVMAP_USED

EVERY_S: Final = 10.0
"""Between two reads lies at least so long, and the last is reported: for each one the driver walks
through all allocations, with their lock held."""

_UNITS: Final = {b"K": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}


class Clients(NamedTuple):
    """What NvMap has handed out, in bytes: in all, and to each process by its pid.

    `total` is None, or `processes` is empty, where the driver does not account for it.
    """

    total: int | None
    processes: dict[int, int]


def parse(content: bytes) -> Clients | None:
    """The clients of a whole list; None where its last row, the total, is missing.

    A process may have several rows, so that one cut off would leave it with too little.
    """
    if not content.endswith(b"\n"):
        return None
    *rows, last = content.rstrip(b"\n").split(b"\n")
    words = last.split()
    total = _size(words[1]) if len(words) == 2 and words[0] == b"total" else None
    if total is None:
        return None
    processes: dict[int, int] = {}
    for row in rows:
        words = row.split()
        if len(words) < 3:
            continue  # the end of a name with a newline in it
        pid, size = whole_number(words[-2]), _size(words[-1])
        if size is not None and pid is not None and pid > 0:  # 0 is the kernel's own
            processes[pid] = processes.get(pid, 0) + size
    return Clients(total or None, processes if any(processes.values()) else {})


def _size(word: bytes) -> int | None:
    unit = _UNITS.get(word[-1:])
    number = whole_number(word[:-1])
    return number * unit if unit is not None and number is not None and number >= 0 else None


class NvMap:
    """Reads the list of clients. `process_bytes` has what it says of one process."""

    name = "nvmap"
    reads: ClassVar = "/sys/kernel/debug/nvmap/iovmm/clients"
    platform: ClassVar = "Jetson"
    permission: ClassVar = "root"
    measurements: ClassVar[tuple[Measurement, ...]] = (NVMAP_USED,)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._file = PolledFile(root / "sys/kernel/debug/nvmap/iovmm/clients", kernel)
        self._kernel = kernel
        self._due_at = float("-inf")
        self._clients: Clients | Reason = "absent"

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        now = self._kernel.monotonic()
        if now >= self._due_at:
            self._due_at = now + EVERY_S
            content = self._file.read()
            if isinstance(content, str):
                self._clients = content
            else:
                self._clients = parse(content) or "implausible"
        if isinstance(self._clients, str):
            return [unknown(NVMAP_USED, self._clients)]
        return [read_as(NVMAP_USED, self._clients.total, "unsupported")]

    def process_bytes(self, pid: int) -> int | None:
        """What a process had at the last read; None where that is not known.

        A process that is not listed has no client, and may have none because it uses no GPU.
        """
        return None if isinstance(self._clients, str) else self._clients.processes.get(pid)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._due_at = float("-inf")
