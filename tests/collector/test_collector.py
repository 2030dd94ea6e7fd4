"""`decodewatch collector run` with real brokers: what is sent is stored once, whatever happens."""

import contextlib
import itertools
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from support.brokers import Broker, free_port
from support.collecting import WALL, Collector, Device, a_batch, count, rows
from support.records import a_turn
from support.waiting import until

from decodewatch.shared import tables, wire
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.wire import Clock, Status

Make = Callable[..., Collector]


@pytest.fixture
def make(broker: Broker, tmp_path: Path) -> Iterator[Make]:
    """Makes collectors on the broker, and stops what is left of them."""
    made: list[Collector] = []

    def one(*flags: str, url: str | None = None) -> Collector:
        made.append(Collector(broker.port, tmp_path, *flags, url=url))
        return made[-1]

    yield one
    for item in made:
        item.kill()


def turns(collector: Collector) -> list[str]:
    return sorted(row["turn"] for row in rows(collector.url, tables.turn))


def refused_start(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "decodewatch.shared.cli", "collector", "run", *flags]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30)
    return done.returncode, done.stderr


def test_what_is_sent_is_stored_once_and_acknowledged(broker: Broker, make: Make) -> None:
    collector = make().start()
    with Device(broker.port) as device:
        device.send(*(a_batch(number) for number in range(1, 101)))
        device.settle()
        assert device.acknowledged == {("stream-1", number) for number in range(1, 101)}
    assert count(collector.url, tables.turn) == 100
    (stream,) = rows(collector.url, tables.stream)
    assert (stream["watermark"], stream["missing"], stream["refused"]) == (100, 0, 0)


def test_a_batch_that_comes_again_is_acknowledged_again(broker: Broker, make: Make) -> None:
    collector = make().start()
    with Device(broker.port) as device:
        device.send(a_batch())
        device.settle()
        device.acknowledged.clear()
        device.send(a_batch())
        device.settle()
        assert device.acknowledged == {("stream-1", 1)}
    assert count(collector.url, tables.turn) == 1


@pytest.mark.slow
def test_kill_9_in_mid_stream_loses_and_doubles_nothing(broker: Broker, make: Make) -> None:
    chance = random.Random(7)
    collector = make("--group-messages", "8").start()
    total = 400
    with Device(broker.port) as device:

        def send() -> None:
            for number in range(1, total + 1):
                device.send(a_batch(number))
                time.sleep(0.005)

        sender = threading.Thread(target=send)
        sender.start()
        while sender.is_alive():
            time.sleep(chance.uniform(0.1, 0.6))
            collector.kill()
            collector.start(ready=False)
        sender.join()
        device.settle(30)
    assert turns(collector) == sorted(f"stream-1-{number}" for number in range(1, total + 1))
    (stream,) = rows(collector.url, tables.stream)
    assert (stream["received"], stream["missing"]) == (total, 0)


@pytest.mark.slow
def test_the_broker_may_be_killed(broker: Broker, make: Make) -> None:
    collector = make().start()
    with Device(broker.port) as device:
        for part in range(4):
            device.send(*(a_batch(part * 10 + place) for place in range(1, 11)))
            broker.kill()
            broker.start()
        device.settle(40, every=1)
    assert count(collector.url, tables.turn) == 40
    until(collector.ready, 20)


def test_two_collectors_share_one_database(broker: Broker, make: Make) -> None:
    one, two = make().start(), make().start()
    assert one.url == two.url
    with Device(broker.port) as device:
        for number in range(1, 301):
            device.send(a_batch(number))
        device.settle()
    assert count(one.url, tables.turn) == 300
    for collector in (one, two):
        collector.stop()
        assert "batches=" in collector.log.read_text(), "both have taken a share"


