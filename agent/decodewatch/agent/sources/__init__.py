"""The hardware that the agent reads: one file a source, one line here.

To add one, write a module with a class that has `name`, `measurements`, `read` and `close` (see
`base`), and add its line to `REGISTRY`.
"""

from pathlib import Path
from typing import Final

from decodewatch.agent.sources import cpu, cpufreq, meminfo, pressure, thermal, vmstat
from decodewatch.agent.sources.base import (
    REASONS,
    Measurement,
    Reading,
    Reason,
    Source,
    SourceFactory,
    Value,
)

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
    row for _, factory in REGISTRY for row in factory.measurements
)
"""The table of measurements of all sources."""


def open_sources(root: Path = Path("/")) -> list[Source]:
    """Every registered source below `root`. No file is touched before the first read."""
    return [factory(root) for _, factory in REGISTRY]
