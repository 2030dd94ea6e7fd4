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

_log = logs.get(__name__)

_PACKAGE = "decodewatch.migrations:."
# Held by whoever migrates; any number that nothing else in the database uses.
_ADVISORY_LOCK = 0x6465636F6465  # "decode"


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the installed migrations; with a connection, for that one."""
    config = Config()
    config.set_main_option("script_location", _PACKAGE)
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def upgrade(engine: Engine, seconds: float = 60.0) -> None:
    """Bring the schema up to this program, in one transaction; nothing where it already is.

    Of several programs that do this at once one does the work, and the others wait for at most
    `seconds`. Raises ServerError where the schema is newer than this program, or the database
    cannot be changed.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            _upgrade(engine)
        except exc.OperationalError as error:
            if engine.dialect.name != "sqlite" or time.monotonic() > deadline:
                raise _unchangeable(engine, error) from None
            # Locked by another one that migrates, or writes.
            time.sleep(0.2)
        except exc.DBAPIError as error:
            raise _unchangeable(engine, error) from None
        else:
            return


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
            key = {"key": _ADVISORY_LOCK}
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), key)
        before = _current(connection)
        if before != head:
            command.upgrade(configuration(connection), "head")
            _log.info("schema upgraded", before=before or "empty", after=head)


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
