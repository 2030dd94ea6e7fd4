"""What goes when the spool is full.

First the oldest samples and windows merge into longer ones, then they go; the newest keep their
detail longest. Turns, events, floors and runtimes go last, with their whole batch, oldest first.

Neighbouring batches are packed into one, under the last one's number, which then tells of the
others. That is done only where no collector can have seen any of them: one that had the old content
of that number would call the new one a duplicate, and drop it.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from decodewatch.agent.spool import thinning
from decodewatch.agent.spool.database import Database
from decodewatch.agent.spool.losses import Loss, Losses, told
from decodewatch.shared import logs, wire
from decodewatch.shared.errors import WireError
from decodewatch.shared.records import Record

log = logs.get(__name__)

# Which share of the spool, from its oldest end, a level of thinning reaches before the next level
# begins; when all have reached theirs, they go on to the end in turn.
_REACH = ((1, 0.875), (2, 0.75), (3, 0.5))
_STEP_GROUPS = 8
_GROUP_BATCHES = 16
_GROUP_BYTES = 16 * 1024
_GROUP_RECORDS = 512
_CURSORS = "thinned"
_ROW = "SELECT id, records, crc, payload FROM batch WHERE id = ?"


@dataclass(slots=True)
class Freed:
    """What one step took from the spool."""

    batches: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Row:
    place: int
    records: int
    crc: int
    payload: bytes

    def read(self) -> wire.Received | None:
        """The batch; None where it is rotten."""
        if zlib.crc32(self.payload) != self.crc:
            return None
        try:
            return wire.decode_batch(self.payload)
        except WireError as error:
            log.error("batch in the spool cannot be read", place=self.place, reason=str(error))
            return None


class Eviction:
    """Makes room in the spool's database in small steps. Every method is for a transaction."""

    def __init__(self, database: Database, losses: Losses) -> None:
        self._database = database
        self._losses = losses
        # How far each level has come: all batches up to this id have been looked at. Read at each
        # step, so that a transaction that fails takes it back with everything else.
        self._done: dict[int, int] = {}

    def step(self, sent: int) -> Freed | None:
        """Thin or evict some batches; None where the spool is empty.

        Batches up to the place `sent` may have been seen by a collector.
        """
        kept = self._database.meta(_CURSORS)
        places = map(int, kept.split()) if kept else (0,) * len(thinning.LEVELS)
        self._done = dict(zip(thinning.LEVELS, places, strict=True))
        freed = Freed()
        groups = 0
        while groups < _STEP_GROUPS and self._advance(sent, freed):
            groups += 1
        self._database.set_meta(_CURSORS, " ".join(map(str, self._done.values())))
        return freed if groups else None

    def evict(self, place: int) -> None:
        """Let one batch go."""
        self._evict(_Row(*self._database.query(_ROW, place)[0]), Freed())

    def _advance(self, sent: int, freed: Freed) -> bool:
        """Take a level one group further, or evict the oldest batch; False where there is none."""
        query = self._database.query
        low, high = query("SELECT (SELECT min(id) FROM batch), (SELECT max(id) FROM batch)")[0]
        if low is None:
            return False
        for whole in (False, True):
            for level, share in _REACH:
                end = high if whole else low + int((high - low) * share)
                group = self._group(level, end, sent)
                if group:
                    self._thin(level, group, freed)
                    return True
        self._evict(_Row(*query(_ROW, low)[0]), freed)
        return True

    def _group(self, level: int, end: int, sent: int) -> list[_Row]:
        """The next batches of one stream that may become one; none where the level is there."""
        done = self._done[level]
        if done >= end:
            return []
        query = self._database.query
        rows = query(
            "SELECT id FROM batch WHERE id > ? AND id <= ? AND detail >= ? ORDER BY id LIMIT 1",
            *(done, end, 1 if level == thinning.LEVELS[-1] else 0),
        )
        if not rows:
            self._done[level] = end
            return []
        first = rows[0][0]
        border = query("SELECT min(base) FROM stream WHERE base >= ?", first)[0][0]
        if first <= sent:
            end = first
        elif border is not None:
            end = min(end, border)
        group: list[_Row] = []
        records = size = 0
        # Sizes first: what is too much for the group is not read.
        for place, more_records, more_bytes in query(
            "SELECT id, records, length(payload) FROM batch WHERE id BETWEEN ? AND ?"
            " ORDER BY id LIMIT ?",
            *(first, end, _GROUP_BATCHES),
        ):
            records += more_records
            size += more_bytes
            if group and (size > _GROUP_BYTES or records > _GROUP_RECORDS):
                break
            group.append(_Row(*query(_ROW, place)[0]))
        self._done[level] = group[-1].place
        return group

    def _thin(self, level: int, group: Sequence[_Row], freed: Freed) -> None:
        """Make one smaller batch of a group, where that loses nothing but detail."""
        batches: list[wire.Batch] = []
        rows: list[_Row] = []
        for row in group:
            received = row.read()
            if received is None:
                self._evict(row, freed)
            elif received.refused:
                return  # made by another version of this program, which knows what it means
            else:
                rows.append(row)
                batches.append(received.batch)
        if not rows:
            return
        _, above = self._before(rows[0].place)
        last = batches[-1]
        loss = Loss(batches=len(rows) - 1)
        records: list[Record] = []
        for record in (record for batch in batches for record in batch.records):
            known = told(record, last.stream, above)
            if known is None:
                records.append(record)
            else:
                loss.add(known)
        kept = thinning.thin(records, level)
        if len(rows) == 1 and len(kept) == len(records):
            return
        if len(rows) == 1 and not kept:
            self._evict(rows[0], freed)
            return
        loss.records += len(records) - len(kept)
        first, end = (above + 1, last.number - 1) if loss.batches else (last.number, last.number)
        kept.append(loss.event(last.clock.t, last.stream, first, end))
        try:
            smaller = wire.encode_batch(dataclasses.replace(last, records=tuple(kept)))
        except WireError:
            return  # together they are more than a batch may hold
        saved = sum(len(row.payload) for row in rows) - len(smaller)
        if saved <= 0:
            return
        self._database.many("DELETE FROM batch WHERE id = ?", [(row.place,) for row in rows[:-1]])
        self._database.query(
            "UPDATE batch SET detail = ?, records = ?, crc = ?, payload = ? WHERE id = ?",
            *(thinning.detail(kept), len(kept), zlib.crc32(smaller), smaller, rows[-1].place),
        )
        freed.batches += len(rows) - 1
        freed.payload_bytes += saved

    def _evict(self, row: _Row, freed: Freed) -> None:
        received = row.read()
        base, above = self._before(row.place)
        number = row.place - base
        loss = Loss()
        if received is None:
            loss.add(Loss(batches=1, records=row.records))
        else:
            records: list[Record] = []
            for record in received.batch.records:
                known = told(record, received.batch.stream, above)
                if known is None:
                    records.append(record)
                else:
                    loss.add(known)
            loss.add_batch(records)
        self._database.query("DELETE FROM batch WHERE id = ?", row.place)
        # What lay between it and the batch before was packed into it, or has arrived.
        self._losses.note(base, above + 1, number, loss)
        freed.batches += 1
        freed.payload_bytes += len(row.payload)

    def _before(self, place: int) -> tuple[int, int]:
        """The base of a batch's stream, and the number of the stored batch before it (or 0)."""
        query = self._database.query
        base = query("SELECT max(base) FROM stream WHERE base < ?", place)[0][0]
        before = query("SELECT max(id) FROM batch WHERE id > ? AND id < ?", base, place)[0][0]
        return base, 0 if before is None else before - base
