"""The store: groups of arrivals into the database, each group in one transaction.

What a transaction holds is all of it or none: the batches' numbers in the delivery ledger, their
records, the boots' places, the devices' current state, the dead letters. Whoever calls may
acknowledge what `write` returned, and nothing else.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from sqlalchemy import Engine, Table, bindparam, delete, exc, func, insert, select
from sqlalchemy.engine import Connection

from decodewatch.collector.errors import ServerError
from decodewatch.collector.storage import boots, clones, devices, ledger, sql, streams
from decodewatch.collector.storage.arrivals import Arrival, Delivery, Envelope, Heard, Letter
from decodewatch.collector.storage.rows import Row, row_of
from decodewatch.shared import logs, tables
from decodewatch.shared.ids import uuid7
from decodewatch.shared.wire import Acknowledged

_log = logs.get(__name__)

_TRIM_EVERY = 100  # dead letters between two trims; the table is over its bound by so many at most
_TRIM_STEP = 1000  # rows a trim takes away at most, so that it never holds the database for long


class RetryLater(ServerError):
    """The database cannot be written now; nothing was stored, and the same may work later."""


@dataclass(slots=True)
class Tally:
    """What arrivals came to. `stored` and `duplicate` are batches, `refused` are records."""

    stored: int = 0
    duplicate: int = 0
    records: int = 0
    refused: int = 0
    letters: int = 0
    statuses: int = 0

    def add(self, other: "Tally") -> None:
        """Add what other arrivals came to."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(slots=True)
class Written:
    """What is committed: what it came to, and what each device may be told."""

    tally: Tally = field(default_factory=Tally)
    numbers: dict[tuple[str, str], ledger.Ranges] = field(default_factory=dict)

    def add(self, other: "Written") -> None:
        """Add what other arrivals came to."""
        self.tally.add(other.tally)
        for key, ranges in other.numbers.items():
            for first, last in ranges:
                self.numbers[key] = ledger.add(self.numbers.get(key, ()), first, last)

    def acknowledge(self, envelope: Envelope) -> None:
        """Note that a batch may be acknowledged."""
        key = (envelope.device, envelope.stream)
        self.numbers[key] = ledger.add(self.numbers.get(key, ()), envelope.number, envelope.number)

    def by_device(self) -> dict[str, list[Acknowledged]]:
        """The acknowledgements, one list a device."""
        found: dict[str, list[Acknowledged]] = {}
        for (device, stream), ranges in self.numbers.items():
            found.setdefault(device, []).append(Acknowledged(stream, ranges))
        return found


