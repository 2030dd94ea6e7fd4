"""The power mode that is set, and the clocks that it allows.

On a Jetson it is a mode of NVIDIA's nvpmodel. `nvpmodel -q` prints `NV Power Mode: MAXN_SUPER` and
the mode's number on the next line, between others: `NV Fan Mode:quiet`, `NVPM WARN: ...`. The
number alone is in /var/lib/nvpmodel/status as well, `pmode:0002`, which shows within a second that
another mode was set. /sys/kernel/nvpmodel_clk_cap has a file for each clock that the mode caps, in
Hz (Jetson Linux Developer Guide, "Power Management"; seen on L4T 36).

Elsewhere it is the platform profile, a word such as `balanced`: /sys/firmware/acpi/platform_profile
or, since Linux 6.14, /sys/class/platform-profile (Documentation/userspace-api/
sysfs-platform_profile.rst).
"""

from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    read_as,
    unknown,
    word_of,
)
from decodewatch.agent.sources.kit.commands import PolledCommand
from decodewatch.agent.sources.kit.common import POWER_MODE
from decodewatch.agent.sources.kit.device_tree import is_jetson
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable
from decodewatch.agent.sources.kit.text import only_number, whole_number

CAP = Measurement(
    "power_cap_hertz",
    "hertz",
    "gauge",
    "highest clock that the power mode allows the part that the label names",
)

COMMAND: Final = ("/usr/sbin/nvpmodel", "-q")
EVERY_S: Final = 60.0
DEADLINE_S: Final = 10.0

MOST_CAPS: Final = 16
_MOST_PROFILES: Final = 4

_LEAST_HZ: Final = 1_000_000
_UNLIMITED_HZ: Final = 20_000_000_000  # no clock of a board is as high
_MODE_DIGITS: Final = 4
_MOST_NAMES: Final = 64  # modes whose names are remembered


class Mode(NamedTuple):
    """What `nvpmodel -q` said: the mode's name and, where it is there, its number."""

    name: str
    number: int | None


def parse(printed: bytes) -> Mode | None:
    """The mode in what `nvpmodel -q` printed; None without one, and where its line was cut."""
    lines = printed.split(b"\n")[:-1]
    for at, line in enumerate(lines):
        start, colon, rest = line.strip().partition(b":")
        if colon and start.strip() == b"NV Power Mode":
            name = printable(rest)
            follows = whole_number(lines[at + 1].strip()) if at + 1 < len(lines) else None
            return Mode(name, follows) if name else None
    return None


def parse_status(content: bytes) -> int | None:
    """The number of the mode in /var/lib/nvpmodel/status; None without all of its digits."""
    _, found, rest = content.partition(b"pmode:")
    digits = rest[:_MODE_DIGITS]
    if not found or len(digits) < _MODE_DIGITS or rest[_MODE_DIGITS:][:1].isdigit():
        return None
    number = whole_number(digits)
    return number if number is not None and number >= 0 else None


def parse_profile(content: bytes) -> str | None:
    """The word of a platform profile; None where it was cut."""
    return (printable(content) or None) if content.endswith(b"\n") else None


def parse_cap(content: bytes) -> int | Reason:
    """The clock of a cap in Hz. Modes without a limit write 0, -1 or the largest number."""
    hertz = only_number(content)
    if hertz is None or 0 < hertz < _LEAST_HZ or hertz < -1:
        return "implausible"
    return hertz if 0 < hertz < _UNLIMITED_HZ else "unlimited"


class PowerMode:
    """Reads the power mode of a Jetson and its caps, or the platform profile of other devices."""

    name = "power_mode"
    reads: ClassVar = (
        "nvpmodel -q, /var/lib/nvpmodel/status, /sys/kernel/nvpmodel_clk_cap/*;"
        " /sys/firmware/acpi/platform_profile, /sys/class/platform-profile/*/profile"
    )
    platform: ClassVar = "Jetson; PC"
    permission: ClassVar = "anyone; root for the name of the mode with JetPack 4"
    measurements: ClassVar[tuple[Measurement, ...]] = (POWER_MODE, CAP)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._source: _Nvpmodel | _Profile | None = None

    def read(self) -> list[Reading]:
        """The mode, and one reading a cap; one without a label and a value where there is none."""
        if self._source is None:
            # A child is started on a Jetson only: its device tree does not change while it runs.
            kind = _Nvpmodel if is_jetson(self._root, self._kernel) else _Profile
            self._source = kind(self._root, self._kernel)
        return self._source.read()

    def close(self) -> None:
        """Close the files, and end the program."""
        if self._source is not None:
            self._source.close()


