"""Rows as the dashboard's queries return them, for tests of what is made of them."""

from typing import Any

from decodewatch.dashboard.queries import Sample, Turn, Window
from decodewatch.dashboard.series import Axis, axis
from decodewatch.shared.sketch import Sketch

SECOND = 1_000_000
HOUR = 3600 * SECOND
MIB = 1 << 20
START = 1_764_072_000 * SECOND


def an_axis(length_s: int = 3600) -> Axis:
    """The time axis of so many seconds from START."""
    return axis(START, START + length_s * SECOND, [START])


def a_window(after_s: float, tokens: int, us: int = 12_000) -> Window:
    """A window that ended so long after START, with all gaps alike."""
    sketch = Sketch()
    sketch.add(us, tokens)
    return Window(START + round(after_s * SECOND), sketch)


def a_turn(after_s: float, **more: Any) -> Turn:
    """A turn of a second that began so long after START; what is not given is not known."""
    values: dict[str, Any] = {
        **dict.fromkeys(Turn.__slots__),
        "turn": "t",
        "runtime": "0123456789abcdef",
        "at": START + round(after_s * SECOND),
        "duration_us": SECOND,
        "output_tokens": 100,
        "token_source": "counted",
        "ending": "complete",
    }
    return Turn(**{**values, **more})


def a_sample(after_s: int, **values: Any) -> Sample:
    """A sample that ended so long after START."""
    return Sample(START + after_s * SECOND, values, {})


def temperature(label: str, mean: float) -> dict[str, list[float]]:
    """The value of one thermal zone."""
    return {f"temp_celsius:{label}": [mean, mean - 1, mean + 1]}
