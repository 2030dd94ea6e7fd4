"""The percentile sketch: its error bound, exact merging, and strict reading of its wire form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.shared.errors import RecordError
from decodewatch.shared.sketch import (
    HIGHEST,
    LOWEST,
    RELATIVE_ERROR,
    Sketch,
    bucket,
    enough_for,
    representative,
)

LATENCIES = st.integers(min_value=101, max_value=600_000_000)  # what the buckets resolve


def exact(values: list[int], q: float) -> int:
    """The nearest-rank percentile, the definition that the sketch approximates."""
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


def test_the_bound_is_the_documented_one() -> None:
    assert RELATIVE_ERROR == pytest.approx(0.01083, abs=1e-5)


@given(LATENCIES)
def test_a_bucket_stands_for_its_values_within_the_bound(us: int) -> None:
    assert abs(representative(bucket(us)) - us) <= RELATIVE_ERROR * us * (1 + 1e-9)


@pytest.mark.parametrize("power", range(7, 30))
def test_a_power_of_two_closes_its_bucket_exactly(power: int) -> None:
    # Boundaries belong to the bucket below, as in OpenTelemetry's exponential histogram.
    assert bucket(2**power) == power * 32 - 1
    assert bucket(2**power + 1) == power * 32


def test_values_outside_the_range_are_counted_in_the_outermost_buckets() -> None:
    assert bucket(1) == bucket(100) == LOWEST
    assert bucket(101) > LOWEST
    assert bucket(10**12) == HIGHEST


def test_zero_and_negative_values_are_refused_and_counted() -> None:
    sketch = Sketch.of([0, -5, 2000])
    assert (sketch.n, sketch.refused, sketch.minimum) == (1, 2, 2000)


@given(st.lists(LATENCIES, min_size=1, max_size=300), st.floats(0, 1))
def test_any_percentile_is_within_the_bound(values: list[int], q: float) -> None:
    found = Sketch.of(values).quantile(q)
    truth = exact(values, q)
    assert found is not None
    assert abs(found - truth) <= RELATIVE_ERROR * truth * (1 + 1e-9)


@given(st.lists(st.lists(LATENCIES, max_size=40), max_size=12), st.randoms())
def test_merging_in_any_order_equals_counting_everything_at_once(parts, random) -> None:  # type: ignore[no-untyped-def]
    random.shuffle(parts)
    merged = Sketch()
    for part in parts:
        merged.merge(Sketch.of(part))
    assert merged == Sketch.of(us for part in parts for us in part)


@given(st.dictionaries(st.integers(-3, 10**12), st.integers(1, 10**6), max_size=60))
def test_the_wire_form_gives_the_sketch_back(values: dict[int, int]) -> None:
    sketch = Sketch()
    for us, count in values.items():
        sketch.add(us, count)
    assert Sketch.from_json(sketch.to_json()) == sketch


def test_5000_tokens_fit_in_200_bytes() -> None:
    import random

    generator = random.Random(7)
    values = [int(generator.lognormvariate(math.log(38_000), 0.25)) for _ in range(5000)]
    assert len(Sketch.of(values).to_bytes()) <= 200


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, "list of 6"),
        ([1, 2, 3], "list of 6"),
        ([1, 500, 500, 500, 0, 7], "base64"),
        ([1, 500, 500, 500, 0, "****"], "Sketch|base64|buckets"),
        ([1.0, 500, 500, 500, 0, "gAMB"], "whole numbers"),
        ([True, 500, 500, 500, 0, "gAMB"], "whole numbers"),
        ([-1, 500, 500, 500, 0, "gAMB"], "whole numbers"),
        ([2**63, 500, 500, 500, 0, "gAMB"], "whole numbers"),
        ([1, 500, 500, 500, 0, "gA=="], "cut short"),
        ([1, 500, 500, 500, 0, "AQE="], "bucket 1 "),
        ([2, 500, 500, 500, 0, "nwIB"], "n says 2"),
        ([1, 900, 500, 500, 0, "nwIB"], "disagree"),
        ([1, 500, 501, 500, 0, "nwIB"], "disagree"),
    ],
)
def test_a_wire_form_that_contradicts_itself_is_refused(broken: object, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        Sketch.from_json(broken)


@given(st.binary(max_size=40))
def test_no_bytes_make_the_reader_fail_otherwise(blob: bytes) -> None:
    import base64

    try:
        Sketch.from_json([1, 500, 500, 500, 0, base64.b64encode(blob).decode()])
    except RecordError:
        return


@pytest.mark.parametrize(("q", "n"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1000)])
def test_a_percentile_is_withheld_below_ten_over_one_minus_q(q: float, n: int) -> None:
    assert enough_for(q) == n
    few = Sketch.of([1000] * (n - 1)).percentile(q)
    enough = Sketch.of([1000] * n).percentile(q)
    assert (few.us is None) == (q != 0.5)  # the median is always shown, with its count
    assert few.n == n - 1
    assert enough.us == pytest.approx(1000)


def test_without_values_there_is_no_percentile() -> None:
    assert Sketch().percentile(0.5).us is None
    assert Sketch().share_over(1000) is None


def test_the_share_over_a_limit_counts_whole_buckets() -> None:
    sketch = Sketch.of([1000] * 75 + [50_000] * 25)
    assert sketch.share_over(10_000) == 0.25
