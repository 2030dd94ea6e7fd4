"""The spool: batches that no collector has acknowledged yet, in one SQLite file.

Each opening begins a new stream; its batches are numbered from 1 in memory, so that no power loss
can make a number be used twice. Only one thread may use a spool.
"""

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from decodewatch.agent.spool import batching, thinning
from decodewatch.agent.spool.database import PAGE_BYTES, WAL_BYTES, Database, is_corrupt, is_io
from decodewatch.agent.spool.eviction import Eviction, Freed
from decodewatch.agent.spool.files import SpoolError, SpoolFiles
from decodewatch.agent.spool.losses import EVICTED, Losses
from decodewatch.agent.spool.room import Room
from decodewatch.shared import logs
from decodewatch.shared.errors import shown
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Event, Record
from decodewatch.shared.wire import Acknowledged, Batch, Clock

__all__ = ["Spool", "SpoolError", "Stored"]

log = logs.get(__name__)
_T = TypeVar("_T")

LIMIT_BYTES = 64 * 1024 * 1024
_BALLAST_BYTES = 512 * 1024
_READ_BYTES = 128 * 1024
# What the tables take when no batch is in them.
_EMPTY_PAGES = 12
# How much of the spool one append works through to make room, before it says that it could not.
_ROOM_STEPS = 64
# Acknowledged batches are deleted with the next append, or when there are so many of them.
_LAZY_DELETES = 256
_MAX_LAZY_DELETES = 4096
# One write reserves so many connection numbers, or so many batches that may be sent.
_RESERVED = 64
_CONNECTION = "connection"
_SENT = "sent"
_DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Stored:
    """One batch that waits. `place` orders all batches by their making, across streams."""

    stream: str
    number: int
    payload: bytes
    place: int


