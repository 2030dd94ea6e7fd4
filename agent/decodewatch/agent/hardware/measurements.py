"""The bandwidth that was measured on this device: a small file in the state folder.

It holds the newest measurement of each power mode and cap, with what it was made on; one that other
programs disturbed only where there is none better. `decodewatch agent bandwidth` writes it, perhaps
as another user than the agent, which reads it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from decodewatch.agent import state_files
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.shared import logs
from decodewatch.shared.errors import shown
from decodewatch.shared.records import MAX_TIME_US

log = logs.get(__name__)

FILE: Final = "bandwidth.json"
_MOST: Final = 16
_LIMIT: Final = 64 * 1024
_LONGEST: Final = 128
_MOST_RATE: Final = 1e14  # a thousand times what any device reads
_NEAR: Final = 0.05
_UNDISTURBED: Final = 0.9
_MOST_RUNNING: Final = 2.0  # two clocks do not end at the same moment: it may be a little above 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, and on what it was made."""

    at: int
    """Wall time, in microseconds, as the device believed."""
    read_bytes_per_second: float
    copy_bytes_per_second: float
    """Bytes read and bytes written together."""
    threads: int
    """How many read."""
    model: str | None
    memory_bytes: int | None
    power_mode: str | None
    dram_max_hertz: float | None
    running_share: float
    """The share of the time in which the threads that read ran, not other programs."""

    @property
    def disturbed(self) -> bool:
        """Whether other programs had so much of the CPU that the memory can do more than this."""
        return self.running_share < _UNDISTURBED

    def better_than(self, other: "Measurement") -> bool:
        """Whether it says more of what the memory can do than one of the same mode and cap that is
        not older."""
        if not other.disturbed:
            return False
        return not self.disturbed or self.read_bytes_per_second > other.read_bytes_per_second

    def is_of(self, model: str | None, memory_bytes: int | None) -> bool:
        """Whether it was made on a device like this one: a cloned image brings the file along."""
        if model != self.model or (memory_bytes is None) != (self.memory_bytes is None):
            return False
        return memory_bytes is None or _equal(memory_bytes, self.memory_bytes)

    def holds_for(self, power_mode: str | None, dram_max_hertz: float | None) -> bool:
        """Whether it was made in this power mode; what is not known does not part them."""
        modes = {power_mode, self.power_mode} - {None}
        return len(modes) < 2 and (
            dram_max_hertz is None
            or self.dram_max_hertz is None
            or _equal(dram_max_hertz, self.dram_max_hertz)
        )


def _equal(one: float, other: float | None) -> bool:
    return other is not None and abs(one - other) <= _NEAR * max(one, other)


def load(folder: Path) -> list[Measurement]:
    """What was measured, the newest first. Nothing, and a log line, where the file is damaged."""
    file = folder / FILE
    content = read_once(file, _LIMIT)
    if content == "absent":
        return []
    try:
        if isinstance(content, str):
            raise ValueError(f"cannot be read ({content})")
        found = [_read(value) for value in json.loads(content)["measurements"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        log.warning("measured bandwidth not readable", file=file, reason=shown(str(error), 200))
        return []
    return sorted(found, key=lambda one: one.at, reverse=True)


def _read(value: Any) -> Measurement:
    names = [item.name for item in fields(Measurement)]
    if not isinstance(value, Mapping) or not set(names) <= set(value):
        raise ValueError(f"{shown(value)}; accepted is an object with {', '.join(names)}")
    at, read, copy, threads, model, memory, mode, clock, ran = (value[name] for name in names)
    numbers = [read, copy, *(one for one in (memory, clock) if one is not None)]
    if not all(type(one) in (int, float) and 0 < one < _MOST_RATE for one in numbers):
        raise ValueError(f"{shown(numbers)}; accepted are numbers above 0")
    if type(at) is not int or not 0 <= at <= MAX_TIME_US or type(threads) is not int:
        raise ValueError(f"at {shown(at)}, threads {shown(threads)}; accepted are whole numbers")
    if type(ran) not in (int, float) or not 0 <= ran < _MOST_RUNNING:
        raise ValueError(f"running_share {shown(ran)}; accepted is a share")
    if not 0 < threads < 1 << 20:
        raise ValueError(f"threads {shown(threads)}; accepted is a number above 0")
    for word in (model, mode):
        if word is not None and not (
            isinstance(word, str) and word.isprintable() and 0 < len(word) <= _LONGEST
        ):
            raise ValueError(f"{shown(word)}; accepted is text that can be printed")
    memory = None if memory is None else int(memory)
    return Measurement(
        at, float(read), float(copy), threads, model, memory, mode, clock, float(ran)
    )


def store(folder: Path, new: Measurement) -> Measurement | None:
    """Keep a measurement in place of that of the same power mode and cap. Raises AgentError.

    Where that one is better it stays, and is returned.
    """
    file = folder / FILE
    with state_files.alone(folder):
        kept = [new]
        for one in load(folder):
            if not one.is_of(new.model, new.memory_bytes):
                continue
            if (one.power_mode, one.dram_max_hertz) != (new.power_mode, new.dram_max_hertz):
                kept.append(one)
            elif one.better_than(new):
                return one
        document = {"measurements": [asdict(one) for one in kept[:_MOST]]}
        # Readable by all: the agent may be another user than who measured.
        state_files.replace(file, f"{json.dumps(document, indent=1)}\n".encode(), 0o644)
    return None
