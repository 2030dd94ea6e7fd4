"""A turn that is open: what the agent knows of it in case its runtime does not live to tell."""

from decodewatch.agent.messages import Begin, Progress
from decodewatch.agent.phases import Course
from decodewatch.agent.runtimes.tellers import Teller
from decodewatch.agent.runtimes.windows import Step, gaps
from decodewatch.shared.records import Turn
from decodewatch.shared.sketch import Sketch


class OpenTurn:
    """One turn between its beginning and its end, by what was reported of it."""

    def __init__(self, begin: Begin, session: str | None, course: Course, now_us: int) -> None:
        """`session` is the salted hash, not the application's own id."""
        self.id = begin.turn
        self.course = course
        self.t = begin.t
        self.last_sign_us = now_us
        self.teller: Teller | None = None  # who told of it last
        self.concurrency = 1
        self.depth: int | None = None
        self.prompt_tokens = begin.prompt_tokens
        self.tokens = 0
        self.steps = 0
        self.memory_start: int | None = None
        self.memory_peak: int | None = None
        self.memory_last: int | None = None
        self._session = session
        self._number = begin.number
        self._cached_tokens = begin.cached_tokens
        self._ttft_us: int | None = None
        self._decode_us = 0
        self._first_tokens = 0
        self._shared_tokens = 0
        self._whole = True  # whether every step was reported
        self._itl: dict[int | None, Sketch] = {}

    def begin_again(self, begin: Begin, now_us: int) -> None:
        """The same turn, reported on a new connection and perhaps with more known."""
        self.last_sign_us = now_us
        if begin.prompt_tokens is not None:
            self.prompt_tokens = begin.prompt_tokens
        if begin.cached_tokens is not None:
            self._cached_tokens = begin.cached_tokens

    def untold(self, now_us: int) -> bool:
        """Whether nobody is there now who could tell of it."""
        return self.teller is not None and self.teller.silent(self.last_sign_us, now_us)

    def see_memory(self, memory_bytes: int | None) -> None:
        """A reading of the runtime's memory; None is one that could not be had."""
        if memory_bytes is None:
            return
        self.memory_last = memory_bytes
        self.memory_peak = max(memory_bytes, self.memory_peak or 0)

    def progress(self, message: Progress, now_us: int) -> tuple[Step, ...]:
        """Count what is new in a progress, and return those steps.

        Steps that were reported before (a wrapper that connects again begins anew) are skipped;
        steps that nobody reported (there was no agent) count one token each.
        """
        self.last_sign_us = now_us
        self.see_memory(message.memory_bytes)
        if message.ttft_us is not None:
            self._ttft_us = message.ttft_us
        missed = message.first - self.steps
        if missed > 0:
            self.steps += missed
            self.tokens += missed
            self._whole = False
        steps = message.steps[max(-missed, 0) :]
        if message.depth is not None:
            self.depth = message.depth
        elif self.depth is not None:
            self.depth += sum(tokens for _, tokens in steps)
        if steps and not self.steps:
            self._first_tokens = steps[0][1]
        self.steps += len(steps)
        for us, tokens in steps:
            self.tokens += tokens
            self._decode_us += us or 0
            self._shared_tokens += tokens if tokens > 1 and us is not None else 0
        for gap in gaps(steps, message.depth):
            self._itl.setdefault(gap.octave, Sketch()).add(gap.us, gap.tokens)
        return steps

    def gaps_of(self, turn: Turn) -> "tuple[tuple[int | None, Sketch], ...]":
        """The gaps of this turn, which has ended: those of its record, else those that its progress
        told, if it told all. A small client need not make sketches."""
        return turn.itl or (self._gaps() if self._whole and self.steps == turn.steps else ())

    def _gaps(self) -> "tuple[tuple[int | None, Sketch], ...]":
        return tuple(sorted(self._itl.items(), key=lambda item: (item[0] is None, item[0] or 0)))

    def lost(self, runtime: str, end_us: int) -> Turn:
        """The record of this turn, whose runtime vanished at `end_us`."""
        return Turn(
            id=self.id,
            runtime=runtime,
            session=self._session,
            number=self._number,
            t=self.t,
            duration_us=max(end_us - self.t, 0),
            ttft_us=self._ttft_us,
            decode_us=self._decode_us if self._whole and self.steps > 1 else None,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self.tokens,
            first_tokens=self._first_tokens,
            steps=self.steps,
            shared_tokens=self._shared_tokens,
            token_source="counted" if self._whole else "estimated",
            ending="lost",
            error=None,
            suspended_us=0,
            concurrency=self.concurrency,
            memory_start_bytes=self.memory_start,
            memory_peak_bytes=self.memory_peak,
            memory_end_bytes=self.memory_last,
            itl=self._gaps(),
        )
