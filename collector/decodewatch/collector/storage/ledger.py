"""The delivery ledger of one stream: which numbers arrived, and which the device gave up. Pure.

A number is settled once it arrived or was evicted. What is settled is kept as a watermark (every
number up to it) and the ranges above it, so that the usual stream costs one number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

Ranges = tuple[tuple[int, int], ...]
"""Inclusive, in rising order, with at least one number between two of them."""

MAX_RANGES = 1024
"""Ranges kept of one stream. A device sends again until it is acknowledged, so that holes are as
many as it has batches under way; more than this many never fill."""


def add(ranges: Ranges, first: int, last: int) -> Ranges:
    """The ranges with all numbers from `first` to `last`."""
    before: list[tuple[int, int]] = []
    after: list[tuple[int, int]] = []
    for low, high in ranges:
        if high < first - 1:
            before.append((low, high))
        elif low > last + 1:
            after.append((low, high))
        else:
            first, last = min(first, low), max(last, high)
    return (*before, (first, last), *after)


def subtract(ranges: Ranges, first: int, last: int) -> Ranges:
    """The ranges without the numbers from `first` to `last`."""
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        if low < first:
            left.append((low, min(high, first - 1)))
        if high > last:
            left.append((max(low, last + 1), high))
    return tuple((low, high) for low, high in left if low <= high)


def holds(ranges: Ranges, number: int) -> bool:
    """Whether a number is in one of the ranges."""
    return any(low <= number <= high for low, high in ranges)


def size(ranges: Iterable[tuple[int, int]]) -> int:
    """How many numbers the ranges hold."""
    return sum(high - low + 1 for low, high in ranges)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is known of the numbers of one stream, which begin at 1.

    `evicted` keeps the newest MAX_RANGES ranges only; `evicted_count` counts all.
    """

    watermark: int = 0
    ranges: Ranges = ()
    highest: int = 0
    received: int = 0
    duplicate: int = 0
    late: int = 0
    missing: int = 0
    evicted_count: int = 0
    evicted: Ranges = ()

    def settled(self, number: int) -> bool:
        """Whether a number arrived or was evicted."""
        return number <= self.watermark or holds(self.ranges, number)


def arrive(ledger: Ledger, number: int) -> tuple[Ledger, bool]:
    """A batch of this number arrived: the ledger after it, and whether it is new.

    An evicted batch that arrives after all (it was under way when the device gave it up) is new.
    """
    if holds(ledger.evicted, number):
        after = replace(
            ledger,
            evicted=subtract(ledger.evicted, number, number),
            evicted_count=ledger.evicted_count - 1,
            received=ledger.received + 1,
            late=ledger.late + (number < ledger.highest),
        )
        return after, True
    if ledger.settled(number):
        return replace(ledger, duplicate=ledger.duplicate + 1), False
    late = number < ledger.highest
    after = _settle(ledger, number, number)
    return replace(after, received=ledger.received + 1, late=ledger.late + late), True


def evict(ledger: Ledger, first: int, last: int) -> Ledger:
    """The device says that it gave up the numbers from `first` to `last`.

    Those that had arrived before it gave them up stay received.
    """
    gone: Ranges = ((first, last),)
    gone = subtract(gone, 1, ledger.watermark)
    for low, high in ledger.ranges:
        gone = subtract(gone, low, high)
    if not gone:
        return ledger
    evicted = ledger.evicted
    for low, high in gone:
        evicted = add(evicted, low, high)
    return replace(
        _settle(ledger, first, last),
        evicted=evicted[-MAX_RANGES:],
        evicted_count=ledger.evicted_count + size(gone),
    )


def _settle(ledger: Ledger, first: int, last: int) -> Ledger:
    """Settle numbers, at least one of which is not yet, and count what is missing anew."""
    known: Ranges = ((1, ledger.watermark),) if ledger.watermark else ()
    ranges = add(known + ledger.ranges, first, last)
    highest = max(ledger.highest, last)
    before = ledger.highest - ledger.watermark - size(ledger.ranges)
    holes = highest - size(ranges)
    if len(ranges) > MAX_RANGES:
        # The oldest hole will not fill any more. It stays counted as missing, and what should still
        # arrive for it is taken for a duplicate.
        ranges = add(ranges, ranges[0][0], ranges[1][1])
    watermark = 0
    if ranges[0][0] == 1:
        watermark, ranges = ranges[0][1], ranges[1:]
    return replace(
        ledger,
        watermark=watermark,
        ranges=ranges,
        highest=highest,
        missing=ledger.missing + holes - before,
    )
