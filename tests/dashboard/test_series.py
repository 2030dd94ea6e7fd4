"""From rows to frames: bins, withheld percentiles, gaps and bounds."""

import math

from hypothesis import given
from hypothesis import strategies as st
from support.rows import HOUR, MIB, SECOND, START, a_sample, a_turn, a_window, an_axis, temperature

from decodewatch.dashboard import series
from decodewatch.dashboard.queries import Sample
from decodewatch.shared.sketch import Sketch


def test_an_axis_covers_the_period_and_has_few_enough_bins() -> None:
    for length in (60, 900, 3600, 6 * 3600, 86_400, 7 * 86_400):
        along = an_axis(length)
        assert along.start <= START and along.end >= START + length * SECOND
        assert along.count <= series.MOST_BINS + 2


def test_an_axis_begins_where_the_data_do() -> None:
    now = START + HOUR
    along = series.axis(START, now, [now - 300 * SECOND])
    assert now - along.start < 330 * SECOND


def test_bins_keep_their_place_from_one_refresh_to_the_next() -> None:
    before = series.axis(START, START + HOUR, [START - HOUR])
    after = series.axis(START + 5 * SECOND, START + HOUR + 5 * SECOND, [START - HOUR])
    assert before.width == after.width
    assert (after.start - before.start) % before.width == 0


@given(st.lists(st.integers(0, 3600), max_size=50), st.integers(1, 3600))
def test_every_moment_of_an_axis_has_one_bin(seconds: list[int], length: int) -> None:
    along = an_axis(length)
    for after in seconds:
        place = along.bin(along.start + after * SECOND)
        assert place is None or 0 <= place < along.count
        if place is not None:
            low = along.start + place * along.width
            assert low < along.start + after * SECOND <= low + along.width


def test_a_percentile_of_a_bin_is_that_of_the_merged_sketches() -> None:
    """Not of percentiles: 900 fast tokens and 200 slow ones have a slow p90."""
    fast, slow = a_window(5, 900, 10_000), a_window(8, 200, 40_000)
    found = series.itl_over_time([fast, slow], an_axis(60)).frame
    merged = Sketch.of([10_000] * 900 + [40_000] * 200)
    row = found[(found["percentile"] == "p90") & (found["n"] > 0)].iloc[0]
    assert row["n"] == 1100
    assert row["ms"] == (merged.percentile(0.9).us or 0) / 1000 > 39


def test_a_percentile_with_too_few_tokens_is_a_gap_that_says_why() -> None:
    found = series.itl_over_time([a_window(30, 50)], an_axis(60)).frame
    filled = found[found["n"] > 0].set_index("percentile")
    assert not math.isnan(filled.loc["p50", "ms"])
    assert math.isnan(filled.loc["p90", "ms"]) and filled.loc["p90", "told"] == "needs 100"
    assert math.isnan(filled.loc["p99", "ms"]) and filled.loc["p99", "told"] == "needs 1,000"


def test_bins_of_a_high_percentile_are_wider_where_tokens_are_few() -> None:
    windows = [a_window(10 * k, 100) for k in range(1, 360)]
    widths = series.itl_over_time(windows, an_axis()).widths
    assert widths["p50"] == 20 * SECOND
    assert widths["p90"] == 20 * SECOND
    assert widths["p99"] == 120 * SECOND


def test_a_percentile_that_no_bin_has_enough_tokens_for_has_no_width() -> None:
    widths = series.itl_over_time([a_window(10 * k, 4) for k in range(1, 360)], an_axis()).widths
    assert widths["p90"] is not None and widths["p99"] is None


def test_a_line_stops_where_nothing_was_decoded() -> None:
    found = series.itl_over_time([a_window(5, 500), a_window(3000, 500)], an_axis()).frame
    p50 = found[found["percentile"] == "p50"].sort_values("at")["ms"]
    assert p50.notna().sum() == 2
    assert p50.iloc[1:-1].isna().sum() >= p50.size - 4


