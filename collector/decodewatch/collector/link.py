"""The collector's connection to the broker: messages into the queue, acknowledgements out."""

import os
import queue
import random
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from decodewatch.collector import roundtrip
from decodewatch.collector.settings import CollectorSettings
from decodewatch.collector.storage.arrivals import Message
from decodewatch.collector.storage.store import Written
from decodewatch.shared import logs, wire
from decodewatch.shared.broker import make_client, why_ended
from decodewatch.shared.clock import wall_us

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

_log = logs.get(__name__)

UP = f"$share/decodewatch/{wire.ROOT}/+/up"
STATUS = f"{wire.ROOT}/+/status"
HEALTH = f"{roundtrip.ROOT}/collector"

ROUND_TRIP_EVERY_S = 5.0
ROUND_TRIP_LATE_S = 15.0
"""Without a message to itself for so long the collector is not ready; for twice that, it connects
anew: brokers have been seen to fall silent on one connection."""
FULL_S = 5.0
"""How long reading waits for a full queue before the collector leaves the broker."""
RECONNECT_S = (1.0, 30.0)


def backoff(attempt: int, bounds: tuple[float, float]) -> float:
    """Seconds before attempt number `attempt`, from 1: doubled each time, half of it at random.

    At random, so that not all that were cut off come back at the same moment.
    """
    low, high = bounds
    whole = min(high, low * 2.0 ** min(attempt - 1, 20))
    return whole / 2 + random.random() * whole / 2


class Link:
    """One client of the broker. `run` is the body of the one thread that reads and writes it."""

    def __init__(self, settings: CollectorSettings, arrived: "queue.Queue[Message]") -> None:
        """Nothing is connected yet. Raises SettingsError where credentials or TLS are wrong."""
        self._settings = settings
        self._arrived = arrived
        self._stop = threading.Event()  # read no more
        self._done = threading.Event()  # say no more
        self._id = f"decodewatch-collector-{os.urandom(8).hex()}"
        self._client = self._make()
        self._answered = False  # by the broker, on this connection
        self._subscribed = False
        self._overrun = False  # the queue stayed full: what still comes is let go
        self._sent_at = 0.0
        self._came_at: float | None = None  # when a message to ourselves last came back

    def _make(self) -> "Client":
        client = make_client(self._settings, self._id)
        client.connect_timeout = 5.0
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        # Without this, a thread that publishes also writes the socket, beside the one that reads.
        client.on_socket_register_write = lambda *_: None
        return client

    def trouble(self) -> str | None:
        """Why no message can come now; None where they do."""
        if not self._subscribed:
            return "not connected to the broker"
        if self._came_at is None or time.monotonic() - self._came_at > ROUND_TRIP_LATE_S:
            return "the broker does not answer"
        return None

    def stop(self) -> None:
        """Read no more; what is stored from now on is still acknowledged."""
        self._stop.set()

    def leave(self) -> None:
        """Say no more either, and leave the broker."""
        self._stop.set()
        self._done.set()

    def acknowledge(self, written: Written) -> None:
        """Tell the devices what is committed; where that is lost, they send again and are told."""
        if not self._subscribed:
            return
        for device, acknowledged in written.by_device().items():
            self._client.publish(wire.topic(device, "ack"), wire.encode_ack(acknowledged), qos=0)

    def run(self) -> None:
        """Connect, read until asked to stop, and connect again whenever the connection ends."""
        attempt = 0
        while not self._stop.is_set():
            self._answered = self._subscribed = False
            self._came_at = None
            try:
                if self._connect():
                    self._read()
            except Exception:
                # Whatever a stranger's message does to paho costs this connection, not the
                # collector.
                _log.error("connection failed", every=60, trace=traceback.format_exc())
            # A subscription proves little: a broker may grant it and then drop us, again and again.
            attempt = 1 if self._came_at is not None else attempt + 1
            self._subscribed = False
            self._wait_for_room()
            self._stop.wait(backoff(attempt, RECONNECT_S))

    def _connect(self) -> bool:
        host, port = self._settings.broker_host, self._settings.broker_port
        try:
            self._client.connect(host, port, self._settings.broker_keepalive_s)
        except (OSError, ValueError) as error:
            _log.warning("broker not reached", every=60, host=host, port=port, why=error)
            return False
        return True

    def _read(self) -> None:
        """Serve the connection until it ends, the queue stays full, or there is no more to say."""
        client, reading = self._client, True
        began = self._sent_at = time.monotonic()
        while client.loop(0.25) == 0 and not (self._done.is_set() or self._overrun):
            if reading and self._stop.is_set():
                reading = False
                client.unsubscribe(UP)  # the others of the group get it from now on
            now = time.monotonic()
            if now - (self._came_at or began) > 2 * ROUND_TRIP_LATE_S:
                _log.warning("broker does not answer; connecting anew", every=60)
                break
            if self._subscribed and now - self._sent_at > ROUND_TRIP_EVERY_S:
                self._sent_at = now
                client.publish(HEALTH, self._id, qos=0)
        client.disconnect()
        client.loop(0.1)

    def _wait_for_room(self) -> None:
        while self._overrun and not self._stop.wait(0.1):
            self._overrun = self._arrived.qsize() > self._settings.queue_messages // 2

    def _on_connect(self, client: "Client", _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        self._answered = True
        if code.is_failure:
            _log.error("broker refused the connection", every=60, why=str(code))
            return
        client.subscribe([(UP, 1), (STATUS, 1), (HEALTH, 0)])

    def _on_subscribe(
        self, client: "Client", _data: Any, _mid: int, codes: Any, _more: Any
    ) -> None:
        refused = [str(code) for code in codes if code.is_failure]
        if refused:
            _log.error("broker refused a subscription", every=60, why=", ".join(refused))
            client.disconnect()
            return
        self._subscribed = True
        self._sent_at = time.monotonic()
        client.publish(HEALTH, self._id, qos=0)

    def _on_disconnect(
        self, _client: "Client", _data: Any, _flags: Any, code: Any, _more: Any
    ) -> None:
        if not self._done.is_set():
            why = why_ended(code, answered=self._answered)
            _log.warning("connection to the broker ended", every=60, why=why)

    def _on_message(self, _client: "Client", _data: Any, message: "MQTTMessage") -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return  # not one of ours: a device id is ASCII
        if topic == HEALTH:
            if message.payload == self._id.encode():
                if self._came_at is None:
                    host = self._settings.broker_host
                    _log.info("connected to the broker", every=10, host=host, client=self._id)
                self._came_at = time.monotonic()
            return
        item = Message.of(topic, bytes(message.payload), wall_us(), retained=message.retain)
        deadline = time.monotonic() + FULL_S
        while not (self._overrun or self._stop.is_set()):
            try:
                self._arrived.put(item, timeout=0.1)
                return
            except queue.Full:
                if time.monotonic() > deadline:
                    self._overrun = True
                    _log.warning(
                        "queue stayed full; leaving the broker until it is half empty", every=60
                    )
