"""`decodewatch broker run`: the embedded MQTT broker (rumqttd, from the package iotcore).

For the loopback and for trusted networks: it knows users and passwords but no access by topic, and
no TLS. It keeps nothing on disk; what is retained is published again by who published it.

rumqttd reads one MQTT version a listener, so MQTT 5 and 3.1.1 have a port each. It has no way to be
stopped but the end of its process, and after a panic of its router the process lives on and serves
nobody; this program therefore sends itself a message through it now and then, and ends with status
1 where that fails, so that whoever supervises it starts it again.
"""

import argparse
import json
import logging
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from iotcore.iotcore import IotCoreBroker

from decodewatch.collector import roundtrip
from decodewatch.collector.addresses import check_listen, connectable, read_users, resolve
from decodewatch.collector.errors import ServerError
from decodewatch.shared import lifecycle, logs, settings, wire
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.cli import EXIT_FAILURE, add_command
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.settings import setting

_log = logs.get(__name__)

CHECK_EVERY_S = 5.0
CHECK_WITHIN_S = 3.0  # so that a stop in the middle of a check still ends within 5 s
CHECKS_BEFORE_END = 3
# Above what a batch may be, so that the collector can refuse an oversized one by name and the
# device stops sending it; a client that sends more than this is cut off.
MAX_PAYLOAD = 4 * wire.MAX_SENT

# rumqttd keeps the newest messages of every subscription in memory, up to segments x size: plenty
# for the batches of the whole fleet, little for the topics that every device has.
_CONFIG = """\
id = 0
[router]
id = 0
max_connections = {connections}
max_outgoing_packet_count = 200
max_segment_size = 32768
max_segment_count = 2
[router.custom_segment.'{root}/+/up']
max_segment_size = 16777216
max_segment_count = 4
"""
_LISTENER = """\
[{version}.1]
name = "{version}"
listen = "{address}"
next_connection_delay_ms = 1
[{version}.1.connections]
connection_timeout_ms = 10000
max_payload_size = {payload}
max_inflight_count = 200
"""


@dataclass(frozen=True)
class EmbeddedSettings:
    """Settings of `decodewatch broker run`."""

    listen_host: str = setting(
        "127.0.0.1", "address to listen on; other than the loopback only with users_file"
    )
    listen_port: int = setting(1883, "port for MQTT 5", low=1, high=65535)
    listen_port_311: int | None = setting(None, "port for MQTT 3.1.1", low=1, high=65535)
    users_file: Path | None = setting(
        None, "file of who may connect, one user:password a line; without it anyone may"
    )
    connections: int = setting(10_000, "the most clients at once", low=1, high=100_000)
    log_level: str = setting("info", "what to log", choices=logs.LEVELS)
    log_format: str = setting("text", "form of a line of the log", choices=logs.FORMATS)


def configuration(chosen: EmbeddedSettings, users: Mapping[str, str]) -> str:
    """rumqttd's own configuration, as TOML. Raises SettingsError."""
    host = resolve(chosen.listen_host)
    shown_host = f"[{host}]" if ":" in host else host
    ports = {"v5": chosen.listen_port}
    if chosen.listen_port_311 is not None:
        ports["v4"] = chosen.listen_port_311
    text = _CONFIG.format(connections=chosen.connections, root=wire.ROOT)
    for version, port in ports.items():
        text += _LISTENER.format(
            version=version, address=f"{shown_host}:{port}", payload=MAX_PAYLOAD
        )
        if users:
            text += f"[{version}.1.connections.auth]\n"
            text += "".join(f"{_string(a)} = {_string(b)}\n" for a, b in users.items())
    return text


def _string(text: str) -> str:
    # A JSON string of printable text is a TOML string, but for JSON's escapes of what is not ASCII.
    return json.dumps(text, ensure_ascii=False)