@given(
    st.lists(st.tuples(st.floats(0.1, 3600), st.integers(1, 2000)), max_size=60),
    st.sampled_from([60, 900, 3600, 86_400]),
)
def test_no_token_is_lost_or_counted_twice_and_points_are_bounded(
    pieces: list[tuple[float, int]], length: int
) -> None:
    windows = [a_window(after, tokens) for after, tokens in pieces if after <= length]
    found = series.itl_over_time(windows, an_axis(length)).frame
    low, high = an_axis(length).domain_ms
    assert found["at"].between(low, high).all()
    for _, rows in found.groupby("percentile"):
        assert rows["n"].sum() == sum(one.itl.n for one in windows)
        assert len(rows) <= series.MOST_POINTS


def test_depths_stand_in_order_and_an_unknown_depth_in_no_row() -> None:
    itl = {10: Sketch.of([9000] * 200), 8: Sketch.of([8000] * 20), None: Sketch.of([7000])}
    found = series.itl_by_depth(itl)
    assert list(dict.fromkeys(found["depth"])) == [series.depth_label(8), series.depth_label(10)]
    p90 = found[found["percentile"] == "p90"]["ms"]
    assert math.isnan(p90.iloc[0]) and p90.iloc[1] > 8.9


def test_depth_labels() -> None:
    labels = [series.depth_label(octave) for octave in (0, 1, 9, 10, 15)]
    ranges = [label.replace("\N{EN DASH}", "-") for label in labels]
    assert ranges == ["1", "2-3", "512-1023", "1k-2k", "32k-64k"]


def test_memory_after_a_turn_is_its_floor_else_its_end_marked_so() -> None:
    turns = [
        a_turn(0, floor_bytes=300 * MIB, floor_settled=True, memory_end_bytes=310 * MIB),
        a_turn(1, floor_bytes=301 * MIB, floor_settled=False, memory_end_bytes=310 * MIB),
        a_turn(2, memory_end_bytes=312 * MIB),
        a_turn(3),
    ]
    found = series.memory_points(turns, {})
    assert list(found["mib"]) == [300, 301, 312]
    assert list(found["known_as"]) == [series.FLOOR, series.EARLY_FLOOR, series.END]


def test_runtimes_beyond_the_newest_few_are_one_series() -> None:
    turns = [a_turn(-k, runtime=f"{k % 9:016x}", memory_end_bytes=MIB) for k in range(30)]
    called = {f"{k:016x}": f"r{k}" for k in range(9)}
    found = series.memory_points(turns, called)
    assert list(dict.fromkeys(found["series"])) == [*(f"r{k}" for k in range(6)), series.OTHERS]
    assert set(found.loc[found["series"] == series.OTHERS, "runtime"]) == {"r6", "r7", "r8"}


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=30))
def test_an_axis_of_memory_holds_every_point_and_shows_noise_as_noise(held: list[int]) -> None:
    turns = [a_turn(k, memory_end_bytes=size) for k, size in enumerate(held)]
    mib = [size / MIB for size in held]
    low, high = series.memory_ends(series.memory_points(turns, {}))
    assert 0 <= low <= min(mib) and high >= max(mib)
    assert high - low >= max(8, 0.05 * max(mib)) * 0.999


def test_an_axis_of_temperatures_shows_a_few_degrees() -> None:
    samples = [a_sample(k, **temperature("cpu", 50 + 0.1 * (k % 2))) for k in range(1, 90, 10)]
    low, high = series.temperature_ends(series.temperatures(samples, an_axis()).frame)
    assert low < 50 and high > 50.1 and round(high - low, 6) == series.LEAST_CELSIUS


def test_unknown_latencies_of_a_turn_are_not_zero() -> None:
    found = series.turn_points([a_turn(0)]).iloc[0]
    assert math.isnan(found["ttft_ms"]) and math.isnan(found["tpot_ms"])
    assert found["ttft"] == found["prompt"] == "unknown"


