"""The uplink against real brokers: what is lost on the way is sent again, whoever dies."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import uplink_runner
from support.brokers import Broker, free_port, mosquitto_program
from support.spooling import event
from support.uplinking import DEVICE, Collector, Loop
from support.waiting import until

from decodewatch.agent import uplink
from decodewatch.agent.connection import Heard
from decodewatch.shared import logs
from decodewatch.shared.broker import BrokerSettings
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.wire import MAX_RANGES, MAX_SENT, Acknowledged, encode_ack

TESTS = Path(__file__).parents[1]


@pytest.fixture
def make_loop(tmp_path: Path) -> Iterator[Callable[[BrokerSettings], Loop]]:
    """Makes main loops, which end with the test."""
    made: list[Loop] = []

    def make(settings: BrokerSettings) -> Loop:
        made.append(Loop(tmp_path, settings))
        return made[-1]

    yield make
    for loop in made:
        loop.close()
    until(lambda: not [one for one in threading.enumerate() if one.name == "uplink"])


@pytest.fixture
def loop(broker: Broker, make_loop: Callable[[BrokerSettings], Loop]) -> Loop:
    """An uplink to a broker of each kind, not started."""
    return make_loop(BrokerSettings(broker_port=broker.port))


@pytest.fixture
def collector(broker: Broker) -> Iterator[Collector]:
    """A collector that acknowledges everything."""
    made = Collector(broker).wait()
    yield made
    made.close()


@pytest.fixture
def heard(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What the uplink logs, as if it had logged nothing in the last minute."""
    monkeypatch.setattr(uplink, "log", logs.get("uplink"))
    return caplog


def append(loop: Loop, count: int) -> None:
    for _ in range(count):
        loop.spool.append([event("e")])


def test_what_is_spooled_arrives_in_order_and_is_acknowledged(
    loop: Loop, collector: Collector
) -> None:
    append(loop, 5)
    loop.uplink.start()
    loop.until(loop.empty)
    append(loop, 2)
    loop.until(loop.empty)
    assert collector.numbers() == [1, 2, 3, 4, 5, 6, 7]
    assert {one.stream for one in collector.batches} == {loop.spool.stream}


def test_a_backlog_drains_fast_with_a_bounded_window(loop: Loop, collector: Collector) -> None:
    append(loop, 600)
    under_way = []
    loop.uplink.start()

    def drained() -> bool:
        under_way.append(len(loop.uplink._under_way))
        return loop.empty()

    loop.until(drained, 30)
    assert max(under_way) <= uplink.WINDOW
    assert sorted(set(collector.numbers())) == list(range(1, 601))
    assert len(collector.online()) == 1, "the broker was never given more than it allows"


def test_without_acknowledgements_one_batch_is_tried_again_and_nothing_is_lost(
    loop: Loop, collector: Collector
) -> None:
    collector.accepts = lambda batch: False
    append(loop, 40)
    loop.uplink.start()
    loop.until(lambda: collector.numbers() == [1])
    for tries in (2, 3, 4):
        loop.run(0.1)
        assert collector.numbers() == [1] * (tries - 1), "not before its time"
        loop.shift += 1.3 * uplink.RESEND_S[0] * 2 ** (tries - 2)
        loop.until(lambda tries=tries: collector.numbers() == [1] * tries)  # type: ignore[misc]
        assert loop.spool.depth()[0] == 40
    collector.accepts = lambda batch: True
    loop.shift += 60
    loop.until(loop.empty)
    assert set(collector.numbers()) == set(range(1, 41))


def test_a_collector_that_falls_silent_meets_one_batch_not_the_window(
    loop: Loop, collector: Collector
) -> None:
    append(loop, 100)
    loop.uplink.start()
    loop.until(loop.empty)
    collector.accepts = lambda batch: False
    append(loop, 100)
    loop.until(lambda: len(collector.batches) == 100 + uplink.WINDOW)
    for _ in range(3):
        seen = len(collector.batches)
        loop.shift += 25
        loop.until(lambda seen=seen: len(collector.batches) > seen)  # type: ignore[misc]
        loop.run(0.2)
        assert len(collector.batches) == seen + 1
    collector.acknowledge(*collector.batches[100:105])  # late, but somebody is there
    collector.accepts = lambda batch: True
    loop.until(loop.empty, 20)
    assert set(collector.numbers()) == set(range(1, 201))


