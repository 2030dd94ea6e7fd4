"""`decodewatch up`: a small fleet's server in one command, broker, collector on SQLite, dashboard.

One supervisor and one folder of state. It listens on the loopback unless it is given another
address and the credentials that devices must show.
"""

import argparse
import fcntl
import getpass
import os
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from decodewatch.collector import roundtrip
from decodewatch.collector.addresses import (
    check_listen,
    check_port,
    connectable,
    read_users,
    resolve,
)
from decodewatch.collector.errors import ServerError
from decodewatch.collector.supervise import Child, Supervisor
from decodewatch.shared import lifecycle, logs, settings, wire
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.cli import require
from decodewatch.shared.database import default_database, state_folder
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.settings import setting

_log = logs.get(__name__)

BROKERS = ("embedded", "mosquitto")
LOOPBACK = "127.0.0.1"
_MOSQUITTO = """\
user {user}
persistence false
message_size_limit {payload}
max_inflight_messages 200
log_dest stderr
log_type error
log_type warning
allow_anonymous {anonymous}
"""


@dataclass(frozen=True)
class UpSettings:
    """What `decodewatch up` does. The dashboard listens on the loopback only."""

    state_folder: Path | None = setting(
        None,
        "folder of all that is kept; where it is not set: $STATE_DIRECTORY, else decodewatch below "
        "$XDG_DATA_HOME or ~/.local/share",
    )
    broker: str = setting(
        "embedded",
        "the broker: rumqttd inside decodewatch, or Mosquitto, installed",
        choices=BROKERS,
    )
    listen_host: str = setting(
        LOOPBACK, "address of the broker; other than the loopback only with users_file"
    )
    broker_port: int = setting(1883, "port of the broker", low=1, high=65535)
    broker_port_311: int | None = setting(
        None, "another port, for MQTT 3.1.1; Mosquitto needs none", low=1, high=65535
    )
    users_file: Path | None = setting(
        None, "file of who may connect to the broker, one user:password a line"
    )
    dashboard_port: int = setting(8501, "port of the dashboard", low=1, high=65535)
    health_port: int = setting(9464, "port of the collector's /readyz", low=1, high=65535)
    log_level: str = setting("info", "least severe log lines to write", choices=logs.LEVELS)
    log_format: str = setting("text", "form of a log line", choices=logs.FORMATS)


def server(chosen: UpSettings) -> list[Child]:
    """The programs, in the order in which they start.

    Makes the state folder, and in it the files that the broker and the collector need. Raises
    SettingsError, also where a package is not installed, and ServerError where a port is taken.
    """
    require("dashboard", *(("broker",) if chosen.broker == "embedded" else ()))
    users = read_users(chosen.users_file) if chosen.users_file is not None else {}
    check_listen(chosen.listen_host, authenticated=bool(users))
    _check_ports(chosen)
    folder = _make(state_folder(chosen.state_folder))
    _take(folder)
    login = BrokerSettings(
        broker_host=connectable(chosen.listen_host), broker_port=chosen.broker_port
    )
    if users:
        login = _login(login, folder, users)
    make_broker = _mosquitto if chosen.broker == "mosquitto" else _embedded
    database = default_database(folder)
    return [
        Child("broker", make_broker(chosen, folder, users), _broker_ready(login), 15.0),
        Child(
            "collector",
            [*_decodewatch(chosen, "collector"), *_flags(login), "--database", database,
             "--health-port", str(chosen.health_port)],
            _answers(f"http://{LOOPBACK}:{chosen.health_port}/readyz"),
        ),
        Child(
            "dashboard",
            [*_decodewatch(chosen, "dashboard"), "--database", database, "--listen-host", LOOPBACK,
             "--listen-port", str(chosen.dashboard_port)],
            _answers(f"{address(chosen)}/_stcore/health"),
        ),
    ]  # fmt: skip


def address(chosen: UpSettings) -> str:
    """Where the dashboard is."""
    return f"http://{LOOPBACK}:{chosen.dashboard_port}"


def _check_ports(chosen: UpSettings) -> None:
    wanted = {
        "broker_port": (chosen.listen_host, chosen.broker_port),
        "dashboard_port": (LOOPBACK, chosen.dashboard_port),
        "health_port": (LOOPBACK, chosen.health_port),
    }
    if chosen.broker_port_311 is not None:
        wanted["broker_port_311"] = (chosen.listen_host, chosen.broker_port_311)
    ports: dict[int, str] = {}
    for name, (host, port) in wanted.items():
        if port in ports:
            raise SettingsError(f"{name}: {port} is the port of {ports[port]} too")
        ports[port] = name
        check_port(host, port, name)


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"state_folder: {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"state_folder: {folder} cannot be written by this user")
    return folder.absolute()


