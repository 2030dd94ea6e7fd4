"""Chips of /sys/class/hwmon, found by the names that their drivers give them.

A chip is a folder hwmonN with `name` and files such as `temp1_input` and `temp1_label` (the
kernel's Documentation/hwmon/sysfs-interface.rst). N changes from boot to boot and when a driver is
loaded again. Old drivers leave all of that to the folder `device` in it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable, untaken, whole

MOST_CHIPS: Final = 32
"""Chips of a source at most; a PC has about ten of all kinds."""
_MOST_LISTED: Final = 256  # of all chips; phones show each of their thermal zones as one
_WORD_LIMIT: Final = 64  # bytes read of a name or label

Sensors = TypeVar("Sensors")


class Chip:
    """One chip. While it is away its files are `absent`; what it had is remembered."""

    __slots__ = (
        "_folder",
        "_kernel",
        "_look_again",
        "_missing",
        "_open",
        "files",
        "label",
        "member",
        "name",
        "present",
    )

    def __init__(
        self, name: str, label: str, kernel: Kernel, look_again: Callable[[], None]
    ) -> None:
        self.name = name
        self.label = label  # the name; `nvme#2` for the second of that name
        self.files: frozenset[str] = frozenset()
        self.member = ""  # hwmon3
        self.present = False
        self._folder = Path()
        self._kernel = kernel
        self._look_again = look_again
        self._open: dict[str, PolledFile] = {}
        self._missing: set[str] = set()

    def read(self, file: str) -> bytes | Reason:
        """A file of the chip that is read again and again, such as `temp1_input`."""
        if not self.present:
            return "absent"
        polled = self._open.get(file)
        if polled is None:
            polled = self._open[file] = PolledFile(self._folder / file, self._kernel)
        content = polled.read()
        if content != "absent":
            self._missing.discard(file)
        elif file not in self._missing:
            self._missing.add(file)
            self._look_again()
        return content

    def numbers(self, start: str, end: str) -> list[int]:
        """The numbers of the files between `start` and `end`: `temp`, 1, `_input`."""
        middles = [
            file[len(start) : -len(end)]
            for file in self.files
            if file.startswith(start) and file.endswith(end)
        ]
        return sorted(
            int(text) for text in middles if text.isascii() and text.isdigit() and len(text) < 4
        )

    def word(self, file: str, *, uncut: bool = False) -> str:
        """The text of a file such as `temp1_label`; '' where there is none, or where it is to be
        `uncut` and may be half of one."""
        if file not in self.files:
            return ""
        content = read_once(self._folder / file, _WORD_LIMIT, self._kernel)
        if isinstance(content, str):
            return ""
        return whole(content) if uncut else printable(content)

    def found(self, member: str, folder: Path) -> None:
        """The chip was seen there when the folder was listed."""
        if folder != self._folder:
            self.close()
            self._folder = folder
        self.member = member
        self.present = True
        try:
            self.files = frozenset(self._kernel.listdir(str(folder)))
        except OSError:
            pass  # it goes away at this moment, or may be read and not listed: what it had stays
        for file in self._open.values():
            file.retry_if_absent()

    def gone(self) -> None:
        """The chip was not seen when the folder was listed."""
        self.present = False
        self.close()

    def close(self) -> None:
        """Close the files; they are opened again by later reads."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._missing.clear()


class Chips(Generic[Sensors]):
    """The chips whose names are wanted, with the sensors that a source found on each.

    `sensors_of` makes them out of `chip.files` and `chip.word`. It is called when a chip is found,
    and again each time the folder is listed: about once a minute.

        for chip, rails in self._chips.look():
            for rail in rails:
                content = chip.read(rail.current_file)
    """

    def __init__(
        self,
        root: Path,
        wanted: Callable[[str], bool],
        sensors_of: Callable[[Chip], Sensors],
        kernel: Kernel = KERNEL,
    ) -> None:
        self._root = root / "sys/class/hwmon"
        self._wanted = wanted
        self._sensors_of = sensors_of
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "hwmon", _MOST_LISTED, kernel)
        self._chips: list[tuple[Chip, Sensors]] = []
        self.no_chips: Reason = "absent"
        """Why there is no chip, where `look` returns none."""

    def look(self) -> list[tuple[Chip, Sensors]]:
        """Every chip that was found so far, also one that is away, and its sensors.

        In the order of their numbers when they were found. Two chips of one name keep their labels
        for as long as one of them stays.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        return self._chips

    def close(self) -> None:
        """Close the files."""
        for chip, _ in self._chips:
            chip.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        names: dict[str, tuple[str, Path]] = {}
        if isinstance(members, str):
            self.no_chips = members
        else:
            self.no_chips = "absent"
            for member in members:
                found = self._named(self._root / member)
                if found is not None and self._wanted(found[0]):
                    names[member] = found
        chips = [chip for chip, _ in self._chips]
        stays = [
            chip for chip in chips if chip.member in names and names[chip.member][0] == chip.name
        ]
        for chip in chips:
            if chip in stays:
                chip.found(chip.member, names.pop(chip.member)[1])
            else:
                chip.gone()
        for member, (name, folder) in names.items():
            away = [chip for chip in chips if chip.name == name and not chip.present]
            if away:
                chip = away[0]
            else:
                if len(chips) == MOST_CHIPS:
                    chips = [kept for kept in chips if kept.present]
                if len(chips) == MOST_CHIPS:
                    break
                chip = Chip(
                    name,
                    untaken(name, (kept.label for kept in chips)),
                    self._kernel,
                    self._folder.look_again,
                )
                chips.append(chip)
            chip.found(member, folder)
        known = {chip.label: sensors for chip, sensors in self._chips}
        self._chips = []
        for chip in chips:
            stays_away = not chip.present and chip.label in known
            sensors = known[chip.label] if stays_away else self._sensors_of(chip)
            self._chips.append((chip, sensors))

    def _named(self, folder: Path) -> tuple[str, Path] | None:
        """The name of a chip, and the folder that has its files."""
        for place in (folder, folder / "device"):
            content = read_once(place / "name", _WORD_LIMIT, self._kernel)
            if not isinstance(content, str):
                name = printable(content)
                return (name, place) if name else None
            if content != "absent":
                self.no_chips = content
        return None
