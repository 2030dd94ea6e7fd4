"""What holds the clocks of a device down, if anything. Pure.

A clock that is low says little: at low load that is how power is saved. So what counts is, in this
order, what the hardware, its firmware or the kernel itself says (a cooling device that is in use, a
counter that grows, a bit that is set), then a setting that was changed, and a clock only where the
device is loaded and something else speaks against it as well.

- power: the supply voltage is too low, say the firmware of a Raspberry Pi or OC1 of a Jetson.
- over_current: OC2 of a Jetson; OC3 where it takes time, or where clocks under load fell with it.
- thermal: a cooling device that limits clocks is in use; the throttle counters of a PC grow; the
  GPU's driver or the firmware says so; a sensor is at its passive trip point and clocks are down
  under load; a cap fell in heat.
- power: a power limit is reached, says the GPU's driver, or RAPL with clocks down under load.
- policy: the power mode or a cap was changed while it was cool, which is no throttling.

This is the order of severity: of several causes the first is the state, and the others are named in
its evidence. A voltage that sags comes first, since it restarts boards and spoils storage,
and since the firmware of a Raspberry Pi sets its other bits because of it. A power limit comes
after heat: many GPUs are at it whenever they work.

OC1 is `power` because it is the same thing as the Raspberry Pi's bit, with the same remedy: the
input voltage, and not what the module draws. OC2 (the mean) and OC3 (the peaks) are of the current.
OC3 alone is no verdict: on an Orin Nano it ticks up to 30 times a second while the board does next
to nothing, and then costs it less than 1 % of its time. A duty is not made up from the number of
ticks, because ticks are not all of one length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from decodewatch.shared.diagnose.showing import (
    ALARM,
    COOLING,
    CPU_EVENTS,
    CPU_HW_MAX,
    CPU_MAX,
    CPU_TIME,
    FIRMWARE,
    FIRMWARE_BEFORE,
    GPU_LEVEL,
    GPU_LIMIT,
    OC_EVENTS,
    OC_TIME,
    PASSIVE,
    POWER,
    POWER_LIMIT,
    WORKING,
    Clock,
    Heat,
    Increase,
    Levels,
    Lowered,
    Seen,
    busiest,
    cooling,
    heat,
    of,
    used,
)
from decodewatch.shared.records import THROTTLE_STATES, Measured, Scalar
from decodewatch.shared.sensors import TEMPERATURE

Confidence = Literal["high", "low"]
"""high: the hardware, its firmware or the kernel says so itself, or settings were seen to change.
low: concluded from clocks and temperatures."""
Unreadable = Literal["absent", "denied", "transient"]
SHARE: Final = "throttled_share"
"""The measurement that the agent makes of its verdicts, one label a state."""
THROTTLED: Final = tuple(state for state in THROTTLE_STATES if state not in ("none", "unknown"))

SLOW: Final = 0.9
"""Below such a share of what it should be a clock counts as down. Turbo, rounding to steps and
reading a moment later stay above it."""
SETTLE_S: Final = 3.0
"""A clock has to be down, and a setting changed, for so long: governors take tenths of a second,
and programs that set modes write one file after the other."""
DUTY: Final = 0.02
"""OC3 holds the clocks where it takes a larger share of the time than this."""
DUTY_OVER_S: Final = 5.0
"""The counters of a Jetson are written every 2 s: over less, no share can be told."""
_CAPPED: Final = 0.97
_AT_LIMIT: Final = 0.97
_MOST_EVIDENCE: Final = 14
_LONGEST: Final = 256  # characters that the text of an event may have


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds the clocks down: one of `records.THROTTLE_STATES`.

    `sentence` says why and what to do. `watched` names what could have shown throttling; where that
    is nothing the state is unknown, and `reason` says why.
    """

    state: str
    confidence: Confidence
    evidence: Mapping[str, Scalar]
    sentence: str
    watched: tuple[str, ...]
    reason: Unreadable | None = None