def _take(folder: Path) -> None:
    """Keep other servers out of a state folder until this process ends. Raises ServerError."""
    try:
        # Never closed: that would end it. Children do not inherit it.
        held = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ServerError(
            f"state_folder: {folder} is in use by another `decodewatch up`: {error.strerror}; "
            "accepted is a folder of its own"
        ) from None


def _private(file: Path, content: str) -> Path:
    """Write a file that this user alone may read."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(content, encoding="utf-8")
    return file


def _login(login: BrokerSettings, folder: Path, users: dict[str, str]) -> BrokerSettings:
    """Give the collector a user of its own, made anew at every start."""
    user, password = f"collector-{secrets.token_hex(4)}", secrets.token_hex(16)
    users[user] = password
    return BrokerSettings(
        broker_host=login.broker_host,
        broker_port=login.broker_port,
        broker_user=user,
        broker_password_file=_private(folder / "collector-password", password),
    )


def _decodewatch(chosen: UpSettings, component: str) -> list[str]:
    program = [sys.executable, "-m", "decodewatch.shared.cli", component, "run"]
    return [*program, "--log-level", chosen.log_level, "--log-format", chosen.log_format]


def _flags(login: BrokerSettings) -> list[str]:
    flags = ["--broker-host", login.broker_host, "--broker-port", str(login.broker_port)]
    if login.broker_user is not None:
        flags += ["--broker-user", login.broker_user]
        flags += ["--broker-password-file", str(login.broker_password_file)]
    return flags


def _lines(users: dict[str, str]) -> str:
    return "".join(f"{user}:{password}\n" for user, password in users.items())


def _embedded(chosen: UpSettings, folder: Path, users: dict[str, str]) -> list[str]:
    command = _decodewatch(chosen, "broker")
    command += ["--listen-host", chosen.listen_host, "--listen-port", str(chosen.broker_port)]
    if chosen.broker_port_311 is not None:
        command += ["--listen-port-311", str(chosen.broker_port_311)]
    if users:
        command += ["--users-file", str(_private(folder / "broker-users", _lines(users)))]
    return command


def _mosquitto(chosen: UpSettings, folder: Path, users: dict[str, str]) -> list[str]:
    program = _installed("mosquitto")
    text = _MOSQUITTO.format(
        user=getpass.getuser(),
        payload=4 * wire.MAX_SENT,
        anonymous="false" if users else "true",
    )
    if users:
        file = _private(folder / "broker-users", _lines(users))
        # Mosquitto reads hashed passwords only; this replaces those in the file.
        subprocess.run([_installed("mosquitto_passwd"), "-U", str(file)], check=True)
        text += f"password_file {file}\n"
    for port in (chosen.broker_port, chosen.broker_port_311):
        if port is not None:
            text += f"listener {port} {resolve(chosen.listen_host)}\n"
    return [program, "-c", str(_private(folder / "mosquitto.conf", text))]


def _installed(program: str) -> str:
    # Debian puts the broker where a user's PATH may not look.
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which(program, path=f"{path}:/usr/local/sbin:/usr/sbin")
    if found is None:
        raise SettingsError(
            f"broker: {program} is not installed; `apt-get install mosquitto` brings it, or choose "
            "embedded"
        )
    return found


def _broker_ready(login: BrokerSettings) -> Callable[[], str | None]:
    def ready() -> str | None:
        client = make_client(login, f"decodewatch-up-{secrets.token_hex(8)}")
        return roundtrip.check(client, login.broker_host, login.broker_port, "up", 1.0)

    return ready


def _answers(url: str) -> Callable[[], str | None]:
    def ready() -> str | None:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return None if answer.status == 200 else f"{url}: status {answer.status}"
        except urllib.error.HTTPError as error:
            return f"{url}: status {error.code}: {error.read(500).decode(errors='replace').strip()}"
        except OSError as error:
            return f"{url}: {error}"

    return ready


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = settings.load(UpSettings, "up", vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    if arguments.settings:
        os.environ["DECODEWATCH_SETTINGS"] = arguments.settings  # the children's too
    stop = lifecycle.Stop().install()
    with Supervisor(prefix=chosen.log_format == "text") as supervisor:
        for child in server(chosen):
            if not supervisor.start(child, stop):
                return 0
        print(f"dashboard: {address(chosen)}", flush=True)
        lifecycle.notify("READY=1")
        return supervisor.watch(stop)


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch up`."""
    settings.add_flags(parser, UpSettings)
    parser.set_defaults(run=run)
