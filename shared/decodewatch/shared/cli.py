"""The one command, `decodewatch`: finds the component that a subcommand belongs to and runs it.

A component is imported only when its subcommand is used, so that a device without the server's
packages has the agent's commands, and `--help` is quick. Each component's module has

    def add(parser: argparse.ArgumentParser) -> None

which gives the parser its arguments or subcommands and sets `run`, a function of the parsed
arguments that returns the exit status.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from decodewatch.shared import __version__
from decodewatch.shared.errors import DecodewatchError, SettingsError

EXIT_FAILURE = 1
EXIT_SETTINGS = 2


@dataclass(frozen=True, slots=True)
class Component:
    """One subcommand: the module behind it and the extra that installs what it needs."""

    name: str
    module: str
    extra: str | None
    help: str


COMPONENTS = (
    Component("agent", "decodewatch.agent.cli", None, "what runs on a device"),
    Component(
        "up", "decodewatch.collector.up", "dashboard", "broker, collector and dashboard at once"
    ),
    Component("collector", "decodewatch.collector.cli", "collector", "MQTT to SQL"),
    Component("dashboard", "decodewatch.dashboard.cli", "dashboard", "what a person looks at"),
    Component("broker", "decodewatch.collector.broker", "broker", "a small MQTT broker"),
)


def _overview() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="decodewatch",
        description="Telemetry for LLMs that decode on edge devices, and the fleet's dashboard.",
    )
    parser.add_argument("--version", action="version", version=f"decodewatch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for component in COMPONENTS:
        commands.add_parser(component.name, help=component.help, add_help=False)
    return parser


def _parser(component: Component) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"decodewatch {component.name}", description=component.help
    )
    try:
        module = importlib.import_module(component.module)
    except ModuleNotFoundError as error:
        ours = error.name is None or error.name.startswith("decodewatch")
        if ours or component.extra is None:
            raise
        raise SettingsError(
            f"decodewatch {component.name}: the package {error.name!r} is not installed; "
            f"pip install 'decodewatch[{component.extra}]' brings it"
        ) from None
    module.add(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 1 for a failure, 2 for wrong settings or arguments."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((item for item in COMPONENTS if words and item.name == words[0]), None)
    if chosen is None:
        _overview().parse_args(words)
        return EXIT_SETTINGS
    try:
        parsed = _parser(chosen).parse_args(words[1:])
        status: int = parsed.run(parsed)
    except SettingsError as error:
        print(f"decodewatch: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    except DecodewatchError as error:
        print(f"decodewatch: {error}", file=sys.stderr)
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
