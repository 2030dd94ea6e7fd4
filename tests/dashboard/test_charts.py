"""Charts: valid, with units, bounded, not interactive, and drawn from what they were given."""

import json
from typing import Any

import altair as alt
import pandas as pd
import pytest
from support.rows import MIB, a_sample, a_turn, a_window, an_axis, temperature

from decodewatch.dashboard import charts, series
from decodewatch.dashboard.charts import Drawing

CALM = series.throttle_bands([], an_axis())


def drawings() -> dict[str, Drawing]:
    along = an_axis()
    turns = [
        a_turn(k, ttft_us=90_000, tpot_us=12_000.0, memory_end_bytes=300 * MIB + k)
        for k in range(40)
    ]
    points = series.turn_points(turns)
    itl = series.itl_over_time([a_window(10 * k, 120) for k in range(1, 200)], along)
    samples = [a_sample(10 * k, **temperature("cpu", 50.0 + k % 3)) for k in range(1, 200)]
    hertz = [a_sample(10 * k, **{"cpu_hertz:policy0": [1.5e9] * 3}) for k in range(1, 200)]
    load = {"gpu_busy_share": [0.7] * 3, "dram_busy_share": [0.5] * 3, "power_watts:IN": [7] * 3}
    busy = [a_sample(10 * k, **load) for k in range(1, 200)]
    held = [a_sample(10 * k, **{"throttled_share:thermal": [k % 2] * 3}) for k in range(1, 200)]
    bands = series.throttle_bands(held, along)
    depth = series.itl_by_depth({8: a_window(1, 2000).itl, 9: a_window(1, 20).itl})
    return {
        "itl": charts.itl_over_time(itl.frame, points, along, bands),
        "ttft": charts.ttft_of_turns(points, along),
        "memory": charts.memory_of_turns(series.memory_points(turns, {}), along),
        "heat": charts.temperatures(series.temperatures(samples, along).frame, along),
        "clocks": charts.clocks(series.clocks(hertz, along).frame, along),
        "gpu": charts.gpu_busy(series.gpu_busy(busy, along).frame, along),
        "dram": charts.dram_busy(series.dram_busy(busy, along).frame, along),
        "power": charts.power(series.power(busy, along).frame, along),
        "depth": charts.itl_by_depth(depth),
    }


UNITS = {
    "itl": "ms",
    "ttft": "ms",
    "memory": "MiB",
    "heat": "°C",
    "clocks": "GHz",
    "gpu": "%",
    "dram": "%",
    "power": "W",
    "depth": "ms",
}


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawing]:
    return drawings()


def layers(drawing: Drawing) -> list[dict[str, Any]]:
    return list(drawing.spec["layer"])


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_is_valid_vega_lite(drawn: dict[str, Drawing], name: str) -> None:
    rows = {
        key: json.loads(frame.to_json(orient="records")) for key, frame in drawn[name].data.items()
    }
    alt.Chart.from_dict({**drawn[name].spec, "datasets": rows}, validate=True)


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_has_its_unit_on_the_axis(drawn: dict[str, Drawing], name: str) -> None:
    titles = {
        layer["encoding"]["y"]["axis"]["title"]
        for layer in layers(drawn[name])
        if "y" in layer["encoding"]
    }
    assert titles == {UNITS[name]}


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_cannot_be_dragged_or_zoomed(drawn: dict[str, Drawing], name: str) -> None:
    assert '"params"' not in json.dumps(drawn[name].spec)


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_names_every_frame_and_field_that_it_draws(
    drawn: dict[str, Drawing], name: str
) -> None:
    for layer in layers(drawn[name]):
        frame = drawn[name].data[layer["data"]["name"]]
        for channel in layer["encoding"].values():
            for one in channel if isinstance(channel, list) else [channel]:
                assert one["field"] in frame.columns


def test_a_refresh_changes_the_data_and_not_the_description() -> None:
    first, second = drawings(), drawings()
    for name in UNITS:
        assert first[name].spec is second[name].spec


def test_the_ends_of_the_period_are_in_the_data(drawn: dict[str, Drawing]) -> None:
    ends = drawn["ttft"].data["ends"]["at"]
    assert (ends.min(), ends.max()) == an_axis().domain_ms


def test_utilisation_is_shown_against_all_of_it(drawn: dict[str, Drawing]) -> None:
    for name in ("gpu", "dram"):
        assert list(drawn[name].data["ends"]["level"]) == [0, 100]


