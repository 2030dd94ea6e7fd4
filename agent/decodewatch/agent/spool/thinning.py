"""Making stored batches smaller when the spool is full: samples and windows merge, then they go.

Pure: records in, fewer records out. Turns, events, floors and runtimes are never touched here.
"""

from collections.abc import Mapping, Sequence

from decodewatch.shared.records import (
    MAX_MEASUREMENTS,
    Measured,
    Phase,
    Record,
    Sample,
    Stratum,
    Window,
)
from decodewatch.shared.sketch import Sketch

MERGED_US = (60_000_000, 600_000_000)
"""The longest interval that the first and the second level merge to; the third drops them all."""
LEVELS = (1, 2, 3)

_MAX_STRATA = 256
_PART_UNKNOWN = "transient"  # a reason of agent/sources: it was not read in some of the interval


def detail(records: Sequence[Record]) -> int:
    """How many of the records are samples or windows."""
    return sum(isinstance(record, (Sample, Window)) for record in records)


def thin(records: Sequence[Record], level: int) -> list[Record]:
    """Some records after one of LEVELS; none where all were samples and windows that had to go."""
    if level > len(MERGED_US):
        return [record for record in records if not isinstance(record, (Sample, Window))]
    return merge(records, MERGED_US[level - 1])


def merge(records: Sequence[Record], longest_us: int) -> list[Record]:
    """Join adjoining samples, and windows, of one runtime, to at most `longest_us`."""
    out: list[Record] = []
    places: dict[tuple[str, str | None], int] = {}
    for record in records:
        if isinstance(record, (Sample, Window)):
            key = record.KIND, record.runtime
            place = places.get(key)
            joined = None if place is None else _join(out[place], record, longest_us)
            if joined is not None and place is not None:
                out[place] = joined
                continue
            places[key] = len(out)
        out.append(record)
    return out


def _join(first: Record, second: Record, longest_us: int) -> Record | None:
    """Both as one record; None where they are too far apart or would be too large together."""
    if isinstance(first, Sample) and isinstance(second, Sample):
        span = _span(first, second)
        return _join_samples(first, second, span) if 0 < span <= longest_us else None
    if isinstance(first, Window) and isinstance(second, Window):
        span = _span(first, second)
        return _join_windows(first, second, span) if 0 < span <= longest_us else None
    return None


def _span(first: Sample | Window, second: Sample | Window) -> int:
    """From the start of the first to the end of the second, in microseconds.

    0 where they do not adjoin: an interval must not claim time that nobody watched.
    """
    gap = second.t - second.duration_us - first.t
    if 2 * abs(gap) > min(first.duration_us, second.duration_us):
        return 0
    return second.t - first.t + first.duration_us


def _join_windows(first: Window, second: Window, span: int) -> Window | None:
    sketches: dict[tuple[int | None, int, str], Sketch] = {}
    for stratum in (*first.strata, *second.strata):
        key = stratum.depth, stratum.concurrency, stratum.throttle
        sketches.setdefault(key, Sketch()).merge(stratum.itl)
    if len(sketches) > _MAX_STRATA:
        return None
    return Window(
        runtime=first.runtime,
        t=second.t,
        duration_us=span,
        tokens=first.tokens + second.tokens,
        steps=first.steps + second.steps,
        strata=tuple(Stratum(*key, itl) for key, itl in sketches.items()),
    )


def _join_samples(first: Sample, second: Sample, span: int) -> Sample | None:
    values: dict[str, Measured] = {}
    unknown: dict[str, str] = {**(first.unknown or {}), **(second.unknown or {})}
    for name in {**first.values, **second.values}:
        one, other = first.values.get(name), second.values.get(name)
        if one is None or other is None:
            known = other if one is None else one
            if isinstance(known, tuple):
                values[name] = known
            else:
                # Half of a counter's increase over all of the interval would read as a slow one.
                unknown.setdefault(name, _PART_UNKNOWN)
        elif isinstance(one, tuple) and isinstance(other, tuple):
            values[name] = _join_gauges(one, first.duration_us, other, second.duration_us)
        elif isinstance(one, tuple) or isinstance(other, tuple):
            return None
        else:
            values[name] = one + other
    still_unknown = _without(unknown, values)
    if len(values) > MAX_MEASUREMENTS or len(still_unknown) > MAX_MEASUREMENTS:
        return None
    phases = _join_phases(first.phases or {}, second.phases or {})
    return Sample(first.runtime, second.t, span, values, still_unknown, phases or None)


def _join_phases(first: Mapping[str, Phase], second: Mapping[str, Phase]) -> dict[str, Phase]:
    """The phases of both. What was unknown in a part of a phase is unknown in the whole: power over
    a part of the time would make the energy of all its tokens another one."""
    joined = {**first, **second}
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        values: dict[str, Measured] = {}
        for key in (key for key in one.values if key in other.values):
            level, next_level = one.values[key], other.values[key]
            if isinstance(level, tuple) and isinstance(next_level, tuple):
                values[key] = _join_gauges(level, one.duration_us, next_level, other.duration_us)
        duration_us = one.duration_us + other.duration_us
        joined[name] = Phase(duration_us, one.tokens + other.tokens, values)
    return joined


def _join_gauges(
    one: tuple[int | float, int | float, int | float],
    one_us: int,
    other: tuple[int | float, int | float, int | float],
    other_us: int,
) -> tuple[int | float, int | float, int | float]:
    low, high = min(one[1], other[1]), max(one[2], other[2])
    mean = (one[0] * one_us + other[0] * other_us) / (one_us + other_us)
    # Six digits are more than any sensor has, and all seventeen would cost most of what is saved.
    return min(max(float(f"{mean:.6g}"), low), high), low, high


def _without(unknown: Mapping[str, str], values: Mapping[str, Measured]) -> dict[str, str]:
    return {name: reason for name, reason in unknown.items() if name not in values}
