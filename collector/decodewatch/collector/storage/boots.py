"""The boots of a group of arrivals: their places in the calendar, in the table `boot`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Table, Update, update
from sqlalchemy.engine import Connection

from decodewatch.collector.storage import sql
from decodewatch.collector.storage.placement import Placement, place
from decodewatch.collector.storage.rows import Row
from decodewatch.shared import logs, tables
from decodewatch.shared.wire import Clock

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the clocks of a device in one boot, and when it was received."""

    device: str
    boot: str
    clock: Clock
    received_at: int


@dataclass(frozen=True, slots=True)
class Places:
    """Where the boots of a group lie, and the devices of which a boot was moved."""

    of: dict[sql.Key, Placement]
    moved: frozenset[str]


def place_all(connection: Connection, readings: Sequence[Reading]) -> Places:
    """Place boots by what their clocks said, and move the records of those that were elsewhere."""
    defaults: dict[sql.Key, Row] = {}
    for item in readings:
        first = place(None, item.clock, item.received_at)
        defaults.setdefault((item.device, item.boot), _row(item, first))
    rows = sql.locked(connection, tables.boot, defaults)
    before = {key: _placement(row) for key, row in rows.items()}
    after = dict(before)
    for item in readings:
        key: sql.Key = (item.device, item.boot)
        after[key] = place(after[key], item.clock, item.received_at)
    changed = [key for key in rows if after[key] != before[key]]
    moved = [key for key in changed if after[key].offset_us != before[key].offset_us]
    for key in moved:
        _move(connection, key, before[key], after[key])
    sql.save(connection, tables.boot, [rows[key] | _columns(after[key]) for key in changed])
    return Places(after, frozenset(device for device, _ in moved))


def _row(item: Reading, placement: Placement) -> Row:
    return {
        "device": item.device,
        "boot": item.boot,
        **_columns(placement),
        "first_received_at": item.received_at,
    }


def _columns(placement: Placement) -> Row:
    return {
        "offset_us": placement.offset_us,
        "placed": placement.placed,
        "clock_t": placement.clock_t,
    }


def _placement(row: Row) -> Placement:
    return Placement(row["offset_us"], row["placed"], row["clock_t"])


def _move(connection: Connection, key: sql.Key, before: Placement, after: Placement) -> None:
    device, boot = key
    for table in tables.PLACED:
        connection.execute(_moved(table, device, boot, before, after))
    _log.info(
        "boot moved",
        device=device,
        boot=boot,
        by_s=round((after.offset_us - before.offset_us) / 1e6, 3),
        placed=after.placed,
    )


def _moved(table: Table, device: str, boot: str, before: Placement, after: Placement) -> Update:
    # No record lies before its boot: with this the index on (device, at) spares the older ones.
    return (
        update(table)
        .where(table.c.device == device, table.c.boot == boot, table.c.at >= before.offset_us)
        .values(at=table.c.t + after.offset_us)
    )
