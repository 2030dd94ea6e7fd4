"""Adreno GPUs of Qualcomm's own driver: /sys/class/kgsl/kgsl-3d0.

gpuclk is the clock and max_gpuclk the highest that cooling allows, in Hz. thermal_pwrlevel is how
many of the fastest clocks cooling forbids. gpubusy has two numbers, `  31246 1006254`: microseconds
in which the GPU was busy, of a window of about a second that has ended. Reading it while the GPU is
off clears it, and then it holds `0 0` until a whole window has passed with the GPU on: nothing was
measured, which is not the same as no load. gpu_busy_percentage is the same window in whole percent,
` 3 %`, and shows 0 there too; it is read only where gpubusy is not to be had.
(drivers/gpu/msm/kgsl_pwrctrl.c of Qualcomm's kernels.)
"""

from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, read_as, unknown
from decodewatch.agent.sources.kit.common import GPU_BUSY, GPU_CLOCK, GPU_MAX
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number, whole_number

THERMAL_LEVEL = Measurement(
    "gpu_thermal_level",
    "count",
    "gauge",
    "how many of the GPU's fastest clocks cooling forbids now; 0 is no limit",
)

_MOST_LEVELS: Final = 64
_PLAUSIBLE_HZ: Final = range(1_000_000, 10_000_000_001)

# The busy time is counted by another clock than the window: at full load it may be a little longer.
_ROUNDING: Final = 1.05


def parse_clock(content: bytes) -> int | None:
    """A clock in Hz, or None for anything that is no clock."""
    hertz = only_number(content)
    return hertz if hertz is not None and hertz in _PLAUSIBLE_HZ else None


def parse_level(content: bytes) -> int | None:
    """The number of thermal_pwrlevel."""
    level = only_number(content)
    return level if level is not None and 0 <= level < _MOST_LEVELS else None


def parse_window(content: bytes) -> tuple[int, int] | None:
    """The microseconds busy and in all of gpubusy; `0 0` where nothing was measured.

    None where that is not two whole numbers, or cannot be.
    """
    if not content.endswith(b"\n"):
        return None
    numbers = [whole_number(field) for field in content.split()]
    if len(numbers) != 2:
        return None
    busy, window = numbers
    if busy is None or window is None or busy < 0 or busy > window * _ROUNDING:
        return None
    return busy, window


def parse_percentage(content: bytes) -> float | None:
    """The share in gpu_busy_percentage; None without the percent sign, which may have been cut."""
    number, percent, rest = content.partition(b"%")
    value = whole_number(number.strip())
    if not percent or rest.strip() or value is None or not 0 <= value <= 100:
        return None
    return value / 100


class Kgsl:
    """Reads the one GPU of the driver."""

    name = "kgsl"
    reads: ClassVar = (
        "/sys/class/kgsl/kgsl-3d0/{gpubusy,gpu_busy_percentage,gpuclk,max_gpuclk,thermal_pwrlevel}"
    )
    platform: ClassVar = "Android phones with a Snapdragon"
    permission: ClassVar = "root; partly apps, by the phone's maker"
    measurements: ClassVar[tuple[Measurement, ...]] = (GPU_BUSY, GPU_CLOCK, GPU_MAX, THERMAL_LEVEL)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        folder = root / "sys/class/kgsl/kgsl-3d0"
        self._window = PolledFile(folder / "gpubusy", kernel)
        self._percentage = PolledFile(folder / "gpu_busy_percentage", kernel)
        self._numbers = (
            (GPU_CLOCK, parse_clock, PolledFile(folder / "gpuclk", kernel)),
            (GPU_MAX, parse_clock, PolledFile(folder / "max_gpuclk", kernel)),
            (THERMAL_LEVEL, parse_level, PolledFile(folder / "thermal_pwrlevel", kernel)),
        )

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        readings = [self._busy()]
        for row, parse, file in self._numbers:
            content = file.read()
            if isinstance(content, str):
                readings.append(unknown(row, content))
            else:
                readings.append(read_as(row, parse(content), "implausible"))
        return readings

    def close(self) -> None:
        """Close the files."""
        for file in (self._window, self._percentage, *(file for _, _, file in self._numbers)):
            file.close()

    def _busy(self) -> Reading:
        content = self._window.read()
        if not isinstance(content, str):
            found = parse_window(content)
            if found is None:
                return unknown(GPU_BUSY, "implausible")
            busy, window = found
            return read_as(GPU_BUSY, min(busy / window, 1.0) if window else None, "transient")
        share = self._percentage.read()
        if isinstance(share, str):
            # The better file's reason, unless that one only is not there.
            return unknown(GPU_BUSY, share if content == "absent" else content)
        return read_as(GPU_BUSY, parse_percentage(share), "implausible")