class Spool:
    """See the module; made by `open`. Every method that writes may raise SpoolError."""

    def __init__(
        self, files: SpoolFiles, device: str, boot: str, pages: int, clock: Callable[[], Clock]
    ) -> None:
        """`open` is the way to make one; `pages` bounds the database."""
        self.stream = ""
        self.previous: str | None = None
        """The stream of the opening before; None where there was none, or it is not known."""
        self.set_aside: Path | None = None
        """Where the last corrupt spool was moved, since this one was opened."""
        self.removals = 0
        """How often somebody removed the spool's files, since this one was opened."""
        self._files = files
        self._device = device
        self._boot = boot
        self._limit_pages = pages
        self._clock = clock
        self._open = False
        self._base = 0
        self._number = 0
        self._batches = 0
        self._bytes = 0
        self._gone: set[int] = set()
        self._acknowledged_lately = False
        self._connection = self._connection_reserved = 0
        self._sent = self._sent_reserved = self._handed = 0
        self._database: Database
        self._room: Room
        self._losses: Losses
        self._eviction: Eviction

    @classmethod
    def open(
        cls,
        file: Path,
        *,
        device: str,
        boot: str,
        limit_bytes: int = LIMIT_BYTES,
        clock: Callable[[], Clock],
    ) -> "Spool":
        """Open or make the spool and begin a new stream.

        `limit_bytes` bounds the database, its write-ahead log and the ballast together. A file that
        is corrupt, is no spool or was filled by another device is set aside. Raises SpoolError
        where the path cannot be used, is in use, or the disk has no room even for that.
        """
        ballast = min(_BALLAST_BYTES, limit_bytes // 8)
        pages = (limit_bytes - ballast - min(WAL_BYTES, limit_bytes // 4)) // PAGE_BYTES
        files = SpoolFiles(file, ballast)
        files.take()
        spool = cls(files, device, boot, pages, clock)
        try:
            spool._guarded(lambda: None)
        except BaseException:
            files.give_up()
            raise
        return spool

    def _begin(self) -> None:
        """Open the database and begin a stream in it."""
        self._database = database = Room.open_database(self._files)
        self._room = room = Room(database, self._files, self._limit_pages, self._make_room)
        try:
            room.write(database.prepare)
            self._check_device()
            kept = database.meta(_CONNECTION)
            self._connection = max(self._connection, self._seed(), int(kept) if kept else 0)
            self._connection_reserved = self._connection + _RESERVED
            self._sent = self._sent_reserved = int(database.meta(_SENT) or 0)
            self._handed = 0
            self._losses = Losses(database)
            self._eviction = Eviction(database, self._losses)
            self._batches, self._bytes = self._count()
            room.write(self._begin_stream)
        except BaseException:
            database.close()
            raise
        self._number = 0
        self._gone.clear()
        self._open = True
        self._files.note_places()
        if not self._files.make_ballast():
            room.tighten()

    def _check_device(self) -> None:
        """Raises sqlite3.DatabaseError where another device filled the spool, as in the copy of a
        disk image: its batches name that device, which sends them itself."""
        owner = self._database.meta(_DEVICE)
        if owner not in (None, self._device):
            raise sqlite3.DatabaseError(
                f"file is not a database of this device: {shown(owner)} filled it; accepted is "
                f"{self._device}"
            )

    def _seed(self) -> int:
        """What the connection numbers begin with where none is kept.

        Milliseconds grow faster than connections are made: should the spool be lost with the number
        in it, the next is still higher. Those of the wall clock only where it is vouched for: a
        wrong one could be so far ahead that no right one ever caught up. Else those since boot; the
        collector takes a lower number from another boot.
        """
        clock = self._clock()
        return (clock.wall if clock.synchronised else clock.t) // 1000

    def _count(self) -> tuple[int, int]:
        """Batches and their bytes. Reads all pages but overflow: damage shows here."""
        try:
            count, size = self._database.query(
                "SELECT count(*), coalesce(sum(length(payload)), 0) FROM batch"
            )[0]
        except sqlite3.OperationalError as error:
            raise sqlite3.DatabaseError(f"database disk image is malformed: {error}") from None
        return count, size

    def _begin_stream(self) -> None:
        query = self._database.query
        last = query("SELECT stream, base FROM stream ORDER BY base DESC LIMIT 1")
        highest = query("SELECT coalesce(max(id), 0) FROM batch")[0][0]
        self.previous = last[0][0] if last else None
        # Above all that was, also in a spool that was set aside a moment ago: places never repeat.
        below = max(last[0][1] if last else 0, self._base + self._number)
        self._base = max(below + 1, highest)
        self.stream = uuid7()
        query(
            "DELETE FROM stream WHERE NOT EXISTS (SELECT 1 FROM batch WHERE id > base AND id <="
            " coalesce((SELECT min(later.base) FROM stream AS later"
            " WHERE later.base > stream.base), ?))",
            self._base,
        )
        query("INSERT INTO stream VALUES (?, ?, ?)", self._base, self.stream, self.previous)
        self._database.set_meta(_CONNECTION, str(self._connection_reserved))
        self._database.set_meta(_DEVICE, self._device)

    # What the agent's main loop calls.

    def append(self, records: Sequence[Record]) -> None:
        """Store records in one transaction, as one batch or several; durable on return.

        Raises SpoolError where they cannot be stored; then none of them is.
        """
        if not records:
            return
        self._guarded(lambda: self._append(records))
        if not self._files.in_place():
            raise SpoolError(f"spool: {self._files.file} was removed while it was written")

    def oldest(self, after: int | None, limit: int) -> list[Stored]:
        """The batches that wait behind a place (None: all), in the order of their making.

        At most `limit`, and fewer where they are large. A batch that has rotted on the disk is
        evicted instead. Raises SpoolError.
        """
        return self._guarded(lambda: self._oldest(after or 0, limit), reading=True)

    def get(self, place: int) -> Stored | None:
        """The batch at a place, as it is by now; None where it does not wait any more."""
        found = self.oldest(place - 1, 1)
        return found[0] if found and found[0].place == place else None

    def acknowledge(self, acknowledged: Iterable[Acknowledged]) -> None:
        """Take batches that the collector has committed out of what waits.

        They are deleted with the next append, when there are many, or at `close`; unknown streams
        and numbers are ignored. Raises SpoolError.
        """
        wanted = list(acknowledged)
        self._acknowledged_lately = self._acknowledged_lately or bool(wanted)
        self._guarded(lambda: self._acknowledge(wanted), reading=True)

    def evictions(self) -> list[Event]:
        """Events of what went and was not reported yet, to be appended as records by the caller.

        None before an acknowledgement has come: until somebody listens, ranges grow and meet, and
        one event tells what many would have told.
        """
        if not self._acknowledged_lately:
            return []
        self._acknowledged_lately = False
        return self._guarded(lambda: self._losses.report(self._clock().t), reading=True)

    def next_connection(self) -> int:
        """A number higher than any before, also those of earlier openings."""
        self._connection += 1
        if self._connection > self._connection_reserved:
            reserved = self._connection + _RESERVED
            try:
                self._guarded(lambda: self._keep(_CONNECTION, reserved))
            except SpoolError as error:
                # A disk that takes no more must not keep from the collector what is on it.
                log.warning("connection number not kept", every=3600, reason=str(error))
            self._connection_reserved = reserved
        return self._connection

    def depth(self) -> tuple[int, int]:
        """How many batches wait, and how many bytes of payload they are."""
        return self._batches, self._bytes

    def close(self) -> None:
        """Delete what was acknowledged, close the file, and let another agent have it."""
        try:
            self._guarded(lambda: self._room.write(self._delete_gone))
        except SpoolError as error:
            # They are sent again after the next start, and acknowledged again.
            log.warning("acknowledged batches not deleted", reason=str(error))
        if self._open:
            self._open = False
            self._database.close()
            if self._room.tight:
                # The write-ahead log has just given its blocks back: keep them for the next start.
                self._files.make_ballast()
        self._files.give_up()

    # How it is done.

    def _append(self, records: Sequence[Record]) -> None:
        first = Batch(
            device=self._device,
            stream=self.stream,
            previous=self.previous,
            number=self._number + 1,
            boot=self._boot,
            clock=self._clock(),
            records=(),
        )
        made = batching.encode(records, first)
        reported = [
            record.id for record in records if isinstance(record, Event) and record.event == EVICTED
        ]
        rows = [
            (
                self._base + number,
                thinning.detail(one.records),
                len(one.records),
                zlib.crc32(one.payload),
                one.payload,
            )
            for number, one in enumerate(made, first.number)
        ]
        size = sum(len(one.payload) for one in made)

        def insert() -> None:
            self._delete_gone()
            self._losses.forget(reported)
            self._database.many("INSERT INTO batch VALUES (?, ?, ?, ?, ?)", rows)

        pages = size // (PAGE_BYTES - 100) + 2 * len(rows) + 4
        self._room.loosen()
        self._make_room(pages)
        self._room.write(insert, pages)
        self._gone.clear()
        self._losses.forgotten(reported)
        self._number += len(rows)
        self._batches += len(rows)
        self._bytes += size
        # What was appended is stored by now: nothing below may look as if it were not.
        self._room.shrink()

    def _oldest(self, after: int, limit: int) -> list[Stored]:
        found: list[Stored] = []
        size = 0
        while len(found) < limit and size < _READ_BYTES:
            rows = self._database.query(
                "SELECT id, crc, payload, base, stream FROM batch, stream WHERE id > ?"
                " AND base = (SELECT max(base) FROM stream WHERE base < id) ORDER BY id LIMIT 1",
                after,
            )
            if not rows:
                break
            place, crc, payload, base, stream = rows[0]
            after = place
            if place in self._gone:
                continue
            if zlib.crc32(payload) != crc:
                self._lose_rotten(place, len(payload))
                continue
            found.append(Stored(stream, place - base, payload, place))
            size += len(payload)
        if found:
            self._handed = max(self._handed, found[-1].place)
            self._mark_sent(found[-1].place)
        return found

    def _mark_sent(self, place: int) -> None:
        """Remember that batches up to here may be with a collector; see `eviction`."""
        self._sent = max(self._sent, place)
        if self._sent > self._sent_reserved:
            try:
                self._room.write(
                    lambda: self._database.set_meta(_SENT, str(self._sent + _RESERVED))
                )
            except (sqlite3.Error, SpoolError) as error:
                log.warning("mark of what was sent not kept", every=3600, reason=str(error))
                return
            self._sent_reserved = self._sent + _RESERVED

    def _lose_rotten(self, place: int, payload_bytes: int) -> None:
        log.error("batch in the spool has rotted", place=place, bytes=payload_bytes)
        self._batches -= 1
        self._bytes -= payload_bytes
        try:
            self._room.write(lambda: self._eviction.evict(place))
        except (sqlite3.Error, SpoolError) as error:
            log.warning("rotten batch not evicted", reason=str(error))
            self._gone.add(place)

    def _acknowledge(self, acknowledged: Sequence[Acknowledged]) -> None:
        for item in acknowledged:
            bounds = self._bounds(item.stream)
            if bounds is None:
                continue
            base, end = bounds
            for first, last in item.ranges:
                self._acknowledge_range(base + first, min(base + last, end))

    def _bounds(self, stream: str) -> tuple[int, int] | None:
        """The base of a stream and the last place that a collector can have seen; None where none
        of it waits. Whoever acknowledges what was never sent knows nothing of it."""
        if stream == self.stream:
            return self._base, self._handed
        rows = self._database.query(
            "SELECT base, (SELECT min(later.base) FROM stream AS later"
            " WHERE later.base > stream.base) FROM stream WHERE stream = ?",
            stream,
        )
        if not rows:
            return None
        base, end = rows[0]
        return base, min(end, max(self._sent, self._sent_reserved))

    def _acknowledge_range(self, first: int, last: int) -> None:
        while first <= last:
            rows = self._database.query(
                "SELECT id, length(payload) FROM batch WHERE id BETWEEN ? AND ?"
                " ORDER BY id LIMIT ?",
                *(first, last, _LAZY_DELETES),
            )
            if not rows:
                return
            for place, payload_bytes in rows:
                if place not in self._gone:
                    self._gone.add(place)
                    self._batches -= 1
                    self._bytes -= payload_bytes
            first = rows[-1][0] + 1
            if len(self._gone) >= _LAZY_DELETES:
                self._flush_gone()
            if len(self._gone) >= _MAX_LAZY_DELETES:
                return  # the disk takes no deletes now; the rest is sent and acknowledged again

    def _flush_gone(self) -> bool:
        """Delete what was acknowledged now; False where the disk does not take it."""
        try:
            self._room.write(self._delete_gone)
        except sqlite3.Error as error:
            if is_corrupt(error):
                raise
            log.warning("acknowledged batches not deleted", every=3600, reason=str(error))
            return False
        self._gone.clear()
        return True

    def _delete_gone(self) -> None:
        self._database.many("DELETE FROM batch WHERE id = ?", [(place,) for place in self._gone])

    def _keep(self, name: str, value: int) -> None:
        self._room.write(lambda: self._database.set_meta(name, str(value)))

    # Room, and its end.

    def _make_room(self, pages: int) -> None:
        """Evict until so many more pages fit. Raises SpoolError where they cannot."""
        room = self._room
        if not self._open or room.fits(pages):
            return
        if _EMPTY_PAGES + pages <= room.pages and self._flush_gone():
            for _ in range(_ROOM_STEPS):
                if room.fits(pages) or not self._evict():
                    break
        if not room.fits(pages):
            why = "its disk is full" if room.tight else "the limit is reached"
            raise SpoolError(
                f"spool: {self._files.file} has no room, {why}: {pages * PAGE_BYTES} bytes are "
                f"needed, {room.pages * PAGE_BYTES} allowed in all"
            )

    def _evict(self) -> bool:
        """One step of eviction; False where nothing is left."""
        freed: Freed | None = None

        def step() -> None:
            nonlocal freed
            freed = self._eviction.step(max(self._sent, self._sent_reserved))

        self._room.write(step)
        if freed is None:
            return False
        self._batches -= freed.batches
        self._bytes -= freed.payload_bytes
        return True

    def _guarded(self, work: Callable[[], _T], *, reading: bool = False) -> _T:
        """Do some work; where the spool turns out to be corrupt, once more on a new one.

        `reading` says that a refusal of the operating system means a part that cannot be read.
        """
        try:
            return self._attempt(work)
        except sqlite3.Error as error:
            if not is_corrupt(error) and not (reading and is_io(error)):
                raise self._failure(error) from None
            self._replace(error)
        try:
            return self._attempt(work)
        except sqlite3.Error as error:
            raise self._failure(error) from None

    def _attempt(self, work: Callable[[], _T]) -> _T:
        if self._open and not self._files.in_place():
            self._let_go()
        if not self._open:
            self._files.take()
            self._begin()
        return work()

    def _let_go(self) -> None:
        """Somebody removed or replaced the files: leave what is open, and begin again at the path,
        where by now another agent may be."""
        log.error("spool removed while in use, a new one begins", file=self._files.file)
        self._open = False
        self.removals += 1
        # SQLite leaves alone what stands at the path of a database that was moved.
        self._database.close()
        self._files.give_up()

    def _replace(self, error: sqlite3.Error) -> None:
        """Set a corrupt spool aside; the next attempt begins a new one."""
        if self._open:
            self._open = False
            self._database.close()
        self.set_aside = self._files.set_aside()
        log.error("spool not usable, set aside", reason=str(error), moved_to=self.set_aside)

    def _failure(self, error: sqlite3.Error) -> SpoolError:
        return SpoolError(f"spool: {self._files.file}: {error}")
