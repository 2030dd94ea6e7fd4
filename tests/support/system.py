"""The whole system as real processes on one machine, each of which a test can kill and start."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from decodewatch.shared import tables
from support.brokers import Broker, free_port
from support.waiting import until

TESTS = Path(__file__).resolve().parents[1]
DEVICE = "device-1"


class Program:
    """One process that can be killed and started again; what it logs is kept in a file."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._environment = {**os.environ, "PYTHONPATH": str(TESTS), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def runs(self) -> bool:
        """Whether it was started and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self, seconds: float = 10) -> int:
        """SIGTERM; the exit status."""
        return self._end(signal.SIGTERM, seconds)

    def _end(self, number: signal.Signals, seconds: float = 10) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"{self.name} did not end in {seconds} s: {self.log.read_text()}"
            ) from None
        self._process = None
        return status


class System:
    """Broker, collector, agent and application, all in one folder."""

    def __init__(self, kind: str, folder: Path, pace: float = 0.005) -> None:
        self.folder = folder
        self.broker = Broker(kind, folder)
        socket = folder / "agent.sock"
        decodewatch = [sys.executable, "-m", "decodewatch.shared.cli"]
        port = str(self.broker.port)
        self.collector = Program(
            "collector",
            [
                *(*decodewatch, "collector", "run", "--broker-port", port),
                *("--state-folder", str(folder / "server"), "--health-port", str(free_port())),
            ],
            folder,
        )
        self.agent = Program(
            "agent",
            [
                *(*decodewatch, "agent", "run", "--broker-port", port, "--device", DEVICE),
                *("--state-folder", str(folder / "device"), "--socket", str(socket)),
            ],
            folder,
        )
        self.ended = folder / "ended"
        self.ended.touch()
        self.application = Program(
            "application",
            [sys.executable, "-m", "support.app", str(self.ended), str(pace)],
            folder,
            DECODEWATCH_SOCKET=str(socket),
        )
        (folder / "server").mkdir()
        self._engine = sa.create_engine(f"sqlite:///{folder / 'server' / 'decodewatch.db'}")

    def start(self) -> "System":
        self.broker.start()
        for program in (self.collector, self.agent, self.application):
            program.start()
        return self

    def close(self) -> None:
        """End what still runs, however the test ended."""
        for program in (self.application, self.agent, self.collector):
            program.kill()
        self.broker.kill()
        self._engine.dispose()

    def turns_ended(self) -> set[str]:
        """The turns that the application ended."""
        return set(self.ended.read_text().split())

    def rows(self, statement: "sa.Select[Any]") -> list[str]:
        """One column from the database; empty while there is none."""
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(statement).scalars())
        except sa.exc.OperationalError:
            return []

    def turns_stored(self) -> list[str]:
        """The turns in the database."""
        return self.rows(sa.select(tables.turn.c.turn))

    def expect_all_turns(self, seconds: float) -> None:
        """Wait until every ended turn is stored; no turn is stored twice, by the table's key."""
        until(
            lambda: self.turns_ended() <= set(self.turns_stored()),
            seconds,
            "every ended turn is in the database",
        )

    def part(self, name: str) -> tuple[Callable[[], None], Callable[[], object]]:
        """How to kill and how to start one part."""
        if name == "broker":
            return self.broker.kill, self.broker.start
        program = {"collector": self.collector, "agent": self.agent}[name]
        return program.kill, program.start
