"""Where a boot lies in the calendar: the offset between its boot clock and wall time. Pure.

Every record is placed at `t` plus the offset of its boot. A device vouches for its wall clock
("clock"), or it does not, and then it is placed by when its messages arrived ("receipt"): a message
cannot arrive before it was sent, so that the smallest difference is the closest.
"""

from dataclasses import dataclass

from decodewatch.shared.wire import Clock

AHEAD_US = 24 * 3600 * 1_000_000
"""So far ahead of the server's clock a device's is still believed."""
JITTER_US = 1_000_000
"""A boot is not moved by less than this: its records keep their places and their order."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The offset of a boot in microseconds (wall time = t + offset), and what it rests on.

    `clock_t` is the boot clock of the newest synchronised reading, None for "receipt".
    """

    offset_us: int
    placed: str
    clock_t: int | None


def place(current: Placement | None, clock: Clock, received_at: int) -> Placement:
    """The placement after one more reading of a device's clocks, received at `received_at`."""
    if clock.synchronised and clock.wall <= received_at + AHEAD_US:
        offset = clock.wall - clock.t
        if current is None or current.clock_t is None:
            return Placement(offset, "clock", clock.t)
        if clock.t <= current.clock_t:
            return current
        moved = abs(offset - current.offset_us) > JITTER_US
        return Placement(offset if moved else current.offset_us, "clock", clock.t)
    by_receipt = received_at - clock.t
    if current is None:
        return Placement(by_receipt, "receipt", None)
    if current.placed == "receipt" and by_receipt < current.offset_us - JITTER_US:
        return Placement(by_receipt, "receipt", None)
    return current
