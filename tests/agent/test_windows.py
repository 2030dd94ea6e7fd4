"""Steps become gaps by depth, and gaps become windows by strata; nothing is averaged away."""

from hypothesis import given
from hypothesis import strategies as st

from decodewatch.agent.runtimes.windows import (
    MOST_BUCKETS,
    MOST_STRATA,
    Step,
    WindowBuilder,
    gaps,
    octave,
)
from decodewatch.shared.records import Window, read, to_json
from decodewatch.shared.sketch import Sketch

STEPS = st.lists(st.tuples(st.none() | st.integers(0, 10**7), st.integers(0, 5)), max_size=50)


def test_the_octave_is_the_whole_part_of_the_logarithm() -> None:
    assert [octave(depth) for depth in (None, 0, 1, 2, 3, 4, 127, 128, 4096)] == [
        *(None, 0, 0, 1, 1, 2, 6, 7, 12),
    ]


def test_a_step_counts_at_the_depth_that_it_attended_to() -> None:
    # 129 tokens at the end: the steps attended to 126, 127 and 128 of them.
    steps: list[Step] = [(30_000, 1), (31_000, 1), (32_000, 1)]
    assert [gap.octave for gap in gaps(steps, 129)] == [6, 6, 7]


def test_a_chunk_of_several_tokens_gives_each_its_share_of_the_gap() -> None:
    assert list(gaps([(None, 1), (90_000, 3)], None)) == [(None, 30_000, 3)]


def test_a_depth_that_is_less_than_the_steps_is_not_below_nothing() -> None:
    assert [gap.octave for gap in gaps([(1000, 4), (1000, 4)], 2)] == [0, 2]


def test_a_window_keeps_depth_concurrency_and_throttle_apart() -> None:
    builder = WindowBuilder("r1", 1_000_000)
    builder.add([(None, 1), (40_000, 1)], 102, 1, "unknown")
    builder.add([(50_000, 1)], 103, 2, "unknown")
    builder.add([(60_000, 2)], 130, 2, "throttled")
    window = builder.close(11_000_000)
    assert window is not None
    assert (window.t, window.duration_us, window.tokens, window.steps) == (
        *(11_000_000, 10_000_000, 5, 4),
    )
    assert [(s.depth, s.concurrency, s.throttle, s.itl.n) for s in window.strata] == [
        (6, 1, "unknown", 1),
        (6, 2, "unknown", 1),
        (7, 2, "throttled", 2),
    ]


def test_an_interval_without_steps_gives_no_window() -> None:
    builder = WindowBuilder("r1", 0)
    assert builder.close(10) is None
    builder.add([(None, 1)], None, 1, "unknown")
    window = builder.close(30)
    assert window is not None and window.duration_us == 20
    assert window.strata == ()
    assert builder.close(40) is None


@given(st.lists(st.tuples(STEPS, st.none() | st.integers(0, 10**6), st.integers(1, 8)), max_size=8))
def test_a_window_holds_every_gap_once_and_can_be_sent(
    reports: list[tuple[list[Step], int | None, int]],
) -> None:
    builder = WindowBuilder("r1", 0)
    expected = Sketch()
    for steps, depth, concurrency in reports:
        builder.add(steps, depth, concurrency, "unknown")
        for us, tokens in steps:
            if us is not None and tokens:
                expected.add(us if tokens == 1 or not us else max(1, round(us / tokens)), tokens)
    window = builder.close(10_000_000)
    if window is None:
        assert expected == Sketch()
        return
    merged = Sketch()
    for stratum in window.strata:
        merged.merge(stratum.itl)
    assert merged == expected
    assert read(Window, to_json(window)) == window


def test_a_window_is_full_before_it_is_too_large_to_send() -> None:
    builder = WindowBuilder("r1", 0)
    concurrency = 0
    while not builder.full:
        concurrency += 1
        # The worst message: a gap at every octave of depth.
        builder.add([(1000, 1 << shift) for shift in range(40)], None, concurrency, "unknown")
        builder.add([(1000, 1 << shift) for shift in range(20)], 1 << 20, concurrency, "unknown")
    window = builder.close(1)
    assert window is not None and len(window.strata) <= MOST_STRATA

    while not builder.full:
        builder.add([(us, 1) for us in range(100, 10**6, 997)], 10**6, concurrency, "unknown")
        concurrency += 1
    window = builder.close(2)
    assert window is not None
    assert sum(len(stratum.itl.counts) for stratum in window.strata) < MOST_BUCKETS + 1000
