"""Registered runtimes, with real processes at the other end of a real socket."""

import hashlib
import os
import selectors
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.application import Application, turn_fields
from support.waiting import until

from decodewatch.agent.identity import Identity
from decodewatch.agent.inbox import Inbox, SocketConnection, listen
from decodewatch.agent.messages import Hello
from decodewatch.agent.pending import Pending
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes.live import STALE_US
from decodewatch.agent.runtimes.runtimes import LINGER_US, MAX_REMEMBERED, Runtimes
from decodewatch.agent.spool.files import SpoolError
from decodewatch.shared.clock import boot_us
from decodewatch.shared.records import Event, Record, Runtime, Turn, Window

BOOT = "boot-1"
IDENTITY = Identity("dev-1", b"salt" * 4, made=False)
SILENCE_S = 600
_T = TypeVar("_T")


class Core:
    """Inbox, runtimes and pending records, with a list for a spool, and a loop that tests turn."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "agent.sock"
        self.stored: list[Record] = []
        self.commits = 0
        self.spool_fails = False
        self.oom_kills = 0
        self.pending = Pending(self.append, 1 << 20)
        self.selector = selectors.DefaultSelector()
        self.phases = Phases(boot_us(), 10**6)
        self.runtimes = Runtimes(
            IDENTITY,
            BOOT,
            self.pending,
            lambda now: self.oom_kills,
            self.phases,
            lambda t: "none",
            silence_us=SILENCE_S * 10**6,
        )
        self.inbox = Inbox(listen(self.path, 0o660), self.selector, self.runtimes)

    def append(self, records: Sequence[Record]) -> None:
        if self.spool_fails:
            raise SpoolError("disk full")
        self.stored += records
        self.commits += 1

    def pump(self, now: int | None = None) -> None:
        """One round of the loop."""
        for key, mask in self.selector.select(0):
            key.data(mask)
        now = boot_us() if now is None else now
        self.runtimes.look(now)
        if self.pending.urgent or self.pending.soon:
            self.pending.commit(now)

    def until(self, probe: Callable[[], _T]) -> _T:
        """Turn the loop until something is true."""

        def turned() -> _T:
            self.pump()
            return probe()

        return until(turned)

    def hear(self, application: Application) -> dict[str, Any]:
        """What the application hears next."""
        answer = self.until(application.heard)
        assert answer is not None
        return answer

    def of(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.stored if isinstance(record, kind)]

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.of(Event) if event.event == kind]

    def registered(self, application: Application, **fields: Any) -> str:
        """Have an application say hello; its runtime's id."""
        application.hello(**fields)
        welcome = self.hear(application)
        assert welcome["type"] == "welcome", welcome
        return str(welcome["runtime"])


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path)
    yield made
    made.inbox.close()
    made.inbox.disconnect()
    made.selector.close()


@pytest.fixture
def application(core: Core) -> Iterator[Application]:
    with Application(core.path) as made:
        yield made


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_a_runtime_is_one_life_of_one_process(core: Core, application: Application) -> None:
    runtime = core.registered(application, settings={"n_ctx": 4096})
    life = f"{BOOT}:{application.pid}:{started(application.pid)}"
    assert runtime == hashlib.sha256(life.encode()).hexdigest()[:16]
    (record,) = core.of(Runtime)
    assert (record.id, record.pid, record.name) == (runtime, application.pid, "chat")
    assert record.settings == {"n_ctx": 4096}
    (event,) = core.events("runtime_started")
    assert event.runtime == runtime
    # Hello again, as after a reconnection: nothing changed, so nothing is sent.
    assert core.registered(application, settings={"n_ctx": 4096}) == runtime
    assert len(core.of(Runtime)) == 1
    core.registered(application, settings={"n_ctx": 8192})
    core.runtimes.tick(boot_us(), None)
    core.pending.commit(boot_us())
    assert [record.settings for record in core.of(Runtime)][1:] == [{"n_ctx": 8192}]


def test_the_same_start_told_to_a_second_agent_is_one_event(
    core: Core, application: Application, tmp_path: Path
) -> None:
    core.registered(application)
    (first,) = core.events("runtime_started")
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    second = Core(second_folder)
    connection = next(iter(core.runtimes._of))
    hello = Hello(1, "chat", "llama.cpp", None, None, None, None)
    second.runtimes._hello(connection, hello, boot_us())
    second.pending.commit(boot_us())
    assert [event.id for event in second.events("runtime_started")] == [first.id]
    second.inbox.close()


