"""The floor after a turn: RssAnon + VmSwap at its lowest until the next turn starts."""

from dataclasses import replace
from typing import Final

from decodewatch.shared.records import Floor

SETTLED_US: Final = 2_000_000
"""So long after a turn's end, allocators and caches have given back what they will."""
LONGEST_US: Final = 10_000_000
"""A floor is sent so long after the turn's end, where no other turn starts before."""


class FloorWatch:
    """The floor of one turn that ended, while no other turn of its runtime is open."""

    def __init__(self, turn: str, runtime: str, ended_us: int, now_us: int) -> None:
        """`ended_us`, when the turn ended, may be long before `now_us`, when it was said."""
        self.turn = turn
        self._since = now_us
        self._runtime = runtime
        self._ended = ended_us
        self._first: int | None = None
        self._lowest: Floor | None = None  # of all readings but the newest
        self._newest: Floor | None = None  # of all

    @property
    def empty(self) -> bool:
        """Whether there is no reading yet."""
        return self._newest is None

    def add(self, memory_bytes: int | None, now_us: int) -> None:
        """Take in a reading; None is one that could not be had."""
        if memory_bytes is None:
            return
        if self._first is None:
            self._first = now_us
        before = self._lowest = self._newest
        settled = now_us - self._ended >= SETTLED_US
        if before is None:
            self._newest = Floor(self.turn, self._runtime, now_us, memory_bytes, 1, settled)
            return
        lower = memory_bytes < before.bytes
        self._newest = replace(
            before,
            t=now_us if lower else before.t,
            bytes=memory_bytes if lower else before.bytes,
            readings=before.readings + 1,
            settled=before.settled or settled,
        )

    def due(self, now_us: int) -> bool:
        """Whether the floor can be sent without waiting for the next turn."""
        return now_us - self._ended >= LONGEST_US and now_us - self._since >= SETTLED_US

    def spoilt_by(self, start_us: int) -> bool:
        """Whether a turn that started then was already at work at the first reading.

        So it is where a wrapper, after having been alone, reports several turns at once.
        """
        return self._first is not None and self._first > start_us + _LATENCY_US

    def floor(self, *, exited: bool = False) -> Floor | None:
        """The floor by the readings so far; None without any.

        Where the process has exited its newest reading may be of a model that was being unloaded:
        it counts only where there is no other.
        """
        return (self._lowest or self._newest) if exited else self._newest


# Between a turn's start and the agent's hearing of it; a reading made in it still shows the floor.
_LATENCY_US: Final = 250_000
