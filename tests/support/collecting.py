"""A collector process that a test can kill, a device that sends like an agent, and its batches."""

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Table, create_engine, func, select

from decodewatch.shared import wire
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Record
from support.brokers import free_port
from support.records import a_sample, a_turn
from support.waiting import until

WALL = 1_760_000_000_000_000  # some day in October 2025, in microseconds
SYNCHRONISED = wire.Clock(60_000_000, WALL + 60_000_000, True)


def a_batch(
    number: int = 1,
    records: Sequence[Record] | None = None,
    *,
    device: str = "device-1",
    stream: str = "stream-1",
    boot: str = "boot-1",
    clock: wire.Clock = SYNCHRONISED,
    previous: str | None = None,
) -> wire.Batch:
    """A batch of one turn, named after device, stream and number, or of the given records."""
    if records is None:
        records = [a_turn(f"{stream}-{number}", t=5_000_000 + number)]
    return wire.Batch(device, stream, previous, number, boot, clock, tuple(records))


def a_mixed_batch(number: int, rows: int, device: str = "device-1") -> wire.Batch:
    """A batch of one turn in ten records, the others being samples."""
    records: list[Record] = []
    for place in range(rows):
        t = (number * rows + place) * 1000
        turn = place % 10 == 0
        records.append(a_turn(f"turn-{number}-{place}", t=t) if turn else a_sample(t))
    return a_batch(number, records, device=device)


class Collector:
    """`decodewatch collector run` on a database, to be started and killed at will."""

    def __init__(self, broker_port: int, folder: Path, *flags: str, url: str | None = None) -> None:
        self.url = url or f"sqlite:///{folder}/decodewatch.db"
        self.health_port = free_port()
        self.log = folder / f"collector-{self.health_port}.log"
        self._command = [
            *(sys.executable, "-m", "decodewatch.shared.cli", "collector", "run"),
            *("--broker-port", str(broker_port), "--database", self.url),
            *("--health-port", str(self.health_port), *flags),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, ready: bool = True) -> "Collector":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        if ready:
            until(self.ready, 20, "the collector is ready")
        return self

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the health server's answer; 0 where there is none."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.health_port}{path}", timeout=5
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """Stop it in good order; how many seconds that took."""
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(15)
            self.process = None


class Device:
    """Sends batches as an agent does: QoS 1, and again until the collector acknowledges them."""

    def __init__(self, port: int, name: str = "device-1", protocol: str = "5") -> None:
        self.name = name
        self.acknowledged: set[tuple[str, int]] = set()
        self._waiting: dict[tuple[str, int], bytes] = {}
        self._lock = threading.Lock()
        settings = BrokerSettings(broker_port=port, broker_protocol=protocol)
        self.client = make_client(settings, f"{name}-{uuid7()}")
        self.client.reconnect_delay_set(0.1, 0.5)  # type: ignore[arg-type]
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.connect_async("127.0.0.1", port)
        self._subscribed = threading.Event()
        self.client.on_subscribe = lambda *_: self._subscribed.set()

    def __enter__(self) -> "Device":
        self.client.loop_start()
        assert self._subscribed.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _on_connect(self, client: Any, *_: Any) -> None:
        client.subscribe([(wire.topic(self.name, "ack"), 0)])

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        for item in wire.decode_ack(message.payload):
            for first, last in item.ranges:
                with self._lock:
                    for number in range(first, last + 1):
                        self.acknowledged.add((item.stream, number))
                        self._waiting.pop((item.stream, number), None)

    def publish(self, payload: bytes, leaf: str = "up", *, retain: bool = False) -> None:
        """Send anything, once."""
        self.client.publish(wire.topic(self.name, leaf), payload, 1, retain)

    def send(self, *batches: wire.Batch) -> None:
        """Send batches now, and again whenever `resend` is called."""
        for batch in batches:
            payload = wire.encode_batch(batch)
            with self._lock:
                self._waiting[batch.stream, batch.number] = payload
            self.publish(payload)

    def resend(self) -> int:
        """Send what is not acknowledged again; how many batches that is."""
        with self._lock:
            waiting = list(self._waiting.values())
        for payload in waiting:
            self.publish(payload)
        return len(waiting)

    def settle(self, seconds: float = 20, every: float = 0.5) -> None:
        """Send again until all is acknowledged."""
        sent = time.monotonic()

        def done() -> bool:
            nonlocal sent
            if time.monotonic() - sent > every:
                sent = time.monotonic()
                self.resend()
            return not self._waiting

        until(done, seconds, f"{self.name}: all batches are acknowledged")


def rows(url: str, table: Table) -> list[dict[str, Any]]:
    """All rows of a table."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(table)).mappings()]
    finally:
        engine.dispose()


def count(url: str, table: Table) -> int:
    """How many rows a table has."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
    finally:
        engine.dispose()
