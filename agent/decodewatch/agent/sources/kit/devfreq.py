"""Devices whose clock the kernel scales, other than CPUs: /sys/class/devfreq.

A node has the name of its device: `17000000.ga10b` (an address, and the name in the device tree),
`soc:qcom,cpu-llcc-ddr-bw`, `bwmgr`. Kernels around 5.0 number them instead (`devfreq0`); then the
name is in device/of_node/name. Files hold numbers in the unit of the driver, which is Hz for most
(the kernel's Documentation/ABI/testing/sysfs-class-devfreq).
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import untaken
from decodewatch.agent.sources.kit.text import whole_number

_MOST_LISTED: Final = 256  # the largest phones have about 80
_NAME_LIMIT: Final = 64  # bytes of a name in the device tree

_NUMBERED = re.compile(r"devfreq\d+")
_ADDRESS = re.compile(r"(?:[0-9a-f]+\.|soc:)(?=.)")


class Load(NamedTuple):
    """How busy a device was, and at which clock."""

    share: float
    hertz: int


def parse_load(content: bytes) -> Load | None:
    """The load as Rockchip's kernels write it, `27@2112000000Hz`: percent of the time, clock.

    None for anything else.
    """
    text = content.strip()
    if not text.endswith(b"Hz"):
        return None
    percent, at, hertz = text[:-2].partition(b"@")
    share, clock = whole_number(percent), whole_number(hertz)
    if not at or share is None or clock is None or not 0 <= share <= 100 or clock < 0:
        return None
    return Load(share / 100, clock)


def parse_highest(content: bytes) -> int | None:
    """The highest of available_frequencies, `204000000 408000000`; None unless all are whole."""
    if not content.endswith(b"\n"):
        return None
    numbers = [whole_number(field) for field in content.split()]
    known = [number for number in numbers if number is not None]
    return max(known) if known and len(known) == len(numbers) else None


class Node:
    """One device, and its files."""

    def __init__(self, key: str, name: str, folder: Path, kernel: Kernel) -> None:
        self.key = key  # what tells it from others, and stays
        self.name = name
        self.listed = True  # whether it was there at the last look
        self.missed = False  # whether its clock was absent at the last read
        self.vanished = False  # whether that is news
        self._folder = folder
        self._kernel = kernel
        self._files: dict[str, PolledFile] = {}

    def read(self, file: str) -> bytes | Reason:
        """The content of a file of its folder, or why there is none."""
        if not self.listed:
            return "absent"
        polled = self._files.get(file)
        if polled is None:
            polled = self._files[file] = PolledFile(self._folder / file, self._kernel)
        content = polled.read()
        if file == "cur_freq":
            missed = content == "absent"
            self.vanished |= missed and not self.missed
            self.missed = missed
        return content

    def move(self, folder: Path | None) -> None:
        """It was listed again: in `folder`, or not at all."""
        if folder != self._folder:
            self.close()
            self._files.clear()
        self.listed = folder is not None
        if folder is not None:
            self._folder = folder
        for file in self._files.values():
            file.retry_if_absent()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class Nodes:
    """The nodes whose name is `wanted`, at most `most`. They may come long after boot."""

    def __init__(
        self, root: Path, wanted: re.Pattern[str], most: int, kernel: Kernel = KERNEL
    ) -> None:
        self.missing: Reason = "absent"
        """Why there are none."""
        self._root = root / "sys/class/devfreq"
        self._wanted = wanted
        self._most = most
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "", _MOST_LISTED, kernel, numbered=False)
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, str] = {}  # by member, as the device tree says

    def look(self) -> list[Node]:
        """Every node that there has been, those that vanished included."""
        for node in self._nodes.values():
            if node.vanished:
                node.vanished = False
                self._folder.look_again()
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        return list(self._nodes.values())

    def close(self) -> None:
        """Close the files."""
        for node in self._nodes.values():
            node.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        found: dict[str, tuple[str, Path]] = {}
        if isinstance(members, str):
            self.missing = members
        else:
            self.missing = "absent"
            found = self._find(members)
        for key, node in self._nodes.items():
            _, folder = found.pop(key, (None, None))
            node.move(folder)
        for key, (name, folder) in found.items():
            if len(self._nodes) < self._most:
                self._nodes[key] = Node(key, name, folder, self._kernel)

    def _find(self, members: list[str]) -> dict[str, tuple[str, Path]]:
        """Name and folder of the wanted nodes, by key."""
        found: dict[str, tuple[str, Path]] = {}
        names: dict[str, str] = {}
        for member in members:
            numbered = _NUMBERED.fullmatch(member) is not None
            name = _ADDRESS.sub("", member, count=1)
            if not self._wanted.fullmatch(name):
                # A number may be another device's since the last look.
                known = None if numbered else self._names.get(member)
                name = names[member] = self._tree_name(member) if known is None else known
            if self._wanted.fullmatch(name):
                key = untaken(name, found) if numbered else member
                found[key] = name, self._root / member
        self._names = names
        return found

    def _tree_name(self, member: str) -> str:
        content = read_once(self._root / member / "device/of_node/name", _NAME_LIMIT, self._kernel)
        if isinstance(content, str):
            return ""
        return content.strip(b"\0\n").decode("ascii", "replace")