def test_what_cannot_be_read_is_put_aside_and_the_rest_goes_on(broker: Broker, make: Make) -> None:
    collector = make("--dead-letter-rows", "100", "--dead-letter-bytes", "64").start()
    good = wire.encode_batch(a_batch(2))
    with Device(broker.port) as device:
        for payload in (b"", b"{", b"\x00\xff", b"[]", good[:-5], b"x" * 100_000, b"{" * 50_000):
            device.publish(payload)
        # Mosquitto cuts off whoever uses a control character in a topic; rumqttd lets it pass.
        control = ["\x01"] if broker.kind == "rumqttd" else []
        for odd in ("a b", "ä", "x" * 65, *control):
            device.client.publish(f"decodewatch/1/{odd}/up", good, 1)
        device.client.publish("decodewatch/1/device-2/up", good, 1)
        device.publish(b"nonsense", "status")
        device.send(a_batch(1))
        device.settle()
        until(lambda: count(collector.url, tables.dead_letter) >= 12)
    letters = rows(collector.url, tables.dead_letter)
    assert max(len(letter["payload"]) for letter in letters) == 64
    assert 100_000 in {letter["size"] for letter in letters}
    assert turns(collector) == ["stream-1-1"]
    assert {row["device"] for row in rows(collector.url, tables.device_state)} == {"device-1"}


def test_a_batch_with_an_unreadable_part_is_not_sent_for_ever(broker: Broker, make: Make) -> None:
    make().start()
    with Device(broker.port) as device:
        device.publish(wire.pack(wire.unpack(wire.encode_batch(a_batch(5))) | {"boot": 5}))
        until(lambda: ("stream-1", 5) in device.acknowledged)


