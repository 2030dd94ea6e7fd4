"""What holds the clocks down, second by second.

`decodewatch.shared.diagnose.throttle` judges; here is what it needs of the moments before: by how
much counters grew, for how long clocks have been down, which settings were lowered. A verdict that
comes is believed at once, one that goes only after a while, so that a governor that swings around
its trip point makes one stretch and not a hundred.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from decodewatch.agent.sources.kit.base import Measurement, Reading, Value, unknown
from decodewatch.shared.diagnose import showing, throttle
from decodewatch.shared.diagnose.showing import Clock, Heat, Increase, Levels, Lowered, Seen
from decodewatch.shared.diagnose.throttle import SETTLE_S, SLOW, THROTTLED, Verdict
from decodewatch.shared.records import Scalar

SHARE: Final = Measurement(
    throttle.SHARE,
    "share",
    "gauge",
    "1 while the clocks are held down by what the label names, else 0; the mean is the share of"
    " the time",
)

HOLD_S: Final = 5.0
"""A state ends when nothing has spoken for it for so long."""
NORMAL_S: Final = 600.0
"""So long after a setting was lowered it counts as changed, then as what is usual. Long enough for
whoever asks why a turn became slow; a device that is set to a lower power mode for good is not
throttled in it, and its figures are compared by power mode anyway."""
RAISED_S: Final = 120.0
"""A setting that was raised is usual after so long. Phones raise their lowest clock for a moment
whenever they are touched: what follows is no change. Twice as long as power modes take to be read
again, so that a mode is still known to have come with higher caps."""
COUNTER_S: Final = 3.5
"""Counters are looked at over so long: those of a Jetson are written every 2 s."""
SLOW_COUNTER_S: Final = 10.0
"""Those of OC3, which always ticks, over so long."""
GAP_S: Final = 10.0
"""What was seen before a longer gap (a device that slept) says nothing of how it runs now, where
readings are not made more seldom by setting."""
MOST_SETTINGS: Final = 512
MOST_COUNTERS: Final = 256
MOST_AT_REST: Final = 256
HISTORY: Final = 128
"""Changes of state that are remembered, for steps that are heard of later."""
EVENTS: Final = 12
EVENT_EVERY_S: Final = 300.0
"""So many stretches are told of at once, and one more each time so long has passed: a device that
throttles every other minute does so all year. The samples have every second of it."""

_SECOND: Final = 1_000_000
_RANK: Final[Mapping[str, int]] = {
    state: rank
    for rank, state in enumerate(("power", "over_current", "thermal", "policy", "none", "unknown"))
}
_NOT_YET: Final = Verdict("unknown", "low", {}, "Nothing was read yet.", (), "transient")

Tell = Callable[[str, dict[str, Scalar]], None]


class _Counter:
    """What only grows, over the last seconds."""

    __slots__ = ("_over_us", "_seen")

    def __init__(self, over_s: float) -> None:
        self._over_us = round(over_s * _SECOND)
        self._seen: deque[tuple[int, Value]] = deque()

    def see(self, value: Value, now_us: int) -> Increase | None:
        """By how much it grew, and since when; None from a single reading."""
        seen = self._seen
        if seen and value < seen[-1][1]:
            seen.clear()  # it wrapped, or its driver was loaded again: it counts on from here
        seen.append((now_us, value))
        while len(seen) > 2 and now_us - seen[1][0] >= self._over_us:
            seen.popleft()
        first_us, first = seen[0]
        return Increase(value - first, (now_us - first_us) / _SECOND) if len(seen) > 1 else None


class _Pace:
    """For how long a clock has been down under load."""

    __slots__ = ("_below_us", "_best", "_fallen_us")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is known of it: a gap, or other caps."""
        self._best = 0.0
        self._below_us: int | None = None
        self._fallen_us: int | None = None

    def see(self, clock: Clock, now_us: int) -> Clock:
        """The clock, and for how long."""
        # A load that could not be read this once says nothing.
        if clock.busy is not None and not clock.loaded:
            self._below_us = self._fallen_us = None
        elif clock.loaded:
            self._below_us = _since(clock.share < SLOW, self._below_us, now_us)
            self._fallen_us = _since(clock.share < SLOW * self._best, self._fallen_us, now_us)
            self._best = max(self._best, min(clock.share, 1.0))
        return replace(
            clock, below_s=_ago(self._below_us, now_us), fallen_s=_ago(self._fallen_us, now_us)
        )


