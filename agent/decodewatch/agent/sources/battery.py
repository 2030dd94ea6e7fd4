"""The battery: /sys/class/power_supply/*, and in Termux what `termux-battery-status` prints.

A battery is a folder whose `type` is Battery, with `status` (Discharging), `capacity` in percent,
`voltage_now` in uV, `current_now` in uA, on some `power_now` in uW, and `temp` in tenths of a
degree (the kernel's Documentation/ABI/testing/sysfs-class-power). Which sign of `current_now`
means discharging is the driver's choice, so the status decides. Some of Samsung's drivers write mA.

Android denies most of that to apps. There the Termux:API add-on prints JSON with `percentage`,
`status` (DISCHARGING), `temperature` in degrees, `voltage` in mV and `current` in uA.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    first_known,
    read_as,
    unknown,
    word_of,
)
from decodewatch.agent.sources.kit.commands import PolledCommand
from decodewatch.agent.sources.kit.common import TEMP, TOTAL_POWER
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable
from decodewatch.agent.sources.kit.temperatures import Nothing
from decodewatch.agent.sources.kit.text import only_number

SHARE = Measurement("battery_share", "share", "gauge", "charge of the battery")
DRAWN = Measurement(
    "battery_watts",
    "watts",
    "gauge",
    "power drawn from the battery; negative while it is charged",
)
STATUS = Measurement("battery_status", "word", "word", "whether the battery is charged or drawn")

LABEL: Final = "battery"
"""The label of the device's power and the battery's temperature."""

MOST_BATTERIES: Final = 4
_MOST_SUPPLIES: Final = 64  # chargers and ports are listed too
_WORD_LIMIT: Final = 64  # bytes read of a type

_DISCHARGING: Final = "Discharging"
_CHARGING: Final = "Charging"
_WORDS: Final = {  # Termux's words, and those of the kernel for the same
    "DISCHARGING": _DISCHARGING,
    "CHARGING": _CHARGING,
    "FULL": "Full",
    "NOT_CHARGING": "Not charging",
}

_VOLTS: Final = (1.0, 100.0)
_CELSIUS: Final = (-40.0, 150.0)
_WATTS_BELOW: Final = 1000.0

_MOST_MILLI: Final = 5_000
"""A device that looks at its battery is awake and draws more than 5 mA, and no phone draws more
than 5 A: a number up to this is one of mA."""
_LEAST_MICRO: Final = 20_000
"""No battery of a device gives 20 A: a number from here on is one of uA."""

_LARGEST: Final = 1e12
_NOTHING_SAID: Final[Reason] = "unsupported"  # a status of Unknown

_PHONE: Final = "battery"
"""What every Android phone calls the battery that it runs on."""
_SUPPLIES: Final = "sys/class/power_supply"
_FILES: Final = ("status", "capacity", "temp", "power_now", "current_now", "voltage_now")

TERMUX_COMMAND: Final = "termux-battery-status"
TERMUX_PROGRAM: Final = f"data/data/com.termux/files/usr/bin/{TERMUX_COMMAND}"
TERMUX_EVERY_S: Final = 60.0
"""It starts a shell and asks an app: not once a second."""
TERMUX_DEADLINE_S: Final = 15.0
"""Without the Termux:API app it waits forever."""


class Files(NamedTuple):
    """What the files of a battery hold, or why they could not be read."""

    status: bytes | Reason
    capacity: bytes | Reason
    temp: bytes | Reason
    power: bytes | Reason
    current: bytes | Reason
    voltage: bytes | Reason


_AWAY: Final = Files("absent", "absent", "absent", "absent", "absent", "absent")


def parse(files: Files, label: str = "", *, in_micro: bool = False) -> list[Reading]:
    """The readings of a battery; `in_micro` says that its driver is known to count in uA."""
    if isinstance(files.status, str):
        status, why = None, files.status
    else:
        status, why = _word(files.status)
    flow = _scaled(files.power, 1e6, -_WATTS_BELOW, _WATTS_BELOW)
    if flow == "absent":
        volts = _scaled(files.voltage, 1e6, *_VOLTS)
        raw = _scaled(files.current, 1, -_LARGEST, _LARGEST)
        flow = _watts(volts, raw, status, in_micro=in_micro)
    return _readings(
        label,
        _scaled(files.capacity, 100, 0, 1),
        status,
        why,
        flow,
        _scaled(files.temp, 10, *_CELSIUS),
    )


def parse_termux(content: bytes) -> list[Reading]:
    """The readings of what `termux-battery-status` printed; none of a text that was cut."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return _readings("", "implausible", None, "implausible", "implausible", "implausible")
    status = found.get("status")
    word = _WORDS.get(status) if isinstance(status, str) else None
    volts = _member(found, "voltage", 1e3, *_VOLTS)
    raw = _member(found, "current", 1, -_LARGEST, _LARGEST)
    return _readings(
        "",
        _member(found, "percentage", 100, 0, 1),
        word,
        "absent" if status is None else _NOTHING_SAID,
        _watts(volts, raw, word, in_micro=False),
        _member(found, "temperature", 1, *_CELSIUS),
    )


