"""The current state of the devices of a group of arrivals, in the table `device_state`."""

from collections.abc import Sequence

from sqlalchemy import desc, select
from sqlalchemy.engine import Connection

from decodewatch.collector.storage import sql, state
from decodewatch.collector.storage.arrivals import Arrival, Delivery, Heard, Letter
from decodewatch.collector.storage.boots import Places
from decodewatch.collector.storage.rows import Row
from decodewatch.shared import tables
from decodewatch.shared.devices import DESCRIBED
from decodewatch.shared.records import Event, Sample, Turn


def lock(connection: Connection, arrivals: Sequence[Arrival]) -> dict[sql.Key, Row]:
    """The rows of the devices that arrivals come from, by device, locked.

    Duplicates count here: they too show that the device is there. Letters do not: whoever wrote
    them need not be a device.
    """
    defaults: dict[sql.Key, Row] = {}
    for item in arrivals:
        device = _device(item)
        if device is not None:
            defaults.setdefault((device,), state.unseen(device, item.message.received_at))
    return sql.locked(connection, tables.device_state, defaults)


def _device(item: Arrival) -> str | None:
    if isinstance(item, Letter):
        return None
    return item.status.device if isinstance(item, Heard) else item.received.batch.device


def write(
    connection: Connection,
    rows: dict[sql.Key, Row],
    arrivals: Sequence[Arrival],
    fresh: Sequence[Arrival],
    places: Places,
) -> None:
    """Take arrivals into the locked rows, and save these. The records are in the tables."""
    boots = {key: row["boot"] for key, row in rows.items()}
    for item in arrivals:
        if isinstance(item, Heard):
            row = rows[(item.status.device,)]
            state.hear(row, item.status, item.message.received_at, retained=item.message.retained)
        elif isinstance(item, Delivery):
            row = rows[(item.received.batch.device,)]
            row["last_received_at"] = max(row["last_received_at"], item.message.received_at)
            row["boot"] = row["boot"] or item.received.batch.boot
    for item in fresh:
        if isinstance(item, Delivery):
            _take(rows[(item.received.batch.device,)], item, places)
    for key, row in rows.items():
        placement = places.of.get((row["device"], row["boot"] or ""))
        if placement is not None:
            row["clock_synchronised"] = placement.placed == "clock"
        elif row["boot"] != boots[key]:
            row["clock_synchronised"] = None
        if row["device"] in places.moved:
            row.update(_newest(connection, row["device"]))
    sql.save(connection, tables.device_state, list(rows.values()))


def _take(row: Row, item: Delivery, places: Places) -> None:
    batch = item.received.batch
    offset = places.of[batch.device, batch.boot].offset_us
    for record in batch.records:
        if isinstance(record, Sample):
            state.take_sample(row, record, record.t + offset)
        elif isinstance(record, Turn):
            state.take_turn(row, record, record.t + offset)
        elif isinstance(record, Event):
            state.take_event(row, record, record.t + offset)


def _newest(connection: Connection, device: str) -> Row:
    """The columns of the newest sample, turn and description, found anew after a boot was moved."""
    found: Row = dict.fromkeys(
        state.SAMPLE_COLUMNS + state.TURN_COLUMNS + state.DESCRIPTION_COLUMNS
    )
    sample, turn, event = tables.sample, tables.turn, tables.event
    of_system = select(sample.c.at, sample.c["values"]).where(
        sample.c.device == device, sample.c.runtime == ""
    )
    newest = connection.execute(of_system.order_by(desc(sample.c.at)).limit(1)).first()
    if newest is not None:
        found.update(state.sample_columns(newest[0], newest[1]))
    ended = turn.c.at + turn.c.duration_us
    columns = (
        ended, turn.c.turn, turn.c.ending, turn.c.ttft_us, turn.c.tpot_us, turn.c.runtime,
        turn.c.memory_end_bytes,
    )  # fmt: skip
    last = connection.execute(
        select(*columns).where(turn.c.device == device).order_by(desc(ended)).limit(1)
    ).first()
    if last is not None:
        found.update(zip(state.TURN_COLUMNS, last, strict=True))
    described = connection.execute(
        select(event.c.at, event.c.data)
        .where(event.c.device == device, event.c.event == DESCRIBED)
        .order_by(desc(event.c.at))
        .limit(1)
    ).first()
    if described is not None:
        found.update(zip(state.DESCRIPTION_COLUMNS, described, strict=True))
    return found
