"""The events of a turn are stored with it, by the real agent, once."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import free_port
from support.spooled import events, records
from support.waiting import until

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.wrapper.link import Link
from decodewatch.shared.clock import boot_us
from decodewatch.shared.records import Turn


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(sys.executable, "-m", "decodewatch.shared.cli", "agent", "run", "--device", "test"),
        *("--socket", str(tmp_path / "agent.sock"), "--state-folder", str(tmp_path / "state")),
        *("--broker-port", str(free_port())),
    ]
    with (tmp_path / "agent.log").open("wb") as log:
        made = subprocess.Popen(command, stdout=log, stderr=log)
    until((tmp_path / "agent.sock").exists, 30)
    yield made
    made.kill()
    made.wait(10)


def test_the_events_of_a_turn_are_stored_with_it(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    link = Link(tick_s=0.05, socket_path=lambda: tmp_path / "agent.sock")
    monitor = DecodeMonitor("chat", engine="toy", link=link)
    with monitor.turn(prompt_tokens=100) as turn:
        turn.step()
        turn.overflow("shift", depth=101, limit=100)
        turn.kv_cache(4096, allocation="growing", tokens=101)
    assert monitor.flush(20)
    agent.terminate()
    agent.wait(10)
    state = tmp_path / "state"
    (stored,) = records(state, Turn)
    (limit,) = events(state, "context_limit")
    (kv,) = events(state, "kv_cache")
    assert stored.id == limit.turn == kv.turn == turn.id
    assert stored.runtime == limit.runtime == kv.runtime
    assert limit.data["policy"] == "shift" and limit.data["depth"] == 101
    assert (kv.data["bytes"], kv.data["allocation"]) == (4096, "growing")
    assert abs(limit.t - stored.t) < 10_000_000


class ByHand:
    """An application that speaks the protocol line by line."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self.ask({"type": "hello", "v": 1, "name": "chat", "engine": "toy"})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        found: dict[str, Any] = json.loads(self._lines.readline())
        return found

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def ended(name: str, happened: list[Any]) -> dict[str, Any]:
    counts = ("output_tokens", "first_tokens", "steps", "shared_tokens", "suspended_us")
    record = {
        "id": name,
        "t": boot_us(),
        "duration_us": 1,
        **dict.fromkeys(counts, 0),
        "token_source": "counted",
        "ending": "complete",
        "concurrency": 1,
        "itl": [],
    }
    return {"type": "turn", "record": record, "events": happened}


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"event": kind, "t": boot_us(), "data": data}


def test_a_turn_that_comes_twice_has_its_events_once(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    application = ByHand(tmp_path / "agent.sock")
    message = ended("t-1", [event("context_limit", policy="truncate", limit=5)])
    assert application.ask(message) == {"type": "stored", "turn": "t-1"}
    assert application.ask(message) == {"type": "stored", "turn": "t-1"}
    application.close()
    agent.terminate()
    agent.wait(10)
    assert len(events(tmp_path / "state", "context_limit")) == 1


def test_events_are_read_strictly_and_those_of_a_newer_wrapper_are_left_out(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    application = ByHand(tmp_path / "agent.sock")
    bad: list[tuple[list[Any], str]] = [
        ([event("context_limit", policy="secret text")], "policy"),
        ([event("kv_cache", bytes="4096")], "bytes"),
        ([event("kv_cache")], "bytes"),
        ([{"event": "kv_cache", "t": -1, "data": {"bytes": 1}}], "turn.events"),
        ([7], "turn.events"),
        ([event("kv_cache", bytes=1)] * 9, "at most 8"),
    ]
    for number, (happened, named) in enumerate(bad):
        answer = application.ask(ended(f"t-{number}", happened))
        assert answer["type"] == "refused" and named in answer["reason"], answer
    newer = ended("t-new", [event("of_the_future", text="x"), event("kv_cache", bytes=1, more=2)])
    assert application.ask(newer)["type"] == "stored"
    application.close()
    agent.terminate()
    agent.wait(10)
    (kv,) = events(tmp_path / "state", "kv_cache")
    assert "more" not in kv.data and not events(tmp_path / "state", "of_the_future")
