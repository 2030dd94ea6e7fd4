"""The current state of a device, one row: how messages change it. Pure.

Of two records the newer is picked by its place in time, never by the order of arrival. Of two
statuses it is the one with the higher connection number, but for one case: see `hear`. Two
collectors that see the same messages, however they take turns, end with the same row.
"""

from typing import Any

from decodewatch.collector.storage.rows import Row
from decodewatch.shared.devices import DESCRIBED
from decodewatch.shared.diagnose.throttle import state_of_shares
from decodewatch.shared.records import MAX_INTEGER, Event, Sample, Turn
from decodewatch.shared.sensors import hottest
from decodewatch.shared.wire import Status

NEVER = -1
"""The connection number before any status was heard."""

SAMPLE_COLUMNS = (
    "sample_at",
    "hottest_label",
    "hottest_celsius",
    "memory_total_bytes",
    "memory_available_bytes",
    "swap_used_bytes",
    "throttle",
)
DESCRIPTION_COLUMNS = ("described_at", "description")
TURN_COLUMNS = (
    "turn_at",
    "turn_id",
    "turn_ending",
    "turn_ttft_us",
    "turn_tpot_us",
    "runtime",
    "runtime_memory_bytes",
)


def unseen(device: str, received_at: int) -> Row:
    """The row of a device that was never heard of before."""
    return {
        "device": device,
        "online": False,
        "connection": NEVER,
        "status_at": None,
        "agent_version": None,
        "boot": None,
        "clock_synchronised": None,
        "first_received_at": received_at,
        "last_received_at": received_at,
        **dict.fromkeys(SAMPLE_COLUMNS + TURN_COLUMNS + DESCRIPTION_COLUMNS),
    }


def hear(row: Row, status: Status, received_at: int, *, retained: bool) -> None:
    """Take a status in. An older connection is ignored; of one connection, offline is the end.

    A device that lost its spool and its clock counts connections anew, from a lower number: what
    it says of a new one is believed. A retained status was sent at some time before: it says
    nothing about when the device was there.
    """
    if not retained:
        row["last_received_at"] = max(row["last_received_at"], received_at)
    if status.connection < row["connection"] and not _begins_anew(row, status, retained=retained):
        return
    if status.connection != row["connection"]:
        row["online"] = status.online
    elif row["online"] == status.online and retained:
        return
    else:
        row["online"] = row["online"] and status.online
    row["connection"] = status.connection
    row["status_at"] = max(row["status_at"] or 0, received_at)
    row["agent_version"] = status.agent_version or row["agent_version"]
    row["boot"] = status.boot or row["boot"]


def _begins_anew(row: Row, status: Status, *, retained: bool) -> bool:
    """Whether a status with a lower connection number is the newer one all the same.

    A will cannot be told from that of a dead connection, which the broker sends late. What a device
    says itself comes when it says it, but where it is retained: then a clock must vouch for it.
    """
    if not status.online:
        return False
    clock = status.clock
    vouched = clock is not None and clock.synchronised and clock.wall > (row["status_at"] or 0)
    return vouched or not retained


def take_sample(row: Row, sample: Sample, at: int) -> None:
    """Take a sample of the system in, where it is the newest."""
    if sample.runtime is not None or (row["sample_at"] is not None and at < row["sample_at"]):
        return
    row.update(sample_columns(at, sample.values))


def sample_columns(at: int, values: Any) -> Row:
    """The columns that the newest sample fills."""
    hot = hottest(values)
    total, free = _bytes(values, "swap_total_bytes"), _bytes(values, "swap_free_bytes")
    return {
        "sample_at": at,
        "hottest_label": None if hot is None else hot[0],
        "hottest_celsius": None if hot is None else hot[1],
        "memory_total_bytes": _bytes(values, "mem_total_bytes"),
        "memory_available_bytes": _bytes(values, "mem_available_bytes"),
        "swap_used_bytes": None if total is None or free is None else total - free,
        "throttle": state_of_shares(values),
    }


def _bytes(values: Any, name: str) -> int | None:
    """The mean of a gauge of bytes; None where it is absent or cannot be one."""
    value = values.get(name)
    mean = value[0] if isinstance(value, (list, tuple)) else value
    return round(mean) if mean is not None and 0 <= mean <= MAX_INTEGER else None


def take_turn(row: Row, turn: Turn, at: int) -> None:
    """Take a turn in, where it ended last; `at` is its beginning."""
    ended = at + turn.duration_us
    if row["turn_at"] is not None and ended < row["turn_at"]:
        return
    row.update(
        turn_at=ended,
        turn_id=turn.id,
        turn_ending=turn.ending,
        turn_ttft_us=turn.ttft_us,
        turn_tpot_us=turn.tpot_us,
        runtime=turn.runtime,
        runtime_memory_bytes=turn.memory_end_bytes,
    )


def take_event(row: Row, event: Event, at: int) -> None:
    """Take the newest description of the device in; other events change nothing."""
    if event.event != DESCRIBED or (row["described_at"] is not None and at < row["described_at"]):
        return
    row.update(described_at=at, description=event.data)