def amperes(raw: float, status: str | None, *, in_micro: bool) -> float | None:
    """How much flows, without a sign, of a `current_now`; None where that cannot be told.

    The number is one of uA where it is large, or where the driver is known to count `in_micro`.
    """
    size = abs(raw)
    if in_micro or size == 0 or proves_micro(raw):
        return size / 1e6
    if status == _DISCHARGING and size <= _MOST_MILLI:
        return size / 1e3
    return None  # a battery that is nearly full takes as few uA as a fast charger gives mA


def proves_micro(raw: float) -> bool:
    """Whether a driver that wrote this number as its `current_now` counts in uA."""
    return abs(raw) >= _LEAST_MICRO


def device_watts(readings: Sequence[Reading]) -> Reading:
    """The power of the whole device, by the readings of its batteries: known where these alone
    give it, so that one of them is drawn and none is charged."""
    statuses = [reading for reading in readings if reading.measurement is STATUS]
    words = {reading.word for reading in statuses}
    if _DISCHARGING not in words or _CHARGING in words:
        why = next((one.reason for one in statuses if one.reason is not None), None)
        return unknown(TOTAL_POWER, why or "absent", LABEL)
    watts = 0.0
    for reading in readings:
        if reading.measurement is DRAWN:
            if reading.value is None:
                return unknown(TOTAL_POWER, reading.reason or "transient", LABEL)
            watts += reading.value
    return read_as(TOTAL_POWER, round(watts, 6), "absent", LABEL)


def _readings(
    label: str,
    share: float | Reason,
    status: str | None,
    why: Reason,
    flow: float | Reason,
    celsius: float | Reason,
) -> list[Reading]:
    """`why` there is no status; `flow` is the power without the sign that the status gives it."""
    if status is None:
        flow = why
    elif not isinstance(flow, str):
        if status == _CHARGING:
            flow = -abs(flow) if flow else 0.0
        elif status == _DISCHARGING:
            # The device runs on something: a driver that says otherwise does not measure it.
            flow = abs(flow) if flow else "implausible"
        elif flow != 0:
            flow = "unsupported"  # full, and yet something flows: no telling which way
    return [
        _reading(SHARE, share, label),
        word_of(STATUS, status, why, label),
        _reading(DRAWN, flow, label),
        _reading(TEMP, celsius, label or LABEL),
    ]


def _reading(row: Measurement, value: float | Reason, label: str) -> Reading:
    if isinstance(value, str):
        return unknown(row, value, label)
    return read_as(row, value, "absent", label)


def _word(content: bytes) -> tuple[str | None, Reason]:
    """The word of a `status`, or why there is none: it was cut, or the driver does not know."""
    word = printable(content) if content.endswith(b"\n") else ""
    if word == "Unknown":
        return None, _NOTHING_SAID
    return word or None, "implausible"


def _scaled(content: bytes | Reason, units: float, lowest: float, highest: float) -> float | Reason:
    """The value of a file that holds so many `units` of it."""
    if isinstance(content, str):
        return content
    return _within(only_number(content), units, lowest, highest)


def _member(
    found: dict[str, Any], name: str, units: float, lowest: float, highest: float
) -> float | Reason:
    """The value of a member of the JSON that holds so many `units` of it."""
    raw = found.get(name)
    if raw is None:
        return "absent"
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return "implausible"
    return _within(raw, units, lowest, highest)


def _within(raw: float | None, units: float, lowest: float, highest: float) -> float | Reason:
    # Compared before it is divided: JSON has integers that no float can hold.
    if raw is None or not lowest * units <= raw <= highest * units:
        return "implausible"
    return raw / units


def _watts(
    volts: float | Reason, raw: float | Reason, status: str | None, *, in_micro: bool
) -> float | Reason:
    """Voltage times current, without a sign."""
    if isinstance(raw, str):
        return raw
    if isinstance(volts, str):
        return volts
    amps = amperes(raw, status, in_micro=in_micro)
    if amps is None or volts * amps > _WATTS_BELOW:
        return "implausible"
    return round(volts * amps, 6)


