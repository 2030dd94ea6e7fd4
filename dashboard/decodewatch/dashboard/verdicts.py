"""What the numbers come to, in a sentence: pure, from plain values to words in Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Literal

from decodewatch.dashboard import format as words
from decodewatch.dashboard.queries import Decoding, Device, Ledger

# An idle device sends a sample a minute; three of them may be under way or on the way again.
SILENT_AFTER = 180 * words.SECOND
_NAMED = 3
_HELD_BY = {
    "none": "clocks are free",
    "thermal": "it is too hot",
    "power": "supply or limit",
    "over_current": "too much current",
    "policy": "mode or cap changed",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether a device is there: one of online, offline, silent and unknown, since when, and why.

    `colour` is one of Streamlit's names. Silent: the broker holds it for connected, and nothing
    comes from it.
    """

    word: str
    since: int | None
    colour: Literal["green", "red", "orange", "gray"]
    advice: str | None = None


def connection(device: Device, now: int) -> Connection:
    """Whether a device is online, by its last status and by when it was last heard."""
    if device.status_at is None:
        return Connection(
            "unknown",
            device.last_received_at,
            "gray",
            "No status of this device has arrived yet, only batches: was the collector started, or "
            "the broker emptied, after the device had connected?",
        )
    if not device.online:
        return Connection(
            "offline",
            device.status_at,
            "red",
            "Check its power and network, and its agent with `systemctl status decodewatch-agent`. "
            "What it measures meanwhile waits in its spool and arrives later.",
        )
    if now - device.last_received_at > SILENT_AFTER:
        return Connection(
            "silent",
            device.last_received_at,
            "orange",
            "The broker holds it for connected and no batch comes: see the logs of the collector "
            "and of its agent.",
        )
    return Connection("online", device.status_at, "green")


def fleet(
    in_all: int,
    devices: Sequence[Device],
    ledgers: Mapping[str, Ledger],
    now: int,
) -> str:
    """How the fleet is: who is there, and whether anything is missing."""
    away = [device for device in devices if connection(device, now).word != "online"]
    online = in_all - len(away)
    if not away:
        who = "The one device is online." if in_all == 1 else f"All {in_all:,} devices are online."
    elif in_all == 1:
        who = f"The one device is {connection(away[0], now).word}."
    else:
        verb = "is" if online == 1 else "are"
        who = f"{online:,} of {in_all:,} devices {verb} online: {_names(away, now)}."
    missing = {name: ledger.missing for name, ledger in ledgers.items() if ledger.missing}
    evicted = sum(ledger.evicted for ledger in ledgers.values())
    if missing:
        worst = max(missing, key=lambda name: missing[name])
        where = f"of {words.inert(worst)}" if len(missing) == 1 else f"of {len(missing)} devices"
        verb = "has" if sum(missing.values()) == 1 else "have"
        lost = f"{words.counted(sum(missing.values()), 'batch')} {where} {verb} not arrived yet."
    else:
        lost = "Nothing is missing."
    verb = "was" if evicted == 1 else "were"
    gone = f" {words.counted(evicted, 'batch')} {verb} given up by a full spool." if evicted else ""
    return f"{who} {lost}{gone}"


def _names(away: Sequence[Device], now: int) -> str:
    named = [
        f"{words.inert(device.device)} is {connection(device, now).word}"
        for device in away[:_NAMED]
    ]
    more = len(away) - _NAMED
    return ", ".join(named) + (f" and {more} more are not" if more > 0 else "")


def throttled(state: str | None) -> tuple[str, str]:
    """What holds a device's clocks down by its newest sample: the state, and what that means.

    As short as a cell asks for; the events say all of it.
    """
    if state is None or state not in _HELD_BY:
        return words.UNKNOWN, "cannot be read"
    return state.replace("_", "-"), _HELD_BY[state]


def decoded(found: Decoding, period: str) -> str:
    """What a device did in a period: how many turns, how many not to their end."""
    if not found.turns:
        return f"no turn in the last {period}"
    failed = {ending: n for ending, n in found.endings.items() if ending != "complete"}
    text = f"{words.counted(found.turns, 'turn')} in the last {period}"
    if not failed:
        return f"{text}, all complete"
    kinds = ", ".join(f"{n:,} {words.inert(ending)}" for ending, n in sorted(failed.items()))
    return f"{text}, of which {kinds}"


def since(found: Connection, now: int, where: tzinfo) -> str:
    """Since when a device is what it is: "since 09:12, 3 h"."""
    if found.since is None:
        return words.UNKNOWN
    return f"since {words.clock(found.since, now, where)}, {words.span(max(now - found.since, 0))}"
