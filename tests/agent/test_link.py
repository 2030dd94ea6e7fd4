"""How turns reach the agent: late, again, in bounds, from forks and threads, at no cost."""

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.inbox_server import InboxServer
from support.waiting import until

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.wrapper import channel, complain, vitals
from decodewatch.agent.wrapper import link as link_module
from decodewatch.agent.wrapper.channel import MAX_BYTES, MAX_LINE, MAX_TURNS, Backlog, Channel
from decodewatch.agent.wrapper.course import Course, Outcome
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.paths import distrust, socket_path
from decodewatch.shared.sketch import Sketch

Serve = Callable[[], InboxServer]


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[InboxServer]:
    """A server that listens once the test starts it."""
    server = InboxServer(tmp_path / "agent.sock")
    yield server
    server.stop()


@pytest.fixture
def link(inbox: InboxServer) -> Link:
    return Link(tick_s=0.05, socket_path=lambda: inbox.path)


@pytest.fixture
def monitor(link: Link) -> DecodeMonitor:
    return DecodeMonitor("chat", engine="toy", link=link)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complain, "_said", set())


def turn(monitor: DecodeMonitor, tokens: int = 2) -> None:
    """One turn that completes."""
    with monitor.turn() as one:
        for _ in one.watch(iter(range(tokens))):
            pass


def ids(inbox: InboxServer) -> list[str]:
    return [record["id"] for record in inbox.records]


# Delivery.


def test_nothing_starts_before_the_first_turn(link: Link, monitor: DecodeMonitor) -> None:
    before = threading.active_count()
    monitor.session("a")
    assert monitor.flush(0) and threading.active_count() == before and link._thread is None


