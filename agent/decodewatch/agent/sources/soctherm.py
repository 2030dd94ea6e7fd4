"""Over-current throttling of a Jetson: the chip `soctherm_oc` of /sys/class/hwmon.

`oc1_event_cnt` counts how often the supply was too low, `oc2_event_cnt` how often the mean current
was too high, `oc3_event_cnt` how often the current was too high at a moment; each time the hardware
divides the clocks for about a millisecond, which no clock shows (NVIDIA's tegra23x-oc-event driver,
L4T R35 and later). oc3 ticks all the time on some boards: how long it lasted matters, and that is
what /sys/kernel/debug/bpmp/debug/soctherm/oc2/event_time counts for root, in ticks of 31.25 MHz.
The firmware numbers from 0 what the driver numbers from 1.
"""

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
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.hwmon import Chip, Chips
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

EVENTS = Measurement(
    "overcurrent_events",
    "count",
    "counter",
    "how often the hardware divided the clocks for too low a supply (oc1), too high a mean current"
    " (oc2) or too high a current (oc3)",
)
TIME = Measurement(
    "overcurrent_microseconds", "microseconds", "counter", "for how long it divided the clocks"
)

MOST_ALARMS: Final = 8
_TICK_NS: Final = 32  # inferred: an event of about 1.07 ms counts 33 569
_WRAP: Final = 1 << 32


def parse(content: bytes) -> int | None:
    """The number of events or ticks; None for anything that counts nothing."""
    number = only_number(content)
    return number if number is not None and number >= 0 else None


class Ticks:
    """Ticks of a counter that may have 32 bits: it would begin again after 137 s of throttling."""

    __slots__ = ("_last", "_past")

    def __init__(self) -> None:
        self._past = 0
        self._last = 0

    def microseconds(self, ticks: int) -> int:
        """The time that `ticks` are, and those before the counter began again."""
        if ticks < _WRAP // 2 <= self._last < _WRAP:
            self._past += _WRAP
        self._last = ticks
        return (self._past + ticks) * _TICK_NS // 1000


class Soctherm:
    """Reads the over-current counters, and how long the clocks were divided where root runs it."""

    name = "soctherm"
    reads: ClassVar = (
        "/sys/class/hwmon/hwmon*/oc*_event_cnt,"
        " /sys/kernel/debug/bpmp/debug/soctherm/oc*/event_time"
    )
    platform: ClassVar = "Jetson, L4T R35 and later"
    permission: ClassVar = "anyone; times only root"
    measurements: ClassVar[tuple[Measurement, ...]] = (EVENTS, TIME)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._debug = root / "sys/kernel/debug/bpmp/debug/soctherm"
        self._kernel = kernel
        self._chips = Chips(root, lambda name: name == "soctherm_oc", _alarms_of, kernel)
        self._times: dict[int, tuple[PolledFile, Ticks]] = {}

    def read(self) -> list[Reading]:
        """Two readings an over-current alarm; without a label and a value where there is none."""
        # A device has one such chip. Should there be more, they would have the same labels.
        for chip, alarms in self._chips.look()[:1]:
            if alarms:
                return [reading for alarm in alarms for reading in self._read(chip, alarm)]
        return all_unknown(self.measurements, self._chips.no_chips)

    def close(self) -> None:
        """Close the files."""
        self._chips.close()
        for file, _ in self._times.values():
            file.close()

    def _read(self, chip: Chip, alarm: int) -> list[Reading]:
        label = f"oc{alarm}"
        if alarm not in self._times:
            path = self._debug / f"oc{alarm - 1}/event_time"
            self._times[alarm] = PolledFile(path, self._kernel), Ticks()
        file, ticks = self._times[alarm]
        time = _number(TIME, file.read(), label)
        if isinstance(time.value, int):
            time = read_as(TIME, ticks.microseconds(time.value), "implausible", label)
        return [_number(EVENTS, chip.read(f"oc{alarm}_event_cnt"), label), time]


def _number(row: Measurement, content: bytes | Reason, label: str) -> Reading:
    if isinstance(content, str):
        return unknown(row, content, label)
    return read_as(row, parse(content), "implausible", label)


def _alarms_of(chip: Chip) -> list[int]:
    """The numbers of the alarms of the chip, from 1."""
    return [number for number in chip.numbers("oc", "_event_cnt") if number > 0][:MOST_ALARMS]