def judge(seen: Seen) -> Verdict:
    """The verdict, by what is seen."""
    warmth = heat(seen.levels)
    causes = [cause for look in _BY_SEVERITY if (cause := look(seen, warmth)) is not None]
    watched, sure = _watched(seen, warmth)
    around = _around(seen, warmth)
    if causes:
        first = causes[0]
        also = dict.fromkeys(cause.state for cause in causes if cause.state != first.state)
        evidence = {**first.evidence, **({"also": ", ".join(also)} if also else {}), **around}
        return Verdict(first.state, first.confidence, _few(evidence), first.sentence, watched)
    unclear = _unclear(seen, warmth)
    if unclear is not None:
        told, shown = unclear
        sentence = (
            f"Not known: {told}, and nothing that can be read says why. Let the agent read the "
            "thermal zones and cooling devices."
        )
        reason = _why_unknown(seen, (TEMPERATURE, COOLING))
        evidence = {**shown, **around}
        return Verdict("unknown", "low", _few(evidence), _cut(sentence), watched, reason)
    if not watched:
        reason = _why_unknown(seen, (COOLING, PASSIVE, OC_EVENTS, CPU_EVENTS, FIRMWARE, GPU_LIMIT))
        return Verdict("unknown", "low", _few(around), _UNKNOWN[reason], watched, reason)
    told = ", ".join(watched)
    sentence = f"No sign of throttling in what can be watched: {told}.{_blind(seen, watched)}"
    evidence = {"watched": told, **around}
    return Verdict("none", "high" if sure else "low", _few(evidence), _cut(sentence), watched)


def state_of_shares(values: Mapping[str, Measured]) -> str | None:
    """The state of an interval by a sample's `throttled_share:*`: that of most of its time.

    `none` only where there was nothing else at all: a state that held for a second counts. None
    where the sample has no such share.
    """
    shares: dict[str, float] = {}
    for state in THROTTLED:
        value = values.get(f"{SHARE}:{state}")
        if value is not None:
            shares[state] = value[0] if isinstance(value, (tuple, list)) else value
    if not shares:
        return None
    # Of equal shares the more severe one.
    state = max(_SEVERITY, key=lambda one: shares.get(one, 0.0))
    return state if shares.get(state, 0.0) > 0 else "none"


# The causes: each looks for one, and says what speaks for it.


@dataclass(frozen=True, slots=True)
class _Cause:
    state: str
    confidence: Confidence
    evidence: Mapping[str, Scalar]
    lead: str
    phrases: Sequence[str]
    advice: str

    @property
    def sentence(self) -> str:
        """Why, in as many words as there is room for, and what to do."""
        tries = [
            f"{self.lead}: {'; '.join(self.phrases[:most])}. {self.advice}" for most in (3, 2, 1)
        ]
        return next((text for text in tries if len(text) <= _LONGEST), _cut(tries[-1]))


def _under_voltage(seen: Seen, warmth: Heat | None) -> _Cause | None:
    evidence: dict[str, Scalar] = {}
    phrases = []
    if of(seen.levels, FIRMWARE).get("under_voltage", 0.0) > 0:
        slowed = [
            name
            for name in ("frequency_capped", "throttled")
            if of(seen.levels, FIRMWARE).get(name)
        ]
        evidence["firmware"] = ", ".join(["under_voltage", *slowed])
        phrases.append("the firmware sees it" + (" and slows the CPU" if slowed else ""))
    sagged = _grown(seen, OC_EVENTS, "oc1")
    if sagged is not None:
        evidence["oc1_events"] = sagged.amount
        phrases.append(f"OC1 {_times(sagged)}")
    if not phrases:
        return None
    advice = _also_hot(warmth) + "Use a stronger supply or a shorter cable, or a lower power mode."
    return _Cause("power", "high", evidence, "The supply voltage is too low", phrases, advice)


