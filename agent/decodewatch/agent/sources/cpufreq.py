"""CPU clocks: /sys/devices/system/cpu/cpufreq/policy*.

A policy is a group of CPUs that share a clock; its number is that of its first CPU. Kernels before
4.4 have no folder a policy, but the same files in cpu*/cpufreq. Files hold one number in kHz, or
one word (the kernel's Documentation/admin-guide/pm/cpufreq.rst). stats/time_in_state has a line a
clock, `729600 5021`: kHz, and how long the policy has run at it, in ticks of 10 ms
(Documentation/cpu-freq/cpufreq-stats.rst).

What scaling_cur_freq shows is the clock that was asked for: a Jetson's hardware may divide it
further and not say so here. cpuinfo_cur_freq would show it and is never read: its reading sets the
kernel's own idea of the clock, and writes to the kernel's log where the two differ.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    all_unknown,
    read_as,
    unknown,
    word_of,
)
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable
from decodewatch.agent.sources.kit.text import only_number, whole_number

CLOCK = Measurement("cpu_hertz", "hertz", "gauge", "clock of the CPUs of a policy now")
MAX = Measurement(
    "cpu_max_hertz", "hertz", "gauge", "highest clock that power mode and cooling allow now"
)
MIN = Measurement("cpu_min_hertz", "hertz", "gauge", "lowest clock that the power mode allows now")
HW_MAX = Measurement("cpu_hw_max_hertz", "hertz", "gauge", "highest clock that the CPUs can run at")
MEAN = Measurement(
    "cpu_mean_hertz",
    "hertz",
    "gauge",
    "mean clock of the CPUs of a policy since the reading before, by how long they ran at each",
)
GOVERNOR = Measurement(
    "cpu_governor", "word", "word", "the kernel's rule for choosing a policy's clock"
)

_CLOCKS = (
    ("scaling_cur_freq", CLOCK),
    ("scaling_max_freq", MAX),
    ("scaling_min_freq", MIN),
    ("cpuinfo_max_freq", HW_MAX),
)

MOST_POLICIES: Final = 32
"""A PC has one a CPU, and each is five values of a sample, which holds 512."""
_MOST_CPUS: Final = 64

# 1 MHz to 20 GHz. A clock of 0 is a CPU that is offline or a file that says nothing.
_PLAUSIBLE_KHZ: Final = range(1_000, 20_000_001)


def parse(content: bytes) -> int | None:
    """The clock in Hz of a file that holds it in kHz; None for anything that is no clock."""
    khz = only_number(content)
    return khz * 1000 if khz is not None and khz in _PLAUSIBLE_KHZ else None


def parse_word(content: bytes) -> str | None:
    """The governor. None where the newline is missing: the word may have been cut."""
    if not content.endswith(b"\n"):
        return None
    return printable(content) or None


def parse_residency(content: bytes) -> dict[int, int] | None:
    """Ticks by clock in kHz of a time_in_state; None unless every line is whole and plausible.

    A line left out would move the mean.
    """
    if not content.endswith(b"\n"):
        return None
    ticks: dict[int, int] = {}
    for line in content.splitlines():
        numbers = [whole_number(field) for field in line.split()]
        if len(numbers) != 2:
            return None
        khz, spent = numbers
        if khz is None or spent is None or khz not in _PLAUSIBLE_KHZ or spent < 0:
            return None
        ticks[khz] = spent
    return ticks


def mean_hertz(before: Mapping[int, int], now: Mapping[int, int]) -> int | None:
    """The mean clock between two reads of time_in_state.

    None where no time was counted (all CPUs of the policy are offline), where a counter went back
    (somebody wrote to `reset`) and where the clocks are others than before.
    """
    if before.keys() != now.keys():
        return None
    total = weighted = 0
    for khz, ticks in now.items():
        spent = ticks - before[khz]
        if spent < 0:
            return None
        total += spent
        weighted += khz * spent
    return weighted * 1000 // total if total else None


class _Policy:
    def __init__(self, label: str, folder: Path, kernel: Kernel) -> None:
        self.label = label
        self.folder = folder
        self.missed = False  # whether its clock was absent at the last read
        self._kernel = kernel
        self._open(folder)

    def move(self, folder: Path) -> None:
        """It was listed again, perhaps in another folder."""
        if folder != self.folder:
            self.close()
            self._open(folder)
        for file in self._files:
            file.retry_if_absent()

    def read(self) -> list[Reading]:
        readings = []
        for (_, row), file in zip(_CLOCKS, self._files, strict=False):
            content = file.read()
            if isinstance(content, str):
                readings.append(unknown(row, content, self.label))
            else:
                readings.append(read_as(row, parse(content), "implausible", self.label))
        readings.append(self._mean())
        governor = self._files[-1].read()
        if isinstance(governor, str):
            readings.append(unknown(GOVERNOR, governor, self.label))
        else:
            readings.append(word_of(GOVERNOR, parse_word(governor), "implausible", self.label))
        return readings

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open(self, folder: Path) -> None:
        self.folder = folder
        self._files = [
            PolledFile(folder / name, self._kernel)
            for name in (*(name for name, _ in _CLOCKS), "stats/time_in_state", "scaling_governor")
        ]
        self._residency: dict[int, int] | None = None

    def _mean(self) -> Reading:
        content = self._files[-2].read()
        before, self._residency = self._residency, None
        if isinstance(content, str):
            return unknown(MEAN, content, self.label)
        self._residency = now = parse_residency(content)
        if now is None:
            return unknown(MEAN, "implausible", self.label)
        return read_as(MEAN, mean_hertz(before, now) if before else None, "transient", self.label)


class Cpufreq:
    """Reads the clocks of every policy."""

    name = "cpufreq"
    reads: ClassVar = (
        "/sys/devices/system/cpu/cpufreq/policy*/{scaling_{cur,max,min}_freq,cpuinfo_max_freq,"
        "scaling_governor,stats/time_in_state}, else /sys/devices/system/cpu/cpu*/cpufreq/"
    )
    platform: ClassVar = "Linux"
    permission: ClassVar = "anyone; partly denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (CLOCK, MAX, MIN, HW_MAX, MEAN, GOVERNOR)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._cpu_root = root / "sys/devices/system/cpu"
        self._root = self._cpu_root / "cpufreq"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, "policy", MOST_POLICIES, kernel)
        self._cpus = PolledFolder(self._cpu_root, "cpu", _MOST_CPUS, kernel)
        self._by_cpu = False  # whether there are no folders of policies
        self._policies: dict[str, _Policy] = {}
        self._no_policies: Reason = "absent"

    def read(self) -> list[Reading]:
        """Six readings a policy, also while its CPUs are offline: these are unknown, not 0.

        Six without label and value where there has never been a policy.
        """
        self._look()
        if not self._policies:
            return all_unknown(self.measurements, self._no_policies)
        readings: list[Reading] = []
        for policy in self._policies.values():
            found = policy.read()
            missed = found[0].reason == "absent"
            if missed and not policy.missed:
                (self._cpus if self._by_cpu else self._folder).look_again()
            policy.missed = missed
            readings += found
        return readings

    def close(self) -> None:
        """Close the files."""
        for policy in self._policies.values():
            policy.close()

    def _look(self) -> None:
        members = self._folder.look()
        if members is not None:
            self._by_cpu = not members or members == "absent"
            if isinstance(members, str):
                self._no_policies = members
            else:
                self._resolve({member: self._root / member for member in members})
        if self._by_cpu:
            cpus = self._cpus.look()
            if isinstance(cpus, list):
                self._resolve(self._folders_by_cpu(cpus))

    def _folders_by_cpu(self, cpus: list[str]) -> dict[str, Path]:
        """The folder of each policy's first CPU that is online."""
        folders: dict[str, Path] = {}
        for cpu in cpus:
            folder = self._cpu_root / cpu / "cpufreq"
            try:
                self._kernel.listdir(str(folder))
            except OSError:  # offline, or a machine without cpufreq
                continue
            first = self._first_cpu(folder)
            label = f"policy{cpu.removeprefix('cpu') if first is None else first}"
            folders.setdefault(label, folder)
        return folders

    def _first_cpu(self, folder: Path) -> int | None:
        for name in ("related_cpus", "affected_cpus"):  # the former has those that are offline too
            content = read_once(folder / name, 256, self._kernel)
            if not isinstance(content, str) and content.endswith(b"\n"):
                return whole_number(content.split()[0]) if content.split() else None
        return None

    def _resolve(self, folders: dict[str, Path]) -> None:
        for label, folder in folders.items():
            policy = self._policies.get(label)
            if policy is not None:
                policy.move(folder)
            elif len(self._policies) < MOST_POLICIES:
                self._policies[label] = _Policy(label, folder, self._kernel)
