"""The two clocks of a device, in integer microseconds.

Durations and the order of things on one device come from the boot clock, which nobody can set and
which counts through suspend. The wall clock only places a boot in the calendar, on the server.
"""

import time

# Linux has CLOCK_BOOTTIME; elsewhere (a developer's laptop) the monotonic clock stands in for it.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """Microseconds since this boot, suspend included."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1000


def wall_us() -> int:
    """Microseconds since 1970 (UTC), as the device believes."""
    return time.time_ns() // 1000
