"""Real MQTT brokers that a test can start, kill and start again on the same port."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.waiting import until

KINDS = ("mosquitto", "rumqttd")

_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
"""


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def mosquitto_program() -> str:
    """The installed mosquitto; Debian puts it where a user's PATH may not look."""
    found = shutil.which(
        "mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    )
    assert found, "mosquitto is not installed: `make test` installs it"
    return found


class Broker:
    """One broker process; `kill` is SIGKILL, and `start` brings it back on the same port."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Broker":
        with (self._folder / f"{self.kind}.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        until(lambda: listens(self.port), 15, f"{self.kind} listens on {self.port}")
        return self

    def _command(self) -> list[str]:
        if self.kind == "mosquitto":
            file = self._folder / "mosquitto.conf"
            file.write_text(_MOSQUITTO.format(port=self.port))
            return [mosquitto_program(), "-c", str(file)]
        return [
            *(sys.executable, "-m", "decodewatch.shared.cli", "broker", "run"),
            *("--listen-port", str(self.port)),
        ]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(10)
            self._process = None
