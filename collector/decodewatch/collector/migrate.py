"""Bringing the database's schema up to this program, with the migrations that are installed."""

import logging
import time

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, exc, text
from sqlalchemy.engine import Connection

from decodewatch.collector.database import reading
from decodewatch.collector.errors import ServerError
from decodewatch.shared import __version__, logs
from decodewatch.shared.lifecycle import Stop

_log = logs.get(__name__)

_PACKAGE = "decodewatch.migrations:."
# Held by whoever migrates; any number that nothing else in the database uses.
_ADVISORY_LOCK = 0x6465636F6465  # "decode"
_PG_LOCK_NOT_AVAILABLE = "55P03"


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the installed migrations; with a connection, for that one."""
    config = Config()
    config.set_main_option("script_location", _PACKAGE)
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def upgrade(engine: Engine, stop: Stop | None = None, seconds: float = 60.0) -> bool:
    """Bring the schema up to this program, in one transaction; nothing where it already is.

    Of several programs that do this at once one does the work, and the others wait for at most
    `seconds`. False where the stop came first. Raises ServerError where the schema is newer than
    this program, or the database cannot be changed.
    """
    stop = stop or Stop()
    deadline = time.monotonic() + seconds
    while not stop.is_set():
        try:
            _upgrade(engine)
        except exc.DBAPIError as error:
            if not _in_use(error) or time.monotonic() > deadline:
                raise _unchangeable(engine, error) from None
            stop.wait(0.2)
        else:
            return True
    return False


def require_current(engine: Engine) -> None:
    """Raises ServerError where the schema is not that of this program; changes nothing."""
    with reading(engine) as connection:
        current = _current(connection)
    head = _scripts().get_current_head()
    if current != head:
        raise ServerError(
            f"database: {_name(engine)} is at revision {current or 'none'}, this decodewatch needs "
            f"{head}: `decodewatch collector migrate` brings it there"
        )


def _upgrade(engine: Engine) -> None:
    head = _scripts().get_current_head()
    with reading(engine) as connection:
        if _current(connection) == head:
            return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            # Short, so that a stop is seen in time.
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            key = {"key": _ADVISORY_LOCK}
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), key)
        before = _current(connection)
        if before != head:
            command.upgrade(configuration(connection), "head")
    if before != head:
        _log.info("schema upgraded", before=before or "empty", after=head)


def _in_use(error: exc.DBAPIError) -> bool:
    """Whether another one that migrates, or writes, is in the way: then waiting helps."""
    code = getattr(error.orig, "sqlstate", None)  # PostgreSQL's
    if code is not None:
        return bool(code == _PG_LOCK_NOT_AVAILABLE)
    return any(word in str(error.orig) for word in ("locked", "busy"))


def _current(connection: Connection) -> str | None:
    """The revision of the database, None for one without tables. Raises ServerError."""
    # It says much at level info, and nothing that an operator could use.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        return None
    try:
        _scripts().get_revision(current)
    except CommandError:
        raise ServerError(
            f"database: {_name(connection.engine)} is at revision {current}, which decodewatch "
            f"{__version__} does not know: a newer version has used it; install that one or a newer"
        ) from None
    return current


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(configuration())


def _name(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _unchangeable(engine: Engine, error: exc.DBAPIError) -> ServerError:
    return ServerError(f"database: {_name(engine)} cannot be migrated: {error.orig}")