class _Nvpmodel:
    """The mode of a Jetson."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self._kernel = kernel
        self._status = PolledFile(root / "var/lib/nvpmodel/status", kernel)
        self._command = self._ask()
        self._number: int | None = None
        self._names: dict[int, str] = {}
        self._caps = _Caps(root, kernel)

    def read(self) -> list[Reading]:
        return [self._mode(), *self._caps.read()]

    def close(self) -> None:
        self._status.close()
        self._command.close()
        self._caps.close()

    def _ask(self) -> PolledCommand:
        return PolledCommand(COMMAND, EVERY_S, DEADLINE_S, self._kernel)

    def _mode(self) -> Reading:
        content = self._status.read()
        number = parse_status(content) if not isinstance(content, str) else None
        if number is not None and number != self._number:
            if self._number is not None:
                # Another mode was set: what the program said is about the one before.
                self._command.close()
                self._command = self._ask()
            self._number = number
        printed = self._command.read()
        why: Reason = "implausible"
        if isinstance(printed, str):
            why = printed
        else:
            mode = parse(printed)
            if mode is not None:
                if mode.number is not None and len(self._names) < _MOST_NAMES:
                    self._names[mode.number] = mode.name
                return word_of(POWER_MODE, mode.name, "absent")
        if number is None:
            return unknown(POWER_MODE, why)
        name = self._names.get(number)
        if name is None and why == "transient":
            return unknown(POWER_MODE, why)  # the program runs
        return word_of(POWER_MODE, name or f"mode {number}", "absent")


class _Caps:
    """The clocks that a Jetson's power mode caps."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self._root = root / "sys/kernel/nvpmodel_clk_cap"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "", MOST_CAPS, kernel, numbered=False)
        self._files: dict[str, PolledFile] = {}
        self._no_caps: Reason = "absent"

    def read(self) -> list[Reading]:
        members = self._folder.look()
        if isinstance(members, str):
            self._no_caps = members
        elif members is not None:
            self._no_caps = "absent"
            for member in members:
                known = self._files.get(member)
                if known is not None:
                    known.retry_if_absent()
                elif len(self._files) < MOST_CAPS:
                    self._files[member] = PolledFile(self._root / member, self._kernel)
        if not self._files:
            return [unknown(CAP, self._no_caps)]
        readings = []
        for label, file in self._files.items():
            content = file.read()
            hertz = parse_cap(content) if not isinstance(content, str) else content
            if isinstance(hertz, str):
                readings.append(unknown(CAP, hertz, label))
            else:
                readings.append(read_as(CAP, hertz, "absent", label))
        return readings

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Profile:
    """The platform profile of a PC."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self._root = root / "sys/class/platform-profile"
        self._kernel = kernel
        self._file = PolledFile(root / "sys/firmware/acpi/platform_profile", kernel)
        self._folder = PolledFolder(self._root, "", _MOST_PROFILES, kernel, numbered=False)
        self._files: dict[str, PolledFile] = {}

    def read(self) -> list[Reading]:
        content = self._file.read()
        found = _word(content)
        if content == "absent":
            words = [_word(part) for part in self._parts()]
            unread = [word for word in words if not word.known]
            if unread:
                found = unread[0]
            elif words:
                # Drivers that differ have no profile together; the kernel calls that custom.
                found = words[0] if len(set(words)) == 1 else _word(b"custom\n")
        return [found, unknown(CAP, "absent")]

    def close(self) -> None:
        self._file.close()
        for file in self._files.values():
            file.close()

    def _parts(self) -> list[bytes | Reason]:
        members = self._folder.look()
        if members is not None:
            found = [] if isinstance(members, str) else members
            for member in [known for known in self._files if known not in found]:
                self._files.pop(member).close()
            for member in found:
                if member not in self._files:
                    self._files[member] = PolledFile(self._root / member / "profile", self._kernel)
        return [file.read() for file in self._files.values()]


def _word(content: bytes | Reason) -> Reading:
    if isinstance(content, str):
        return unknown(POWER_MODE, content)
    return word_of(POWER_MODE, parse_profile(content), "implausible")
