"""Time in which a CPU quota held a process back: cpu.stat of its cgroups. Versions 1 and 2.

`throttled_usec 1200` in version 2, `throttled_time 1200000` nanoseconds in version 1 (the kernel's
Documentation/scheduler/sched-bwc.rst). It is counted where the quota is: of the cgroups that a
process is within, the one that allows it the fewest CPUs is read.
"""

from pathlib import Path
from typing import Final

from decodewatch.agent.runtimes.cgroup_tree import FollowedCounter, Levels, tightest
from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile, read_once
from decodewatch.agent.sources.kit.kernel import Kernel
from decodewatch.agent.sources.kit.text import after, only_number, whole_number

THROTTLED = Measurement(
    "cgroup_cpu_throttled_microseconds",
    "microseconds",
    "counter",
    "time in which a CPU quota held the runtime's cgroup back, added up over the CPUs",
)

_QUOTA_FILE_BYTES: Final = 64


def parse_quota(content: bytes) -> float | Reason:
    """The CPUs that a cpu.max such as `150000 100000` allows, or why there is no number."""
    words = content.split()
    if len(words) != 2 or not content.endswith(b"\n"):
        return "implausible"
    period = whole_number(words[1])
    if words[0] == b"max" and period is not None:
        return "unlimited"
    return _cpus(whole_number(words[0]), period)


def parse_quota_v1(quota: bytes, period: bytes) -> float | Reason:
    """The same of cpu.cfs_quota_us and cpu.cfs_period_us; a quota of -1 is none."""
    micros = only_number(quota)
    return "unlimited" if micros == -1 else _cpus(micros, only_number(period))


def parse_throttled(content: bytes, version: int) -> int | None:
    """The throttled time of a cpu.stat in microseconds; None without its line."""
    rest = after(content, b"throttled_time " if version == 1 else b"throttled_usec ")
    time = None if rest is None else whole_number(rest)
    if time is None or time < 0:
        return None
    return time // 1000 if version == 1 else time


def _cpus(quota: int | None, period: int | None) -> float | Reason:
    if quota is None or period is None or quota <= 0 or period <= 0:
        return "implausible"
    return quota / period


class CpuQuota:
    """Follows the CPU controller."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._version = 2
        self._folder: Path | None = None
        self._file: PolledFile | None = None
        self._reason: Reason = "absent"
        self._throttled = FollowedCounter()

    def follow(self, levels: Levels | Reason) -> bool:
        """Look at the quotas of all levels; whether something there may not be read."""
        if isinstance(levels, str):
            self._reason = levels
            return levels == "denied"
        self._version = levels.version
        found = tightest(levels.folders, self._quota)
        if found.folder != self._folder:
            self._folder = found.folder
            self._file = PolledFile(found.folder / "cpu.stat", self._kernel)
            self._throttled.move()
        return found.denied

    def read(self) -> Reading:
        """The time so far."""
        if self._file is None:
            return unknown(THROTTLED, self._reason)
        content = self._file.read()
        self._file.close()  # not kept open: see `cgroup`
        if isinstance(content, str):
            return unknown(THROTTLED, content)
        time = parse_throttled(content, self._version)
        return read_as(THROTTLED, None if time is None else self._throttled.see(time), "absent")

    def _quota(self, folder: Path) -> float | Reason:
        if self._version == 2:
            content = read_once(folder / "cpu.max", _QUOTA_FILE_BYTES, self._kernel)
            return content if isinstance(content, str) else parse_quota(content)
        quota = read_once(folder / "cpu.cfs_quota_us", _QUOTA_FILE_BYTES, self._kernel)
        if isinstance(quota, str):
            return quota
        period = read_once(folder / "cpu.cfs_period_us", _QUOTA_FILE_BYTES, self._kernel)
        return period if isinstance(period, str) else parse_quota_v1(quota, period)