def test_a_lost_acknowledgement_costs_that_batch_alone_a_second_journey(
    loop: Loop, collector: Collector
) -> None:
    refused = set()

    def accepts(batch: object) -> bool:
        number = collector.batches[-1].number
        if number in (3, 7) and number not in refused:
            refused.add(number)
            return False
        return True

    collector.accepts = accepts
    append(loop, 10)
    loop.uplink.start()
    loop.until(lambda: loop.spool.depth()[0] == 2)
    loop.run(0.1)
    assert loop.spool.depth()[0] == 2
    loop.shift += 1.3 * uplink.RESEND_S[0]
    loop.until(loop.empty)
    assert sorted(collector.numbers()) == [1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 10]


def test_what_is_no_acknowledgement_is_ignored(loop: Loop, collector: Collector) -> None:
    collector.accepts = lambda batch: False
    append(loop, 1)
    loop.uplink.start()
    loop.until(lambda: collector.numbers() == [1])
    for payload in (b"", b"\xff" * 99, b"{}", b'{"v":1,"streams":[["x",[[2,1]]]]}'):
        collector.say(payload)
    collector.say(encode_ack([Acknowledged("other", ((1, 9),))]))
    loop.run(0.2)
    assert loop.spool.depth()[0] == 1
    collector.acknowledge(collector.batches[0])
    loop.until(loop.empty)


def test_a_flood_of_acknowledgements_costs_neither_memory_nor_the_main_loop(
    loop: Loop, collector: Collector
) -> None:
    collector.accepts = lambda batch: False
    append(loop, 3)
    loop.uplink.start()
    loop.until(lambda: collector.numbers() == [1])
    # A thousand ranges that do not meet, as many as one payload may have.
    ranges = tuple((number, number) for number in range(1, 2 * MAX_RANGES, 2))
    flood = encode_ack([Acknowledged(loop.spool.stream, ranges)])
    for _ in range(200):
        collector.say(flood)
    longest = 0.0

    def tick() -> bool:
        nonlocal longest
        began = time.monotonic()
        loop.uplink.tick()
        longest = max(longest, time.monotonic() - began)
        assert loop.uplink._connection is not None
        return loop.spool.depth()[0] == 1 and not loop.uplink._connection.acknowledgements

    loop.until(tick)
    assert longest < 0.5
    assert [one.number for one in loop.spool.oldest(None, 9)] == [2]


def test_acknowledgements_wait_in_bounded_memory() -> None:
    heard = Heard()
    assert not heard and heard.take() is None
    heard.put(b"x" * (MAX_SENT + 1))
    assert not heard, "no acknowledgement is so long"
    for number in range(100_000):
        heard.put(b"%d" % number)
    kept = []
    while (payload := heard.take()) is not None:
        kept.append(int(payload))
    assert kept == list(range(kept[0], 100_000))
    assert 10_000 < len(kept) < 20_000
    for _ in range(20):
        heard.put(b"x" * MAX_SENT)
    assert sum(1 for _ in iter(heard.take, None)) == 15


def test_a_packet_that_is_too_long_is_not_sent_to_us(
    broker: Broker, make_loop: Callable[[BrokerSettings], Loop], collector: Collector
) -> None:
    loop = make_loop(BrokerSettings(broker_port=broker.port))
    collector.accepts = lambda batch: False
    append(loop, 1)
    loop.uplink.start()
    loop.until(lambda: collector.numbers() == [1])
    collector.say(b"x" * 200_000)
    loop.run(0.3)
    collector.acknowledge(collector.batches[0])
    loop.until(loop.empty)


def test_a_broker_that_was_killed_is_found_again(
    broker: Broker, loop: Loop, collector: Collector
) -> None:
    loop.uplink.start()
    append(loop, 3)
    loop.until(loop.empty)
    for _ in range(2):
        broker.kill()
        loop.until(lambda: not loop.uplink.connected)
        append(loop, 3)
        loop.run(0.2)
        broker.start()
        loop.until(loop.empty, 20)
    assert set(collector.numbers()) == set(range(1, 10))
    numbers = collector.online()
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 3


