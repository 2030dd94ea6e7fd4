"""Opening a database says what is wrong with it."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import text
from support.brokers import free_port
from support.postgres import why_not

from decodewatch.collector import database
from decodewatch.collector.errors import ServerError
from decodewatch.shared.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://a@b/c", "'mysql'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:////nowhere/at/all/x.db", "/nowhere/at/all does not exist"),
        ("sqlite:////tmp", "/tmp is a folder"),
    ],
)
def test_a_url_that_cannot_be_used_is_a_wrong_setting(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        database.open_engine(url)
    assert str(caught.value).startswith("database: ")


def test_a_file_that_is_not_a_database_is_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("These are my notes. " * 100)
    with pytest.raises(ServerError, match=r"notes\.txt.*not a database"):
        database.open_engine(f"sqlite:///{file}")
    assert file.read_text().startswith("These are my notes.")


_AS_NOBODY = """
import os, pwd, sys
from decodewatch.collector import database
if os.geteuid() == 0:  # who may write everywhere
    os.setuid(pwd.getpwnam("nobody").pw_uid)
database.open_engine(sys.argv[1])
"""


def test_a_folder_that_cannot_be_written_is_a_wrong_setting() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", _AS_NOBODY, f"sqlite:///{folder}/x.db"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert f"SettingsError: database: the folder {folder} cannot be written" in done.stderr


def test_a_file_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        database.open_engine(f"sqlite:///{tmp_path}/x.db", create=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(ServerError, match="database: ") as caught:
        database.open_engine(f"postgresql://user:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in database.describe("postgresql://user:secret@host/x")
    with pytest.raises(SettingsError) as caught:
        database.open_engine("nonsense user:secret@host")
    assert "secret" not in str(caught.value)


def test_sqlite_keeps_what_was_committed_through_a_power_loss(tmp_path: Path) -> None:
    engine = database.open_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2  # FULL
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
    engine.dispose()


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    engine = database.open_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as writer:
        writer.execute(text("CREATE TABLE a (b INTEGER)"))
        with database.reading(engine) as reader:
            assert reader.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one() == 0
    engine.dispose()
