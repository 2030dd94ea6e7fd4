"""The text that servers answer with at /metrics: Prometheus' exposition format, line by line."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

_NAME: Final = rb"[a-zA-Z_:][a-zA-Z0-9_:]*"
_PAIR: Final = rb'[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"'
_PAIRS: Final = rb"(?:" + _PAIR + rb"(?:[ \t]*,[ \t]*" + _PAIR + rb")*[ \t]*(?:,[ \t]*)?)?"
# name{labels} value timestamp, and an exemplar of OpenMetrics behind it. No two parts that follow
# each other can take the same characters: no input makes this backtrack far.
_LINE: Final = re.compile(
    rb"("
    + _NAME
    + rb")[ \t]*(?:\{[ \t]*("
    + _PAIRS
    + rb")\}[ \t]*)?(?<=[ \t}])([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    rb"(?:[ \t]+-?\d+(?:\.\d+)?)?(?:[ \t]+#[ \t].*)?[ \t]*"
)
_LONGEST_LINE: Final = 16 * 1024
MOST_SERIES: Final = 1024
"""Of one name; a name with more is left out, and each of its series beyond is a skipped line."""
_LABEL: Final = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(rb"\\(.)")

Labels = Mapping[str, str]


class Metrics(NamedTuple):
    """What was asked for of one text: each name's series, and the value of each.

    `skipped` counts the lines that are no comment and no sample with a finite number.
    """

    series: Mapping[str, list[tuple[Labels, float]]]
    skipped: int

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of a name's series, of those with these labels; None where there is none.

        A server of several engines has one series each: no single one of them is the server's.
        """
        found = [
            value
            for its, value in self.series.get(name, ())
            if all(its.get(label) == wanted for label, wanted in labels.items())
        ]
        return math.fsum(found) if found else None


def parse(body: bytes, wanted: Collection[str]) -> Metrics:
    """The series of the `wanted` names. Never raises: a line that is not well formed is skipped.

    A series that is there twice has its last value.
    """
    names = {name.encode() for name in wanted}
    found: dict[bytes, dict[bytes, float]] = {}
    crowded: set[bytes] = set()
    skipped = 0
    for line in body.split(b"\n"):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        match = _LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        value = math.nan if match is None else float(match[3])
        if match is None or not math.isfinite(value):
            skipped += 1
        elif match[1] in names:
            series = found.setdefault(match[1], {})
            labels = match[2] or b""
            if len(series) < MOST_SERIES or labels in series:
                series[labels] = value
            else:
                crowded.add(match[1])
                skipped += 1
    return Metrics(
        {
            name.decode(): [(_labels(labels), value) for labels, value in series.items()]
            for name, series in found.items()
            if name not in crowded  # a part of a sum is not the sum
        },
        skipped,
    )


def _labels(text: bytes) -> Labels:
    return {
        name.decode(): _ESCAPED.sub(_unescape, value).decode("utf-8", "replace")
        for name, value in _LABEL.findall(text)
    }


def _unescape(match: re.Match[bytes]) -> bytes:
    return b"\n" if match[1] == b"n" else match[1]
