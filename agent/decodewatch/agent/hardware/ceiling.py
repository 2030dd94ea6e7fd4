"""What decoding is compared with: the bandwidth of the device's memory, and who says so. Pure.

The specification's is bus bytes x 2 x memory clock, at the highest clock that the power mode allows
where that can be read; else at the clock of the device's row in the table. What was measured takes
its place where it was measured in the present power mode, but for boards whose CPU cannot fill the
bus (`loaded_by`): there it says what the CPU can do, and a model that decodes on the GPU reads
faster. A measurement that other programs disturbed is a lower bound, and no ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decodewatch.agent.hardware.measurements import Measurement
from decodewatch.shared.devices import KnownDevice

From = Literal["measured", "specification"]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Limits of the memory clock, in Hz, as far as they are known."""

    allowed: float | None = None
    """The highest that the power mode allows."""
    highest: float | None = None
    """The highest of the device."""


@dataclass(frozen=True, slots=True)
class Specification:
    """The peak by the specification; `note` says what it holds for, or why there is none."""

    bytes_per_second: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The figure to compare with; None, and no origin, where nothing is known."""

    bytes_per_second: float | None
    origin: From | None
    specification: Specification
    measured: Measurement | None
    """The one that is the ceiling, else the newest."""


def specification(row: KnownDevice | None, clocks: Clocks) -> Specification:
    """The peak of a device at its present limit of the memory clock."""
    if row is None:
        return Specification(None, "not in the table of known devices")
    if clocks.highest is not None and row.is_slower_than(clocks.highest):
        return Specification(
            None,
            f"its memory clock, {clocks.highest / 1e6:.0f} MHz, is more than the {row.memory} of "
            "this row can: other memory is fitted",
        )
    for hertz, why in (
        (clocks.allowed, "the highest memory clock that is allowed now"),
        (clocks.highest, "the highest memory clock of the device"),
        (row.hertz, "the memory clock of the specification"),
    ):
        if hertz is not None and row.can_run_at(hertz):
            note = f"at {hertz / 1e6:.0f} MHz, {why}"
            if row.confidence == "maximum":
                note += "; the memory that is fitted may be slower or less wide"
            return Specification(row.bytes_per_second(hertz), note)
    return Specification(None, "the kind of memory differs by board, and its clock is not readable")


def ceiling(
    row: KnownDevice | None,
    clocks: Clocks,
    power_mode: str | None,
    measurements: Sequence[Measurement],
) -> Ceiling:
    """The ceiling by the specification and by `measurements` of this device, newest first."""
    spec = specification(row, clocks)
    fits = [one for one in measurements if one.holds_for(power_mode, clocks.allowed)]
    measured = next(iter(fits or measurements), None)
    by_cpu_alone = row is not None and row.loaded_by == "gpu" and spec.bytes_per_second is not None
    full = next((one for one in fits if not one.disturbed), None)
    if full is not None and not by_cpu_alone:
        return Ceiling(full.read_bytes_per_second, "measured", spec, full)
    if spec.bytes_per_second is not None:
        return Ceiling(spec.bytes_per_second, "specification", spec, measured)
    return Ceiling(None, None, spec, measured)
