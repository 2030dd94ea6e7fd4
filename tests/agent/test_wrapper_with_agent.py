"""The wrapper against the real agent, which is killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import free_port
from support.spooled import events, records
from support.waiting import until

from decodewatch.agent import DecodeMonitor, ModelSpec
from decodewatch.agent.wrapper.link import Link
from decodewatch.shared.records import Runtime, Turn, Window


class Agent:
    """One `decodewatch agent run`, whose broker is not there."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent.sock"
        self.state = folder / "state"
        self._log = folder / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "decodewatch.shared.cli", "agent", "run"),
            *("--socket", str(self.socket), "--state-folder", str(self.state)),
            *("--broker-port", str(free_port()), "--device", "test", "--report-interval-s", "1"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text()

    def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(10)
            self._process = None


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.end(signal.SIGKILL)


def decode(count: int) -> Iterator[int]:
    for token in range(count):
        time.sleep(0.002)
        yield token


def test_every_turn_is_stored_once_though_the_agent_dies(agent: Agent) -> None:
    monitor = DecodeMonitor(
        "chat",
        engine="toy",
        model=ModelSpec(name="small", layers=2),
        settings={"threads": 2},
        link=Link(tick_s=0.05, socket_path=lambda: agent.socket),
    )
    session = monitor.session("user-42")
    ended = []
    for round in range(4):
        # The first round's turns are kept until there is an agent; the last round's are followed.
        if round == 3:
            until(lambda: monitor._channel.welcomed)
        for _ in range(5):
            with session.turn(prompt_tokens=20, cached_tokens=8) as turn:
                for _ in turn.watch(decode(20)):
                    pass
                ended.append(turn._course.id)
        if round < 3:
            with session.turn(prompt_tokens=20) as turn:
                for token in turn.watch(decode(20)):
                    if token == 10:
                        agent.end(signal.SIGKILL)
                        agent.start()
                ended.append(turn._course.id)
    assert monitor.flush(20)
    agent.end(signal.SIGTERM)
    stored: list[Turn] = records(agent.state, Turn)
    assert sorted(one.id for one in stored) == sorted(ended)
    assert {one.ending for one in stored} == {"complete"}
    assert all((one.steps, one.prompt_tokens) == (20, 20) for one in stored)
    assert len({one.session for one in stored}) == 1 and "user-42" not in str(stored)
    assert sorted(one.number or 0 for one in stored) == list(range(len(ended)))
    runtimes: list[Runtime] = records(agent.state, Runtime)
    assert {one.pid for one in runtimes} == {os.getpid()}
    assert all(one.model == ModelSpec(name="small", layers=2) for one in runtimes)
    windows: list[Window] = records(agent.state, Window)
    # What came while no agent listened is in the turns alone.
    assert 0 < sum(one.steps for one in windows) <= sum(one.steps for one in stored)


def test_an_application_that_is_killed_leaves_a_lost_turn(agent: Agent) -> None:
    agent.start()
    program = (
        "import time\n"
        "from decodewatch.agent import DecodeMonitor\n"
        "with DecodeMonitor('chat', engine='toy').turn(prompt_tokens=50) as turn:\n"
        "    for _ in turn.watch(range(1000)):\n"
        "        time.sleep(0.01)\n"
    )
    environment = {**os.environ, "DECODEWATCH_SOCKET": str(agent.socket)}
    application = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        until(lambda: "runtime registered" in agent.said())
        time.sleep(2.5)  # two progress messages
    finally:
        application.kill()
        application.wait(10)
    until(lambda: "runtime ended" in agent.said())
    agent.end(signal.SIGTERM)
    (event,) = events(agent.state, "runtime_vanished")
    assert event.data["phase"] == "decode" and event.data["turns_lost"] == 1
    (lost,) = records(agent.state, Turn)
    assert lost.ending == "lost" and lost.prompt_tokens == 50
    assert lost.steps > 50 and lost.ttft_us is not None and lost.memory_end_bytes > 1 << 20


def test_an_application_that_ends_well_is_believed_and_loses_no_turn(agent: Agent) -> None:
    agent.start()
    program = (
        "import sys\n"
        "from decodewatch.agent import DecodeMonitor\n"
        "def main():\n"
        "    monitor = DecodeMonitor('chat', engine='toy')\n"
        "    for line in sys.stdin:\n"
        "        list(monitor.watch(line.split()))\n"
        "        print('turned', flush=True)\n"
        "main()\n"
    )
    application = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "DECODEWATCH_SOCKET": str(agent.socket)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with application:
        asked, answers = application.stdin, application.stdout
        assert asked is not None and answers is not None

        def turn() -> None:
            print("a b c", file=asked, flush=True)
            assert answers.readline() == "turned\n"

        turn()
        until(lambda: "runtime registered" in agent.said())
        agent.end(signal.SIGKILL)
        for _ in range(20):
            turn()
            time.sleep(0.1)  # the pauses between attempts grow
        agent.start()
        until(lambda: agent.said().count("agent runs") == 2)
    assert application.returncode == 0
    until(lambda: "runtime ended" in agent.said())
    agent.end(signal.SIGTERM)
    (event,) = events(agent.state, "runtime_ended")
    assert event.data == {"cause": "exit", "said_bye": True}
    assert len({one.id for one in records(agent.state, Turn)}) == 21