def _since(holds: bool, since_us: int | None, now_us: int) -> int | None:
    return (now_us if since_us is None else since_us) if holds else None


def _ago(since_us: int | None, now_us: int) -> float:
    return 0.0 if since_us is None else (now_us - since_us) / _SECOND


class _Setting:
    """A cap, a lowest clock or a power mode, against what is usual."""

    __slots__ = ("_celsius", "_forget_us", "_hot", "_lowered_us", "_raised_us", "_usual", "value")

    def __init__(self, value: Value | str) -> None:
        self.value = value
        self._usual = value
        self._lowered_us: int | None = None
        self._raised_us: int | None = None
        self._forget_us = 0
        self._hot: bool | None = None
        self._celsius: float | None = None

    @property
    def raised(self) -> bool:
        """Whether it is above what is usual."""
        return self._raised_us is not None

    @property
    def lowered(self) -> bool:
        """Whether it is below what is usual, or another word."""
        return self._lowered_us is not None

    def see(self, value: Value | str, hot: bool | None, celsius: float | None, now_us: int) -> bool:
        """Take its value in, and whether heat may set it now. Whether the value is another one."""
        changed, self.value = value != self.value, value
        if self._is_lower(value):
            self._raised_us = None
            self._lower(value, hot, celsius, now_us)
            return changed
        self._lowered_us = None
        if value == self._usual:
            self._raised_us = None
        elif self._raised_us is None or changed:
            self._raised_us = now_us
        elif now_us - self._raised_us >= RAISED_S * _SECOND:
            self.accept()
        return changed

    def accept(self) -> None:
        """What it is now is usual."""
        self._usual = self.value
        self._lowered_us = self._raised_us = None

    def change(self, name: str, now_us: int) -> Lowered | None:
        """How it was lowered, where it was."""
        if self._lowered_us is None:
            return None
        ago_s = _ago(self._lowered_us, now_us)
        return Lowered(name, self._usual, self.value, ago_s, self._hot, self._celsius)

    def _is_lower(self, value: Value | str) -> bool:
        usual = self._usual
        if isinstance(value, str) or isinstance(usual, str):
            return value != usual
        return value < usual

    def _lower(
        self, value: Value | str, hot: bool | None, celsius: float | None, now_us: int
    ) -> None:
        if self._lowered_us is None:
            self._lowered_us = now_us
            self._forget_us = now_us + round(NORMAL_S * _SECOND)
            self._hot, self._celsius = hot, celsius
        elif now_us - self._lowered_us <= SETTLE_S * _SECOND and (hot or self._hot is None):
            self._hot = hot  # the cooling device that set it is seen a moment later
        if self._hot and hot:
            self._forget_us = now_us + round(NORMAL_S * _SECOND)  # as long as the heat lasts
        if now_us >= self._forget_us:
            self.accept()


