"""Seeded databases, the dashboard as a process, and a browser to look at it with."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import postgres, seed
from support.brokers import free_port
from support.browser import Browser, browser
from support.waiting import until

from decodewatch.dashboard import settings
from decodewatch.dashboard.settings import DashboardSettings


@pytest.fixture(scope="module")
def now() -> int:
    """The moment that seeded databases end at: pages look at the real clock, and minutes later a
    device counts as silent."""
    return time.time_ns() // 1000


@pytest.fixture(scope="module")
def fleet_url(now: int, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An SQLite database with the usual two devices, for tests that only read."""
    return seed.database(tmp_path_factory.mktemp("fleet") / "decodewatch.db", now)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgres]:
    """A PostgreSQL server, one for all tests."""
    reason = postgres.why_not()
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="decodewatch-postgres-") as folder:
        Path(folder).chmod(0o755)  # the server is another user
        with postgres.running(Path(folder)) as running:
            yield running


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, now: int) -> str:
    """The usual two devices in a database of each kind in turn."""
    if request.param == "sqlite":
        found: str = request.getfixturevalue("fleet_url")
        return found
    running: postgres.Postgres = request.getfixturevalue("server")
    url = running.database()
    seed.fill(url, now)
    return url


@pytest.fixture
def use() -> Iterator[Callable[[str], None]]:
    """Make the pages of this process read a database."""

    def use_url(url: str) -> None:
        settings.activate(DashboardSettings(database=url))

    yield use_url
    settings.activate(None)


@contextmanager
def dashboard(url: str, folder: Path, *flags: str) -> Iterator[str]:
    """A running `decodewatch dashboard run`; its address."""
    port = free_port()
    command = [sys.executable, "-m", "decodewatch.shared.cli", "dashboard", "run"]
    environment = {**os.environ, "DECODEWATCH_DASHBOARD_DATABASE": url}
    with (folder / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen-port", str(port), "--refresh-s", "1", *flags],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        until(lambda: process.poll() is not None or answers(address), 30, "dashboard answers")
        assert process.poll() is None, (folder / "dashboard.log").read_text()
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0, (folder / "dashboard.log").read_text()


def share_out(file: Path, names: Sequence[str]) -> None:
    """Give the turns of a seeded file's first device to so many runtimes, one after the other."""
    writer = sqlite3.connect(file)
    device, old = writer.execute("SELECT device, runtime FROM runtime ORDER BY device").fetchone()
    columns = [row[1] for row in writer.execute("PRAGMA table_info(runtime)")]
    for place, name in enumerate(names):
        values = {"runtime": f"'{place:016x}'", "name": f"'{name}'", "pid": str(2143 + place)}
        taken = ", ".join(values.get(column, f'"{column}"') for column in columns)
        writer.execute(f"INSERT INTO runtime SELECT {taken} FROM runtime WHERE runtime = ?", (old,))
    turns = writer.execute("SELECT turn FROM turn WHERE device = ? ORDER BY at", (device,))
    for place, (turn,) in enumerate(found := turns.fetchall()):
        which = f"{place * len(names) // len(found):016x}"
        writer.execute("UPDATE turn SET runtime = ? WHERE turn = ?", (which, turn))
    writer.commit()
    writer.close()


def answers(address: str) -> bool:
    """Whether the dashboard says that it is well."""
    try:
        with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests: each opens its own page in it."""
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def fleet_at(fleet_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard over the usual two devices."""
    with dashboard(fleet_url, tmp_path_factory.mktemp("served")) as address:
        yield address
