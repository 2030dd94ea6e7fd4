"""From frames to charts. Pure: no database, no clock, no Streamlit.

No chart can be zoomed or dragged, because a browser's tab grows with every redraw of one that can;
tooltips tell the numbers. The ends of the time axis are data, not part of the chart's description,
so that a refresh moves the points of a chart that stays, instead of drawing a new one.

The colours are told apart by people with any colour vision, and stand out from light and from dark.
"""

from typing import Any

import altair as alt
import pandas as pd

from decodewatch.dashboard.series import EARLY_FLOOR, END, FLOOR, PERCENTILES, Axis

BLUE, PINK, VERMILLION = "#2878b5", "#cc79a7", "#d55e00"
GREY, GREEN, AMBER, SKY = "#808080", "#009e73", "#c98a00", "#4aa3d9"
_SERIES = (BLUE, VERMILLION, GREEN, PINK, AMBER, SKY)
_PERCENTILE_COLOURS = (BLUE, PINK, VERMILLION)
_PERCENTILE_DASHES = ([1, 0], [6, 2], [2, 2])

HEIGHT = 150
# All charts of the time axis leave the same room at both sides, so that moments line up.
_LEFT = 46
_LEGEND = {"orient": "top", "title": None, "labelLimit": 260, "offset": 2, "symbolSize": 60}


def _time(along: Axis, **more: Any) -> alt.X:
    minutes = (along.end - along.start) / 60_000_000
    shape = "%H:%M:%S" if minutes < 10 else "%H:%M" if minutes <= 36 * 60 else "%a %H:%M"
    return alt.X(
        "at:T",
        scale=alt.Scale(nice=False),
        axis=alt.Axis(title=None, format=shape, tickCount=8, labelOverlap=True, grid=True),
        **more,
    )


def _level(field: str, title: str, *, zero: bool) -> alt.Y:
    return alt.Y(
        field,
        scale=alt.Scale(zero=zero, nice=True),
        axis=alt.Axis(title=title, minExtent=_LEFT, maxExtent=_LEFT, tickCount=4),
    )


def _moment() -> alt.Tooltip:
    return alt.Tooltip("at:T", title="time", format="%-d %b %H:%M:%S")


def _ends(along: Axis) -> alt.Chart:
    """Two points that nobody sees: they stretch the time axis to its ends."""
    ends = pd.DataFrame({"at": list(along.domain_ms)})
    return alt.Chart(ends).mark_point(opacity=0, tooltip=None).encode(x=_time(along))


def _over(along: Axis, *layers: alt.Chart, height: int = HEIGHT) -> alt.LayerChart:
    return alt.layer(_ends(along), *layers).properties(height=height, padding=_padding())


def _padding() -> dict[str, int]:
    return {"left": 0, "right": 14, "top": 2, "bottom": 0}


def _percentile_encodings() -> dict[str, Any]:
    names = list(PERCENTILES)
    return {
        "color": alt.Color(
            "percentile:N",
            scale=alt.Scale(domain=names, range=list(_PERCENTILE_COLOURS)),
            legend=alt.Legend(**_LEGEND),
        ),
        "strokeDash": alt.StrokeDash(
            "percentile:N",
            scale=alt.Scale(domain=names, range=list(_PERCENTILE_DASHES)),
            legend=alt.Legend(**_LEGEND),
        ),
    }


