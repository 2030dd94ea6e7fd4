"""The dashboard's way into the database: read-only, impatient, and clear about what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from decodewatch.shared.errors import DecodewatchError, SettingsError, shown

_ACCEPTED = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
_PG_OPTIONS = "-c default_transaction_read_only=on -c statement_timeout=5000"
LOCK_TIMEOUT_S = 1.0
"""How long a query waits for a writer before the page says that the database is busy."""


class Unavailable(DecodewatchError):
    """The database cannot be read now: the text says why, `advice` what to do about it."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


def check_url(text: str) -> URL:
    """The URL of a database. Raises SettingsError where it is none that can be used here."""
    try:
        url = make_url(text)
    except ArgumentError:
        # Nothing of it is shown: it may hold a password.
        raise SettingsError(f"database: not a database URL; accepted is {_ACCEPTED}") from None
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise SettingsError(f"database: {shown(url.drivername)}; accepted is {_ACCEPTED}")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise SettingsError("database: a database in memory; accepted is sqlite:///FILE")
    return url


@contextmanager
def reading(database_url: str) -> Iterator[Connection]:
    """A connection that can only read. Raises Unavailable, from the queries made with it too."""
    url = check_url(database_url)
    file = _file(url)
    if file is not None and not file.exists():
        raise Unavailable(
            "There is no database yet.",
            "The collector makes it when it starts: run `decodewatch collector run`, or "
            "`decodewatch up` for broker, collector and dashboard at once. This page looks again "
            "by itself.",
        )
    try:
        with _engine(database_url).connect() as connection:
            yield connection
    except DBAPIError as error:
        raise _explained(error, url) from error
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"The package {error.name} is not installed.",
            "`pip install 'psycopg[binary]'` brings what a PostgreSQL database needs.",
        ) from error


def _file(url: URL) -> Path | None:
    """The file of an SQLite database; None where there is none."""
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


@lru_cache(maxsize=4)
def _engine(database_url: str) -> Engine:
    url = check_url(database_url)
    file = _file(url)
    if file is None:
        arguments = {"connect_timeout": 5, "options": _PG_OPTIONS}
        return create_engine(url, pool_pre_ping=True, connect_args=arguments)
    # Opened for each page anew (0.1 ms), so that a file that was moved away is not read for ever.
    return create_engine(
        url.set(database=f"file:{_quoted(file)}", query={"mode": "ro", "uri": "true"}),
        connect_args={"timeout": LOCK_TIMEOUT_S},
        poolclass=NullPool,
    )


def _quoted(file: Path) -> str:
    """A path as SQLite's URIs want it."""
    return str(file.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _explained(error: DBAPIError, url: URL) -> Unavailable:
    """What a person can do about an error of the database."""
    text = str(error.orig).lower()
    if "locked" in text or "busy" in text:
        return Unavailable(
            "The database is busy.",
            "A backup or a migration holds it for long. This page looks again by itself.",
        )
    if "no such table" in text or "no such column" in text or "does not exist" in text:
        return Unavailable(
            "The database is not of this version.",
            "Run `decodewatch collector migrate`, or start the collector, which does it.",
        )
    if "unable to open" in text or "readonly" in text or "permission" in text:
        return Unavailable(
            "The database cannot be opened.",
            "The dashboard has to run as the user that the collector runs as: while nobody writes, "
            "other users cannot read the file, even where its permissions allow it.",
        )
    if "not a database" in text or "malformed" in text:
        return Unavailable(
            "The database file is damaged, or is not a database.",
            "Stop the collector, put the file aside and restore a copy; see the collector's log.",
        )
    return Unavailable(
        f"The database at {url.render_as_string(hide_password=True)} does not answer.",
        f"It says: {str(error.orig)[:200]}",
    )
