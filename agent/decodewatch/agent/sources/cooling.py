"""What cools the device: /sys/class/thermal/cooling_device*.

A cooling device lowers clocks, or turns a fan, by as many steps as its zone is too hot. Its folder
has `type`, `cur_state` and `max_state`: 0 does nothing, `max_state` does all it can (the kernel's
Documentation/driver-api/thermal/sysfs-api.rst). Those that lower clocks and those that are fans are
known by their types, as zones are; a fan that turns says nothing about throttling. Others are left
out: they dim a screen, slow a charger down, or are set by programs for reasons of their own.
"""

import re
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable, untaken
from decodewatch.agent.sources.kit.text import only_number

COOLING = Measurement(
    "cooling_share",
    "share",
    "gauge",
    "how far heat lowers the clocks that the label names, of what is possible: 0 is not at all",
)
FAN = Measurement("fan_share", "share", "gauge", "how fast a fan turns, of its fastest step")

MOST_DEVICES: Final = 64
"""Cooling devices reported at most."""
_MOST_LISTED: Final = 256
_TYPE_LIMIT: Final = 64
_STATE_LIMIT: Final = 32

# thermal-cpufreq-0, cpufreq-cpu0, cpu-hotplug7, 17000000.gpu, thermal-devfreq-0, tpu_cooling, and
# what Linux for Jetsons up to L4T 32 calls `skin-balanced`. An `output` is no tpu.
_CLOCKS: Final = re.compile(
    r"cpu|gpu|devfreq|(?<![a-z])(tpu|npu|nsp|cdsp|g3d)|^processor$|^thermal-(cluster|pause)-|-balanced$"
)
# Alerts and switches lower no clock, and voltages are raised in the cold; the last two are turned
# by programs for their own reasons.
_NEITHER: Final = (
    *("alert", "sysrst", "shutdown", "volt", "vdd", "intel_powerclamp", "tcc offset"),
)


def kind(cooling_type: str) -> Measurement | None:
    """What a cooling device of that type is: one that lowers clocks, a fan, or neither."""
    lower = cooling_type.lower()
    if any(part in lower for part in _NEITHER):
        return None
    if "fan" in lower:
        return FAN
    return COOLING if _CLOCKS.search(lower) else None


def parse(state: bytes, most: bytes) -> float | None:
    """The share that `cur_state` is of `max_state`; None where the two cannot be true."""
    current, highest = only_number(state), only_number(most)
    if current is None or highest is None or not 0 <= current <= highest or highest == 0:
        return None
    return current / highest


class _Device:
    __slots__ = ("file", "label", "listed", "member", "missed", "most", "row", "type")

    def __init__(self, row: Measurement, label: str, cooling_type: str) -> None:
        self.row = row
        self.label = label
        self.type = cooling_type
        self.listed = False

    def move(self, member: str, file: PolledFile) -> None:
        self.member = member
        self.file = file
        self.listed = True  # whether the folder showed it when it was last listed
        self.missed = False  # whether it was absent at the last read
        self.most: bytes | Reason = "absent"  # its highest state

    def read(self) -> Reading:
        content = self.file.read() if self.listed else "absent"
        if isinstance(content, str):
            return unknown(self.row, content, self.label)
        if isinstance(self.most, str):
            return unknown(self.row, self.most, self.label)
        return read_as(self.row, parse(content, self.most), "implausible", self.label)


class Cooling:
    """Reads the cooling devices that lower clocks, and the fans."""

    name = "cooling"
    reads: ClassVar = "/sys/class/thermal/cooling_device*/{type,cur_state,max_state}"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (COOLING, FAN)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/class/thermal"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "cooling_device", _MOST_LISTED, kernel)
        self._devices: list[_Device] = []
        self._no_devices: Reason = "absent"

    def read(self) -> list[Reading]:
        """One reading a cooling device, absent ones that were there before included.

        One without a label and a value of what the device never had.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        readings = []
        for device in self._devices:
            reading = device.read()
            missed = reading.reason == "absent"
            if missed and not device.missed:
                self._folder.look_again()
            device.missed = missed
            readings.append(reading)
        found = {reading.measurement for reading in readings}
        missing = [row for row in self.measurements if row not in found]
        return readings + [unknown(row, self._no_devices) for row in missing]

    def close(self) -> None:
        """Close the files."""
        for device in self._devices:
            device.file.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        """Give every cooling device its file again, by type, after the folder was listed."""
        types: dict[str, str] = {}
        if isinstance(members, str):
            self._no_devices = members
        else:
            self._no_devices = "absent"
            for member in members:
                content = read_once(self._root / member / "type", _TYPE_LIMIT, self._kernel)
                if not isinstance(content, str):
                    types[member] = printable(content)
        for device in self._devices:
            device.listed = types.get(device.member) == device.type
            if device.listed:
                del types[device.member]
                device.file.retry_if_absent()
            else:
                device.file.close()
        for member, cooling_type in types.items():
            found = self._unlisted(cooling_type)
            if found is not None:
                file = PolledFile(self._root / member / "cur_state", self._kernel)
                found.move(member, file)
        for device in self._devices:
            if device.listed:
                path = self._root / device.member / "max_state"
                device.most = read_once(path, _STATE_LIMIT, self._kernel)

    def _unlisted(self, cooling_type: str) -> _Device | None:
        """The one of that type that is away, else a new one; None where it is of no interest."""
        for device in self._devices:
            if device.type == cooling_type and not device.listed:
                return device
        row = kind(cooling_type)
        if row is None:
            return None
        if len(self._devices) == MOST_DEVICES:
            self._devices = [device for device in self._devices if device.listed]
        if len(self._devices) == MOST_DEVICES:
            return None
        label = untaken(cooling_type, (device.label for device in self._devices))
        device = _Device(row, label, cooling_type)
        self._devices.append(device)
        return device
