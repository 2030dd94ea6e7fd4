"""Records as rows of the SQL tables. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Table

from decodewatch.shared import tables
from decodewatch.shared.records import (
    Event,
    Floor,
    Phase,
    Record,
    Runtime,
    Sample,
    Turn,
    Window,
)

Row = dict[str, Any]


def _runtime(record: Runtime) -> Row:
    return {
        "runtime": record.id,
        "pid": record.pid,
        "name": record.name,
        "engine": record.engine,
        "engine_version": record.engine_version,
        "model": None if record.model is None else record.model.to_json(),
        "settings": record.settings,
    }


def _turn(record: Turn) -> Row:
    return {
        "turn": record.id,
        "runtime": record.runtime,
        "session": record.session,
        "number": record.number,
        "duration_us": record.duration_us,
        "ttft_us": record.ttft_us,
        "decode_us": record.decode_us,
        "tpot_us": record.tpot_us,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "first_tokens": record.first_tokens,
        "steps": record.steps,
        "shared_tokens": record.shared_tokens,
        "token_source": record.token_source,
        "ending": record.ending,
        "error": record.error,
        "suspended_us": record.suspended_us,
        "concurrency": record.concurrency,
        "memory_start_bytes": record.memory_start_bytes,
        "memory_peak_bytes": record.memory_peak_bytes,
        "memory_end_bytes": record.memory_end_bytes,
        "itl": [[octave, sketch.to_json()] for octave, sketch in record.itl],
    }


def _floor(record: Floor) -> Row:
    return {
        "turn": record.turn,
        "runtime": record.runtime,
        "bytes": record.bytes,
        "readings": record.readings,
        "settled": record.settled,
    }


def _window(record: Window) -> Row:
    return {
        "runtime": record.runtime,
        "duration_us": record.duration_us,
        "tokens": record.tokens,
        "steps": record.steps,
        "strata": [
            [item.depth, item.concurrency, item.throttle, item.itl.to_json()]
            for item in record.strata
        ],
    }


def _sample(record: Sample) -> Row:
    return {
        "runtime": record.runtime or "",
        "duration_us": record.duration_us,
        "values": record.values,
        "unknown": record.unknown or None,
        "phases": _phases(record.phases),
    }


def _phases(phases: Mapping[str, Phase] | None) -> dict[str, list[Any]] | None:
    if not phases:
        return None
    return {name: [one.duration_us, one.tokens, one.values] for name, one in phases.items()}


def _event(record: Event) -> Row:
    return {
        "event_id": record.id,
        "event": record.event,
        "runtime": record.runtime,
        "turn": record.turn,
        "data": record.data,
    }


_MAKERS: Mapping[type[Record], tuple[Table, Callable[[Any], Row]]] = {
    Runtime: (tables.runtime, _runtime),
    Turn: (tables.turn, _turn),
    Floor: (tables.floor, _floor),
    Window: (tables.window, _window),
    Sample: (tables.sample, _sample),
    Event: (tables.event, _event),
}


def row_of(record: Record, device: str, boot: str, offset_us: int) -> tuple[Table, Row]:
    """The table of a record, and its row; it is placed at its `t` plus the boot's offset."""
    table, make = _MAKERS[type(record)]
    placed = {"device": device, "boot": boot, "t": record.t, "at": record.t + offset_us}
    return table, placed | make(record)
