"""The way into the database: read-only, and clear about what is wrong."""

import importlib.util
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from support import seed

from decodewatch.dashboard import queries
from decodewatch.dashboard.database import Unavailable, check_url, reading
from decodewatch.shared.errors import SettingsError


def test_nothing_can_be_written(fleet_url: str) -> None:
    with pytest.raises(Unavailable) as refusal, reading(fleet_url) as connection:
        connection.execute(text("DELETE FROM turn"))
    assert isinstance(refusal.value.__cause__, OperationalError)
    assert "readonly" in str(refusal.value.__cause__.orig)


def test_a_missing_database_is_a_state_and_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    with (
        pytest.raises(Unavailable, match="no database yet") as refusal,
        reading(f"sqlite:///{file}"),
    ):
        pass
    assert "collector run" in refusal.value.advice
    assert not file.exists()


def test_a_database_that_appears_is_read_without_a_restart(tmp_path: Path, now: int) -> None:
    file = tmp_path / "later.db"
    with pytest.raises(Unavailable), reading(f"sqlite:///{file}"):
        pass
    url = seed.database(file, now, (seed.Board(hours=0.05),))
    with reading(url) as connection:
        assert queries.device_counts(connection) == (1, 1)


def test_a_database_that_was_replaced_is_read_anew(tmp_path: Path, now: int) -> None:
    file = tmp_path / "d.db"
    url = seed.database(file, now, (seed.Board("one", hours=0.05),))
    with reading(url) as connection:
        assert queries.devices(connection)[0].device == "one"
    for old in tmp_path.iterdir():
        old.unlink()
    seed.database(file, now, (seed.Board("other", hours=0.05),))
    with reading(url) as connection:
        assert queries.devices(connection)[0].device == "other"


def test_a_locked_database_is_busy_soon(tmp_path: Path) -> None:
    file = tmp_path / "d.db"
    writer = sqlite3.connect(file)
    writer.execute("CREATE TABLE device_state (device, online)")
    writer.commit()
    writer.execute("BEGIN EXCLUSIVE")
    with (
        pytest.raises(Unavailable, match="busy"),
        reading(f"sqlite:///{file}") as connection,
    ):
        queries.device_counts(connection)
    writer.close()


def test_a_database_that_is_not_migrated_says_how(tmp_path: Path) -> None:
    file = tmp_path / "d.db"
    sqlite3.connect(file).execute("CREATE TABLE other (x)").connection.close()
    with (
        pytest.raises(Unavailable, match="not of this version") as refusal,
        reading(f"sqlite:///{file}") as connection,
    ):
        queries.device_counts(connection)
    assert "migrate" in refusal.value.advice


@pytest.mark.parametrize("content", [b"not a database at all" * 200, b"SQLite format 3\0" * 100])
def test_a_file_that_is_no_database_says_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "d.db"
    file.write_bytes(content)
    with (
        pytest.raises(Unavailable, match="damaged") as refusal,
        reading(f"sqlite:///{file}") as connection,
    ):
        queries.device_counts(connection)
    assert "collector" in refusal.value.advice


def test_a_path_with_marks_that_uris_know_is_read(tmp_path: Path, now: int) -> None:
    folder = tmp_path / "a?b#c%20d é"
    folder.mkdir()
    file = folder / "d.db"
    seed.database(tmp_path / "d.db", now, (seed.Board(hours=0.05),))
    (tmp_path / "d.db").rename(file)
    url = check_url("sqlite:///x").set(database=str(file)).render_as_string(hide_password=False)
    with reading(url) as connection:
        assert queries.device_counts(connection) == (1, 1)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://me:secret@host/db", "sqlite://", "sqlite:///:memory:"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="accepted is sqlite:///FILE") as refusal:
        check_url(url)
    assert "secret" not in str(refusal.value)


def test_a_postgresql_server_that_is_not_there_says_so_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with (
        pytest.raises(Unavailable, match="does not answer") as refusal,
        reading("postgresql://me:secret@127.0.0.1:1/db"),
    ):
        pass
    assert "secret" not in str(refusal.value) + refusal.value.advice


def test_a_postgresql_url_without_its_driver_says_what_to_install() -> None:
    if importlib.util.find_spec("psycopg") is not None:
        pytest.skip("the driver is installed")
    with (
        pytest.raises(Unavailable, match="psycopg is not installed") as refusal,
        reading("postgresql://me:secret@127.0.0.1:1/db"),
    ):
        pass
    assert "pip install" in refusal.value.advice
