"""Power rails of a board: the power monitors INA3221 and INA238 under /sys/class/hwmon.

An INA3221 has three channels: `in1_label` (VDD_GPU_SOC, or NC where nothing is connected),
`in1_input` in mV, `curr1_input` in mA, and the alarms `curr1_crit_alarm` and `curr1_max_alarm`, 1
while the current is or was over its limit. `curr4_crit_alarm` is for the sum of the channels, and
in7 the sum of their shunt voltages, which is nothing that a rail has (the kernel's
Documentation/hwmon/ina3221.rst). Modules with many rails have two of these chips.

An INA238 has one channel: `in1_input`, `curr1_input` and `power1_input` in uW
(Documentation/hwmon/ina238.rst). On AGX Thor it measures the input of the whole board and has no
label.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.common import POWER, TOTAL_POWER
from decodewatch.agent.sources.kit.hwmon import Chip, Chips
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import untaken
from decodewatch.agent.sources.kit.rails import (
    KNOWN,
    SUM,
    UNUSED,
    VOLTS,
    Scale,
    measured,
    total,
    watts_of,
)
from decodewatch.agent.sources.kit.text import only_number

ALARM = Measurement(
    "power_alarm",
    "count",
    "gauge",
    "1 while the board's power monitor says that the rail's current is over a limit, else 0",
)

MOST_RAILS: Final = 24
"""Rails at most; a module has up to six."""

_SCALE: Final = Scale(volt=1000, ampere=1000, watt=1_000_000)
_CHANNELS: Final = (1, 2, 3)
_SUM_ALARM: Final = "curr4_crit_alarm"
_NAMES: Final = ("ina3221", "ina238")


class _Channel(NamedTuple):
    label: str
    volts: str
    amps: str
    watts: str | None  # the file of the power, where the chip has one
    alarms: tuple[str, ...]


class _Channels(NamedTuple):
    known: list[_Channel]
    nameless: bool  # whether there is another one, whose name could not be read


def parse_alarm(contents: Iterable[bytes | Reason]) -> int | Reason:
    """Whether one of the alarms of a rail is raised, 1 or 0, or why that is unknown.

    One that is absent raises nothing, where there is another; for 0 all others must be known.
    """
    found: int | Reason = "absent"
    for content in contents:
        if isinstance(content, str):
            state: int | Reason = content
        else:
            raised = only_number(content)
            state = raised if raised in (0, 1) else "implausible"
        if state == 1:
            return 1
        if state != "absent" and (found == "absent" or found == 0):
            found = state
    return found


def channels_of(chip: Chip) -> _Channels:
    """The channels of a chip that a rail is connected to."""
    nameless = False
    if chip.name == "ina238":
        label = chip.word("in1_label", uncut=True)
        if not label and "in1_label" in chip.files:
            return _Channels([], True)
        channel = _Channel(label, "in1_input", "curr1_input", "power1_input", ())
        return _Channels([channel], nameless)
    found = []
    for number in _CHANNELS:
        named = f"in{number}_label"
        label = chip.word(named, uncut=True)  # VIN is all there is, VIN_SYS_5V0 a part of it
        if named in chip.files:
            nameless |= not label
        elif f"in{number}_input" in chip.files:
            label = f"{chip.label} {number}"  # a device tree that names no rails
        if label and label != UNUSED:
            alarms = (f"curr{number}_crit_alarm", f"curr{number}_max_alarm")
            found.append(_Channel(label, f"in{number}_input", f"curr{number}_input", None, alarms))
    return _Channels(found, nameless)


class Rails:
    """Reads every rail, and tells the power of the whole module where it is known how."""

    name = "rails"
    reads: ClassVar = "/sys/class/hwmon/hwmon*/{in,curr,power}* of ina3221 and ina238"
    platform: ClassVar = "Jetson with JetPack 5 or newer; boards with these chips"
    permission: ClassVar = "anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (POWER, VOLTS, TOTAL_POWER, ALARM)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._chips = Chips(root, _NAMES.__contains__, channels_of, kernel)
        self._known: dict[str, _Channel] = {}  # every rail that was ever found

    def read(self) -> list[Reading]:
        """Power, voltage and alarm of each rail, absent ones that were there before included, and
        the total.

        One of each without a label and a value where there has never been a rail.
        """
        chips = [found for found in self._chips.look() if found[0].present]
        rails = self._rails(chips)
        if not self._known:
            return all_unknown(self.measurements, self._chips.no_chips)
        readings: list[Reading] = []
        for label, channel in self._known.items():
            readings += _rail(rails.get(label), channel, label)
        sums = [chip.read(_SUM_ALARM) for chip, _ in chips if _SUM_ALARM in chip.files]
        if sums:
            readings.append(_alarm(sums, SUM))
        module = total(watts_of(readings))
        if module.label == SUM and any(channels.nameless for _, channels in chips):
            module = unknown(TOTAL_POWER, "transient", SUM)  # a part of it may be missing
        return [*readings, module]

    def close(self) -> None:
        """Close the files."""
        self._chips.close()

    def _rails(self, chips: list[tuple[Chip, _Channels]]) -> dict[str, Chip]:
        """Which chip each rail is on now. A rail is known by its own name: two chips of one kind
        may change places."""
        rails: dict[str, Chip] = {}
        # An INA238 without a label is named by the rails beside it: these come first.
        for chip, channels in sorted(chips, key=lambda found: found[0].name != "ina3221"):
            for channel in channels.known:
                label = untaken(channel.label or self._unlabelled(chip), rails)
                if label in self._known or len(self._known) < MOST_RAILS:
                    self._known[label] = channel
                    rails[label] = chip
        return rails

    def _unlabelled(self, chip: Chip) -> str:
        """What an INA238's rail is called: beside a module's own rails it is the board's input."""
        return "VIN" if self._known.keys() & KNOWN else chip.label


def _rail(chip: Chip | None, channel: _Channel, label: str) -> list[Reading]:
    def content(file: str) -> bytes | Reason:
        return chip.read(file) if chip is not None else "absent"

    watts = content(channel.watts) if channel.watts is not None else "absent"
    amps = content(channel.amps) if watts == "absent" else "absent"
    readings = list(measured(label, content(channel.volts), amps, watts, _SCALE))
    if channel.alarms:
        readings.append(_alarm([content(alarm) for alarm in channel.alarms], label))
    return readings


def _alarm(contents: Sequence[bytes | Reason], label: str) -> Reading:
    state = parse_alarm(contents)
    if isinstance(state, str):
        return unknown(ALARM, state, label)
    return read_as(ALARM, state, "absent", label)
