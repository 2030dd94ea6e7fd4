"""The table of known devices: how wide and how fast the memory of each is, and who says so. Pure.

`devices.tsv` beside this file has one row a device or chip. Its columns:

    id, name       what to call it
    match          rules, parted by `|`, of which one must hold: `dt:` a part of the device tree's
                   compatible strings, `soc:` the chip's own name, `product:` the maker's name of
                   the product, `cpu:` words of the processor's name. A rule with `@ 32 64` holds
                   for devices with so many GiB of memory only
    memory         the kind of memory
    bus_bits       width of the bus to the memory
    mts            million transfers a second and line; empty where that differs by board
    most_mts       the fastest that the same hardware may be set to, where that is more than `mts`
    gb_per_s       the peak: bus_bits / 8 x mts
    watts          the power modes, for people
    loaded_by      `cpu`, or `gpu` where only the GPU reads fast enough to fill the bus
    confidence     `verified` (the clock was seen on the device), `vendor` (a public document), or
                   `maximum` (a public document says what is possible; what is fitted may be less)
    source         that document, and what was seen
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DESCRIBED: Final = "device_described"
"""The event whose data says what a device is, as `decodewatch.agent.hardware.watch` tells it."""

_FILE: Final = Path(__file__).with_name("devices.tsv")
_GIBIBYTE: Final = 1 << 30
_COLUMNS: Final = (
    *("id", "name", "match", "memory", "bus_bits", "mts", "most_mts", "gb_per_s", "watts"),
    *("loaded_by", "confidence", "source"),
)
CONFIDENCES: Final = ("verified", "vendor", "maximum")
RULES: Final = ("dt", "soc", "product", "cpu")
# The kernel and the firmware keep some of the memory for themselves: MemTotal is at most the size
# that is sold, and more than this share of it.
_LEAST_SHARE: Final = 0.75
_MOST_SHARE: Final = 1.01


@dataclass(frozen=True, slots=True)
class Rule:
    """What says that a row is a device's."""

    kind: str
    value: str
    memory_gib: tuple[int, ...]

    def allows(self, memory_bytes: int | None) -> bool:
        """Whether it is for devices with so much memory."""
        if not self.memory_gib:
            return True
        if memory_bytes is None:
            return False
        size = memory_bytes / _GIBIBYTE
        return any(_LEAST_SHARE * gib < size <= _MOST_SHARE * gib for gib in self.memory_gib)


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """One row of the table; see the module."""

    id: str
    name: str
    match: tuple[Rule, ...]
    memory: str
    bus_bits: int
    mts: int | None
    most_mts: int | None
    gb_per_s: float | None
    watts: str
    loaded_by: str
    confidence: str
    source: str

    @property
    def bus_bytes(self) -> float:
        """Bytes that one transfer carries."""
        return self.bus_bits / 8

    @property
    def hertz(self) -> float | None:
        """The memory clock of the specification: each cycle has two transfers."""
        return None if self.mts is None else self.mts * 1e6 / 2

    def bytes_per_second(self, hertz: float) -> float:
        """The peak at a memory clock."""
        return self.bus_bytes * 2 * hertz

    def can_run_at(self, hertz: float) -> bool:
        """Whether that can be the memory clock: what means "no limit" is out of all bounds."""
        return self._fastest / 40 <= hertz and not self.is_slower_than(hertz)

    def is_slower_than(self, hertz: float) -> bool:
        """Whether the fastest memory of the row does not reach that clock."""
        return hertz > self._fastest * 1.02

    @property
    def _fastest(self) -> float:
        return max(self.mts or 0, self.most_mts or 0) * 1e6 / 2


def rows() -> Iterator[KnownDevice]:
    """The table, one row after another: the whole of it is kept nowhere."""
    with _FILE.open(encoding="utf-8") as lines:
        if tuple(next(lines).rstrip("\n").split("\t")) != _COLUMNS:
            raise ValueError(f"{_FILE}: its columns are not {', '.join(_COLUMNS)}")
        for line in lines:
            fields = dict(zip(_COLUMNS, line.rstrip("\n").split("\t"), strict=True))
            yield KnownDevice(
                fields["id"],
                fields["name"],
                tuple(_rule(rule) for rule in fields["match"].split(" | ")),
                fields["memory"],
                int(fields["bus_bits"]),
                _whole(fields["mts"]),
                _whole(fields["most_mts"]),
                float(fields["gb_per_s"]) if fields["gb_per_s"] else None,
                fields["watts"],
                fields["loaded_by"],
                fields["confidence"],
                fields["source"],
            )


def _rule(text: str) -> Rule:
    kind, _, rest = text.partition(":")
    value, _, sizes = rest.partition(" @ ")
    return Rule(kind, value, tuple(int(size) for size in sizes.split()))


def _whole(text: str) -> int | None:
    return int(text) if text else None


def find(
    compatible: Sequence[str] = (),
    *,
    socs: Sequence[str] = (),
    products: Sequence[str] = (),
    cpu: str | None = None,
    memory_bytes: int | None = None,
) -> KnownDevice | None:
    """The row of a device, None where there is none: the closest of those that match.

    The device tree says most, and its first compatible string is the most specific; of two rules
    that match the same, the longer one is.
    """
    parts = [_parts(text) for text in compatible]
    known = {
        "soc": {text.casefold() for text in socs},
        "product": {text.casefold() for text in products},
    }
    words = _words(cpu or "")
    best: tuple[tuple[int, int, int], KnownDevice] | None = None
    for row in rows():
        for rule in row.match:
            if not rule.allows(memory_bytes):
                continue
            place = 0
            if rule.kind == "dt":
                place = _place(rule.value, parts)
            elif rule.kind in known:
                place = 0 if rule.value.casefold() in known[rule.kind] else -1
            elif f" {_words(rule.value)} " not in f" {words} ":
                place = -1
            if place < 0:
                continue
            rank = (RULES.index(rule.kind), place, -len(rule.value))
            if best is None or rank < best[0]:
                best = rank, row
    return None if best is None else best[1]


def _parts(compatible: str) -> list[str]:
    """`nvidia,p3768-0000+p3767-0005` is of a board and of the module on it."""
    return compatible.replace("+", ",").split(",")


def _place(value: str, parts: Sequence[Sequence[str]]) -> int:
    """Which compatible string has a part that is `value`, or a variant of it; -1: none."""
    for place, names in enumerate(parts):
        if any(name == value or name.startswith(value + "-") for name in names):
            return place
    return -1


def _words(name: str) -> str:
    """`Intel(R) Core(TM) i3-N305 CPU @ 3.80GHz` without what says nothing."""
    for mark in ("(r)", "(tm)", " cpu "):
        name = name.casefold().replace(mark, " ")
    return " ".join(name.split())