def _over_current(seen: Seen, warmth: Heat | None) -> _Cause | None:
    evidence: dict[str, Scalar] = {}
    phrases = []
    confidence: Confidence = "high"
    drawn = _grown(seen, OC_EVENTS, "oc2")
    if drawn is not None:
        evidence["oc2_events"] = drawn.amount
        phrases.append(f"OC2 {_times(drawn)}")
    duty = oc3_duty(seen)
    busy = busiest(seen.levels)
    if duty is not None and duty > DUTY and (busy is None or busy >= WORKING):
        evidence["oc3_duty_share"] = round(duty, 4)
        phrases.append(f"OC3 takes {_percent(duty)} of the time")
    fallen = next((one for one in seen.clocks if one.fallen_s >= SETTLE_S), None)
    if fallen is not None:
        ticked = _grown(seen, OC_EVENTS, "oc3")
        alarms = sorted(label for label, on in of(seen.levels, ALARM).items() if on > 0)
        signs = ([f"OC3 {_times(ticked)}"] if ticked is not None else []) + [
            f"the current of {label} is at its limit" for label in alarms[:1]
        ]
        if signs:
            confidence = "high" if phrases else "low"
            evidence.update(_clock_evidence(fallen))
            evidence["fallen_seconds"] = round(fallen.fallen_s, 1)
            phrases.append(f"{' and '.join(signs)} while {_clock(fallen)}")
    if not phrases:
        return None
    advice = "Choose a lower power mode or cap the clocks, or use a supply that the board asks for."
    lead = "The module draws more current than allowed"
    return _Cause("over_current", confidence, evidence, lead, phrases, advice)


def _thermal(seen: Seen, warmth: Heat | None) -> _Cause | None:
    evidence: dict[str, Scalar] = {}
    phrases = [*_cooling_phrases(seen, evidence), *_counted_phrases(seen, evidence)]
    if of(seen.levels, GPU_LIMIT).get("thermal", 0.0) > 0:
        evidence["gpu_limited"] = "thermal"
        phrases.append("the GPU's driver says that heat slows it")
    phrases += _firmware_phrases(seen, evidence)
    confidence: Confidence = "high" if phrases else "low"
    slow = next((one for one in seen.clocks if one.below_s >= SETTLE_S), None)
    if warmth is not None and warmth.at_trip and slow is not None:
        evidence.update(_clock_evidence(slow))
        evidence["below_seconds"] = round(slow.below_s, 1)
        phrases.append(f"{_heat(warmth)} and {_clock(slow)}")
    capped = next((one for one in _settled(seen) if one.hot), None)
    if capped is not None:
        evidence.update(_change_evidence(capped))
        phrases.append(_change(capped))
    if not phrases:
        return None
    advice = "Give it air or a fan, or choose a lower power mode."
    return _Cause("thermal", confidence, evidence, "Heat holds the clocks down", phrases, advice)


def _cooling_phrases(seen: Seen, evidence: dict[str, Scalar]) -> Iterable[str]:
    """Of cooling devices in use: more than at rest, or so that the caps that they set are seen.

    The cap may be of somebody who changed it while it was cool, and the state one of rest.
    """
    in_use = used(seen)
    capped = _capped(seen.levels)
    if not in_use and capped is not None and not _settled(seen):
        in_use = {label: state for label, state in cooling(seen.levels).items() if state > 0}
    if not in_use:
        return
    label = max(in_use, key=lambda one: (in_use[one], one))
    level = f"{in_use[label]:g}" if label.startswith(GPU_LEVEL) else _percent(in_use[label])
    evidence["cooling"] = f"{label} {level}"
    if len(in_use) > 1:
        evidence["cooling_devices"] = len(in_use)
    phrase = f"the cooling device {label} is at {level} of its range"
    if label.startswith(GPU_LEVEL):
        phrase = f"the GPU's thermal level is {level}"
    if capped is not None:
        policy, share = capped
        evidence["capped"] = f"{policy} {_percent(share)}"
        phrase += f" and {policy} may run at {_percent(share)} of its highest clock"
    yield phrase


