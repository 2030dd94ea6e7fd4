"""The course of one turn, as its application and the link's thread share it.

The application's threads append to `stamps`, set what they learn, and call `end`. Everything else
belongs to the link's thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from decodewatch.agent.wrapper.tally import Stamp, Step, Tally
from decodewatch.agent.wrapper.vitals import Moment, SleepWatch
from decodewatch.shared import records
from decodewatch.shared.ids import uuid7
from decodewatch.shared.sketch import Sketch

MOST_STEPS: Final = 256
"""Steps of one progress message. After each, the application's threads get their turn: one step
costs this thread about a microsecond, and the decode loop waits for the interpreter as long."""
_PIECE: Final = 65_536  # stamps taken at a time, whatever came in a second

Tell = Callable[[dict[str, Any]], None]
"""Where messages go."""


@dataclass(slots=True)
class Outcome:
    """How a turn ended, or how one of its iterators did; `error` is the exception's class."""

    ending: str
    error: str | None = None


class Course:
    """One turn from its acceptance to its end."""

    __slots__ = (
        "_memory_end",
        "_memory_peak",
        "_memory_start",
        "_sleep",
        "_tally",
        "accepted_ns",
        "cached_tokens",
        "concluded",
        "concurrency",
        "ended",
        "epoch",
        "estimated",
        "events",
        "id",
        "iterating",
        "number",
        "outcome",
        "own",
        "prompt_tokens",
        "reported_tokens",
        "session",
        "stamps",
        "t_us",
    )

    def __init__(
        self,
        *,
        session: str | None,
        number: int | None,
        epoch: int,
        now: Moment,
        accepted_ns: int | None,
        memory_bytes: int | None,
        own: bool = True,
    ) -> None:
        """`own` is whether this process decodes; the memory of one that only watches another is
        none of the turn's, and None here and below."""
        self.id = uuid7()
        self.session = session
        self.number = number
        self.epoch = epoch  # of the link: a child process does not own its parent's turns
        self.accepted_ns = now.before if accepted_ns is None else accepted_ns
        self.t_us = max(0, now.boot - (now.before - self.accepted_ns)) // 1000
        self.stamps: list[Stamp] = []
        self.iterating = 0  # watched iterators that may still append
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.reported_tokens: int | None = None
        self.estimated = False
        self.events: dict[str, tuple[int, dict[str, Any]]] = {}  # by kind: when, and its data
        self.concurrency = 1
        self.outcome: Outcome | None = None
        self.ended: Moment | None = None
        self.concluded = False
        self.own = own
        self._memory_start = memory_bytes
        self._memory_peak = memory_bytes
        self._memory_end: int | None = None
        self._tally = Tally()
        self._sleep = SleepWatch(now)

    def end(self, outcome: Outcome, now: Moment, memory_bytes: int | None) -> None:
        """The application's word that the turn is over."""
        self.outcome = outcome
        self.ended = now
        self._memory_end = memory_bytes

    def begin_message(self) -> dict[str, Any]:
        """That this turn was accepted."""
        return {
            "type": "begin",
            "turn": self.id,
            "t": self.t_us,
            **_known(
                session=self.session,
                number=self.number,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
            ),
        }

    def advance(self, now: Moment, memory_bytes: int | None, tell: Tell) -> None:
        """Take in what came until `now`, and tell it: at least one progress message."""
        until = now.before if self.ended is None else min(now.before, self.ended.after)
        self._take_in(now, until, memory_bytes if self.own else None, tell)

    def conclude(self, tell: Tell) -> None:
        """Take in the rest of a turn that ended, and tell it."""
        assert self.ended is not None
        self._take_in(self.ended, self.ended.after, self._memory_end, tell)

    def turn_message(self, *, by_depth: bool = True) -> dict[str, Any]:
        """That this turn ended, with its record and its events, once it is concluded."""
        message: dict[str, Any] = {"type": "turn", "record": self.record(by_depth=by_depth)}
        if self.events:
            message["events"] = [
                {"event": kind, "t": t, "data": _known(**data)}
                for kind, (t, data) in self.events.items()
            ]
        return message

    def record(self, *, by_depth: bool = True) -> dict[str, Any]:
        """The turn's record without its runtime, once it is concluded.

        `by_depth` False merges the strata into one, for a record that must be small.
        """
        assert self.ended is not None and self.outcome is not None
        tally = self._tally
        itl = tally.itl(self.prompt_tokens)
        if not by_depth:
            whole = Sketch()
            for _, sketch in itl:
                whole.merge(sketch)
            itl = ((None, whole),)
        source = "estimated" if self.estimated else "counted"
        written = records.to_json(
            records.Turn(
                id=self.id,
                runtime="",
                session=self.session,
                number=self.number,
                t=self.t_us,
                duration_us=max(0, self.ended.before - self.accepted_ns) // 1000,
                ttft_us=self._ttft_us(),
                # One step, however many tokens it held, spans no time: unknown, not 0.
                decode_us=self._decode_us() if tally.steps > 1 and not tally.held_up else None,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                output_tokens=(
                    tally.tokens if self.reported_tokens is None else self.reported_tokens
                ),
                first_tokens=tally.first_tokens,
                steps=tally.steps,
                shared_tokens=tally.shared_tokens,
                token_source=source if self.reported_tokens is None else "reported",
                ending=self.outcome.ending,
                error=self.outcome.error,
                suspended_us=self._sleep.total_ns // 1000,
                concurrency=self.concurrency,
                memory_start_bytes=self._memory_start,
                memory_peak_bytes=self._memory_peak,
                memory_end_bytes=self._memory_end,
                itl=itl,
            )
        )
        del written["runtime"]  # the agent knows it
        return written

    def _taken(self, until_ns: int) -> list[Stamp]:
        """Remove and return the oldest stamps up to a moment.

        The copy and the deletion are one step each: under the interpreter lock, and in builds
        without it under the list's own. In between the application only appends behind them.
        """
        stamps = self.stamps[:_PIECE]
        count = len(stamps)
        while count and _at(stamps[count - 1]) > until_ns:
            count -= 1
        del self.stamps[:count]
        return stamps[:count]

    def _ttft_us(self) -> int | None:
        first = self._tally.first_ns
        return None if first is None else max(0, first - self.accepted_ns) // 1000

    def _decode_us(self) -> int | None:
        first, last = self._tally.first_ns, self._tally.last_ns
        return None if first is None or last is None else max(0, last - first) // 1000

    def _take_in(self, now: Moment, until_ns: int, memory_bytes: int | None, tell: Tell) -> None:
        if memory_bytes is not None:
            self._memory_peak = max(memory_bytes, self._memory_peak or 0)
        self._sleep.see(now)
        prompt = self.prompt_tokens  # once: the application may set it at any moment
        told = False
        while True:
            stamps = self._taken(until_ns)
            for start in range(0, len(stamps) if told else len(stamps) or 1, MOST_STEPS):
                first = self._tally.steps
                part = stamps[start : start + MOST_STEPS]
                steps = self._tally.add(part, prompt, self._sleep.awake_since)
                tell(self._progress(now, memory_bytes, prompt, first, steps))
                told = True
                time.sleep(0)
            if len(stamps) < _PIECE:
                return

    def _progress(
        self,
        now: Moment,
        memory_bytes: int | None,
        prompt: int | None,
        first: int,
        steps: list[Step],
    ) -> dict[str, Any]:
        tokens = self._tally.tokens
        return {
            "type": "progress",
            "turn": self.id,
            "t": now.boot // 1000,
            "first": first,
            "steps": steps,
            # Before the first token the prompt is still being read.
            "depth": None if prompt is None or not tokens else prompt + tokens,
            **_known(ttft_us=self._ttft_us(), memory_bytes=memory_bytes),
        }


def _at(stamp: Stamp) -> int:
    return stamp if isinstance(stamp, int) else stamp[0]


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
