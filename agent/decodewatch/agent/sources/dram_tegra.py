"""The memory of NVIDIA's Jetsons: clocks and load of the EMC, the memory controller.

Clocks are in Hz. /sys/kernel/debug/bpmp/debug/clk/emc/{rate,max_rate} has the present one and the
highest of the device; boards without a BPMP, such as the first Nano, have the present one in
/sys/kernel/debug/clk/emc/clk_rate. /sys/kernel/nvpmodel_clk_cap/emc has the cap of the power mode,
before L4T 36 /sys/kernel/nvpmodel_emc_cap/emc_iso_cap; 0 is no cap.

mc_all (/sys/kernel/debug/cactmon or /sys/kernel/actmon_avg_activity) counts, to L4T 35, the clock
in kHz that would carry the traffic, times a hundred: divided by the clock in kHz it is percent, and
2133000 at 2133 MHz is 1 %. The counters of that name below the BPMP's debug/actmon, which L4T 36
and later have instead, are in a unit that is nowhere documented: the same division gives 0 for any
traffic. They are not read, and the load is unknown there. Which release it is,
/etc/nv_tegra_release says: `# R36 (release), REVISION: 4.4`. Containers lack it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.common import DRAM_BUSY, DRAM_CLOCK, DRAM_HW_MAX, DRAM_MAX
from decodewatch.agent.sources.kit.device_tree import compatible
from decodewatch.agent.sources.kit.files import PolledFile, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

_PLAUSIBLE_HZ: Final = range(10_000_000, 6_000_000_001)

_TEGRA: Final = "nvidia,tegra"  # also chips that are newer than this: nvidia,tegra264 is Thor's
_RELEASE = re.compile(rb"# R(\d{1,3}) \(release\)")
_RELEASE_LIMIT: Final = 256  # bytes read

_LAST_WITH_KNOWN_UNIT: Final = 35
# Chips that no later release than that supports: Nano and TX1, TX2, Xavier.
_ALWAYS_KNOWN_UNIT: Final = frozenset({"nvidia,tegra210", "nvidia,tegra186", "nvidia,tegra194"})


def parse_clock(content: bytes) -> int | None:
    """A clock in Hz, or None for anything that is no clock of a memory."""
    hertz = only_number(content)
    return hertz if hertz is not None and hertz in _PLAUSIBLE_HZ else None


def busy_share(activity: int, hertz: int) -> float | None:
    """The share of what the memory can carry at `hertz`, of a mc_all; None where it cannot be."""
    percent = activity / (hertz / 1000)
    return percent / 100 if 0 <= percent <= 100 else None


def parse_release(content: bytes) -> int | None:
    """The major release of /etc/nv_tegra_release: 32 is JetPack 4, 35 JetPack 5, 36 JetPack 6."""
    found = _RELEASE.match(content)
    return int(found[1]) if found else None


def knows_unit(names: Sequence[str], release: int | None) -> bool:
    """Whether mc_all is percent times kHz on a board of these compatible names and release."""
    if release is not None:
        return release <= _LAST_WITH_KNOWN_UNIT
    return not _ALWAYS_KNOWN_UNIT.isdisjoint(names)


class _FirstOf:
    """A number that one of two files has."""

    def __init__(self, *files: PolledFile) -> None:
        self._files = files

    def read(self) -> bytes | Reason:
        """The first content; else the first reason that is not `absent`."""
        missing: Reason = "absent"
        for file in self._files:
            content = file.read()
            if not isinstance(content, str):
                return content
            if missing == "absent":
                missing = content
        return missing

    def close(self) -> None:
        for file in self._files:
            file.close()


class DramTegra:
    """Reads clocks, cap and, where its unit is known, the load of a Jetson's memory."""

    name = "dram_tegra"
    reads: ClassVar = (
        "/sys/kernel/debug/bpmp/debug/clk/emc/{rate,max_rate}, /sys/kernel/debug/clk/emc/clk_rate,"
        " /sys/kernel/debug/cactmon/mc_all, /sys/kernel/actmon_avg_activity/mc_all,"
        " /sys/kernel/nvpmodel_clk_cap/emc, /sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
    )
    platform: ClassVar = "Jetson"
    permission: ClassVar = "root; dram_max_hertz: anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (DRAM_BUSY, DRAM_CLOCK, DRAM_MAX, DRAM_HW_MAX)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        def first_of(*paths: str) -> _FirstOf:
            return _FirstOf(*(PolledFile(root / "sys/kernel" / path, kernel) for path in paths))

        self._root = root
        self._kernel = kernel
        self._looked = False  # whether it is known what board this is
        self._is_jetson = self._knows_unit = False
        self._clock = first_of("debug/bpmp/debug/clk/emc/rate", "debug/clk/emc/clk_rate")
        self._hw_max = first_of("debug/bpmp/debug/clk/emc/max_rate")
        self._cap = first_of("nvpmodel_clk_cap/emc", "nvpmodel_emc_cap/emc_iso_cap")
        self._activity = first_of("debug/cactmon/mc_all", "actmon_avg_activity/mc_all")

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        if not self._looked:
            self._look()
        clock = _clock_of(DRAM_CLOCK, self._clock)
        hw_max = _clock_of(DRAM_HW_MAX, self._hw_max)
        readings = [self._busy(clock), clock, self._allowed(hw_max), hw_max]
        if not self._is_jetson:
            # /sys/kernel/debug is denied on any device: that says nothing of what is in it.
            readings = [
                unknown(found.measurement, "absent") if found.reason == "denied" else found
                for found in readings
            ]
        return readings

    def close(self) -> None:
        """Close the files."""
        for file in (self._clock, self._hw_max, self._cap, self._activity):
            file.close()

    def _look(self) -> None:
        names = compatible(self._root, self._kernel)
        content = read_once(self._root / "etc/nv_tegra_release", _RELEASE_LIMIT, self._kernel)
        release = None if isinstance(content, str) else parse_release(content)
        # A container may have only one of them.
        self._is_jetson = release is not None or any(name.startswith(_TEGRA) for name in names)
        self._knows_unit = knows_unit(names, release)
        self._looked = True

    def _busy(self, clock: Reading) -> Reading:
        if not self._knows_unit:
            return unknown(DRAM_BUSY, "unsupported" if self._is_jetson else "absent")
        content = self._activity.read()
        if isinstance(content, str):
            return unknown(DRAM_BUSY, content)
        if clock.value is None:
            return unknown(DRAM_BUSY, clock.reason or "transient")
        activity = only_number(content)
        share = busy_share(activity, int(clock.value)) if activity is not None else None
        return read_as(DRAM_BUSY, share, "implausible")

    def _allowed(self, hw_max: Reading) -> Reading:
        """The cap, or the device's highest clock where the cap is above it."""
        content = self._cap.read()
        if isinstance(content, str):
            return unknown(DRAM_MAX, content)
        if only_number(content) == 0:
            return unknown(DRAM_MAX, "unlimited")
        cap = parse_clock(content)
        if cap is not None and hw_max.value is not None:
            cap = min(cap, int(hw_max.value))
        return read_as(DRAM_MAX, cap, "implausible")


def _clock_of(row: Measurement, file: _FirstOf) -> Reading:
    content = file.read()
    if isinstance(content, str):
        return unknown(row, content)
    return read_as(row, parse_clock(content), "implausible")
