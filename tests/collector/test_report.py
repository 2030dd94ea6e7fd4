"""`decodewatch collector report`: what is in the database, and whether all of it is there."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.collecting import WALL, a_batch
from support.records import a_turn

from decodewatch.collector import database, report
from decodewatch.collector.storage.arrivals import Message, read
from decodewatch.collector.storage.store import Store
from decodewatch.shared import wire
from decodewatch.shared.records import Floor, Record, Runtime
from decodewatch.shared.wire import Batch

MEBIBYTE = 1 << 20


def fill(engine: Engine, *batches: Batch) -> None:
    store = Store(engine, letter_rows=100, letter_bytes=100)
    store.write(
        [
            read(Message.of(wire.topic(batch.device, "up"), wire.encode_batch(batch), WALL))
            for batch in batches
        ]
    )


def a_conversation(turns: int, device: str = "device-1") -> list[Batch]:
    """One batch a turn, TTFT 401, 402, ... ms, floors 301, 302, ... MiB."""
    made = []
    for number in range(1, turns + 1):
        t = number * 1_000_000
        turn = a_turn(f"turn-{number}", t=t, ttft_us=400_000 + number * 1000)
        floor = Floor(turn.id, turn.runtime, t, (300 + number) * MEBIBYTE, 3, True)
        made.append(a_batch(number, [turn, floor], device=device))
    return made


def collected(engine: Engine) -> report.Report:
    with database.reading(engine) as connection:
        return report.collect(connection)


def command(engine: Engine, *flags: str) -> "subprocess.CompletedProcess[str]":
    url = engine.url.render_as_string(hide_password=False)
    program = [sys.executable, "-m", "decodewatch.shared.cli", "collector", "report"]
    return subprocess.run([*program, "--database", url, *flags], capture_output=True, text=True)


def test_it_counts_turns_sessions_and_devices(engine: Engine) -> None:
    fill(engine, *a_conversation(3), *a_conversation(2, "device-2"))
    fill(engine, a_batch(9, [a_turn("lost", ending="lost", session=None, ttft_us=None)]))
    found = collected(engine)
    assert (found.turns, found.sessions, found.devices) == (6, 2, 2)
    assert found.endings == {"complete": 5, "lost": 1}
    assert found.ttft.n == 5
    assert found.itl.n == 6 * 63


def test_a_percentile_is_withheld_where_its_count_is_too_small(engine: Engine) -> None:
    fill(engine, *a_conversation(100))
    plain = json.loads(report.as_json(collected(engine)))
    assert plain["ttft_us"]["n"] == 100
    assert plain["ttft_us"]["p90"] == pytest.approx(490_000, rel=0.011)
    assert plain["ttft_us"]["p95"] is None
    assert plain["itl_us"]["p99"] == pytest.approx(38_000, rel=0.011)
    text = "\n".join(report.as_text(collected(engine)))
    assert "-: fewer values" in text


def test_floors_are_told_from_first_to_last(engine: Engine) -> None:
    fill(engine, *a_conversation(30))
    found = collected(engine)
    (floors,) = found.floors
    sizes = (floors.first, floors.last, floors.lowest, floors.highest)
    assert [size // MEBIBYTE for size in sizes] == [301, 330, 301, 330]
    assert [item.turn for item in found.last] == [f"turn-{n}" for n in range(11, 31)]
    assert found.last[-1].floor_bytes == 330 * MEBIBYTE


def test_two_runtimes_of_one_device_are_told_apart(engine: Engine) -> None:
    records: list[Record] = []
    for name, pid in (("chat", 11), ("summary", 22)):
        turn = a_turn(f"turn-of-{name}", runtime=f"runtime-{name}")
        floor = Floor(turn.id, turn.runtime, turn.t, 301 * MEBIBYTE, 3, True)
        records += [Runtime(turn.runtime, turn.t, pid, name, "llama.cpp"), turn, floor]
    stranger = a_turn("turn-of-nobody", runtime="runtime-x", t=9_000_000)
    fill(engine, a_batch(1, [*records, stranger]))
    found = collected(engine)
    assert [(item.name, item.pid) for item in found.floors] == [("chat", 11), ("summary", 22)]
    assert {item.turn: item.name for item in found.last} == {
        "turn-of-chat": "chat",
        "turn-of-summary": "summary",
        "turn-of-nobody": None,
    }
    lines = list(report.as_text(found))
    assert any(re.match(r"device-1 +summary +22 +1 ", line) for line in lines)
    at = time.strftime("%m-%d %H:%M:%S", time.gmtime(found.last[-1].at / 1_000_000))
    assert any(re.match(rf"{at} +device-1 +- +f-nobody +complete ", line) for line in lines)
    assert any(re.match(r"device +stream +sent +stored ", line) for line in lines)


def test_an_empty_database_makes_an_empty_report(engine: Engine) -> None:
    found = collected(engine)
    assert json.loads(report.as_json(found))["itl_us"]["p50"] is None
    assert "0 turns in 0 sessions on 0 devices" in next(report.as_text(found))


def test_strict_succeeds_only_where_all_that_was_sent_is_stored(sqlite: Engine) -> None:
    fill(sqlite, *a_conversation(3))
    done = command(sqlite, "--strict", "--expect-turns", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "device-1" in done.stdout
    done = command(sqlite, "--strict", "--expect-turns", "4")
    assert (done.returncode, done.stderr) == (1, "turns: 3, expected 4\n")
    fill(sqlite, a_batch(5))
    done = command(sqlite, "--strict")
    assert (done.returncode, done.stderr) == (1, "batches missing: 1, expected 0\n")
    assert command(sqlite).returncode == 0


def test_json_is_one_document(sqlite: Engine) -> None:
    fill(sqlite, *a_conversation(1))
    plain: dict[str, Any] = json.loads(command(sqlite, "--json").stdout)
    (ledger,) = plain["ledger"]
    assert (ledger["sent"], ledger["received"], ledger["missing"]) == (1, 1, 0)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "decodewatch.shared.cli", "collector", "report"]
    done = subprocess.run(
        [*program, "--state-folder", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert not list(tmp_path.iterdir())
