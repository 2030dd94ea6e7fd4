"""What the agent's benchmarks share: a broker, an agent, a collector that acknowledges, an app.

The broker is an installed Mosquitto, with TLS where asked and openssl is there to make its
certificate; else the embedded one.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from decodewatch.shared.wire import Acknowledged, Batch, decode_batch, encode_ack, topic

DEVICE = "bench-device"
_DECODE = """
import sys, time
from decodewatch.agent import DecodeMonitor
turns, pause_s, tokens = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
monitor = DecodeMonitor("bench", engine="plain")
def decode():
    for token in range(tokens):
        time.sleep(pause_s)
        yield token
for number in range(turns):
    with monitor.session("bench").turn(prompt_tokens=200) as turn:
        for token in turn.watch(decode()):
            pass
monitor.flush(10)
"""


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 15
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                sys.exit(f"no broker on port {port}")
            time.sleep(0.05)


def mosquitto() -> str | None:
    """The installed Mosquitto; Debian puts it where a user's PATH may not look."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Broker:
    """A broker that listens on `port`, and on `tls_port` where it can do TLS."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.tls_port: int | None = None
        self.certificate = folder / "broker.crt"
        program = mosquitto()
        if program is None:
            command = [
                *(sys.executable, "-m", "decodewatch.shared.cli", "broker", "run"),
                *("--listen-port", str(self.port)),
            ]
        else:
            listeners = f"listener {self.port} 127.0.0.1\nallow_anonymous true\n"
            key = folder / "broker.key"
            if self._make_certificate(key):
                self.tls_port = free_port()
                listeners += (
                    f"listener {self.tls_port} 127.0.0.1\n"
                    f"certfile {self.certificate}\nkeyfile {key}\n"
                )
                # Started by root, Mosquitto reads its files as another user.
                for file in (folder, key, self.certificate):
                    file.chmod(0o755)
            (folder / "mosquitto.conf").write_text(listeners)
            command = [program, "-c", str(folder / "mosquitto.conf")]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait_for(self.tls_port or self.port)

    def _make_certificate(self, key: Path) -> bool:
        if shutil.which("openssl") is None:
            return False
        command = [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(self.certificate)),
        ]
        return subprocess.run(command, capture_output=True).returncode == 0

    def close(self) -> None:
        """End the broker."""
        self._process.terminate()
        self._process.wait(10)


class Collector:
    """Acknowledges every batch of the device, and counts what it got."""

    def __init__(self, port: int) -> None:
        self.batches: list[Batch] = []
        self.payload_bytes = 0
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        self._client.subscribe(topic(DEVICE, "up"), 1)
        self._client.loop_start()

    def _take(self, client: Client, _: object, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        batch = decode_batch(payload).batch
        self.payload_bytes += len(payload)
        self.batches.append(batch)
        done = Acknowledged(batch.stream, ((batch.number, batch.number),))
        client.publish(topic(DEVICE, "ack"), encode_ack([done]))

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class Agent:
    """`decodewatch agent run` with folders of its own."""

    def __init__(self, folder: Path, port: int, *flags: str) -> None:
        self.socket = folder / "agent.sock"
        self.state = folder / "state"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "decodewatch.shared.cli", "agent", "run"),
                *("--device", DEVICE, "--state-folder", str(self.state)),
                *("--socket", str(self.socket), "--broker-port", str(port)),
                *("--log-level", "warning", *flags),
            ]
        )

    def close(self) -> None:
        """End the agent."""
        self.process.terminate()
        self.process.wait(10)

    def decode(self, turns: int, tokens_per_s: float, tokens: int) -> "subprocess.Popen[bytes]":
        """A wrapped application that decodes turns one after another at this pace."""
        return subprocess.Popen(
            [sys.executable, "-c", _DECODE, str(turns), str(1 / tokens_per_s), str(tokens)],
            env={**os.environ, "DECODEWATCH_SOCKET": str(self.socket)},
        )


class Meter:
    """Passes one TCP port on to another and counts the bytes of both directions."""

    def __init__(self, to_port: int) -> None:
        self.up = 0
        self.down = 0
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._to_port))
            for source, target, name in ((near, far, "up"), (far, near, "down")):
                ends = source, target, name
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        try:
            while data := source.recv(65536):
                setattr(self, name, getattr(self, name) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            target.close()  # one side has gone: so does the other
