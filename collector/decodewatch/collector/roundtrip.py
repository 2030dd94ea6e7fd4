"""Whether an MQTT broker really works: a message sent to oneself that comes back.

An accepted TCP connection proves little: a broker whose router has died goes on accepting, and
answers nobody.
"""

import os
import queue
from typing import TYPE_CHECKING, Any

from decodewatch.shared.broker import why_ended

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

# Outside of `wire.ROOT`: nobody's device. One topic a role, never one a check: a broker may keep
# state for every topic that it has seen.
ROOT = "decodewatch/health"


def check(client: "Client", host: str, port: int, role: str, seconds: float) -> str | None:
    """Connect, subscribe, publish, and wait for the message: None where it came, else why not.

    Takes at most about `seconds`. `client` is a new one, and done with afterwards; `role` names
    the topic below ROOT.
    """
    topic = f"{ROOT}/{role}"
    token = os.urandom(8)
    outcome: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    missing = "an answer to the connection"
    answered = False

    def on_connect(client: "Client", _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        nonlocal missing, answered
        answered = True
        if code.is_failure:
            outcome.put(f"refused: {code}")
        else:
            missing = "an answer to the subscription"
            client.subscribe(topic, 0)

    def on_disconnect(_client: "Client", _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        outcome.put(why_ended(code, answered=answered))

    def on_subscribe(client: "Client", *_rest: Any) -> None:
        nonlocal missing
        missing = "a message to itself"
        client.publish(topic, token, 0)

    def on_message(_client: "Client", _data: Any, message: "MQTTMessage") -> None:
        if message.payload == token:
            outcome.put(None)

    client.connect_timeout = seconds
    client.on_connect, client.on_disconnect = on_connect, on_disconnect
    client.on_subscribe, client.on_message = on_subscribe, on_message
    try:
        client.connect(host, port)
    except (OSError, ValueError) as error:
        return f"cannot connect: {error}"
    client.loop_start()
    try:
        return outcome.get(timeout=seconds)
    except queue.Empty:
        return f"{missing} did not come within {seconds:g} s"
    finally:
        client.disconnect()
        client.loop_stop()
