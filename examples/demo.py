"""`make demo`: broker, collector, dashboard, agent, and an application with a real model, at once.

Everything runs on this machine's loopback, in one folder that is new each time and removed at the
end. With --exit it ends after the asked number of turns, prints what the database holds, and exits
with 0 only if everything that was sent is stored once.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from decodewatch.collector import up
from decodewatch.collector.supervise import Child, Supervisor
from decodewatch.shared import logs, tables
from decodewatch.shared.database import default_database
from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.lifecycle import Stop

EXAMPLES = Path(__file__).resolve().parent
DELIVERY_S = 20.0
"""How long the last turns may take from the application into the database."""


class Progress:
    """Lines for the person who waits, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.1f} s] {text}", flush=True)


def free_port(preferred: int) -> int:
    """The preferred port of the loopback where nobody has it, else any, which is said."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((up.LOOPBACK, port))
            except OSError:
                continue
            taken = int(probe.getsockname()[1])
        if taken != preferred:
            print(f"port {preferred} is in use, {taken} is used instead", flush=True)
        return taken
    raise DecodewatchError("no port of the loopback is free")


class Database:
    """What the demo itself asks of the database."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)

    def turns(self) -> int:
        """How many turns are stored."""
        query = sa.select(sa.func.count()).select_from(tables.turn)
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def close(self) -> None:
        self._engine.dispose()


class Demo:
    """The programs of the demo, started in their order."""

    def __init__(self, folder: Path, wanted: argparse.Namespace) -> None:
        self._wanted = wanted
        self._server = up.UpSettings(
            state_folder=folder / "server",
            broker=wanted.broker,
            broker_port=free_port(1883),
            dashboard_port=free_port(8501),
            health_port=free_port(9464),
            log_level=wanted.log_level,
        )
        self._url = default_database(folder / "server")
        self._device_folder = folder / "device"
        self._socket = folder / "agent.sock"
        self.progress = Progress()

    def run(self, stop: Stop) -> int:
        """Run until the application is done, or until stopped; the exit status."""
        say = self.progress.say
        application = self._application()
        with Supervisor() as supervisor:
            for child in (*up.server(self._server), self._agent()):
                say(f"starting {child.name}")
                if not supervisor.start(child, stop):
                    return 0
            # A browser must be able to look from here on, before the first turn.
            say(f"dashboard: {up.address(self._server)}")
            say("starting application: loads the model")
            if not supervisor.start(application, stop):
                return 0
            if not self._watch(supervisor, stop):
                return 0
            status = supervisor.status(application.name)
            if status != 0:
                say(f"the application ended with status {status}")
                return 1
            return self._finish(supervisor, stop)

    def _application(self) -> Child:
        wanted = self._wanted
        command = [sys.executable, str(EXAMPLES / "chat.py"), "--pause", str(wanted.pause)]
        command += ["--turns", str(wanted.turns), "--tokens", str(wanted.tokens)]
        if wanted.model is not None:
            command += ["--model", str(wanted.model)]
        return Child(
            "chat",
            command,
            restart=False,
            environment={"DECODEWATCH_SOCKET": str(self._socket), "PYTHONUNBUFFERED": "1"},
        )

    def _agent(self) -> Child:
        return Child(
            "agent",
            [
                *(sys.executable, "-m", "decodewatch.shared.cli", "agent", "run"),
                *("--device", self._wanted.device, "--state-folder", str(self._device_folder)),
                *("--socket", str(self._socket), "--broker-port", str(self._server.broker_port)),
                *("--log-level", self._wanted.log_level),
            ],
            lambda: None if self._socket.exists() else "it has no inbox yet",
        )

    def _watch(self, supervisor: Supervisor, stop: Stop) -> bool:
        """Say when the first turn is stored, and wait for the application; False when stopped."""
        database = Database(self._url)
        first = True
        try:
            while supervisor.status("chat") is None:
                if stop.wait(0.2) or supervisor.tend() is not None:
                    return False
                if first and database.turns():
                    first = False
                    self.progress.say(f"first turn is on {up.address(self._server)}")
            return not stop.is_set()
        finally:
            database.close()

    def _finish(self, supervisor: Supervisor, stop: Stop) -> int:
        """With --exit the summary; else wait for a person to stop the demo."""
        if not self._wanted.exit:
            self.progress.say(f"the application is done; Ctrl-C ends {up.address(self._server)}")
            return supervisor.watch(stop)
        self.progress.say("all turns done; waiting for their delivery")
        database = Database(self._url)
        deadline = time.monotonic() + DELIVERY_S
        while database.turns() < self._wanted.turns and time.monotonic() < deadline:
            if stop.wait(0.1):
                return 0
        database.close()
        # The agent's end brings its last samples and floors out; only then is the ledger final.
        supervisor.end("agent")
        self.progress.say("what the database holds:")
        return subprocess.run(
            [
                *(sys.executable, "-m", "decodewatch.shared.cli", "collector", "report"),
                *("--database", self._url, "--strict", "--expect-turns", str(self._wanted.turns)),
            ],
        ).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--turns", type=int, default=0, help="stop talking after so many (default: never)"
    )
    parser.add_argument(
        "--exit", action="store_true", help="end after --turns with a summary from the database"
    )
    parser.add_argument("--tokens", type=int, default=64, help="longest answer (default: 64)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between turns (1)")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the packaged SmolLM2)")
    parser.add_argument("--device", default="demo-device", help="what the dashboard calls this one")
    parser.add_argument("--broker", choices=up.BROKERS, default="embedded", help="(embedded)")
    parser.add_argument("--keep", type=Path, help="folder to keep the state in (default: none)")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="warning", help="(warning)")
    wanted = parser.parse_args()
    if wanted.model is not None:
        wanted.model = wanted.model.absolute()
    if wanted.exit and wanted.turns < 1:
        parser.error("--exit needs --turns: how many to wait for")
    logs.setup(wanted.log_level)
    stop = Stop().install()
    folder = wanted.keep or Path(tempfile.mkdtemp(prefix="decodewatch-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Demo(folder.absolute(), wanted).run(stop)
    except (DecodewatchError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if wanted.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
