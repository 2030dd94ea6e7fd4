"""What the hardware showed while the device read prompts, decoded and idled, told apart.

A turn is in prefill from its acceptance until its first step, and decodes from then until its end.
The device is in `prefill` or `decode` where every open turn of all its runtimes is, in `mixed`
where some are in the one and some in the other, and in `idle` where no turn is open.

The agent hears of a turn's steps about once a second, and of its end afterwards. So readings are
kept for some seconds, with what was heard of turns, and are put to the phases once what happened
then is known. What is heard later still counts from the first moment that is not put yet.

A reading stands for the time since the reading before it, cut where the phase changes: the stretch
behind the earlier reading, in whose phase that was made, takes its value, the rest that of the
later one. After a pause (the device slept, the agent was stopped) it stands for some seconds only.

Tokens are those of the windows, each in the phase that its step lies in, so that mean power times
duration over tokens is the energy of a token, but for two things. The first step of a turn ends its
prefill: what it holds is prefill's work and counts in no phase, as TPOT leaves it out. Nor does a
step in a pause for which no reading stands.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from decodewatch.agent.messages import Progress
from decodewatch.agent.runtimes.windows import Step
from decodewatch.agent.sampler import DIGITS
from decodewatch.agent.sources.kit.base import Reading, Value
from decodewatch.agent.sources.kit.common import DRAM_BUSY, GPU_BUSY, POWER, TOTAL_POWER
from decodewatch.shared.records import Measured, Phase

APART: Final[Mapping[str, int | None]] = {
    row.name: DIGITS[row.unit] for row in (GPU_BUSY, DRAM_BUSY, POWER, TOTAL_POWER)
}
"""The measurements that are kept apart by phase, with the digits that mean something."""
MOST_APART: Final = 32
"""Of so many sensors of these: every rail of the boards that have most."""
SETTLED_US: Final = 2_000_000
"""A reading is put to its phases once the tick after this time is over: twice as long as turns are
silent, and in that tick after a pause what waited in the sockets is heard."""
LONGEST_US: Final = 5_000_000
"""The time that a reading stands for at most; twice the time between two as set, where longer."""
MOST_READINGS: Final = 64
MOST_MOMENTS: Final = 4096
"""Moments at which turns changed, and at which they made steps, that are kept until they are put
to the phases: more, of thousands of steps a second, fall on the last one."""

TurnPhase = Literal["prefill", "decode"]


class Course:
    """One turn on the boot clock, as far as it was heard of."""

    __slots__ = ("at_us", "counted_us", "decodes", "phase", "steps", "t")

    def __init__(self, t: int) -> None:
        self.t = t
        self.phase: TurnPhase | None = None
        """What it is in; None where it has ended or is not believed to be at work."""
        self.decodes = False
        """Whether its first step was heard of."""
        self.steps = 0
        self.at_us = t  # its newest step, by the turn's own times
        self.counted_us = 0  # the newest moment that something of it was counted at


class _Level:
    """One measurement in one phase, by the time that its values stand for."""

    __slots__ = ("highest", "known_us", "lowest", "total")

    def __init__(self, value: Value) -> None:
        self.known_us = 0
        self.total: Value = 0
        self.lowest = self.highest = value

    def add(self, value: Value, duration_us: int) -> None:
        self.known_us += duration_us
        self.total += value * duration_us
        self.lowest = min(self.lowest, value)
        self.highest = max(self.highest, value)

    def measured(self, digits: int | None) -> Measured:
        mean = self.total / self.known_us
        return round(mean, digits), round(self.lowest, digits), round(self.highest, digits)


class _Part:
    """One phase in one interval."""

    __slots__ = ("duration_us", "levels", "tokens")

    def __init__(self) -> None:
        self.duration_us = 0
        self.tokens = 0
        self.levels: dict[str, _Level] = {}

    def add(self, duration_us: int, values: Mapping[str, Value]) -> None:
        self.duration_us += duration_us
        for key, value in values.items():
            level = self.levels.get(key)
            if level is None:
                if len(self.levels) >= MOST_APART:
                    continue
                level = self.levels[key] = _Level(value)
            level.add(value, duration_us)

    def phase(self) -> Phase:
        # What was known for less than half of the time does not stand for all of it.
        values = {
            key: level.measured(APART[key.partition(":")[0]])
            for key, level in self.levels.items()
            if 2 * level.known_us >= self.duration_us
        }
        return Phase(self.duration_us, self.tokens, values)


_Stretch = tuple[int, int, str]
"""After the first moment, up to the second, in one phase."""


class Phases:
    """Takes what turns report and what was read, in whatever order, and gives it by phase.

    Moments are of the boot clock. What a turn reports of the time that is put to phases already
    counts from the end of that time; what it reports of the future counts now.
    """

    def __init__(self, now_us: int, interval_us: int) -> None:
        """`interval_us` is the time between two readings as it was set."""
        self._longest_us = max(LONGEST_US, 2 * interval_us)
        self._until = now_us
        """All up to here is put to phases."""
        self._heard_us = now_us  # the tick before this one
        self._open: set[Course] = set()
        self._turns = {"prefill": 0, "decode": 0}  # at `_until`
        self._changes: dict[int, dict[TurnPhase, int]] = {}
        self._steps: dict[int, int] = {}
        self._newest_change = self._newest_step = 0
        self._readings: deque[tuple[int, Mapping[str, Value]]] = deque()
        self._before: Mapping[str, Value] = {}  # the reading at `_until`, and its phase
        self._before_phase: str | None = None
        self._parts: dict[str, _Part] = {}

    # What turns report.

    def begin(self, t: int, now_us: int) -> Course:
        """A turn was accepted at `t`."""
        course = Course(min(t, now_us))
        self._move(course, "prefill", t, now_us)
        return course

    def progress(
        self, course: Course, message: Progress, steps: Sequence[Step], now_us: int
    ) -> None:
        """A turn made `steps`: of those that the message has, the ones that are new.

        A step came its gap after the one before. Where that is not known (the device slept, or
        nobody reported steps between) the last one came when the message was made, at the latest.
        """
        until = min(message.t, now_us)
        missed = message.first > course.steps
        first = not course.steps and not missed
        course.steps = max(course.steps, message.first + len(message.steps))
        if course.phase is None:
            self._move(course, "decode" if course.decodes else "prefill", until, now_us)
        if message.ttft_us is not None:
            self._begin_decode(course, course.t + message.ttft_us, now_us)
        after = sum(gap or 0 for gap, _ in steps)  # from a step to the last one
        for gap, tokens in steps:
            after -= gap or 0
            if first:
                self._begin_decode(course, until - after, now_us)
                first = False
                continue
            at = until - after if gap is None or missed else course.at_us + gap
            missed = False
            at = max(min(at, until), course.at_us)
            self._begin_decode(course, at, now_us)
            course.at_us = at
            self._count(course, at, tokens)

    def end(self, course: Course, at_us: int, now_us: int, ttft_us: int | None = None) -> None:
        """A turn ended; its last step is not after its end."""
        if ttft_us is not None:
            self._begin_decode(course, course.t + ttft_us, now_us)
        if course.phase is not None:
            self._move(course, None, at_us, now_us)

    def keep(self, courses: Collection[Course], now_us: int) -> None:
        """These turns are at work; any other one ended without a word."""
        for course in self._open.difference(courses):
            self._move(course, None, now_us, now_us)

    def _begin_decode(self, course: Course, at_us: int, now_us: int) -> None:
        if course.phase == "prefill":
            course.decodes = True
            course.at_us = max(course.at_us, min(at_us, now_us))
            self._move(course, "decode", at_us, now_us)

    def _move(self, course: Course, to: TurnPhase | None, at_us: int, now_us: int) -> None:
        """Put a turn into another phase."""
        at = max(min(at_us, now_us), course.counted_us, self._until)
        if len(self._changes) >= MOST_MOMENTS:
            at = self._newest_change
        course.counted_us = at
        self._newest_change = max(self._newest_change, at)
        change = self._changes.setdefault(at, {"prefill": 0, "decode": 0})
        if course.phase is not None:
            change[course.phase] -= 1
        if to is not None:
            change[to] += 1
            self._open.add(course)
        else:
            self._open.discard(course)
        course.phase = to

    def _count(self, course: Course, at_us: int, tokens: int) -> None:
        """Count the tokens of a step."""
        # Steps lie behind the beginning of decode, however short a gap was.
        at = max(at_us, course.counted_us + 1, self._until + 1)
        if len(self._steps) >= MOST_MOMENTS:
            at = self._newest_step
        course.counted_us = at
        self._newest_step = max(self._newest_step, at)
        self._steps[at] = self._steps.get(at, 0) + tokens

    # What was read, and what comes of it.

    def read(self, readings: Iterable[Reading], now_us: int) -> None:
        """Take in what was read now, and put to the phases what is old enough."""
        values = {
            reading.key: reading.value
            for reading in readings
            if reading.value is not None and reading.measurement.name in APART
        }
        settled, self._heard_us = self._heard_us - SETTLED_US, now_us
        self._readings.append((now_us, values))
        while self._readings and (
            self._readings[0][0] <= settled or len(self._readings) > MOST_READINGS
        ):
            self._put(*self._readings.popleft())

    def close(self, *, last: bool = False) -> dict[str, Phase] | None:
        """What was put to the phases since the last call, None where that is nothing.

        With `last` everything is put by what is known: nothing more will be heard.
        """
        while last and self._readings:
            self._put(*self._readings.popleft())
        parts, self._parts = self._parts, {}
        return {name: parts[name].phase() for name in sorted(parts)} or None

    def _put(self, at_us: int, values: Mapping[str, Value]) -> None:
        """Put one reading, and the steps since the one before, to the phases."""
        if at_us <= self._until:
            return
        stretches = self._stretches(at_us)
        for place, (begin, end, phase) in enumerate(stretches):
            earlier = (
                place == 0 < len(stretches) - 1
                and begin == self._until
                and phase == self._before_phase
            )
            part = self._parts.setdefault(phase, _Part())
            part.add(end - begin, self._before if earlier else values)
        self._put_steps(at_us, stretches)
        self._before, self._before_phase = values, stretches[-1][2]
        self._until = at_us

    def _stretches(self, at_us: int) -> list[_Stretch]:
        """The phases between the reading before and one now, as far as that stands for them."""
        since = max(self._until, at_us - self._longest_us)
        found: list[_Stretch] = []
        begin = since
        for moment in (*sorted(one for one in self._changes if one <= at_us), at_us):
            if moment > begin:
                phase = self._phase()
                if found and found[-1][2] == phase:
                    begin = found.pop()[0]
                found.append((begin, moment, phase))
                begin = moment
            for phase_of_turn, by in self._changes.pop(moment, {}).items():
                self._turns[phase_of_turn] += by
        return found

    def _put_steps(self, at_us: int, stretches: Sequence[_Stretch]) -> None:
        place = 0
        for moment in sorted(one for one in self._steps if one <= at_us):
            tokens = self._steps.pop(moment)
            while moment > stretches[place][1]:
                place += 1
            begin, _, phase = stretches[place]
            if moment > begin and phase in ("decode", "mixed"):
                self._parts[phase].tokens += tokens

    def _phase(self) -> str:
        prefill, decode = self._turns["prefill"], self._turns["decode"]
        if prefill and decode:
            return "mixed"
        return "prefill" if prefill else "decode" if decode else "idle"
