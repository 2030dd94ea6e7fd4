"""What the numbers come to, in words."""

from dataclasses import replace
from typing import Any

import pytest

from decodewatch.dashboard import cells, verdicts
from decodewatch.dashboard.queries import Decoding, Device, Ledger
from decodewatch.shared.sketch import Sketch

NOW = 1_764_072_000_000_000
SECOND = 1_000_000
_VALUES: dict[str, Any] = {
    **dict.fromkeys(Device.__slots__),
    "device": "orin",
    "online": True,
    "status_at": NOW - 3600 * SECOND,
    "first_received_at": NOW - 3600 * SECOND,
    "last_received_at": NOW - 5 * SECOND,
}
ONLINE = Device(**_VALUES)
OFFLINE = replace(ONLINE, device="pi", online=False, status_at=NOW - 60 * SECOND)
SILENT = replace(ONLINE, device="mute", last_received_at=NOW - 600 * SECOND)
UNHEARD = replace(ONLINE, device="new", online=False, status_at=None)


@pytest.mark.parametrize(
    ("device", "word"),
    [(ONLINE, "online"), (OFFLINE, "offline"), (SILENT, "silent"), (UNHEARD, "unknown")],
)
def test_a_device_is_online_offline_silent_or_unknown(device: Device, word: str) -> None:
    found = verdicts.connection(device, NOW)
    assert found.word == word
    assert (found.advice is None) == (word == "online")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("none", "none"),
        ("thermal", "thermal"),
        ("over_current", "over-current"),
        ("policy", "policy"),
        (None, "unknown"),
        ("unknown", "unknown"),
        ("<b>", "unknown"),
    ],
)
def test_what_holds_the_clocks_down_is_said_in_words(state: str | None, word: str) -> None:
    assert verdicts.throttled(state)[0] == word
    device = replace(ONLINE, sample_at=NOW, throttle=state)
    assert word in cells.throttling(device).value
    assert (":orange[" in cells.throttling(device).value) == (state in ("thermal", "over_current"))


def test_an_idle_device_that_sends_once_a_minute_is_not_silent() -> None:
    idle = replace(ONLINE, last_received_at=NOW - 125 * SECOND)
    assert verdicts.connection(idle, NOW).word == "online"


def test_a_fleet_that_is_well_says_so_in_one_line() -> None:
    assert verdicts.fleet(1, [ONLINE], {}, NOW) == "The one device is online. Nothing is missing."
    said = verdicts.fleet(2, [ONLINE, replace(ONLINE, device="b")], {"orin": Ledger(9)}, NOW)
    assert said == "All 2 devices are online. Nothing is missing."


def test_who_is_away_and_what_is_missing_is_named() -> None:
    ledgers = {"orin": Ledger(9), "pi": Ledger(9, missing=3, evicted=1)}
    said = verdicts.fleet(3, [OFFLINE, SILENT, ONLINE], ledgers, NOW)
    assert said == (
        "1 of 3 devices is online: pi is offline, mute is silent. "
        "3 batches of pi have not arrived yet. 1 batch was given up by a full spool."
    )


def test_many_that_are_away_are_counted() -> None:
    away = [replace(OFFLINE, device=f"d{k}") for k in range(6)]
    said = verdicts.fleet(40, away, {"a": Ledger(missing=1), "b": Ledger(missing=2)}, NOW)
    assert "34 of 40 devices are online" in said
    assert "d2 is offline and 3 more are not." in said
    assert "3 batches of 2 devices have not arrived yet." in said


def test_turns_that_did_not_run_to_their_end_are_counted_by_how_they_ended() -> None:
    def found(**endings: int) -> Decoding:
        return Decoding(sum(endings.values()), 1, endings, Sketch(), {}, False)

    assert verdicts.decoded(found(), "hour") == "no turn in the last hour"
    assert verdicts.decoded(found(complete=3), "hour") == "3 turns in the last hour, all complete"
    said = verdicts.decoded(found(complete=3, lost=1, cancelled=2), "hour")
    assert said == "6 turns in the last hour, of which 2 cancelled, 1 lost"
