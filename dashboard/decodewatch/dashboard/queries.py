"""All SQL of the dashboard: each function asks one thing and returns plain values.

Every query is bounded, by LIMIT or by what one device can have, and says so where it cut something
off. Moments are microseconds since 1970; `None` is "not known", as in the tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, func, select
from sqlalchemy.sql import ColumnElement

from decodewatch.shared import tables
from decodewatch.shared.model import ModelError, ModelSpec
from decodewatch.shared.records import Phase
from decodewatch.shared.sketch import Sketch

MOST_DEVICES = 100
MOST_STREAMS = 200
MOST_RUNTIMES = 20
MOST_TURNS = 500
MOST_EVENTS = 200
MOST_WINDOWS = 5_000
MOST_SAMPLES = 2_000
MOST_TURN_SKETCHES = 3_000
SAMPLE_SLOT_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Device:
    """One row of `device_state`: what is known of a device now."""

    device: str
    online: bool
    status_at: int | None
    agent_version: str | None
    boot: str | None
    clock_synchronised: bool | None
    first_received_at: int
    last_received_at: int
    sample_at: int | None
    hottest_label: str | None
    hottest_celsius: float | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    throttle: str | None
    turn_at: int | None
    turn_ending: str | None
    turn_ttft_us: int | None
    turn_tpot_us: float | None
    runtime: str | None
    runtime_memory_bytes: int | None
    description: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """The delivery ledger in batches: of what was numbered, what became of it.

    `refused` alone counts records: those inside received batches that were not valid.
    """

    received: int = 0
    duplicate: int = 0
    late: int = 0
    missing: int = 0
    evicted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a device with its ledger."""

    stream: str
    previous: str | None
    boot: str
    first_received_at: int
    last_received_at: int
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Runtime:
    """One process that decodes, as it described itself."""

    runtime: str
    at: int
    pid: int
    name: str
    engine: str
    engine_version: str | None
    model: ModelSpec | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, with the floor of memory after it where that is known already."""

    turn: str
    runtime: str
    session: str | None
    number: int | None
    at: int
    duration_us: int
    ttft_us: int | None
    tpot_us: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    token_source: str
    ending: str
    error: str | None
    memory_peak_bytes: int | None
    memory_end_bytes: int | None
    floor_bytes: int | None
    floor_settled: bool | None

    @property
    def end_at(self) -> int:
        """When it ended."""
        return self.at + self.duration_us


@dataclass(frozen=True, slots=True)
class Window:
    """The gaps of one runtime in one interval that ended at `at`, all strata merged."""

    at: int
    itl: Sketch


@dataclass(frozen=True, slots=True)
class Sample:
    """What the hardware showed in one interval that ended at `at`."""

    at: int
    values: Mapping[str, Any]
    unknown: Mapping[str, Any]
    phases: Mapping[str, Phase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something at one moment."""

    at: int
    event: str
    runtime: str | None
    turn: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decoding:
    """What a device decoded in a period: sketches over all its turns in it.

    `itl` holds one sketch a depth octave (None: depth not known). `cut` says that the period has
    more turns than were read, and that these are the newest. `runtimes` is how many processes the
    turns are of: applications and models that no figure here keeps apart.
    """

    turns: int
    runtimes: int
    endings: Mapping[str, int]
    ttft: Sketch
    itl: Mapping[int | None, Sketch]
    cut: bool

    @property
    def all_itl(self) -> Sketch:
        """ITL over all depths."""
        return merged(self.itl.values())


_Row = TypeVar("_Row")


def merged(sketches: Iterable[Sketch]) -> Sketch:
    """One sketch of several."""
    whole = Sketch()
    for one in sketches:
        whole.merge(one)
    return whole


def _rows(connection: Connection, kind: type[_Row], query: Select[Any]) -> list[_Row]:
    """Rows as a dataclass whose fields are named like the columns."""
    return [kind(**row) for row in connection.execute(query).mappings()]


def _columns(table: Any, kind: type) -> list[ColumnElement[Any]]:
    return [table.c[item.name] for item in fields(kind)]


def devices(connection: Connection, limit: int = MOST_DEVICES) -> list[Device]:
    """The devices there are, those that are not online first, then by name."""
    table = tables.device_state
    query = select(*_columns(table, Device)).order_by(table.c.online, table.c.device).limit(limit)
    return _rows(connection, Device, query)


def device_counts(connection: Connection) -> tuple[int, int]:
    """How many devices there are, and how many of them say that they are online."""
    table = tables.device_state
    query = select(table.c.online, func.count()).group_by(table.c.online)
    found = {bool(online): number for online, number in connection.execute(query)}
    return sum(found.values()), found.get(True, 0)


def device(connection: Connection, name: str) -> Device | None:
    """One device; None where nothing was ever heard of it."""
    table = tables.device_state
    query = select(*_columns(table, Device)).where(table.c.device == name)
    return next(iter(_rows(connection, Device, query)), None)


def streams(connection: Connection, name: str, limit: int = MOST_STREAMS) -> list[Stream]:
    """The streams of a device, the newest first, at most `limit`."""
    table = tables.stream
    query = (
        select(table)
        .where(table.c.device == name)
        .order_by(table.c.first_received_at.desc())
        .limit(limit)
    )
    return [
        Stream(
            row.stream,
            row.previous,
            row.boot,
            row.first_received_at,
            row.last_received_at,
            Ledger(*(row._mapping[column] for column in _LEDGER)),
        )
        for row in connection.execute(query)
    ]


_LEDGER = tuple(
    tables.stream.c[column]
    for column in ("received", "duplicate", "late", "missing", "evicted_count", "refused")
)


