"""What every source is made of: the table of measurements, and readings.

A source is one file of `sources`: rows of the table of measurements, a pure `parse`, and a thin
reader that takes the root folder. It is registered by one line in `sources/__init__.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from decodewatch.agent.sources.kit.labels import fitting

Unit = Literal[
    "bytes",
    "bytes_per_second",
    "celsius",
    "count",
    "hertz",
    "joules",
    "microseconds",
    "share",
    "volts",
    "watts",
    "word",
]
Kind = Literal["gauge", "counter", "word"]
Value = int | float

Reason = Literal["absent", "denied", "transient", "implausible", "unsupported", "unlimited"]
"""Why a value is unknown.

absent: the device has no such file, line or sensor (now). denied: the agent may not read it.
transient: it could not be read this time. implausible: what was read cannot be true.
unsupported: the kernel knows it and does not offer it. unlimited: there is no limit to report.
"""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

_TOO_LARGE: Final = 1 << 63
_LONGEST_WORD: Final = 128
LONGEST_KEY: Final = 128
"""Characters of a measurement's name and its label: what a record holds."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table of measurements.

    A gauge is a level, a counter only grows in a boot. A word is a setting of the device, such as
    its power mode: it is told when it changes, and is not part of samples.
    """

    name: str
    unit: Unit
    kind: Kind
    help: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one measurement, or why there is none.

    `label` tells several sensors of one measurement apart and is '' where there is one only. A
    measurement whose kind is a word has `word` in place of `value`. Exactly one of `value`, `word`
    and `reason` is not None.

    Whatever a sensor is called, the collector takes it: see `labels.fitting`.
    """

    measurement: Measurement
    label: str
    value: Value | None
    reason: Reason | None
    word: str | None = None

    def __post_init__(self) -> None:
        if (self.value, self.word, self.reason).count(None) != 2:
            raise ValueError(
                f"{self.key}: value {self.value!r}, word {self.word!r}, reason {self.reason!r};"
                " accepted is exactly one of them"
            )
        if self.label:
            label = fitting(self.label, LONGEST_KEY - 1 - len(self.measurement.name))
            if label is not self.label:
                object.__setattr__(self, "label", label)

    @property
    def known(self) -> bool:
        """Whether there is a value or a word."""
        return self.reason is None

    @property
    def key(self) -> str:
        """The measurement's name, and the label after a colon: `temp_celsius:cpu-thermal`."""
        name = self.measurement.name
        return f"{name}:{self.label}" if self.label else name


def unknown(measurement: Measurement, reason: Reason, label: str = "") -> Reading:
    """A reading without a value."""
    return Reading(measurement, label, None, reason)


def read_as(
    measurement: Measurement, value: Value | None, reason: Reason, label: str = ""
) -> Reading:
    """A reading of `value`, or of nothing for `reason` where it is None.

    A value that 63 bits cannot hold is implausible: nothing that counts or measures gets there, and
    no table could store it.
    """
    if value is None:
        return Reading(measurement, label, None, reason)
    if not -_TOO_LARGE < value < _TOO_LARGE:
        return Reading(measurement, label, None, "implausible")
    return Reading(measurement, label, value, None)


def word_of(
    measurement: Measurement, value: str | None, reason: Reason, label: str = ""
) -> Reading:
    """A reading of a word, cut to what a record holds; of nothing for `reason` where it is empty.

    What cannot be printed is shown as `?`: it comes from files that anybody may have written.
    """
    if not value:
        return Reading(measurement, label, None, reason)
    text = "".join(char if char.isprintable() else "?" for char in value[:_LONGEST_WORD])
    return Reading(measurement, label, None, None, text)


def all_unknown(measurements: Iterable[Measurement], reason: Reason) -> list[Reading]:
    """What a source of one file reports when the file cannot be read."""
    return [Reading(measurement, "", None, reason) for measurement in measurements]


def first_known(readings: Iterable[Reading]) -> list[Reading]:
    """One reading a key: the first that has a value, else the first reason that is not `absent`.

    Several sources may know one thing (a clock from sysfs and from a tool); the one registered
    first is believed. That one of them has no sensor at all is no news where another has one.
    """
    found: dict[str, Reading] = {}
    for reading in readings:
        known = found.get(reading.key)
        if known is None or (
            not known.known
            and (reading.known or (known.reason == "absent" and reading.reason != "absent"))
        ):
            found[reading.key] = reading
    # That there is none without a label is no news beside one that has a label. That it may not be
    # read is, unless something else can be.
    labelled: dict[str, bool] = {}
    for reading in found.values():
        if reading.label:
            name = reading.measurement.name
            labelled[name] = labelled.get(name, False) or reading.known
    return [
        reading
        for reading in found.values()
        if reading.known
        or reading.label
        or labelled.get(reading.measurement.name) is None
        or (reading.reason != "absent" and not labelled[reading.measurement.name])
    ]


class Source(Protocol):
    """Hardware that is read about once a second."""

    name: str

    def read(self) -> list[Reading]:
        """Every measurement of the source now. Never raises for what a device can do, and never
        waits: what takes long is started now and read later."""
        ...

    def close(self) -> None:
        """Close the files and end the children. A later `read` opens them again."""
        ...
