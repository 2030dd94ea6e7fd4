"""`decodewatch up`: broker, collector and dashboard in one command."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import free_port
from support.collecting import Device, a_batch, count
from support.plain import PORTIONS
from support.waiting import until

from decodewatch.collector import roundtrip
from decodewatch.collector.up import BROKERS
from decodewatch.shared import tables
from decodewatch.shared.broker import BrokerSettings, make_client


class Up:
    """`decodewatch up` with ports and a state folder of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.state = folder / "state"
        self.broker, self.dashboard, self.health = free_port(), free_port(), free_port()
        self.log = folder / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "decodewatch.shared.cli", "up"),
                    *("--state-folder", str(self.state), "--broker-port", str(self.broker)),
                    *("--dashboard-port", str(self.dashboard)),
                    *("--health-port", str(self.health), *flags),
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_until_ready(self) -> None:
        until(lambda: f"dashboard: http://127.0.0.1:{self.dashboard}" in self.said, 60, "up is up")

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


@pytest.fixture(params=BROKERS)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    """A running one with each broker in turn."""
    started = Up(tmp_path, "--broker", request.param)
    yield started
    started.process.kill()
    started.process.wait()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_serves_and_stops_within_five_seconds(up: Up) -> None:
    up.wait_until_ready()
    with urllib.request.urlopen(f"http://127.0.0.1:{up.dashboard}/", timeout=10) as page:
        assert page.status == 200
    with Device(up.broker) as device:
        device.send(a_batch(1))
        device.settle()
    assert count(f"sqlite:///{up.state}/decodewatch.db", tables.turn) == 1
    for name in ("broker", "collector", "dashboard"):
        assert f"name={name}" in up.said
    children = up.children()
    assert len(children) == 3
    # Ctrl-C in a terminal reaches the supervisor alone, which then stops them in their order.
    assert len({os.getsid(pid) for pid in (*children, up.process.pid)}) == 4
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(5) == 0
    assert not any(map(running, children))


def test_a_killed_child_comes_back(up: Up) -> None:
    up.wait_until_ready()
    broker, collector, _ = up.children()
    os.kill(collector, signal.SIGKILL)
    os.kill(broker, signal.SIGKILL)
    with Device(up.broker) as device:
        device.send(a_batch(1))
        device.settle(30)
    assert "will be started again name=collector" in up.said


def test_nothing_is_left_when_it_is_killed(up: Up) -> None:
    up.wait_until_ready()
    children = up.children()
    up.process.kill()
    up.process.wait()
    until(lambda: not any(map(running, children)), 10)


def test_all_that_is_missing_is_named_at_once_before_anything_starts(tmp_path: Path) -> None:
    bare = subprocess.run(
        # -S: without the packages that are installed.
        [sys.executable, "-S", "-m", "decodewatch.shared.cli", "up", "--state-folder",
         str(tmp_path / "state")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PORTIONS},
    )  # fmt: skip
    assert bare.returncode == 2
    assert bare.stderr == (
        "decodewatch up: not installed: alembic, altair, iotcore, sqlalchemy, streamlit; "
        "pip install 'decodewatch[dashboard,broker]' brings them "
        "(from a clone: pip install '.[dashboard,broker]')\n"
    )
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
@pytest.mark.parametrize("broker", BROKERS)
def test_with_users_only_they_and_the_collector_get_in(tmp_path: Path, broker: str) -> None:
    users = tmp_path / "users"
    users.write_text("fleet:secret\n")
    users.chmod(0o644)
    flags = ("--users-file", str(users), "--listen-host", "0.0.0.0", "--broker", broker)
    up = Up(tmp_path, *flags)
    try:
        up.wait_until_ready()
        for password, lets_in in (("secret", True), ("guess", False), (None, False)):
            client = make_client(BrokerSettings(), f"test-{password}")
            if password is not None:
                client.username_pw_set("fleet", password)
            why = roundtrip.check(client, "127.0.0.1", up.broker, "test", 3)
            assert (why is None) is lets_in, why
        for file in ("broker-users", "collector-password"):
            assert (up.state / file).stat().st_mode & 0o777 == 0o600
        assert up.said.count("users_file can be read by every user") == 1
    finally:
        up.process.terminate()
        up.process.wait(10)


def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("broker", "dashboard", "health"):
            up = Up(tmp_path, f"--{name}-port", str(port))
            assert up.process.wait(20) == 1
            assert f"{name}_port: cannot listen on port {port} of 127.0.0.1" in up.said


def test_a_second_one_on_the_same_state_folder_is_refused(up: Up, tmp_path: Path) -> None:
    until(lambda: (up.state / "up.lock").exists(), 20)
    kept = up.log.rename(tmp_path / "first.log")
    other = Up(tmp_path)
    assert other.process.wait(20) == 1
    assert f"state_folder: {up.state} is in use" in other.said
    assert "in use" not in kept.read_text()
    assert up.process.poll() is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--listen-host", "0.0.0.0"), "users_file"),
        (("--broker", "nanomq"), "embedded or mosquitto"),
        (("--state-folder", "/proc/nowhere"), "state_folder: /proc/nowhere"),
        (("--dashboard-port", "7777", "--health-port", "7777"), "too"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    up = Up(tmp_path, *flags)
    assert up.process.wait(20) == 2
    assert says in up.said
