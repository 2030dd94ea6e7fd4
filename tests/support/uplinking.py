"""An uplink with its main loop, and a small collector at the other side of a real broker."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from paho.mqtt.client import Client, MQTTMessage

from decodewatch.agent.uplink import Uplink
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.ids import uuid7
from decodewatch.shared.wire import (
    Acknowledged,
    Batch,
    Status,
    decode_batch,
    decode_status,
    encode_ack,
    topic,
)
from support.brokers import Broker
from support.spooling import now, open_spool

_T = TypeVar("_T")
DEVICE = "dev-1"


class Loop:
    """What the agent's main loop does for the uplink; `shift` moves its clock forward."""

    def __init__(self, folder: Path, settings: BrokerSettings) -> None:
        self.shift = 0.0
        self.spool = open_spool(folder / "spool.db")
        self._woken = threading.Event()
        self.uplink = Uplink(
            settings,
            device=DEVICE,
            agent_version="1.2.3",
            boot="boot-1",
            spool=self.spool,
            wake=self._woken.set,
            clock=now,
            monotonic=lambda: time.monotonic() + self.shift,
        )

    def until(self, probe: Callable[[], _T], seconds: float = 10, what: str = "") -> _T:
        """Run the loop until the probe answers with something true."""
        deadline = time.monotonic() + seconds
        while True:
            wait = self.uplink.tick()
            assert 0 <= wait <= 60
            answer = probe()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"not within {seconds} s: {what or probe}"
            self._woken.wait(min(wait, 0.02))
            self._woken.clear()

    def run(self, seconds: float) -> None:
        """Run the loop for so long."""
        deadline = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= deadline, seconds + 5)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return self.spool.depth()[0] == 0

    def close(self) -> None:
        """Stop the uplink, then the spool."""
        self.uplink.stop(3)
        self.spool.close()


class Collector:
    """Takes batches, and acknowledges those that `accepts` says so of."""

    def __init__(self, broker: Broker) -> None:
        self.accepts: Callable[[Batch], bool] = lambda batch: True
        self.batches: list[Batch] = []
        self.statuses: list[Status] = []
        self._ready = threading.Event()
        settings = BrokerSettings(broker_port=broker.port)
        self._client = make_client(settings, f"collector-{uuid7()}")
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._client.reconnect_delay_set(1, 1)
        self._client.connect_async("127.0.0.1", broker.port)
        self._client.loop_start()

    def wait(self) -> "Collector":
        """Wait until it hears what is published."""
        assert self._ready.wait(10)
        return self

    def acknowledge(self, *batches: Batch) -> None:
        """Acknowledge some batches now."""
        self.say(
            encode_ack([Acknowledged(one.stream, ((one.number, one.number),)) for one in batches])
        )

    def say(self, payload: bytes) -> None:
        """Publish anything as an acknowledgement."""
        self._client.publish(topic(DEVICE, "ack"), payload, qos=0)

    def numbers(self) -> list[int]:
        """The numbers of all batches that came, in order, those that came again too."""
        return [one.number for one in list(self.batches)]

    def online(self) -> list[int]:
        """The connection numbers of all online statuses."""
        return [one.connection for one in list(self.statuses) if one.online]

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: Client, *_: Any) -> None:
        client.subscribe([(topic("+", "up"), 1), (topic("+", "status"), 1)])

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        if message.topic.endswith("/status"):
            self.statuses.append(decode_status(payload))
            return
        batch = decode_batch(payload).batch
        self.batches.append(batch)
        if self.accepts(batch):
            self.acknowledge(batch)
