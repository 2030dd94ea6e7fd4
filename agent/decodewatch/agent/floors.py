"""The floor after a turn: RssAnon + VmSwap at its lowest until the next turn starts."""

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
        self._readings = 0
        self._lowest = 0
        self._lowest_at = 0
        self._settled = False

    @property
    def empty(self) -> bool:
        """Whether there is no reading yet."""
        return not self._readings

    def add(self, memory_bytes: int | None, now_us: int) -> None:
        """Take in a reading; None is one that could not be had."""
        if memory_bytes is None:
            return
        if not self._readings or memory_bytes < self._lowest:
            self._lowest = memory_bytes
            self._lowest_at = now_us
        if self._first is None:
            self._first = now_us
        self._readings += 1
        self._settled = self._settled or now_us - self._ended >= SETTLED_US

    def due(self, now_us: int) -> bool:
        """Whether the floor can be sent without waiting for the next turn."""
        return now_us - self._ended >= LONGEST_US and now_us - self._since >= SETTLED_US

    def spoilt_by(self, start_us: int) -> bool:
        """Whether a turn that started then was already at work at the first reading.

        So it is where a wrapper, after having been alone, reports several turns at once.
        """
        return self._first is not None and self._first > start_us + _LATENCY_US

    def floor(self) -> Floor | None:
        """The floor by the readings so far; None without any."""
        if not self._readings:
            return None
        return Floor(
            self.turn, self._runtime, self._lowest_at, self._lowest, self._readings, self._settled
        )


# Between a turn's start and the agent's hearing of it; a reading made in it still shows the floor.
_LATENCY_US: Final = 250_000