def _long(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """A row a percentile instead of a column a percentile."""
    return frame.melt([key], list(PERCENTILES), "percentile", "ms")


def _percentile_tooltips(count: str) -> list[alt.Tooltip]:
    told = [alt.Tooltip(f"{name}_words:N", title=name) for name in PERCENTILES]
    return [*told, alt.Tooltip("n:Q", title=count, format=",")]


def itl_over_time(itl: pd.DataFrame, turns: pd.DataFrame, along: Axis) -> alt.LayerChart:
    """Percentiles of ITL as lines and TPOT of each turn as points, both in ms."""
    lines = (
        alt.Chart(_long(itl, "at"))
        .mark_line(
            strokeWidth=1.8,
            invalid="break-paths-show-path-domains",
            point=alt.OverlayMarkDef(size=14, strokeWidth=0),
        )
        .encode(
            x=_time(along), y=_level("ms:Q", "ITL, TPOT (ms)", zero=True), **_percentile_encodings()
        )
    )
    tpot = (
        alt.Chart(turns[turns["tpot_ms"].notna()])
        .mark_point(shape="diamond", size=34, color=GREY, strokeWidth=1.4, filled=False)
        .encode(x=_time(along), y="tpot_ms:Q", tooltip=_turn_tooltips())
    )
    hover = (
        alt.Chart(itl[itl["n"] > 0])
        .mark_rule(opacity=0, strokeWidth=6)
        .encode(x=_time(along), tooltip=[_moment(), *_percentile_tooltips("tokens")])
    )
    return _over(along, hover, lines, tpot, height=200)


def _turn_tooltips() -> list[alt.Tooltip]:
    return [
        _moment(),
        alt.Tooltip("ttft:N", title="TTFT"),
        alt.Tooltip("tpot:N", title="TPOT"),
        alt.Tooltip("prompt:N", title="prompt tokens"),
        alt.Tooltip("output:N", title="output tokens"),
        alt.Tooltip("ending:N", title="ending"),
    ]


def ttft_of_turns(turns: pd.DataFrame, along: Axis) -> alt.LayerChart:
    """TTFT of each turn in ms, by how the turn ended."""
    points = (
        alt.Chart(turns[turns["ttft_ms"].notna()])
        .mark_point(size=44, strokeWidth=1.6)
        .encode(
            x=_time(along),
            y=_level("ttft_ms:Q", "TTFT (ms)", zero=True),
            color=alt.condition("datum.ending == 'complete'", alt.value(BLUE), alt.value(VERMILLION)),
            shape=alt.condition(
                "datum.ending == 'complete'", alt.value("circle"), alt.value("triangle-up")
            ),
            tooltip=_turn_tooltips(),
        )
    )
    return _over(along, points)


def memory_of_turns(memory: pd.DataFrame, along: Axis) -> alt.LayerChart:
    """RssAnon + VmSwap after each turn in MiB; colour is the runtime, shape how it is known."""
    known = [FLOOR, EARLY_FLOOR, END]
    points = (
        alt.Chart(memory)
        .mark_point(size=40, strokeWidth=1.5)
        .encode(
            x=_time(along),
            y=_level("mib:Q", "RssAnon + VmSwap (MiB)", zero=False),
            color=alt.Color(
                "runtime:N", scale=alt.Scale(range=list(_SERIES)), legend=alt.Legend(**_LEGEND)
            ),
            shape=alt.Shape(
                "known_as:N",
                scale=alt.Scale(domain=known, range=["circle", "triangle-up", "cross"]),
                legend=alt.Legend(**_LEGEND),
            ),
            tooltip=[
                _moment(),
                alt.Tooltip("memory:N", title="RssAnon + VmSwap"),
                alt.Tooltip("known_as:N", title="known as"),
                alt.Tooltip("runtime:N"),
            ],
        )
    )
    return _over(along, points)


def gauges(frame: pd.DataFrame, along: Axis, title: str, form: str, *, zero: bool) -> alt.LayerChart:
    """Levels over time, a line a sensor; the tooltip has the extremes of each point."""
    labels = list(dict.fromkeys(frame["label"]))
    base = alt.Chart(frame).encode(
        x=_time(along),
        y=_level("mean:Q", title, zero=zero),
        color=alt.Color(
            "label:N",
            scale=alt.Scale(domain=labels, range=list(_SERIES)),
            legend=alt.Legend(**_LEGEND),
        ),
    )
    lines = base.mark_line(strokeWidth=1.6, invalid="break-paths-show-path-domains")
    hover = base.mark_point(size=50, opacity=0).encode(
        tooltip=[
            _moment(),
            alt.Tooltip("label:N", title="sensor"),
            alt.Tooltip("mean:Q", format=form),
            alt.Tooltip("low:Q", title="lowest", format=form),
            alt.Tooltip("high:Q", title="highest", format=form),
        ]
    )
    return _over(along, lines, hover)


def temperatures(frame: pd.DataFrame, along: Axis) -> alt.LayerChart:
    """Temperatures in degrees Celsius."""
    return gauges(frame, along, "temperature (°C)", ".1f", zero=False)


def clocks(frame: pd.DataFrame, along: Axis) -> alt.LayerChart:
    """CPU clocks in GHz."""
    return gauges(frame, along, "CPU clock (GHz)", ".2f", zero=True)


def itl_by_depth(frame: pd.DataFrame) -> alt.LayerChart:
    """Percentiles of ITL in ms against the depth octave."""
    depths = list(frame["depth"])
    across = alt.X(
        "depth:N",
        sort=depths,
        axis=alt.Axis(title="depth (tokens of context)", labelAngle=0, labelOverlap=True),
    )
    lines = (
        alt.Chart(_long(frame, "depth"))
        .mark_line(
            strokeWidth=1.8,
            invalid="break-paths-show-path-domains",
            point=alt.OverlayMarkDef(size=40, strokeWidth=0),
        )
        .encode(x=across, y=_level("ms:Q", "ITL (ms)", zero=True), **_percentile_encodings())
    )
    hover = (
        alt.Chart(frame)
        .mark_rule(opacity=0, strokeWidth=24)
        .encode(x=across, tooltip=[alt.Tooltip("depth:N"), *_percentile_tooltips("tokens")])
    )
    return alt.layer(hover, lines).properties(height=220, padding=_padding())