def ledgers(connection: Connection, names: Sequence[str]) -> dict[str, Ledger]:
    """The delivery ledger of each device over all its streams; devices without one are left out."""
    table = tables.stream
    query = (
        select(table.c.device, *(func.sum(column) for column in _LEDGER))
        .where(table.c.device.in_(names))
        .group_by(table.c.device)
    )
    return {name: Ledger(*map(int, sums)) for name, *sums in connection.execute(query)}


def boot_placed(connection: Connection, name: str, boot: str) -> str | None:
    """How a boot is placed in time: "clock", or "receipt" where its clock never was right."""
    table = tables.boot
    query = select(table.c.placed).where(table.c.device == name, table.c.boot == boot)
    placed: str | None = connection.execute(query).scalar()
    return placed


def runtimes(connection: Connection, name: str, limit: int = MOST_RUNTIMES) -> list[Runtime]:
    """The runtimes of a device, the newest first."""
    table = tables.runtime
    query = (
        select(*_columns(table, Runtime))
        .where(table.c.device == name)
        .order_by(table.c.at.desc())
        .limit(limit)
    )
    return [_runtime(row) for row in connection.execute(query).mappings()]


def runtime(connection: Connection, name: str, which: str | None) -> Runtime | None:
    """One runtime of a device; None where it is not known."""
    table = tables.runtime
    query = select(*_columns(table, Runtime)).where(
        table.c.device == name, table.c.runtime == which
    )
    found = connection.execute(query).mappings().first()
    return None if found is None else _runtime(found)


def _runtime(row: Mapping[Any, Any]) -> Runtime:
    return Runtime(**{**row, "model": _model(row["model"]), "settings": row["settings"] or {}})


def _model(value: Any) -> ModelSpec | None:
    try:
        return None if value is None else ModelSpec.from_json(value)
    except ModelError:
        # Written by a newer collector, with a word that this version does not know.
        return None


def decoding(
    connection: Connection, name: str, since: int, limit: int = MOST_TURN_SKETCHES
) -> Decoding:
    """What a device decoded in the turns that began since then, the newest `limit` of them."""
    table = tables.turn
    inside = (table.c.device == name) & (table.c.at >= since)
    counts = (
        select(table.c.ending, func.count().label("number")).where(inside).group_by(table.c.ending)
    )
    endings = {row.ending: row.number for row in connection.execute(counts)}
    apart = select(func.count(table.c.runtime.distinct())).where(inside)
    runtimes_in_all = connection.execute(apart).scalar_one()
    newest = (
        select(table.c.ttft_us, table.c.itl).where(inside).order_by(table.c.at.desc()).limit(limit)
    )
    ttft = Sketch()
    itl: dict[int | None, Sketch] = {}
    for ttft_us, strata in connection.execute(newest):
        if ttft_us is not None:
            ttft.add(ttft_us)
        for octave, sketch in strata:
            itl.setdefault(octave, Sketch()).merge(Sketch.from_json(sketch))
    turns_in_all = sum(endings.values())
    return Decoding(turns_in_all, runtimes_in_all, endings, ttft, itl, turns_in_all > limit)


def turns(connection: Connection, name: str, since: int, limit: int = MOST_TURNS) -> list[Turn]:
    """The turns that began since then, the newest first, at most `limit`."""
    turn, floor = tables.turn, tables.floor
    own = [turn.c[item.name] for item in fields(Turn) if item.name in turn.c]
    query = (
        select(*own, floor.c.bytes.label("floor_bytes"), floor.c.settled.label("floor_settled"))
        .outerjoin(floor, (floor.c.device == turn.c.device) & (floor.c.turn == turn.c.turn))
        .where(turn.c.device == name, turn.c.at >= since)
        .order_by(turn.c.at.desc())
        .limit(limit)
    )
    return _rows(connection, Turn, query)


def windows(
    connection: Connection, name: str, since: int, limit: int = MOST_WINDOWS
) -> list[Window]:
    """The windows that ended since then, the newest first, at most `limit`."""
    table = tables.window
    query = (
        select(table.c.at, table.c.strata)
        .where(table.c.device == name, table.c.at >= since)
        .order_by(table.c.at.desc())
        .limit(limit)
    )
    return [
        Window(at, merged(Sketch.from_json(stratum[3]) for stratum in strata))
        for at, strata in connection.execute(query)
    ]


def stride(span: int) -> int:
    """Of how many samples `samples` must read one, to read no more of a span than its bound."""
    return max(-(-span // SAMPLE_SLOT_US // MOST_SAMPLES), 1)


def samples(connection: Connection, name: str, since: int, stride: int = 1) -> list[Sample]:
    """The system's samples that ended since then, in order, at most `MOST_SAMPLES`.

    With a `stride` above 1 only those of every so many slots of 10 s, spread over the period: what
    the others showed is in none of them.
    """
    table = tables.sample
    query = select(*_columns(table, Sample)).where(
        table.c.device == name, table.c.at >= since, table.c.runtime == ""
    )
    if stride > 1:
        query = query.where((table.c.at // SAMPLE_SLOT_US) % stride == 0)
    newest = query.order_by(table.c.at.desc()).limit(MOST_SAMPLES)
    return [
        Sample(
            row.at,
            row.values,
            row.unknown or {},
            {name: Phase(*part) for name, part in (row.phases or {}).items()},
        )
        for row in reversed(connection.execute(newest).all())
    ]


def events(connection: Connection, name: str, since: int, limit: int = MOST_EVENTS) -> list[Event]:
    """The events since then, the newest first, at most `limit`."""
    table = tables.event
    query = (
        select(*_columns(table, Event))
        .where(table.c.device == name, table.c.at >= since)
        .order_by(table.c.at.desc())
        .limit(limit)
    )
    return _rows(connection, Event, query)
