"""`decodewatch broker run`: the embedded broker as a process."""

import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import free_port
from support.collecting import Collector
from support.waiting import until

from decodewatch.collector import broker, roundtrip
from decodewatch.collector.addresses import read_users
from decodewatch.shared import broker as shared_broker
from decodewatch.shared import lifecycle, logs
from decodewatch.shared.broker import BrokerSettings, make_client
from decodewatch.shared.errors import SettingsError

Started = tuple["subprocess.Popen[str]", int, int]


def start(*flags: str, scratch: Path | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "decodewatch.shared.cli", "broker", "run", *flags]
    environment = os.environ | ({} if scratch is None else {"TMPDIR": str(scratch)})
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def answers(
    port: int, protocol: str = "5", user: str | None = None, password: str = ""
) -> str | None:
    """None where a broker takes a message and gives it back, else why not."""
    client = make_client(BrokerSettings(broker_protocol=protocol), f"test-{time.time_ns()}")
    if user is not None:
        client.username_pw_set(user, password)
    return roundtrip.check(client, "127.0.0.1", port, "test", 2)


def refusal(*flags: str) -> tuple[int, str]:
    """Exit status and message of a broker that does not start."""
    process = start(*flags)
    message = process.communicate(timeout=20)[1]
    return process.returncode, message


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    lines = ("# who may connect", "", r'fleet:with:colon "quoted" \ back', "other:o", "gerät:p😀ss")
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the broker puts its temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def running(users: Path, scratch: Path) -> Iterator[Started]:
    """A broker for both MQTT versions that wants passwords, and its ports."""
    port, port_311 = free_port(), free_port()
    process = start(
        *("--listen-port", str(port), "--listen-port-311", str(port_311)),
        *("--users-file", str(users)),
        scratch=scratch,
    )
    assert process.stderr is not None
    until(lambda: "broker ready" in process.stderr.readline(), 15)  # type: ignore[union-attr]
    yield process, port, port_311
    process.kill()
    process.communicate()


def test_it_speaks_both_mqtt_versions_to_those_who_know_the_password(running: Started) -> None:
    _, port, port_311 = running
    password = 'with:colon "quoted" \\ back'
    assert answers(port, "5", "fleet", password) is None
    assert answers(port, "5", "gerät", "p😀ss") is None
    assert answers(port_311, "3.1.1", "fleet", password) is None
    assert "user or password not accepted" in (answers(port, "5", "fleet", "wrong") or "")
    assert "user or password not accepted" in (answers(port) or "")


def test_a_collector_with_a_wrong_password_says_what_may_be_wrong(
    running: Started, tmp_path: Path
) -> None:
    collector = Collector(running[1], tmp_path, "--broker-user", "fleet").start(ready=False)
    try:
        until(lambda: "user or password not accepted" in collector.log.read_text())
    finally:
        collector.kill()


def test_a_users_file_that_everybody_may_read_is_warned_of(
    users: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_broker, "_log", logs.get("broker"))  # it warns once a process
    for mode in (0o640, 0o644, 0o644):
        users.chmod(mode)
        read_users(users)
    (record,) = caplog.records
    assert record.getMessage() == "users_file can be read by every user of this machine"


def test_a_client_of_the_other_version_is_turned_away_with_a_hint(running: Started) -> None:
    process, port, _ = running
    assert answers(port, "3.1.1", "fleet", "x") is not None
    assert process.stderr is not None
    assert "3.1.1 on listen_port_311" in process.stderr.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_within_five_seconds_and_gives_its_port_back(
    running: Started, number: signal.Signals
) -> None:
    process, port, _ = running
    client = make_client(BrokerSettings(), "stays-connected")
    client.username_pw_set("other", "o")
    client.connect("127.0.0.1", port)
    client.loop_start()
    process.send_signal(number)
    assert process.wait(5) == 0
    socket.create_server(("127.0.0.1", port)).close()
    client.loop_stop()


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, message = refusal("--listen-port", str(port))
    assert status == 1
    assert "listen_port" in message
    assert str(port) in message


def test_strangers_are_not_let_in_without_passwords() -> None:
    status, message = refusal("--listen-host", "0.0.0.0")
    assert status == 2
    assert "users_file" in message


@pytest.mark.parametrize("host", ["nowhere.invalid", "", "a" * 300])
def test_an_address_that_is_none_is_a_wrong_setting(host: str) -> None:
    status, message = refusal("--listen-host", host, "--users-file", "/dev/null")
    assert status == 2, message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no user"),
        (b"nocolon\n", "line 1"),
        (b"a:b\na:c\n", "line 2"),
        (b":b\n", "line 1"),
        (b"a:\n", "line 1"),
        (b"a:b\x01\n", "line 1"),
        (b"a:\xff\n", "cannot be read"),
    ],
)
def test_a_users_file_that_is_none_is_refused_without_showing_passwords(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "users"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=says) as caught:
        read_users(file)
    assert "nocolon" not in str(caught.value)


def test_a_configuration_that_the_broker_cannot_read_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    file.write_text("fleet:secret\n")
    monkeypatch.setattr(broker, "_string", lambda text: f"not TOML {text}")
    with pytest.raises(SettingsError, match="users_file") as caught:
        broker.Embedded(broker.EmbeddedSettings(users_file=file))
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_users_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nothing-here"):
        read_users(tmp_path / "nothing-here")


def test_no_password_stays_in_a_file(running: Started, scratch: Path) -> None:
    assert not list(scratch.iterdir())


def test_a_port_that_accepts_and_says_nothing_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        why = answers(silent.getsockname()[1])
    assert why == "an answer to the connection did not come within 2 s"


def test_a_port_where_nobody_listens_is_no_broker() -> None:
    why = answers(free_port())
    assert why is not None
    assert why.startswith("cannot connect")


class _Silent(broker.Embedded):
    """A broker that lives and serves nobody, as rumqttd does after a panic of its router."""

    def __init__(self, silent: Iterator[bool]) -> None:
        self._silent = silent

    def check(self, seconds: float) -> str | None:
        return "no answer" if next(self._silent) else None


def test_a_broker_that_serves_nobody_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "CHECK_EVERY_S", 0.01)
    silence = iter([True, True, False, True, True, True])
    assert broker._watch(_Silent(silence), lifecycle.Stop()) == 1
    assert next(silence, None) is None, "an answer in between counts"
