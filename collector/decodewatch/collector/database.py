"""Opening the database: SQLite or PostgreSQL by one URL, with errors that a person can act on."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, exc, make_url, text
from sqlalchemy.engine import URL, Connection

from decodewatch.collector.errors import ServerError
from decodewatch.shared.errors import SettingsError, shown

ACCEPTED = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
BUSY_S = 1.0
"""How long one attempt waits for another writer of the same SQLite file."""
_compact = partial(json.dumps, separators=(",", ":"))
_PG_OPTIONS = "-c statement_timeout=30000 -c lock_timeout=10000"


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        # Nothing of it is shown: it may hold a password.
        raise SettingsError(f"database: not a database URL; accepted is {ACCEPTED}") from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise SettingsError(f"database: {shown(parsed.drivername)}; accepted is {ACCEPTED}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SettingsError("database: a database in memory; accepted is sqlite:///FILE")
    return parsed


def describe(url: str) -> str:
    """The URL as logs and errors may show it, without its password."""
    return _parse(url).render_as_string(hide_password=True)


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite database; None for any other. Raises SettingsError."""
    parsed = _parse(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def open_engine(url: str, *, create: bool = True) -> Engine:
    """Open a database for writing, and prove that it answers.

    With `create`, an SQLite file that does not exist is made, its folder is not. Raises
    SettingsError where the URL, the folder or the file cannot be used, ServerError where the
    server does not answer or the file is not a database.
    """
    parsed = _parse(url)
    file = sqlite_file(url)
    if file is not None:
        _check_file(file, create=create)
        engine = create_engine(parsed, connect_args={"timeout": BUSY_S}, json_serializer=_compact)
        _prepare_sqlite(engine)
    else:
        try:
            arguments = {"connect_timeout": 5, "options": _PG_OPTIONS}
            engine = create_engine(
                parsed, pool_pre_ping=True, connect_args=arguments, json_serializer=_compact
            )
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"database: {describe(url)} needs the package {error.name!r}; "
                "pip install 'psycopg[binary]' brings it"
            ) from None
    try:
        with reading(engine) as connection:
            connection.execute(text("SELECT 1"))
    except (exc.DBAPIError, sqlite3.Error) as error:
        engine.dispose()
        why = error.orig if isinstance(error, exc.DBAPIError) else error
        raise ServerError(f"database: {describe(url)}: {why}") from None
    return engine


def _check_file(file: Path, *, create: bool) -> None:
    if file.is_dir():
        raise SettingsError(f"database: {file} is a folder; accepted is a file")
    if file.exists():
        if not os.access(file, os.R_OK | os.W_OK):
            raise SettingsError(f"database: {file} cannot be read and written by this user")
    elif not create:
        raise SettingsError(f"database: {file} does not exist")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise SettingsError(f"database: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(
            f"database: the folder {folder} cannot be written by this user (SQLite keeps two more "
            "files beside the database)"
        )


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: sqlite3.Connection, _record: Any) -> None:
        # The driver would begin transactions by itself, too late and not for reading.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # An acknowledged batch is deleted on the device, so it must survive the server's power
        # loss, which NORMAL does not promise. With group commit it costs one fsync for up to
        # `group_messages` batches; see benchmarks/ingest.py.
        cursor.execute("PRAGMA synchronous = FULL")
        # After a long reader the log may be large; it does not stay so.
        cursor.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # Deferred, two writers that both have read fail at their first write instead of waiting.
        options = connection.get_execution_options()
        connection.exec_driver_sql("BEGIN" if options.get("reads") else "BEGIN IMMEDIATE")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection whose transaction takes no lock that a writer waits for."""
    with engine.connect().execution_options(reads=True) as connection:
        yield connection
