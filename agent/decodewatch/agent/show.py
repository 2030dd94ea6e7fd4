"""`decodewatch agent sources`: what every source reads now, or why it reads nothing."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from decodewatch.agent.errors import AgentError
from decodewatch.agent.hardware import board, watch
from decodewatch.agent.sources import REGISTRY, Reading, Reason, open_sources, tegrastats
from decodewatch.agent.sources.kit.base import Measurement, first_known, word_of
from decodewatch.agent.sources.kit.recorded import RecordedKernel
from decodewatch.agent.throttle import verdict_of
from decodewatch.shared.diagnose.throttle import Verdict
from decodewatch.shared.records import Scalar

_BETWEEN_READS_S: Final = 0.5  # shares, such as that of busy CPUs, are known from the second on
_LINE_LIMIT: Final = 1 << 20  # bytes of a log that are taken at once
_LONGEST_S: Final = 4.0  # a program that is started at the first read has printed by then
_THROTTLE: Final = Measurement("throttle", "word", "word", "what holds the clocks down")
_WHY: Final[dict[Reason, str]] = {
    "absent": "no such file, line or sensor",
    "denied": "this user may not read it",
    "transient": "it could not be read this time",
    "implausible": "what was read cannot be true",
    "unsupported": "the kernel does not offer it",
    "unlimited": "no limit is set",
}


class Record(NamedTuple):
    """Which record of a log it is, and its time as it is written there, if it has one."""

    number: int
    when: str | None


class Read(NamedTuple):
    """What one source read, how long that took, and where it looked."""

    source: str
    where: str
    readings: list[Reading]
    took_us: int
    record: Record | None = None
    """Of a log, not of a device."""


class Machine(NamedTuple):
    """What the readings say of the whole device."""

    description: Mapping[str, Scalar]
    verdict: Verdict


def machine(root: Path, found: Iterable[Read]) -> Machine:
    """What device this is, and whether it is throttled, by the readings of one moment."""
    readings = taken(found)
    by_key = {reading.key: reading for reading in readings}
    if root == Path("/"):
        device = board.read(release=board.kernel_release())
    else:
        device = board.read(root, RecordedKernel(root))
    return Machine(watch.describe(device, by_key.get, (), None), verdict_of(readings))


def read_all(root: Path) -> list[Read]:
    """What every source of a device reads, the second time or later."""
    sources = open_sources(root)
    try:
        for source in sources:
            source.read()
        until = time.monotonic() + _LONGEST_S
        while True:
            time.sleep(_BETWEEN_READS_S)
            found = []
            for (name, factory), source in zip(REGISTRY, sources, strict=True):
                began = time.perf_counter()
                readings = source.read()
                took_us = round((time.perf_counter() - began) * 1_000_000)
                found.append(Read(name, factory.reads, readings, took_us))
            if time.monotonic() >= until or not _waits(found):
                return found
    finally:
        for source in sources:
            source.close()


def read_log(log: BinaryIO, where: str) -> Iterator[Read]:
    """What each record of a tegrastats log shows.

    Raises AgentError where it cannot be read on, and where there is none.
    """
    number = 0
    while line := _next_line(log, where):
        began = time.perf_counter()
        for when, readings in tegrastats.shown(line):
            took_us = round((time.perf_counter() - began) * 1_000_000)
            number += 1
            yield Read(tegrastats.Tegrastats.name, where, readings, took_us, Record(number, when))
            began = time.perf_counter()
    if not number:
        raise AgentError(f"no tegrastats record in {where}")


def _next_line(log: BinaryIO, where: str) -> bytes:
    try:
        return log.readline(_LINE_LIMIT)
    except OSError as error:
        raise AgentError(f"{where}: cannot be read: {error.strerror}") from None


def _waits(found: Iterable[Read]) -> bool:
    """Whether a source has nothing but values that are to come."""
    return any(
        read.readings and all(one.reason == "transient" for one in read.readings) for read in found
    )


def taken(found: Iterable[Read]) -> list[Reading]:
    """Of a measurement that several sources have, the reading that the agent takes."""
    return first_known(one for read in found for one in read.readings)


def as_json(found: Sequence[Read], machine: Machine | None = None) -> str:
    """One document: what is taken, with `machine` what that says of it, and of a log which record
    it is."""
    source_of = {id(one): read.source for read in found for one in read.readings}
    measurements = [_fields(one, source_of[id(one)]) for one in taken(found)]
    document: dict[str, Any] = {"measurements": measurements}
    record = next((read.record for read in found if read.record is not None), None)
    if record is not None:
        document = {"record": record.number, "time": record.when, **document}
    if machine is not None:
        verdict = machine.verdict
        measurements.append(_fields(_as_reading(verdict), "throttle"))
        document["throttle"] = {
            "state": verdict.state,
            "confidence": verdict.confidence,
            "sentence": verdict.sentence,
            "evidence": dict(verdict.evidence),
        }
        document["device"] = dict(machine.description)
    return json.dumps(document)


def _as_reading(verdict: Verdict) -> Reading:
    if verdict.state == "unknown":
        return word_of(_THROTTLE, None, verdict.reason or "absent")
    return word_of(_THROTTLE, verdict.state, "absent")


def _fields(reading: Reading, source: str) -> dict[str, Any]:
    return {
        "name": reading.key,
        "value": reading.value if reading.word is None else reading.word,
        "unit": reading.measurement.unit,
        "source": source,
        "reason": reading.reason,
    }


def as_text(found: Sequence[Read], machine: Machine | None = None) -> str:
    """For people: a block a source; those that read nothing are one line each, at the end.

    A record of a log is one block.
    """
    blocks: list[str] = []
    nothing: list[str] = []
    absent: list[str] = []
    if machine is not None:
        described = [
            f"  {name:<44} {_said(name, value)}" for name, value in _described(machine.description)
        ]
        blocks.append("\n".join(("device:", *described)))
        blocks.append(f"throttling: {machine.verdict.state}\n  {machine.verdict.sentence}")
    for read in found:
        if read.record is not None or any(reading.known for reading in read.readings):
            blocks.append("\n".join(_block(read)))
        else:
            why = _why(read.readings)
            # What the device does not have comes last: nothing can be done about it.
            some = absent if why == "absent" else nothing
            some.append(f"  {read.source:<16} {why:<20} {read.where}")
    if nothing or absent:
        blocks.append("\n".join(("Nothing from:", *nothing, *absent)))
    notes = _notes([reading for read in found for reading in read.readings])
    if notes:
        blocks.append("\n".join(notes))
    return ("\n" if any(read.record is not None for read in found) else "\n\n").join(blocks)


def _described(description: Mapping[str, Scalar]) -> Iterable[tuple[str, Scalar]]:
    """The description, and where there is no ceiling how to get one."""
    for name, value in description.items():
        if name == "spec_note" and "ceiling_bytes_per_second" not in description:
            value = f"{value}; `decodewatch agent bandwidth` measures it"
        yield name, value


def _notes(readings: Sequence[Reading]) -> list[str]:
    """What the words and units of the readings mean, as far as they need it."""
    reasons = {reading.reason for reading in readings}
    notes = [f"{name}: {why}" for name, why in _WHY.items() if name in reasons]
    if any(one.known and one.measurement.unit == "microseconds" for one in readings):
        notes.append("*_microseconds: shown in s here, in microseconds in --json and in records")
    return notes


def _said(name: str, value: Scalar) -> str:
    """A fact of the description; its name ends in its unit."""
    for unit in ("bytes_per_second", "bytes", "hertz"):
        if name.endswith(unit) and isinstance(value, (int, float)):
            return f"{value / 1e9:.4g} GB/s" if "per" in unit else for_people(value, unit)
    return str(value)


def _block(read: Read) -> Iterable[str]:
    if read.record is not None:
        number, when = read.record
        yield f"record {number}" if when is None else f"record {number}, {when}"
    yield f"{read.source}: {read.where} ({read.took_us} us)"
    for reading in read.readings:
        if reading.reason is not None:
            value = f"unknown: {reading.reason}"
        elif reading.value is not None:
            value = for_people(reading.value, reading.measurement.unit)
            if reading.measurement.kind == "counter":
                # The energy of a processor begins again at its range, many times in a boot.
                energy = reading.measurement.unit == "joules"
                value += " since the counter began" if energy else " since boot"
        else:
            value = str(reading.word)
        yield f"  {reading.key:<44} {value}"


def _why(readings: Iterable[Reading]) -> str:
    return ", ".join(dict.fromkeys(one.reason for one in readings if one.reason is not None))


def for_people(value: int | float, unit: str) -> str:
    """A value as a person says it; the JSON has it as it is sent."""
    if unit in ("bytes", "bytes_per_second"):
        power = min(max(int(abs(value)).bit_length() - 1, 0) // 10, 4)
        shown = f"{value / (1 << 10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
        return shown if unit == "bytes" else f"{shown}/s"
    if unit == "microseconds":
        return f"{value / 1_000_000:.6g} s"
    if unit == "hertz":
        return f"{value / 1_000_000:.6g} MHz"
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "count":
        return f"{value}"
    return f"{value:.4g} {_SIGNS[unit]}"


_SIGNS: Final = {"celsius": "°C", "joules": "J", "volts": "V", "watts": "W"}