class _Recent:
    """What the moments before say of the present one."""

    def __init__(self, interval_us: int) -> None:
        self._gap_us = max(round(GAP_S * _SECOND), 2 * interval_us)
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._paces: dict[str, _Pace] = {}
        self._settings: dict[tuple[str, str], _Setting] = {}
        self._at_rest: dict[str, float] = {}
        self._last_us: int | None = None

    def see(self, readings: Sequence[Reading], now_us: int) -> Seen:
        """What there is to judge, after all readings of one moment."""
        if self._last_us is not None and now_us - self._last_us > self._gap_us:
            self._paces.clear()
            self._counters.clear()
        self._last_us = now_us
        levels: dict[str, dict[str, float]] = {}
        unknown_now: dict[str, set[str]] = {}
        increases: dict[str, dict[str, Increase | None]] = {}
        mode: str | None = None
        for reading in readings:
            name, label, value = reading.measurement.name, reading.label, reading.value
            if name not in showing.READ:
                continue
            if reading.reason is not None:
                unknown_now.setdefault(name, set()).add(reading.reason)
            elif value is None:
                mode = reading.word if name == showing.POWER_MODE else mode
            elif name in showing.COUNTERS:
                increases.setdefault(name, {})[label] = self._count(name, label, value, now_us)
            else:
                levels.setdefault(name, {})[label] = value
        seen = Seen(
            levels=levels,
            increases=increases,
            unknown={name: frozenset(reasons) for name, reasons in unknown_now.items()},
            at_rest=self._at_rest,
        )
        warmth = showing.heat(levels)
        self._rest(levels, warmth)
        lowered = self._set(seen, warmth, mode, now_us)
        clocks = [
            self._paces.setdefault(clock.domain, _Pace()).see(clock, now_us)
            for clock in showing.clocks(levels)
        ]
        return replace(seen, clocks=clocks, lowered=lowered)

    def _count(self, name: str, label: str, value: Value, now_us: int) -> Increase | None:
        counter = self._counters.get((name, label))
        if counter is None:
            if len(self._counters) >= MOST_COUNTERS:
                return None
            always = name == showing.OC_TIME or label == "oc3"
            counter = _Counter(SLOW_COUNTER_S if always else COUNTER_S)
            self._counters[name, label] = counter
        return counter.see(value, now_us)

    def _rest(self, levels: Levels, warmth: Heat | None) -> None:
        """Learn the state that cooling devices have while the device is cool."""
        if warmth is None or warmth.hot:
            return
        for label, state in showing.cooling(levels).items():
            known = self._at_rest.get(label)
            if known is None and len(self._at_rest) >= MOST_AT_REST:
                self._at_rest.clear()  # of devices that come back under new names; learnt again
            if known is None or state < known:
                self._at_rest[label] = state

    def _set(self, seen: Seen, warmth: Heat | None, mode: str | None, now_us: int) -> list[Lowered]:
        """The settings that are lower than usual."""
        hot = _by_heat(seen, warmth)
        celsius = None if warmth is None else warmth.celsius
        values: dict[tuple[str, str], Value | str] = {
            (name, label): value
            for name in (*showing.CAPS, showing.CPU_MIN)
            for label, value in seen.levels.get(name, {}).items()
        }
        if mode is not None:
            values[showing.POWER_MODE, ""] = mode
        for key, value in values.items():
            setting = self._settings.get(key)
            if setting is None:
                if len(self._settings) < MOST_SETTINGS:
                    self._settings[key] = _Setting(value)
            elif setting.see(value, hot, celsius, now_us) and key[0] in showing.CAPS:
                # What the clocks reached under other caps says nothing of these.
                self._paces.clear()
        return self._lowered(seen.levels, now_us)

    def _lowered(self, levels: Levels, now_us: int) -> list[Lowered]:
        by_mode = self._settings.get((showing.POWER_MODE, ""))
        numbers = [one for one in self._settings.values() if one is not by_mode]
        faster = any(one.raised for one in numbers) and not any(one.lowered for one in numbers)
        if by_mode is not None and by_mode.lowered and faster:
            by_mode.accept()
        changed_mode = by_mode is not None and by_mode.lowered
        found = []
        for (name, label), setting in self._settings.items():
            change = setting.change(f"{name}:{label}" if label else name, now_us)
            if change is None or (name == showing.CPU_MIN and not _slower(change, levels, label)):
                continue
            # A mode sets its caps whether it is hot or not.
            found.append(replace(change, hot=False) if changed_mode else change)
        return found


def _by_heat(seen: Seen, warmth: Heat | None) -> bool | None:
    """Whether heat may be why a setting is lowered now; None where nothing can tell."""
    if showing.used(seen):
        return True
    if warmth is not None:
        return warmth.hot
    # That the GPU is not held says nothing of the CPU.
    return False if seen.levels.get(showing.COOLING) else None


