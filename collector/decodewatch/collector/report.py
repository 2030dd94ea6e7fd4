"""`decodewatch collector report`: what is in the database, summed up for a person or a script."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.engine import Connection

from decodewatch.collector import database, migrate
from decodewatch.collector.settings import DATABASE_ONLY, CollectorSettings
from decodewatch.shared import logs, settings, tables
from decodewatch.shared.cli import EXIT_FAILURE
from decodewatch.shared.records import ENDINGS
from decodewatch.shared.sketch import Percentile, Sketch, enough_for

QUANTILES = (0.5, 0.9, 0.95, 0.99)
TURNS_SHOWN = 20
_LEDGER = (
    "received", "duplicate", "late", "missing", "evicted_count", "records", "refused",
)  # fmt: skip


@dataclass(slots=True)
class Floors:
    """The floors of one runtime's turns in their order, RssAnon + VmSwap in bytes.

    `name` and `pid` are None where the runtime's own record has not come.
    """

    device: str
    runtime: str
    name: str | None
    pid: int | None
    turns: int
    first: int
    last: int
    lowest: int
    highest: int


@dataclass(slots=True)
class Turned:
    """One turn as the report lists it; None is not known. `at` is when it began, as in `tables`."""

    at: int
    device: str
    name: str | None
    turn: str
    ending: str
    ttft_us: int | None
    tpot_us: float | None
    output_tokens: int
    floor_bytes: int | None


@dataclass(slots=True)
class Report:
    """All that the report says. Latencies are sketches of microseconds."""

    devices: int = 0
    sessions: int = 0
    turns: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    ttft: Sketch = field(default_factory=Sketch)
    itl: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    floors: list[Floors] = field(default_factory=list)
    last: list[Turned] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: int = 0

    def total(self, column: str) -> int:
        """The sum of a column of the ledger over all streams."""
        return sum(row[column] for row in self.ledger)

    def latencies(self) -> Iterator[tuple[str, Sketch]]:
        """The latencies by name."""
        yield from (("ttft", self.ttft), ("itl", self.itl), ("tpot", self.tpot))


def collect(connection: Connection) -> Report:
    """Read the report from the database."""
    table = tables.turn
    made = Report(
        devices=_one(connection, select(func.count()).select_from(tables.device_state)),
        sessions=_one(connection, _sessions()),
        dead_letters=_one(connection, select(func.count()).select_from(tables.dead_letter)),
    )
    latencies = select(table.c.ending, table.c.ttft_us, table.c.tpot_us, table.c.itl)
    for ending, ttft_us, tpot_us, itl in connection.execute(
        latencies, execution_options={"yield_per": 500}
    ):
        made.turns += 1
        made.endings[ending] = made.endings.get(ending, 0) + 1
        if ttft_us is not None:
            made.ttft.add(ttft_us)
        if tpot_us is not None:
            made.tpot.add(round(tpot_us))
        for _octave, sketch in itl:
            made.itl.merge(Sketch.from_json(sketch))
    made.floors = list(_floors(connection))
    made.last = list(_last(connection))
    stream = tables.stream
    order = select(stream).order_by(stream.c.device, stream.c.first_received_at)
    made.ledger = [
        {"device": row["device"], "stream": row["stream"], "sent": row["highest"]}
        | {name: row[name] for name in _LEDGER}
        for row in connection.execute(order).mappings()
    ]
    return made


def _one(connection: Connection, query: Select[Any]) -> int:
    return int(connection.execute(query).scalar_one())


def _sessions() -> Select[Any]:
    # A session's id is unique on its device only.
    pairs = select(tables.turn.c.session, tables.turn.c.device).distinct()
    known = pairs.where(tables.turn.c.session.is_not(None)).subquery()
    return select(func.count()).select_from(known)


def _floors(connection: Connection) -> Iterator[Floors]:
    floor, runtime = tables.floor, tables.runtime
    columns = (floor.c.device, floor.c.runtime, runtime.c.name, runtime.c.pid, floor.c.bytes)
    same = (floor.c.device == runtime.c.device) & (floor.c.runtime == runtime.c.runtime)
    query = select(*columns).select_from(floor.outerjoin(runtime, same))
    order = query.order_by(floor.c.device, floor.c.runtime, floor.c.at)
    current: Floors | None = None
    for device, id, name, pid, size in connection.execute(
        order, execution_options={"yield_per": 500}
    ):
        if current is None or (current.device, current.runtime) != (device, id):
            if current is not None:
                yield current
            current = Floors(device, id, name, pid, 0, size, size, size, size)
        current.turns += 1
        current.last = size
        current.lowest, current.highest = min(current.lowest, size), max(current.highest, size)
    if current is not None:
        yield current


def _last(connection: Connection) -> Iterator[Turned]:
    turn, floor, runtime = tables.turn, tables.floor, tables.runtime
    columns = (
        turn.c.at, turn.c.device, runtime.c.name, turn.c.turn, turn.c.ending, turn.c.ttft_us,
        turn.c.tpot_us, turn.c.output_tokens, floor.c.bytes,
    )  # fmt: skip
    its_floor = (turn.c.device == floor.c.device) & (turn.c.turn == floor.c.turn)
    its_runtime = (turn.c.device == runtime.c.device) & (turn.c.runtime == runtime.c.runtime)
    joined = turn.outerjoin(floor, its_floor).outerjoin(runtime, its_runtime)
    query = select(*columns).select_from(joined)
    rows = connection.execute(query.order_by(turn.c.at.desc()).limit(TURNS_SHOWN)).all()
    for row in reversed(rows):
        yield Turned(*row)


def problems(report: Report, expect_turns: int | None) -> list[str]:
    """Why not everything that was sent is stored once; empty where it is."""
    found = [
        f"{name}: {report.total(column)}, expected 0"
        for name, column in (
            ("batches missing", "missing"),
            ("batches evicted", "evicted_count"),
            ("records refused", "refused"),
        )
        if report.total(column)
    ]
    if report.dead_letters:
        found.append(f"dead letters: {report.dead_letters}, expected 0")
    if expect_turns is not None and report.turns != expect_turns:
        found.append(f"turns: {report.turns}, expected {expect_turns}")
    return found


def as_json(report: Report) -> str:
    """The report as one JSON document; microseconds, bytes, and null for what is not known."""
    plain: dict[str, Any] = {
        name: getattr(report, name)
        for name in ("devices", "sessions", "turns", "endings", "ledger", "dead_letters")
    }
    for name, sketch in report.latencies():
        percentiles = (sketch.percentile(q) for q in QUANTILES)
        plain[f"{name}_us"] = {"n": sketch.n} | {_name(item.q): item.us for item in percentiles}
    plain["floors"] = [dataclasses.asdict(item) for item in report.floors]
    plain["last_turns"] = [dataclasses.asdict(item) for item in report.last]
    return json.dumps(plain)


def _name(q: float) -> str:
    return f"p{q * 100:g}"


def as_text(report: Report) -> Iterator[str]:
    """The report's lines for a person."""
    endings = ", ".join(
        f"{report.endings[ending]} {ending}" for ending in ENDINGS if ending in report.endings
    )
    yield (
        _count(report.turns, "turn")
        + (f" ({endings})" if endings else "")
        + f" in {_count(report.sessions, 'session')} on {_count(report.devices, 'device')}"
    )
    yield ""
    yield f"{'ms':6}" + "".join(f"{_name(q):>10}" for q in QUANTILES) + f"{'n':>10}"
    for name, sketch in report.latencies():
        cells = [_cell(sketch.percentile(q)) for q in QUANTILES]
        yield f"{name.upper():6}" + "".join(f"{cell:>10}" for cell in cells) + f"{sketch.n:>10}"
    yield (
        "-: fewer values than a percentile needs to mean anything ("
        + ", ".join(f"{_name(q)}: {enough_for(q)}" for q in QUANTILES[1:])
        + ")"
    )
    if report.floors:
        yield ""
        yield "RssAnon + VmSwap after a turn, MiB"
        yield (
            f"{'device':17}{'runtime':17}{'pid':>8}{'turns':>7}"
            f"{'first':>10}{'last':>10}{'lowest':>10}{'highest':>10}"
        )
        for item in report.floors:
            sizes = (item.first, item.last, item.lowest, item.highest)
            cells = [f"{size / (1 << 20):.1f}" for size in sizes]
            pid = "-" if item.pid is None else item.pid
            yield (
                f"{item.device[:16]:17}{(item.name or item.runtime)[:16]:17}{pid:>8}"
                f"{item.turns:>7}" + "".join(f"{cell:>10}" for cell in cells)
            )
    if report.last:
        yield ""
        yield f"last {_count(len(report.last), 'turn')}, the newest one at the end; times are UTC"
        yield (
            f"{'began':16}{'device':17}{'runtime':17}{'turn':10}{'ending':>9}{'tokens':>8}"
            f"{'TTFT ms':>9}{'TPOT ms':>9}{'MiB':>9}"
        )
        for turned in report.last:
            yield _line(turned)
    yield ""
    yield "delivery, in batches"
    yield (
        f"{'device':23}{'stream':22}{'sent':>7}{'stored':>8}{'duplicate':>10}{'late':>6}"
        f"{'missing':>8}{'evicted':>8}"
    )
    for row in report.ledger:
        yield (
            f"{row['device'][:22]:23}{row['stream'][:20]:22}{row['sent']:>7}{row['received']:>8}"
            f"{row['duplicate']:>10}{row['late']:>6}{row['missing']:>8}{row['evicted_count']:>8}"
        )
    if report.dead_letters or report.total("refused"):
        yield f"{report.dead_letters} dead letters, {report.total('refused')} records refused"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(item: Percentile) -> str:
    return "-" if item.us is None else f"{item.us / 1000:.1f}"