def test_levels_keep_the_extremes_of_a_point() -> None:
    samples = [a_sample(3, **temperature("cpu", 50.0)), a_sample(8, **temperature("cpu", 60.0))]
    found = series.temperatures(samples, an_axis(60)).frame.iloc[0]
    assert (found["mean"], found["low"], found["high"]) == (55, 49, 61)


def test_a_line_of_samples_bridges_an_idle_minute_and_breaks_in_a_long_silence() -> None:
    samples = [a_sample(at, **temperature("cpu", 50.0)) for at in (10, 70, 130, 900, 960)]
    found = series.temperatures(samples, an_axis()).frame
    assert found["mean"].isna().sum() == 1


def test_only_the_hottest_junctions_are_drawn_and_the_rest_counted() -> None:
    values: dict[str, object] = {}
    for place in range(9):
        values |= temperature(f"zone{place}", 40.0 + place)
    values |= temperature("battery", 99.0)
    found = series.temperatures([a_sample(5, **values)], an_axis(60))
    labels = list(dict.fromkeys(found.frame["label"]))
    assert labels == [f"zone{place}" for place in (8, 7, 6, 5, 4, 3)]
    assert found.left_out == 3


def test_a_machine_without_sensors_says_why() -> None:
    sample = Sample(START + 5, {"mem_total_bytes": [1, 1, 1]}, {"temp_celsius": "absent"})
    found = series.temperatures([sample], an_axis(60))
    assert found.frame.empty and found.reason == "absent"


def test_clocks_are_in_gigahertz() -> None:
    sample = a_sample(5, **{"cpu_hertz:policy0": [1_510_400_000, 730_000_000, 1_510_400_000]})
    found = series.clocks([sample], an_axis(60)).frame.iloc[0]
    assert (found["label"], round(found["mean"], 2), round(found["low"], 2)) == (
        "policy0",
        1.51,
        0.73,
    )


def test_utilisation_is_in_percent_and_one_gpu_needs_no_number() -> None:
    values = {"gpu_busy_share": [0.5, 0.25, 1], "gpu_busy_share:1": [0.1, 0.1, 0.1]}
    found = series.gpu_busy([a_sample(5, **values)], an_axis(60)).frame
    assert list(found["label"]) == ["GPU", "GPU 1"]
    assert tuple(found.loc[0, ["mean", "low", "high"]]) == (50, 25, 100)
    dram = series.dram_busy([a_sample(5, dram_busy_share=[0.75] * 3)], an_axis(60)).frame
    assert list(dram["label"]) == ["DRAM"] and list(dram["mean"]) == [75]


def test_a_rail_and_the_whole_device_by_that_rail_are_apart() -> None:
    values = {"power_watts:VDD_IN": [5, 5, 5], "device_watts:VDD_IN": [6, 6, 6]}
    found = series.power([a_sample(5, **values)], an_axis(60)).frame
    assert list(found["label"]) == ["VDD_IN (whole device)", "VDD_IN"]
    assert list(found["mean"]) == [6, 5]


def test_a_rail_whose_name_looks_like_a_pattern_is_shown_as_it_is() -> None:
    found = series.power([a_sample(5, **{"power_watts:{0} {x}": [5, 5, 5]})], an_axis(60)).frame
    assert list(found["label"]) == ["{0} {x}"]


def test_a_machine_whose_rails_may_not_be_read_says_why() -> None:
    sample = Sample(START + 5, {}, {"power_watts": "denied", "device_watts": "denied"})
    found = series.power([sample], an_axis(60))
    assert found.frame.empty and found.reason == "denied"


def test_no_more_turns_are_drawn_than_the_bound() -> None:
    turns = [a_turn(place, memory_end_bytes=1 << 20) for place in range(800)]
    assert len(series.turn_points(turns)) == series.MOST_POINTS
    assert len(series.memory_points(turns, {})) == series.MOST_POINTS