def test_a_broker_that_is_absent_at_the_start_is_waited_for(
    broker: Broker, loop: Loop, collector: Collector
) -> None:
    broker.kill()
    started = time.monotonic()
    loop.uplink.start()
    assert time.monotonic() - started < 0.5
    append(loop, 2)
    loop.run(0.5)
    assert not loop.uplink.connected
    broker.start()
    loop.until(loop.empty, 20)
    assert loop.uplink.connected


def test_the_status_says_who_is_online_and_is_retained(loop: Loop, broker: Broker) -> None:
    loop.uplink.start()
    loop.until(lambda: loop.uplink.connected)
    loop.run(0.3)
    late = Collector(broker).wait()
    (status,) = until(lambda: late.statuses)
    assert (status.device, status.online) == (DEVICE, True)
    assert (status.agent_version, status.boot) == ("1.2.3", "boot-1")
    assert status.clock is not None and status.clock.synchronised
    late.close()


def test_stopping_says_offline_and_leaves_no_thread(loop: Loop, broker: Broker) -> None:
    loop.uplink.start()
    loop.until(lambda: loop.uplink.connected)
    loop.run(0.1)
    started = time.monotonic()
    loop.uplink.stop(3)
    assert time.monotonic() - started < 2
    assert not loop.uplink.connected
    assert not [one for one in threading.enumerate() if one.name == "uplink"]
    late = Collector(broker).wait()
    (status,) = until(lambda: late.statuses)
    assert not status.online
    assert status.clock is not None, "a goodbye knows its moment, a last will does not"
    late.close()


def test_an_agent_that_is_killed_is_offline_by_its_last_will(
    broker: Broker, collector: Collector, tmp_path: Path
) -> None:
    command = [sys.executable, uplink_runner.__file__, str(tmp_path), str(broker.port)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    connections: list[int] = []
    for _ in range(2):
        process = subprocess.Popen(command, env=environment)
        try:
            seen = len(connections)
            until(lambda seen=seen: len(collector.online()) > seen)  # type: ignore[misc]
            until(lambda: collector.batches)
        finally:
            process.kill()
            process.wait()
        connections.append(collector.online()[-1])
        until(lambda: not collector.statuses[-1].online)
        last = collector.statuses[-1]
        assert (last.connection, last.clock) == (connections[-1], None)
    assert connections[0] < connections[1]


def test_long_silence_makes_a_new_connection_ever_more_seldom(
    loop: Loop, collector: Collector
) -> None:
    collector.accepts = lambda batch: False
    append(loop, 3)
    loop.uplink.start()
    loop.until(lambda: collector.numbers() == [1])
    assert len(collector.online()) == 1
    loop.shift += 1.3 * uplink.SILENCE_S[0]
    loop.until(lambda: len(collector.online()) == 2)
    loop.until(lambda: collector.numbers()[1:] == [1])
    loop.shift += uplink.SILENCE_S[0]
    loop.run(0.3)
    assert len(collector.online()) == 2
    loop.shift += 1.5 * uplink.SILENCE_S[0]
    loop.until(lambda: len(collector.online()) == 3)
    collector.accepts = lambda batch: True
    loop.shift += 300
    loop.until(loop.empty)


def test_mqtt_3_1_1_does_the_same(
    mosquitto: Broker, make_loop: Callable[[BrokerSettings], Loop]
) -> None:
    loop = make_loop(BrokerSettings(broker_port=mosquitto.port, broker_protocol="3.1.1"))
    collector = Collector(mosquitto).wait()
    append(loop, 100)
    loop.uplink.start()
    loop.until(loop.empty)
    assert set(collector.numbers()) == set(range(1, 101))
    mosquitto.kill()
    mosquitto.start()
    append(loop, 1)
    loop.until(loop.empty, 20)
    collector.close()


class Forbidding(Broker):
    """A Mosquitto that lets nobody publish batches."""

    def _command(self) -> list[str]:
        acl = self._folder / "acl"
        acl.write_text("topic readwrite decodewatch/1/+/status\ntopic read decodewatch/1/+/ack\n")
        file = self._folder / "forbidding.conf"
        file.write_text(
            f"user root\nlistener {self.port} 127.0.0.1\nallow_anonymous true\nacl_file {acl}\n"
        )
        return [mosquitto_program(), "-c", str(file)]


def test_a_publication_that_the_broker_refuses_stays_in_the_spool(
    tmp_path: Path, make_loop: Callable[[BrokerSettings], Loop]
) -> None:
    broker = Forbidding("mosquitto", tmp_path).start()
    collector = Collector(broker).wait()
    loop = make_loop(BrokerSettings(broker_port=broker.port))
    append(loop, 2)
    loop.uplink.start()
    # Refused, confirmed, and due again: for ever, if need be.
    loop.until(lambda: [one for one in loop.uplink._under_way.values() if one.sending.confirmed])
    loop.shift += 10
    loop.run(0.2)
    assert loop.uplink.connected
    assert loop.spool.depth()[0] == 2
    assert collector.batches == []
    collector.close()
    broker.stop()


def test_a_broker_that_stands_still_holds_up_nobody(
    mosquitto: Broker, make_loop: Callable[[BrokerSettings], Loop]
) -> None:
    loop = make_loop(BrokerSettings(broker_port=mosquitto.port))
    loop.uplink.start()
    loop.until(lambda: loop.uplink.connected)
    process = mosquitto._process
    assert process
    process.send_signal(signal.SIGSTOP)
    try:
        append(loop, 300)
        loop.shift += 100
        started = time.monotonic()
        loop.run(0.3)
        assert time.monotonic() - started < 1
        loop.uplink.stop(2)
        assert time.monotonic() - started < 3.5
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "", "a" * 70 + ".example", "a..b"], ids=str
)
def test_a_host_that_cannot_be_reached_costs_nothing_but_the_connection(
    make_loop: Callable[[BrokerSettings], Loop], host: str
) -> None:
    loop = make_loop(BrokerSettings(broker_host=host))
    started = time.monotonic()
    loop.uplink.start()
    append(loop, 1)
    assert time.monotonic() - started < 0.5
    loop.until(lambda: loop.uplink._connection is None, 30, "the first attempt fails")
    loop.until(lambda: loop.uplink._connection is not None, 30, "there is another")
    started = time.monotonic()
    loop.uplink.stop(1)
    assert time.monotonic() - started < 1.5


