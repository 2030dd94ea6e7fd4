"""What tables show of rows."""

from typing import Any

import pytest

from decodewatch.dashboard import format as words
from decodewatch.dashboard import lists
from decodewatch.dashboard.queries import Event


def told(**data: Any) -> str:
    rows = [Event(1_764_072_000_000_000, "e", None, None, data)]
    return str(lists.events(rows, {}, words.zone("UTC"))["what"].iloc[0])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, ""),
        ({"previous_stream": None, "spool_set_aside": None, "version": "1"}, "version: 1"),
        ({"said_bye": True, "depth": None}, "said bye: yes"),
        ({"cause": "oom_kill", "said_bye": False}, "cause: oom_kill · said bye: no"),
        ({"limit_bytes": 512 << 20, "oom_kills": 1}, "limit: 512 MiB · oom kills: 1"),
        ({"step_us": -1_204_331}, "step: \N{MINUS SIGN}1.20 s"),
        ({"pid": 21430, "load": 0.25}, "pid: 21430 · load: 0.25"),
        ({"bytes": 3, "source": ""}, "bytes: 3"),
    ],
)
def test_an_event_is_told_in_words(data: dict[str, Any], text: str) -> None:
    assert told(**data) == text


def test_all_of_a_long_value_is_in_the_cell() -> None:
    reason = "x" * 240 + " the end"
    assert told(reason=reason) == f"reason: {reason}"


def test_what_others_wrote_into_an_event_moves_nothing() -> None:
    text = told(**{"a\nb": "one\ntwo\N{RIGHT-TO-LEFT OVERRIDE}"})
    assert "\n" not in text and "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
