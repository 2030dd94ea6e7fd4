"""What a device shows, as the verdict on throttling takes it. Pure.

Readings are levels by measurement and label, increases of counters, settings that were lowered and
clocks that were down; the agent keeps what of the moments before bears on now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from decodewatch.shared.sensors import TEMPERATURE, is_junction

Levels = Mapping[str, Mapping[str, float]]
"""Measurement → label ('' where it has none) → value."""

PASSIVE: Final = "temp_passive_celsius"
COOLING: Final = "cooling_share"
GPU_LEVEL: Final = "gpu_thermal_level"
OC_EVENTS: Final = "overcurrent_events"
OC_TIME: Final = "overcurrent_microseconds"
CPU_EVENTS: Final = "cpu_throttle_events"
CPU_TIME: Final = "cpu_throttle_microseconds"
FIRMWARE: Final = "firmware_limit"
FIRMWARE_BEFORE: Final = "firmware_limit_since_boot"
GPU_LIMIT: Final = "gpu_limited"
ALARM: Final = "power_alarm"
POWER: Final = "power_watts"
POWER_LIMIT: Final = "power_limit_watts"
CPU_MAX: Final = "cpu_max_hertz"
CPU_MIN: Final = "cpu_min_hertz"
CPU_HW_MAX: Final = "cpu_hw_max_hertz"
POWER_MODE: Final = "power_mode"
CAPS: Final = (CPU_MAX, "gpu_max_hertz", "dram_max_hertz", "power_cap_hertz")
"""What a clock may not exceed."""
COUNTERS: Final = (OC_EVENTS, OC_TIME, CPU_EVENTS, CPU_TIME)
READ: Final = frozenset(
    (
        TEMPERATURE, PASSIVE, COOLING, GPU_LEVEL, *COUNTERS, FIRMWARE, FIRMWARE_BEFORE, GPU_LIMIT,
        ALARM, POWER, POWER_LIMIT, *CAPS, CPU_MIN, CPU_HW_MAX, POWER_MODE, "cpu_hertz",
        "cpu_mean_hertz", "cpu_busy_share", "gpu_hertz", "gpu_busy_share",
    )
)  # fmt: skip
"""Every measurement that a verdict may rest on."""


LOADED: Final = 0.8
"""Busy for such a share of the time, a governor gives all that is allowed: the kernel's schedutil
asks for 1.25 times what is used."""
WORKING: Final = 0.3
"""Less busy than this, a device has no work that could be held up."""
AT_TRIP_C: Final = 1.0
"""So close below its passive trip point a sensor is at it: sensors lag behind the chip."""
NEAR_TRIP_C: Final = 10.0
HOT_C: Final = 70.0
"""A sensor is hot less than `NEAR_TRIP_C` below its passive trip point, or from `HOT_C` on where
there is none. Only a cap that falls is judged by it."""


class Increase(NamedTuple):
    """By how much a counter grew, and in how many seconds."""

    amount: float
    seconds: float


class Heat(NamedTuple):
    """The sensor of the chip that is closest to its passive trip point, else the hottest."""

    sensor: str
    celsius: float
    passive: float | None

    @property
    def at_trip(self) -> bool:
        """Whether it is at its passive trip point."""
        return self.passive is not None and self.celsius >= self.passive - AT_TRIP_C

    @property
    def hot(self) -> bool:
        """Whether heat may be why a cap falls."""
        if self.passive is None:
            return self.celsius >= HOT_C
        return self.celsius >= self.passive - NEAR_TRIP_C


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of the CPU or of a GPU against what is allowed.

    `below_s` says for how long it has been down against that while it was loaded, `fallen_s`
    against the best share of it that was seen under load.
    """

    domain: str
    hertz: float
    allowed_hertz: float
    busy: float | None
    below_s: float = 0.0
    fallen_s: float = 0.0

    @property
    def share(self) -> float:
        """Of what is allowed."""
        return self.hertz / self.allowed_hertz

    @property
    def loaded(self) -> bool:
        """Whether it should run at what is allowed."""
        return self.busy is not None and self.busy >= LOADED


@dataclass(frozen=True, slots=True)
class Lowered:
    """A setting that was lowered, or a power mode that was changed, and how warm it was then.

    `hot` is None where no temperature of the chip was known.
    """

    name: str
    before: float | str
    after: float | str
    ago_s: float
    hot: bool | None
    celsius: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a device shows now, and what of the moments before bears on it."""

    levels: Levels = field(default_factory=dict)
    increases: Mapping[str, Mapping[str, Increase | None]] = field(default_factory=dict)
    """Of the counters that can be read; None: not known yet."""
    unknown: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Why measurements are not known."""
    at_rest: Mapping[str, float] = field(default_factory=dict)
    """The lowest state of each cooling device while it was cool: phones leave some in use."""
    clocks: Sequence[Clock] = ()
    lowered: Sequence[Lowered] = ()


def of(levels: Levels, name: str) -> Mapping[str, float]:
    return levels.get(name, {})


def heat(levels: Levels) -> Heat | None:
    """How close the chip is to its trip points; None where no sensor of it is known.

    A sensor without a trip point of its own is held against the lowest one of the others.
    """
    trips = {label: trip for label, trip in of(levels, PASSIVE).items() if is_junction(label)}
    lowest = min(trips.values(), default=None)
    found = [
        Heat(label, celsius, trips.get(label, lowest))
        for label, celsius in of(levels, TEMPERATURE).items()
        if is_junction(label)
    ]
    return max(
        found, key=lambda one: (one.celsius - (one.passive or 0.0), one.sensor), default=None
    )


def cooling(levels: Levels) -> dict[str, float]:
    """The states of what cools by slowing down: 0 is not in use."""
    found = dict(of(levels, COOLING))
    for label, level in of(levels, GPU_LEVEL).items():
        found[f"{GPU_LEVEL}:{label}" if label else GPU_LEVEL] = level
    return found


def used(seen: Seen) -> dict[str, float]:
    """The cooling devices that are further in use than they are at rest."""
    return {
        label: state
        for label, state in cooling(seen.levels).items()
        if state > seen.at_rest.get(label, 0.0)
    }


def clocks(levels: Levels) -> list[Clock]:
    """The CPU's clock, that of the policy which comes closest to what is allowed, and each GPU's.

    Only the best policy tells: the others may have nothing to do.
    """
    found = []
    allowed = {**of(levels, CPU_HW_MAX), **of(levels, CPU_MAX)}
    running = {**of(levels, "cpu_hertz"), **of(levels, "cpu_mean_hertz")}
    cpu = [
        Clock("cpu", hertz, allowed[label], of(levels, "cpu_busy_share").get(""))
        for label, hertz in running.items()
        if allowed.get(label, 0.0) > 0
    ]
    if cpu:
        found.append(max(cpu, key=lambda one: one.share))
    most = of(levels, "gpu_max_hertz")
    for label, hertz in of(levels, "gpu_hertz").items():
        if most.get(label, 0.0) > 0:
            busy = of(levels, "gpu_busy_share").get(label)
            found.append(Clock(f"gpu:{label}" if label else "gpu", hertz, most[label], busy))
    return found


def busiest(levels: Levels) -> float | None:
    """The busy share of the CPU or of the GPU, the larger one; None where neither is known."""
    found = [*of(levels, "gpu_busy_share").values()]
    cpu = of(levels, "cpu_busy_share").get("")
    return max([*found, cpu] if cpu is not None else found, default=None)