class _Refusals(logging.Handler):
    """Passes on why rumqttd turned a client away; all else that it logs is noise for developers."""

    def emit(self, record: logging.LogRecord) -> None:
        why = record.getMessage()
        if "InvalidProtocolLevel" in why:
            why = "MQTT version of another listener: 5 on listen_port, 3.1.1 on listen_port_311"
        elif not why.startswith("Error while"):
            return
        _log.warning("client refused", every=60, why=why)


def _quieten() -> None:
    # rumqttd wraps each message in spans of level "error"; at CRITICAL they cost nothing.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    logging.getLogger("tracing").setLevel(logging.CRITICAL)
    logging.getLogger("iotcore").setLevel(logging.WARNING)
    server = logging.getLogger("rumqttd.server.broker")
    server.setLevel(logging.ERROR)
    server.handlers[:] = [_Refusals()]
    server.propagate = False


class Embedded:
    """The broker inside this process; once started it lives as long as the process does.

    Raises SettingsError where the settings make no broker.
    """

    def __init__(self, chosen: EmbeddedSettings) -> None:
        users = read_users(chosen.users_file) if chosen.users_file is not None else {}
        check_listen(chosen.listen_host, authenticated=bool(users))
        self._credentials: tuple[str, str] | None = None
        if users:
            self._credentials = (f"watch-{secrets.token_hex(8)}", secrets.token_hex(16))
            users[self._credentials[0]] = self._credentials[1]
        self._host = connectable(chosen.listen_host)
        self._port = chosen.listen_port
        with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
            file.write(configuration(chosen, users))
            file.flush()
            try:
                self._broker = IotCoreBroker(config_path=file.name)
            except ValueError:
                # What it says quotes the file, and with it the passwords.
                raise SettingsError(
                    "listen_host, listen_port, listen_port_311, users_file: the broker cannot read "
                    "what is made of them; accepted are printable users and passwords"
                ) from None

    def start(self, seconds: float = 10.0) -> None:
        """Start it and wait until it serves. Raises ServerError where a port is taken."""
        _quieten()
        try:
            self._broker.check_ports()
        except OSError as error:
            raise ServerError(f"listen_host, listen_port or listen_port_311: {error}") from None
        self._broker.start()
        deadline = time.monotonic() + seconds
        while (why := self.check(deadline - time.monotonic())) is not None:
            if time.monotonic() > deadline:
                raise ServerError(f"the broker does not serve: {why}")
            time.sleep(0.02)

    def check(self, seconds: float) -> str | None:
        """Send a message through the broker: None where it came back, else why not."""
        client = make_client(BrokerSettings(), f"decodewatch-watch-{secrets.token_hex(8)}")
        if self._credentials is not None:
            client.username_pw_set(*self._credentials)
        return roundtrip.check(client, self._host, self._port, "broker", max(seconds, 0.1))

    def addresses(self) -> list[str]:
        """Where it listens, as host:port."""
        return list(self._broker.listeners())


def _watch(broker: Embedded, stop: lifecycle.Stop) -> int:
    """Wait for the stop; the exit status."""
    failed = 0
    while not stop.wait(CHECK_EVERY_S):
        why = broker.check(CHECK_WITHIN_S)
        failed = 0 if why is None else failed + 1
        if why is not None:
            _log.warning("broker does not serve", why=why, failed=failed)
        if failed == CHECKS_BEFORE_END:
            _log.error("broker given up, to be started again", why=why)
            return EXIT_FAILURE
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = settings.load(EmbeddedSettings, "broker", vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    stop = lifecycle.Stop().install()
    broker = Embedded(chosen)
    broker.start()
    _log.info("broker ready", listeners=",".join(broker.addresses()))
    lifecycle.notify("READY=1")
    _end(_watch(broker, stop))


def _end(status: int) -> NoReturn:
    """Leave without the interpreter's clean-up: rumqttd's threads may call into it any time."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch broker`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = add_command(
        commands, "run", "serve MQTT until stopped, on the loopback unless given users"
    )
    settings.add_flags(one, EmbeddedSettings)
    one.set_defaults(run=run)