def test_nothing_is_taken_before_hello(core: Core, application: Application) -> None:
    application.begin("t1")
    assert core.hear(application)["reason"].startswith("begin: before hello")
    application.end("t1")
    assert core.hear(application)["reason"].startswith("turn: before hello")


def test_a_turn_is_acknowledged_once_the_spool_has_it(core: Core, application: Application) -> None:
    runtime = core.registered(application)
    core.spool_fails = True
    application.begin("t1", session="conversation-1")
    application.end("t1", session="conversation-1")
    core.until(lambda: core.pending.urgent)
    for _ in range(5):
        core.pump()
    assert application.heard() is None
    core.spool_fails = False
    assert core.pending.commit(boot_us() + 60_000_000)
    assert core.hear(application) == {"type": "stored", "turn": "t1"}
    (turn,) = core.of(Turn)
    assert (turn.id, turn.runtime) == ("t1", runtime)
    assert turn.session == IDENTITY.session("conversation-1") != "conversation-1"


def test_a_turn_that_is_sent_again_is_acknowledged_and_stored_once(
    core: Core, application: Application
) -> None:
    core.registered(application)
    for _ in range(3):
        application.end("t1")
        assert core.hear(application) == {"type": "stored", "turn": "t1"}
    assert [turn.id for turn in core.of(Turn)] == ["t1"]


def test_a_turn_that_waits_for_the_spool_is_acknowledged_on_the_newest_connection(
    core: Core, application: Application
) -> None:
    core.registered(application)
    core.spool_fails = True
    application.end("t1")
    core.until(lambda: core.pending.urgent)
    application.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    with Application(core.path) as again:
        core.registered(again)
        again.end("t1")
        for _ in range(20):
            core.pump()
        core.spool_fails = False
        core.until(lambda: core.pending.commit(boot_us() + 60_000_000) and core.stored)
        assert core.hear(again) == {"type": "stored", "turn": "t1"}
    assert [turn.id for turn in core.of(Turn)] == ["t1"]


def test_turns_that_arrive_together_share_one_transaction(
    core: Core, application: Application
) -> None:
    core.registered(application)
    before = core.commits
    core.spool_fails = True
    for number in range(20):
        application.end(f"t{number}")
    core.until(lambda: len(core.pending) >= 20)
    core.spool_fails = False
    core.pending.commit(boot_us() + 60_000_000)
    assert [core.hear(application)["turn"] for _ in range(20)] == [f"t{n}" for n in range(20)]
    assert core.commits == before + 1


def test_remembered_turns_are_bounded(core: Core) -> None:
    for number in range(MAX_REMEMBERED + 10):
        core.runtimes._remember(f"t{number}")
    assert len(core.runtimes._done) == MAX_REMEMBERED
    assert "t0" not in core.runtimes._done


def test_a_bad_turn_is_refused_by_its_id(core: Core, application: Application) -> None:
    core.registered(application)
    application.say("turn", record=turn_fields("t1", ending="well"))
    refused = core.hear(application)
    assert refused["type"] == "refused" and refused["turn"] == "t1"
    assert refused["reason"].startswith("turn.ending: 'well'; accepted are complete")


def progress(application: Application, turn: str, count: int = 30) -> None:
    steps = [[None, 1], *[[40_000, 1]] * (count - 1)]
    application.say(
        "progress", turn=turn, t=boot_us(), first=0, steps=steps, depth=100 + count, ttft_us=250_000
    )


