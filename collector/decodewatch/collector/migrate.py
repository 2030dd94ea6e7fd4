"""Bringing the database's schema up to this program, with the migrations that are installed."""

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection

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


def upgrade(engine: Engine) -> None:
    """Bring the schema up to this program, in one transaction; nothing where it already is.

    Of several programs that do this at once one does the work and the others wait. Raises
    ServerError where the schema is newer than this program.
    """
    head = ScriptDirectory.from_config(configuration()).get_current_head()
    with engine.connect() as connection:
        if _current(connection) == head:
            return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK}
            )
        before = _current(connection)
        if before != head:
            command.upgrade(configuration(connection), "head")
            _log.info("schema upgraded", before=before or "empty", after=head)


def _current(connection: Connection) -> str | None:
    """The revision of the database, None for one without tables. Raises ServerError."""
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        return None
    scripts = ScriptDirectory.from_config(configuration())
    try:
        scripts.get_revision(current)
    except CommandError:
        name = connection.engine.url.render_as_string(hide_password=True)
        raise ServerError(
            f"database: {name} is at revision {current}, which decodewatch {__version__} does not "
            "know: a newer version has used it; install that version or a newer one"
        ) from None
    return current
