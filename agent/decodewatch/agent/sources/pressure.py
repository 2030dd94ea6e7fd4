"""Time lost to waiting for CPU, memory and I/O, and to interrupts (PSI): /proc/pressure.

Lines such as `some avg10=0.42 avg60=0.11 avg300=0.02 total=1893321`, the total in microseconds from
boot (the kernel's Documentation/accounting/psi.rst). `cpu` has had a line `full` since 5.13 only,
`irq` (since 6.1) has no `some`. Where PSI was built and not switched on, opening a file works and
reading it gives EOPNOTSUPP.
"""

from pathlib import Path
from typing import ClassVar

from decodewatch.agent.sources.kit.base import Measurement, Reading, all_unknown, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import after, whole_number


def _row(resource: str, share: str, who: str) -> Measurement:
    name = f"psi_{resource}_{share}_microseconds"
    help = f"time in which {who} waited for {resource}"
    return Measurement(name, "microseconds", "counter", help)


_RESOURCES = ("cpu", "memory", "io")
_SOME = {resource: _row(resource, "some", "some task") for resource in _RESOURCES}
_FULL = {resource: _row(resource, "full", "every task that could run") for resource in _RESOURCES}
IRQ = Measurement(
    "psi_irq_full_microseconds",
    "microseconds",
    "counter",
    "time that interrupts took from the task that ran",
)


def parse(content: bytes) -> tuple[int | None, int | None]:
    """The totals of `some` and `full`, in microseconds; None where the line is missing.

    The averages beside them are rounded and lag; an increase of the total says the same exactly.
    """
    return _total(content, b"some "), _total(content, b"full ")


def _total(content: bytes, share: bytes) -> int | None:
    rest = after(content, share)
    if rest is None:
        return None
    _, found, total = rest.rpartition(b" total=")
    value = whole_number(total) if found else None
    return value if value is not None and value >= 0 else None


class Pressure:
    """Reads /proc/pressure/{cpu,memory,io,irq}, each for itself."""

    name = "pressure"
    reads: ClassVar = "/proc/pressure/{cpu,memory,io,irq}"
    platform: ClassVar = "Linux 4.20"
    permission: ClassVar = "anyone; denied to apps on Android"
    measurements: ClassVar[tuple[Measurement, ...]] = (*_SOME.values(), *_FULL.values(), IRQ)

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        folder = root / "proc/pressure"
        self._files = [(name, PolledFile(folder / name, kernel)) for name in _RESOURCES]
        self._irq = PolledFile(folder / "irq", kernel)

    def read(self) -> list[Reading]:
        """All of `measurements`."""
        readings: list[Reading] = []
        for resource, file in self._files:
            content = file.read()
            some_row, full_row = _SOME[resource], _FULL[resource]
            if isinstance(content, str):
                readings += all_unknown((some_row, full_row), content)
                continue
            some, full = parse(content)
            readings.append(read_as(some_row, some, "absent"))
            if resource == "cpu":
                # Of the whole system there is none: kernels since 5.13 print a 0 in its place.
                readings.append(unknown(full_row, "unsupported"))
            else:
                readings.append(read_as(full_row, full, "absent"))
        content = self._irq.read()
        if isinstance(content, str):
            readings.append(unknown(IRQ, content))
        else:
            readings.append(read_as(IRQ, parse(content)[1], "absent"))
        return readings

    def close(self) -> None:
        """Close the files."""
        for _, file in self._files:
            file.close()
        self._irq.close()
