"""The memory of Qualcomm's phones: what is asked of it. Nothing says how busy it is.

To the Snapdragon 865, /sys/class/devfreq/soc:qcom,cpu-llcc-ddr-bw/cur_freq (`qcom,llccbw` on the
845, `qcom,cpubw` before) is the bandwidth that the kernel reserves for the CPUs, from the traffic
that it counts (bw_hwmon). It is no clock: it is in units of 2^20 bytes a second. The levels show
that: 1144 ... 6881, 7980 are the memory's clocks 300 ... 1804, 2092 MHz times 4 bytes, divided by
2^20.

From the Snapdragon 888 on, /sys/devices/system/cpu/bus_dcvs/DDR/{cur_freq,hw_max_freq} are clocks
in kHz: the one that the CPUs ask for, below which the memory's does not fall, and the highest of
the device.
"""

import re
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, read_as, unknown
from decodewatch.agent.sources.kit.common import DRAM_CLOCK, DRAM_HW_MAX
from decodewatch.agent.sources.kit.devfreq import Nodes
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

VOTE = Measurement(
    "dram_vote_bytes_per_second",
    "bytes_per_second",
    "gauge",
    "memory bandwidth that the kernel reserves for the CPUs; a request, not what is used",
)

# By preference: on the 845, cpubw ends at the last-level cache and llccbw begins there.
_VOTES: Final = ("qcom,cpu-llcc-ddr-bw", "qcom,llccbw", "qcom,cpubw")
_VOTE_NODE = re.compile("|".join(map(re.escape, _VOTES)))

_VOTE_BYTES: Final = 1 << 20
_MOST_VOTE: Final = 1_000_000  # 1 TB/s
_PLAUSIBLE_KHZ: Final = range(10_000, 6_000_001)


def parse_vote(content: bytes) -> int | None:
    """The bytes a second of a vote; None for anything else."""
    vote = only_number(content)
    return vote * _VOTE_BYTES if vote is not None and 0 <= vote <= _MOST_VOTE else None


def parse_clock(content: bytes) -> int | None:
    """The clock in Hz of a file that holds it in kHz; None for anything that is no clock."""
    khz = only_number(content)
    return khz * 1000 if khz is not None and khz in _PLAUSIBLE_KHZ else None


class DramQualcomm:
    """Reads the vote of older, and the clock of newer Snapdragons."""

    name = "dram_qualcomm"
    reads: ClassVar = (
        "/sys/class/devfreq/soc:qcom,{cpu-llcc-ddr-bw,llccbw,cpubw}/cur_freq,"
        " /sys/devices/system/cpu/bus_dcvs/DDR/{cur_freq,hw_max_freq}"
    )
    platform: ClassVar = "Android phones with a Snapdragon"
    permission: ClassVar = "root"
    measurements: ClassVar[tuple[Measurement, ...]] = (VOTE, DRAM_CLOCK, DRAM_HW_MAX)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        folder = root / "sys/devices/system/cpu/bus_dcvs/DDR"
        self._nodes = Nodes(root, _VOTE_NODE, len(_VOTES), kernel)
        self._clocks = (
            (DRAM_CLOCK, PolledFile(folder / "cur_freq", kernel)),
            (DRAM_HW_MAX, PolledFile(folder / "hw_max_freq", kernel)),
        )

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        readings = [self._vote()]
        for row, file in self._clocks:
            content = file.read()
            if isinstance(content, str):
                readings.append(unknown(row, content))
            else:
                readings.append(read_as(row, parse_clock(content), "implausible"))
        return readings

    def close(self) -> None:
        """Close the files."""
        self._nodes.close()
        for _, file in self._clocks:
            file.close()

    def _vote(self) -> Reading:
        nodes = self._nodes.look()
        if not nodes:
            return unknown(VOTE, self._nodes.missing)
        node = min(nodes, key=lambda node: (not node.listed, _VOTES.index(node.name)))
        content = node.read("cur_freq")
        if isinstance(content, str):
            return unknown(VOTE, content)
        return read_as(VOTE, parse_vote(content), "implausible")
