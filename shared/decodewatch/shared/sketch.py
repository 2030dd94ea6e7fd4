"""The percentile sketch: a base-2 exponential histogram of fixed scale over integer microseconds.

Scale 5: 32 buckets an octave, bucket i covers (2^(i/32), 2^((i+1)/32)] microseconds, so that a
percentile is at most 1.083 % off whatever was merged in whatever order. The layout is that of
OpenTelemetry's exponential and Prometheus's native histograms at scale (schema) 5.

Buckets run from 100 us to 10 min; what is shorter or longer is counted in the outermost ones, and
`minimum` and `maximum` stay exact. Zero and negative values are refused and counted.
"""

import base64
import binascii
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from decodewatch.shared.errors import RecordError, shown

SCALE = 5
PER_OCTAVE = 1 << SCALE
LOWEST = 212  # everything up to 100 us
HIGHEST = 934  # everything above 10 min
_BASE = 2.0 ** (1 / PER_OCTAVE)
# The harmonic middle of bucket 0; times 2^(i/32) it is off by the same share at both of i's ends.
_MIDDLE = 2 * _BASE / (_BASE + 1)
RELATIVE_ERROR = (_BASE - 1) / (_BASE + 1)
_MAX_COUNT = (1 << 63) - 1  # what a SQL BIGINT holds


def bucket(us: int) -> int:
    """The bucket that holds a value of `us` > 0 microseconds."""
    if us <= 100:
        return LOWEST
    return min(math.ceil(math.log2(us) * PER_OCTAVE) - 1, HIGHEST)


def representative(index: int) -> float:
    """The value, in microseconds, that stands for all of bucket `index`."""
    return float(_MIDDLE * 2.0 ** (index / PER_OCTAVE))


def enough_for(q: float) -> int:
    """How many values a percentile needs before it may be shown: 10 / (1 - q)."""
    return math.ceil(round(10 / (1 - q), 6))


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile of a sketch: `us` is None where `n` is too small for it to mean anything."""

    q: float
    us: float | None
    n: int


@dataclass(slots=True)
class Sketch:
    """Counts by bucket, with the exact number, sum, minimum and maximum beside them.

    `total`, `minimum` and `maximum` are microseconds; `refused` counts values that were not
    positive and are in no other figure.
    """

    counts: dict[int, int] = field(default_factory=dict)
    n: int = 0
    total: int = 0
    minimum: int = 0
    maximum: int = 0
    refused: int = 0

    @classmethod
    def of(cls, values: Iterable[int]) -> "Sketch":
        """A sketch of some values in microseconds."""
        made = cls()
        for us in values:
            made.add(us)
        return made

    def add(self, us: int, count: int = 1) -> None:
        """Count a value of `us` microseconds `count` times."""
        if us <= 0:
            self.refused += count
            return
        index = bucket(us)
        self.counts[index] = self.counts.get(index, 0) + count
        if self.n == 0:
            self.minimum = self.maximum = us
        elif us < self.minimum:
            self.minimum = us
        elif us > self.maximum:
            self.maximum = us
        self.n += count
        self.total += us * count

    def merge(self, other: "Sketch") -> None:
        """Take in all that `other` counted; exact, and in any order."""
        self.refused += other.refused
        if other.n == 0:
            return
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.minimum = min(self.minimum, other.minimum) if self.n else other.minimum
        self.maximum = max(self.maximum, other.maximum) if self.n else other.maximum
        self.n += other.n
        self.total += other.total

    def quantile(self, q: float) -> float | None:
        """The value below or at which a share `q` of all values lies, in microseconds.

        None where nothing was counted. See `percentile` for what may be shown to a person.
        """
        if self.n == 0:
            return None
        rank = max(1, math.ceil(q * self.n))
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                break
        return min(max(representative(index), self.minimum), self.maximum)

    def percentile(self, q: float) -> Percentile:
        """The percentile with its count, withheld below 10 / (1 - q) values; the median never."""
        shown_anyway = q == 0.5 and self.n > 0
        usable = shown_anyway or self.n >= enough_for(q)
        return Percentile(q, self.quantile(q) if usable else None, self.n)

    def share_over(self, us: float) -> float | None:
        """The share of values above `us` microseconds, to within a bucket; None without values."""
        if self.n == 0:
            return None
        over = sum(count for index, count in self.counts.items() if representative(index) > us)
        return over / self.n

    def to_bytes(self) -> bytes:
        """The buckets alone: varint pairs of (distance from the bucket before, count)."""
        out = bytearray()
        before = 0
        for index in sorted(self.counts):
            _put_varint(out, index - before)
            _put_varint(out, self.counts[index])
            before = index
        return bytes(out)

    def to_json(self) -> list[Any]:
        """The wire form: [n, total, minimum, maximum, refused, base64 of the buckets]."""
        packed = base64.b64encode(self.to_bytes()).decode("ascii")
        return [self.n, self.total, self.minimum, self.maximum, self.refused, packed]

    @classmethod
    def from_json(cls, value: object) -> "Sketch":
        """Read `to_json`'s form. Raises RecordError where it contradicts itself."""
        if not isinstance(value, list) or len(value) != 6:
            raise RecordError(f"sketch: {shown(value)}; accepted is a list of 6")
        *figures, packed = value
        if not all(type(figure) is int and 0 <= figure <= _MAX_COUNT for figure in figures):
            raise RecordError(f"sketch: {shown(figures)}; accepted are whole numbers from 0")
        if not isinstance(packed, str):
            raise RecordError(f"sketch: buckets {shown(packed)}; accepted is base64 text")
        try:
            blob = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError) as error:
            raise RecordError(f"sketch: buckets {shown(packed)}: {error}") from None
        n, total, minimum, maximum, refused = figures
        counts = _counts(blob)
        if sum(counts.values()) != n:
            raise RecordError(f"sketch: buckets hold {sum(counts.values())} values, n says {n}")
        if n and not (0 < minimum <= maximum and minimum * n <= total <= maximum * n):
            raise RecordError(
                f"sketch: n {n}, total {total}, minimum {minimum}, maximum {maximum} disagree"
            )
        return cls(counts, n, total, minimum, maximum, refused)


def _put_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _counts(blob: bytes) -> dict[int, int]:
    """Buckets and counts of a packed sketch. Raises RecordError where they are not in range."""
    numbers: list[int] = []
    value = shift = 0
    for byte in blob:
        value |= (byte & 127) << shift
        if byte & 128:
            shift += 7
            if shift > 63:
                raise RecordError("sketch: a count of more than 64 bits")
        else:
            numbers.append(value)
            value = shift = 0
    if shift or len(numbers) % 2:
        raise RecordError("sketch: buckets cut short")
    counts: dict[int, int] = {}
    index = 0
    for distance, count in zip(numbers[::2], numbers[1::2], strict=True):
        index += distance
        if not (LOWEST <= index <= HIGHEST and count and (distance or not counts)):
            raise RecordError(f"sketch: bucket {index} with count {count}; {LOWEST} to {HIGHEST}")
        counts[index] = count
    return counts
