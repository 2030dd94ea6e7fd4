"""From frames to charts. Pure: no database, no clock, no Streamlit.

A chart is an Altair chart over named data, described once for each shape of it, and the frames
that go with the names. So a refresh costs no new description (Altair takes 50 to 100 ms for one),
and the browser moves the points of a chart that stays, instead of drawing a new one. The ends of
the axes are data for the same reason: points that nobody sees.

No chart can be zoomed or dragged, because a browser's tab grows with every redraw of one that can;
tooltips tell the numbers. The colours are told apart by people with any colour vision, and stand
out from light and from dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd

from decodewatch.dashboard import series
from decodewatch.dashboard.series import EARLY_FLOOR, END, FLOOR, OTHERS, PERCENTILES, Axis

BLUE, PINK, VERMILLION = "#3587c6", "#cc79a7", "#d55e00"
GREY, GREEN, AMBER, SKY = "#808080", "#009e73", "#c98a00", "#4aa3d9"
_SERIES = (BLUE, VERMILLION, GREEN, PINK, AMBER, SKY)

TPOT = "TPOT of a turn"
_COLOURS = dict(zip(PERCENTILES, (BLUE, PINK, VERMILLION), strict=True))
_DASHES = dict(zip(PERCENTILES, ([1, 0], [6, 2], [3, 2]), strict=True))
_COMPLETE, _OTHERWISE = "complete", "ended otherwise"

_HELD = {"thermal": VERMILLION, "power": AMBER, "over-current": PINK, "policy": GREY}
"""The states that hold clocks down, as bands behind a chart."""

HEIGHT = 110
"""Pixels of a chart between its axes: legends and titles come on top."""
# All charts of the time axis leave the same room at both sides, so that moments line up. A mark
# that reaches over the edge would make its chart narrower, which is why all are clipped.
_LEFT = 46
_ROOM = 6
"""Pixels between the outermost points and the edge, which would cut them."""
_LABEL = 240
"""Pixels of a legend's entry at most."""
_LETTER, _SYMBOL = 6.6, 30
# Two legends of one chart stand one above the other.
_LEGENDS = "{top: {direction: 'vertical', anchor: 'start', margin: 2}}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: its Vega-Lite description, and the frames of the names that it draws from."""

    spec: Mapping[str, Any]
    data: Mapping[str, pd.DataFrame]

    @property
    def whole(self) -> dict[str, Any]:
        """Both in one, as `st.vega_lite_chart` takes them."""
        return {**self.spec, "datasets": dict(self.data)}


def _from(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=name))


def _shape(along: Axis) -> str:
    """How times are written along an axis."""
    minutes = (along.end - along.start) / 60_000_000
    return "%H:%M:%S" if minutes < 10 else "%H:%M" if minutes <= 36 * 60 else "%a %H:%M"


def _ends(along: Axis, levels: tuple[float, float] = (0.0, 0.0)) -> pd.DataFrame:
    """What the axes reach at least: in time both ends, and levels."""
    return pd.DataFrame({"at": list(along.domain_ms), "level": list(levels)})


def _time(shape: str, field: str = "at") -> alt.X:
    return alt.X(
        f"{field}:T",
        scale=alt.Scale(nice=False, padding=_ROOM),
        axis=alt.Axis(title=None, format=shape, tickCount=10, labelOverlap=True, grid=True),
    )


def _level(field: str, unit: str, *, zero: bool) -> alt.Y:
    return alt.Y(
        field,
        # Round ends would go below zero, which the room for points does already.
        scale=alt.Scale(zero=zero, nice=not zero, padding=_ROOM),
        axis=alt.Axis(title=unit, minExtent=_LEFT, maxExtent=_LEFT, tickCount=4),
    )


def _legend(labels: Iterable[str], **more: Any) -> alt.Legend:
    """A legend above the chart, in as many lines as the chart is narrow."""
    widest = min(max(map(len, labels), default=0) * _LETTER, _LABEL) + _SYMBOL
    return alt.Legend(
        orient="top",
        title=None,
        labelLimit=_LABEL,
        offset=4,
        columns=alt.ExprRef(f"max(1, floor(width / {widest:.0f}))"),
        **more,
    )


def _line_legend(labels: Iterable[str]) -> alt.Legend:
    return _legend(labels, symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=240)


