"""A turn that an adapter measures: it ends with the adapter where no `with` block holds it."""

from types import TracebackType

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.turn import Turn


class Holding:
    """A context manager that keeps the turn open until its own end.

    Else the turn would end with the engine's iterator, before what the engine says afterwards.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._ends_turn = not turn.entered

    def __enter__(self) -> Turn:
        if self._ends_turn:
            self._turn.__enter__()
        self._begin()
        return self._turn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(error)
        except Exception:
            complain.once("adapter", "decodewatch: an adapter failed at its end", trace=True)
        if self._ends_turn:
            self._turn.__exit__(kind, error, trace)

    def _begin(self) -> None:
        """The turn is entered."""

    def _end(self, error: BaseException | None) -> None:
        """The block is left, with this exception where there is one; the turn is still open."""
