"""Whether an MQTT broker really works: a message sent to oneself that comes back.

An accepted TCP connection proves little: a broker whose router has died goes on accepting, and
answers nobody.
"""

import os
import threading
from typing import TYPE_CHECKING, Any

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
    state = ["no answer to the connection"]
    came = threading.Event()

    def on_connect(client: "Client", _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            state[0] = f"refused: {code}"
        else:
            state[0] = "no answer to the subscription"
            client.subscribe(topic, 0)

    def on_subscribe(client: "Client", *_rest: Any) -> None:
        state[0] = "a message to itself did not come back"
        client.publish(topic, token, 0)

    def on_message(_client: "Client", _data: Any, message: "MQTTMessage") -> None:
        if message.payload == token:
            came.set()

    client.connect_timeout = seconds
    client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
    try:
        client.connect(host, port)
    except (OSError, ValueError) as error:
        return f"cannot connect: {error}"
    return _await(client, came, state, seconds)


def _await(client: "Client", came: threading.Event, state: list[str], seconds: float) -> str | None:
    client.loop_start()
    try:
        return None if came.wait(seconds) else f"{state[0]} within {seconds:g} s"
    finally:
        client.disconnect()
        client.loop_stop()
