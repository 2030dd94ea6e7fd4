"""The one command, `decodewatch`: finds the component that a subcommand belongs to and runs it.

A component is imported only when its subcommand is used, so that a device without the server's
packages has the agent's commands, and `--help` is quick. Each component's module has

    def add(parser: argparse.ArgumentParser) -> None

which gives the parser its arguments or subcommands and sets `run`, a function of the parsed
arguments that returns the exit status.

All of it runs on Python 3.10 but the dashboard, and with it `up`: Streamlit needs 3.11.
"""

import argparse
import importlib
import importlib.util
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from decodewatch.shared import __version__
from decodewatch.shared.errors import DecodewatchError, SettingsError

EXIT_FAILURE = 1
EXIT_SETTINGS = 2

EXTRAS = {
    "collector": ("sqlalchemy", "alembic"),
    "dashboard": ("sqlalchemy", "alembic", "streamlit", "altair"),
    "broker": ("iotcore",),
}
"""What each extra installs, by the names under which it is imported."""
DASHBOARD_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Component:
    """One subcommand: the module behind it and the extras that install what it needs.

    A module that can be imported without extras asks for them by `require` itself, when it knows
    which.
    """

    name: str
    module: str
    extras: tuple[str, ...]
    help: str


COMPONENTS = (
    Component(
        "agent", "decodewatch.agent.cli", (), "on a device: watch its runtimes and its hardware"
    ),
    Component(
        "up",
        "decodewatch.collector.up",
        (),
        "a small fleet's server: broker, collector and dashboard at once",
    ),
    Component(
        "collector",
        "decodewatch.collector.cli",
        ("collector",),
        "store what devices send (MQTT to SQL), and report on it",
    ),
    Component(
        "dashboard", "decodewatch.dashboard.cli", ("dashboard",), "the web pages of the fleet"
    ),
    Component(
        "broker",
        "decodewatch.collector.broker",
        ("broker",),
        "a small MQTT broker, for the loopback and trusted networks",
    ),
)


def require(*extras: str) -> None:
    """Raise SettingsError where what these extras install is not there, naming all of it."""
    if "dashboard" in extras and sys.version_info < DASHBOARD_PYTHON:
        wanted, found = (".".join(map(str, it)) for it in (DASHBOARD_PYTHON, sys.version_info[:3]))
        raise SettingsError(f"the dashboard needs Python {wanted} or newer; this is {found}")
    missing = {
        extra: [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]
        for extra in extras
    }
    names = sorted({name for lacking in missing.values() for name in lacking})
    if names:
        wanted = ",".join(extra for extra in extras if missing[extra])
        raise SettingsError(
            f"not installed: {', '.join(names)}; pip install 'decodewatch[{wanted}]' brings "
            f"{'it' if len(names) == 1 else 'them'} (from a clone: pip install '.[{wanted}]')"
        )


class _Brief(argparse.ArgumentParser):
    """Says what is wrong, and not every flag there is before it."""

    def error(self, message: str) -> NoReturn:
        """End with status 2; the last line is the error."""
        self.exit(EXIT_SETTINGS, f"see {self.prog} --help\n{self.prog}: error: {message}\n")


class _Parser(_Brief):
    """Its subcommands' parsers are of this class too."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Refuse what is not known here, with this subcommand's help and not its parent's."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def _overview() -> argparse.ArgumentParser:
    parser = _Brief(
        prog="decodewatch",
        description="Telemetry for LLMs that decode on edge devices, and the fleet's dashboard.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"decodewatch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for component in COMPONENTS:
        commands.add_parser(component.name, help=component.help, add_help=False)
    return parser


def _parser(component: Component) -> argparse.ArgumentParser:
    require(*component.extras)
    parser = _Parser(prog=f"decodewatch {component.name}", description=sentence(component.help))
    importlib.import_module(component.module).add(parser)
    return parser


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help: str
) -> argparse.ArgumentParser:
    """A subcommand whose own help begins with what the list of subcommands says of it."""
    return commands.add_parser(name, help=help, description=sentence(help))


def sentence(help: str) -> str:
    """A line of help, standing by itself."""
    return help[0].upper() + help[1:] + "."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 1 for a failure, 2 for wrong settings or arguments."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no degree sign shows a question mark in its place.
        sys.stdout.reconfigure(errors="replace")
    chosen = next((item for item in COMPONENTS if words and item.name == words[0]), None)
    if chosen is None:
        _overview().parse_args(words)
        return EXIT_SETTINGS
    try:
        parsed = _parser(chosen).parse_args(words[1:])
        status: int = parsed.run(parsed)
    except SettingsError as error:
        print(f"decodewatch {chosen.name}: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except DecodewatchError as error:
        print(f"decodewatch {chosen.name}: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; there is nobody left to tell.
        sys.stderr.close()
        return EXIT_FAILURE
    return status


if __name__ == "__main__":
    sys.exit(main())
