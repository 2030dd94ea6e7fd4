"""Temperatures: /sys/class/thermal/thermal_zone*.

A zone is known by its type, because its number changes from boot to boot and when a driver is
loaded again. Two zones of one type are told apart by `#2`, `#3`, in the order of their numbers when
they were first seen, and keep these labels. Which zones may be the device's hottest sensor,
`decodewatch.shared.sensors` says (`is_junction`).

A zone is a folder with `type`, `temp` (42593 is 42.593 C for nearly all drivers) and often `mode`
(the kernel's Documentation/driver-api/thermal/sysfs-api.rst).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.common import TEMP
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

MOST_ZONES: Final = 128
"""Zones reported at most: the largest phones have about 100."""
_TYPE_LIMIT: Final = 64  # bytes read of a zone's type; kernels allow 19

PLAUSIBLE_ABOVE_C: Final = -40.0
PLAUSIBLE_BELOW_C: Final = 150.0

# Zones of phones whose "temperature" is a voltage, a current or a charge.
_NOT_TEMPERATURE: Final = ("vbat", "ibat", "bcl")
_NOT_TEMPERATURE_EXACTLY: Final = frozenset({"soc", "socd"})  # state of charge; soc0-thermal is not

_DECI_TYPES: Final = ("tsens_tz_sensor",)  # of Qualcomm's old kernels: 402 is 40.2 C


def measures_temperature(zone_type: str) -> bool:
    """Whether the zone measures one: phones list voltages and charge as thermal zones too."""
    lower = zone_type.lower()
    if lower in _NOT_TEMPERATURE_EXACTLY or lower.startswith(_NOT_TEMPERATURE):
        return False
    return not any(f"-{part}" in lower for part in _NOT_TEMPERATURE)


def parse(content: bytes) -> int | None:
    """The number of a zone's `temp`, in the unit of its driver."""
    return only_number(content)


def celsius(raw: int, zone_type: str, *, in_milli: bool) -> float | None:
    """The temperature, or None where it is implausible.

    Nearly all drivers report thousandths. Some of MediaTek's and Qualcomm's old ones report whole
    degrees, or tenths: small numbers are taken for these, unless the zone is known to be
    `in_milli`.
    """
    if in_milli:
        value = raw / 1000
    elif abs(raw) < 200:
        value = float(raw)
    elif abs(raw) < 2000 and zone_type.startswith(_DECI_TYPES):
        value = raw / 10
    else:
        value = raw / 1000
    return value if PLAUSIBLE_ABOVE_C < value < PLAUSIBLE_BELOW_C else None


def proves_milli(raw: int, value: float | None) -> bool:
    """Whether a zone that read so reports thousandths: it did not warm up to 2000 degrees.

    From then on, 150 is 0.15 C outdoors and not 150 C.
    """
    return abs(raw) >= 2000 and value is not None


class _Zone:
    __slots__ = ("file", "in_milli", "label", "listed", "member", "missed", "type")

    def __init__(self, label: str, zone_type: str, member: str, file: PolledFile) -> None:
        self.label = label
        self.type = zone_type
        self.in_milli = False
        self.move(member, file)

    def move(self, member: str, file: PolledFile) -> None:
        self.member = member
        self.file = file
        self.listed = True  # whether the folder showed it when it was last listed
        self.missed = False  # whether it was absent at the last read

    def read(self) -> Reading:
        content = self.file.read() if self.listed else "absent"
        if isinstance(content, str):
            return unknown(TEMP, content, self.label)
        raw = parse(content)
        if raw is None:
            return unknown(TEMP, "implausible", self.label)
        value = celsius(raw, self.type, in_milli=self.in_milli)
        if not self.in_milli:
            self.in_milli = proves_milli(raw, value)
        return read_as(TEMP, value, "implausible", self.label)


class Thermal:
    """Reads the thermal zones that are enabled and measure a temperature."""

    name = "thermal"
    reads: ClassVar = "/sys/class/thermal/thermal_zone*/{type,mode,temp}"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (TEMP,)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/class/thermal"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "thermal_zone", MOST_ZONES, kernel)
        self._zones: list[_Zone] = []
        self._no_zones: Reason = "absent"

    def read(self) -> list[Reading]:
        """One reading a zone, absent ones that were there before included.

        One reading without a label and a value where there has never been a zone.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        if not self._zones:
            return [unknown(TEMP, self._no_zones)]
        readings = []
        for zone in self._zones:
            reading = zone.read()
            missed = reading.reason == "absent"
            if missed and not zone.missed:
                self._folder.look_again()
            zone.missed = missed
            readings.append(reading)
        return readings

    def close(self) -> None:
        """Close the files."""
        for zone in self._zones:
            zone.file.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        """Give every zone its file again, by type, after the folder was listed."""
        types: dict[str, str] = {}
        if isinstance(members, str):
            self._no_zones = members
        else:
            self._no_zones = "absent"
            types = self._types(members)
        for zone in self._zones:
            zone.listed = types.get(zone.member) == zone.type
            if zone.listed:
                del types[zone.member]
                zone.file.retry_if_absent()
            else:
                zone.file.close()
        for member, zone_type in types.items():
            file = PolledFile(self._root / member / "temp", self._kernel)
            moved = self._unlisted(zone_type)
            if moved is not None:
                moved.move(member, file)
            else:
                if len(self._zones) == MOST_ZONES:
                    # Radios count on when their driver is loaded again: iwlwifi_1, iwlwifi_2.
                    self._zones = [zone for zone in self._zones if zone.listed]
                self._zones.append(_Zone(self._new_label(zone_type), zone_type, member, file))

    def _types(self, members: Sequence[str]) -> dict[str, str]:
        """The type of each zone that is enabled and measures a temperature."""
        types: dict[str, str] = {}
        for member in members:
            content = read_once(self._root / member / "type", _TYPE_LIMIT, self._kernel)
            if isinstance(content, str):
                self._no_zones = content
                continue
            zone_type = _printable(content) or member
            if measures_temperature(zone_type) and self._enabled(member):
                types[member] = zone_type
        return types

    def _enabled(self, member: str) -> bool:
        # Many kernels have no such file; then nothing can be disabled.
        mode = read_once(self._root / member / "mode", _TYPE_LIMIT, self._kernel)
        return isinstance(mode, str) or mode.strip() != b"disabled"

    def _unlisted(self, zone_type: str) -> _Zone | None:
        for zone in self._zones:
            if zone.type == zone_type and not zone.listed:
                return zone
        return None

    def _new_label(self, zone_type: str) -> str:
        taken = {zone.label for zone in self._zones}
        label, number = zone_type, 1
        while label in taken:
            number += 1
            label = f"{zone_type}#{number}"
        return label


def _printable(content: bytes) -> str:
    text = content.strip(b"\0 \t\r\n").decode("ascii", "replace")
    return "".join(char if char.isprintable() and char.isascii() else "?" for char in text)
