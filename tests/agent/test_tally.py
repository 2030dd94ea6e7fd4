"""From stamps to figures, whatever the pieces in which they are taken in; and clocks and memory."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.agent.wrapper import tally as tally_module
from decodewatch.agent.wrapper.tally import Stamp, Tally
from decodewatch.agent.wrapper.vitals import Moment, SleepWatch, memory_bytes, moment, parse_memory
from decodewatch.shared.sketch import Sketch

steps = st.lists(
    st.tuples(st.integers(1, 10**10), st.integers(1, 9)), max_size=60
)  # (gap in ns, tokens)


def stamps_of(chosen: list[tuple[int, int]]) -> list[Stamp]:
    times = accumulate(gap for gap, _ in chosen)
    return [
        at if tokens == 1 else (at, tokens) for at, (_, tokens) in zip(times, chosen, strict=True)
    ]


def expected_itl(chosen: list[tuple[int, int]], prompt: int | None) -> dict[int | None, Sketch]:
    found: dict[int | None, Sketch] = {}
    depth = prompt or 0
    for place, (gap, tokens) in enumerate(chosen):
        if place:
            octave = None if prompt is None else max(depth, 1).bit_length() - 1
            us = max(1, round(gap / 1000))
            found.setdefault(octave, Sketch()).add(max(1, round(us / tokens)), tokens)
        depth += tokens
    return found


@given(
    chosen=steps,
    cuts=st.lists(st.integers(0, 60), max_size=5),
    prompt=st.none() | st.integers(0, 5000),
    known_from=st.integers(0, 6),
)
def test_figures_do_not_depend_on_the_pieces_nor_on_when_the_prompt_is_known(
    chosen: list[tuple[int, int]], cuts: list[int], prompt: int | None, known_from: int
) -> None:
    tally = Tally()
    stamps = stamps_of(chosen)
    edges = [0, *sorted(cuts), len(stamps)]
    made = []
    for piece, (start, end) in enumerate(pairwise(edges)):
        made += tally.add(stamps[start:end], prompt if piece >= known_from else None)
    assert made == [
        (None if place == 0 else max(1, round(gap / 1000)), tokens)
        for place, (gap, tokens) in enumerate(chosen)
    ]
    assert dict(tally.itl(prompt)) == expected_itl(chosen, prompt)
    assert tally.steps == len(chosen)
    assert tally.tokens == sum(tokens for _, tokens in chosen)
    assert tally.shared_tokens == sum(tokens for _, tokens in chosen[1:] if tokens > 1)
    assert tally.first_tokens == (chosen[0][1] if chosen else 0)
    times = [stamp if isinstance(stamp, int) else stamp[0] for stamp in stamps]
    assert (tally.first_ns, tally.last_ns) == ((times[0], times[-1]) if times else (None, None))


def test_a_depth_that_stays_unknown_for_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "MOST_UNPLACED", 10)
    tally = Tally()
    tally.add(range(1000, 13_000, 1000), None)
    tally.add(range(13_000, 15_000, 1000), 100)
    ((octave, known), (none, unknown)) = tally.itl(100)
    assert (octave, none) == (6, None) and (known.n, unknown.n) == (2, 11)


def test_stamps_out_of_order_are_refused_values_and_no_crash() -> None:
    tally = Tally()
    assert tally.add([5000, 4000, 4000, 9000], 1) == [(None, 1), (0, 1), (0, 1), (5, 1)]
    assert sum(sketch.refused for _, sketch in tally.itl(1)) == 2


def test_gaps_that_began_before_the_device_woke_are_none() -> None:
    tally = Tally()
    tally.add([1000, 2000], 1)
    # The sleep was before 5000; the gap from 2000 to 8000 may hold it.
    assert tally.add([8000, 9000], 1, awake_since=5000) == [(None, 1), (1, 1)]
    assert sum(sketch.n for _, sketch in tally.itl(1)) == 2


def test_a_sleep_is_the_least_that_the_clocks_prove() -> None:
    second = 1_000_000_000
    watch = SleepWatch(Moment(0, 7 * second, 80_000_000))  # 80 ms lost between the clocks
    watch.see(Moment(second, 8 * second + 10_000, second + 20_000))
    assert (watch.total_ns, watch.awake_since) == (0, 0)
    watch.see(Moment(2 * second, 12 * second, 2 * second + 20_000))
    assert abs(watch.total_ns - 3 * second) < 100_000
    assert watch.awake_since == 2 * second + 20_000
    watch.see(Moment(3 * second, 13 * second, 3 * second))
    assert abs(watch.total_ns - 3 * second) < 100_000


def test_a_refused_boot_clock_is_no_sleep() -> None:
    def refused() -> int:
        raise OSError

    now = moment(refused)
    assert now.before == now.boot <= now.after


def test_memory_is_what_is_anonymous_and_swapped() -> None:
    status = (
        b"Name:\tapp\nVmRSS:\t  900 kB\nRssAnon:\t   12 kB\nRssFile:\t 800 kB\nVmSwap:\t  3 kB\n"
    )
    assert parse_memory(status) == 15 * 1024
    assert parse_memory(status.replace(b"VmSwap", b"VmOdd")) is None
    assert parse_memory(status.replace(b"RssAnon", b"Rss")) is None
    assert parse_memory(b"Name:\tRssAnon:\t 5 kB\n") is None
    mine = memory_bytes()
    assert mine is not None and mine > 1 << 20
    assert memory_bytes("/nonexistent") is None
