"""Databases of both kinds, for what must work on both."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support import postgres

from decodewatch.collector import database, migrate


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgres]:
    """A PostgreSQL server, one for all tests."""
    reason = postgres.why_not()
    if reason is not None:
        pytest.skip(reason)
    # Not below pytest's own folder, which only its owner may enter: the server is somebody else.
    with tempfile.TemporaryDirectory(prefix="decodewatch-postgres-") as folder:
        Path(folder).chmod(0o755)
        with postgres.running(Path(folder)) as running:
            yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/decodewatch.db"
    running: postgres.Postgres = request.getfixturevalue("server")
    return running.database()


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    """A database with the current schema, of each kind in turn."""
    opened = database.open_engine(empty_url)
    migrate.upgrade(opened)
    yield opened
    opened.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    """An SQLite database with the current schema."""
    opened = database.open_engine(f"sqlite:///{tmp_path}/decodewatch.db")
    migrate.upgrade(opened)
    yield opened
    opened.dispose()
