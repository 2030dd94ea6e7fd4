"""Temperatures and power of chips that are no thermal zones: /sys/class/hwmon/hwmon*.

A PC's processor (coretemp, k10temp), its disks (nvme) and its board have no thermal zone. Files are
`temp1_input` in thousandths of a degree, `power1_average` or `power1_input` in microwatts, and what
the sensor is called in `temp1_label` (the kernel's Documentation/hwmon/sysfs-interface.rst). The
label of a measurement is the chip's name and that of the sensor, `nvme Composite`, or its file,
`nct6793 temp3`, where it has none.

`temp1_fault` is 1 where the sensor is not connected; whatever its value is, it is none then.

Thermal zones are shown as chips as well, with `_` for `-` in their names, since Linux 7.2 with the
zone's number behind it (`acpitz_0`), and so are batteries: both are left to the sources that read
them where they are at home.
"""

from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import Measurement, Reading, read_as, unknown
from decodewatch.agent.sources.kit.common import POWER, TEMP
from decodewatch.agent.sources.kit.files import RELIST_SOON_S, read_once
from decodewatch.agent.sources.kit.hwmon import Chip, Chips
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable, untaken
from decodewatch.agent.sources.kit.temperatures import Nothing
from decodewatch.agent.sources.kit.text import only_number

MOST_SENSORS: Final = 16
"""Sensors of a chip at most: of its temperatures, and of its powers."""

PLAUSIBLE_ABOVE_C: Final = -40.0
PLAUSIBLE_BELOW_C: Final = 127.0
"""127 and 128 are what registers of eight bits hold where nothing is connected, and no chip lives
that hot."""
MOST_WATTS: Final = 10_000.0
"""More is no device that decodes at the edge; 4294967.295 W is a power meter that has no value."""

# These have a source of their own, which knows the names of their rails.
_RAILS: Final = frozenset({"ina3221", "ina238"})
# A question to a disk that sleeps wakes it, or keeps it from falling asleep.
_DISKS: Final = frozenset({"drivetemp"})
SLOWLY_S: Final = 10.0
_SLOW: Final = frozenset({"nvme"})
"""Chips that are asked every `SLOWLY_S`: a disk answers a command each time, and may not rest."""

_CARDS: Final = frozenset({"amdgpu", "radeon"})
_ZONE_TYPE_LIMIT: Final = 64
_MOST_ZONES: Final = 256


def parse_temp(content: bytes) -> float | None:
    """The degrees of a `temp1_input`; None for what is no temperature."""
    milli = only_number(content)
    if milli is None or not PLAUSIBLE_ABOVE_C < milli / 1000 < PLAUSIBLE_BELOW_C:
        return None
    return milli / 1000


def parse_power(content: bytes) -> float | None:
    """The watts of a `power1_average` or `power1_input`; None for what is no power."""
    micro = only_number(content)
    if micro is None or not 0 <= micro / 1e6 < MOST_WATTS:
        return None
    return micro / 1e6


def is_read_here(name: str) -> bool:
    """Whether the chip's own name does not leave it to another source, or to nobody."""
    return name not in _RAILS and name not in _DISKS


class _Sensor(NamedTuple):
    row: Measurement
    label: str
    file: str
    fault: str | None = None  # the file that says whether it is connected
    nothing: Nothing | None = None


class _Kept:
    """The last readings of a chip that is asked slowly."""

    __slots__ = ("due_at", "readings")

    def __init__(self) -> None:
        self.due_at = float("-inf")
        self.readings: list[Reading] = []


