"""Temperatures: /sys/class/thermal/thermal_zone*.

A zone is known by its type, because its number changes from boot to boot and when a driver is
loaded again. Two zones of one type are told apart by `#2`, `#3`, in the order of their numbers when
they were first seen, and keep these labels. Which zones may be the device's hottest sensor,
`decodewatch.shared.sensors` says (`is_junction`).

A zone is a folder with `type`, `temp` (42593 is 42.593 C for nearly all drivers), often `mode`, and
`trip_point_0_type`, `trip_point_0_temp` and so on (the kernel's
Documentation/driver-api/thermal/sysfs-api.rst). From a trip point of the type `passive` on the
kernel slows down what heats the zone; the order of the trip points says nothing.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.common import TEMP
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable, untaken
from decodewatch.agent.sources.kit.temperatures import Nothing
from decodewatch.agent.sources.kit.text import only_number
from decodewatch.shared.sensors import is_junction

PASSIVE = Measurement(
    "temp_passive_celsius",
    "celsius",
    "gauge",
    "temperature from which the zone that the label names is cooled by lower clocks",
)

MOST_ZONES: Final = 128
"""Zones reported at most: the largest phones have about 100."""
MOST_TRIPS: Final = 16
"""Trip points of a zone looked at; kernels before 6.9 allow 12."""
_TYPE_LIMIT: Final = 64  # bytes read of a zone's type; kernels allow 19

STUCK_READS: Final = 300
"""A zone that reads the same for so long, five minutes, may be no sensor at all; see `_Stuck`."""
_PLACEHOLDER: Final = 16_850  # 290 K, what firmware answers that has no sensor
_MOVED_C: Final = 10.0

PLAUSIBLE_ABOVE_C: Final = -40.0
PLAUSIBLE_BELOW_C: Final = 150.0

# Zones of phones whose "temperature" is a voltage, a current, a charge or a count: Qualcomm's, and
# those of Google's Tensor, which trip where the supply droops or a rail draws too much.
_NOT_TEMPERATURE: Final = ("vbat", "ibat", "bcl", "vph")
_NOT_TEMPERATURE_STARTS: Final = (
    *("vdroop", "uvlo", "smpl_", "batoilo", "ocp_", "soft_ocp_", "pre_ocp", "pca94"),
)
_NOT_TEMPERATURE_ENDS: Final = ("-adc", "_adc")
_NOT_TEMPERATURE_EXACTLY: Final = frozenset(
    {
        *("soc", "socd"),  # state of charge; soc0-thermal is not
        *("battery_cycle", "critical-battery-cell"),
        "int3400 thermal",  # Intel's switch for policies: its driver makes up 20 C
    }
)

_DECI_TYPES: Final = ("tsens_tz_sensor",)  # of Qualcomm's old kernels: 402 is 40.2 C
# Only a PC has these. The rest of its zones count in thousandths too, as ACPI's driver does.
_PC_TYPES: Final = frozenset({"acpitz", "x86_pkg_temp", "INT3400 Thermal"})


def measures_temperature(zone_type: str) -> bool:
    """Whether the zone measures one: phones list voltages and charge as thermal zones too."""
    lower = zone_type.lower()
    if (
        lower in _NOT_TEMPERATURE_EXACTLY
        or lower.startswith((*_NOT_TEMPERATURE, *_NOT_TEMPERATURE_STARTS))
        or lower.endswith(_NOT_TEMPERATURE_ENDS)
    ):
        return False
    return not any(f"-{part}" in lower for part in _NOT_TEMPERATURE)


def parse(content: bytes) -> int | None:
    """The number of a zone's `temp`, in the unit of its driver."""
    return only_number(content)


def celsius(raw: int, zone_type: str, *, in_milli: bool) -> float | None:
    """The temperature, or None where it is implausible.

    Nearly all drivers report thousandths. Some of MediaTek's and Qualcomm's old ones report whole
    degrees, or tenths: small numbers are taken for these, unless the zone is known to be
    `in_milli`. From 200 to 2000 they are neither: 0.2 to 2 degrees, or a count of something else.
    """
    if in_milli:
        value = raw / 1000
    elif abs(raw) < 200:
        value = float(raw)
    elif abs(raw) < 2000:
        if not zone_type.startswith(_DECI_TYPES):
            return None
        value = raw / 10
    else:
        value = raw / 1000
    return value if PLAUSIBLE_ABOVE_C < value < PLAUSIBLE_BELOW_C else None


def proves_milli(raw: int, value: float | None) -> bool:
    """Whether a zone that read so reports thousandths: it did not warm up to 2000 degrees.

    From then on, 150 is 0.15 C outdoors and not 150 C.
    """
    return abs(raw) >= 2000 and value is not None


def lowest_trip(temps: Iterable[bytes], zone_type: str) -> float | None:
    """The lowest temperature of a zone's passive trip points; None where it has none.

    0, -274000 and 2147483647 are how drivers say that a trip point is disabled.
    """
    raws = (parse(temp) for temp in temps)
    values = (
        celsius(raw, zone_type, in_milli=False) for raw in raws if raw is not None and raw > 0
    )
    return min((value for value in values if value is not None), default=None)


class _Heat:
    """How often a zone of the device moved by `_MOVED_C`: the device was under load, or rested."""

    __slots__ = ("moves",)

    def __init__(self) -> None:
        self.moves = 0


