"""What board this is, by its device tree: /proc/device-tree/compatible.

A list of names from the board's own to its chip's, each ended by a NUL byte, as the Devicetree
Specification has it: `nvidia,p3767-0005-super`, `nvidia,tegra234`. PCs and most phones have none.
"""

from pathlib import Path
from typing import Final

from decodewatch.agent.sources.kit.files import read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel

_LIMIT: Final = 1024  # bytes read; the longest known are below 200


def parse(content: bytes) -> list[str]:
    """The names that are whole: the last one counts only where its NUL byte is there too."""
    return [name.decode("ascii", "replace") for name in content.split(b"\0")[:-1] if name]


def compatible(root: Path, kernel: Kernel = KERNEL) -> list[str]:
    """What the board says that it is; nothing where there is no device tree, or none to be read."""
    content = read_once(root / "proc/device-tree/compatible", _LIMIT, kernel)
    return [] if isinstance(content, str) else parse(content)


def is_jetson(root: Path, kernel: Kernel = KERNEL) -> bool:
    """Whether the chip is one of NVIDIA's Tegra: all Jetsons have one."""
    return any(name.startswith("nvidia,tegra") for name in compatible(root, kernel))
