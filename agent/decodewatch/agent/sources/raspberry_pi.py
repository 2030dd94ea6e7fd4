"""What the firmware of a Raspberry Pi says about its limits.

It holds the clocks down by itself, and `scaling_max_freq` does not move: only this word says so. It
is in /sys/devices/platform/soc/soc:firmware/get_throttled of the Raspberry Pi's own kernels, 50005
in hexadecimal (on a Pi 5 the chip is called soc@107c000000 there, and not all of its kernels have
the file), and `vcgencmd get_throttled` prints it, `throttled=0x50005`, for members of the
group video (https://www.raspberrypi.com/documentation/computers/os.html#get_throttled). Anybody may
read the alarm `in0_lcrit_alarm` of the chip `rpi_volt` in /sys/class/hwmon: whether the supply is
too low now.
"""

from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.commands import PolledCommand
from decodewatch.agent.sources.kit.device_tree import compatible
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.hwmon import Chip, Chips
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

NOW = Measurement(
    "firmware_limit",
    "count",
    "gauge",
    "1 while the firmware sees too low a supply (under_voltage), caps the CPU's clock"
    " (frequency_capped), slows it down (throttled), or has passed its first limit of heat"
    " (soft_temp_limit), else 0",
)
SINCE_BOOT = Measurement(
    "firmware_limit_since_boot", "count", "gauge", "1 where that has been so since boot, else 0"
)

LIMITS: Final = ("under_voltage", "frequency_capped", "throttled", "soft_temp_limit")
"""The limits in the order of their bits: from bit 0 on now, from bit 16 on since boot."""
_SINCE_BOOT_SHIFT: Final = 16

COMMAND: Final = ("vcgencmd", "get_throttled")
COMMAND_EVERY_S: Final = 10.0
COMMAND_DEADLINE_S: Final = 5.0

_WORD_NIBBLES: Final = 8
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


def parse(content: bytes) -> int | None:
    """The word of the file or of the command; None for anything else.

    None also where the newline is missing: the number may have been cut.
    """
    if not content.endswith(b"\n"):
        return None
    digits = content.strip().removeprefix(b"throttled=").removeprefix(b"0x")
    if not 0 < len(digits) <= _WORD_NIBBLES or not _HEX.issuperset(digits):
        return None
    return int(digits, 16)


class RaspberryPi:
    """Reads the firmware's word, else the alarm; nothing on other boards."""

    name = "raspberry_pi"
    reads: ClassVar = (
        "/sys/devices/platform/soc*/soc*:firmware/get_throttled, vcgencmd get_throttled,"
        " /sys/class/hwmon/hwmon*/in0_lcrit_alarm"
    )
    platform: ClassVar = "Raspberry Pi"
    permission: ClassVar = "vcgencmd: group video; else anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (NOW, SINCE_BOOT)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._is_pi: bool | None = None
        self._file = PolledFile(self._path("soc"), kernel)
        self._command = PolledCommand(COMMAND, COMMAND_EVERY_S, COMMAND_DEADLINE_S, kernel)
        self._chips = Chips(root, lambda name: name == "rpi_volt", _alarms_of, kernel)

    def read(self) -> list[Reading]:
        """Two readings a limit; one of each without a label and a value on other boards."""
        if self._is_pi is None:
            names = compatible(self._root, self._kernel)
            self._is_pi = any(name.startswith("raspberrypi,") for name in names)
            if self._is_pi:
                self._find_file()
        if not self._is_pi:
            return [unknown(row, "absent") for row in self.measurements]
        content = self._file.read()
        if isinstance(content, str):
            content = self._command.read()
        word = content if isinstance(content, str) else parse(content)
        if word is None:
            word = "implausible"
        readings = [_limit(NOW, word, bit, name) for bit, name in enumerate(LIMITS)]
        if isinstance(word, str):
            readings[0] = self._alarm(readings[0])
        return readings + [
            _limit(SINCE_BOOT, word, bit, name)
            for bit, name in enumerate(LIMITS, _SINCE_BOOT_SHIFT)
        ]

    def close(self) -> None:
        """Close the files, and end the command where it runs."""
        self._file.close()
        self._command.close()
        self._chips.close()

    def _path(self, chip: str) -> Path:
        platform = self._root / "sys/devices/platform"
        return platform / chip / f"{chip}:firmware/get_throttled"

    def _find_file(self) -> None:
        try:
            names = self._kernel.listdir(str(self._root / "sys/devices/platform"))
        except OSError:
            return
        chips = sorted(name for name in names if name.startswith("soc@"))
        if chips and "soc" not in names:
            self._file = PolledFile(self._path(chips[0]), self._kernel)

    def _alarm(self, otherwise: Reading) -> Reading:
        """The supply as the chip sees it; `otherwise` where it has nothing to say."""
        for chip, alarms in self._chips.look():
            for alarm in alarms:
                content = chip.read(alarm)
                number = None if isinstance(content, str) else only_number(content)
                if number in (0, 1):
                    return read_as(NOW, number, "implausible", LIMITS[0])
        return otherwise


def _limit(row: Measurement, word: int | Reason, bit: int, name: str) -> Reading:
    if isinstance(word, str):
        return unknown(row, word, name)
    return read_as(row, word >> bit & 1, "implausible", name)


def _alarms_of(chip: Chip) -> list[str]:
    return sorted(chip.files & {"in0_lcrit_alarm"})
