"""Power rails of a board: what the sources that read them share."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.common import POWER, TOTAL_POWER
from decodewatch.agent.sources.kit.text import whole_number

VOLTS: Final = Measurement(
    "rail_volts", "volts", "gauge", "voltage of the rail that the label names"
)

UNUSED: Final = "NC"
"""What a channel is called that no rail is connected to."""

SUM: Final = "sum"
"""The label of a total that is the sum of rails."""

# More than any board; what is beyond is a register that reads all ones.
_VOLTS_BELOW: Final = 100.0
_AMPS_BELOW: Final = 200.0
_WATTS_BELOW: Final = 2000.0

# A rail that everything else hangs on, never added to its own parts.
_TOTALS: Final = ("VIN", "VDD_IN", "POM_5V_IN")

# Modules without such a rail: those that together are the module, and those that not all releases
# of its software show.
_SUMS: Final[tuple[tuple[frozenset[str], frozenset[str]], ...]] = (
    (  # AGX Orin; VIN_SYS_5V0 is the 5 V input of the rest, beside the other two and not above them
        frozenset({"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"}),
        frozenset({"VDDQ_VDD2_1V8AO"}),
    ),
    (  # AGX Xavier
        frozenset({"GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"}),
        frozenset(),
    ),
    (  # AGX Thor whose VIN cannot be read
        frozenset({"VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"}),
        frozenset(),
    ),
)

KNOWN: Final = frozenset(_TOTALS).union(*(some | more for some, more in _SUMS))
"""Rails that only Jetson modules have, by these names."""


def total(rails: Mapping[str, float | Reason]) -> Reading:
    """The power of the whole module by its rails, each with its watts or why these are unknown.

    The label says which rail that is, or that it is a sum. A sum with a part that is unknown is
    unknown too. Rails of a board that is not known here are not added up: some may be parts of
    others.
    """
    for label in _TOTALS:
        if label in rails:
            return _read(TOTAL_POWER, rails[label], label)
    for some, more in _SUMS:
        if some <= rails.keys():
            watts = 0.0
            for label in sorted(some | (more & rails.keys())):
                part = rails[label]
                if isinstance(part, str):
                    return unknown(TOTAL_POWER, part, SUM)
                watts += part
            return _read(TOTAL_POWER, round(watts, 6), SUM)
    return unknown(TOTAL_POWER, "absent")


def parse(content: bytes) -> int | None:
    """The number of a file such as `5016`, or with its unit as L4T 32 has them, `32760 ma`.

    None for anything else, also where the newline is missing: the number may have been cut.
    """
    content = content.rstrip(b"\0")
    if not content.endswith(b"\n"):
        return None
    number, _, unit = content.strip().partition(b" ")
    return whole_number(number) if not unit or unit.strip().isalpha() else None


class Scale(NamedTuple):
    """How many of a file's units a volt, an ampere and a watt have."""

    volt: int
    ampere: int
    watt: int


def measured(
    label: str,
    volts: bytes | Reason,
    amps: bytes | Reason,
    watts: bytes | Reason,
    scale: Scale,
) -> tuple[Reading, Reading]:
    """Power and voltage of a rail, of what its files hold or why they could not be read.

    The power is what the monitor says; where it has none it is voltage times current. Small
    negative ones are real: a monitor's zero is off by some of its steps.
    """
    voltage = _number(volts, scale.volt, 0.0, _VOLTS_BELOW)
    power = _number(watts, scale.watt, -_WATTS_BELOW, _WATTS_BELOW)
    if power == "absent":
        power = _product(voltage, _number(amps, scale.ampere, -_AMPS_BELOW, _AMPS_BELOW))
    return _read(POWER, power, label), _read(VOLTS, voltage, label)


def watts_of(readings: Iterable[Reading]) -> dict[str, float | Reason]:
    """The power of each rail among `readings`, as `total` takes it."""
    return {
        reading.label: reading.value if reading.value is not None else reading.reason or "absent"
        for reading in readings
        if reading.measurement is POWER
    }


def _number(content: bytes | Reason, scale: int, lowest: float, below: float) -> float | Reason:
    if isinstance(content, str):
        return content
    raw = parse(content)
    if raw is None or not lowest <= raw / scale < below:
        return "implausible"
    return raw / scale


def _product(volts: float | Reason, amps: float | Reason) -> float | Reason:
    if isinstance(volts, str):
        return volts
    if isinstance(amps, str):
        return amps
    watts = round(volts * amps, 6)  # mV x mA: nothing is behind the sixth digit
    return watts if abs(watts) < _WATTS_BELOW else "implausible"


def _read(row: Measurement, value: float | Reason, label: str) -> Reading:
    if isinstance(value, str):
        return unknown(row, value, label)
    return read_as(row, value, "absent", label)
