"""The account of what the spool gave up: events that reach the collector like any other record."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from decodewatch.agent.spool.database import Database
from decodewatch.shared import logs
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Event, Record, Scalar, Turn

log = logs.get(__name__)

EVICTED = "spool_evicted"
"""No number of `stream` from `first` to `last` will arrive that has not arrived by now. `batches`
counts them, `records` the records that went with them or were merged into others, `turns` those
of them that were turns."""
THINNED = "spool_thinned"
"""Samples and windows of the batches `first` to `last` were merged into others or went: `records`
of them. The batches themselves still arrive."""
MAX_REPORTED = 64
"""Events of one report."""
_EVERY_S = 600


@dataclass(slots=True)
class Loss:
    """How much went."""

    batches: int = 0
    records: int = 0
    turns: int = 0

    def add(self, other: "Loss") -> None:
        """Take another loss into this one."""
        self.batches += other.batches
        self.records += other.records
        self.turns += other.turns

    def add_batch(self, records: Iterable[Record]) -> None:
        """Count a whole batch."""
        self.batches += 1
        for record in records:
            self.records += 1
            self.turns += isinstance(record, Turn)

    def event(
        self, t: int, stream: str, first: int, last: int, event_id: str | None = None
    ) -> Event:
        """What tells of it: EVICTED, or THINNED where no batch went."""
        data: dict[str, Scalar] = {
            "stream": stream,
            "first": first,
            "last": last,
            "records": self.records,
        }
        if self.batches:
            data |= {"batches": self.batches, "turns": self.turns}
        kind = EVICTED if self.batches else THINNED
        return Event(id=event_id or uuid7(), t=t, event=kind, data=data)


def told(record: Record, stream: str, above: int) -> Loss | None:
    """The loss that an event of the spool tells of, where it concerns only numbers above one."""
    if not isinstance(record, Event) or record.event not in (EVICTED, THINNED):
        return None
    first = record.data.get("first")
    if record.data.get("stream") != stream or not isinstance(first, int) or first <= above:
        return None
    counts = [record.data.get(name, 0) for name in ("batches", "records", "turns")]
    return Loss(*(count if isinstance(count, int) else 0 for count in counts))


class Losses:
    """Whole batches that went and were not reported yet, as ranges, in the table `loss`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reporting: set[str] = set()

    def note(self, base: int, first: int, last: int, loss: Loss) -> None:
        """Account for numbers of the stream with this base; ranges that meet become one.

        Inside the transaction that deletes them.
        """
        query = self._database.query
        stream = query("SELECT stream FROM stream WHERE base = ?", base)[0][0]
        loss = Loss(loss.batches, loss.records, loss.turns)
        for beyond, order in (("<=", "DESC"), (">=", "ASC")):
            rows = query(
                "SELECT rowid, event_id, first, last, batches, records, turns FROM loss"
                f" WHERE stream = ? AND first {beyond} ? ORDER BY first {order} LIMIT 1",
                *(stream, first),
            )
            if not rows or rows[0][1] in self._reporting:
                continue
            row, _, known_first, known_last, *counts = rows[0]
            low, high = min(first, known_first), max(last, known_last)
            between = "SELECT 1 FROM batch WHERE id BETWEEN ? AND ? LIMIT 1"
            if query(between, base + low, base + high):
                continue
            query("DELETE FROM loss WHERE rowid = ?", row)
            first, last = low, high
            loss.add(Loss(*counts))
        query(
            "INSERT INTO loss VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(uuid7(), stream, first, last, loss.batches, loss.records, loss.turns),
        )
        log.warning("batches evicted", every=_EVERY_S, stream=stream, first=first, last=last)

    def report(self, t: int) -> list[Event]:
        """What was not handed out yet, as events at `t`."""
        # Those handed out and not yet stored may stand before the others.
        limit = MAX_REPORTED + len(self._reporting)
        rows = self._database.query(f"SELECT * FROM loss ORDER BY rowid LIMIT {limit}")
        fresh = [row for row in rows if row[0] not in self._reporting][:MAX_REPORTED]
        self._reporting.update(row[0] for row in fresh)
        return [_event(t, *row) for row in fresh]

    def forget(self, reported: Iterable[str]) -> None:
        """Drop what the stored events with these ids reported. Inside their transaction."""
        self._database.many("DELETE FROM loss WHERE event_id = ?", [(one,) for one in reported])

    def forgotten(self, reported: Iterable[str]) -> None:
        """The transaction of `forget` is committed."""
        self._reporting.difference_update(reported)


def _event(t: int, event_id: str, stream: str, first: int, last: int, *counts: Any) -> Event:
    return Loss(*counts).event(t, stream, first, last, event_id)
