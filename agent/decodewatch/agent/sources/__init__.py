"""The hardware that the agent reads: one file a source, one line here.

To add one, write a module with a class that has `name`, `measurements`, `read` and `close` (see
`base`), and add its line to `REGISTRY`.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from decodewatch.agent.sources import (
    battery,
    cooling,
    cpu,
    cpufreq,
    dram_devfreq,
    dram_qualcomm,
    dram_tegra,
    gpu,
    hwmon,
    intel_throttle,
    jtop,
    kgsl,
    meminfo,
    nvmap,
    nvml,
    power_mode,
    pressure,
    rails,
    rails_l4t32,
    rapl,
    raspberry_pi,
    soctherm,
    tegrastats,
    thermal,
    vmstat,
    zram,
)
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
    ("zram", zram.Zram),
    ("nvmap", nvmap.NvMap),
    ("cpu", cpu.Cpu),
    ("thermal", thermal.Thermal),
    ("hwmon", hwmon.Hwmon),
    ("cooling", cooling.Cooling),
    ("soctherm", soctherm.Soctherm),
    ("intel_throttle", intel_throttle.IntelThrottle),
    ("raspberry_pi", raspberry_pi.RaspberryPi),
    ("cpufreq", cpufreq.Cpufreq),
    ("gpu", gpu.Gpu),
    ("kgsl", kgsl.Kgsl),
    ("dram_tegra", dram_tegra.DramTegra),
    ("dram_devfreq", dram_devfreq.DramDevfreq),
    ("dram_qualcomm", dram_qualcomm.DramQualcomm),
    ("rails", rails.Rails),
    ("rails_l4t32", rails_l4t32.RailsL4t32),
    ("rapl", rapl.Rapl),
    ("battery", battery.Battery),
    ("power_mode", power_mode.PowerMode),
    ("nvml", nvml.Nvml),
    ("tegrastats", tegrastats.Tegrastats),
    ("jtop", jtop.Jtop),
)
"""Every source by its name, in the order in which they are read."""

MEASUREMENTS: Final[tuple[Measurement, ...]] = tuple(
    dict.fromkeys(row for _, factory in REGISTRY for row in factory.measurements)
)
"""The table of measurements of all sources, each once."""


def open_sources(root: Path = Path("/"), without: Collection[str] = ()) -> list[Source]:
    """Every registered source below `root`, which is / or the folder of a recorded device, but for
    those named in `without`.

    No file is touched before the first read, but for the errors that a recording lists.
    """
    kernel = KERNEL if root == Path("/") else RecordedKernel(root)
    return [factory(root, kernel) for name, factory in REGISTRY if name not in without]