class _Stuck:
    """Whether a zone has stopped measuring, or never did.

    Some firmware answers one number for ever where it has no sensor, and that would be shown as a
    cool chip under full load. It is taken for no measurement after `STUCK_READS` equal readings,
    until it moves again, in two cases:

    - It may be the hottest sensor (`is_junction`), and other zones moved by 10 C twice since: load
      came or went twice, and heat does not pass by one place on a chip. Sensors beside the chip,
      with their steps of a whole degree, do rest for so long, and stay as they are.
    - It is 290 K, 16.85 C, to the last digit: often the only zone of its device, so that there is
      no other to compare it with. No computer rests there for five minutes.
    """

    __slots__ = ("_anchor", "_heat", "_moves", "_raw", "_reads")

    def __init__(self, heat: _Heat) -> None:
        self._heat = heat
        self._raw: int | None = None
        self._reads = 0
        self._moves = 0
        self._anchor: float | None = None

    def see(self, raw: int, value: float, label: str) -> bool:
        """Take in a reading; True where it is that of a zone that is stuck."""
        heat = self._heat
        if raw != self._raw:
            self._raw, self._reads, self._moves = raw, 1, heat.moves
        else:
            self._reads += 1
        if self._anchor is None:
            self._anchor = value
        elif abs(value - self._anchor) >= _MOVED_C:
            self._anchor = value
            heat.moves += 1
        if self._reads < STUCK_READS:
            return False
        return raw == _PLACEHOLDER or (heat.moves - self._moves >= 2 and is_junction(label))


class _Zone:
    __slots__ = (
        "_nothing",
        "file",
        "in_milli",
        "label",
        "listed",
        "member",
        "missed",
        "passive",
        "stuck",
        "type",
    )

    def __init__(
        self, label: str, zone_type: str, member: str, file: PolledFile, heat: _Heat
    ) -> None:
        self.label = label
        self.type = zone_type
        self.in_milli = False
        self._nothing = Nothing()
        self.passive: float | Reason | None = None  # None: it never had a passive trip point
        self.stuck = _Stuck(heat)
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
        if value is not None and (
            self._nothing.see(value) or self.stuck.see(raw, value, self.label)
        ):
            value = None
        return read_as(TEMP, value, "implausible", self.label)


class Thermal:
    """Reads the thermal zones that are enabled and measure a temperature, and their trip points."""

    name = "thermal"
    reads: ClassVar = "/sys/class/thermal/thermal_zone*/{type,mode,temp,trip_point_*}"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (TEMP, PASSIVE)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/class/thermal"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "thermal_zone", MOST_ZONES, kernel)
        self._zones: list[_Zone] = []
        self._no_zones: Reason = "absent"
        self._is_pc = False
        self._heat = _Heat()

    def read(self) -> list[Reading]:
        """One reading a zone, absent ones that were there before included, and one of its lowest
        passive trip point where it has or had one.

        One reading without a label and a value where there has never been a zone or a trip point.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        if not self._zones:
            return all_unknown(self.measurements, self._no_zones)
        readings = []
        for zone in self._zones:
            reading = zone.read()
            missed = reading.reason == "absent"
            if missed and not zone.missed:
                self._folder.look_again()
            zone.missed = missed
            readings.append(reading)
        passive = [
            read_as(PASSIVE, zone.passive, "absent", zone.label)
            if isinstance(zone.passive, float)
            else unknown(PASSIVE, zone.passive, zone.label)
            for zone in self._zones
            if zone.passive is not None
        ]
        return readings + (passive or [unknown(PASSIVE, "absent")])

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
                label = untaken(zone_type, (zone.label for zone in self._zones))
                self._zones.append(_Zone(label, zone_type, member, file, self._heat))
        for zone in self._zones:
            zone.in_milli |= self._is_pc
            self._look_at_trips(zone)

    def _types(self, members: Sequence[str]) -> dict[str, str]:
        """The type of each zone that is enabled and measures a temperature."""
        types: dict[str, str] = {}
        for member in members:
            content = read_once(self._root / member / "type", _TYPE_LIMIT, self._kernel)
            if isinstance(content, str):
                self._no_zones = content
                continue
            zone_type = printable(content) or member
            self._is_pc |= zone_type in _PC_TYPES
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

    def _uncut(self, path: Path) -> bytes | Reason:
        content = read_once(path, _TYPE_LIMIT, self._kernel)
        if isinstance(content, str) or content.rstrip(b"\0").endswith(b"\n"):
            return content
        return "implausible"  # it may be half a word, or half a number

    def _look_at_trips(self, zone: _Zone) -> None:
        """Read the trip points, whose temperatures a change of the power mode moves."""
        temps: list[bytes] = []
        failed: Reason | None = None
        for number in range(MOST_TRIPS if zone.listed else 0):
            trip = self._root / zone.member / f"trip_point_{number}"
            content = self._uncut(trip.with_name(f"{trip.name}_type"))
            if not isinstance(content, str):
                if content.strip() != b"passive":
                    continue
                content = self._uncut(trip.with_name(f"{trip.name}_temp"))
            if not isinstance(content, str):
                temps.append(content)
            elif content == "absent":
                break  # they are numbered without gaps
            else:
                failed = content
        lowest = None if failed else lowest_trip(temps, zone.type)  # the unread may be the lowest
        if lowest is not None:
            zone.passive = lowest
        elif zone.passive is not None:
            zone.passive = failed or "absent"
