"""The schema comes from the migrations, and says what the tables say."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Engine, inspect, text
from support.disks import fill, small_disk

from decodewatch.collector import database, migrate
from decodewatch.collector.errors import ServerError
from decodewatch.shared import tables
from decodewatch.shared.lifecycle import Stop


def tables_of(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def test_an_empty_database_gets_every_table(engine: Engine) -> None:
    assert tables_of(engine) == {*tables.metadata.tables, "alembic_version"}


def test_the_migrations_and_the_tables_agree(engine: Engine) -> None:
    with engine.begin() as connection:
        command.check(migrate.configuration(connection))


def test_upgrading_again_changes_nothing(engine: Engine) -> None:
    migrate.upgrade(engine)
    migrate.require_current(engine)


def test_the_migrations_can_be_taken_back(engine: Engine) -> None:
    with engine.begin() as connection:
        command.downgrade(migrate.configuration(connection), "base")
    assert tables_of(engine) == {"alembic_version"}
    migrate.upgrade(engine)
    assert "turn" in tables_of(engine)


def test_a_migration_that_fails_leaves_nothing_behind(empty_url: str) -> None:
    engine = database.open_engine(empty_url)
    with engine.begin() as connection:
        # In the way of the last table that the first migration makes.
        connection.execute(text("CREATE TABLE window_blocker (a INTEGER)"))
        connection.execute(text('ALTER TABLE window_blocker RENAME TO "window"'))
    with pytest.raises(ServerError, match="cannot be migrated"):
        migrate.upgrade(engine, seconds=0)
    assert tables_of(engine) == {"window"}
    engine.dispose()


def test_a_migration_gives_way_to_a_stop_while_it_waits(empty_url: str) -> None:
    engine = database.open_engine(empty_url)
    stop = Stop()
    with engine.begin() as other:
        if engine.dialect.name == "postgresql":
            other.execute(text(f"SELECT pg_advisory_xact_lock({migrate._ADVISORY_LOCK})"))
        timer = threading.Timer(0.5, stop.set)
        timer.start()
        began = time.monotonic()
        assert not migrate.upgrade(engine, stop)
        assert time.monotonic() - began < 3
    assert migrate.upgrade(engine)
    engine.dispose()


def test_a_full_disk_is_an_error_at_once_and_nothing_is_said_to_be_done(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 600) as disk:
        fill(disk / "ballast", leave=52 * 1024)
        command = [sys.executable, "-m", "decodewatch.shared.cli", "collector", "run"]
        database_flag = ("--database", f"sqlite:///{disk}/a.db", "--health-port", "0")
        done = subprocess.run([*command, *database_flag], stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 1
    assert b"full" in done.stderr
    assert b"schema upgraded" not in done.stderr


def test_a_database_of_a_newer_version_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for refuse in (migrate.upgrade, migrate.require_current):
        with pytest.raises(ServerError, match=r"revision 9999.* newer version"):
            refuse(engine)


def test_a_database_without_tables_is_not_current(empty_url: str) -> None:
    engine = database.open_engine(empty_url)
    with pytest.raises(ServerError, match="collector migrate"):
        migrate.require_current(engine)
    engine.dispose()


def test_several_collectors_may_migrate_at_once(empty_url: str) -> None:
    command = [sys.executable, "-m", "decodewatch.shared.cli", "collector", "migrate"]
    started = [
        subprocess.Popen([*command, "--database", empty_url], stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    logs = [process.communicate(timeout=60)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * 4, logs
    assert "".join(logs).count("schema upgraded") == 1
    opened = database.open_engine(empty_url)
    migrate.require_current(opened)
    opened.dispose()


def test_the_migrations_run_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODEWATCH_COLLECTOR_DATABASE", f"sqlite:///{tmp_path}/a.db")
    command.upgrade(migrate.configuration(), "head")
    command.check(migrate.configuration())
