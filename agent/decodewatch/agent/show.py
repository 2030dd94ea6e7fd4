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


class Read(NamedTuple):
    """What one source read, how long that took, and where it looked."""

    source: str
    where: str
    readings: list[Reading]
    took_us: int


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
    """What each record of a tegrastats log shows. Raises AgentError where it cannot be read on."""
    while line := _next_line(log, where):
        began = time.perf_counter()
        records = tegrastats.parse(line)
        took_us = round((time.perf_counter() - began) * 1_000_000)
        for readings in records:
            yield Read(tegrastats.Tegrastats.name, where, readings, took_us)


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
    """One document: what is taken, and with `machine` what that says of it."""
    source_of = {id(one): read.source for read in found for one in read.readings}
    measurements = [_fields(one, source_of[id(one)]) for one in taken(found)]
    document: dict[str, Any] = {"measurements": measurements}
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
    """For people: a block a source; those that read nothing are one line each, at the end."""
    blocks, nothing = [], []
    if machine is not None:
        described = [
            f"  {name:<44} {_said(name, value)}" for name, value in machine.description.items()
        ]
        blocks.append("\n".join(("device:", *described)))
        blocks.append(f"throttling: {machine.verdict.state}\n  {machine.verdict.sentence}")
    for read in found:
        if any(reading.known for reading in read.readings):
            blocks.append("\n".join(_block(read)))
        else:
            nothing.append(f"  {read.source:<16} {_why(read.readings):<20} {read.where}")
    if nothing:
        blocks.append("\n".join(("Nothing from:", *nothing)))
    reasons = {reading.reason for read in found for reading in read.readings}
    blocks.append("\n".join(f"{name}: {why}" for name, why in _WHY.items() if name in reasons))
    return "\n\n".join(blocks)


def _said(name: str, value: Scalar) -> str:
    """A fact of the description; its name ends in its unit."""
    for unit in ("bytes_per_second", "bytes", "hertz"):
        if name.endswith(unit) and isinstance(value, (int, float)):
            return f"{value / 1e9:.4g} GB/s" if "per" in unit else for_people(value, unit)
    return str(value)


def _block(read: Read) -> Iterable[str]:
    yield f"{read.source}: {read.where} ({read.took_us} us)"
    for reading in read.readings:
        if reading.reason is not None:
            value = f"unknown: {reading.reason}"
        elif reading.value is not None:
            value = for_people(reading.value, reading.measurement.unit)
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