def _line(item: Turned) -> str:
    ttft = "-" if item.ttft_us is None else f"{item.ttft_us / 1000:.1f}"
    tpot = "-" if item.tpot_us is None else f"{item.tpot_us / 1000:.1f}"
    floor = "-" if item.floor_bytes is None else f"{item.floor_bytes / (1 << 20):.1f}"
    began = time.strftime("%m-%d %H:%M:%S", time.gmtime(item.at / 1_000_000))
    # The end of the id: its beginning is the time.
    return (
        f"{began:16}{item.device[:16]:17}{(item.name or '-')[:16]:17}{item.turn[-8:]:10}"
        f"{item.ending:>9}{item.output_tokens:>8}{ttft:>9}{tpot:>9}{floor:>9}"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report; with --strict, the exit status says whether all that was sent is stored."""
    chosen = settings.load(CollectorSettings, "collector", vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    engine = database.open_engine(chosen.database_url(), create=False)
    try:
        migrate.require_current(engine)
        with database.reading(engine) as connection:
            report = collect(connection)
    finally:
        engine.dispose()
    print(as_json(report) if arguments.json else "\n".join(as_text(report)))
    wrong = problems(report, arguments.expect_turns)
    if not (arguments.strict and wrong):
        return 0
    for line in wrong:
        print(line, file=sys.stderr)
    return EXIT_FAILURE


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch collector report`."""
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with status 1 unless everything that was sent is stored once",
    )
    parser.add_argument(
        "--expect-turns", type=int, metavar="N", help="with --strict: how many turns must be there"
    )
    settings.add_flags(parser, CollectorSettings, DATABASE_ONLY)
    parser.set_defaults(run=run)
