"""`decodewatch collector`: run, migrate, report."""

import argparse

from sqlalchemy import Engine

from decodewatch.collector import database, migrate, report
from decodewatch.collector.health import Health
from decodewatch.collector.ingest import Ingest
from decodewatch.collector.settings import DATABASE_ONLY, CollectorSettings
from decodewatch.collector.storage.store import Store
from decodewatch.shared import lifecycle, logs, settings
from decodewatch.shared.cli import EXIT_FAILURE, add_command
from decodewatch.shared.database import state_folder
from decodewatch.shared.errors import SettingsError

SECTION = "collector"

_log = logs.get(f"decodewatch.{SECTION}")


def _load(arguments: argparse.Namespace) -> CollectorSettings:
    chosen = settings.load(CollectorSettings, SECTION, vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    return chosen


def _open(chosen: CollectorSettings, stop: lifecycle.Stop | None = None) -> Engine | None:
    """The database, made where it is the default one, with its schema up to date.

    None where the stop came first.
    """
    if chosen.database is None:
        folder = state_folder(chosen.state_folder)
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"state_folder: {folder}: {error.strerror}") from None
    engine = database.open_engine(chosen.database_url())
    if migrate.upgrade(engine, stop):
        return engine
    engine.dispose()
    return None


def run(arguments: argparse.Namespace) -> int:
    """Collect until SIGTERM or SIGINT."""
    chosen = _load(arguments)
    stop = lifecycle.Stop().install()
    engine = _open(chosen, stop)
    if engine is None:
        return 0
    store = Store(
        engine, letter_rows=chosen.dead_letter_rows, letter_bytes=chosen.dead_letter_bytes
    )
    failed: list[bool] = []

    def on_failure() -> None:
        failed.append(True)
        stop.set()

    ingest = Ingest(chosen, store, on_failure)
    health = Health(chosen.health_port, ingest.troubles) if chosen.health_port else None
    ingest.start()
    if health is not None:
        health.start()
    _log.info("collector started", database=database.describe(chosen.database_url()))
    lifecycle.notify("READY=1")
    stop.wait()
    ingest.stop()
    if health is not None:
        health.stop()
    engine.dispose()
    _log.info("collector stopped")
    return EXIT_FAILURE if failed else 0


def run_migrate(arguments: argparse.Namespace) -> int:
    """Bring the schema up to this program."""
    engine = _open(_load(arguments))
    if engine is not None:
        engine.dispose()
    return 0


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch collector`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = add_command(commands, "run", "store what devices send, and acknowledge it, until stopped")
    settings.add_flags(one, CollectorSettings)
    one.set_defaults(run=run)
    one = add_command(commands, "migrate", "bring the database's schema up to this program")
    settings.add_flags(one, CollectorSettings, DATABASE_ONLY)
    one.set_defaults(run=run_migrate)
    one = add_command(commands, "report", "summarise what is in the database")
    report.add(one)
