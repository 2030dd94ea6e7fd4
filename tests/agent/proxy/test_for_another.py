"""Processes that speak for another one, and events, as the agent takes them; the wrapper's side."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.application import Application
from support.inbox_server import InboxServer
from support.waiting import until

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.identity import Identity
from decodewatch.agent.inbox import Inbox, listen
from decodewatch.agent.pending import Pending
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes import others
from decodewatch.agent.runtimes.allowance import Allowance
from decodewatch.agent.runtimes.runtimes import EVENTS_AT_ONCE, Runtimes
from decodewatch.agent.runtimes.tellers import UNTOLD_US, Teller
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.vitals import moment
from decodewatch.shared.clock import boot_us
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.records import Event, Record, Runtime, Turn

_T = TypeVar("_T")


class Core:
    """Inbox and runtimes, with a list for a spool, and a loop that tests turn."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent.sock"
        self.stored: list[Record] = []
        self.pending = Pending(self.stored.extend, 1 << 20)
        self.selector = selectors.DefaultSelector()
        self.runtimes = Runtimes(
            Identity("dev-1", b"salt" * 4, made=False),
            "boot-1",
            self.pending,
            lambda now: None,
            Phases(boot_us(), 10**6),
            lambda t: "none",
            silence_us=600 * 10**6,
        )
        self.inbox = Inbox(listen(self.path, 0o660), self.selector, self.runtimes)

    def until(self, probe: Callable[[], _T]) -> _T:
        def turned() -> _T:
            for key, mask in self.selector.select(0):
                key.data(mask)
            self.runtimes.look(boot_us())
            if self.pending.urgent or self.pending.soon:
                self.pending.commit(boot_us())
            return probe()

        return until(turned)

    def hear(self, application: Application) -> dict[str, Any]:
        answer = self.until(application.heard)
        assert answer is not None
        return answer

    def of(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.stored if isinstance(record, kind)]

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.of(Event) if event.event == kind]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path)
    yield made
    made.inbox.close()
    made.inbox.disconnect()
    made.selector.close()


