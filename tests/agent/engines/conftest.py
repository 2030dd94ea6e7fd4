"""A monitor whose turns an inbox of the test takes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inbox_server import InboxServer

from decodewatch.agent import DecodeMonitor, ModelSpec
from decodewatch.agent.messages import parse, turn_record
from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.vitals import moment


class Told:
    """What an agent was told of the turns of one monitor."""

    def __init__(self, monitor: DecodeMonitor, inbox: InboxServer) -> None:
        self.monitor = monitor
        self.inbox = inbox

    def turns(self) -> list[dict[str, Any]]:
        """The records of all turns that ended, each of which the agent's own reader accepts."""
        assert self.monitor.flush(10)
        now = moment().boot // 1000
        for record in self.inbox.records:
            turn_record(record, "runtime", None, now)
        return self.inbox.records

    def turn(self) -> dict[str, Any]:
        """The record of the only turn."""
        (record,) = self.turns()
        return record

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of a kind that came with turns, as the agent's reader takes it."""
        self.turns()
        found = []
        for message in self.inbox.of("turn"):
            read = parse(_line(message), moment().boot // 1000)
            for event in read.events or ():  # type: ignore[union-attr]  # a turn's message
                if event.event == kind:
                    data = {k: v for k, v in event.data.items() if v is not None}
                    found.append(data)
        return found

    def steps(self) -> list[tuple[int | None, int]]:
        """The steps of the only turn, as progress told them."""
        self.turn()
        return [tuple(step) for message in self.inbox.of("progress") for step in message["steps"]]


def _line(message: dict[str, Any]) -> bytes:
    import json

    return json.dumps(message).encode()


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[InboxServer]:
    server = InboxServer(tmp_path / "agent.sock").start()
    yield server
    server.stop()


@pytest.fixture
def link(inbox: InboxServer) -> Link:
    return Link(tick_s=0.05, socket_path=lambda: inbox.path)


@pytest.fixture
def told(inbox: InboxServer, link: Link) -> Told:
    """Of a monitor of an engine that is not known."""
    return Told(DecodeMonitor("chat", engine="toy", link=link), inbox)


@pytest.fixture
def listening(inbox: InboxServer) -> Callable[[DecodeMonitor], Told]:
    """Of a monitor that an adapter made."""
    return lambda monitor: Told(monitor, inbox)


@pytest.fixture
def limited(inbox: InboxServer, link: Link) -> Callable[[int], Told]:
    """Of a monitor whose model has so many tokens of context."""

    def make(limit: int) -> Told:
        model = ModelSpec(name="small", context_limit=limit)
        return Told(DecodeMonitor("chat", engine="toy", model=model, link=link), inbox)

    return make


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complain, "_said", set())