class Hwmon:
    """Reads the temperatures and powers of every chip that is no thermal zone, rail or battery."""

    name = "hwmon"
    reads: ClassVar = "/sys/class/hwmon/hwmon*/{name,temp*,power*}"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (TEMP, POWER)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._zones = root / "sys/class/thermal"
        self._hwmon = root / "sys/class/hwmon"
        self._kernel = kernel
        self._chips = Chips(root, self._is_read_here, self._sensors_of, kernel)
        self._kept: dict[str, _Kept] = {}
        self._names: set[str] = set()
        self._nothing: dict[str, Nothing] = {}
        self._names_due_at = float("-inf")

    def read(self) -> list[Reading]:
        """One reading a sensor, of chips that went away included.

        One without a label and a value of what no chip has.
        """
        readings: list[Reading] = []
        for chip, sensors in self._chips.look():
            if chip.name in _SLOW:
                readings += self._read_slowly(chip, sensors)
            else:
                readings += [_read(chip, sensor) for sensor in sensors]
        found = {reading.measurement for reading in readings}
        missing = [row for row in self.measurements if row not in found]
        return readings + [unknown(row, self._chips.no_chips) for row in missing]

    def close(self) -> None:
        """Close the files."""
        self._chips.close()
        self._kept.clear()

    def _read_slowly(self, chip: Chip, sensors: list[_Sensor]) -> list[Reading]:
        now = self._kernel.monotonic()
        kept = self._kept.setdefault(chip.label, _Kept())
        if now >= kept.due_at or not chip.present:
            kept.readings = [_read(chip, sensor) for sensor in sensors]
            kept.due_at = now + SLOWLY_S if chip.present else now
        return kept.readings

    def _is_read_here(self, name: str) -> bool:
        return is_read_here(name) and name not in self._zone_names()

    def _sensors_of(self, chip: Chip) -> list[_Sensor]:
        # Of the devices whose chips get here, only batteries and thermal zones have a type.
        device = read_once(self._hwmon / chip.member / "device/type", 1, self._kernel)
        if not isinstance(device, str):
            return []
        return _temps_of(chip, self._nothing) + _powers_of(chip)

    def _zone_names(self) -> set[str]:
        """The names that the thermal zones have as chips."""
        now = self._kernel.monotonic()
        if now < self._names_due_at:
            return self._names
        self._names_due_at = now + RELIST_SOON_S  # the chips are listed no sooner
        self._names = set()
        try:
            members = self._kernel.listdir(str(self._zones))
        except OSError:
            return self._names
        zones = sorted(member for member in members if member.startswith("thermal_zone"))
        for member in zones[:_MOST_ZONES]:
            path = self._zones / member / "type"
            content = read_once(path, _ZONE_TYPE_LIMIT, self._kernel)
            if not isinstance(content, str):
                name = printable(content).replace("-", "_")
                self._names |= {name, f"{name}_{member.removeprefix('thermal_zone')}"}
        return self._names


def _temps_of(chip: Chip, nothing: dict[str, Nothing]) -> list[_Sensor]:
    words = {number: chip.word(f"temp{number}_label") for number in chip.numbers("temp", "_input")}
    if chip.name == "coretemp":
        # That of the package is the hottest of its cores, and to ask a core wakes it.
        packages = {n: word for n, word in words.items() if not word.startswith("Core ")}
        words = packages or words
    if "Tdie" in words.values():
        # Tctl is Tdie and what makes the fans run faster: up to 27 degrees too many.
        words = {n: word for n, word in words.items() if word != "Tctl"}
    sensors: list[_Sensor] = []
    for number, word in list(words.items())[:MOST_SENSORS]:
        label = f"{chip.label} {word or f'temp{number}'}"
        label = untaken(label, (sensor.label for sensor in sensors))
        fault = f"temp{number}_fault"
        sensors.append(
            _Sensor(
                TEMP,
                label,
                f"temp{number}_input",
                fault if fault in chip.files else None,
                nothing.setdefault(label, Nothing()),
            )
        )
    return sensors


def _powers_of(chip: Chip) -> list[_Sensor]:
    averages = chip.numbers("power", "_average")
    numbers = sorted({*averages, *chip.numbers("power", "_input")})
    sensors: list[_Sensor] = []
    for number in numbers[:MOST_SENSORS]:
        # That of a graphics card (PPT, slowPPT) is called as the chip is, also on the day when a
        # kernel shows others beside it, and so is one that has no name. Others go by their names:
        # the first of several is the input of the mains, or anything else.
        label, word = chip.label, chip.word(f"power{number}_label")
        if number != numbers[0] or (word and chip.name not in _CARDS):
            label += f" {word or f'power{number}'}"
        label = untaken(label, (sensor.label for sensor in sensors))
        kind = "average" if number in averages else "input"
        sensors.append(_Sensor(POWER, label, f"power{number}_{kind}"))
    return sensors


def _read(chip: Chip, sensor: _Sensor) -> Reading:
    content = chip.read(sensor.file)
    if isinstance(content, str):
        return unknown(sensor.row, content, sensor.label)
    if sensor.row is POWER:
        return read_as(POWER, parse_power(content), "implausible", sensor.label)
    celsius = parse_temp(content)
    if celsius is not None and sensor.nothing is not None and sensor.nothing.see(celsius):
        celsius = None
    if sensor.fault is not None and celsius is not None:
        fault = chip.read(sensor.fault)
        if not isinstance(fault, str) and only_number(fault) == 1:
            celsius = None
    return read_as(TEMP, celsius, "implausible", sensor.label)
