"""The store: groups of arrivals into the database, each group in one transaction.

What a transaction holds is all of it or none: the batches' numbers in the delivery ledger, their
records, the boots' places, the devices' current state, the dead letters. Whoever calls may
acknowledge what `write` returned, and nothing else.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from sqlalchemy import Engine, delete, exc, func, select
from sqlalchemy.engine import Connection

from decodewatch.collector import boots, devices, ledger, sql, streams
from decodewatch.collector.arrivals import Arrival, Delivery, Envelope, Heard, Letter
from decodewatch.collector.errors import ServerError
from decodewatch.collector.rows import Row, row_of
from decodewatch.shared import logs, tables
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Runtime
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

        Raises RetryLater where the database cannot be written now, with nothing stored of what is
        not in the database already; ServerError where it is not the same database any more.
        """
        if self._look() != self._identity:
            # The open file would take everything in and lose it with the last connection.
            raise ServerError(f"database: {self._file} was removed or replaced while it was in use")
        try:
            written = self._attempt(arrivals)
        except exc.SQLAlchemyError as error:
            if not _concerns_one(error):
                raise RetryLater(f"database: {_short(error)}") from None
            written = self._one_by_one(arrivals, error)
        except Exception as error:
            # A defect of this program that one batch meets must cost that batch alone: its device
            # would send it again, and again, and nothing would be stored of any device.
            written = self._one_by_one(arrivals, error)
        self._trim(written.tally.letters)
        return written

    def _look(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = os.stat(self._file)  # noqa: PTH116  every group; a Path costs three times that
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _one_by_one(self, arrivals: Sequence[Arrival], error: Exception) -> Written:
        if len(arrivals) == 1:
            _log.error("batch spoils its transaction", every=10, why=_short(error), kind=type(error).__name__)
            return self._attempt_letter(_spoiled(arrivals[0], error))
        written = Written()
        for item in arrivals:
            one = self.write([item])
            written.tally.add(one.tally)
            for envelope in (item.envelope,) if not isinstance(item, Heard) else ():
                if envelope is not None:
                    written.acknowledge(envelope)
        return written
