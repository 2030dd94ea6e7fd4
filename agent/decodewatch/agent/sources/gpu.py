"""GPUs of boards and phones: the nodes of /sys/class/devfreq that are GPUs.

NVIDIA's Jetsons to JetPack 7 on Orin (nvgpu; `17000000.ga10b`, `57000000.gpu`), Thor's
`gpu-gpc-0`, Arm's Mali (`fb000000.gpu`, `13000000.mali`, `fe400000.valhall`) and Qualcomm's Adreno
with the mainline driver (`5000000.gpu`). Qualcomm's own driver is another source, `kgsl`.

cur_freq and max_freq are in Hz (the kernel's Documentation/ABI/testing/sysfs-class-devfreq); a
clock of 0 is a GPU that is switched off. How busy it is, two drivers say: nvgpu in device/load, in
thousandths of the time; Rockchip's kernel in `load`, `27@800000000Hz`, in hundredths. Thor says it
through NVML only.

A second part of a GPU (`gpu-gpc-1`) has a clock of its own, which is reported by its name and never
averaged with the first's.
"""

import re
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.common import GPU_BUSY, GPU_CLOCK, GPU_MAX
from decodewatch.agent.sources.kit.devfreq import Node, Nodes, parse_load
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

MOST_GPUS: Final = 4

_GPU = re.compile(
    r"gpu|gpu\.0|gpu-gpc-\d+|gpu-(?:panthor|panfrost|mali)|mali|midgard|bifrost|valhall|g[a-z]\d\d[a-z]"
)
_FURTHER_PART = re.compile(r"gpu-gpc-[1-9]\d*")

_MOST_HZ: Final = 10_000_000_000


def parse_clock(content: bytes) -> int | None:
    """The clock in Hz, 0 where the GPU is switched off; None for anything that is no clock."""
    hertz = only_number(content)
    if hertz is None or not (hertz == 0 or 1_000_000 <= hertz <= _MOST_HZ):
        return None
    return hertz


def parse_limit(content: bytes) -> int | None:
    """A highest clock, which is never 0."""
    return parse_clock(content) or None


def parse_permille(content: bytes) -> float | None:
    """The share in nvgpu's device/load, 999 of 1000; None for anything else."""
    load = only_number(content)
    return load / 1000 if load is not None and 0 <= load <= 1000 else None


class Gpu:
    """Reads the GPUs of /sys/class/devfreq."""

    name = "gpu"
    reads: ClassVar = "/sys/class/devfreq/*/{cur_freq,max_freq,load,device/load}"
    platform: ClassVar = "Jetson, boards with a Mali, Linux phones"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (GPU_BUSY, GPU_CLOCK, GPU_MAX)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._nodes = Nodes(root, _GPU, MOST_GPUS, kernel)
        self._labels: dict[str, str] = {}

    def read(self) -> list[Reading]:
        """Three readings a GPU; three without a value where there has never been one."""
        nodes = self._nodes.look()
        if not nodes:
            return all_unknown(self.measurements, self._nodes.missing)
        readings: list[Reading] = []
        for node in nodes:
            label = self._label(node)
            readings.append(_busy(node, label))
            for file, row, parse in (
                ("cur_freq", GPU_CLOCK, parse_clock),
                ("max_freq", GPU_MAX, parse_limit),
            ):
                content = node.read(file)
                if isinstance(content, str):
                    readings.append(unknown(row, content, label))
                else:
                    readings.append(read_as(row, parse(content), "implausible", label))
        return readings

    def close(self) -> None:
        """Close the files."""
        self._nodes.close()

    def _label(self, node: Node) -> str:
        label = self._labels.get(node.key)
        if label is None:
            first = "" not in self._labels.values() and not _FURTHER_PART.fullmatch(node.name)
            label = self._labels[node.key] = "" if first else node.key
        return label


def _busy(node: Node, label: str) -> Reading:
    content = node.read("load")
    if not isinstance(content, str):
        load = parse_load(content)
        return read_as(GPU_BUSY, load.share if load else None, "implausible", label)
    if content != "absent":
        return unknown(GPU_BUSY, content, label)
    content = node.read("device/load")
    if isinstance(content, str):
        return unknown(GPU_BUSY, content, label)
    return read_as(GPU_BUSY, parse_permille(content), "implausible", label)
