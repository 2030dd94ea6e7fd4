"""From the phases of samples to what the hardware showed in each, and to joules a decoded token.

Pure. The energy of a token is the mean power of a rail in `decode`, times how long that lasted,
over the tokens decoded in it. Every sum goes over those samples alone that know the rail, and
`mixed`, in which some of the power read prompts, is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from decodewatch.shared.records import Phase

DECODE: Final = "decode"
RAILS: Final = ("device_watts", "power_watts")
"""The measurements whose label names a rail, that of the whole device first."""
LEAST_TOKENS: Final = 100
LEAST_US: Final = 10_000_000
"""What a rail must have been read over: ten readings of a second."""

NoEnergy = Literal["no decode", "no rail", "too few"]
"""Why there is no energy of a token: nothing was decoded, no rail could be read meanwhile, or there
were too few tokens or seconds."""


@dataclass(slots=True)
class Level:
    """One measurement over the time of a phase in which it was known."""

    duration_us: int = 0
    tokens: int = 0
    integral: float = 0.0
    """The mean times microseconds, summed."""

    @property
    def mean(self) -> float:
        """The mean over that time."""
        return self.integral / self.duration_us


@dataclass(slots=True)
class Total:
    """One phase over several samples."""

    duration_us: int = 0
    tokens: int = 0
    levels: dict[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenEnergy:
    """The energy of a decoded token, by one rail: a measurement with its label."""

    rail: str
    joules: float
    watts: float
    tokens: int
    duration_us: int


def totals(samples: Iterable[Mapping[str, Phase]]) -> dict[str, Total]:
    """What each phase comes to over the phases of several samples."""
    found: dict[str, Total] = {}
    for phases in samples:
        for name, phase in phases.items():
            total = found.setdefault(name, Total())
            total.duration_us += phase.duration_us
            total.tokens += phase.tokens
            for key, value in phase.values.items():
                # A list where it comes straight from JSON. A counter is no level.
                if isinstance(value, (tuple, list)):
                    level = total.levels.setdefault(key, Level())
                    level.duration_us += phase.duration_us
                    level.tokens += phase.tokens
                    level.integral += value[0] * phase.duration_us
    return found


def joules_a_token(phases: Mapping[str, Total]) -> tuple[TokenEnergy, ...] | NoEnergy:
    """The energy of a decoded token by each rail, that of the whole device first and then the
    largest, or why there is none."""
    decode = phases.get(DECODE)
    if decode is None or not decode.tokens:
        return "no decode"
    rails = {key: level for key, level in decode.levels.items() if key.partition(":")[0] in RAILS}
    if not rails:
        return "no rail"
    found = [
        TokenEnergy(
            key, level.integral / 1e6 / level.tokens, level.mean, level.tokens, level.duration_us
        )
        for key, level in rails.items()
        if level.tokens >= LEAST_TOKENS and level.duration_us >= LEAST_US
    ]
    found.sort(key=lambda one: (RAILS.index(one.rail.partition(":")[0]), -one.joules, one.rail))
    return tuple(found) or "too few"