def _counted_phrases(seen: Seen, evidence: dict[str, Scalar]) -> Iterable[str]:
    for label in sorted({*seen.increases.get(CPU_TIME, ()), *seen.increases.get(CPU_EVENTS, ())}):
        time, events = _grown(seen, CPU_TIME, label), _grown(seen, CPU_EVENTS, label)
        if time is not None:
            share = min(time.amount / 1e6 / time.seconds, 1.0)
            evidence["throttled_by_counter"] = f"{label} {_percent(share)}"
            yield f"{label or 'the CPU'} was throttled for {_percent(share)} of the time"
        elif events is not None:
            evidence["throttled_by_counter"] = f"{label} {events.amount:g} times"
            yield f"{label or 'the CPU'} was throttled {_times(events)}"


def _firmware_phrases(seen: Seen, evidence: dict[str, Scalar]) -> Iterable[str]:
    found = of(seen.levels, FIRMWARE)
    # With a low voltage the firmware sets these because of it.
    sagging = found.get("under_voltage", 0.0) > 0
    names = ["soft_temp_limit"] if sagging else _HEAT_BITS
    bits = [name for name in names if found.get(name, 0.0) > 0]
    if bits:
        evidence["firmware"] = ", ".join(bits)
        yield f"the firmware says {' and '.join(bits).replace('_', ' ')}"


def _power_limit(seen: Seen, warmth: Heat | None) -> _Cause | None:
    evidence: dict[str, Scalar] = {}
    phrases = []
    confidence: Confidence = "low"
    if of(seen.levels, GPU_LIMIT).get("power", 0.0) > 0:
        confidence = "high"
        evidence["gpu_limited"] = "power"
        phrases.append("the GPU's driver says that it is at its power limit")
    slow = next((c for c in seen.clocks if c.domain == "cpu" and c.below_s >= SETTLE_S), None)
    if slow is not None:
        for domain, limit in of(seen.levels, POWER_LIMIT).items():
            watts = of(seen.levels, POWER).get(domain)
            if watts is not None and 0 < limit * _AT_LIMIT <= watts:
                evidence.update(power_watts=round(watts, 2), power_limit_watts=round(limit, 2))
                evidence.update(_clock_evidence(slow))
                phrases.append(f"{domain} draws {watts:.3g} of {limit:.3g} W and {_clock(slow)}")
                break
    if not phrases:
        return None
    advice = "Raise the limit where supply and cooling allow it, or expect this speed."
    advice = _also_hot(warmth) + advice
    return _Cause("power", confidence, evidence, "A power limit is reached", phrases, advice)


def _also_hot(warmth: Heat | None) -> str:
    """A sentence where it is hot besides."""
    if warmth is None or not warmth.hot:
        return ""
    at = f"It is also at {warmth.celsius:.0f} °C"
    if warmth.passive is None:
        return f"{at}. "
    below = round(warmth.passive) - round(warmth.celsius)
    if not below:
        return f"{at}, its passive trip point. "
    return f"{at}, {abs(below)} °C {'below' if below > 0 else 'above'} its passive trip point. "


def _policy(seen: Seen, warmth: Heat | None) -> _Cause | None:
    changes = [one for one in _settled(seen) if one.hot is False]
    if not changes:
        return None
    # A mode says more than the caps that it sets.
    first = min(changes, key=lambda one: (isinstance(one.before, float | int), -one.ago_s))
    evidence = _change_evidence(first)
    if len(changes) > 1:
        evidence["settings_changed"] = len(changes)
    advice = "Set it back if nobody wanted that (on a Jetson with nvpmodel or jetson_clocks)."
    lead = "Not throttled, a setting was changed"
    return _Cause("policy", "high", evidence, lead, [_change(first)], advice)


_BY_SEVERITY: Final[tuple[Callable[[Seen, Heat | None], _Cause | None], ...]] = (
    _under_voltage,
    _over_current,
    _thermal,
    _power_limit,
    _policy,
)
_SEVERITY: Final = ("power", "over_current", "thermal", "policy")


