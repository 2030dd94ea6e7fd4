"""The command `decodewatch dashboard`."""

import argparse

from decodewatch.dashboard import server
from decodewatch.dashboard.settings import DashboardSettings
from decodewatch.shared import logs, settings


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    chosen = settings.load(DashboardSettings, "dashboard", vars(arguments))
    logs.setup(chosen.log_level, chosen.log_format)
    return server.serve(chosen)


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of `decodewatch dashboard`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = commands.add_parser(
        "run",
        help="serve the pages",
        description="Serve the dashboard's pages to browsers of this machine, until SIGTERM or "
        "Ctrl-C. They show what the collector wrote into the database, and change nothing in it.",
    )
    settings.add_flags(one, DashboardSettings)
    one.set_defaults(run=run)
