"""The delivery ledger against a plain set of numbers."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from decodewatch.collector.storage import ledger
from decodewatch.collector.storage.ledger import MAX_RANGES, Ledger

NUMBERS = st.integers(1, 40)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))
STEPS = st.lists(NUMBERS | RANGES, max_size=60)


def numbers_of(ranges: ledger.Ranges) -> set[int]:
    return {number for low, high in ranges for number in range(low, high + 1)}


def is_normal(ranges: ledger.Ranges) -> bool:
    """In rising order, with a gap between any two."""
    rising = all(low <= high for low, high in ranges)
    return rising and all(one[1] + 1 < two[0] for one, two in pairwise(ranges))


@given(st.lists(RANGES))
def test_ranges_are_the_set_of_their_numbers(pairs: list[tuple[int, int]]) -> None:
    ranges: ledger.Ranges = ()
    model: set[int] = set()
    for low, high in pairs:
        ranges = ledger.add(ranges, low, high)
        model |= set(range(low, high + 1))
    assert is_normal(ranges)
    assert numbers_of(ranges) == model
    assert ledger.size(ranges) == len(model)
    assert all(ledger.holds(ranges, number) == (number in model) for number in range(45))


@given(st.lists(RANGES), RANGES)
def test_subtracting_takes_exactly_these_numbers(
    pairs: list[tuple[int, int]], taken: tuple[int, int]
) -> None:
    ranges: ledger.Ranges = ()
    for low, high in pairs:
        ranges = ledger.add(ranges, low, high)
    left = ledger.subtract(ranges, *taken)
    assert is_normal(left)
    assert numbers_of(left) == numbers_of(ranges) - set(range(taken[0], taken[1] + 1))


@settings(max_examples=500)
@given(STEPS)
def test_the_ledger_counts_what_sets_would(steps: list[int | tuple[int, int]]) -> None:
    kept = Ledger()
    received: set[int] = set()
    evicted: set[int] = set()
    duplicate = late = 0
    for step in steps:
        highest = max(received | evicted, default=0)
        if isinstance(step, int):
            kept, new = ledger.arrive(kept, step)
            assert new == (step not in received)
            if new:
                late += step < highest
            else:
                duplicate += 1
            received.add(step)
            evicted.discard(step)
        else:
            kept = ledger.evict(kept, *step)
            evicted |= set(range(step[0], step[1] + 1)) - received
    settled = received | evicted
    highest = max(settled, default=0)
    assert is_normal(kept.ranges)
    assert set(range(1, kept.watermark + 1)) | numbers_of(kept.ranges) == settled
    assert not kept.ranges or kept.ranges[0][0] > kept.watermark + 1
    assert kept.highest == highest
    assert kept.missing == highest - len(settled)
    assert (kept.received, kept.duplicate, kept.late) == (len(received), duplicate, late)
    assert numbers_of(kept.evicted) == evicted
    assert kept.evicted_count == len(evicted)


def test_batches_in_order_need_no_ranges() -> None:
    kept = Ledger()
    for number in range(1, 1000):
        kept, new = ledger.arrive(kept, number)
        assert new
    assert kept.watermark == 999
    assert kept.ranges == ()


def test_a_device_that_leaves_more_holes_than_are_kept_loses_the_oldest_only() -> None:
    kept = Ledger()
    for number in range(2, 2 * MAX_RANGES + 12, 2):
        kept, _ = ledger.arrive(kept, number)
    assert len(kept.ranges) == MAX_RANGES
    missing = MAX_RANGES + 5
    assert kept.missing == missing
    _, new = ledger.arrive(kept, 2 * MAX_RANGES - 1)
    assert new, "a young hole is still a hole"
    after, new = ledger.arrive(kept, 3)
    assert not new, "what was given up is taken for a duplicate"
    assert after.missing == missing


def test_the_largest_numbers_that_sql_holds_are_counted() -> None:
    kept = ledger.evict(Ledger(), 1, (1 << 63) - 1)
    assert kept.evicted_count == (1 << 63) - 1
    assert kept.watermark == (1 << 63) - 1
    assert kept.missing == 0
