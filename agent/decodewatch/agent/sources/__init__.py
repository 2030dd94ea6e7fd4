"""The hardware that the agent reads: one file a source, one line here.

To add one, write a module with a class that has `name`, `measurements`, `read` and `close` (see
`base`), and add its line to `REGISTRY`.
"""

from pathlib import Path
from typing import Final, Protocol

from decodewatch.agent.sources import cpu, cpufreq, meminfo, pressure, thermal, vmstat
from decodewatch.agent.sources.kit.base import REASONS, Measurement, Reading, Reason, Source, Value
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.recorded import RecordedKernel

__all__ = [
    "MEASUREMENTS",
    "REASONS",
    "REGISTRY",
    "Measurement",
    "Reading",
    "Reason",
    "Source",
    "Value",
    "open_sources",
]


class SourceFactory(Protocol):
    """What is registered: called with the root folder and the kernel it makes a source."""

    @property
    def measurements(self) -> tuple[Measurement, ...]: ...

    @property
    def reads(self) -> str:
        """The files or programs that it reads, as a person would look for them."""
        ...

    @property
    def platform(self) -> str:
        """Where there is something to read: `Linux`, `Jetson`, ..."""
        ...

    @property
    def permission(self) -> str:
        """Who may read it: `anyone`, `root`, `group video`, ..."""
        ...

    def __call__(self, root: Path, kernel: Kernel, /) -> Source: ...


REGISTRY: Final[tuple[tuple[str, SourceFactory], ...]] = (
    ("meminfo", meminfo.Meminfo),
    ("vmstat", vmstat.Vmstat),
    ("pressure", pressure.Pressure),
    ("cpu", cpu.Cpu),
    ("thermal", thermal.Thermal),
    ("cpufreq", cpufreq.Cpufreq),
)
"""Every source by its name, in the order in which they are read."""

MEASUREMENTS: Final[tuple[Measurement, ...]] = tuple(
    dict.fromkeys(row for _, factory in REGISTRY for row in factory.measurements)
)
"""The table of measurements of all sources, each once."""


def open_sources(root: Path = Path("/")) -> list[Source]:
    """Every registered source below `root`, which is / or the folder of a recorded device.

    No file is touched before the first read, but for the errors that a recording lists.
    """
    kernel = KERNEL if root == Path("/") else RecordedKernel(root)
    return [factory(root, kernel) for _, factory in REGISTRY]