def _slower(change: Lowered, levels: Levels, policy: str) -> bool:
    """Whether a policy runs below what was its lowest clock: the governor may give it all."""
    clock = levels.get("cpu_mean_hertz", {}).get(policy, levels.get("cpu_hertz", {}).get(policy))
    return clock is None or isinstance(change.before, str) or clock < change.before


def verdict_of(readings: Sequence[Reading]) -> Verdict:
    """The verdict by the readings of one moment, as of a device of which nothing else is known.

    Levels count. Counters do not: what they counted since boot says nothing of now.
    """
    return throttle.judge(_Recent(_SECOND).see(readings, 0))


class ThrottleWatch:
    """Follows what holds the clocks down: the verdict now, its readings, and the events."""

    def __init__(self, tell: Tell, interval_us: int = _SECOND) -> None:
        """`tell` is given the kind and the data of an event; `interval_us` is the time between two
        readings as it was set."""
        self._tell = tell
        self._recent = _Recent(interval_us)
        self.verdict = _NOT_YET
        self._began_us = 0
        self._spoken_us: int | None = None
        self._history: deque[tuple[int, str]] = deque(maxlen=HISTORY)
        self._told = False
        self._hottest: float | None = None
        self._allowance = float(EVENTS)
        self._allowed_us: int | None = None
        self._untold = 0

    def see(self, readings: Sequence[Reading], now_us: int) -> list[Reading]:
        """Judge what was read at one moment; the verdict as readings."""
        self._take(throttle.judge(self._recent.see(readings, now_us)), now_us)
        state, reason = self.verdict.state, self.verdict.reason
        if state == "unknown":
            return [unknown(SHARE, reason or "absent", label) for label in THROTTLED]
        return [Reading(SHARE, label, int(label == state), None) for label in THROTTLED]

    def state_at(self, t_us: int) -> str:
        """The state at a moment of the boot clock; unknown before anything was read."""
        for since_us, state in reversed(self._history):
            if since_us <= t_us:
                return state
        return "unknown"

    def _take(self, found: Verdict, now_us: int) -> None:
        before = self.verdict
        weaker = _RANK[found.state] > _RANK[before.state]
        held = self._spoken_us is not None and now_us - self._spoken_us < HOLD_S * _SECOND
        if weaker and held:
            return
        self.verdict, self._spoken_us = found, now_us
        celsius = found.evidence.get("tj_celsius")
        if found.state == before.state:
            if isinstance(celsius, float):
                self._hottest = max(celsius, self._hottest or celsius)
            if self._history:
                return
        self._history.append((now_us, found.state))
        if before.state in THROTTLED and self._told:
            self._end(before.state, found.state, now_us)
        self._began_us = now_us
        self._hottest = celsius if isinstance(celsius, float) else None
        self._told = found.state in THROTTLED and self._may_tell(now_us)
        if self._told:
            self._begin(found)

    def _begin(self, verdict: Verdict) -> None:
        data: dict[str, Scalar] = {
            "state": verdict.state,
            **verdict.evidence,
            "confidence": verdict.confidence,
            "verdict": verdict.sentence,
        }
        if self._untold:
            data["stretches_untold"] = self._untold
            self._untold = 0
        policy = verdict.state == "policy"
        self._tell("clock_policy_changed" if policy else "throttle_began", data)

    def _end(self, state: str, then: str, now_us: int) -> None:
        if state == "policy":
            return
        data: dict[str, Scalar] = {
            "state": state,
            "seconds": round((now_us - self._began_us) / _SECOND, 1),
            "then": then,
        }
        if self._hottest is not None:
            data["hottest_celsius"] = self._hottest
        self._tell("throttle_ended", data)

    def _may_tell(self, now_us: int) -> bool:
        if self._allowed_us is not None:
            earned = (now_us - self._allowed_us) / (EVENT_EVERY_S * _SECOND)
            self._allowance = min(self._allowance + earned, float(EVENTS))
        self._allowed_us = now_us
        if self._allowance < 1:
            self._untold += 1
            return False
        self._allowance -= 1
        return True