def test_a_runtime_killed_in_a_turn_has_vanished_and_its_turn_is_lost(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    application.begin("t1", prompt_tokens=100, number=3)
    progress(application, "t1")
    core.until(lambda: core.runtimes._live[runtime].turns.get("t1", None) is not None)
    core.until(lambda: core.runtimes._live[runtime].turns["t1"].steps == 30)
    application.kill()
    (event,) = core.until(lambda: core.events("runtime_vanished"))
    assert (event.runtime, event.turn) == (runtime, "t1")
    assert event.data["cause"] == "unknown" and event.data["said_bye"] is False
    assert (event.data["depth"], event.data["tokens"]) == (130, 30)
    assert event.data["phase"] == "decode" and event.data["memory_bytes"]
    (turn,) = core.of(Turn)
    assert (turn.ending, turn.output_tokens, turn.number) == ("lost", 30, 3)
    assert turn.memory_start_bytes
    assert [(depth, sketch.n) for depth, sketch in turn.itl] == [(6, 27), (7, 2)]
    assert [window.tokens for window in core.of(Window)] == [30]
    assert core.events("runtime_ended") == []
    assert not core.runtimes._live and not core.runtimes._of


def test_what_was_sent_just_before_the_death_still_counts(
    core: Core, application: Application
) -> None:
    core.registered(application)
    application.begin("t1")
    application.end("t1")
    application.say("bye", reason="exit")
    application.close()  # all of it lies in the socket when the process is gone already
    (event,) = core.until(lambda: core.events("runtime_ended"))
    assert event.data == {"cause": "exit", "said_bye": True}
    assert [turn.ending for turn in core.of(Turn)] == ["complete"]


def test_a_kill_that_the_kernel_counted_is_an_oom_kill(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    live = core.runtimes._live[runtime]
    live.kills.see(None, boot_us())  # as where the agent cannot read the cgroup
    live._see_kills = lambda now_us: None  # type: ignore[method-assign]
    core.runtimes.tick(boot_us(), 0)
    live.kills.see(None, boot_us())
    application.begin("t1")
    core.until(lambda: live.turns)
    core.oom_kills = 1
    application.kill()
    (event,) = core.until(lambda: core.events("runtime_vanished"))
    assert event.data["cause"] == "oom_kill"
    assert (event.data["evidence"], event.data["oom_kills"]) == ("vmstat", 1)
    assert (event.data["phase"], event.data["depth"]) == ("prefill", None)


def test_a_turn_left_open_at_a_good_exit_is_lost_by_exit(
    core: Core, application: Application
) -> None:
    core.registered(application)
    application.begin("t1")
    application.say("bye", reason="exit")
    application.close()
    (event,) = core.until(lambda: core.events("runtime_vanished"))
    assert event.data["cause"] == "exit" and event.data["said_bye"] is True
    assert [turn.ending for turn in core.of(Turn)] == ["lost"]


def test_a_turn_whose_end_was_missed_is_not_lost_at_a_good_exit(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    for turn in ("missed", "open"):
        application.begin(turn)
    live = core.runtimes._live[runtime]
    core.until(lambda: len(live.turns) == 2)
    live.turns["missed"].last_sign_us -= STALE_US
    application.say("bye", reason="exit")
    application.close()
    (event,) = core.until(lambda: core.events("runtime_vanished"))
    assert (event.data["turns_lost"], event.data["turns_stale"]) == (1, 1)
    assert [(turn.id, turn.ending) for turn in core.of(Turn)] == [("open", "lost")]


def test_a_good_exit_with_stale_turns_alone_is_an_end(core: Core, application: Application) -> None:
    runtime = core.registered(application)
    application.begin("missed")
    live = core.runtimes._live[runtime]
    core.until(lambda: live.turns)
    live.turns["missed"].last_sign_us -= STALE_US
    application.say("bye", reason="exit")
    application.close()
    (event,) = core.until(lambda: core.events("runtime_ended"))
    assert event.data == {"cause": "exit", "said_bye": True, "turns_stale": 1}
    assert core.of(Turn) == [] and core.events("runtime_vanished") == []


def test_a_turn_that_was_given_up_is_not_lost(core: Core, application: Application) -> None:
    runtime = core.registered(application)
    application.begin("t1")
    core.until(lambda: core.runtimes._live[runtime].turns)
    application.say("forget", turn="t1")
    application.say("forget", turn="never heard of")
    core.until(lambda: not core.runtimes._live[runtime].turns)
    application.kill()
    (event,) = core.until(lambda: core.events("runtime_ended"))
    assert event.data == {"cause": "unknown", "said_bye": False}
    assert application.heard() is None and core.of(Turn) == []


def test_who_says_hello_and_bye_all_day_is_one_runtime(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    for _ in range(20):
        application.say("bye", reason="exit")
        application.raw(b"!close")
        core.until(lambda: not core.runtimes._of)
        application.raw(b"!connect")
        assert core.registered(application) == runtime
    assert (len(core.of(Runtime)), len(core.of(Event))) == (1, 1)
    # Once it stays away its runtime has ended, though the process lives.
    application.say("bye", reason="exit")
    application.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    core.pump(boot_us() + LINGER_US)
    core.pump()
    (event,) = core.events("runtime_ended")
    assert event.data == {"cause": "exit", "said_bye": True}
    assert not core.runtimes._live


def test_an_agent_that_stops_reports_who_has_left(core: Core, application: Application) -> None:
    core.registered(application)
    application.say("bye", reason="exit")
    application.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    core.runtimes.stop(boot_us())
    core.pending.commit(boot_us(), last=True)
    assert [event.data["cause"] for event in core.events("runtime_ended")] == ["exit"]


def test_a_bye_is_of_no_meaning_after_another_hello(core: Core, application: Application) -> None:
    core.registered(application)
    application.say("bye", reason="exit")
    application.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    application.raw(b"!connect")
    core.registered(application)
    application.kill()
    (event,) = core.until(lambda: core.events("runtime_ended"))
    assert event.data == {"cause": "unknown", "said_bye": False}


def test_one_connections_bye_is_not_that_of_the_process(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    application.say("bye", reason="exit")
    # The same process has a second model, on a connection of its own.
    application.raw(b"!connect")
    assert core.registered(application, name="embed") == runtime
    application.begin("t1")
    application.raw(b"!close")
    core.until(lambda: len(core.runtimes._of) == 1 and core.runtimes._live[runtime].turns)
    application.kill()
    (event,) = core.until(lambda: core.events("runtime_vanished"))
    assert (event.data["cause"], event.data["said_bye"]) == ("unknown", False)


def test_a_connection_that_closes_keeps_the_turn_while_its_process_lives(
    core: Core, application: Application
) -> None:
    runtime = core.registered(application)
    application.begin("t1")
    core.until(lambda: core.runtimes._live[runtime].turns)
    application.raw(b"!close")
    core.until(lambda: not core.runtimes._of)
    assert core.runtimes.look_in_us(boot_us()) is not None
    core.pump()
    assert core.events("runtime_vanished") == [] and core.of(Turn) == []
    # Nothing for as long as may be: then it is lost, but its runtime is still there.
    core.pump(boot_us() + SILENCE_S * 10**6)
    (event,) = core.events("runtime_vanished")
    assert event.data["cause"] == "silent"
    assert [turn.ending for turn in core.of(Turn)] == ["lost"]
    assert runtime in core.runtimes._live
    application.kill()
    core.until(lambda: core.events("runtime_ended"))


def test_a_full_table_forgets_who_is_gone_before_it_refuses(
    core: Core, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decodewatch.agent.runtimes.runtimes.MAX_RUNTIMES", 1)
    first = core.registered(application)
    with Application(core.path) as second:
        second.hello()
        refused = core.hear(second)
        assert refused["reason"] == "hello: 1 runtimes are registered; accepted are no more"
        application.raw(b"!close")
        core.until(lambda: not core.runtimes._of)
        assert core.registered(second) != first
        (event,) = core.until(lambda: core.events("runtime_ended"))
        assert (event.runtime, event.data["cause"]) == (first, "silent")


def test_a_connected_runtime_is_never_silent(core: Core, application: Application) -> None:
    runtime = core.registered(application)
    application.begin("t1")
    core.until(lambda: core.runtimes._live[runtime].turns)
    core.pump(boot_us() + 10 * SILENCE_S * 10**6)
    assert core.events("runtime_vanished") == []
    application.end("t1")
    assert core.hear(application) == {"type": "stored", "turn": "t1"}


def test_a_child_that_holds_the_socket_does_not_keep_its_parent_alive(core: Core) -> None:
    with Application(core.path) as application:
        runtime = core.registered(application)
        application.begin("t1")
        core.until(lambda: core.runtimes._live[runtime].turns)
        (connection,) = core.runtimes._of
        assert isinstance(connection, SocketConnection)
        held = os.dup(connection._channel.fileno())
        application.kill()
        core.until(lambda: core.events("runtime_vanished"))
        os.close(held)


def test_stopping_hands_over_windows_and_leaves_turns_open_for_the_next_agent(
    core: Core, application: Application
) -> None:
    core.registered(application)
    application.begin("t1")
    progress(application, "t1", 5)
    core.until(lambda: core.runtimes.busy(boot_us()))
    core.until(lambda: next(iter(core.runtimes._live.values())).turns["t1"].steps)
    core.runtimes.stop(boot_us())
    core.pending.commit(boot_us(), last=True)
    assert [window.tokens for window in core.of(Window)] == [5]
    assert core.of(Turn) == [] and core.events("runtime_vanished") == []
