"""`decodewatch agent bandwidth`: measures the memory, keeps it, and says what that means."""

import json
import time
from pathlib import Path
from typing import Any, Final

from decodewatch.agent import show
from decodewatch.agent.hardware import bandwidth, board, ceiling, measurements, watch
from decodewatch.agent.hardware.bandwidth import Measured
from decodewatch.agent.hardware.board import Board
from decodewatch.agent.hardware.ceiling import Ceiling
from decodewatch.agent.hardware.measurements import Measurement
from decodewatch.shared.clock import wall_us

USUAL_S: Final = 5.0
_LOW: Final = 0.6  # of the specification; reads of one kind after the other reach more
_TOO_MUCH: Final = 1.05


def run(folder: Path, seconds: float, threads: int | None, *, as_json: bool) -> int:
    """Measure, keep and print. Raises AgentError where it cannot be measured or kept."""
    found = {reading.key: reading for reading in show.taken(show.read_all(Path("/")))}
    device = board.read(release=board.kernel_release())
    limits, mode = watch.clocks(found.get), watch.power_mode(found.get)
    measured = bandwidth.measure(seconds, threads)
    kept = Measurement(
        at=wall_us(),
        read_bytes_per_second=measured.read.bytes_per_second,
        copy_bytes_per_second=measured.copy.bytes_per_second,
        threads=measured.read.threads,
        model=device.model,
        memory_bytes=device.memory_bytes,
        power_mode=mode,
        dram_max_hertz=limits.allowed,
        running_share=round(measured.read.running, 3),
    )
    result = ceiling.ceiling(device.row, limits, mode, [kept])
    why_not: str | None = None
    if threads is not None:
        # Fewer threads than cores are a trial: the ceiling is that of all of them.
        why_not = "--threads makes it a trial"
    elif (better := measurements.store(folder, kept)) is not None:
        why_not = _better(better)
    file = None if why_not is not None else folder / measurements.FILE
    if as_json:
        print(json.dumps(_fields(device, measured, kept, result, file, why_not)))
    else:
        print("\n".join(_lines(device, measured, kept, result, file, why_not)))
    return 0


def _better(known: Measurement) -> str:
    """Why a disturbed measurement is not kept."""
    day = time.strftime("%Y-%m-%d", time.gmtime(known.at // 1_000_000))
    how = "also disturbed" if known.disturbed else "undisturbed"
    return f"{_gb(known.read_bytes_per_second)} were measured in this power mode on {day}, {how}"


def _fields(
    device: Board,
    measured: Measured,
    kept: Measurement,
    result: Ceiling,
    file: Path | None,
    why_not: str | None,
) -> dict[str, Any]:
    spec, row = result.specification, device.row
    return {
        "device": None if row is None else row.name,
        "power_mode": kept.power_mode,
        "dram_max_hertz": kept.dram_max_hertz,
        "spec_bytes_per_second": spec.bytes_per_second,
        "spec_note": spec.note,
        "spec_source": None if row is None else row.source,
        "read_bytes_per_second": round(measured.read.bytes_per_second),
        "read_threads": measured.read.threads,
        "read_with": measured.read.routine,
        "copy_bytes_per_second": round(measured.copy.bytes_per_second),
        "copy_threads": measured.copy.threads,
        "cpu_running_share": kept.running_share,
        "read_share_of_spec": _share(measured, result),
        "ceiling_bytes_per_second": round(result.bytes_per_second or 0) or None,
        "ceiling_from": result.origin,
        "buffer_bytes": measured.buffer_bytes,
        "seconds": round(measured.seconds, 3),
        "kept_in": None if file is None else str(file),
        "not_kept": why_not,
        "meaning": meaning(device, measured, kept, result),
    }


def _lines(
    device: Board,
    measured: Measured,
    kept: Measurement,
    result: Ceiling,
    file: Path | None,
    why_not: str | None,
) -> list[str]:
    spec, row = result.specification, device.row
    name = device.model or device.cpu or "this device"
    if row is None:
        shown = f"unknown: {spec.note} ({name})"
    elif spec.bytes_per_second is None:
        shown = f"unknown: {spec.note} ({row.name}, {row.source})"
    else:
        shown = f"{_gb(spec.bytes_per_second)}  {row.name}, {spec.note} ({row.source})"
    share = _share(measured, result)
    ratio = "unknown" if share is None else f"{100 * share:.0f} % of the specification"
    read, copy = measured.read, measured.copy
    return [
        f"specification  {shown}",
        f"measured read  {_gb(read.bytes_per_second)}  {_threads(read.threads)}, {read.routine}",
        f"measured copy  {_gb(copy.bytes_per_second)}  {_threads(copy.threads)}, what is read and "
        "what is written together",
        f"ratio          {ratio}",
        f"power mode     {kept.power_mode or 'unknown'}",
        f"buffer         {measured.buffer_bytes >> 20} MiB, {measured.seconds:.1f} s",
        f"not kept: {why_not}" if file is None else f"kept in        {file}",
        meaning(device, measured, kept, result),
    ]


def meaning(device: Board, measured: Measured, kept: Measurement, result: Ceiling) -> str:
    """What the figures mean, in one line."""
    share = _share(measured, result)
    rate = _gb(measured.read.bytes_per_second)
    if kept.disturbed:
        return (
            f"At least {rate}; other programs used the CPU, so this is no ceiling. Measure again "
            "while the device is idle."
        )
    if share is None:
        return f"The ceiling is {rate}, as measured: decoding cannot read its weights faster."
    if result.origin == "specification":
        return (
            f"The ceiling stays {_gb(result.bytes_per_second or 0)}, by the specification: the CPU "
            "alone cannot fill the bus of this board, its GPU reads faster."
        )
    if share > _TOO_MUCH:
        return (
            f"The ceiling is {rate}, as measured, and above the specification: the row of the "
            "table is not this device's, or a cache answered."
        )
    if share < _LOW:
        fitted = device.row is not None and device.row.confidence == "maximum"
        why = "the memory that is fitted may be slower or less wide" if fitted else "which is low"
        return (
            f"The ceiling is {rate}, as measured, {100 * share:.0f} % of the specification: {why}, "
            "or something else was using the memory; measure again while the device is idle."
        )
    return (
        f"The ceiling is {rate}, as measured, {100 * share:.0f} % of the specification: as usual, "
        "no device reaches all of it."
    )


def _share(measured: Measured, result: Ceiling) -> float | None:
    spec = result.specification.bytes_per_second
    return None if spec is None else round(measured.read.bytes_per_second / spec, 4)


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"


def _threads(number: int) -> str:
    return f"{number} thread" + ("" if number == 1 else "s")
