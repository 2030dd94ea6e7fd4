"""The memory of boards and phones whose controller is a node of /sys/class/devfreq.

| node | device | unit of cur_freq and max_freq |
|---|---|---|
| `bwmgr` | Jetson Thor | Hz |
| `dmc` | Rockchip | Hz |
| `17000010.devfreq_mif` | Exynos, Tensor | kHz |
| `mtk-dvfsrc-devfreq` | MediaTek | Hz, but kB/s of some kernels |

max_freq is the highest clock allowed now, available_frequencies has the highest of the device.
Rockchip's kernel counts the traffic of the memory: `load` is `27@2112000000Hz`, the share in
percent of what that clock can carry. No other has a load; what their governor asks for is none.

Which of its units a MediaTek kernel means, its highest value says: no memory runs as slowly as
68256000, which is 68 GB/s in kB/s, nor any faster than 6 GHz.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.common import DRAM_BUSY, DRAM_CLOCK, DRAM_HW_MAX, DRAM_MAX
from decodewatch.agent.sources.kit.devfreq import Node, Nodes, parse_highest, parse_load
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

_UNIT_HZ: Final = {"bwmgr": 1, "dmc": 1, "devfreq_mif": 1000, "mtk-dvfsrc-devfreq": 1}
_MEDIATEK: Final = "mtk-dvfsrc-devfreq"
_HAS_LOAD: Final = "dmc"
_CONTROLLER = re.compile("|".join(map(re.escape, _UNIT_HZ)))

_PLAUSIBLE_HZ: Final = range(10_000_000, 6_000_000_001)
_PLAUSIBLE_HIGHEST_HZ: Final = range(200_000_000, 6_000_000_001)


def clock(number: int | None, name: str) -> int | None:
    """The clock in Hz that a number means in a node's file; None where it cannot be one."""
    hertz = number * _UNIT_HZ[name] if number is not None else None
    return hertz if hertz is not None and hertz in _PLAUSIBLE_HZ else None


def counts_clocks(highest: int | None) -> bool:
    """Whether a MediaTek kernel's numbers are Hz, by the highest of them."""
    return highest is not None and highest in _PLAUSIBLE_HIGHEST_HZ


class DramDevfreq:
    """Reads the node of the memory controller."""

    name = "dram_devfreq"
    reads: ClassVar = "/sys/class/devfreq/*/{cur_freq,max_freq,available_frequencies,load}"
    platform: ClassVar = "Jetson Thor, Rockchip, MediaTek, Exynos, Tensor"
    permission: ClassVar = "anyone; root on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (DRAM_BUSY, DRAM_CLOCK, DRAM_MAX, DRAM_HW_MAX)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._nodes = Nodes(root, _CONTROLLER, 1, kernel)

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        nodes = self._nodes.look()
        if not nodes:
            return all_unknown(self.measurements, self._nodes.missing)
        node = nodes[0]
        now = _clock_of(node, DRAM_CLOCK, "cur_freq", only_number)
        allowed = _clock_of(node, DRAM_MAX, "max_freq", only_number)
        hw_max = _clock_of(node, DRAM_HW_MAX, "available_frequencies", parse_highest)
        clocks = [now, allowed, hw_max]
        if node.name == _MEDIATEK:
            highest = max((int(found.value) for found in clocks[1:] if found.value), default=None)
            if not counts_clocks(highest):
                clocks = [
                    unknown(found.measurement, "implausible") if found.known else found
                    for found in clocks
                ]
        return [_busy(node), *clocks]

    def close(self) -> None:
        """Close the files."""
        self._nodes.close()


def _clock_of(
    node: Node, row: Measurement, file: str, parse: Callable[[bytes], int | None]
) -> Reading:
    content = node.read(file)
    if isinstance(content, str):
        return unknown(row, content)
    return read_as(row, clock(parse(content), node.name), "implausible")


def _busy(node: Node) -> Reading:
    if node.name != _HAS_LOAD:
        return unknown(DRAM_BUSY, "absent")
    content = node.read("load")
    if isinstance(content, str):
        return unknown(DRAM_BUSY, content)
    load = parse_load(content)
    return read_as(DRAM_BUSY, load.share if load else None, "implausible")