def test_an_agent_that_comes_later_gets_every_turn(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    for _ in range(5):
        turn(monitor)
    assert not monitor.flush(0.05)
    inbox.start()
    assert monitor.flush(10)
    assert len(ids(inbox)) == len(set(ids(inbox))) == 5
    assert monitor.dropped == 0


def test_a_turn_is_sent_again_until_it_is_stored_and_never_after(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.stores = False
    inbox.start()
    turn(monitor)
    inbox.wait_for("turn")
    inbox.stop()
    inbox.stores = True
    inbox.start()
    assert monitor.flush(10)
    assert len(ids(inbox)) == 2 and len(set(ids(inbox))) == 1
    inbox.stop()
    inbox.start()
    turn(monitor)
    assert monitor.flush(10)
    assert len(ids(inbox)) == 3 and len(set(ids(inbox))) == 2


def test_an_open_turn_is_begun_again_after_a_reconnection(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.start()
    with monitor.session("u").turn(prompt_tokens=4) as one:
        one.step()
        inbox.wait_for("progress")
        inbox.stop()
        until(lambda: not monitor._channel.welcomed)
        one.step()
        one.step()
        inbox.start()
        inbox.wait_for("begin", 2)
        one.step()
    assert monitor.flush(10)
    first, second = inbox.of("begin")
    assert first == second and first["prompt_tokens"] == 4 and first["session"] == "u"
    kinds = [message["type"] for message in inbox.messages]
    assert kinds.index("hello", 1) < kinds.index("begin", 2) < kinds.index("turn")
    (record,) = inbox.records
    assert record["steps"] == 4


def test_progress_numbers_every_step_once(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    inbox.start()
    with monitor.turn(prompt_tokens=10) as one:
        for _ in range(60):
            one.step()
            time.sleep(0.004)
        one.step(700)
        for _ in range(700):
            one.step()
    assert monitor.flush(10)
    seen = 0
    for message in inbox.of("progress"):
        assert message["first"] == seen
        seen += len(message["steps"])
        assert message["depth"] in (None, 10 + seen, 10 + seen + 699)
        assert message["memory_bytes"] > 0
    assert seen == inbox.records[0]["steps"] == 761
    assert len(inbox.of("progress")) > 5


def test_the_agent_is_found_again_by_an_idle_application(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.start()
    turn(monitor)
    assert monitor.flush(10)
    inbox.stop()
    inbox.start()
    inbox.wait_for("hello", 2)


def test_two_monitors_have_two_connections_and_both_come_back(
    link: Link, monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    other = DecodeMonitor("summary", engine="toy", link=link)
    inbox.start()
    for round in range(1, 6):
        for one in (monitor, other):
            turn(one)
            assert one.flush(10)
        names = [hello["name"] for hello in inbox.of("hello")]
        assert names.count("chat") >= round and names.count("summary") >= round
        inbox.stop()
        until(lambda: not monitor._channel.welcomed and not other._channel.welcomed)
        inbox.start()
    assert len(set(ids(inbox))) == 10


def test_answers_may_come_in_pieces(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(inbox.path))
    listener.listen()
    turn(monitor)
    channel, _ = listener.accept()
    with listener, channel, channel.makefile("rb") as lines:
        lines.readline()
        for byte in b'{"type":"welcome","v":1}\n{"type":"newer","x":[]}\n':
            channel.send(bytes([byte]))
        until(lambda: monitor._channel.welcomed)
        assert not monitor.flush(0.05)
        kept = next(iter(monitor._channel.kept))
        for part in (b'{"type":"sto', b'red","turn":"%s"}' % kept.encode(), b"\n"):
            channel.send(part)
        assert monitor.flush(10)


@pytest.fixture
def tired(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent was there for so long that the pauses between attempts have become endless."""
    monkeypatch.setattr(channel, "_pause_s", lambda attempts: 1000.0)


def missed(monitor: DecodeMonitor) -> None:
    """A turn that finds no agent."""
    turn(monitor)
    until(lambda: monitor._channel._attempts and not monitor._link._work)


@pytest.mark.usefixtures("tired")
def test_a_turn_that_ends_brings_the_next_attempt_forward(
    monitor: DecodeMonitor, inbox: InboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SOON_S", 0.05)
    missed(monitor)
    until(lambda: monitor._channel._hurried == float("inf"))  # that attempt was in vain, too
    inbox.start()
    turn(monitor)
    inbox.wait_for("turn", 2)
    assert monitor._channel._attempts == 1


@pytest.mark.usefixtures("tired")
def test_flush_looks_for_the_agent_at_once(
    monitor: DecodeMonitor, inbox: InboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SOON_S", 1000.0)
    missed(monitor)
    inbox.start()
    assert monitor.flush(10)


@pytest.mark.usefixtures("tired")
def test_flush_goes_on_looking_for_the_agent(
    monitor: DecodeMonitor, inbox: InboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SOON_S", 0.05)
    missed(monitor)
    start = threading.Timer(0.3, inbox.start)
    start.start()
    assert monitor.flush(10)
    start.join()


# Refusals.


def test_a_refused_hello_is_logged_once_and_costs_nothing(
    monitor: DecodeMonitor,
    inbox: InboxServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "SOON_S", 0.0)
    inbox.refuses_hello = "v: 1; accepted is 2"
    inbox.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            turn(monitor)
            time.sleep(0.005)
        until(lambda: "accepted is 2" in caplog.text)
    assert not monitor.flush(0.1)
    assert inbox.connections == 1
    assert caplog.text.count("refused hello") == 1


def test_a_refused_turn_is_forgotten_and_counted(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.refuses_turns = "turn.steps: -1"
    inbox.start()
    turn(monitor)
    assert not monitor.flush(10)
    assert monitor.dropped == 1 and len(inbox.records) == 1
    inbox.refuses_turns = None
    turn(monitor)
    assert monitor.flush(10)


def test_whoever_is_no_agent_is_left_alone(
    monitor: DecodeMonitor, inbox: InboxServer, caplog: pytest.LogCaptureFixture
) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(inbox.path))
    listener.listen()
    with listener:
        turn(monitor)
        channel, _ = listener.accept()
        with channel:
            channel.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            until(lambda: "not an agent" in caplog.text)
            until(lambda: monitor._channel.socket is None)
    assert not monitor.flush(0)


def test_a_refused_beginning_costs_no_turn(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    inbox.refuses_begins = "too many open turns"
    inbox.start()
    for _ in range(20):
        turn(monitor)
    assert monitor.flush(10)
    assert monitor.dropped == 0 and len({record["id"] for record in inbox.records}) == 20


# Bounds.


def test_an_agent_that_stalls_costs_a_bound_and_is_told_what_was_given_up(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.start()
    turn(monitor)
    assert monitor.flush(10)
    inbox.gate.clear()
    for _ in range(3000):
        turn(monitor)
    until(lambda: monitor.dropped >= 3000 - MAX_TURNS, 20, "old turns are given up")
    assert len(monitor._channel._out) < channel._MAX_UNSENT + MAX_LINE
    inbox.gate.set()
    assert monitor.flush(20)
    begun = {message["turn"] for message in inbox.of("begin")}

    def accounted() -> set[str]:
        # Both, where the record was already under way when it was given up.
        forgotten = {message["turn"] for message in inbox.of("forget")}
        return forgotten | {record["id"] for record in inbox.records}

    until(lambda: begun <= accounted(), 10, "every turn that began is stored or given up")
    assert not monitor._channel._begun


def test_the_backlog_keeps_the_newest_turns(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    sent = []
    for _ in range(MAX_TURNS + 44):
        with monitor.turn() as one:
            one.step()
        sent.append(one._course.id)
    until(lambda: monitor.dropped == 44)
    inbox.start()
    assert monitor.flush(20)
    assert ids(inbox) == sent[44:]


def test_the_backlog_is_bounded_in_bytes_over_all_monitors() -> None:
    backlog = Backlog()
    first, second = Channel({}), Channel({})
    line = b"x" * (MAX_BYTES // 4)
    for number in range(6):
        backlog.add((first, second)[number % 2], str(number), line)
    assert (first.dropped, second.dropped) == (1, 1)
    assert list(first.kept) == ["2", "4"] and list(second.kept) == ["3", "5"]
    assert backlog.remove("2") and not backlog.remove("2") and not backlog.remove("0")
    backlog.add(first, "6", line)
    assert list(first.kept) == ["4", "6"] and first.dropped == 1


def test_an_agent_that_never_reads_never_blocks_the_application(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.reads = False
    inbox.start()
    longest = 0.0
    for _ in range(600):
        start = time.monotonic()
        with monitor.turn() as one:
            for _ in range(300):
                one.step()
        longest = max(longest, time.monotonic() - start)
    assert longest < 1
    until(lambda: monitor._channel.unsent and monitor.dropped == 600 - MAX_TURNS)
    assert len(monitor._channel._out) < 1 << 20


@pytest.mark.parametrize(
    "tokens", [pytest.param(100_000), pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_a_long_turn_takes_little_memory(
    monitor: DecodeMonitor, inbox: InboxServer, tokens: int
) -> None:
    inbox.start()
    turn(monitor)
    assert monitor.flush(10)
    start, most = vitals.memory_bytes(), 0
    assert start is not None
    with monitor.turn(prompt_tokens=1) as one:
        for token in one.watch(iter(range(tokens))):
            if token % 1000 == 0:
                most = max(most, len(one._course.stamps))
                inbox.messages.clear()
                time.sleep(0.01)
    assert monitor.flush(60)
    assert inbox.records[-1]["output_tokens"] == tokens
    assert most < 50_000
    end = vitals.memory_bytes()
    assert end is not None and end - start < 20 << 20


@pytest.mark.slow
def test_ten_thousand_turns_leave_nothing_behind(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    inbox.start()

    def turns(count: int) -> tuple[int, int]:
        for number in range(count):
            with monitor.session(number).turn(prompt_tokens=5) as one:
                for _ in one.watch(iter(range(3))):
                    pass
            if number % 100 == 99:
                assert monitor.flush(20)
                inbox.messages.clear()
        gc.collect()
        return len(gc.get_objects()), vitals.memory_bytes() or 0

    # Long enough for the table of sessions to be full.
    objects, memory = turns(5000)
    objects_later, memory_later = turns(10_000)
    assert objects_later - objects < 500
    assert memory_later - memory < 4 << 20
    assert monitor.dropped == 0


def test_a_record_that_would_not_fit_a_line_gives_up_its_strata() -> None:
    start = vitals.moment()
    course = Course(session="u", number=0, epoch=0, now=start, accepted_ns=None, memory_bytes=None)
    course.prompt_tokens = 1 << 12
    at = start.after
    for octave in range(12, 35):
        tokens = (1 << octave) // 700
        for step in range(700):  # one in every bucket
            at += tokens * int(100_000 * 2 ** (step / 32))
            course.stamps.append((at, tokens))
    stamps = list(course.stamps)
    end = vitals.Moment(at, start.boot + at - start.before, at)
    course.end(Outcome("complete"), end, None)
    channel = Channel({})
    channel.end(course, Backlog())
    line = channel.kept[course.id]
    assert len(line) <= MAX_LINE < len(json.dumps(course.record()))
    (stratum,) = json.loads(line)["record"]["itl"]
    assert stratum[0] is None
    assert Sketch.from_json(stratum[1]).n == sum(
        stamp[1] for stamp in stamps[1:] if isinstance(stamp, tuple)
    )


def test_monitors_that_are_gone_take_their_connections_along_but_for_the_last(
    link: Link, inbox: InboxServer
) -> None:
    inbox.start()
    for _ in range(3):
        monitor = DecodeMonitor("short", engine="toy", link=link)
        turn(monitor)
        assert monitor.flush(10)
    last = monitor._channel
    del monitor
    gc.collect()
    until(lambda: last.left and list(link._channels) == [last])
    assert last.welcomed and not inbox.of("bye")  # the process lives
    monitor = DecodeMonitor("long", engine="toy", link=link)
    turn(monitor)
    assert monitor.flush(10)
    last = monitor._channel
    until(lambda: list(link._channels) == [last])
    del monitor
    gc.collect()
    inbox.stop()
    until(lambda: not link._channels)


def test_an_idle_link_never_wakes(link: Link, monitor: DecodeMonitor, inbox: InboxServer) -> None:
    inbox.start()
    turn(monitor)
    assert monitor.flush(10)
    assert link._thread is not None
    status = Path(f"/proc/self/task/{link._thread.native_id}/status")

    def switches() -> int:
        lines = status.read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    def quiet() -> bool:
        before = switches()
        time.sleep(0.3)  # six ticks
        return switches() == before

    until(quiet)


# Faults.


def test_a_fault_in_the_thread_is_logged_once_and_the_application_goes_on(
    link: Link,
    monitor: DecodeMonitor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(link, "_tick", fails)
    with monitor.turn():
        until(lambda: link._broken)
    for _ in range(3):
        turn(monitor)
    assert not monitor.flush(0.01)
    assert monitor.dropped == 4
    assert caplog.text.count("the link's thread has ended") == 1


def test_a_thread_that_cannot_start_is_tried_again_at_the_next_turn(
    link: Link,
    monitor: DecodeMonitor,
    inbox: InboxServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    inbox.start()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        turn(monitor)
    assert not monitor.flush(0.01)
    turn(monitor)
    assert monitor.flush(10)
    assert len(ids(inbox)) == 2


# Threads and processes.


def test_threads_share_a_monitor(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    inbox.start()
    session = monitor.session("all")

    def work() -> None:
        for _ in range(25):
            with session.turn() as one:
                for _ in one.watch(iter(range(20))):
                    pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.flush(20)
    assert len(ids(inbox)) == len(set(ids(inbox))) == 200
    assert sorted(record["number"] for record in inbox.records) == list(range(200))
    assert all(record["steps"] == 20 for record in inbox.records)
    assert all(1 <= record["concurrency"] <= 8 for record in inbox.records)


def run_script(inbox: InboxServer, script: str) -> tuple[float, str]:
    """Run a program of its own; how long it took to end after it said so, and what it wrote."""
    program = textwrap.dedent("""\
        import os, sys, time
        from decodewatch.agent import DecodeMonitor
        monitor = DecodeMonitor("script", engine="toy")
        """) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "DECODEWATCH_SOCKET": str(inbox.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    end = time.time()
    assert done.returncode == 0, done.stderr
    said = float(done.stdout.split()[-1]) if done.stdout else end
    return end - said, done.stderr


def test_a_child_process_sends_its_own_turns_and_not_its_parents(inbox: InboxServer) -> None:
    inbox.stores = False
    inbox.start()
    run_script(
        inbox,
        """
        with monitor.session("before").turn() as turn:
            turn.step()
        with monitor.session("parent").turn() as turn:
            turn.step()
            child = os.fork()
            turn.step()
        if child == 0:
            with monitor.session("child").turn() as turn:
                turn.step()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
    )
    inbox.wait_for("turn", 3)
    assert sorted((one["session"], one["steps"]) for one in inbox.records) == [
        ("before", 1),
        ("child", 1),
        ("parent", 2),
    ]
    hellos = inbox.of("hello")
    assert len(hellos) == len({hello["pid"] for hello in hellos}) == 2


def test_a_process_that_ends_sends_what_it_has_and_says_bye(inbox: InboxServer) -> None:
    inbox.start()
    _, said = run_script(inbox, "list(monitor.watch(iter('ab')))\n")
    assert said == ""
    assert [message["type"] for message in inbox.wait_for("bye")] == ["bye"]
    assert len(inbox.records) == 1


def test_a_process_whose_monitor_is_gone_says_bye_too(inbox: InboxServer) -> None:
    inbox.start()
    run_script(
        inbox,
        """
        list(monitor.watch(iter("ab")))
        assert monitor.flush(10)
        channel = monitor._channel
        del monitor
        while not channel.left:
            time.sleep(0.01)
        """,
    )
    assert len(inbox.wait_for("bye")) == 1 == inbox.connections


def test_a_process_that_ends_looks_once_more_for_an_agent(
    inbox: InboxServer, tmp_path: Path
) -> None:
    missed, there = tmp_path / "missed", tmp_path / "there"

    def come_late() -> None:
        until(missed.exists)
        inbox.start()
        there.touch()

    agent = threading.Thread(target=come_late)
    agent.start()
    run_script(
        inbox,
        f"""
        from pathlib import Path
        from decodewatch.agent.wrapper import channel, link
        channel._pause_s = lambda attempts: 1000.0
        link.SOON_S = 1000.0
        list(monitor.watch(iter("ab")))
        while not monitor._channel._attempts:
            time.sleep(0.01)
        Path({str(missed)!r}).touch()
        while not Path({str(there)!r}).exists():
            time.sleep(0.01)
        """,
    )
    agent.join()
    assert len(inbox.wait_for("turn")) == len(inbox.wait_for("bye")) == 1


def test_a_process_ends_without_delay_where_nobody_listens(inbox: InboxServer) -> None:
    script = "list(monitor.watch(iter('ab')))\nprint(time.time())\n"
    # Once in three: the machine may be busy.
    assert any(run_script(inbox, script)[0] < 0.9 for _ in range(3))


def test_a_process_waits_a_second_at_most_for_an_agent_that_does_not_answer(
    inbox: InboxServer,
) -> None:
    inbox.reads = False
    inbox.start()
    took, said = run_script(inbox, "list(monitor.watch(iter('ab')))\nprint(time.time())\n")
    assert 0.9 < took < 3 and said == ""


# Where the inbox is.


def test_the_socket_is_the_first_that_applies(tmp_path: Path) -> None:
    system = tmp_path / "system.sock"
    everything = {"DECODEWATCH_SOCKET": "/a/b", "XDG_RUNTIME_DIR": "/run/user/5"}
    assert socket_path(everything, system) == Path("/a/b")
    del everything["DECODEWATCH_SOCKET"]
    assert socket_path(everything, system) == Path("/run/user/5/decodewatch/agent.sock")
    assert socket_path({}, system) == Path(f"/tmp/decodewatch-{os.geteuid()}/agent.sock")
    system.touch()
    assert socket_path(everything, system) == system


def test_a_folder_of_somebody_else_below_tmp_is_not_trusted(
    inbox: InboxServer, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(f"/tmp/decodewatch-test-{os.getpid()}")
    path = folder / "agent.sock"
    assert distrust(path) is None  # connecting will fail
    folder.mkdir(mode=0o700)
    try:
        assert distrust(path) is None
        folder.chmod(0o777)
        assert "mode 777" in str(distrust(path))
        server = InboxServer(path).start()
        monitor = DecodeMonitor("chat", engine="toy", link=Link(socket_path=lambda: path))
        turn(monitor)
        until(lambda: "mode 777" in caplog.text)
        assert server.connections == 0
        server.stop()
        if os.geteuid() == 0:
            folder.chmod(0o700)
            os.chown(folder, 12345, 12345)
            assert "uid 12345" in str(distrust(path))
    finally:
        folder.rmdir()
    folder.symlink_to("/nowhere")
    try:
        assert "not a folder" in str(distrust(path))
    finally:
        folder.unlink()
    assert distrust(Path("/run/decodewatch/agent.sock")) is None