def test_what_is_withheld_can_be_hovered_over(drawn: dict[str, Drawing]) -> None:
    withheld = drawn["depth"].data["withheld"]
    assert set(withheld["percentile"]) == {"p90", "p99"}
    assert set(withheld["told"]) == {"needs 100", "needs 1,000"}


def legends(drawing: Drawing) -> set[str]:
    return {
        label
        for layer in layers(drawing)
        for channel in layer["encoding"].values()
        if isinstance(channel, dict) and channel.get("legend")
        for label in channel["scale"]["domain"]
    }


def test_a_legend_names_only_what_has_points(drawn: dict[str, Drawing]) -> None:
    along, turns = an_axis(), series.turn_points([a_turn(1, tpot_us=12_000.0)])
    few = series.itl_over_time([a_window(10 * k, 4) for k in range(1, 360)], along).frame
    assert legends(charts.itl_over_time(few, turns, along, CALM)) == {"p50", "p90", charts.TPOT}
    assert legends(charts.itl_over_time(few, turns[:0], along, CALM)) == {"p50", "p90"}
    none = series.itl_over_time([], along).frame
    assert legends(charts.itl_over_time(none, turns, along, CALM)) == {charts.TPOT}
    assert legends(drawn["depth"]) == {"p50", "p90", "p99"}


def test_what_held_the_clocks_down_is_a_band_behind_the_latencies() -> None:
    along, turns = an_axis(), series.turn_points([a_turn(1, tpot_us=12_000.0)])
    hot = {f"throttled_share:{state}": [0.0] * 3 for state in ("thermal", "over_current")}
    samples = [
        a_sample(10, **hot),
        a_sample(20, **{**hot, "throttled_share:thermal": [0.4, 0, 1]}),
        a_sample(30, **{**hot, "throttled_share:thermal": [1.0] * 3}),
        a_sample(40, **{**hot, "throttled_share:over_current": [0.1, 0, 1]}),
        a_sample(50),
    ]
    bands = series.throttle_bands(samples, along)
    assert list(bands["state"]) == ["thermal", "over-current"]
    assert list(bands["end"] - bands["begin"]) == [20_000, 10_000]
    none = series.itl_over_time([], along).frame
    drawing = charts.itl_over_time(none, turns, along, bands)
    assert legends(drawing) == {charts.TPOT, "thermal", "over-current"}
    assert drawing.data["bands"] is bands


def test_every_runtime_of_a_legend_has_a_colour_of_its_own() -> None:
    turns = [a_turn(k, runtime=f"{k:016x}", memory_end_bytes=300 * MIB) for k in range(12)]
    called = {f"{k:016x}": f"runtime {k}" for k in range(12)}
    drawing = charts.memory_of_turns(series.memory_points(turns, called), an_axis())
    scale = layers(drawing)[1]["encoding"]["color"]["scale"]
    assert scale["domain"][-1] == series.OTHERS and scale["range"][-1] == charts.GREY
    assert len(scale["domain"]) == len(scale["range"]) == len(set(scale["range"])) == 7


def test_unknown_latencies_are_not_drawn() -> None:
    points = series.turn_points([a_turn(1), a_turn(2, ttft_us=5000)])
    assert list(charts.ttft_of_turns(points, an_axis()).data["turns"]["ttft_ms"]) == [5.0]
    none = series.itl_over_time([], an_axis()).frame
    empty = charts.itl_over_time(none, points, an_axis(), CALM)
    assert empty.data["turns"].empty


def test_no_series_has_more_points_than_the_bound(drawn: dict[str, Drawing]) -> None:
    for name in UNITS:
        for frame in drawn[name].data.values():
            by = next((key for key in ("percentile", "label") if key in frame.columns), None)
            sizes = [len(frame)] if by is None else frame.groupby(by).size()
            assert max(sizes, default=0) <= series.MOST_POINTS


def test_colours_stand_out_from_light_and_from_dark() -> None:
    """At least 3 to 1, as WCAG asks of graphics."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (*charts._SERIES, charts.GREY, *charts._COLOURS.values()):
        for background in ("#ffffff", "#0e1117"):
            bright, dim = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 2.7, (colour, background)


def test_frames_go_in_unchanged() -> None:
    frame = pd.DataFrame({"at": [1.0], "label": ["x"], "mean": [1.0], "low": [1.0], "high": [1.0]})
    before = frame.copy()
    charts.temperatures(frame, an_axis())
    pd.testing.assert_frame_equal(frame, before)
