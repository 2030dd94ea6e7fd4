"""Power rails of a Jetson with L4T 32 (JetPack 4): the power monitor's driver `ina3221x`.

NVIDIA's kernel 4.9 shows an INA3221 as an iio device below its i2c device, for example
/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0, with `rail_name_0`, `in_voltage0_input` in mV,
`in_current0_input` in mA and `in_power0_input` in mW for each of three channels. Some of these
values carry their unit: `32760 ma`. Later releases show the chip under /sys/class/hwmon (see
`rails`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, all_unknown
from decodewatch.agent.sources.kit.common import POWER, TOTAL_POWER
from decodewatch.agent.sources.kit.files import (
    RELIST_S,
    RELIST_SOON_S,
    REPROBE_S,
    PolledFile,
    read_once,
)
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, reason_of
from decodewatch.agent.sources.kit.labels import untaken, whole
from decodewatch.agent.sources.kit.rails import (
    UNUSED,
    VOLTS,
    Scale,
    measured,
    total,
    watts_of,
)

MOST_RAILS: Final = 24
"""Rails at most; a TX2 on its carrier has twelve."""

_SCALE: Final = Scale(volt=1000, ampere=1000, watt=1000)
_CHANNELS: Final = (0, 1, 2)
_NAME_LIMIT: Final = 64  # bytes read of a rail's name
_MOST_FOLDERS: Final = 64  # looked into on one level

# Where the chips are, level by level: what the names begin with and end in. The driver's folder
# leads to them by links; a recording may have nothing but the devices.
_CHIP: Final = ("", ("-0040", "-0041", "-0042", "-0043"))
_PLACES: Final[tuple[tuple[str, tuple[tuple[str, str | tuple[str, ...]], ...]], ...]] = (
    ("sys/bus/i2c/drivers/ina3221x", (_CHIP,)),
    ("sys/devices", (("", ".i2c"), ("i2c-", ""), _CHIP)),
    ("sys/devices", (("", ".host1x"), ("", ".i2c"), ("i2c-", ""), _CHIP)),
)


class _Rail:
    __slots__ = ("_amps", "_volts", "_watts", "label", "listed", "named", "place")

    def __init__(self, label: str, named: str, place: tuple[Path, int], kernel: Kernel) -> None:
        self.label = label
        self.named = named
        self.move(place, kernel)

    def move(self, place: tuple[Path, int], kernel: Kernel) -> None:
        folder, number = self.place = place
        self._volts = PolledFile(folder / f"in_voltage{number}_input", kernel)
        self._amps = PolledFile(folder / f"in_current{number}_input", kernel)
        self._watts = PolledFile(folder / f"in_power{number}_input", kernel)
        self.listed = True  # whether it was there when it was last looked for

    def read(self) -> tuple[Reading, Reading]:
        if not self.listed:
            return measured(self.label, "absent", "absent", "absent", _SCALE)
        watts = self._watts.read()
        amps = self._amps.read() if watts == "absent" else "absent"
        return measured(self.label, self._volts.read(), amps, watts, _SCALE)

    def retry_if_absent(self) -> None:
        for file in (self._volts, self._amps, self._watts):
            file.retry_if_absent()

    def close(self) -> None:
        for file in (self._volts, self._amps, self._watts):
            file.close()


class RailsL4t32:
    """Reads every rail, and tells the power of the whole module where it is known how."""

    name = "rails_l4t32"
    reads: ClassVar = "/sys/bus/i2c/drivers/ina3221x/*/iio:device*/{rail_name,in_*}"
    platform: ClassVar = "Jetson with JetPack 4"
    permission: ClassVar = "anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (POWER, VOLTS, TOTAL_POWER)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._rails: list[_Rail] = []
        self._no_rails: Reason = "absent"
        self._looked_at = float("-inf")
        self._due_at = float("-inf")
        self._missed = False  # whether a rail was absent at the last read

    def read(self) -> list[Reading]:
        """Power and voltage of each rail, absent ones that were there before included, and the
        total.

        One of each without a label and a value where there has never been a rail.
        """
        now = self._kernel.monotonic()
        if now >= self._due_at:
            self._look(now)
        if not self._rails:
            return all_unknown(self.measurements, self._no_rails)
        readings: list[Reading] = []
        for rail in self._rails:
            readings += rail.read()
        missed = any(reading.reason == "absent" for reading in readings)
        if missed and not self._missed:
            self._due_at = min(self._due_at, self._looked_at + RELIST_SOON_S)
        self._missed = missed
        readings.append(total(watts_of(readings)))
        return readings

    def close(self) -> None:
        """Close the files."""
        for rail in self._rails:
            rail.close()

    def _look(self, now: float) -> None:
        """Find the rails, and give those that were there before their files again, by name."""
        self._looked_at = now
        self._no_rails = "absent"
        found = self._found()
        for rail in self._rails:
            rail.listed = found.get(rail.place) == rail.named
            if rail.listed:
                del found[rail.place]
                rail.retry_if_absent()
            else:
                rail.close()
        for place, named in found.items():
            moved = [rail for rail in self._rails if rail.named == named and not rail.listed]
            if moved:
                moved[0].move(place, self._kernel)
            elif len(self._rails) < MOST_RAILS:
                label = untaken(named, {rail.label for rail in self._rails})
                self._rails.append(_Rail(label, named, place, self._kernel))
        self._due_at = now + (RELIST_S if self._rails else REPROBE_S)

    def _found(self) -> dict[tuple[Path, int], str]:
        """Where each rail is, folder and channel, and its name."""
        for place, levels in _PLACES:
            found: dict[tuple[Path, int], str] = {}
            for chip in self._below(self._root / place, levels):
                # Some kernels show one device under two names: iio:device0 and iio_device.
                for device in self._members(chip, "iio", "")[:1]:
                    for number in _CHANNELS:
                        name = chip / device / f"rail_name_{number}"
                        content = read_once(name, _NAME_LIMIT, self._kernel)
                        named = "" if isinstance(content, str) else whole(content)
                        if named and named != UNUSED:
                            found[chip / device, number] = named
            if found:
                return found
        return {}

    def _below(
        self, folder: Path, levels: Sequence[tuple[str, str | tuple[str, ...]]]
    ) -> Iterator[Path]:
        if not levels:
            yield folder
            return
        for member in self._members(folder, *levels[0]):
            yield from self._below(folder / member, levels[1:])

    def _members(self, folder: Path, start: str, end: str | tuple[str, ...]) -> list[str]:
        try:
            names = self._kernel.listdir(str(folder))
        except OSError as error:
            reason = reason_of(error)
            if reason != "absent":
                self._no_rails = reason
            return []
        members = [name for name in names if name.startswith(start) and name.endswith(end)]
        return sorted(members)[:_MOST_FOLDERS]
