"""What tables show of rows."""

from typing import Any

import pytest

from decodewatch.dashboard import format as words
from decodewatch.dashboard import lists
from decodewatch.dashboard.queries import Event
from decodewatch.shared.energy import totals
from decodewatch.shared.records import Phase


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


def test_phases_stand_apart_with_the_power_of_one_rail() -> None:
    levels = {"gpu_busy_share": (0.98, 0, 1), "power_watts:CPU": (1, 1, 1)}
    samples = [
        {"decode": Phase(30_000_000, 600, {**levels, "power_watts:GPU": (4, 4, 4)})},
        {
            "decode": Phase(10_000_000, 200, {**levels, "power_watts:GPU": (8, 8, 8)}),
            "idle": Phase(90_000_000, 0, {"power_watts:CPU": (2, 2, 2)}),
        },
    ]
    table, rail = lists.phases(totals(samples))
    assert rail == "power_watts:GPU"
    assert list(table.index) == ["idle", "decode"]
    assert list(table["time"]) == ["90.0 s", "40.0 s"]
    assert list(table["decoded tokens"]) == ["0", "800"]
    assert list(table["GPU busy"]) == ["unknown", "98 %"]
    assert list(table["DRAM busy"]) == ["unknown", "unknown"]
    assert list(table["power"]) == ["unknown", "5.00 W"]


def test_the_power_of_phases_is_that_of_the_whole_device_where_it_is_known() -> None:
    values = {"power_watts:GPU": (9, 9, 9), "device_watts:battery": (3, 3, 3)}
    table, rail = lists.phases(totals([{"idle": Phase(1, 0, values)}]))
    assert rail == "device_watts:battery" and table.loc["idle", "power"] == "3.00 W"
    assert lists.phases(totals([{"idle": Phase(1, 0, {})}]))[1] is None
