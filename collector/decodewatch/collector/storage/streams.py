"""The delivery ledgers of the streams that a group of arrivals concerns, in the table `stream`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from decodewatch.collector.storage import ledger, sql
from decodewatch.collector.storage.arrivals import Arrival, Delivery, Envelope, Heard
from decodewatch.collector.storage.ledger import Ledger
from decodewatch.collector.storage.rows import Row
from decodewatch.shared import tables
from decodewatch.shared.records import Event, Record
from decodewatch.shared.wire import MAX_NUMBER

_COUNTS = ("watermark", "highest", "received", "duplicate", "late", "missing", "evicted_count")


@dataclass(frozen=True, slots=True)
class Evicted:
    """A device's word that it gave up the batches `first` to `last` of one of its streams."""

    stream: str
    first: int
    last: int


def evicted_by(record: Record) -> Evicted | None:
    """What a `spool_evicted` event says; None for any other record, or one that says nothing."""
    if not isinstance(record, Event) or record.event != "spool_evicted":
        return None
    stream, first, last = (record.data.get(name) for name in ("stream", "first", "last"))
    if not isinstance(stream, str) or not 0 < len(stream) <= 64:
        return None
    if type(first) is not int or type(last) is not int or not 1 <= first <= last <= MAX_NUMBER:
        return None
    return Evicted(stream, first, last)


def _evictions(item: Arrival) -> list[Evicted]:
    if not isinstance(item, Delivery):
        return []
    return [one for one in map(evicted_by, item.received.batch.records) if one is not None]


def _envelope(item: Arrival) -> Envelope | None:
    return None if isinstance(item, Heard) else item.envelope


def _unseen(envelope: Envelope, stream: str, received_at: int) -> Row:
    return {
        "device": envelope.device,
        "stream": stream,
        "previous": None,
        "boot": envelope.boot,
        **_columns(Ledger()),
        "records": 0,
        "refused": 0,
        "first_received_at": received_at,
        "last_received_at": received_at,
    }


def _columns(known: Ledger) -> Row:
    return {
        **{name: getattr(known, name) for name in _COUNTS},
        "ranges": [list(pair) for pair in known.ranges],
        "evicted": [list(pair) for pair in known.evicted],
    }


def ledger_of(row: Mapping[str, object]) -> Ledger:
    """The ledger that a row of the table `stream` holds."""
    counts = {name: row[name] for name in _COUNTS}
    ranges, evicted = (_ranges(row[name]) for name in ("ranges", "evicted"))
    return Ledger(**counts, ranges=ranges, evicted=evicted)  # type: ignore[arg-type]


def _ranges(value: object) -> ledger.Ranges:
    assert isinstance(value, list)
    return tuple((first, last) for first, last in value)


@dataclass(frozen=True, slots=True)
class Entered:
    """The arrivals that are not duplicates, how many were, and what begins a stream of them.

    A stream begins here with its first batch that names the stream before it.
    """

    fresh: list[Arrival]
    duplicates: int
    begun: list[Delivery]


def enter(connection: Connection, arrivals: Sequence[Arrival]) -> Entered:
    """Enter batches in their ledgers.

    A letter whose envelope could be read counts as a batch: it was delivered, if in vain.
    """
    defaults: dict[sql.Key, Row] = {}
    for item in arrivals:
        envelope = _envelope(item)
        if envelope is None:
            continue
        for stream in (envelope.stream, *(one.stream for one in _evictions(item))):
            key = (envelope.device, stream)
            defaults.setdefault(key, _unseen(envelope, stream, item.message.received_at))
    rows = sql.locked(connection, tables.stream, defaults)
    fresh: list[Arrival] = []
    begun: list[Delivery] = []
    duplicates = 0
    for item in arrivals:
        envelope = _envelope(item)
        if envelope is not None and isinstance(item, Delivery):
            row = rows[envelope.device, envelope.stream]
            if row["previous"] is None and envelope.previous is not None:
                begun.append(item)
        if envelope is None or _enter(rows, item, envelope):
            fresh.append(item)
        else:
            duplicates += 1
    sql.save(connection, tables.stream, list(rows.values()))
    return Entered(fresh, duplicates, begun)


def _enter(rows: dict[sql.Key, Row], item: Arrival, envelope: Envelope) -> bool:
    row = rows[envelope.device, envelope.stream]
    after, new = ledger.arrive(ledger_of(row), envelope.number)
    row.update(_columns(after))
    row["last_received_at"] = max(row["last_received_at"], item.message.received_at)
    row["previous"] = row["previous"] or envelope.previous
    if not new:
        return False
    if isinstance(item, Delivery):
        row["records"] += len(item.received.batch.records)
        row["refused"] += len(item.received.refused)
        for one in _evictions(item):
            other = rows[envelope.device, one.stream]
            other.update(_columns(ledger.evict(ledger_of(other), one.first, one.last)))
    return True
