"""A PostgreSQL server of the tests' own, in a folder that goes away with them."""

import getpass
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

from support.brokers import free_port


def why_not() -> str | None:
    """Why no server can be started here; None where one can."""
    if _programs() is None:
        return "PostgreSQL's server is not installed (Debian: postgresql)"
    if importlib.util.find_spec("psycopg") is None:
        return "the package psycopg is not installed"
    if os.geteuid() == 0 and _server_user() is None:
        return "running as root, and there is no user postgres to run the server"
    return None


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).parent


def _server_user() -> str | None:
    """Who runs the server: it refuses to be root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


class Postgres:
    """A running server; `database` makes a new, empty database."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._programs = _programs()
        self._user = _server_user()
        self._port = free_port()
        self._made = 0

    def _run(self, program: str, *arguments: str) -> None:
        assert self._programs is not None
        user = self._user if os.geteuid() == 0 else None
        # Into a file: the server that pg_ctl leaves behind would keep a pipe open.
        log = self._data.parent / f"{program}.log"
        with log.open("ab") as out:
            done = subprocess.run(
                [str(self._programs / program), "-D", str(self._data), *arguments],
                user=user,
                cwd=self._data.parent,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
        assert done.returncode == 0, log.read_text()

    def start(self) -> None:
        if os.geteuid() == 0:
            assert self._user is not None
            shutil.chown(self._data.parent, self._user)
        self._run("initdb", "-A", "trust", "-U", "decodewatch", "-E", "UTF8", "--no-sync")
        options = f"-p {self._port} -h 127.0.0.1 -k '' -c fsync=off -c shared_buffers=32MB"
        self._run("pg_ctl", "start", "-w", "-l", str(self._data / "log"), "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate")

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://decodewatch@127.0.0.1:{self._port}/{name}"

    def database(self) -> str:
        """The URL of a new database."""
        self._made += 1
        name = f"test_{self._made}"
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)


@contextmanager
def running(folder: Path) -> Iterator[Postgres]:
    """A server that runs inside the `with`."""
    server = Postgres(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
