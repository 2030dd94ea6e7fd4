"""From frames to charts. Pure: no database, no clock, no Streamlit.

A chart is an Altair chart over named data, described once for each shape of it, and the frames
that go with the names. So a refresh costs no new description (Altair takes 50 to 100 ms for one),
and the browser moves the points of a chart that stays, instead of drawing a new one. The ends of
the time axis are data for the same reason.

No chart can be zoomed or dragged, because a browser's tab grows with every redraw of one that can;
tooltips tell the numbers. The colours are told apart by people with any colour vision, and stand
out from light and from dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd

from decodewatch.dashboard.series import EARLY_FLOOR, END, FLOOR, PERCENTILES, Axis

BLUE, PINK, VERMILLION = "#3587c6", "#cc79a7", "#d55e00"
GREY, GREEN, AMBER, SKY = "#808080", "#009e73", "#c98a00", "#4aa3d9"
_SERIES = (BLUE, VERMILLION, GREEN, PINK, AMBER, SKY)

TPOT = "TPOT of a turn"
_LATENCIES = (*PERCENTILES, TPOT)
_LATENCY_COLOURS = (BLUE, PINK, VERMILLION, GREY)
_LATENCY_DASHES = ([1, 0], [6, 2], [3, 2], [1, 3])
_COMPLETE, _OTHERWISE = "complete", "ended otherwise"

HEIGHT = 180
# All charts of the time axis leave the same room at both sides, so that moments line up. A mark
# that reaches over the edge would make its chart narrower, which is why all are clipped.
_LEFT = 46


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


def _ends(along: Axis) -> pd.DataFrame:
    return pd.DataFrame({"at": list(along.domain_ms)})


def _time(shape: str) -> alt.X:
    return alt.X(
        "at:T",
        scale=alt.Scale(nice=False),
        axis=alt.Axis(title=None, format=shape, tickCount=10, labelOverlap=True, grid=True),
    )


def _level(field: str, unit: str, *, zero: bool) -> alt.Y:
    return alt.Y(
        field,
        # Without zero a point may lie on the edge, where half of it would be cut.
        scale=alt.Scale(zero=zero, nice=True, padding=0 if zero else 6),
        axis=alt.Axis(title=unit, minExtent=_LEFT, maxExtent=_LEFT, tickCount=4),
    )


def _legend(**more: Any) -> alt.Legend:
    """A legend in one line above the chart."""
    return alt.Legend(orient="top", title=None, labelLimit=240, offset=4, **more)


def _line_legend() -> alt.Legend:
    return _legend(symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=240)


def _moment() -> alt.Tooltip:
    return alt.Tooltip("at:T", title="time", format="%-d %b %H:%M:%S")


def _over(shape: str, title: str, *layers: alt.Chart, height: int = HEIGHT) -> dict[str, Any]:
    """Layers over the time axis; two points that nobody sees stretch it to its ends."""
    stretched = _from("ends").mark_point(opacity=0, tooltip=None, clip=True).encode(x=_time(shape))
    return _framed([stretched, *layers], title, height)


def _framed(layers: Sequence[alt.Chart], title: str, height: int) -> dict[str, Any]:
    chart = alt.LayerChart(layer=list(layers)).properties(
        title=alt.TitleParams(title, anchor="start", frame="group", fontSize=14, offset=4),
        height=height,
        padding={"left": 0, "right": 14, "top": 8, "bottom": 0},
    )
    described: dict[str, Any] = chart.to_dict()
    return described


def _latencies(shown: tuple[str, ...]) -> dict[str, Any]:
    """How percentiles, and TPOT among them, are told apart: by colour and by dashes."""
    legend = _line_legend()
    return {
        "color": alt.Color(
            "percentile:N",
            scale=alt.Scale(domain=list(shown), range=list(_LATENCY_COLOURS[: len(shown)])),
            legend=legend,
        ),
        "strokeDash": alt.StrokeDash(
            "percentile:N",
            scale=alt.Scale(domain=list(shown), range=list(_LATENCY_DASHES[: len(shown)])),
            legend=legend,
        ),
    }


def _percentile_lines(
    across: alt.X, where: alt.Tooltip, coded: dict[str, Any], size: int
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
        .encode(x=across, y=_level("ms:Q", "ms", zero=True), tooltip=tooltip, **coded)
    )
    withheld = (
        _from("withheld")
        .mark_rule(opacity=0, strokeWidth=8, clip=True)
        .encode(x=across, tooltip=tooltip)
    )
    return [withheld, lines]


def _withheld(itl: pd.DataFrame) -> pd.DataFrame:
    return itl[itl["ms"].isna() & (itl["n"] > 0)]


@lru_cache
def _itl_over_time(shape: str) -> dict[str, Any]:
    coded = _latencies(_LATENCIES)
    tpot = (
        _from("turns")
        .mark_circle(size=26, opacity=0.55, clip=True)
        .encode(
            x=_time(shape),
            y=_level("tpot_ms:Q", "ms", zero=True),
            color=coded["color"],
            tooltip=_turn_tooltips(),
        )
    )
    lines = _percentile_lines(_time(shape), _moment(), coded, size=12)
    return _over(shape, "ITL, and TPOT of each turn", tpot, *lines, height=240)


def itl_over_time(itl: pd.DataFrame, turns: pd.DataFrame, along: Axis) -> Drawing:
    """Percentiles of ITL as lines and TPOT of each turn as points, both in ms."""
    known = turns[turns["tpot_ms"].notna()].assign(percentile=TPOT)
    data = {"ends": _ends(along), "itl": itl, "withheld": _withheld(itl), "turns": known}
    return Drawing(_itl_over_time(_shape(along)), data)


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
                legend=_legend(),
            ),
            shape=alt.Shape(
                "ended:N",
                scale=alt.Scale(domain=domain, range=["circle", "triangle-up"]),
                legend=_legend(),
            ),
            tooltip=_turn_tooltips(),
        )
    )
    return _over(shape, "TTFT of each turn", points)


def ttft_of_turns(turns: pd.DataFrame, along: Axis) -> Drawing:
    """TTFT of each turn in ms; colour and shape say whether it ran to its end."""
    known = turns[turns["ttft_ms"].notna()]
    ended = known["ending"].where(known["ending"] == _COMPLETE, _OTHERWISE)
    data = {"ends": _ends(along), "turns": known.assign(ended=ended)}
    return Drawing(_ttft_of_turns(_shape(along)), data)


@lru_cache
def _memory_of_turns(shape: str) -> dict[str, Any]:
    known = [FLOOR, EARLY_FLOOR, END]
    points = (
        _from("memory")
        .mark_point(size=36, strokeWidth=1.6, opacity=0.9, clip=True)
        .encode(
            x=_time(shape),
            y=_level("mib:Q", "MiB", zero=False),
            color=alt.Color("runtime:N", scale=alt.Scale(range=list(_SERIES)), legend=_legend()),
            shape=alt.Shape(
                "known_as:N",
                scale=alt.Scale(domain=known, range=["circle", "triangle-up", "cross"]),
                legend=_legend(symbolStrokeColor=GREY),
            ),
            tooltip=[
                _moment(),
                alt.Tooltip("memory:N", title="RssAnon + VmSwap"),
                alt.Tooltip("known_as:N", title="known as"),
                alt.Tooltip("runtime:N"),
            ],
        )
    )
    return _over(shape, "RssAnon + VmSwap after each turn", points)


def memory_of_turns(memory: pd.DataFrame, along: Axis) -> Drawing:
    """RssAnon + VmSwap after each turn in MiB; colour is the runtime, shape how it is known."""
    return Drawing(_memory_of_turns(_shape(along)), {"ends": _ends(along), "memory": memory})


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
            legend=_line_legend(),
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
    return _over(shape, title, lines, hover)


def temperatures(levels: pd.DataFrame, along: Axis) -> Drawing:
    """Temperatures in degrees Celsius, a line a sensor; the tooltip has the extremes of a point."""
    spec = _gauges(_shape(along), _labels(levels), "Temperature", "°C", ".1f", False)
    return Drawing(spec, {"ends": _ends(along), "levels": levels})


def clocks(levels: pd.DataFrame, along: Axis) -> Drawing:
    """CPU clocks in GHz, a line a policy; the tooltip has the extremes of a point."""
    spec = _gauges(_shape(along), _labels(levels), "CPU clock", "GHz", ".2f", True)
    return Drawing(spec, {"ends": _ends(along), "levels": levels})


def _labels(levels: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(levels["label"]))


@lru_cache
def _itl_by_depth(depths: tuple[str, ...]) -> dict[str, Any]:
    across = alt.X(
        "depth:N",
        sort=list(depths),
        axis=alt.Axis(title="depth, tokens of context", labelAngle=0, labelOverlap=True),
    )
    lines = _percentile_lines(across, alt.Tooltip("depth:N"), _latencies(PERCENTILES), size=36)
    return _framed(lines, "ITL against depth", 250)


def itl_by_depth(itl: pd.DataFrame) -> Drawing:
    """Percentiles of ITL in ms against the depth octave."""
    spec = _itl_by_depth(tuple(dict.fromkeys(itl["depth"])))
    return Drawing(spec, {"itl": itl, "withheld": _withheld(itl)})
