"""CPU clocks: /sys/devices/system/cpu/cpufreq/policy*.

A policy is a group of CPUs that share a clock; its number is that of its first CPU. What is read is
the clock that was asked for: a Jetson's hardware may divide it further and not say so here. Files
hold one number in kHz (the kernel's Documentation/admin-guide/pm/cpufreq.rst).
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
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import only_number

CLOCK = Measurement("cpu_hertz", "hertz", "gauge", "clock of the CPUs of a policy now")
MAX = Measurement(
    "cpu_max_hertz", "hertz", "gauge", "highest clock that power mode and cooling allow now"
)
HW_MAX = Measurement("cpu_hw_max_hertz", "hertz", "gauge", "highest clock that the CPUs can run at")

_FILES = (("scaling_cur_freq", CLOCK), ("scaling_max_freq", MAX), ("cpuinfo_max_freq", HW_MAX))

MOST_POLICIES: Final = 64

# 1 MHz to 20 GHz. A clock of 0 is a CPU that is offline or a file that says nothing.
_PLAUSIBLE_KHZ: Final = range(1_000, 20_000_001)


def parse(content: bytes) -> int | None:
    """The clock in Hz of a file that holds it in kHz; None for anything that is no clock."""
    khz = only_number(content)
    return khz * 1000 if khz is not None and khz in _PLAUSIBLE_KHZ else None


class _Policy:
    __slots__ = ("files", "label", "missed")

    def __init__(self, label: str, folder: Path, kernel: Kernel) -> None:
        self.label = label
        self.files = [(row, PolledFile(folder / name, kernel)) for name, row in _FILES]
        self.missed = False  # whether a file was absent at the last read

    def read(self) -> list[Reading]:
        readings = []
        for row, file in self.files:
            content = file.read()
            if isinstance(content, str):
                readings.append(unknown(row, content, self.label))
            else:
                readings.append(read_as(row, parse(content), "implausible", self.label))
        return readings


class Cpufreq:
    """Reads the clocks of every policy."""

    name = "cpufreq"
    reads: ClassVar = "/sys/devices/system/cpu/cpufreq/policy*"
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; partly denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (CLOCK, MAX, HW_MAX)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/devices/system/cpu/cpufreq"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "policy", MOST_POLICIES, kernel)
        self._policies: dict[str, _Policy] = {}
        self._no_policies: Reason = "absent"

    def read(self) -> list[Reading]:
        """Three readings a policy, also while its CPUs are offline: these are unknown, not 0.

        Three without label and value where there has never been a policy.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        if not self._policies:
            return all_unknown(self.measurements, self._no_policies)
        readings: list[Reading] = []
        for policy in self._policies.values():
            found = policy.read()
            missed = any(reading.reason == "absent" for reading in found)
            if missed and not policy.missed:
                self._folder.look_again()
            policy.missed = missed
            readings += found
        return readings

    def close(self) -> None:
        """Close the files."""
        for policy in self._policies.values():
            for _, file in policy.files:
                file.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        if isinstance(members, str):
            self._no_policies = members
            return
        for member in members:
            policy = self._policies.get(member)
            if policy is not None:
                for _, file in policy.files:
                    file.retry_if_absent()
            elif len(self._policies) < MOST_POLICIES:
                self._policies[member] = _Policy(member, self._root / member, self._kernel)