@pytest.fixture
def proxy(core: Core) -> Iterator[Application]:
    with Application(core.path) as made:
        yield made


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this user."""
    made = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    yield made
    made.kill()
    made.wait()


def test_the_runtime_and_its_memory_are_the_other_processs(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    proxy.hello(of_pid=server.pid)
    assert core.hear(proxy)["type"] == "welcome"
    (runtime,) = core.of(Runtime)
    assert runtime.pid == server.pid
    proxy.allocate(64 << 20)
    core.hear(proxy)
    proxy.begin("t1")
    proxy.end("t1", t=boot_us() - 1000, duration_us=1000)
    assert core.hear(proxy) == {"type": "stored", "turn": "t1"}
    (turn,) = core.of(Turn)
    assert turn.runtime == runtime.id
    assert turn.memory_end_bytes is not None and turn.memory_end_bytes < 32 << 20


def test_the_speakers_goodbye_and_death_do_not_end_the_other_process(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    proxy.hello(of_pid=server.pid)
    core.hear(proxy)
    proxy.say("bye", reason="exit")
    proxy.close()
    core.until(lambda: not core.runtimes._of)
    core.runtimes.look(boot_us() + 60_000_000)
    assert len(core.runtimes._live) == 1
    server.kill()
    server.wait()
    (ended,) = core.until(lambda: core.events("runtime_ended"))
    assert ended.data["said_bye"] is False


def test_turns_are_lost_with_the_other_process_and_what_comes_later_is_taken(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    proxy.hello(of_pid=server.pid)
    runtime = core.hear(proxy)["runtime"]
    proxy.begin("t1")
    core.until(lambda: any(live.turns for live in core.runtimes._live.values()))
    server.kill()
    server.wait()
    core.until(lambda: core.events("runtime_vanished"))
    proxy.end("t1")
    assert core.hear(proxy) == {"type": "stored", "turn": "t1"}
    proxy.end("t0")
    assert core.hear(proxy) == {"type": "stored", "turn": "t0"}
    assert {(turn.id, turn.ending, turn.runtime) for turn in core.of(Turn)} == {
        ("t1", "lost", runtime),
        ("t0", "complete", runtime),
    }
    proxy.begin("t2")
    refused = core.hear(proxy)
    assert refused["type"] == "refused" and "hello" in refused["reason"]
    # Of nobody that is known, it may go on.
    proxy.hello(of_pid=server.pid)
    again = core.hear(proxy)
    assert again["type"] == "welcome" and again["runtime"] != runtime


def test_a_process_that_is_not_known_has_no_memory(core: Core, proxy: Application) -> None:
    proxy.hello(of_pid=0)
    assert core.hear(proxy)["type"] == "welcome"
    proxy.begin("t1")
    proxy.end("t1")
    core.hear(proxy)
    (turn,) = core.of(Turn)
    assert turn.memory_end_bytes is None
    proxy.hello()
    assert core.hear(proxy)["runtime"] != turn.runtime


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nobody_speaks_for_another_users_process(server: subprocess.Popen[bytes]) -> None:
    assert others.objection(os.getpid(), 0, server.pid) is None
    why = others.objection(os.getpid(), 12345, server.pid)
    assert why is not None and "not of uid 12345" in why


def test_nobody_speaks_for_a_process_of_another_pid_namespace(tmp_path: Path) -> None:
    for pid, text in (
        (7, "Uid:\t1\t1\t1\t1\nNSpid:\t7\t2\n"),
        (8, "Uid:\t1\t1\t1\t1\nNSpid:\t8\n"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "status").write_text(text)
    assert "namespace" in (others.objection(7, 1, 8, tmp_path) or "")
    assert others.objection(8, 1, 7, tmp_path) is None
    assert "process 9" in (others.objection(8, 1, 9, tmp_path) or "")


def test_an_event_is_stored_with_its_numbers_and_without_any_text(
    core: Core, proxy: Application
) -> None:
    proxy.hello()
    core.hear(proxy)
    data = {"working_s": 2.5, "tokens": 40, "stopped": False, "prompt": "secret"}
    proxy.say("event", event="orphaned_generation", t=boot_us(), turn="t1", data=data)
    (event,) = core.until(lambda: core.events("orphaned_generation"))
    assert event.turn == "t1"
    assert event.data == {"working_s": 2.5, "tokens": 40, "stopped": False}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"event": "made_up"}, "event.event"),
        ({"data": {"working_s": "secret", "tokens": 1, "stopped": True}}, "event.data.working_s"),
        ({"data": {"working_s": 1, "stopped": 2}}, "event.data.stopped"),
        ({"data": "secret"}, "event.data"),
    ],
)
def test_an_event_that_is_not_of_the_list_is_refused(
    core: Core, proxy: Application, fields: dict[str, Any], named: str
) -> None:
    proxy.hello()
    core.hear(proxy)
    whole = {"event": "orphaned_generation", "t": boot_us(), "data": {}, **fields}
    proxy.say("event", **whole)
    refused = core.hear(proxy)
    assert refused["type"] == "refused" and refused["reason"].startswith(named)


def test_events_beyond_the_allowance_are_counted_in_the_next_one(
    core: Core, proxy: Application
) -> None:
    proxy.hello()
    core.hear(proxy)
    data = {"working_s": 1, "tokens": None, "stopped": True}
    for _ in range(EVENTS_AT_ONCE + 3):
        proxy.say("event", event="orphaned_generation", t=boot_us(), data=data)
    core.until(lambda: len(core.events("orphaned_generation")) == EVENTS_AT_ONCE)
    core.until(lambda: core.runtimes._events.untold == 3)


def test_an_allowance_is_earned_with_time() -> None:
    allowance = Allowance(2, 100, 0)
    assert [allowance.take(at) for at in (0, 0, 0, 99, 100, 150, 1000)] == [
        *(True, True, False, False, True, False, True),
    ]
    assert allowance.untold == 3
    assert [allowance.take(1000), allowance.take(1000)] == [True, False]


# The wrapper.


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[InboxServer]:
    made = InboxServer(tmp_path / "wrapper.sock").start()
    yield made
    with contextlib.suppress(OSError):
        made.stop()


@pytest.fixture
def monitor(inbox: InboxServer) -> DecodeMonitor:
    link = Link(tick_s=0.05, socket_path=lambda: inbox.path)
    return DecodeMonitor("proxy", engine="toy", of_pid=0, link=link)


def test_steps_have_the_times_that_they_are_told_with(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    began = time.monotonic_ns() - 1_000_000_000
    turn = monitor.turn(accepted_at=began)
    for at in (200, 300, 450):
        turn.step_at(began + at * 1_000_000, 2)
    turn.end()
    assert monitor.flush(10)
    (record,) = inbox.records
    assert (record["ttft_us"], record["decode_us"]) == (200_000, 250_000)
    assert (record["output_tokens"], record["first_tokens"]) == (6, 2)
    assert inbox.of("hello")[0]["of_pid"] == 0
    assert "memory_start_bytes" not in record and "memory_end_bytes" not in record


@pytest.mark.parametrize("at", [None, "soon", 1.5, float("nan"), -1, 1 << 63, 10**400, object()])
def test_a_moment_that_is_none_costs_no_turn(
    at: Any, monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    turn = monitor.turn()
    turn.step_at(at)
    turn.hold_up(at)
    turn.step_at(at, 3)
    turn.end()
    assert monitor.flush(10) and monitor.dropped == 0
    (record,) = inbox.records
    assert (record["steps"], record["output_tokens"]) == (2, 4)
    assert 0 <= record["ttft_us"] <= record["duration_us"]


def test_a_record_that_the_agent_refuses_is_no_open_turn_of_its(core: Core, tmp_path: Path) -> None:
    link = Link(tick_s=0.05, socket_path=lambda: core.path)
    monitor = DecodeMonitor("app", engine="toy", of_pid=0, link=link)
    turn = monitor.turn()
    core.until(lambda: turn.id in open_turns(core))
    turn._course.t_us = boot_us() + 3_600_000_000
    turn.end()
    core.until(lambda: monitor.dropped == 1 and not open_turns(core))
    assert not core.of(Turn)


def test_a_gap_in_which_the_engine_was_held_up_counts_nowhere(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    began = time.monotonic_ns() - 5_000_000_000
    turn = monitor.turn(accepted_at=began, prompt_tokens=3)
    turn.step_at(began + 1_000_000)
    turn.step_at(began + 2_000_000)
    turn.hold_up(began + 2_500_000)
    turn.step_at(began + 4_000_000_000)
    turn.step_at(began + 4_001_000_000)
    turn.end()
    assert monitor.flush(10)
    (record,) = inbox.records
    assert record["steps"] == 4 and record.get("decode_us") is None
    assert sum(sketch[0] for _, sketch in record["itl"]) == 2
    assert [step[0] for one in inbox.of("progress") for step in one["steps"]] == [
        *(None, 1000, None, 1000),
    ]


def test_a_turn_may_have_ended_before_that_was_noticed(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    turn = monitor.turn()
    turn.report(ending="error", error="HTTP 503", estimated=True)
    then = moment()
    time.sleep(0.2)
    turn.end(then)
    assert monitor.flush(10)
    (record,) = inbox.records
    assert record["duration_us"] < 150_000
    assert (record["ending"], record["error"]) == ("error", "HTTP 503")
    assert record["token_source"] == "estimated"


def test_a_turn_that_was_none_is_forgotten(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn():
        pass
    assert monitor.flush(10)
    turn = monitor.turn()
    inbox.wait_for("begin", 2)
    turn.discard()
    turn.end()
    (forgotten,) = inbox.wait_for("forget")
    assert forgotten["turn"] == turn.id
    assert monitor.flush(10) and len(inbox.records) == 1


def test_an_event_is_told(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn() as turn:
        pass
    assert monitor.flush(10)
    monitor.event("orphaned_generation", turn.id, working_s=3.0, tokens=None, stopped=True)
    (told,) = inbox.wait_for("event")
    assert told["turn"] == turn.id
    assert json.dumps(told["data"]) == '{"working_s": 3.0, "tokens": null, "stopped": true}'


def test_a_pid_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="of_pid"):
        DecodeMonitor("proxy", engine="toy", of_pid=-1)


def test_a_turn_that_ended_before_another_began_is_told_before(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn():
        pass
    assert monitor.flush(10)
    inbox.gate.clear()
    for _ in range(20):
        with monitor.turn():
            pass
    inbox.gate.set()
    assert monitor.flush(10)
    kinds = [one["type"] for one in inbox.messages if one["type"] in ("begin", "turn")]
    assert kinds == ["begin", "turn"] * 21


# Who tells of a turn.


def open_turns(core: Core) -> dict[str, int]:
    """Of each runtime's turns those that are at work, by their id, with their concurrency."""
    lives = core.runtimes._live.values()
    return {turn.id: turn.concurrency for live in lives for turn in live.active(boot_us())}


