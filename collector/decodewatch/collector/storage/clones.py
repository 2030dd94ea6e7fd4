"""Two devices that use one id, as a cloned disk image makes them: noticed by what cannot be of one.

Of one device no two streams name the same stream before them, and no two boots run at once. What
is found is an event on the device's timeline, so that whoever looks at it can see it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select, tuple_
from sqlalchemy.engine import Connection

from decodewatch.collector.storage import sql
from decodewatch.collector.storage.arrivals import Delivery
from decodewatch.collector.storage.boots import Places
from decodewatch.collector.storage.rows import row_of
from decodewatch.collector.storage.streams import Entered
from decodewatch.shared import logs, tables
from decodewatch.shared.records import Event

_log = logs.get(__name__)

EVENT = "device_id_shared"
OVERLAP_US = 60_000_000
"""Two boots of one device may seem to overlap by so much: NTP steps clocks."""
_HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class _Found:
    """What showed it: the batch that did, and the two that cannot be of one device."""

    item: Delivery
    data: dict[str, str]


def notice(connection: Connection, entered: Entered, places: Places) -> None:
    """Look at a group of arrivals, whose devices are locked, and write the events."""
    for found in (*_streams(connection, entered.begun), *_boots(connection, entered, places)):
        batch, at = found.item.received.batch, found.item.message.received_at
        offset = places.of[batch.device, batch.boot].offset_us
        # The hour in the id makes it one an hour, whoever writes it.
        event = Event(f"{EVENT}-{at // _HOUR_US}", at - offset, EVENT, data=found.data)
        table, row = row_of(event, batch.device, batch.boot, offset)
        sql.insert_new(connection, table, [row])
        _log.warning(
            "two devices use one id: is one a clone of the other?",
            every=60,
            device=batch.device,
            **found.data,
        )


def _streams(connection: Connection, begun: list[Delivery]) -> Iterator[_Found]:
    """Of streams that have just begun, those whose predecessor another one has too."""
    if not begun:
        return
    table = tables.stream
    columns = (table.c.device, table.c.previous, table.c.stream)
    keys = {(item.envelope.device, item.envelope.previous) for item in begun}
    some = select(*columns).where(tuple_(*columns[:2]).in_(list(keys)))
    rows = connection.execute(some.order_by(*columns)).all()
    for item in begun:
        own = item.envelope
        for device, previous, stream in rows:
            if (device, previous) == (own.device, own.previous) and stream != own.stream:
                data = {"stream": own.stream, "other_stream": stream, "previous": previous}
                yield _Found(item, data)
                break


def _boots(connection: Connection, entered: Entered, places: Places) -> Iterator[_Found]:
    """Of the boots of new batches, those that still ran when another had begun."""
    newest: dict[sql.Key, Delivery] = {}
    for item in entered.fresh:
        if isinstance(item, Delivery):
            newest[item.received.batch.device, item.received.batch.boot] = item
    until = {
        key: place.offset_us + place.clock_t - OVERLAP_US
        for key, place in places.of.items()
        if key in newest and place.clock_t is not None
    }
    if not until:
        return
    table = tables.boot
    columns = (table.c.device, table.c.boot, table.c.offset_us)
    others = select(*columns).where(
        table.c.device.in_({device for device, _ in until}),
        table.c.placed == "clock",
        table.c.offset_us < max(until.values()),
    )
    rows = connection.execute(others.order_by(*columns)).all()
    for (device, boot), ran in until.items():
        began = places.of[device, boot].offset_us
        for other_device, other, offset in rows:
            if other_device == device and other != boot and began <= offset < ran:
                yield _Found(newest[device, boot], {"boot": boot, "other_boot": other})
                break
