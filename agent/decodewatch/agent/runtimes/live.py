"""One registered runtime: its process, its open turns, its windows, samples and floors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from decodewatch.agent.messages import Begin, Progress, Refusal
from decodewatch.agent.phases import Course, Phases
from decodewatch.agent.runtimes.floors import FloorWatch
from decodewatch.agent.runtimes.oom import KillCounter
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.runtimes.tellers import Teller
from decodewatch.agent.runtimes.turns import OpenTurn
from decodewatch.agent.runtimes.windows import WindowBuilder, stretches
from decodewatch.agent.sampler import Series
from decodewatch.agent.sources.kit.base import Reading
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Record, Runtime, Scalar, Turn

MAX_OPEN_TURNS: Final = 256
STALE_US: Final = 60_000_000
"""An open turn that was silent for so long while its application was not: its end was missed."""
FRESH_US: Final = 2_000_000
"""A message about a moment further back than this was delayed: what memory shows now says nothing
about that moment."""


_T = TypeVar("_T")
_Found = tuple[str | None, ModelSpec | None, Mapping[str, Scalar] | None]
"""The engine's version, the model and the settings, as far as the agent found them out."""


class Emit(Protocol):
    """Where records go."""

    def __call__(self, record: Record, *, urgent: bool = False, soon: bool = False) -> None: ...


