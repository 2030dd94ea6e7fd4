"""The agent as a process: it starts, stops, is killed, and what it was told is still there."""

import contextlib
import itertools
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from support.application import AgentProcess, Application
from support.brokers import Broker
from support.spooled import batches, events, records
from support.waiting import until

from decodewatch.agent.inbox import listen
from decodewatch.agent.service import StepWatch, Ticks, Wake
from decodewatch.shared import __version__
from decodewatch.shared.clock import boot_us
from decodewatch.shared.records import Event, Floor, Runtime, Sample, Turn, Window
from decodewatch.shared.sketch import Sketch
from decodewatch.shared.wire import (
    Acknowledged,
    Batch,
    Status,
    decode_batch,
    decode_status,
    encode_ack,
    topic,
)

QUICK = {"sample_interval_s": 0.2, "report_interval_s": 1, "idle_interval_s": 1}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path, **QUICK) as made:
        yield made


@pytest.fixture
def application(agent: AgentProcess) -> Iterator[Application]:
    with Application(agent.socket) as made:
        yield made


def stored_turn(application: Application, turn: str) -> None:
    """One whole turn, acknowledged."""
    application.begin(turn)
    application.end(turn)
    assert application.hear() == {"type": "stored", "turn": turn}


def test_a_turn_goes_into_the_spool_with_all_that_belongs_to_it(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    welcome = application.hear()
    assert welcome["device"] == "dev-test"
    application.begin("t1", prompt_tokens=100)
    application.say(
        *("progress",), turn="t1", t=boot_us(), first=0, steps=[[None, 1], [40_000, 1]], depth=102
    )
    application.end("t1")
    assert application.hear() == {"type": "stored", "turn": "t1"}
    time.sleep(1.2)  # a sample interval or two
    assert agent.stop()[0] == 0
    runtime = welcome["runtime"]
    assert [turn.runtime for turn in records(agent.state, Turn)] == [runtime]
    assert [one.id for one in records(agent.state, Runtime)] == [runtime]
    assert [window.tokens for window in records(agent.state, Window)] == [2]
    (floor,) = records(agent.state, Floor)
    assert floor.turn == "t1" and floor.bytes > 0
    samples = records(agent.state, Sample)
    assert {sample.runtime for sample in samples} == {None, runtime}
    assert len({(sample.runtime, sample.t) for sample in samples}) == len(samples)
    system = [sample for sample in samples if sample.runtime is None]
    assert any("mem_available_bytes" in sample.values for sample in system)
    (started,) = events(agent.state, "agent_started")
    assert started.data["version"] == __version__
    assert not [event.event for event in records(agent.state, Event) if "dropped" in event.event]


def test_samples_follow_each_other_without_overlap_or_hole(agent: AgentProcess) -> None:
    time.sleep(3.5)
    agent.stop()
    samples = [one for one in records(agent.state, Sample) if one.runtime is None]
    assert len(samples) >= 3
    for before, after in itertools.pairwise(samples):
        assert after.t - after.duration_us == before.t
    assert all(0.7e6 <= sample.duration_us <= 1.5e6 for sample in samples[:-1])


def test_the_agent_stops_within_seconds_with_all_that_was_said(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    application.hear()
    os.kill(agent.pid, 19)  # SIGSTOP: what is said now waits in the socket
    for number in range(20):
        application.end(f"t{number}")
    time.sleep(0.2)
    os.kill(agent.pid, 15)
    os.kill(agent.pid, 18)
    status, seconds = agent.stop()
    assert status == 0 and seconds < 5
    assert [application.hear()["turn"] for _ in range(20)] == [f"t{n}" for n in range(20)]
    assert [turn.id for turn in records(agent.state, Turn)] == [f"t{n}" for n in range(20)]
    assert not agent.socket.exists()


def test_what_is_acknowledged_after_the_spool_was_removed_survives_kill_9(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    application.hear()
    stored_turn(application, "before")
    for path in agent.state.glob("spool.db*"):
        path.unlink()
    stored_turn(application, "after")
    stored_turn(application, "later")
    agent.kill()
    assert [turn.id for turn in records(agent.state, Turn)] == ["after", "later"]
    assert len(events(agent.state, "spool_removed")) == 1


def test_what_was_acknowledged_survives_kill_9(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    first = application.hear()
    for number in range(10):
        stored_turn(application, f"t{number}")
    agent.kill()
    assert application.hear() == {"type": "closed"}
    agent.start()
    application.raw(b"!connect")
    application.hello()
    assert application.hear() == first  # the same runtime to the next agent
    stored_turn(application, "t10")
    agent.stop()
    assert {turn.id for turn in records(agent.state, Turn)} == {f"t{n}" for n in range(11)}
    streams = {batch.stream: batch.previous for batch in batches(agent.state)}
    assert len(streams) == 2
    assert list(streams.values()) == [None, next(iter(streams))]
    started = events(agent.state, "runtime_started")
    assert len({event.id for event in started}) == 1


def test_a_runtime_killed_in_a_turn_is_reported(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    runtime = application.hear()["runtime"]
    application.begin("t1", prompt_tokens=100)
    steps = [[None, 1], *[[40_000, 1]] * 29]
    application.say("progress", turn="t1", t=boot_us(), first=0, steps=steps, depth=130)
    stored_turn(application, "t2")  # so that the progress was read
    application.kill()
    until(lambda: b"runtime ended" in agent.log.read_bytes())
    agent.stop()
    (event,) = events(agent.state, "runtime_vanished")
    assert (event.runtime, event.turn) == (runtime, "t1")
    assert (event.data["cause"], event.data["depth"]) == ("unknown", 130)
    lost = [turn for turn in records(agent.state, Turn) if turn.ending == "lost"]
    assert [(turn.id, turn.output_tokens) for turn in lost] == [("t1", 30)]


CGROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup with a limit, of whichever version there is."""
    v1 = (CGROUPS / "memory").is_dir()
    folder = (CGROUPS / "memory" if v1 else CGROUPS) / f"decodewatch-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if v1 else "memory.max")
        limit.write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@pytest.mark.slow
def test_an_oom_kill_is_told_from_a_crash(agent: AgentProcess) -> None:
    limit = 96 << 20
    with memory_cgroup(limit) as cgroup, Application(agent.socket, cgroup=cgroup) as application:
        application.hello()
        application.hear()
        application.begin("t1", prompt_tokens=100)
        application.allocate(40 << 20)
        assert application.hear() == {"type": "allocated"}
        time.sleep(0.5)  # a sample or two
        application.allocate(200 << 20)
        until(application.gone)
        until(lambda: b"runtime ended" in agent.log.read_bytes())
    agent.stop()
    (event,) = events(agent.state, "runtime_vanished")
    assert event.data["cause"] == "oom_kill", event.data
    assert (event.data["evidence"], event.data["limit_bytes"]) == ("cgroup", limit)
    memory = event.data["memory_bytes"]
    assert isinstance(memory, int) and memory > 40 << 20
    (lost,) = records(agent.state, Turn)
    assert lost.memory_peak_bytes > 40 << 20


def test_no_turn_is_acknowledged_while_the_disk_takes_nothing(
    agent: AgentProcess, application: Application
) -> None:
    application.hello()
    application.hear()
    stored_turn(application, "t1")
    _, hard = resource.prlimit(agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (0, hard))
    application.begin("t2")
    application.end("t2")
    time.sleep(1)
    assert application.heard() is None
    resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert application.hear(20) == {"type": "stored", "turn": "t2"}
    assert agent.stop()[0] == 0
    assert {turn.id for turn in records(agent.state, Turn)} == {"t1", "t2"}


class Collector:
    """Acknowledges every batch of the device and keeps what it got."""

    def __init__(self, port: int) -> None:
        self.batches: list[Batch] = []
        self.statuses: list[Status] = []
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        for leaf in ("up", "status"):
            self._client.subscribe(topic("dev-test", leaf), 1)
        self._client.loop_start()

    def _take(self, client: Client, _: object, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        if message.topic.endswith("/status"):
            self.statuses.append(decode_status(payload))
            return
        batch = decode_batch(payload).batch
        self.batches.append(batch)
        done = Acknowledged(batch.stream, ((batch.number, batch.number),))
        client.publish(topic("dev-test", "ack"), encode_ack([done]))

    @property
    def evicted(self) -> set[int]:
        """The numbers that the device says it gave up."""
        found: set[int] = set()
        for batch in list(self.batches):
            for record in batch.records:
                if isinstance(record, Event) and record.event == "spool_evicted":
                    first, last = record.data["first"], record.data["last"]
                    assert isinstance(first, int) and isinstance(last, int)
                    found.update(range(first, last + 1))
        return found

    def missing(self) -> set[int]:
        """The numbers below the highest that neither arrived nor were given up."""
        arrived = {batch.number for batch in list(self.batches)}
        return set(range(1, max(arrived, default=0))) - arrived - self.evicted

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_batches_are_published_and_the_status_says_offline_at_the_end(
    mosquitto: Broker, tmp_path: Path
) -> None:
    collector = Collector(mosquitto.port)
    agent = AgentProcess(tmp_path, broker_port=mosquitto.port, **QUICK)
    try:
        with agent, Application(agent.socket) as application:
            application.hello()
            application.hear()
            stored_turn(application, "t1")
            until(lambda: any(type(one) is Turn for b in collector.batches for one in b.records))
            assert collector.statuses[-1].online
            assert agent.stop()[0] == 0
            until(lambda: not collector.statuses[-1].online)
    finally:
        collector.close()
    # What was acknowledged before the end is not kept.
    first = collector.batches[0]
    kept = {(batch.stream, batch.number) for batch in batches(agent.state)}
    assert (first.stream, first.number) not in kept


def test_what_a_full_spool_gave_up_is_reported(mosquitto: Broker, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, broker_port=mosquitto.port, spool_limit_bytes=1 << 20, **QUICK)
    with agent, Application(agent.socket) as application:
        application.hello()
        application.hear()
        # A record of some KiB, as of a turn with every gap there is at every depth.
        random = Random(1)
        strata = [
            [depth, Sketch.of([random.randint(200, 10**8) for _ in range(500)]).to_json()]
            for depth in range(6, 14)
        ]
        for number in range(300):
            application.end(f"t{number}", itl=strata)
            assert application.hear() == {"type": "stored", "turn": f"t{number}"}
        collector = Collector(mosquitto.port)
        try:
            until(lambda: collector.evicted and not collector.missing(), 30)
        finally:
            collector.close()


_WRAPPED = """
import sys, time
from decodewatch.agent import DecodeMonitor
def decode():
    for token in range(100_000):
        time.sleep(0.01)
        yield token
monitor = DecodeMonitor("chat", engine="plain")
with monitor.session("user-1").turn(prompt_tokens=100) as turn:
    for token in turn.watch(decode()):
        pass
"""


def test_a_wrapped_process_that_is_killed_has_left_its_depth_with_the_agent(
    agent: AgentProcess,
) -> None:
    environment = {**os.environ, "DECODEWATCH_SOCKET": str(agent.socket)}
    process = subprocess.Popen([sys.executable, "-c", _WRAPPED], env=environment)
    until(lambda: b"runtime registered" in agent.log.read_bytes())
    time.sleep(2.5)  # two reports of progress
    process.kill()
    process.wait()
    until(lambda: b"runtime ended" in agent.log.read_bytes())
    agent.stop()
    (event,) = events(agent.state, "runtime_vanished")
    (lost,) = records(agent.state, Turn)
    assert event.turn == lost.id and lost.ending == "lost"
    assert lost.output_tokens >= 100 and event.data["depth"] == 100 + lost.output_tokens
    assert lost.ttft_us and lost.decode_us and lost.memory_peak_bytes and lost.number == 0
    windows = records(agent.state, Window)
    assert sum(window.tokens for window in windows) == lost.output_tokens


def test_systemd_is_told_that_it_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "1000000",
        }
        process = subprocess.Popen(
            AgentProcess(tmp_path, **QUICK).command(), env=environment, stderr=subprocess.DEVNULL
        )
        try:
            heard = [manager.recv(100) for _ in range(4)]
            assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            process.terminate()
            while manager.recv(100) != b"STOPPING=1":
                pass
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_a_socket_held_by_systemd_outlives_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "held.sock"
    code = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    with listen(path, 0o660) as held, (tmp_path / "log").open("wb") as log:
        os.set_inheritable(held.fileno(), True)
        command = AgentProcess(tmp_path, **QUICK).command()

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-c", code, str(held.fileno()), *command[1:]],
                close_fds=False,
                stderr=log,
            )

        with Application(path) as application:
            application.hello()  # nobody is there yet
            for _ in range(2):
                process = start()
                assert application.hear(20)["type"] == "welcome"
                stored_turn(application, "t1")
                process.kill()
                process.wait()
                assert application.hear() == {"type": "closed"}
                application.raw(b"!connect")
                application.hello()
            process = start()
            assert application.hear(20)["type"] == "welcome"
            process.terminate()
            assert process.wait(10) == 0
        assert path.exists()


# Its clockwork.


def test_ticks_do_not_drift_and_are_not_made_up_for() -> None:
    ticks = Ticks(1_000_000, 0)
    assert not ticks.due(999_999)
    assert ticks.due(1_300_000) and ticks.next_us == 2_000_000
    assert ticks.due(7_100_000) and ticks.next_us == 8_000_000  # the device slept
    assert not ticks.due(7_999_999)
    assert ticks.due(8_000_000) and ticks.next_us == 9_000_000


def test_a_step_of_the_wall_clock_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 0, "boot": 0}
    monkeypatch.setattr("decodewatch.agent.service.wall_us", lambda: now["wall"])
    monkeypatch.setattr("decodewatch.agent.service.boot_us", lambda: now["boot"])
    watch = StepWatch()
    now.update(wall=1_000_500, boot=1_000_000)  # slewed
    assert watch.step_us() is None
    now.update(wall=1_700_000_000_000_000, boot=2_000_000)
    assert watch.step_us() == 1_700_000_000_000_000 - 1_000_500 - 1_000_000
    assert watch.step_us() is None
    now.update(wall=now["wall"] - 2_000_000)
    assert watch.step_us() == -2_000_000


def test_a_wake_from_anywhere_is_taken_once() -> None:
    selector = selectors.DefaultSelector()
    wake = Wake(selector)
    assert not selector.select(0)
    for _ in range(100_000):  # more than a pipe holds
        wake.set()
    ((key, mask),) = selector.select(0)
    key.data(mask)
    assert wake.taken() and not wake.taken()
    assert not selector.select(0)
    wake.close()
