"""Thermal throttling of Intel processors: /sys/devices/system/cpu/cpu*/thermal_throttle.

`package_throttle_count` and, since Linux 5.5, `package_throttle_total_time_ms` say how often and
for how long the package, all that is in one housing, ran below its clock because it or a part of
the board was too hot (the kernel's Documentation/ABI/testing/sysfs-devices-system-cpu). They do not
count clocks held down by a limit of power. Every CPU of a package has these files with about the
same numbers, so that adding them up would count a package once a CPU: one CPU is read for all.
"""

from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

TIME = Measurement(
    "cpu_throttle_microseconds",
    "microseconds",
    "counter",
    "time in which a processor package was slowed down by heat",
)
EVENTS = Measurement(
    "cpu_throttle_events", "count", "counter", "how often a processor package was slowed by heat"
)

_FILES: Final = (
    (TIME, "package_throttle_total_time_ms", 1000),
    (EVENTS, "package_throttle_count", 1),
)

MOST_CPUS: Final = 512
MOST_PACKAGES: Final = 8


def parse(content: bytes) -> int | None:
    """The number of a counter; None for anything that counts nothing."""
    number = only_number(content)
    return number if number is not None and number >= 0 else None


class _Counter:
    """A counter of a package, read from one CPU, and from another where that one goes offline.

    The numbers of two CPUs are not quite the same: the counter goes on from where it was.
    """

    __slots__ = ("_added", "_continues", "_factor", "_file", "_last", "row")

    def __init__(self, row: Measurement, factor: int, file: PolledFile) -> None:
        self.row = row
        self._factor = factor
        self._file = file
        self._added = 0
        self._last: int | None = None
        self._continues = False

    def move(self, file: PolledFile) -> None:
        self._file.close()
        self._file = file
        self._continues = self._last is not None

    def read(self, label: str) -> Reading:
        content = self._file.read()
        if isinstance(content, str):
            return unknown(self.row, content, label)
        number = parse(content)
        if number is None:
            return unknown(self.row, "implausible", label)
        number *= self._factor
        if self._continues and self._last is not None:
            self._added = self._last - number
            self._continues = False
        self._last = number + self._added
        return read_as(self.row, self._last, "implausible", label)

    def retry_if_absent(self) -> None:
        self._file.retry_if_absent()

    def close(self) -> None:
        self._file.close()


class _Package:
    __slots__ = ("counters", "cpu", "label", "missed")

    def __init__(self, label: str, cpu: str, counters: list[_Counter]) -> None:
        self.label = label
        self.cpu = cpu
        self.counters = counters
        self.missed = False  # whether all was absent at the last read


class IntelThrottle:
    """Reads the counters of every package from the first of its CPUs that is online."""

    name = "intel_throttle"
    reads: ClassVar = "/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_*"
    platform: ClassVar = "Intel, not in virtual machines"
    permission: ClassVar = "anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (TIME, EVENTS)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/devices/system/cpu"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "cpu", MOST_CPUS, kernel)
        self._packages: dict[int, _Package] = {}
        self._no_packages: Reason = "absent"

    def read(self) -> list[Reading]:
        """Two readings a package; without a label and a value where there is none."""
        cpus = self._folder.look()
        if cpus is not None:
            self._resolve(cpus)
        if not self._packages:
            return all_unknown(self.measurements, self._no_packages)
        readings: list[Reading] = []
        for package in self._packages.values():
            found = [counter.read(package.label) for counter in package.counters]
            missed = all(reading.reason == "absent" for reading in found)
            if missed and not package.missed:
                self._folder.look_again()
            package.missed = missed
            readings += found
        return readings

    def close(self) -> None:
        """Close the files."""
        for package in self._packages.values():
            for counter in package.counters:
                counter.close()

    def _resolve(self, cpus: list[str] | Reason) -> None:
        if isinstance(cpus, str):
            self._no_packages = cpus
            return
        for number, cpu in self._first_cpus(cpus).items():
            package = self._packages.get(number)
            if package is None:
                if len(self._packages) < MOST_PACKAGES:
                    counters = [
                        _Counter(row, factor, self._file(cpu, name)) for row, name, factor in _FILES
                    ]
                    self._packages[number] = _Package(f"package{number}", cpu, counters)
            elif package.cpu != cpu:
                package.cpu = cpu
                for counter, (_, name, _) in zip(package.counters, _FILES, strict=True):
                    counter.move(self._file(cpu, name))
            else:
                for counter in package.counters:
                    counter.retry_if_absent()

    def _first_cpus(self, cpus: list[str]) -> dict[int, str]:
        """The CPU to read for each package: the one read so far, else the first that is online."""
        found: dict[int, str] = {}
        for cpu in cpus:
            counter = read_once(
                self._root / cpu / f"thermal_throttle/{_FILES[1][1]}", 32, self._kernel
            )
            if counter == "absent":
                continue
            content = read_once(self._root / cpu / "topology/physical_package_id", 32, self._kernel)
            number = None if isinstance(content, str) else only_number(content)
            # Without a topology, or where a virtual machine says -1, there is one package.
            number = max(number or 0, 0)
            known = self._packages.get(number)
            if number not in found or (known is not None and known.cpu == cpu):
                found[number] = cpu
        return found

    def _file(self, cpu: str, name: str) -> PolledFile:
        return PolledFile(self._root / cpu / "thermal_throttle" / name, self._kernel)
