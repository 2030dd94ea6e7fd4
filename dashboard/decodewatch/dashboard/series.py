"""From rows to what a chart draws: bins along the time axis, and frames.

Pure. A percentile of a bin comes from the merged sketches of its windows, never from other
percentiles, and is withheld (NaN) where its count is too small. Times in frames are milliseconds
since 1970, as Vega wants them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from decodewatch.dashboard import format as words
from decodewatch.dashboard.queries import Sample, Turn, Window
from decodewatch.shared.diagnose.throttle import state_of_shares
from decodewatch.shared.energy import RAILS
from decodewatch.shared.sensors import TEMPERATURE, is_junction
from decodewatch.shared.sketch import Percentile, Sketch, enough_for

MOST_POINTS = 500
"""Points of one series at most: a tab that redraws more for days grows without end."""
MOST_BINS = 180
"""Whole bins of a time axis at most; the ends add a piece of one each."""
FEWEST_BINS = 6
"""The bins of a percentile are widened until most have enough tokens, but not beyond so few."""
MOST_SERIES = 6
OTHERS = "others"
LEAST_MEMORY_MIB, LEAST_MEMORY_SHARE = 8.0, 0.05
LEAST_CELSIUS = 5.0
"""What an axis that does not begin at zero shows at least, so that noise does not look like more:
of memory the larger of the two."""

QUANTILES = (0.5, 0.9, 0.99)
PERCENTILES = tuple(f"p{q * 100:g}" for q in QUANTILES)

_WIDTHS_S = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_MOST = 0.75


@dataclass(frozen=True, slots=True)
class Axis:
    """A time axis in microseconds since 1970, cut into bins of one width."""

    start: int
    end: int
    width: int

    @property
    def count(self) -> int:
        """How many bins."""
        return math.ceil((self.end - self.start) / self.width)

    def bin(self, at: int) -> int | None:
        """The bin of a moment; None outside. A moment on an edge ends the bin before it."""
        place = math.ceil((at - self.start) / self.width) - 1
        return place if 0 <= place < self.count else None

    def middle_ms(self, place: int) -> float:
        """The middle of a bin."""
        return (self.start + (place + 0.5) * self.width) / 1000

    def within_ms(self, at_ms: float) -> float:
        """A moment, or the end that it lies beyond: wide bins reach over both."""
        return min(max(at_ms, self.start / 1000), self.end / 1000)

    @property
    def domain_ms(self) -> tuple[float, float]:
        """Its ends."""
        return self.start / 1000, self.end / 1000


def axis(since: int, now: int, seen: Iterable[int]) -> Axis:
    """The axis of a page: the period asked for, or from the first moment of it that has data.

    Its bins are as narrow as the bound of points allows, and cut at round moments, so that they
    keep their place from one refresh to the next.
    """
    begin = max(since, min([now - words.MINUTE, *seen]) - 15 * words.SECOND)
    widths = [seconds * words.SECOND for seconds in _WIDTHS_S]
    width = next((one for one in widths if now - begin <= MOST_BINS * one), widths[-1])
    return Axis(begin // width * width, -(-now // width) * width, width)


def _wider(along: Axis) -> Iterator[Axis]:
    """The axis, and the same stretch in ever wider bins, down to few."""
    yield along
    for seconds in _WIDTHS_S:
        width = seconds * words.SECOND
        start = along.start // width * width
        made = Axis(start, along.end, width)
        if width > along.width and made.count >= FEWEST_BINS:
            yield made


@dataclass(frozen=True, slots=True)
class OverTime:
    """ITL percentiles over time, each in bins wide enough for it.

    `frame` has a row a percentile and bin: `at`, `percentile`, `ms` (NaN: withheld, or no token),
    `n`, and `told`, the same in words. `widths` are the bins' widths in microseconds, None for a
    percentile that not a single bin has enough tokens for.
    """

    frame: pd.DataFrame
    widths: Mapping[str, int | None]


def itl_over_time(windows: Sequence[Window], along: Axis) -> OverTime:
    """ITL percentiles over time, in ms.

    A bin without tokens is there too, so that a line stops instead of bridging it.
    """
    rows: list[dict[str, object]] = []
    widths: dict[str, int | None] = {}
    for q, name in zip(QUANTILES, PERCENTILES, strict=True):
        made, bins = _bins_for(q, windows, along)
        percentiles = [sketch.percentile(q) for sketch in bins]
        known = any(found.us is not None for found in percentiles)
        widths[name] = made.width if known else None
        for place, found in enumerate(percentiles):
            rows.append(
                {
                    "at": along.within_ms(made.middle_ms(place)),
                    "percentile": name,
                    "ms": math.nan if found.us is None else found.us / 1000,
                    "n": found.n,
                    "told": _told(found),
                }
            )
    return OverTime(pd.DataFrame(rows, columns=["at", "percentile", "ms", "n", "told"]), widths)


def _bins_for(q: float, windows: Sequence[Window], along: Axis) -> tuple[Axis, list[Sketch]]:
    """The narrowest bins most of which hold enough for a percentile, of those with any token."""
    needed = 1 if q == 0.5 else enough_for(q)
    for made in _wider(along):
        bins = [Sketch() for _ in range(made.count)]
        for window in windows:
            place = made.bin(window.at)
            if place is not None:
                bins[place].merge(window.itl)
        filled = [sketch.n for sketch in bins if sketch.n]
        if sum(n >= needed for n in filled) >= _MOST * len(filled):
            break
    return made, bins


def _told(found: Percentile) -> str:
    return words.percentile(found).partition(" ")[2]


def itl_by_depth(itl: Mapping[int | None, Sketch]) -> pd.DataFrame:
    """ITL percentiles a depth octave, in ms, the shallow ones first.

    `depth`, and `percentile`, `ms`, `n`, `told` as over time. Tokens whose depth is not known are
    in no row.
    """
    rows = [
        {
            "depth": depth_label(octave),
            "percentile": name,
            "ms": math.nan if found.us is None else found.us / 1000,
            "n": found.n,
            "told": _told(found),
        }
        for octave in sorted(octave for octave in itl if octave is not None)
        for q, name in zip(QUANTILES, PERCENTILES, strict=True)
        for found in [itl[octave].percentile(q)]
    ]
    return pd.DataFrame(rows, columns=["depth", "percentile", "ms", "n", "told"])


def depth_label(octave: int) -> str:
    """The depths of an octave: "256-511", "1k-2k"."""
    low, high = 1 << octave, (1 << octave + 1) - 1
    if low >= 1024:
        return f"{low // 1024}k\N{EN DASH}{2 * low // 1024}k"
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"


def turn_points(turns: Sequence[Turn]) -> pd.DataFrame:
    """A row a turn: `at` (its end), `ttft_ms`, `tpot_ms` (NaN: unknown), and words about it."""
    rows = [
        {
            "at": turn.end_at / 1000,
            "ttft_ms": _milli(turn.ttft_us),
            "tpot_ms": _milli(turn.tpot_us),
            "ending": words.plain(turn.ending),
            "ttft": words.duration(turn.ttft_us),
            "tpot": words.duration(turn.tpot_us),
            "prompt": words.count(turn.prompt_tokens),
            "output": words.count(turn.output_tokens),
        }
        for turn in turns[:MOST_POINTS]
    ]
    columns = ["at", "ttft_ms", "tpot_ms", "ending", "ttft", "tpot", "prompt", "output"]
    return pd.DataFrame(rows, columns=columns)


def _milli(us: float | None) -> float:
    return math.nan if us is None else us / 1000


# How sure a figure of memory after a turn is, the surest first.
FLOOR, EARLY_FLOOR, END = "floor", "floor, unsettled", "turn's end"


def memory_points(turns: Sequence[Turn], called: Mapping[str, str]) -> pd.DataFrame:
    """RssAnon + VmSwap after each turn in MiB: `at`, `mib`, `known_as`, `runtime`, `memory`.

    `called` names the runtimes. The floor where there is one, else what the runtime held when the
    turn ended, marked so. `series` is the runtime for the few that had turns last, else OTHERS.
    """
    rows: list[dict[str, object]] = []
    apart: dict[str, None] = {}
    for turn in turns[:MOST_POINTS]:
        held, known_as = turn.memory_end_bytes, END
        if turn.floor_bytes is not None:
            held, known_as = turn.floor_bytes, FLOOR if turn.floor_settled else EARLY_FLOOR
        if held is not None:
            name = called.get(turn.runtime, turn.runtime[:8])
            if len(apart) < MOST_SERIES:
                apart[name] = None
            rows.append(
                {
                    "at": turn.end_at / 1000,
                    "mib": held / 2**20,
                    "known_as": known_as,
                    "runtime": name,
                    "series": name if name in apart else OTHERS,
                    "memory": words.size(held),
                }
            )
    columns = ["at", "mib", "known_as", "runtime", "series", "memory"]
    return pd.DataFrame(rows, columns=columns)


def memory_ends(memory: pd.DataFrame) -> tuple[float, float]:
    """What an axis of memory shows at least, in MiB."""
    least = max(LEAST_MEMORY_MIB, LEAST_MEMORY_SHARE * float(memory["mib"].max()))
    low, high = _ends(memory["mib"], least)
    return (low, high) if low >= 0 else (0.0, high - low)


def temperature_ends(levels: pd.DataFrame) -> tuple[float, float]:
    """What an axis of temperatures shows at least, in degrees Celsius."""
    return _ends(levels["mean"], LEAST_CELSIUS)


def _ends(values: "pd.Series[float]", least: float) -> tuple[float, float]:
    """The lowest and the highest of some values, and both moved apart alike where too close."""
    low, high = float(values.min()), float(values.max())
    more = max(least - (high - low), 0.0) / 2
    return low - more, high + more


@dataclass(frozen=True, slots=True)
class Gauges:
    """Levels over time, a series a sensor, and what is not in them.

    `frame` has `at`, `label`, `mean`, `low`, `high`. `left_out` counts sensors beyond the bound.
    `reason` says why there is none at all.
    """

    frame: pd.DataFrame
    left_out: int
    reason: str | None


_Level = tuple[float, float, float]  # mean, minimum, maximum
SILENCE = 150 * words.SECOND
"""A line of samples bridges so much: an idle device sends one a minute."""


def throttle_bands(samples: Sequence[Sample], along: Axis) -> pd.DataFrame:
    """When something held the clocks down: `begin`, `end`, `state`, successive samples as one.

    A sample stands for the time since the one before it, for no longer than a line bridges.
    """
    longest = max(3 * along.width, SILENCE)
    bands: list[list[object]] = []
    before: tuple[int, str | None] = (0, None)
    for sample in samples:
        state = state_of_shares(sample.values)
        begin = max(before[0], sample.at - longest)
        if state is not None and state != "none":
            ends = along.within_ms(begin / 1000), along.within_ms(sample.at / 1000)
            if bands and before == (begin, state):
                bands[-1][1] = ends[1]
            else:
                bands.append([*ends, state])
        before = sample.at, state
    rows = [
        (begin, end, str(state).replace("_", "-")) for begin, end, state in bands[-MOST_POINTS:]
    ]
    return pd.DataFrame(rows, columns=["begin", "end", "state"])


def _any(label: str) -> bool:
    return True


def gauges(
    samples: Sequence[Sample],
    along: Axis,
    measurements: Mapping[str, str],
    scale: float = 1.0,
    keep: Callable[[str], bool] = _any,
) -> Gauges:
    """Measurements of all their sensors along the axis, times `scale`: the highest few of them.

    What each measurement is mapped to says what a sensor is called, with its label in place of {}.
    """
    cells: dict[str, dict[int, list[_Level]]] = {}
    reason = None
    for sample in samples:
        place = along.bin(sample.at)
        for key, value in sample.values.items():
            name, _, label = key.partition(":")
            if name in measurements and place is not None and keep(label):
                level = value if isinstance(value, list) else [value] * 3
                called = measurements[name].format(label).strip()
                cells.setdefault(called, {}).setdefault(place, []).append(tuple(level))
        for key, why in sample.unknown.items():
            if key.partition(":")[0] in measurements:
                reason = str(why)
    ranked = sorted(cells, key=lambda label: (-_highest(cells[label]), label))
    rows = [
        {"at": at, "label": words.plain(label), "mean": mean, "low": low, "high": high}
        for label in ranked[:MOST_SERIES]
        for at, mean, low, high in _line(cells[label], along, scale)
    ]
    frame = pd.DataFrame(rows, columns=["at", "label", "mean", "low", "high"])
    return Gauges(frame, max(len(ranked) - MOST_SERIES, 0), reason)


def _highest(cells: Mapping[int, Sequence[_Level]]) -> float:
    return max(high for levels in cells.values() for _, _, high in levels)


def _line(
    cells: Mapping[int, Sequence[_Level]], along: Axis, scale: float
) -> Iterator[tuple[float, float, float, float]]:
    """Points of one series, with one of NaN where nothing was measured for long."""
    longest = max(3 * along.width, SILENCE) // along.width
    before: int | None = None
    for place in sorted(cells):
        if before is not None and place - before > longest:
            yield along.middle_ms(before + 1), math.nan, math.nan, math.nan
        before, levels = place, cells[place]
        yield (
            along.middle_ms(place),
            scale * sum(mean for mean, _, _ in levels) / len(levels),
            scale * min(low for _, low, _ in levels),
            scale * max(high for _, _, high in levels),
        )


def temperatures(samples: Sequence[Sample], along: Axis) -> Gauges:
    """The chip's sensors in degrees Celsius; those of board, battery and radios are left away."""
    return gauges(samples, along, {TEMPERATURE: "{}"}, keep=is_junction)


def clocks(samples: Sequence[Sample], along: Axis) -> Gauges:
    """The CPU's clocks in GHz, one series a policy."""
    return gauges(samples, along, {"cpu_hertz": "{}"}, scale=1e-9)


def gpu_busy(samples: Sequence[Sample], along: Axis) -> Gauges:
    """GPU utilisation in percent."""
    return gauges(samples, along, {"gpu_busy_share": "GPU {}"}, scale=100)


def dram_busy(samples: Sequence[Sample], along: Axis) -> Gauges:
    """DRAM utilisation in percent."""
    return gauges(samples, along, {"dram_busy_share": "DRAM {}"}, scale=100)


def power(samples: Sequence[Sample], along: Axis) -> Gauges:
    """Power in watts, one series a rail, that of the whole device among them."""
    return gauges(samples, along, {name: rail_name(f"{name}:{{}}") for name in RAILS})


def rail_name(rail: str) -> str:
    """What to call a rail, by its measurement and label."""
    name, _, label = rail.partition(":")
    return f"{label} (whole device)" if name == RAILS[0] else label