def _string(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content


def test_a_message_that_the_client_library_cannot_read_is_survived(
    broker: Broker, make: Make
) -> None:
    collector = make().start()
    connect = _string(b"MQTT") + b"\x05\x02\x00\x3c\x00" + _string(b"stranger")
    not_utf8 = b"\x26" + _string(b"\xff\xfe") + _string(b"\xff")
    publish = _string(b"decodewatch/1/d/up") + bytes([len(not_utf8)]) + not_utf8 + b"x"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", broker.port)) as stranger:
            stranger.sendall(b"\x10" + bytes([len(connect)]) + connect)
            assert stranger.recv(100)
            stranger.sendall(b"\x30" + bytes([len(publish)]) + publish)
            stranger.sendall(b"\xe0\x00")
            stranger.settimeout(5)
            while stranger.recv(100):
                pass
    with Device(broker.port) as device:
        device.send(a_batch())
        device.settle(30)
    assert collector.process is not None
    assert collector.process.poll() is None


def test_dead_letters_do_not_fill_the_disk(broker: Broker, make: Make) -> None:
    collector = make("--dead-letter-rows", "50").start()
    with Device(broker.port) as device:
        for number in range(500):
            device.publish(b"nonsense %d" % number)
        device.send(a_batch(1))
        device.settle()
        until(lambda: 50 <= count(collector.url, tables.dead_letter) <= 56)
    assert collector.log.read_text().count("\n") < 40


def test_status_tells_whether_a_device_is_online(broker: Broker, make: Make) -> None:
    collector = make().start()

    def online() -> list[bool]:
        return [row["online"] for row in rows(collector.url, tables.device_state)]

    def will(connection: int) -> Client:
        client = make_client(BrokerSettings(), f"agent-{connection}")
        gone = Status("device-1", False, connection, None, None, None)
        topic = wire.topic("device-1", "status")
        client.will_set(topic, wire.encode_status(gone), 1, retain=True)
        client.connect("127.0.0.1", broker.port, 30)
        client.loop_start()
        here = Status("device-1", True, connection, "0.1.0", "boot-1", None)
        client.publish(topic, wire.encode_status(here), 1, retain=True)
        return client

    client = will(1)
    until(lambda: online() == [True])
    sock = client.socket()
    assert sock is not None
    client.loop_stop()
    sock.close()  # the device's power goes: only the last will tells
    until(lambda: online() == [False])
    client = will(2)
    until(lambda: online() == [True])
    collector.kill()
    client.disconnect()
    client.loop_stop()


def test_a_status_from_before_the_start_is_heard(broker: Broker, make: Make) -> None:
    with Device(broker.port) as device:
        status = Status("device-1", True, 1, "0.1.0", "boot-1", Clock(5, WALL + 5, True))
        payload = wire.encode_status(status)
        sent = device.client.publish(wire.topic("device-1", "status"), payload, 1, retain=True)
        sent.wait_for_publish(10)
        collector = make().start()
        (row,) = until(lambda: rows(collector.url, tables.device_state))
    assert row["online"]
    assert row["clock_synchronised"]


def test_a_locked_database_stops_nothing_but_the_acknowledgements(
    broker: Broker, make: Make
) -> None:
    collector = make("--queue-messages", "20").start()
    file = collector.url.removeprefix("sqlite:///")
    with Device(broker.port) as device:
        device.send(a_batch(1))
        device.settle()
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        device.send(*(a_batch(number) for number in range(2, 200)))
        until(lambda: "locked" in collector.get("/readyz")[1], 15)
        assert collector.get("/readyz")[0] == 503
        assert collector.get("/healthz")[0] == 200
        assert len(device.acknowledged) == 1
        other.execute("ROLLBACK")
        other.close()
        device.settle(30)
    assert count(collector.url, tables.turn) == 199
    until(collector.ready)


@pytest.mark.slow
def test_a_queue_that_stays_full_makes_the_collector_leave_and_come_back(
    mosquitto: Broker, tmp_path: Path
) -> None:
    collector = Collector(mosquitto.port, tmp_path, "--queue-messages", "2").start()
    other = sqlite3.connect(collector.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        with Device(mosquitto.port) as device:
            other.execute("BEGIN IMMEDIATE")
            device.send(*(a_batch(number) for number in range(1, 100)))
            until(lambda: "leaving the broker" in collector.log.read_text(), 20)
            other.execute("ROLLBACK")
            device.settle(30)
        assert count(collector.url, tables.turn) == 99
    finally:
        other.close()
        collector.kill()


def test_what_was_queued_at_the_stop_is_stored_and_acknowledged(broker: Broker, make: Make) -> None:
    collector = make("--group-wait-ms", "1000", "--group-messages", "1000").start()
    passed: list[str] = []
    with Device(broker.port) as device, Device(broker.port, "somebody-else") as other:
        subscribed: list[bool] = []
        other.client.on_message = lambda _client, _data, message: passed.append(message.topic)
        other.client.on_subscribe = lambda *_: subscribed.append(True)
        other.client.subscribe(wire.topic("+", "up"), 1)
        until(lambda: subscribed, 10, "the subscription is there")
        device.send(*(a_batch(number) for number in range(1, 50)))
        until(lambda: len(passed) >= 49, 10, "the broker has passed all of them on")
        assert collector.stop() < 5
        stored = count(collector.url, tables.turn)
        assert stored > 0
        until(lambda: len(device.acknowledged) == stored)
    assert "collector stopped" in collector.log.read_text()


def test_it_stops_within_five_seconds_while_the_database_is_locked(
    mosquitto: Broker, tmp_path: Path
) -> None:
    collector = Collector(mosquitto.port, tmp_path).start()
    other = sqlite3.connect(collector.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Device(mosquitto.port) as device:
        device.send(a_batch(1))
        until(lambda: collector.get("/readyz")[0] == 503, 10)
        assert collector.stop() < 5
    other.close()


def test_a_removed_database_ends_it_and_nothing_is_acknowledged(
    mosquitto: Broker, tmp_path: Path
) -> None:
    collector = Collector(mosquitto.port, tmp_path).start()
    Path(collector.url.removeprefix("sqlite:///")).unlink()
    with Device(mosquitto.port) as device:
        device.send(a_batch(1))
        assert collector.process is not None
        assert collector.process.wait(10) == 1
        assert not device.acknowledged
    assert "removed or replaced" in collector.log.read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_survived_and_nothing_is_acknowledged_meanwhile(
    mosquitto: Broker, small_disk: Path
) -> None:
    collector = Collector(mosquitto.port, small_disk).start()
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(b"x" * max(0, free - 100_000))
    try:
        with Device(mosquitto.port) as device:
            long = [a_turn(f"turn-{place}", error="e" * 100) for place in range(60)]
            for number in range(1, 30):
                some = [a_turn(f"{turn.id}-{number}") for turn in long]
                device.send(a_batch(number, some))
            until(lambda: "full" in collector.get("/readyz")[1], 20)
            stored, acknowledged = count(collector.url, tables.turn), len(device.acknowledged)
            assert stored <= acknowledged * 60
            ballast.unlink()
            device.settle(30)
        assert count(collector.url, tables.turn) == 29 * 60
        until(collector.ready)
    finally:
        collector.kill()


def test_health_answers_no_other_path(broker: Broker, make: Make) -> None:
    collector = make().start()
    assert collector.get("/")[0] == 404
    with socket.create_connection(("127.0.0.1", collector.health_port)) as slow:
        slow.sendall(b"GET /hea")
        until(lambda: collector.get("/healthz")[0] == 200, 10, "a slow client is cut off")


@pytest.mark.slow
def test_slow_clients_of_health_hold_up_nobody(mosquitto: Broker, tmp_path: Path) -> None:
    collector = Collector(mosquitto.port, tmp_path).start()
    slow = [socket.create_connection(("127.0.0.1", collector.health_port)) for _ in range(20)]
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.3):
            for client in slow:
                with contextlib.suppress(OSError):
                    client.sendall(b"G")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        began = time.monotonic()
        assert collector.get("/readyz")[0] == 200
        assert time.monotonic() - began < 1
        slow += [socket.create_connection(("127.0.0.1", collector.health_port)) for _ in range(3)]
        assert collector.stop() < 5
    finally:
        stop.set()
        dripping.join()
        collector.kill()
        for client in slow:
            client.close()


def test_a_broker_that_drops_us_after_the_subscription_is_left_alone_more_and_more(
    tmp_path: Path,
) -> None:
    accepted: list[float] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            accepted.append(time.monotonic())
            with client:
                client.settimeout(2)
                client.recv(4096)
                client.sendall(b"\x20\x03\x00\x00\x00")
                identifier = client.recv(4096)[2:4]
                client.sendall(b"\x90\x06" + identifier + b"\x00\x01\x01\x00")
                client.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        collector = Collector(listener.getsockname()[1], tmp_path).start(ready=False)
        try:
            until(lambda: len(accepted) == 4, 20)
            pauses = [b - a for a, b in itertools.pairwise(accepted)]
            assert pauses[2] > 2, "half of 4 s at least"
        finally:
            collector.kill()
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert "connected to the broker" not in collector.log.read_text()


def test_a_status_far_ahead_is_put_aside_and_pins_nothing(broker: Broker, make: Make) -> None:
    collector = make().start()
    with Device(broker.port) as device:
        for connection in (1 << 60, 1000, 7):
            status = Status("device-1", True, connection, "0.1.0", f"boot-{connection}", None)
            device.publish(wire.encode_status(status), "status")
        until(
            lambda: [row["boot"] for row in rows(collector.url, tables.device_state)] == ["boot-7"]
        )
    assert count(collector.url, tables.dead_letter) == 1


def test_without_a_broker_it_waits_for_one_and_is_not_ready(tmp_path: Path) -> None:
    collector = Collector(free_port(), tmp_path).start(ready=False)
    until(lambda: "not connected" in collector.get("/readyz")[1])
    assert collector.get("/readyz")[0] == 503
    assert collector.stop() < 5


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (("--database", "nonsense"), 2, "database: not a database URL"),
        (("--database", "sqlite:////nowhere/x.db"), 2, "/nowhere"),
        (("--state-folder", "/proc/nowhere"), 2, "state_folder"),
        (("--broker-password-file", "/nowhere", "--broker-user", "u"), 2, "broker_password_file"),
        (("--queue-messages", "0"), 2, "queue"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, flags: tuple[str, ...], status: int, says: str
) -> None:
    fallback = (
        ()
        if "--database" in flags or "--state-folder" in flags
        else ("--state-folder", str(tmp_path))
    )
    found, message = refused_start(*flags, *fallback)
    assert found == status
    assert says in message


def test_a_health_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, message = refused_start("--state-folder", str(tmp_path), "--health-port", str(port))
    assert status == 1
    assert f"health_port: cannot listen on 127.0.0.1:{port}" in message


def test_mqtt_311_works_as_well(mosquitto: Broker, tmp_path: Path) -> None:
    collector = Collector(mosquitto.port, tmp_path, "--broker-protocol", "3.1.1").start()
    try:
        with Device(mosquitto.port, protocol="3.1.1") as device:
            device.send(a_batch(1))
            device.settle()
        assert count(collector.url, tables.turn) == 1
    finally:
        collector.kill()