def test_the_turns_that_a_killed_proxy_told_of_are_lost_and_the_server_goes_on(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    with Application(core.path) as other:
        for speaker in (proxy, other):
            speaker.hello(of_pid=server.pid)
            core.hear(speaker)
        proxy.begin("killed")
        other.begin("goes-on")
        core.until(lambda: len(open_turns(core)) == 2)
        proxy.kill()
        (lost,) = core.until(lambda: core.of(Turn))
        assert (lost.id, lost.ending) == ("killed", "lost")
        assert lost.duration_us < 10_000_000
        other.begin("alone")
        core.until(lambda: "alone" in open_turns(core))
        assert open_turns(core) == {"goes-on": 2, "alone": 2}
        other.end("goes-on")
        assert core.hear(other) == {"type": "stored", "turn": "goes-on"}
    assert not core.events("runtime_vanished")
    assert len(core.runtimes._live) == 1


def test_a_turn_is_lost_with_its_proxy_where_the_server_is_not_known(
    core: Core, proxy: Application
) -> None:
    proxy.hello(of_pid=0)
    core.hear(proxy)
    proxy.begin("t1")
    core.until(lambda: open_turns(core))
    proxy.kill()
    core.until(lambda: [turn.ending for turn in core.of(Turn)] == ["lost"])


def test_a_proxy_that_connects_again_goes_on_telling(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    proxy.hello(of_pid=server.pid)
    core.hear(proxy)
    began = proxy.begin("t1")
    core.until(lambda: open_turns(core))
    proxy.raw(b"!connect")
    proxy.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    core.runtimes.look(boot_us() + UNTOLD_US)
    (live,) = core.runtimes._live.values()
    assert live.turns and not live.active(boot_us() + UNTOLD_US)
    assert live.active(boot_us() + UNTOLD_US // 2)
    proxy.hello(of_pid=server.pid)
    core.hear(proxy)
    proxy.begin("t1", t=began)
    core.until(lambda: live.active(boot_us() + UNTOLD_US))
    proxy.end("t1", t=began)
    assert core.hear(proxy) == {"type": "stored", "turn": "t1"}
    assert [turn.ending for turn in core.of(Turn)] == ["complete"]


def test_a_turn_that_another_connection_tells_of_too_is_not_lost_with_the_first(
    core: Core, proxy: Application, server: subprocess.Popen[bytes]
) -> None:
    with Application(core.path) as second:
        for speaker in (proxy, second):
            speaker.hello(of_pid=server.pid)
            core.hear(speaker)
            speaker.begin("t1")
        core.until(lambda: len(core.runtimes._of) == 2 and open_turns(core))
        second.say("progress", turn="t1", t=boot_us(), first=0, steps=[[None, 1]])
        second.end("t0")
        assert core.hear(second) == {"type": "stored", "turn": "t0"}
        proxy.kill()
        core.until(lambda: len(core.runtimes._of) == 1)
        core.runtimes.look(boot_us() + UNTOLD_US)
        assert "t1" in open_turns(core)


def test_the_end_of_a_connection_that_does_not_last_says_nothing() -> None:
    teller = Teller(0, lasts=False)
    teller.leave(boot_us())
    assert not teller.ended and not teller.silent(0, boot_us() + 10 * UNTOLD_US)


def test_a_pid_that_is_used_again_is_not_the_teller(tmp_path: Path) -> None:
    stat = tmp_path / "proc/7/stat"
    stat.parent.mkdir(parents=True)
    fields = " ".join(str(number) for number in range(4, 60))
    stat.write_text(f"7 (a ) proxy) S {fields}")
    teller = Teller(7, tmp_path)
    teller.leave(boot_us())
    assert not teller.ended
    stat.write_text(f"7 (a ) proxy) Z {fields}")
    assert teller.ended
    stat.write_text(f"7 (a ) proxy) S {fields.replace(' 22 ', ' 99 ')}")
    assert teller.ended
    stat.unlink()
    assert teller.ended