def oc3_duty(seen: Seen) -> float | None:
    """The share of the time that OC3 takes; None where it is not known, or not for long enough."""
    increase = seen.increases.get(OC_TIME, {}).get("oc3")
    if increase is None or increase.seconds < DUTY_OVER_S:
        return None
    return increase.amount / 1e6 / increase.seconds


def _unclear(seen: Seen, warmth: Heat | None) -> tuple[str, dict[str, Scalar]] | None:
    """A cap that fell, or that has been there all along, where neither heat nor what cools can be
    read: on Android a cap is all that an app sees of both."""
    if warmth is not None or of(seen.levels, COOLING):
        return None
    changed = next((one for one in _settled(seen) if one.hot is None), None)
    if changed is not None:
        return _change(changed), _change_evidence(changed)
    capped = _capped(seen.levels)
    if capped is None:
        return None
    policy, share = capped
    told = f"{policy} may run at {_percent(share)} of its highest clock"
    return told, {"capped": f"{policy} {_percent(share)}"}


# What could have shown throttling.

_COOLING: Final = "cooling devices"
_TRIPS: Final = "temperatures against trip points"
_CPU_COUNTERS: Final = "the CPU's throttle counters"
_GPU_LEVEL: Final = "the GPU's thermal level"
_GPU_DRIVER: Final = "the GPU's driver"
_HEAT_SHOWS_IN: Final = frozenset((_COOLING, _TRIPS, _CPU_COUNTERS))
_GPU_HEAT_SHOWS_IN: Final = frozenset((_GPU_LEVEL, _GPU_DRIVER))
_HEAT_BITS: Final = ("soft_temp_limit", "throttled", "frequency_capped")

_UNKNOWN: Final[Mapping[Unreadable, str]] = {
    "absent": "Not known: nothing here shows whether clocks are held down: no trip points, "
    "cooling devices or counters can be read.",
    "denied": "Not known: this user may read nothing that would say so. Give the agent the rights "
    "that the installation guide names.",
    "transient": "Not known now: what would say so could not be read.",
}


def _watched(seen: Seen, warmth: Heat | None) -> tuple[tuple[str, ...], bool]:
    """What is readable that throttling would show in, and whether any of it speaks of now."""
    counted = {
        _CPU_COUNTERS: (CPU_TIME, CPU_EVENTS),
        "over-current counters": (OC_EVENTS,),
    }
    said = {
        _COOLING: bool(of(seen.levels, COOLING)),
        _GPU_LEVEL: bool(of(seen.levels, GPU_LEVEL)),
        "the firmware": bool(of(seen.levels, FIRMWARE)),
        _GPU_DRIVER: bool(of(seen.levels, GPU_LIMIT)),
        _TRIPS: warmth is not None and warmth.passive is not None,
    }
    found = [name for name, there in said.items() if there]
    sure = bool(found)
    for name, counters in counted.items():
        known = [one for counter in counters for one in seen.increases.get(counter, {}).values()]
        if known:
            found.append(name)
            sure = sure or any(one is not None for one in known)
    # A CPU that runs at all that the hardware can is held by nothing, whoever is silent.
    if _capped(seen.levels) is None and any(
        one.domain == "cpu" and one.loaded and one.share >= SLOW for one in seen.clocks
    ):
        found.append("the clock under load")
    return tuple(found), sure


def _blind(seen: Seen, watched: Sequence[str]) -> str:
    """What to say where heat would not show in what is watched."""
    firmware = of(seen.levels, FIRMWARE)
    if not _HEAT_SHOWS_IN.isdisjoint(watched) or any(bit in firmware for bit in _HEAT_BITS):
        return ""
    if not _GPU_HEAT_SHOWS_IN.isdisjoint(watched):
        return " Heat of the CPU would not show here."
    return " Heat would not show here."


def _why_unknown(seen: Seen, names: Iterable[str]) -> Unreadable:
    reasons = {reason for name in names for reason in seen.unknown.get(name, ())}
    return "denied" if "denied" in reasons else "transient" if "transient" in reasons else "absent"


