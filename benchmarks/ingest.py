"""What the collector stores a second, against the same rows by plain executemany.

    python benchmarks/ingest.py --batches 1000

Through the store goes all that the collector does with a batch but the network: reading it
strictly, the delivery ledger, placing it in time, the current state, one commit a group. The
comparison gets rows that are ready, in the same tables, and commits as often. Both into a fresh
SQLite file with synchronous FULL, in turns. One JSON line a size of batch; then one with and one
without group commit, synchronous FULL against NORMAL: what it costs that an acknowledgement
survives a power loss.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, text

from decodewatch.collector import database, migrate
from decodewatch.collector.storage.arrivals import Message, read
from decodewatch.collector.storage.rows import row_of
from decodewatch.collector.storage.store import Store
from decodewatch.shared import wire
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Event, Floor, Record, Sample, Stratum, Turn, Window
from decodewatch.shared.sketch import Sketch

GROUP = 64
WALL = 1_760_000_000_000_000
DEVICES = 20


def a_turn(t: int) -> Turn:
    """A turn of 128 tokens with a spread of gaps."""
    gaps = [(7, Sketch.of(range(30_000, 43_000, 200))), (8, Sketch.of(range(31_000, 44_000, 200)))]
    return Turn(
        id=uuid7(), runtime="0123456789abcdef", session="0123456789abcdef", number=3, t=t,
        duration_us=5_400_000, ttft_us=512_345, decode_us=4_900_000, prompt_tokens=310,
        cached_tokens=200, output_tokens=128, first_tokens=1, steps=128, shared_tokens=0,
        token_source="counted", ending="complete", error=None, suspended_us=0, concurrency=1,
        memory_start_bytes=412_000_000, memory_peak_bytes=431_000_000,
        memory_end_bytes=415_000_000, itl=tuple(gaps),
    )  # fmt: skip


def a_sample(t: int, runtime: str | None) -> Sample:
    """A sample of 30 measurements of the system, or of 6 of a runtime."""
    count = 30 if runtime is None else 6
    values = {
        f"measurement_{place}:label": (61.5 + place, 60.25, 70.0 + t % 7) for place in range(count)
    }
    return Sample(runtime, t, 10_000_000, values)


def records(rows: int, t: int) -> list[Record]:
    """What a busy device sends: of ten records two turns with floors, three windows, samples."""
    found: list[Record] = []
    while len(found) < rows:
        turn = a_turn(t)
        sketch = Sketch.of(range(30_000, 43_000, 200))
        found += [
            turn,
            Floor(turn.id, turn.runtime, t + 6_000_000, 415_000_000, 4, True),
            Window(turn.runtime, t, 10_000_000, 250, 250, (Stratum(8, 1, "none", sketch),)),
            a_sample(t, None),
            a_sample(t, turn.runtime),
            Event(uuid7(), t, "clock_stepped", data={"by_us": 12}),
        ]
        t += 10_000_000
    return found[:rows]


def batches(count: int, rows: int) -> list[wire.Batch]:
    """Batches of several devices, each with streams in order."""
    made = []
    for place in range(count):
        device, number = f"device-{place % DEVICES}", place // DEVICES + 1
        t = number * rows * 10_000_000
        clock = wire.Clock(t, WALL + t, True)
        found = tuple(records(rows, t))
        made.append(wire.Batch(device, "stream-1", None, number, "boot-1", clock, found))
    return made


def groups(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """The items in groups, the last one shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_store(
    messages: Sequence[Message], size: int, file: Path, synchronous: str = "FULL"
) -> float:
    """Seconds that the store takes."""
    engine = _fresh(file)

    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _record: Any) -> None:
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    engine.dispose()
    store = Store(engine, letter_rows=100, letter_bytes=100)
    began = time.perf_counter()
    for group in groups(messages, size):
        store.write([read(message) for message in group])
    took = time.perf_counter() - began
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT sum(received) FROM stream")).scalar_one()
    assert stored == len(messages), stored
    engine.dispose()
    return took


def by_reading(messages: Sequence[Message]) -> float:
    """Seconds that the strict reading alone takes."""
    began = time.perf_counter()
    for message in messages:
        read(message)
    return time.perf_counter() - began


def by_executemany(made: Sequence[wire.Batch], size: int, file: Path) -> float:
    """Seconds that sqlite3 takes for the records' rows alone, made before."""
    _fresh(file).dispose()
    statements: list[dict[str, list[tuple[Any, ...]]]] = []
    for group in groups(made, size):
        by_table: dict[str, list[tuple[Any, ...]]] = {}
        for batch in group:
            for record in batch.records:
                table, row = row_of(record, batch.device, batch.boot, WALL)
                names = ", ".join(f'"{name}"' for name in row)
                marks = ", ".join("?" * len(row))
                sql = f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})'
                by_table.setdefault(sql, []).append(tuple(map(_plain, row.values())))
        statements.append(by_table)
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    began = time.perf_counter()
    for by_table in statements:
        connection.execute("BEGIN IMMEDIATE")
        for sql, rows in by_table.items():
            connection.executemany(sql, rows)
        connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.close()
    return took


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list, tuple)) else value


def _fresh(file: Path) -> Engine:
    for old in file.parent.glob(file.name + "*"):
        old.unlink()
    engine = database.open_engine(f"sqlite:///{file}")
    migrate.upgrade(engine)
    return engine


def median(runs: int, *takers: Callable[[], float]) -> list[float]:
    """The median of each, run in turns."""
    found: list[list[float]] = [[] for _ in takers]
    for _ in range(runs):
        for place, take in enumerate(takers):
            found[place].append(take())
    return [statistics.median(each) for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ingest.db"
        for rows in (40, 60):
            made = batches(chosen.batches, rows)
            payloads = [(item.device, wire.encode_batch(item)) for item in made]
            messages = [
                Message.of(wire.topic(device, "up"), payload, WALL) for device, payload in payloads
            ]
            store_s, plain_s, reading_s = median(
                chosen.runs,
                partial(by_store, messages, GROUP, file),
                partial(by_executemany, made, GROUP, file),
                partial(by_reading, messages),
            )
            line = {
                "benchmark": "ingest",
                "rows_a_batch": rows,
                "bytes_a_batch": round(statistics.mean(len(one) for _, one in payloads)),
                "batches_a_s": round(len(made) / store_s),
                "records_a_s": round(len(made) * rows / store_s),
                "executemany_records_a_s": round(len(made) * rows / plain_s),
                "ratio": round(plain_s / store_s, 3),
                "reading_share": round(reading_s / store_s, 2),
            }
            print(json.dumps(line), flush=True)
        few = messages[: chosen.batches // 4]
        for size in (GROUP, 1):
            full_s, normal_s = median(
                chosen.runs,
                partial(by_store, few, size, file),
                partial(by_store, few, size, file, "NORMAL"),
            )
            line = {
                "benchmark": "ingest_synchronous",
                "batches_a_commit": size,
                "full_batches_a_s": round(len(few) / full_s),
                "normal_batches_a_s": round(len(few) / normal_s),
                "ratio": round(normal_s / full_s, 3),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