def test_a_server_that_never_answers_does_not_hold_up_the_stop(
    make_loop: Callable[[BrokerSettings], Loop],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = make_loop(BrokerSettings(broker_port=server.getsockname()[1]))
        loop.uplink.start()
        loop.run(0.3)
        assert not loop.uplink.connected
        started = time.monotonic()
        loop.uplink.stop(2)
        assert time.monotonic() - started < 2.5


def test_a_broker_that_closes_before_it_answers_is_told_with_a_hint(
    make_loop: Callable[[BrokerSettings], Loop], heard: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = make_loop(BrokerSettings(broker_port=server.getsockname()[1]))
        loop.uplink.start()
        client = server.accept()[0]
        assert client.recv(1)
        client.close()
        loop.until(lambda: loop.uplink._connection is None)
    (reason,) = [record.__dict__["fields"]["reason"] for record in heard.records]
    assert "user or password not accepted" in reason


def test_a_broker_that_dies_is_told_as_a_closed_connection(
    loop: Loop, broker: Broker, heard: pytest.LogCaptureFixture
) -> None:
    loop.uplink.start()
    loop.until(lambda: loop.uplink.connected)
    loop.run(0.1)
    broker.kill()
    loop.until(lambda: not loop.uplink.connected and loop.uplink._connection is None)
    (reason,) = [record.__dict__["fields"]["reason"] for record in heard.records]
    assert reason == "connection closed"


def test_a_password_that_cannot_be_read_is_refused_at_the_start(
    make_loop: Callable[[BrokerSettings], Loop], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    loop = make_loop(BrokerSettings(broker_user="me", broker_password_file=missing))
    with pytest.raises(SettingsError, match=f"broker_password_file: {missing}"):
        loop.uplink.start()


def test_an_uplink_makes_one_thread_however_often_it_connects(
    make_loop: Callable[[BrokerSettings], Loop],
) -> None:
    loop = make_loop(BrokerSettings(broker_port=free_port()))
    loop.uplink.start()
    for _ in range(20):
        loop.shift += 60
        loop.run(0.05)
        assert len([one for one in threading.enumerate() if one.name == "uplink"]) <= 1


def test_only_the_connection_imports_paho() -> None:
    folder = Path(uplink.__file__).parent
    importing = re.compile(r"^\s*(from|import) paho\b", re.MULTILINE)
    assert [path.name for path in folder.rglob("*.py") if importing.search(path.read_text())] == [
        "connection.py"
    ]
