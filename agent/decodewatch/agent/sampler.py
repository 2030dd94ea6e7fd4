"""From readings, about one a second, to samples: what the hardware showed in one interval."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from decodewatch.agent.sources.kit.base import Reading, Source, Value, first_known
from decodewatch.shared import logs
from decodewatch.shared.records import MAX_INTEGER, MAX_MEASUREMENTS, Measured, Sample

log = logs.get(__name__)

_FIRST_BACK_OFF_S: Final = 60
_LONGEST_BACK_OFF_S: Final = 3600
_EVERY_S: Final = 3600.0
_LASTING: Final = frozenset({"absent", "denied", "unsupported", "unlimited"})
_TELL_AGAIN_US: Final = 3_600_000_000
_FORGET_US: Final = 3_600_000_000
_KILLS_SOURCE: Final = "vmstat"

DIGITS: Final[Mapping[str, int | None]] = {
    "bytes": None,
    "bytes_per_second": None,
    "hertz": None,
    "microseconds": None,
    "count": 2,
    "celsius": 2,
    "share": 4,
    "joules": 3,
    "volts": 3,
    "watts": 3,
}
"""Digits behind the point that mean something; the rest would be noise on the wire."""


class _Gauge:
    """A level, read several times in an interval."""

    __slots__ = ("_digits", "count", "highest", "lowest", "silent_us", "total")

    def __init__(self, unit: str) -> None:
        self._digits = DIGITS[unit]
        self.silent_us: int | None = None  # since when nothing was said of it
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.total: Value = 0
        self.lowest: Value = 0
        self.highest: Value = 0

    def add(self, value: Value) -> None:
        if not self.count:
            self.lowest = self.highest = value
        elif value < self.lowest:
            self.lowest = value
        elif value > self.highest:
            self.highest = value
        self.count += 1
        self.total += value

    def measured(self) -> Measured | None:
        if not self.count:
            return None
        digits = self._digits
        mean, low, high = self.total / self.count, self.lowest, self.highest
        return round(mean, digits), round(low, digits), round(high, digits)


class _Counter:
    """What only grows; its increase over the interval is what counts."""

    __slots__ = ("_last", "count", "known", "silent_us", "total")

    def __init__(self) -> None:
        self._last: Value | None = None
        self.silent_us: int | None = None
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.total: Value = 0
        self.known = False  # whether two readings enclose some of the interval

    def add(self, value: Value) -> None:
        last = self._last
        self._last = value
        self.count += 1
        if last is not None and value >= last:
            self.total += value - last
            self.known = True
        # One that went back was reset (a driver loaded again): it counts on from where it is now.

    def measured(self) -> Measured | None:
        # More than a record can hold is a counter gone mad; the collector would refuse all of it.
        return self.total if self.known and self.total <= MAX_INTEGER else None


class Series:
    """The readings of one interval, of the system or of one runtime.

    At most `MAX_MEASUREMENTS` measurements and as many reasons are kept: what a record holds. One
    of which no source says anything any more, not even a reason, is forgotten after an hour, or
    where there is no room for another: some sensors come back under a new name each time. A reason
    that lasts, such as that of a sensor that the device does not have, is told when it is
    new and then once an hour: most of a device's reasons are of that kind.
    """

    def __init__(self, now_us: int) -> None:
        self._since = now_us
        self._empty = True
        self._series: dict[str, _Gauge | _Counter] = {}
        self._reasons: dict[str, str] = {}
        self._told: dict[str, tuple[str, int]] = {}  # of the reasons that last: which, and when

    @property
    def since(self) -> int:
        """When the interval began."""
        return self._since

    def add(self, readings: Iterable[Reading]) -> None:
        """Take in what was read at one moment."""
        for reading in readings:
            self._empty = False
            key = reading.key
            if reading.word is not None:
                continue  # a setting of the device, not a part of samples
            if reading.value is None:
                if reading.reason is not None and (
                    key in self._reasons or len(self._reasons) < MAX_MEASUREMENTS
                ):
                    self._reasons[key] = reading.reason
                continue
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MAX_MEASUREMENTS and not self._forget_silent():
                    log.warning("too many measurements, one left out", every=_EVERY_S, key=key)
                    continue
                measurement = reading.measurement
                series = _Counter() if measurement.kind == "counter" else _Gauge(measurement.unit)
                self._series[key] = series
            series.add(reading.value)

    def close(self, now_us: int, runtime: str | None = None) -> Sample | None:
        """The sample up to now, None where nothing was read; the next interval begins."""
        since, self._since = self._since, now_us
        if self._empty:
            return None
        self._empty = True
        values: dict[str, Measured] = {}
        unknown: dict[str, str] = {}
        for key, series in self._series.items():
            measured = series.measured()
            if measured is not None:
                values[key] = measured
                self._told.pop(key, None)
            else:
                unknown[key] = self._reasons.get(key, "transient")
            silent = not series.count and key not in self._reasons
            series.silent_us = (series.silent_us or now_us) if silent else None
            series.clear()
        self._forget_silent(now_us - _FORGET_US)
        for key, reason in self._reasons.items():
            if key not in values and len(unknown) < MAX_MEASUREMENTS:
                unknown[key] = reason
        self._reasons.clear()
        seen = frozenset(unknown)
        unknown = {
            key: reason for key, reason in unknown.items() if self._tells(key, reason, now_us)
        }
        self._told = {key: told for key, told in self._told.items() if key in seen}
        return Sample(runtime, now_us, max(now_us - since, 1), values, unknown or None)

    def _forget_silent(self, until_us: int | None = None) -> bool:
        """Forget those that are silent, with `until_us` at least since then.

        Whether there were any. One that was, and was read again in this interval, is not.
        """
        gone = [
            key
            for key, series in self._series.items()
            if series.silent_us is not None
            and not series.count
            and (until_us is None or series.silent_us <= until_us)
        ]
        for key in gone:
            del self._series[key]
        return bool(gone)

    def _tells(self, key: str, reason: str, now_us: int) -> bool:
        """Whether a reason is news; it counts as told then."""
        if reason not in _LASTING:
            self._told.pop(key, None)
            return True
        told, at = self._told.get(key, (None, 0))
        if told == reason and now_us - at < _TELL_AGAIN_US:
            return False
        self._told[key] = reason, now_us
        return True


class Sampler:
    """Reads every source and builds the system's samples.

    A source whose `read` raises has a fault: it says so once, costs only itself, and is left alone
    for a minute, then for twice as long each time, up to an hour.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        now_us: int,
        failed: Callable[[str, str], None],
    ) -> None:
        """`failed` is told the name of a source and the kind of its fault, once."""
        self._sources = sources
        self._failed = failed
        self._series = Series(now_us)
        self._back_off: dict[str, tuple[int, int]] = {}  # source: (seconds, until this time)
        self._told: set[str] = set()
        self._counted = False
        self.readings: list[Reading] = []
        """What was read at the last tick, one reading a key."""
        self.oom_kills: int | None = None
        """OOM kills of the device since boot at the last tick; None where that is unknown."""

    @property
    def since(self) -> int:
        """When the interval began."""
        return self._series.since

    def tick(self, now_us: int) -> None:
        """Read every source once."""
        each = [self._read(source, now_us) for source in self._sources]
        if not self._counted:
            self._counted = True
            _say_what_is_read(each)
        self.readings = first_known(reading for readings in each for reading in readings)
        self._series.add(self.readings)
        self._see_kills(self.readings)

    def conclude(self, readings: Iterable[Reading]) -> None:
        """Take in what was concluded from the readings of this tick: they are among them now."""
        found = list(readings)
        self.readings += found
        self._series.add(found)

    def read_oom_kills(self, now_us: int) -> int | None:
        """Read the OOM kills of the device now, between two ticks."""
        for source in self._sources:
            if source.name == _KILLS_SOURCE:
                self._see_kills(self._read(source, now_us))
        return self.oom_kills

    def close(self, now_us: int) -> Sample | None:
        """The system's sample up to now; the next interval begins."""
        return self._series.close(now_us)

    def stop(self) -> None:
        """Close the sources' files."""
        for source in self._sources:
            source.close()

    def _see_kills(self, readings: Iterable[Reading]) -> None:
        self.oom_kills = next(
            (
                None if reading.value is None else int(reading.value)
                for reading in readings
                if reading.key == "oom_kills"
            ),
            None,
        )

    def _read(self, source: Source, now_us: int) -> list[Reading]:
        """What a source reads now; nothing where it has a fault and is left alone."""
        seconds, until = self._back_off.get(source.name, (0, 0))
        if now_us < until:
            return []
        try:
            readings = source.read()
        except Exception as error:
            kind = type(error).__name__
            log.error(
                "source failed", every=_EVERY_S, source=source.name, trace=traceback.format_exc()
            )
            if source.name not in self._told:
                self._told.add(source.name)
                self._failed(source.name, kind)
            seconds = min(max(seconds * 2, _FIRST_BACK_OFF_S), _LONGEST_BACK_OFF_S)
            self._back_off[source.name] = (seconds, now_us + seconds * 1_000_000)
            return []
        if seconds:
            del self._back_off[source.name]
        return readings


def _say_what_is_read(each: Sequence[Sequence[Reading]]) -> None:
    """How many sources have something here; `to_come`: those whose values take a moment."""
    read = [any(reading.known for reading in readings) for readings in each]
    waiting = [any(reading.reason == "transient" for reading in readings) for readings in each]
    to_come = sum(waits and not known for known, waits in zip(read, waiting, strict=True))
    log.info(
        "sources",
        read=sum(read),
        **({"to_come": to_come} if to_come else {}),
        of=len(each),
        see="decodewatch agent sources",
    )