class _Battery:
    __slots__ = ("_files", "_in_micro", "_nothing", "label", "listed", "member")

    def __init__(self, label: str, member: str, folder: Path, kernel: Kernel) -> None:
        self.label = label
        self.member = member
        self.listed = True  # whether the folder showed it when it was last listed
        self._in_micro = False
        self._nothing = Nothing()
        self._files = {name: PolledFile(folder / name, kernel) for name in _FILES}

    def read(self) -> list[Reading]:
        if not self.listed:
            return parse(_AWAY, self.label)
        files = Files(*[file.read() for file in self._files.values()])
        current = _scaled(files.current, 1, -_LARGEST, _LARGEST)
        if not isinstance(current, str) and proves_micro(current):
            self._in_micro = True
        return [
            unknown(TEMP, "implausible", reading.label)
            if reading.measurement is TEMP
            and reading.value is not None
            and self._nothing.see(reading.value)
            else reading
            for reading in parse(files, self.label, in_micro=self._in_micro)
        ]

    def retry_if_absent(self) -> None:
        for file in self._files.values():
            file.retry_if_absent()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Battery:
    """Reads the batteries that the device runs on."""

    name = "battery"
    reads: ClassVar = f"/sys/class/power_supply/*; {TERMUX_COMMAND}"
    platform: ClassVar = "phones and laptops"
    permission: ClassVar = "anyone; on Android in part, and for the rest Termux:API"
    measurements: ClassVar[tuple[Measurement, ...]] = (SHARE, STATUS, DRAWN, TEMP, TOTAL_POWER)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._folder = PolledFolder(root / _SUPPLIES, "", _MOST_SUPPLIES, kernel, numbered=False)
        self._batteries: dict[str, _Battery] = {}
        self._no_batteries: Reason = "absent"
        self._missed = False  # whether a battery was absent at the last read
        self._termux: PolledCommand | None = None
        self._termux_sought = False

    def read(self) -> list[Reading]:
        """Four readings a battery, absent ones that were there before included, and the device's
        power while it runs on them.

        The same without values where there has never been a battery. In Termux, what sysfs does not
        tell is up to a minute old; the device's power is never.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        readings: list[Reading] = []
        for battery in self._batteries.values():
            readings += battery.read()
        missed = any(
            reading.reason == "absent" for reading in readings if reading.measurement is STATUS
        )
        if missed and not self._missed:
            self._folder.look_again()
        self._missed = missed
        if not readings:
            why = self._no_batteries
            readings = _readings("", why, None, why, why, why)
        readings.append(device_watts(readings))
        if not self._batteries or any(reading.reason == "denied" for reading in readings):
            readings = first_known([*readings, *self._ask_termux()])
        return readings

    def close(self) -> None:
        """Close the files, and end the program."""
        for battery in self._batteries.values():
            battery.close()
        if self._termux is not None:
            self._termux.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        found: list[str] = []
        self._no_batteries = "absent"
        if isinstance(members, str):
            self._no_batteries = members
        else:
            found = [member for member in members if self._is_battery(member)]
            if _PHONE in found:
                found = [_PHONE]  # the others are its gauges: they would count it twice
        for member, battery in self._batteries.items():
            battery.listed = member in found
            if battery.listed:
                battery.retry_if_absent()
            else:
                battery.close()
        for member in found:
            if member not in self._batteries and len(self._batteries) < MOST_BATTERIES:
                label = member if self._batteries else ""
                folder = self._root / _SUPPLIES / member
                self._batteries[member] = _Battery(label, member, folder, self._kernel)

    def _is_battery(self, member: str) -> bool:
        """Whether the device runs on it: not a charger, a port, or the battery of a mouse."""
        folder = self._root / _SUPPLIES / member
        kind = read_once(folder / "type", _WORD_LIMIT, self._kernel)
        if isinstance(kind, str):
            # An app on Android may be denied the type and not the rest.
            return member.lower().startswith("bat")
        if printable(kind) != "Battery":
            return False
        scope = read_once(folder / "scope", _WORD_LIMIT, self._kernel)
        return isinstance(scope, str) or printable(scope) != "Device"

    def _ask_termux(self) -> list[Reading]:
        """What the program printed last; nothing where this is not Termux."""
        if not self._termux_sought:
            self._termux_sought = True
            command = None
            if os.environ.get("TERMUX_VERSION"):
                command = TERMUX_COMMAND
            elif not isinstance(read_once(self._root / TERMUX_PROGRAM, 1, self._kernel), str):
                command = f"/{TERMUX_PROGRAM}"
            if command is not None:
                self._termux = PolledCommand(
                    (command,), TERMUX_EVERY_S, TERMUX_DEADLINE_S, self._kernel
                )
        if self._termux is None:
            return []
        printed = self._termux.read()
        if isinstance(printed, str):
            return []
        return parse_termux(printed)
