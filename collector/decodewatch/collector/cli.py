"""`decodewatch collector`: run, migrate, report."""

import argparse

from sqlalchemy import Engine

from decodewatch.collector import database, migrate, report
from decodewatch.collector.health import Health
from decodewatch.collector.ingest import Ingest
from decodewatch.collector.settings import CollectorSettings
from decodewatch.collector.storage.store import Store
from decodewatch.shared import lifecycle, logs, settings
from decodewatch.shared.cli import EXIT_FAILURE
from decodewatch.shared.database import state_folder
from decodewatch.shared.errors import SettingsError

_log = logs.get(__name__)

SECTION = "collector"


def _load(arguments: argparse.Namespace) -> CollectorSettings:
    chosen = settings.load(CollectorSettings, SECTION, vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    return chosen


def _open(chosen: CollectorSettings) -> Engine:
    """The database, made where it is the default one, with its schema up to date."""
    if chosen.database is None:
        folder = state_folder(chosen.state_folder)
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"state_folder: {folder}: {error.strerror}") from None
    engine = database.open_engine(chosen.database_url())
    migrate.upgrade(engine)
    return engine


def run(arguments: argparse.Namespace) -> int:
    """Collect until SIGTERM or SIGINT."""
    chosen = _load(arguments)
    stop = lifecycle.Stop().install()
    engine = _open(chosen)
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
    _open(_load(arguments)).dispose()
    return 0


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch collector`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = commands.add_parser("run", help="store what devices send, and acknowledge it")
    settings.add_flags(one, CollectorSettings)
    one.set_defaults(run=run)
    one = commands.add_parser("migrate", help="bring the database's schema up to this program")
    settings.add_flags(one, CollectorSettings)
    one.set_defaults(run=run_migrate)
    one = commands.add_parser("report", help="summarise what is in the database")
    report.add(one)