def _moment() -> alt.Tooltip:
    return alt.Tooltip("at:T", title="time", format="%-d %b %H:%M:%S")


def _over(
    shape: str, title: str, unit: str, *layers: alt.Chart, zero: bool = True, height: int = HEIGHT
) -> dict[str, Any]:
    """Layers over the time axis, which reach its ends."""
    level = _level("level:Q", unit, zero=zero)
    return _framed([_unseen().encode(x=_time(shape), y=level), *layers], title, height)


def _unseen() -> alt.Chart:
    points: alt.Chart = _from("ends").mark_point(opacity=0, tooltip=None, aria=False, clip=True)
    return points


def _framed(layers: Sequence[alt.Chart], title: str, height: int) -> dict[str, Any]:
    chart = (
        alt.LayerChart(layer=list(layers))
        .properties(
            title=alt.TitleParams(title, anchor="start", frame="group", fontSize=14, offset=4),
            height=height,
            padding={"left": 0, "right": 14, "top": 8, "bottom": 0},
            # Not the height: lines of legend add to a chart, and take nothing from its points.
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        .configure_legend(layout=alt.ExprRef(_LEGENDS))
    )
    described: dict[str, Any] = chart.to_dict()
    return described


def _latencies(shown: tuple[str, ...]) -> dict[str, Any]:
    """How percentiles are told apart: by colour and by dashes."""
    legend = _line_legend(shown)
    return {
        "color": alt.Color(
            "percentile:N",
            scale=alt.Scale(domain=list(shown), range=[_COLOURS[one] for one in shown]),
            legend=legend,
        ),
        "strokeDash": alt.StrokeDash(
            "percentile:N",
            scale=alt.Scale(domain=list(shown), range=[_DASHES[one] for one in shown]),
            legend=legend,
        ),
    }


def _percentile_lines(
    across: alt.X, where: alt.Tooltip, shown: tuple[str, ...], size: int
) -> list[alt.Chart]:
    """Percentiles as lines with a point each, and what is withheld as something to hover over."""
    tooltip = [
        where,
        alt.Tooltip("percentile:N"),
        alt.Tooltip("told:N", title="ITL"),
        alt.Tooltip("n:Q", title="tokens", format=","),
    ]
    lines = (
        _from("itl")
        .mark_line(
            strokeWidth=1.8,
            invalid="break-paths-show-path-domains",
            point=alt.OverlayMarkDef(size=size, strokeWidth=0, clip=True),
            clip=True,
        )
        .encode(x=across, y=_level("ms:Q", "ms", zero=True), tooltip=tooltip, **_latencies(shown))
    )
    withheld = (
        _from("withheld")
        .mark_rule(opacity=0, strokeWidth=8, clip=True)
        .encode(x=across, tooltip=tooltip)
    )
    return [withheld, lines]


def _drawn(itl: pd.DataFrame) -> tuple[str, ...]:
    """The percentiles with a point, which a legend may promise."""
    known = set(itl.loc[itl["ms"].notna(), "percentile"])
    return tuple(name for name in PERCENTILES if name in known)


def _itl_data(itl: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {
        "itl": itl[itl["percentile"].isin(_drawn(itl))],
        "withheld": itl[itl["ms"].isna() & (itl["n"] > 0)],
    }


@lru_cache
def _itl_over_time(
    shape: str, shown: tuple[str, ...], with_turns: bool, held: tuple[str, ...]
) -> dict[str, Any]:
    legend = _legend([TPOT], symbolFillColor=AMBER, symbolStrokeWidth=0, symbolSize=60)
    tpot = (
        _from("turns")
        .mark_point(size=30, filled=True, color=AMBER, opacity=0.9, clip=True)
        .encode(
            x=_time(shape),
            y=_level("tpot_ms:Q", "ms", zero=True),
            shape=alt.Shape(
                "what:N",
                scale=alt.Scale(domain=[TPOT], range=["circle"]),
                legend=legend if with_turns else None,
            ),
            tooltip=_turn_tooltips(),
        )
    )
    lines = _percentile_lines(_time(shape), _moment(), shown, size=12)
    bands = [_bands(shape, held)] if held else []
    return _over(shape, "ITL, and TPOT of each turn", "ms", *bands, *lines, tpot, height=170)


def itl_over_time(
    itl: pd.DataFrame, turns: pd.DataFrame, along: Axis, bands: pd.DataFrame
) -> Drawing:
    """Percentiles of ITL as lines and TPOT of each turn as points, both in ms; behind them bands
    where something held the clocks down."""
    known = turns[turns["tpot_ms"].notna()].assign(what=TPOT)
    held = tuple(state for state in _HELD if state in set(bands["state"]))
    spec = _itl_over_time(_shape(along), _drawn(itl), not known.empty, held)
    data = {"ends": _ends(along), "turns": known, **_itl_data(itl)}
    return Drawing(spec, {**data, "bands": bands} if held else data)


def _bands(shape: str, held: tuple[str, ...]) -> alt.Chart:
    chart: alt.Chart = (
        _from("bands")
        .mark_rect(opacity=0.22, clip=True)
        .encode(
            x=_time(shape, "begin"),
            x2="end:T",
            fill=alt.Fill(
                "state:N",
                scale=alt.Scale(domain=list(held), range=[_HELD[one] for one in held]),
                legend=_legend(held, symbolType="square", symbolSize=120, symbolOpacity=0.6),
            ),
            tooltip=[
                alt.Tooltip("state:N", title="throttling"),
                alt.Tooltip("begin:T", title="from", format="%-d %b %H:%M:%S"),
                alt.Tooltip("end:T", title="to", format="%-d %b %H:%M:%S"),
            ],
        )
    )
    return chart


def _turn_tooltips() -> list[alt.Tooltip]:
    return [
        _moment(),
        alt.Tooltip("ttft:N", title="TTFT"),
        alt.Tooltip("tpot:N", title="TPOT"),
        alt.Tooltip("prompt:N", title="prompt tokens"),
        alt.Tooltip("output:N", title="output tokens"),
        alt.Tooltip("ending:N", title="ending"),
    ]


@lru_cache
def _ttft_of_turns(shape: str) -> dict[str, Any]:
    domain = [_COMPLETE, _OTHERWISE]
    points = (
        _from("turns")
        .mark_point(size=36, strokeWidth=1.6, opacity=0.9, clip=True)
        .encode(
            x=_time(shape),
            y=_level("ttft_ms:Q", "ms", zero=True),
            color=alt.Color(
                "ended:N",
                scale=alt.Scale(domain=domain, range=[BLUE, VERMILLION]),
                legend=_legend(domain),
            ),
            shape=alt.Shape(
                "ended:N",
                scale=alt.Scale(domain=domain, range=["circle", "triangle-up"]),
                legend=_legend(domain),
            ),
            tooltip=_turn_tooltips(),
        )
    )
    return _over(shape, "TTFT of each turn", "ms", points)


def ttft_of_turns(turns: pd.DataFrame, along: Axis) -> Drawing:
    """TTFT of each turn in ms; colour and shape say whether it ran to its end."""
    known = turns[turns["ttft_ms"].notna()]
    ended = known["ending"].where(known["ending"] == _COMPLETE, _OTHERWISE)
    data = {"ends": _ends(along), "turns": known.assign(ended=ended)}
    return Drawing(_ttft_of_turns(_shape(along)), data)


@lru_cache
def _memory_of_turns(shape: str, runtimes: tuple[str, ...]) -> dict[str, Any]:
    known = [FLOOR, EARLY_FLOOR, END]
    colours = [
        GREY if name == OTHERS else colour
        for name, colour in zip(runtimes, (*_SERIES, GREY), strict=False)
    ]
    points = (
        _from("memory")
        .mark_point(size=36, strokeWidth=1.6, opacity=0.9, clip=True)
        .encode(
            x=_time(shape),
            y=_level("mib:Q", "MiB", zero=False),
            color=alt.Color(
                "series:N",
                scale=alt.Scale(domain=list(runtimes), range=colours),
                legend=_legend(runtimes),
            ),
            shape=alt.Shape(
                "known_as:N",
                scale=alt.Scale(domain=known, range=["circle", "triangle-up", "cross"]),
                legend=_legend(known, symbolStrokeColor=GREY),
            ),
            tooltip=[
                _moment(),
                alt.Tooltip("memory:N", title="RssAnon + VmSwap"),
                alt.Tooltip("known_as:N", title="known as"),
                alt.Tooltip("runtime:N"),
            ],
        )
    )
    return _over(shape, "RssAnon + VmSwap after each turn", "MiB", points, zero=False)


def memory_of_turns(memory: pd.DataFrame, along: Axis) -> Drawing:
    """RssAnon + VmSwap after each turn in MiB; colour is the runtime, shape how it is known."""
    apart = dict.fromkeys(memory["series"])
    runtimes = tuple(sorted(apart, key=lambda name: name == OTHERS))
    ends = _ends(along, series.memory_ends(memory))
    return Drawing(_memory_of_turns(_shape(along), runtimes), {"ends": ends, "memory": memory})


@lru_cache
def _gauges(
    shape: str, labels: tuple[str, ...], title: str, unit: str, form: str, zero: bool
) -> dict[str, Any]:
    base = _from("levels").encode(
        x=_time(shape),
        y=_level("mean:Q", unit, zero=zero),
        color=alt.Color(
            "label:N",
            scale=alt.Scale(domain=list(labels), range=list(_SERIES)),
            legend=_line_legend(labels),
        ),
    )
    lines = base.mark_line(strokeWidth=1.6, invalid="break-paths-show-path-domains", clip=True)
    hover = base.mark_point(size=60, opacity=0, clip=True).encode(
        tooltip=[
            _moment(),
            alt.Tooltip("label:N", title="sensor"),
            alt.Tooltip("mean:Q", title=f"mean, {unit}", format=form),
            alt.Tooltip("low:Q", title=f"lowest, {unit}", format=form),
            alt.Tooltip("high:Q", title=f"highest, {unit}", format=form),
        ]
    )
    return _over(shape, title, unit, lines, hover, zero=zero)


def temperatures(levels: pd.DataFrame, along: Axis) -> Drawing:
    """Temperatures in degrees Celsius, a line a sensor; the tooltip has the extremes of a point."""
    spec = _gauges(_shape(along), _labels(levels), "Temperature", "°C", ".1f", False)
    ends = _ends(along, series.temperature_ends(levels))
    return Drawing(spec, {"ends": ends, "levels": levels})


def clocks(levels: pd.DataFrame, along: Axis) -> Drawing:
    """CPU clocks in GHz, a line a policy; the tooltip has the extremes of a point."""
    spec = _gauges(_shape(along), _labels(levels), "CPU clock", "GHz", ".2f", True)
    return Drawing(spec, {"ends": _ends(along), "levels": levels})


def gpu_busy(levels: pd.DataFrame, along: Axis) -> Drawing:
    """GPU utilisation in percent; the tooltip has the extremes of a point."""
    return _busy(levels, along, "GPU utilisation")


def dram_busy(levels: pd.DataFrame, along: Axis) -> Drawing:
    """DRAM utilisation in percent; the tooltip has the extremes of a point."""
    return _busy(levels, along, "DRAM utilisation")


def _busy(levels: pd.DataFrame, along: Axis, title: str) -> Drawing:
    spec = _gauges(_shape(along), _labels(levels), title, "%", ".0f", True)
    return Drawing(spec, {"ends": _ends(along, (0.0, 100.0)), "levels": levels})


def power(levels: pd.DataFrame, along: Axis) -> Drawing:
    """Power in watts, a line a rail; the tooltip has the extremes of a point."""
    spec = _gauges(_shape(along), _labels(levels), "Power", "W", ".2f", True)
    return Drawing(spec, {"ends": _ends(along), "levels": levels})


def _labels(levels: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(levels["label"]))


@lru_cache
def _itl_by_depth(depths: tuple[str, ...], shown: tuple[str, ...]) -> dict[str, Any]:
    across = alt.X(
        "depth:N",
        sort=list(depths),
        axis=alt.Axis(title="depth, tokens of context", labelAngle=0, labelOverlap=True),
    )
    lines = _percentile_lines(across, alt.Tooltip("depth:N"), shown, size=36)
    zero = _unseen().encode(y=_level("level:Q", "ms", zero=True))
    return _framed([zero, *lines], "ITL against depth", 170)


def itl_by_depth(itl: pd.DataFrame) -> Drawing:
    """Percentiles of ITL in ms against the depth octave."""
    spec = _itl_by_depth(tuple(dict.fromkeys(itl["depth"])), _drawn(itl))
    return Drawing(spec, {"ends": pd.DataFrame({"level": [0.0]}), **_itl_data(itl)})
