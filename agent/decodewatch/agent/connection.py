"""One connection to the broker: a paho client of its own, driven by a thread of its own.

Each connection has a new client, so that nothing of an earlier one is left: its id, its last will
with the connection's number, and no message that paho would send again by itself. The thread does
what may block (names, TLS, the network); everything else happens in the agent's main loop, which
is told by `wake` that there is something to look at.

This is the agent's only import of paho.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from decodewatch.shared import logs
from decodewatch.shared.broker import BrokerSettings, make_client, why_ended
from decodewatch.shared.wire import MAX_SENT

log = logs.get(__name__)

# What paho may hold that the broker has not confirmed; the uplink's window is smaller.
_QUEUE = 64
_LOOP_S = 1.0
_ANSWER_S = 20.0
_CLOSE_S = 2.0
_HEARD_BYTES = 1024 * 1024
# What a broker of MQTT 5 may send us in one packet. One of 3.1.1 may send 256 MiB.
_MOST_PACKET = 2 * MAX_SENT


class Sending:
    """One message on its way to the broker."""

    __slots__ = ("_info",)

    def __init__(self, info: MQTTMessageInfo) -> None:
        self._info = info

    @property
    def confirmed(self) -> bool:
        """Whether the broker says that it has it; that is no word of any collector."""
        return self._info.is_published()


class Heard:
    """Payloads on their way from the connection's thread to the main loop, in order.

    At most `_HEARD_BYTES` of them; the oldest go first, which costs no more than sending the
    batches again that they acknowledge.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: deque[bytes] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._payloads)

    def put(self, payload: bytes) -> None:
        """Add one; one that no acknowledgement can be is not kept."""
        if len(payload) > MAX_SENT:
            log.warning("acknowledgement too long", every=600, bytes=len(payload))
            return
        with self._lock:
            self._payloads.append(payload)
            self._bytes += _size(payload)
            while self._bytes > _HEARD_BYTES:
                self._bytes -= _size(self._payloads.popleft())

    def take(self) -> bytes | None:
        """The oldest, None where there is none."""
        with self._lock:
            if not self._payloads:
                return None
            payload = self._payloads.popleft()
            self._bytes -= _size(payload)
            return payload


def _size(payload: bytes) -> int:
    return len(payload) + 64  # an empty one takes memory too


class Connection:
    """Made unconnected; `start` begins. Its methods never block, but for `join`."""

    def __init__(self, settings: BrokerSettings, device: str, wake: Callable[[], None]) -> None:
        """Raises SettingsError where a password, certificate or key file cannot be used."""
        self.accepted = False
        """Whether the broker has let us in."""
        self.closing = False
        """Whether we have asked it to end."""
        self.ended = False
        """Whether it is over and the thread done; `reason` then says why, where that is known."""
        self.reason = ""
        self.acknowledgements = Heard()
        """Payloads of the topic `ack`, for the main loop."""
        self._settings = settings
        self._wake = wake
        self._end_at = float("inf")
        self._receive_maximum = _QUEUE
        # Each has one writer: the main loop, and the thread.
        self._published = 0
        self._confirmed = 0
        self._client = client = make_client(settings, f"{device}-{os.urandom(4).hex()}")
        client.max_inflight_messages_set(_QUEUE)
        client.max_queued_messages_set(_QUEUE)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        # Without this paho would write to the socket from the thread that publishes, and the two
        # could interleave. With it a publication is queued, and our own thread woken to send it.
        client.on_socket_register_write = _leave_to_the_thread
        self._thread = threading.Thread(target=self._run, name="uplink", daemon=True)

    def start(self, will_topic: str, will: bytes) -> None:
        """Connect in the background; `will` is what the broker publishes if we die."""
        self._client.will_set(will_topic, will, qos=1, retain=True)
        self._thread.start()

    def subscribe(self, topic: str) -> None:
        """Have what comes on a topic put into `acknowledgements`."""
        self._client.subscribe(topic, qos=0)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> Sending | None:
        """Send with QoS 1; None where the connection, or the broker, does not take it now."""
        if self._published - self._confirmed >= self._receive_maximum:
            return None
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return None
        self._published += 1
        return Sending(info)

    def close(self, seconds: float = _CLOSE_S) -> None:
        """Disconnect in good order, without the last will, if that is possible within so long."""
        self.closing = True
        self._end_at = time.monotonic() + seconds
        self._client.disconnect()

    def drop(self) -> None:
        """End the connection so that the broker publishes the last will."""
        self.closing = True
        self._end_at = 0.0

    def join(self, seconds: float) -> bool:
        """Wait for the thread; whether it has ended. It cannot while it waits for a name server."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # In the connection's thread.

    def _run(self) -> None:
        client = self._client
        settings = self._settings
        answer_by = time.monotonic() + _ANSWER_S
        try:
            client.connect(
                *(settings.broker_host, settings.broker_port, settings.broker_keepalive_s),
                properties=_asked_of(client),
            )
            while time.monotonic() < self._end_at:
                code = client.loop(_LOOP_S)
                if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
                    self.reason = self.reason or code.name
                    break
                if not self.accepted and time.monotonic() > answer_by:
                    self.reason = self.reason or "the broker does not answer"
                    break
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            self.reason = str(error) or type(error).__name__
        except Exception as error:
            # Whatever a broker's bytes do to paho costs this connection, not all later ones.
            self.reason = f"{type(error).__name__}: {error}"
            log.error("connection failed in an unforeseen way", every=3600, reason=self.reason)
        finally:
            open_socket = client.socket()
            if open_socket is not None:
                open_socket.close()
            self.ended = True
            self._wake()

    def _on_connect(
        self,
        client: Client,
        data: Any,
        flags: ConnectFlags,
        code: ReasonCode,
        answer: Properties | None,
    ) -> None:
        if code.is_failure:
            self.reason = f"refused: {code}"
            self._end_at = 0.0
            return
        self._receive_maximum = min(_QUEUE, getattr(answer, "ReceiveMaximum", _QUEUE))
        self.accepted = True
        self._wake()

    def _on_disconnect(
        self,
        client: Client,
        data: Any,
        flags: Any,
        code: ReasonCode,
        answer: Properties | None,
    ) -> None:
        self.reason = self.reason or why_ended(code, answered=self.accepted)

    def _on_subscribe(
        self,
        client: Client,
        data: Any,
        mid: int,
        codes: list[ReasonCode],
        answer: Properties | None,
    ) -> None:
        for code in codes:
            if code.is_failure:
                log.error("broker forbids to hear acknowledgements", every=600, reason=str(code))

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self.acknowledgements.put(bytes(message.payload))
        self._wake()

    def _on_publish(
        self,
        client: Client,
        data: Any,
        mid: int,
        code: ReasonCode,
        answer: Properties | None,
    ) -> None:
        self._confirmed += 1
        if code.is_failure:
            # The spool still has it, and it will be sent again when its time comes.
            log.warning("publication refused by the broker", every=600, reason=str(code))
        self._wake()


def _asked_of(client: Client) -> Properties | None:
    """What we ask of a broker of MQTT 5: no packet longer than we would read."""
    if client.protocol != MQTTProtocolVersion.MQTTv5:
        return None
    asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.MaximumPacketSize = _MOST_PACKET
    return asked


def _leave_to_the_thread(client: Client, data: Any, channel: Any) -> None:
    """Nothing: the thread looks for what is to be written by itself."""