def _around(seen: Seen, warmth: Heat | None) -> dict[str, Scalar]:
    """What belongs to any verdict, as far as it is known."""
    found: dict[str, Scalar] = {}
    if warmth is not None:
        found["sensor"] = warmth.sensor
        found["tj_celsius"] = round(warmth.celsius, 1)
        if warmth.passive is not None:
            found["passive_celsius"] = round(warmth.passive, 1)
    for one in seen.clocks[:2]:
        found.update(_clock_evidence(one))
    busy = busiest(seen.levels)
    if busy is not None:
        found["busy_share"] = round(busy, 2)
    ticked = _grown(seen, OC_EVENTS, "oc3")
    if ticked is not None:
        found["oc3_per_second"] = round(ticked.amount / ticked.seconds, 1)
    alarms = sorted(label for label, on in of(seen.levels, ALARM).items() if on > 0)
    if alarms:
        found["power_alarm"] = ", ".join(alarms[:4])
    before = [name for name, on in of(seen.levels, FIRMWARE_BEFORE).items() if on > 0]
    if before:
        found["since_boot"] = ", ".join(sorted(before)[:4])
    return found


# Small helpers.


def _grown(seen: Seen, name: str, label: str) -> Increase | None:
    """By how much a counter grew, where it is known to have grown."""
    increase = seen.increases.get(name, {}).get(label)
    return (
        increase if increase is not None and increase.amount > 0 and increase.seconds > 0 else None
    )


def _settled(seen: Seen) -> list[Lowered]:
    return [one for one in seen.lowered if one.ago_s >= SETTLE_S]


def _capped(levels: Levels) -> tuple[str, float] | None:
    """The policy whose cap is furthest below what the hardware can, and the share; None: none."""
    found = [
        (label, cap / top)
        for label, cap in of(levels, CPU_MAX).items()
        if (top := of(levels, CPU_HW_MAX).get(label, 0.0)) > 0 and cap < _CAPPED * top
    ]
    return min(found, key=lambda one: one[1], default=None)


def _clock_evidence(clock: Clock) -> dict[str, Scalar]:
    name = clock.domain.replace(":", "_")
    return {
        f"{name}_hertz": round(clock.hertz),
        f"{name}_allowed_hertz": round(clock.allowed_hertz),
    }


def _change_evidence(change: Lowered) -> dict[str, Scalar]:
    unit = "" if isinstance(change.before, str) else "_hertz"
    return {
        "setting": change.name[:128],
        f"before{unit}": change.before,
        f"after{unit}": change.after,
        "changed_seconds_ago": round(change.ago_s),
    }


def _change(change: Lowered) -> str:
    at = "" if change.celsius is None else f" at {change.celsius:.0f} °C"
    before, after = (
        one if isinstance(one, str) else _hertz(one) for one in (change.before, change.after)
    )
    return (
        f"{change.name[:64]} went from {before[:32]} to {after[:32]} {_span(change.ago_s)} ago{at}"
    )


def _clock(clock: Clock) -> str:
    who = clock.domain.upper()
    return f"the {who} under load runs at {_hertz(clock.hertz)} of {_hertz(clock.allowed_hertz)}"


def _heat(warmth: Heat) -> str:
    return f"{warmth.sensor} is at {warmth.celsius:.0f} °C of {warmth.passive or 0:.0f} °C"


def _hertz(value: float) -> str:
    return f"{value / 1e9:.3g} GHz" if value >= 1e9 else f"{value / 1e6:.3g} MHz"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.095 else f"{share * 100:.0f} %"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _times(increase: Increase) -> str:
    count = f"{increase.amount:.0f} times" if increase.amount != 1 else "once"
    return f"{count} in {max(increase.seconds, 1):.0f} s"


def _few(evidence: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {
        name: _cut(value) if isinstance(value, str) else value
        for name, value in list(evidence.items())[:_MOST_EVIDENCE]
    }


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
