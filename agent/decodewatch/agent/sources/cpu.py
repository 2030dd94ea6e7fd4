"""How busy the CPUs are: /proc/stat.

Lines such as `cpu0 4705 356 584 3699 23 23 0 0 0 0`: clock ticks from boot in each state
(proc_stat(5)).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from decodewatch.agent.sources.kit.base import Measurement, Reading, all_unknown, read_as
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import whole_number

BUSY = Measurement(
    "cpu_busy_share",
    "share",
    "gauge",
    "share of the time of the CPUs that are online in which they were not idle",
)


class Ticks(NamedTuple):
    """Clock ticks of one CPU since boot. Waiting for I/O is idle; stolen by a host is busy."""

    busy: int
    idle: int


def parse(content: bytes) -> dict[bytes, Ticks]:
    """The ticks by CPU (`cpu0`); by `cpu`, the sum, where the kernel shows that alone.

    Offline CPUs are not in it. Empty where no line is whole.
    """
    cpus: dict[bytes, Ticks] = {}
    start = 0
    # The CPUs come first; behind them are lines of thousands of numbers.
    while content.startswith(b"cpu", start) and (end := content.find(b"\n", start)) >= 0:
        name, *fields = content[start:end].split()
        start = end + 1
        # user nice system idle iowait irq softirq steal; guest time is within user and nice.
        numbers = [number for field in fields[:8] if (number := whole_number(field)) is not None]
        if len(numbers) != len(fields[:8]) or len(numbers) < 4 or min(numbers) < 0:
            continue
        idle = sum(numbers[3:5])
        cpus[name] = Ticks(sum(numbers) - idle, idle)
    if len(cpus) > 1:
        cpus.pop(b"cpu", None)
    return cpus


def busy_share(before: Mapping[bytes, Ticks], now: Mapping[bytes, Ticks]) -> float | None:
    """Between two reads, over the CPUs that are in both.

    None where no time passed or a counter went back, as it does on some kernels when a CPU comes
    online.
    """
    busy = idle = 0
    for name, ticks in now.items():
        earlier = before.get(name)
        if earlier is None:
            continue
        if ticks.busy < earlier.busy or ticks.idle < earlier.idle:
            return None
        busy += ticks.busy - earlier.busy
        idle += ticks.idle - earlier.idle
    total = busy + idle
    return busy / total if total else None


class Cpu:
    """Reads /proc/stat and remembers the last ticks."""

    name = "cpu"
    reads: ClassVar = "/proc/stat"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (BUSY,)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._file = PolledFile(root / "proc/stat", kernel)
        self._before: dict[bytes, Ticks] = {}

    def read(self) -> list[Reading]:
        """The share since the last read; transient at the first."""
        content = self._file.read()
        if isinstance(content, str):
            self._before = {}
            return all_unknown(self.measurements, content)
        now = parse(content)
        share = busy_share(self._before, now)
        self._before = now
        return [read_as(BUSY, share, "transient")]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
