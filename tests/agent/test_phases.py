"""Readings and steps are put to prefill, decode and idle by the turns' own times, each once."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodewatch.agent.messages import Progress
from decodewatch.agent.phases import (
    LONGEST_US,
    MOST_APART,
    MOST_MOMENTS,
    MOST_READINGS,
    Course,
    Phases,
)
from decodewatch.agent.runtimes.windows import Step
from decodewatch.agent.sources.kit.base import Measurement, Reading, Value, unknown
from decodewatch.agent.sources.kit.common import (
    DRAM_BUSY,
    GPU_BUSY,
    POWER,
    TEMP,
    TOTAL_POWER,
)
from decodewatch.shared.energy import joules_a_token, totals
from decodewatch.shared.records import Phase, Sample, read, to_json

SECOND = 1_000_000
START = 1000 * SECOND


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)


def known(measurement: Measurement, value: Value, label: str = "") -> Reading:
    return Reading(measurement, label, value, None)


class Agent:
    """Phases that are read, and told of turns, at the seconds that a test says."""

    def __init__(self, interval_us: int = SECOND) -> None:
        self.phases = Phases(START, interval_us)

    def begin(self, seconds: float) -> Course:
        return self.phases.begin(at(seconds), at(seconds))

    def progress(
        self,
        course: Course,
        seconds: float,
        steps: Sequence[Step],
        *,
        first: int = 0,
        ttft: float | None = None,
        told: float | None = None,
    ) -> None:
        """A message made at `seconds` and heard at `told`."""
        ttft_us = None if ttft is None else round(ttft * SECOND)
        message = Progress("t", at(seconds), first, tuple(steps), ttft_us, None, None)
        self.phases.progress(course, message, steps, at(seconds if told is None else told))

    def end(self, course: Course, seconds: float, told: float | None = None) -> None:
        self.phases.end(course, at(seconds), at(seconds if told is None else told))

    def read(self, seconds: float, watts: float | None = 5.0, **shares: float) -> None:
        readings = [known(TEMP, 50.0, "cpu"), unknown(DRAM_BUSY, "denied")]
        if watts is not None:
            readings.append(known(TOTAL_POWER, watts, "VDD_IN"))
        if "gpu" in shares:
            readings.append(known(GPU_BUSY, shares["gpu"]))
        self.phases.read(readings, at(seconds))

    def found(self) -> dict[str, Phase]:
        """All of it, as the collector reads it."""
        phases = self.phases.close(last=True)
        assert phases is not None
        sample = Sample(None, 1, 1, {}, None, phases)
        received = read(Sample, json.loads(json.dumps(to_json(sample)))).phases
        assert received == phases
        return phases


def times(phases: dict[str, Phase]) -> dict[str, float]:
    return {name: phase.duration_us / SECOND for name, phase in phases.items()}


def tokens(phases: dict[str, Phase]) -> dict[str, int]:
    return {name: phase.tokens for name, phase in phases.items() if phase.tokens}


def watts(phases: dict[str, Phase]) -> dict[str, Any]:
    return {name: phase.values["device_watts:VDD_IN"] for name, phase in phases.items()}


GAPS = [(100_000, 1)] * 9


def test_a_turn_is_prefill_to_its_first_step_and_decode_to_its_end() -> None:
    agent = Agent()
    agent.read(1, 2.0, gpu=0.0)
    course = agent.begin(1.2)
    agent.read(2, 9.0, gpu=0.9)
    agent.progress(course, 2.2, [])
    agent.read(3, 5.0, gpu=0.5)
    agent.progress(course, 3.2, [(None, 1), *GAPS[:4]], ttft=1.5)
    agent.read(4, 5.0, gpu=0.5)
    agent.progress(course, 4.2, GAPS, first=5)
    agent.end(course, 4.2)
    agent.read(5, 2.0, gpu=0.0)
    found = agent.found()
    assert times(found) == {"idle": 1.2 + 0.8, "prefill": 1.5, "decode": 1.5}
    assert tokens(found) == {"decode": 13}
    # What was read in a phase is of that phase, also where it changed between two readings.
    assert watts(found) == {
        "idle": (2.0, 2.0, 2.0),
        "prefill": (9.0, 9.0, 9.0),
        "decode": (5.0, 5.0, 5.0),
    }
    assert found["decode"].values["gpu_busy_share"] == (0.5, 0.5, 0.5)


def test_only_what_belongs_to_a_phase_is_kept_and_of_unknowns_nothing() -> None:
    agent = Agent()
    rails = [known(POWER, 1.0, f"rail {number}") for number in range(MOST_APART + 9)]
    agent.phases.read([known(TEMP, 50.0, "cpu"), unknown(GPU_BUSY, "absent"), *rails], at(1))
    (idle,) = agent.found().values()
    assert len(idle.values) == MOST_APART
    assert all(key.startswith("power_watts:") for key in idle.values)


def test_what_was_known_for_less_than_half_of_a_phase_does_not_stand_for_all_of_it() -> None:
    agent = Agent()
    for second, value in enumerate((None, None, 3.0, None), start=1):
        agent.read(second, value)
    assert agent.found()["idle"] == Phase(4 * SECOND, 0, {})
    for second, value in enumerate((None, 3.0, 3.0, None), start=5):
        agent.read(second, value)
    assert agent.found()["idle"].values == {"device_watts:VDD_IN": (3.0, 3.0, 3.0)}


def test_turns_in_prefill_and_in_decode_at_once_are_mixed() -> None:
    agent = Agent()
    decoding, reading = agent.begin(0), agent.begin(2)
    agent.progress(decoding, 4, [(None, 1), *[(SECOND, 1)] * 3], ttft=1)
    agent.progress(reading, 4, [(None, 2)], ttft=1.5)  # at 3.5 s
    agent.progress(decoding, 6, [(SECOND, 1)] * 2, first=4)
    agent.progress(reading, 6, [(500_000, 2), (SECOND, 2)], first=1)
    for second in range(1, 11):
        agent.read(second)
    agent.end(decoding, 6, told=7)
    agent.end(reading, 7)
    found = agent.found()
    assert times(found) == {"prefill": 1, "decode": 1 + 3.5, "mixed": 1.5, "idle": 3}
    # At 2 s the one decodes alone; at 3 s both; the other's first step is not a decoded one.
    assert tokens(found) == {"mixed": 1, "decode": 1 + 1 + 2 + 1 + 2 + 1}


def test_readings_wait_until_what_happened_then_is_known() -> None:
    agent = Agent()
    for second in (1, 2):
        agent.read(second)
    assert agent.phases.close() is None
    course = agent.begin(2.5)
    agent.read(3)
    agent.read(4)
    # The reading of 1 s is old enough now; that of 2 s is when the next is made.
    assert agent.phases.close() == {"idle": Phase(SECOND, 0, {"device_watts:VDD_IN": (5.0,) * 3})}
    agent.end(course, 3.5, told=4.5)
    agent.read(5)
    agent.read(6)
    first = agent.phases.close()
    assert first is not None and times(first) == {"idle": 1.5, "prefill": 0.5}
    assert times(agent.found()) == {"prefill": 0.5, "idle": 2.5}
    assert agent.phases.close(last=True) is None


def test_what_is_heard_late_counts_from_the_first_moment_that_is_not_put_yet() -> None:
    agent = Agent()
    course = agent.begin(0.5)
    for second in range(1, 9):
        agent.read(second)
    before = agent.phases.close()
    assert before is not None and set(times(before)) == {"idle", "prefill"}
    # It has decoded since 1 s, and its thread could not say so: 5 steps are of time that is put.
    agent.progress(course, 8, [(None, 1), *[(SECOND, 1)] * 7], ttft=0.5)
    agent.end(course, 8.5)
    for second in range(9, 13):
        agent.read(second)
    found = agent.found()
    assert sum(times(before).values()) + sum(times(found).values()) == 12
    assert tokens(found) == {"decode": 7}
    assert times(found) == {"decode": 3.5, "idle": 3.5}


def test_a_turn_that_was_over_before_anybody_heard_of_it_takes_no_time() -> None:
    agent = Agent()
    for second in range(1, 20):
        agent.read(second)
    course = agent.phases.begin(at(2), at(19))
    agent.phases.end(course, at(6), at(19), ttft_us=SECOND)
    assert times(agent.found()) == {"idle": 19}


def test_a_turn_without_a_step_is_prefill_to_its_end() -> None:
    agent = Agent()
    course = agent.begin(1)
    for second in range(1, 5):
        agent.read(second)
    agent.end(course, 3)
    assert times(agent.found()) == {"idle": 2, "prefill": 2}


def test_the_record_of_a_turn_tells_its_first_step_where_no_progress_did() -> None:
    agent = Agent()
    course = agent.begin(1)
    for second in range(1, 5):
        agent.read(second)
    agent.phases.end(course, at(3), at(4), ttft_us=500_000)
    assert times(agent.found()) == {"idle": 2, "prefill": 0.5, "decode": 1.5}


def test_a_device_that_slept_is_not_read_for_that_time() -> None:
    agent = Agent()
    course = agent.begin(0)
    agent.progress(course, 0.9, [(None, 1), *[(200_000, 1)] * 4], ttft=0.1)
    agent.read(1)
    # An hour later it goes on: no gap of decoding, and the steps behind it end when they were told.
    agent.read(3600.5)
    agent.progress(course, 3601, [(None, 1), (200_000, 1)], first=5)
    for second in range(3601, 3606):
        agent.read(second)
    found = agent.found()
    assert times(found) == {"prefill": 0.1, "decode": 0.9 + LONGEST_US / SECOND + 0.5 + 4}
    assert tokens(found) == {"decode": 6}


def test_steps_in_a_pause_that_no_reading_stands_for_are_not_counted() -> None:
    """The agent was stopped for half a minute, and its application was not."""
    agent = Agent()
    course = agent.begin(0)
    agent.progress(course, 1, [(None, 1)], ttft=0)
    agent.read(1)
    agent.progress(course, 31, [(SECOND, 1)] * 31, first=1, told=31)
    agent.read(31)
    for second in range(32, 36):
        agent.read(second)
    found = agent.found()
    assert times(found) == {"decode": 1 + LONGEST_US / SECOND + 4}
    assert tokens(found) == {"decode": 1 + LONGEST_US // SECOND}


def test_readings_that_are_seldom_by_setting_stand_for_all_of_the_time() -> None:
    agent = Agent(interval_us=30 * SECOND)
    for second in (30, 60, 90):
        agent.read(second)
    assert times(agent.found()) == {"idle": 90}


def test_steps_that_nobody_reported_leave_the_others_where_they_were() -> None:
    """A wrapper connects to an agent that has just started: of its 500 steps it tells the last."""
    agent = Agent()
    course = agent.phases.begin(at(-60), at(0.5))
    agent.progress(course, 2, [(300_000, 1), (300_000, 1)], first=500, ttft=1)
    for second in range(1, 6):
        agent.read(second)
    found = agent.found()
    assert times(found) == {"decode": 5}
    assert tokens(found) == {"decode": 2}


def test_an_application_that_tells_no_ttft_decodes_since_its_first_step() -> None:
    agent = Agent()
    course = agent.begin(0)
    agent.progress(course, 2, [(None, 1), (300_000, 1)])
    agent.end(course, 3)
    agent.read(4)
    found = agent.found()
    assert times(found) == {"prefill": 1.7, "decode": 1.3, "idle": 1}
    assert tokens(found) == {"decode": 1}
    joined = agent.begin(5)
    agent.progress(joined, 7, [(300_000, 1), (300_000, 1)], first=7)  # and 7 by nobody
    agent.read(8)
    found = agent.found()
    assert times(found) == {"idle": 1, "prefill": 1.7, "decode": 1.3}
    assert tokens(found) == {"decode": 2}


def test_a_turn_that_is_not_at_work_any_more_ends_and_comes_back_with_its_next_step() -> None:
    agent = Agent()
    course, other = agent.begin(0), agent.begin(0)
    agent.progress(course, 1, [(None, 1)], ttft=0.5)
    agent.phases.keep([other, course], at(2))
    agent.phases.keep([other], at(3))
    agent.end(other, 4)
    agent.progress(course, 6, [(SECOND, 1)], first=1)
    agent.end(course, 7)
    for second in (4, 8, 12):
        agent.read(second)
    found = agent.found()
    assert times(found) == {"prefill": 0.5 + 1, "mixed": 2.5, "idle": 2 + 5, "decode": 1}
    assert tokens(found) == {"decode": 1}


def test_two_readings_of_one_moment_count_once() -> None:
    agent = Agent()
    for second in (1, 1, 2):
        agent.read(second)
    assert times(agent.found()) == {"idle": 2}


def test_what_is_kept_is_bounded_and_still_counts() -> None:
    agent = Agent()
    course = agent.begin(0.2)
    agent.progress(course, 2, [(None, 1), *[(100, 1)] * 3 * MOST_MOMENTS], ttft=0.1)
    agent.end(course, 2)
    for number in range(MOST_MOMENTS):
        course = agent.phases.begin(at(2.1 + number / 1e6), at(3))
        agent.phases.end(course, at(2.2 + number / 1e6), at(3), ttft_us=10)
    assert len(agent.phases._changes) <= MOST_MOMENTS
    assert len(agent.phases._steps) <= MOST_MOMENTS
    for number in range(1, 2 * MOST_READINGS):
        agent.read(3 + number / 1000)
    assert len(agent.phases._readings) <= MOST_READINGS
    found = agent.found()
    assert tokens(found) == {"decode": 3 * MOST_MOMENTS}
    assert agent.phases._turns == {"prefill": 0, "decode": 0}
    assert not agent.phases._changes and not agent.phases._steps and not agent.phases._open


@pytest.mark.parametrize("ahead", [0, 9])
def test_a_clock_that_is_ahead_moves_nothing_into_the_future(ahead: float) -> None:
    agent = Agent()
    course = agent.phases.begin(at(1 + ahead), at(1))
    agent.progress(course, 2 + ahead, [(None, 1), (100_000, 1)], ttft=0.5, told=2)
    agent.phases.end(course, at(3 + ahead), at(3), ttft_us=500_000)
    for second in (4, 5):
        agent.read(second)
    found = agent.found()
    assert sum(times(found).values()) == 5
    assert tokens(found) == {"decode": 1}


# Whatever turns there are, whenever they are read and told.


@dataclass(frozen=True)
class Plan:
    """A turn as it is to happen, in microseconds from START."""

    accepted: int
    ttft: int
    gaps: tuple[tuple[int, int], ...]
    rest: int  # from the last step to the end

    @property
    def first(self) -> int:
        return self.accepted + self.ttft

    @property
    def steps(self) -> list[int]:
        return list(itertools.accumulate((gap for gap, _ in self.gaps), initial=self.first))

    @property
    def end(self) -> int:
        return self.steps[-1] + self.rest


PLANS = st.lists(
    st.builds(
        Plan,
        st.integers(0, 20 * SECOND),
        st.integers(1, 8 * SECOND),
        st.lists(st.tuples(st.integers(1, 2 * SECOND), st.integers(1, 4)), max_size=40).map(tuple),
        st.integers(0, SECOND),
    ),
    max_size=5,
)
INTERVALS = st.lists(st.integers(200_000, 1_500_000), min_size=40, max_size=80)


def told(plan: Plan, course: list[Course], phases: Phases, delay: int) -> Iterable[Any]:
    """When the agent hears what of a turn: progress once a second, and its end."""
    steps = [(None, 1), *plan.gaps]
    ticks = [*range(plan.accepted + SECOND, plan.end, SECOND), plan.end]

    def begin() -> None:
        course.append(phases.begin(START + plan.accepted, START + plan.accepted + delay))

    yield plan.accepted + delay, 0, begin
    sent = 0
    for tick in ticks:
        upto = sum(moment <= tick for moment in plan.steps)
        part, first = tuple(steps[sent:upto]), sent
        ttft = plan.ttft if upto else None
        sent = upto

        def progress(
            tick: int = tick, part: Any = part, first: int = first, ttft: Any = ttft
        ) -> None:
            message = Progress("t", START + tick, first, part, ttft, None, None)
            phases.progress(course[0], message, part, START + tick + delay)

        yield tick + delay, 0, progress

    def end() -> None:
        phases.end(course[0], START + plan.end, START + plan.end + delay, plan.ttft)

    yield plan.end + delay, 0, end


def happen(
    plans: Sequence[Plan], intervals: Sequence[int], delays: Sequence[int], every: int
) -> tuple[list[dict[str, Phase]], int]:
    """Samples as the agent closes them, one after so many readings; and until when it read."""
    phases = Phases(START, SECOND)
    events: list[Any] = []
    for plan, delay in zip(plans, delays, strict=False):
        events += told(plan, [], phases, delay)
    reads = list(itertools.accumulate(intervals))
    last_told = max((moment for moment, _, _ in events), default=0)
    while reads[-1] <= last_told:
        reads.append(reads[-1] + SECOND)
    closed: list[dict[str, Phase]] = []

    def read(number: int, moment: int) -> None:
        phases.read([known(TOTAL_POWER, 4 + number % 3, "VDD_IN")], START + moment)
        if number % every == 0:
            closed.append(phases.close() or {})

    events += [
        (moment, 1, lambda number=number, moment=moment: read(number, moment))
        for number, moment in enumerate(reads, start=1)
    ]
    for _, _, event in sorted(events, key=lambda one: one[:2]):  # stable: in a turn's own order
        event()
    closed.append(phases.close(last=True) or {})
    return closed, reads[-1]


def truth(plans: Sequence[Plan], until: int) -> tuple[dict[str, int], dict[str, int]]:
    """Durations and tokens by phase, step by step and the slow way."""

    def phase(moment: int) -> str:
        """Of the microsecond that ends then."""
        reading = any(plan.accepted < moment <= plan.first for plan in plans)
        decoding = any(plan.first < moment <= plan.end for plan in plans)
        if reading and decoding:
            return "mixed"
        return "prefill" if reading else "decode" if decoding else "idle"

    cuts = sorted({0, until, *(t for plan in plans for t in (plan.accepted, plan.first, plan.end))})
    lengths: dict[str, int] = {}
    for begin, end in itertools.pairwise(cut for cut in cuts if cut <= until):
        lengths[phase(end)] = lengths.get(phase(end), 0) + end - begin
    counts: dict[str, int] = {}
    for plan in plans:
        for moment, (_, count) in zip(plan.steps[1:], plan.gaps, strict=True):
            counts[phase(moment)] = counts.get(phase(moment), 0) + count
    return lengths, counts


@settings(max_examples=120, deadline=None)
@given(PLANS, INTERVALS, st.integers(1, 12))
def test_durations_and_tokens_are_those_of_the_turns_own_times(
    plans: list[Plan], intervals: list[int], every: int
) -> None:
    closed, until = happen(plans, intervals, [0] * len(plans), every)
    found = totals(closed)
    lengths, counts = truth(plans, until)
    assert {name: total.duration_us for name, total in found.items()} == lengths
    assert {name: total.tokens for name, total in found.items() if total.tokens} == counts
    for phases in closed:
        for phase in phases.values():
            mean, low, high = phase.values["device_watts:VDD_IN"]  # type: ignore[misc]
            assert 4 <= low <= mean <= high <= 6


@settings(max_examples=120, deadline=None)
@given(PLANS, INTERVALS, st.lists(st.integers(0, 15 * SECOND), min_size=5, max_size=5))
def test_however_late_turns_are_heard_of_nothing_is_lost_or_counted_twice(
    plans: list[Plan], intervals: list[int], delays: list[int]
) -> None:
    closed, until = happen(plans, intervals, delays, 10)
    found = totals(closed)
    assert sum(total.duration_us for total in found.values()) == until
    decoded = sum(count for plan in plans for _, count in plan.gaps)
    assert sum(total.tokens for total in found.values()) == decoded
    assert all(not found[name].tokens for name in ("idle", "prefill") if name in found)


def test_joules_a_token_are_power_times_time_over_tokens() -> None:
    """A steady loop of 20 tokens a second at 10 W, on a device that idles at 2 W."""
    agent = Agent()
    course = agent.begin(3.3)
    for second in range(1, 60):
        if 4 <= second <= 44:
            steps = [(50_000, 1)] * 20
            first = (second - 4) * 20
            agent.progress(
                course,
                second + 0.3,
                [(None, 1), *steps[1:]] if not first else steps,
                first=first,
                ttft=0.05,
            )
        if second == 44:
            agent.end(course, 44.3)
        agent.read(second, 10.0 if 3.3 < second <= 44.3 else 2.0)
    found = joules_a_token(totals([agent.found()]))
    assert not isinstance(found, str)
    (energy,) = found
    assert (energy.rail, energy.tokens) == ("device_watts:VDD_IN", 41 * 20 - 1)
    assert energy.watts == pytest.approx(10)
    assert energy.joules == pytest.approx(10 * 0.05, rel=1e-3)
