"""Records that wait in memory until the spool has them: bounded, and counted where they go."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from decodewatch.agent.spool.files import SpoolError
from decodewatch.shared import logs
from decodewatch.shared.records import Record, Sample, Turn, Window

log = logs.get(__name__)

MOST_RECORDS: Final = 4096
_FIRST_RETRY_US: Final = 1_000_000
_LONGEST_RETRY_US: Final = 30_000_000
_EVERY_S: Final = 60.0


def weight(record: Record) -> int:
    """Bytes that a record takes in memory, about; what the bound counts."""
    if isinstance(record, Sample):
        apart = sum(len(phase.values) for phase in (record.phases or {}).values())
        return 1024 + 300 * (len(record.values) + apart)
    if isinstance(record, Turn):
        return 2048 + 100 * sum(len(sketch.counts) for _, sketch in record.itl)
    if isinstance(record, Window):
        return 1024 + 100 * sum(len(stratum.itl.counts) for stratum in record.strata)
    return 2048


class Turned:
    """A turn that waits, and what to do once it is stored or has to be let go."""

    __slots__ = ("dropped", "stored")

    def __init__(self, stored: Callable[[], None], dropped: Callable[[], None]) -> None:
        self.stored = stored
        self.dropped = dropped


class Pending:
    """The records between their making and the spool, in order.

    At most `MOST_RECORDS` and `limit_bytes` of them (by `weight`). When there are more, which is
    only where the spool cannot be written, the oldest samples go first, then windows, then the
    rest, turns last; a turn that goes was not acknowledged, and its application still has it.
    """

    def __init__(self, append: Callable[[Sequence[Record]], None], limit_bytes: int) -> None:
        """`append` is the spool's: durable when it returns; raises SpoolError."""
        self._append = append
        self._limit = limit_bytes
        self._records: deque[Record] = deque()
        self._weight = 0
        self._waiting: dict[str, Turned] = {}
        self._retry_us = 0
        self._retry_at = 0
        self.urgent = False
        """Whether something waits that should be committed at once."""
        self.soon = False
        """Whether something waits that should not wait for the interval's end, but may for a tick:
        of what anybody can cause to be made often, no more than one commit a tick."""
        self.dropped = 0
        """Records that went because the spool could not be written."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record, *, urgent: bool = False, soon: bool = False) -> None:
        """Keep a record until the next commit; `urgent` asks for one at once, `soon` for one with
        the next tick. So does what fills half of the room, before anything has to go."""
        self._records.append(record)
        self._weight += weight(record)
        half = 2 * len(self._records) > MOST_RECORDS or 2 * self._weight > self._limit
        self.urgent = self.urgent or urgent or half
        self.soon = self.soon or soon
        while len(self._records) > MOST_RECORDS or self._weight > self._limit:
            self._drop_one()

    def add_turn(self, turn: Turn, stored: Callable[[], None], dropped: Callable[[], None]) -> None:
        """Keep a turn; `stored` is called after the commit, `dropped` where it has to go."""
        self._waiting[turn.id] = Turned(stored, dropped)
        self.add(turn, urgent=True)

    def waits(self, turn: str, stored: Callable[[], None], dropped: Callable[[], None]) -> bool:
        """Whether a turn waits here already; if so, these two are called from now on."""
        if turn not in self._waiting:
            return False
        self._waiting[turn] = Turned(stored, dropped)
        return True

    def commit(self, now_us: int, *, last: bool = False) -> bool:
        """Append everything to the spool; whether that went well.

        After a failure nothing is tried before its time (1 s, then twice as long, up to 30 s),
        unless this is the last chance.
        """
        if not self._records:
            self.urgent = self.soon = False
            return True
        if now_us < self._retry_at and not last:
            return False
        try:
            self._append(tuple(self._records))
        except SpoolError as error:
            self._retry_us = min(max(self._retry_us * 2, _FIRST_RETRY_US), _LONGEST_RETRY_US)
            self._retry_at = now_us + self._retry_us
            log.error(
                "spool not written, records wait in memory",
                every=_EVERY_S,
                reason=str(error),
                waiting=len(self._records),
                dropped=self.dropped,
            )
            return False
        self._retry_us = self._retry_at = 0
        self._records.clear()
        self._weight = 0
        self.urgent = self.soon = False
        waiting, self._waiting = self._waiting, {}
        for turned in waiting.values():
            turned.stored()
        return True

    def retry_in_us(self, now_us: int) -> int | None:
        """Microseconds until an urgent commit may be tried (again); None where none waits."""
        return max(self._retry_at - now_us, 0) if self.urgent else None

    def _drop_one(self) -> None:
        """Let go of the oldest record of the least important kind."""
        place = next(
            (
                index
                for kind in (Sample, Window)
                for index, record in enumerate(self._records)
                if isinstance(record, kind)
            ),
            None,
        )
        if place is None:
            place = next(
                (i for i, record in enumerate(self._records) if not isinstance(record, Turn)), 0
            )
        record = self._records[place]
        del self._records[place]
        self._weight -= weight(record)
        self.dropped += 1
        if isinstance(record, Turn):
            turned = self._waiting.pop(record.id, None)
            if turned is not None:
                turned.dropped()
