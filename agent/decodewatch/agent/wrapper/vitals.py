"""What a process reads of itself: its memory, and whether the device slept."""

import os
import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

SLEPT_NS: Final = 50_000_000
"""The boot clock must gain more than this on the monotonic clock to count as a sleep."""

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_STATUS: Final = "/proc/self/status"
_STATUS_BYTES: Final = 8192
_ANON: Final = re.compile(rb"^RssAnon:\s*(\d+) kB$", re.MULTILINE)
_SWAP: Final = re.compile(rb"^VmSwap:\s*(\d+) kB$", re.MULTILINE)


def parse_memory(status: bytes) -> int | None:
    """RssAnon + VmSwap of a /proc/<pid>/status, in bytes; None where it does not have both."""
    anon, swap = _ANON.search(status), _SWAP.search(status)
    return (int(anon[1]) + int(swap[1])) * 1024 if anon and swap else None


def memory_bytes(path: str = _STATUS) -> int | None:
    """RssAnon + VmSwap of this process now; None where the system does not say. Never raises."""
    try:
        # Opened each time: an open file would go on showing the parent after a fork.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_memory(os.read(file, _STATUS_BYTES))
        finally:
            os.close(file)
    except OSError:
        return None


class Moment(NamedTuple):
    """The boot clock, and the monotonic clock before and after it was read. Nanoseconds.

    The clocks cannot be read at once: a thread may lose the interpreter in between for longer than
    a sleep that counts. So what one gained on the other is known from `gain_low` to `gain_high`.
    """

    before: int
    boot: int
    after: int

    @property
    def gain_low(self) -> int:
        """The boot clock is ahead of the monotonic clock by this at least."""
        return self.boot - self.after

    @property
    def gain_high(self) -> int:
        """The boot clock is ahead of the monotonic clock by this at most."""
        return self.boot - self.before


def _boot_ns() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK)


def moment(boot_ns: Callable[[], int] = _boot_ns) -> Moment:
    """Now, on both clocks."""
    before = time.monotonic_ns()
    try:
        boot = boot_ns()
    except OSError:
        # A sandbox may refuse the boot clock: sleeps are not seen then.
        boot = before
    return Moment(before, boot, time.monotonic_ns())


class SleepWatch:
    """Tells how long the device slept between moments that it is shown in order."""

    __slots__ = ("_gain_high", "awake_since", "total_ns")

    def __init__(self, start: Moment) -> None:
        self._gain_high = start.gain_high
        self.total_ns = 0
        self.awake_since = 0
        """On the monotonic clock: the device has not slept since then, as far as was seen. That
        clock stands still in a sleep, and so does not tell where before this the last sleep was."""

    def see(self, now: Moment) -> None:
        """Take in the next moment."""
        slept = now.gain_low - self._gain_high
        if slept > SLEPT_NS:
            self.total_ns += slept
            self.awake_since = now.after
            self._gain_high = now.gain_high
        else:
            # The two are apart by a constant while awake: the narrowest reading is the best.
            self._gain_high = min(self._gain_high, now.gain_high)