class Store:
    """Writes arrivals. One thread uses it."""

    def __init__(self, engine: Engine, *, letter_rows: int, letter_bytes: int) -> None:
        """Keep at most about `letter_rows` dead letters, each with `letter_bytes` of payload."""
        self._engine = engine
        self._letter_rows = letter_rows
        self._letter_bytes = letter_bytes
        self._letters_since_trim = _TRIM_EVERY
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        self._file = None if file is None else Path(file)
        self._identity = self._look()

    def write(self, arrivals: Sequence[Arrival]) -> Written:
        """Store a group in one transaction, or one by one where one of them spoils it.

        Raises RetryLater where the database cannot be written now (what a part of the group may
        have stored is then found to be there when it is written again), and ServerError where it
        is not the same database any more.
        """
        if self._look() != self._identity:
            # The open file would take everything in, and go with its last connection.
            raise ServerError(f"database: {self._file} was removed or replaced while it was in use")
        try:
            tally = self._attempt(arrivals)
        except exc.SQLAlchemyError as error:
            if not _concerns_one(error):
                raise RetryLater(f"database: {_short(error)}") from None
            return self._one_by_one(arrivals, error)
        except Exception as error:
            # A defect of this program that one batch meets must cost that batch alone: its device
            # would send it again and again, and nothing would be stored of any device.
            return self._one_by_one(arrivals, error)
        self._trim(tally.letters)
        written = Written(tally)
        for item in arrivals:
            if not isinstance(item, Heard) and item.envelope is not None:
                written.acknowledge(item.envelope)
        return written

    def _one_by_one(self, arrivals: Sequence[Arrival], error: Exception) -> Written:
        if len(arrivals) > 1:
            written = Written()
            for item in arrivals:
                written.add(self.write([item]))
            return written
        (item,) = arrivals
        why = f"{type(error).__name__}: {_short(error)}"
        if isinstance(item, Letter):
            raise ServerError(f"database: a dead letter cannot be stored: {why}") from error
        trace = "".join(traceback.format_exception(error))
        _log.error("batch cannot be stored", every=10, topic=item.message.topic, trace=trace)
        envelope = None if isinstance(item, Heard) else item.envelope
        return self.write([Letter(item.message, _device(item), f"not storable: {why}", envelope)])

    def _look(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _attempt(self, arrivals: Sequence[Arrival]) -> Tally:
        with self._engine.begin() as connection:
            entered = streams.enter(connection, arrivals)
            fresh = entered.fresh
            tally = Tally(duplicate=entered.duplicates)
            places = boots.place_all(connection, _readings(arrivals))
            states = devices.lock(connection, arrivals)
            clones.notice(connection, entered, places)
            for item in fresh:
                _count(tally, item)
            _write_records(connection, fresh, places)
            devices.write(connection, states, arrivals, fresh, places)
            letters = [self._letter(item) for item in fresh if _is_letter(item)]
            if letters:
                connection.execute(insert(tables.dead_letter), letters)
        return tally

    def _letter(self, item: Arrival) -> Row:
        if isinstance(item, Delivery):
            refused = item.received.refused
            total = len(refused) + len(item.received.batch.records)
            reason = f"{len(refused)} of {total} records refused: {'; '.join(refused)}"
            item = Letter(item.message, item.received.batch.device, reason)
        assert isinstance(item, Letter)
        return {
            "device": item.device,
            "letter": uuid7(),
            "received_at": item.message.received_at,
            "topic": item.topic,
            "reason": item.short_reason,
            "size": item.message.size,
            "payload": item.message.payload[: self._letter_bytes],
        }

    def _trim(self, letters: int) -> None:
        """Now and then, take the oldest dead letters beyond the bound away, in small steps."""
        self._letters_since_trim += letters
        if not letters or self._letters_since_trim < min(_TRIM_EVERY, self._letter_rows // 10 + 1):
            return
        table = tables.dead_letter
        keys = (table.c.device, table.c.letter)
        oldest = select(*keys).order_by(table.c.received_at, table.c.letter)
        try:
            while True:
                with self._engine.begin() as connection:
                    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
                    excess = min(count - self._letter_rows, _TRIM_STEP)
                    if excess <= 0:
                        break
                    some = connection.execute(oldest.limit(excess)).all()
                    connection.execute(
                        delete(table).where(keys[0] == bindparam("a"), keys[1] == bindparam("b")),
                        [{"a": device, "b": letter} for device, letter in some],
                    )
            self._letters_since_trim = 0
        except exc.SQLAlchemyError as error:
            # What was written is committed all the same; the next letter tries again.
            _log.warning("dead letters not trimmed", every=60, why=_short(error))


def _concerns_one(error: exc.SQLAlchemyError) -> bool:
    """Whether the cause is a value that was to be written, not the state of the database."""
    if isinstance(error, exc.DBAPIError):
        return isinstance(error, (exc.IntegrityError, exc.DataError))
    return isinstance(error, exc.StatementError)


def _short(error: Exception) -> str:
    """The cause alone: SQLAlchemy's own text goes on with the statement and all its values."""
    cause = error.orig if isinstance(error, exc.StatementError) and error.orig else error
    return str(cause).partition("\n")[0][:300]


def _device(item: Delivery | Heard) -> str:
    return item.status.device if isinstance(item, Heard) else item.received.batch.device


def _is_letter(item: Arrival) -> bool:
    return isinstance(item, Letter) or (isinstance(item, Delivery) and bool(item.received.refused))


def _count(tally: Tally, item: Arrival) -> None:
    tally.letters += _is_letter(item)
    if isinstance(item, Heard):
        tally.statuses += 1
    elif isinstance(item, Delivery):
        tally.stored += 1
        tally.records += len(item.received.batch.records)
        tally.refused += len(item.received.refused)


def _readings(arrivals: Sequence[Arrival]) -> list[boots.Reading]:
    """Every reading of a device's clocks; duplicates bear one too, and a boot to place."""
    found = []
    for item in arrivals:
        at = item.message.received_at
        if isinstance(item, Delivery):
            batch = item.received.batch
            found.append(boots.Reading(batch.device, batch.boot, batch.clock, at))
        elif isinstance(item, Heard):
            boot, clock = item.status.boot, item.status.clock
            if boot is not None and clock is not None:
                found.append(boots.Reading(item.status.device, boot, clock, at))
    return found


def _write_records(connection: Connection, fresh: Sequence[Arrival], places: boots.Places) -> None:
    by_table: dict[Table, list[Row]] = {}
    for item in fresh:
        if not isinstance(item, Delivery):
            continue
        batch = item.received.batch
        offset = places.of[batch.device, batch.boot].offset_us
        for record in batch.records:
            table, row = row_of(record, batch.device, batch.boot, offset)
            by_table.setdefault(table, []).append(row)
    for table, rows in by_table.items():
        if table is tables.runtime:
            sql.upsert_newer(connection, table, rows, by="t")
        else:
            sql.insert_new(connection, table, rows)