class LiveRuntime:
    """What the agent follows of one process. It has no connection of its own."""

    def __init__(
        self,
        record: Runtime,
        reader: ProcessReader | None,
        emit: Emit,
        phases: Phases,
        silence_us: int,
        now_us: int,
        throttle_at: Callable[[int], str],
    ) -> None:
        """`reader` is None where the process has no pid in the agent's namespace.

        `throttle_at` says the throttle state at a moment of the boot clock.
        """
        self.record = record
        self.turns: dict[str, OpenTurn] = {}
        self.kills = KillCounter()
        self.said_bye = False
        self.left_us: int | None = None
        """When its last connection closed after `bye`; None where it has not."""
        self.turns_stale = 0
        """Turns that began and were let go, since nothing more was heard of them."""
        self.last_sign_us = now_us
        self.limit_bytes: int | None = None
        self._described = record
        self._found: _Found = (None, None, None)
        self._reader = reader
        self._emit = emit
        self._phases = phases
        self._silence_us = silence_us
        self._throttle_at = throttle_at
        self._floor: FloorWatch | None = None
        self._window = WindowBuilder(record.id, now_us)
        self._series = Series(now_us)
        self._see_kills(now_us)

    @property
    def id(self) -> str:
        """The runtime's id."""
        return self.record.id

    def describe(self, record: Runtime) -> None:
        """The application describes itself, perhaps otherwise than before: told at the next tick,
        so that one that changes its mind all the time makes no more than one record a tick."""
        self.record = record

    def found(
        self, version: str | None, model: ModelSpec | None, settings: Mapping[str, Scalar]
    ) -> None:
        """What the agent found out of it: fills in what the application left open, and takes the
        place of what was found before."""
        record, last = self.record, self._found
        self._found = (version, model, settings)
        self.record = replace(
            record,
            engine_version=_said(record.engine_version, last[0], version),
            model=_said(record.model, last[1], model),
            settings=_said(record.settings, last[2], settings),
        )

    def alive(self) -> bool | None:
        """Whether the process runs; None where the agent cannot see it."""
        return None if self._reader is None else self._reader.alive()

    def active(self, now_us: int) -> list[OpenTurn]:
        """The open turns that gave a sign of life lately, and of which somebody can tell."""
        return [
            turn
            for turn in self.turns.values()
            if now_us - turn.last_sign_us < self._silence_us and not turn.untold(now_us)
        ]

    def courses(self, now_us: int) -> list[Course]:
        """Those of the open turns that are at work; of one whose end was missed nobody knows."""
        return [
            turn.course
            for turn in self.active(now_us)
            if self.last_sign_us - turn.last_sign_us <= STALE_US
        ]

    def busy(self, now_us: int) -> bool:
        """Whether it decodes, or ended a turn whose floor is being read."""
        return bool(self._floor is not None or self.active(now_us))

    def begin(self, message: Begin, session: str | None, now_us: int) -> None:
        """A turn begins, or is reported again on a new connection."""
        self.last_sign_us = now_us
        known = self.turns.get(message.turn)
        if known is not None:
            known.begin_again(message, now_us)
            return
        if len(self.turns) >= MAX_OPEN_TURNS:
            # An application may have begun more than it will ever end; the new turn is a real one.
            del self.turns[min(self.turns.values(), key=lambda turn: turn.last_sign_us).id]
            self.turns_stale += 1
        memory = self._memory() if now_us - message.t <= FRESH_US else None
        if self._floor is not None and self._floor.empty:
            self._floor.add(memory, now_us)
        self._close_floor(message.t)
        course = self._phases.begin(message.t, now_us)
        turn = self.turns[message.turn] = OpenTurn(message, session, course, now_us)
        turn.memory_start = memory
        turn.see_memory(memory)
        active = self.active(now_us)
        for one in active:
            one.concurrency = max(one.concurrency, len(active))

    def progress(self, message: Progress, now_us: int) -> None:
        """Steps of an open turn. Raises Refusal where it is not open."""
        self.last_sign_us = now_us
        turn = self.turns.get(message.turn)
        if turn is None:
            raise Refusal("progress.turn: not open; accepted is one that began", message.turn)
        steps = turn.progress(message, now_us)
        self._phases.progress(turn.course, message, steps, now_us)
        if not steps:
            return
        made = stretches(steps, message.depth, min(message.t, now_us), self._throttle_at)
        for part, depth, throttle in made:
            if self._window.full:
                self._close_window(now_us)
            self._window.add(part, depth, len(self.active(now_us)), throttle)

    def told(self, turn: str, teller: Teller) -> None:
        """Who has just told of a turn."""
        known = self.turns.get(turn)
        if known is not None:
            known.teller = teller

    def orphaned(self) -> list[OpenTurn]:
        """The open turns of which nobody will tell any more: who did is gone for good."""
        gone = {id(t.teller): t.teller for t in self.turns.values() if t.teller is not None}
        ended = {name for name, teller in gone.items() if teller.ended}
        return [turn for turn in self.turns.values() if id(turn.teller) in ended]

    def leave(self, now_us: int) -> None:
        """Its last connection closed after `bye`: what its memory shows from now on is of a process
        that exits, and no floor."""
        self.said_bye = True
        self.left_us = now_us
        self._close_floor(now_us, exited=True)

    def come_back(self, now_us: int) -> None:
        """It has said hello again."""
        self.last_sign_us = now_us
        self.said_bye = False
        self.left_us = None

    def forget(self, turn: str, now_us: int) -> None:
        """The application has given up the record of a turn that began."""
        self.last_sign_us = now_us
        self.turns.pop(turn, None)

    def let_stale_go(self) -> None:
        """Let the turns go whose ends were missed."""
        before = len(self.turns)
        self.turns = {
            name: turn
            for name, turn in self.turns.items()
            if self.last_sign_us - turn.last_sign_us <= STALE_US
        }
        self.turns_stale += before - len(self.turns)

    def end_turn(self, turn: Turn, now_us: int) -> Turn:
        """A turn ended; its record completed by what the agent saw of the runtime's memory."""
        self.last_sign_us = now_us
        opened = self.turns.pop(turn.id, None)
        ended = turn.t + turn.duration_us + turn.suspended_us  # on the boot clock
        fresh = now_us - ended <= FRESH_US
        course = self._phases.begin(turn.t, now_us) if opened is None else opened.course
        self._phases.end(course, ended, now_us, turn.ttft_us)
        memory = self._memory() if fresh else None
        end = memory if turn.memory_end_bytes is None else turn.memory_end_bytes
        start = turn.memory_start_bytes
        peaks = [turn.memory_peak_bytes, end]
        concurrency = turn.concurrency
        if opened is not None:
            start = opened.memory_start if start is None else start
            peaks.append(opened.memory_peak)
            concurrency = max(concurrency, opened.concurrency)
        self._close_floor(turn.t)
        if not self.active(now_us):
            self._floor = FloorWatch(turn.id, self.id, ended, now_us)
            # Where the agent cannot look, the application's own word is the one reading.
            self._floor.add(end if memory is None and fresh else memory, now_us)
        return replace(
            turn,
            concurrency=concurrency,
            memory_start_bytes=start,
            memory_peak_bytes=max((peak for peak in peaks if peak is not None), default=None),
            memory_end_bytes=end,
            itl=turn.itl if opened is None else opened.gaps_of(turn),
        )

    def tick(self, now_us: int) -> None:
        """Read the process once."""
        self._tell_description()
        if self._reader is not None:
            memory, cpu, cgroup = self._reader.memory(), self._reader.cpu(), self._reader.cgroup()
            self._series.add((*memory, cpu, *self._reader.elsewhere(), *cgroup))
            self.kills.see(_whole(cgroup.oom_kills.value), now_us)
            self.limit_bytes = _whole(cgroup.limit.value)
            for turn in self.turns.values():
                turn.see_memory(memory.anon_and_swap)
            if self._floor is not None:
                self._floor.add(memory.anon_and_swap, now_us)
        if self._floor is not None and self._floor.due(now_us):
            self._close_floor(now_us)

    def see(self, readings: Iterable[Reading]) -> None:
        """Readings that somebody else made of it."""
        self._series.add(readings)

    def close_interval(self, now_us: int) -> None:
        """Hand over the window and the sample of the interval that ends now."""
        self._close_window(now_us)
        sample = self._series.close(now_us, self.id)
        if sample is not None:
            self._emit(sample)

    def end(self, now_us: int, *, exited: bool = False) -> None:
        """No longer followed: hand over what there is and close its files."""
        self._tell_description()
        self._see_kills(now_us)
        self._close_floor(now_us, exited=exited)
        self.close_interval(now_us)
        if self._reader is not None:
            self._reader.close()

    def _tell_description(self) -> None:
        told, self._described = self._described, self.record
        if told is not self.record and replace(told, t=self.record.t) != self.record:
            self._emit(self.record)

    def _memory(self) -> int | None:
        return None if self._reader is None else self._reader.memory().anon_and_swap

    def _see_kills(self, now_us: int) -> None:
        if self._reader is not None:
            cgroup = self._reader.cgroup()
            self.kills.see(_whole(cgroup.oom_kills.value), now_us)
            if cgroup.limit.value is not None:
                self.limit_bytes = _whole(cgroup.limit.value)

    def _close_floor(self, start_us: int, *, exited: bool = False) -> None:
        """Hand over the floor, unless a turn that started then spoilt it."""
        watch, self._floor = self._floor, None
        if watch is None or watch.spoilt_by(start_us):
            return
        floor = watch.floor(exited=exited)
        if floor is not None:
            self._emit(floor)

    def _close_window(self, now_us: int) -> None:
        window = self._window.close(now_us)
        if window is not None:
            self._emit(window)


def _said(now: _T | None, last: _T | None, found: _T | None) -> _T | None:
    """What an application said of itself; what the agent found where it said nothing."""
    return found if not now or now == last else now


def _whole(value: int | float | None) -> int | None:
    return None if value is None else int(value)
