"""Energy that the processor counts (RAPL): /sys/class/powercap/intel-rapl:*.

A domain is a folder with `name` (package-0, dram, psys), `energy_uj`, which counts microjoules and
begins again at `max_energy_range_uj`, and `constraint_0_power_limit_uw`, the long-term limit (the
kernel's Documentation/power/powercap/powercap.rst). AMD's processors appear under the same names.

`energy_uj` is readable by root only since 2020 (CVE-2020-8694). It starts over after a suspend.
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
from decodewatch.agent.sources.kit.common import POWER
from decodewatch.agent.sources.kit.files import PolledFile, PolledFolder, read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import printable, untaken
from decodewatch.agent.sources.kit.text import only_number

ENERGY = Measurement(
    "energy_joules", "joules", "counter", "energy that the domain has used, as the CPU counts it"
)
LIMIT = Measurement(
    "power_limit_watts", "watts", "gauge", "long-term power limit of the domain that is set now"
)

MOST_DOMAINS: Final = 16
_PREFIX: Final = "intel-rapl:"  # intel-rapl-mmio:0 is a package once more
_MOST_LISTED: Final = 64  # a package has up to four domains of its own
_WORD_LIMIT: Final = 64  # bytes read of a name or a range

# Cores and the GPU inside are parts of a package and left out; psys is the whole platform.
_WANTED: Final = ("package", "dram", "psys")

_WATTS_BELOW: Final = 2000.0
"""No domain draws more. A step that says so was none: the counter started over."""
_UNLIMITED_W: Final = 4000.0
"""The largest limit that the register holds is 4095.875 W, and stands for none."""
_SHORTEST_S: Final = 0.1
"""The counter moves about once a millisecond, so a power is of at least so long a time. One that
does not move in it counts nothing: some virtual machines have such."""


def parse(content: bytes) -> int | None:
    """The number of microjoules or microwatts of a file; None for anything that is none."""
    number = only_number(content)
    return number if number is not None and number >= 0 else None


def step(before: int, now: int, end: int | None, seconds: float) -> int | None:
    """The microjoules between two readings of a counter that begins again at `end`.

    None where the counter started over, because of a suspend: then nothing is known of the step.
    """
    moved = now - before
    if moved < 0:
        if end is None or not before <= end:
            return None
        moved += end
    return moved if moved / 1e6 < _WATTS_BELOW * seconds else None


class _Domain:
    __slots__ = (
        "_at",
        "_before",
        "_end",
        "_energy",
        "_limit",
        "_used",
        "label",
        "listed",
        "member",
        "named",
    )

    def __init__(self, label: str, named: str) -> None:
        self.label = label
        self.named = named
        self._before: int | None = None
        self._at = 0.0
        self._used = 0

    def move(self, member: str, folder: Path, kernel: Kernel) -> None:
        self.member = member
        self.listed = True  # whether the folder showed it when it was last listed
        self._energy = PolledFile(folder / "energy_uj", kernel)
        self._limit = PolledFile(folder / "constraint_0_power_limit_uw", kernel)
        end = read_once(folder / "max_energy_range_uj", _WORD_LIMIT, kernel)
        self._end = None if isinstance(end, str) else parse(end)

    def read(self, now: float) -> list[Reading]:
        energy: bytes | Reason = self._energy.read() if self.listed else "absent"
        limit: bytes | Reason = self._limit.read() if self.listed else "absent"
        return [*self._used_until(energy, now), limit_of(limit, self.label)]

    def retry_if_absent(self) -> None:
        self._energy.retry_if_absent()
        self._limit.retry_if_absent()

    def close(self) -> None:
        self._energy.close()
        self._limit.close()

    def _used_until(self, content: bytes | Reason, now: float) -> tuple[Reading, Reading]:
        counted = parse(content) if not isinstance(content, str) else None
        if not counted:  # a domain that is not there counts 0
            reason = content if isinstance(content, str) else "implausible"
            return unknown(ENERGY, reason, self.label), unknown(POWER, reason, self.label)
        if self._before is None:
            self._used = counted
            power = unknown(POWER, "transient", self.label)
        else:
            seconds = now - self._at
            if seconds < _SHORTEST_S:
                return self._energy_used(), unknown(POWER, "transient", self.label)
            moved = step(self._before, counted, self._end, seconds)
            if moved == 0:
                return (
                    unknown(ENERGY, "implausible", self.label),
                    unknown(POWER, "implausible", self.label),
                )
            self._used += moved or 0
            watts = None if moved is None else round(moved / 1e6 / seconds, 6)
            power = read_as(POWER, watts, "transient", self.label)
        self._before, self._at = counted, now
        return self._energy_used(), power

    def _energy_used(self) -> Reading:
        return read_as(ENERGY, self._used / 1e6, "absent", self.label)


class Rapl:
    """Reads the domains of packages, of their memory, and of the whole platform."""

    name = "rapl"
    reads: ClassVar = "/sys/class/powercap/intel-rapl:*/{energy_uj,constraint_0_power_limit_uw}"
    platform: ClassVar = "PC"
    permission: ClassVar = "root; anyone for the limit"
    measurements: ClassVar[tuple[Measurement, ...]] = (ENERGY, POWER, LIMIT)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root / "sys/class/powercap"
        self._kernel = kernel
        self._folder = PolledFolder(self._root, _PREFIX, _MOST_LISTED, kernel, numbered=False)
        self._domains: list[_Domain] = []
        self._no_domains: Reason = "absent"
        self._missed = False  # whether a file was absent at the last read

    def read(self) -> list[Reading]:
        """Energy, power and limit of each domain, absent ones that were there before included.

        The power is the mean since the read before, and unknown at the first. One of each without
        a label and a value where there has never been a domain.
        """
        members = self._folder.look()
        if members is not None:
            self._resolve(members)
        if not self._domains:
            return all_unknown(self.measurements, self._no_domains)
        now = self._kernel.monotonic()
        readings = [reading for domain in self._domains for reading in domain.read(now)]
        missed = any(reading.reason == "absent" for reading in readings)
        if missed and not self._missed:
            self._folder.look_again()
        self._missed = missed
        return readings

    def close(self) -> None:
        """Close the files."""
        for domain in self._domains:
            domain.close()

    def _resolve(self, members: list[str] | Reason) -> None:
        """Give every domain its files again, by name, after the folder was listed."""
        found: dict[str, str] = {}
        self._no_domains = "absent"
        if isinstance(members, str):
            self._no_domains = members
        else:
            found = self._names(members)
        for domain in self._domains:
            domain.listed = found.get(domain.member) == domain.named
            if domain.listed:
                del found[domain.member]
                domain.retry_if_absent()
            else:
                domain.close()
        for member, named in found.items():
            away = [known for known in self._domains if known.named == named and not known.listed]
            if away:
                domain = away[0]
            elif len(self._domains) < MOST_DOMAINS:
                domain = _Domain(untaken(named, {known.label for known in self._domains}), named)
                self._domains.append(domain)
            else:
                continue
            domain.move(member, self._root / member, self._kernel)

    def _names(self, members: list[str]) -> dict[str, str]:
        """The names of the domains that are wanted, in the order of their numbers."""
        names: dict[str, str] = {}
        for member in sorted(members, key=_numbers):
            content = read_once(self._root / member / "name", _WORD_LIMIT, self._kernel)
            if isinstance(content, str):
                self._no_domains = content
                continue
            named = printable(content)
            if named.startswith(_WANTED):
                names[member] = named
        return names


def limit_of(content: bytes | Reason, label: str) -> Reading:
    """The limit of a domain: none where it is 0 or all that the register holds."""
    if isinstance(content, str):
        return unknown(LIMIT, content, label)
    limit = parse(content)
    if limit is None:
        return unknown(LIMIT, "implausible", label)
    watts = limit / 1e6
    return read_as(LIMIT, watts if 0 < watts < _UNLIMITED_W else None, "unlimited", label)


def _numbers(member: str) -> list[int]:
    """[0, 1] of intel-rapl:0:1."""
    return [int(part) for part in member.split(":")[1:] if part.isascii() and part.isdigit()]
