"""The agent's commands: `decodewatch agent run`, `sources`, `bandwidth`, `meter`, `proxy`."""

import argparse
from pathlib import Path
from typing import TypeVar

from decodewatch.agent import show
from decodewatch.agent.proxy.settings import ProxySettings
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import open_sources
from decodewatch.shared import logs
from decodewatch.shared.cli import add_command
from decodewatch.shared.errors import SettingsError, shown
from decodewatch.shared.settings import add_flags, load

_Number = TypeVar("_Number", int, float)


def add(parser: argparse.ArgumentParser) -> None:
    """Give `decodewatch agent` its subcommands."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = add_command(commands, "run", "watch this device and its runtimes until stopped")
    add_flags(run, AgentSettings)
    run.set_defaults(run=_run)
    sources = add_command(
        commands, "sources", "print what every source reads now, its unit, or why there is nothing"
    )
    where = sources.add_mutually_exclusive_group()
    where.add_argument(
        "--root",
        metavar="FOLDER",
        default="/",
        help="folder that has proc and sys, such as a recorded device (default: /)",
    )
    where.add_argument(
        "--tegrastats",
        metavar="FILE",
        help="a log of tegrastats instead: what each record shows, with --json one object a record",
    )
    sources.add_argument("--json", action="store_true", help="one JSON document")
    sources.set_defaults(run=_sources)
    bandwidth = add_command(
        commands, "bandwidth", "measure how fast the memory is read and copied, and keep that"
    )
    bandwidth.add_argument("--json", action="store_true", help="one JSON document")
    bandwidth.add_argument("--seconds", metavar="N", type=_seconds, help="1 to 60 (default: 5)")
    bandwidth.add_argument(
        "--threads",
        metavar="N",
        type=_threads,
        help="a trial with fewer than one a core, which is not kept",
    )
    add_flags(bandwidth, AgentSettings, only=("state_folder",))
    bandwidth.set_defaults(run=_bandwidth)
    proxy = add_command(
        commands, "proxy", "stand before an inference server and measure what its clients get"
    )
    add_flags(proxy, ProxySettings)
    proxy.set_defaults(run=_proxy)
    meter = add_command(
        commands, "meter", "print what the meter says of recorded streams, one JSON object a file"
    )
    meter.add_argument("files", metavar="FILE", nargs="+", help="as docs/metrics.md describes it")
    meter.set_defaults(run=_meter)


def _run(arguments: argparse.Namespace) -> int:
    # Not at the top: `sources` needs neither the network client nor SQLite.
    from decodewatch.agent import identity, service
    from decodewatch.agent.hardware import serials

    settings = load(AgentSettings, "agent", vars(arguments))
    logs.setup(settings.log_level, settings.log_format)
    state = settings.state()
    identity.make_state(state)
    who = identity.load(state, settings.device, serials.read(), settings.identity_salt)
    listener = service.open_listener(settings)
    try:
        service.Service(
            settings,
            who,
            identity.boot_id(),
            listener,
            sources=open_sources(without=settings.sources_off()),
            clock=identity.ClockReader(),
        ).run()
    finally:
        listener.close()
    return 0


def _proxy(arguments: argparse.Namespace) -> int:
    # Not at the top: asyncio and ssl are for this command alone.
    from decodewatch.agent.proxy import command

    settings = load(ProxySettings, "proxy", vars(arguments))
    logs.setup(settings.log_level, settings.log_format)
    return command.run(settings)


def _sources(arguments: argparse.Namespace) -> int:
    if arguments.tegrastats is not None:
        return _log(Path(arguments.tegrastats), as_json=arguments.json)
    root = Path(arguments.root)
    if not root.is_dir():
        raise SettingsError(f"--root: {root} is not a folder; accepted is one with proc and sys")
    found = show.read_all(root)
    machine = show.machine(root, found)
    print(show.as_json(found, machine) if arguments.json else show.as_text(found, machine))
    return 0


def _log(path: Path, *, as_json: bool) -> int:
    try:
        log = path.open("rb")
    except OSError as error:
        raise SettingsError(
            f"--tegrastats: {path} cannot be read: {error.strerror}; accepted is a file"
        ) from None
    with log:
        for record in show.read_log(log, str(path)):
            print(show.as_json([record]) if as_json else show.as_text([record]) + "\n")
    return 0


def _bandwidth(arguments: argparse.Namespace) -> int:
    # Not at the top: threads and mmap are for this command alone.
    from decodewatch.agent import identity
    from decodewatch.agent.hardware import command

    state = load(AgentSettings, "agent", vars(arguments)).state()
    identity.make_state(state)
    seconds = arguments.seconds or command.USUAL_S
    return command.run(state, seconds, arguments.threads, as_json=arguments.json)


def _meter(arguments: argparse.Namespace) -> int:
    # Not at the top: for this command alone.
    import json
    import sys

    from decodewatch.agent.errors import AgentError
    from decodewatch.agent.meter.meter import as_json
    from decodewatch.agent.meter.recorded import metered

    status = 0
    for file in arguments.files:
        try:
            name, made = metered(Path(file))
        except AgentError as error:
            print(f"decodewatch agent: {error}", file=sys.stderr)
            status = 1
        else:
            print(json.dumps({"id": name, "file": file, **as_json(made)}))
    return status


def _seconds(text: str) -> float:
    return _between(float, text, 1, 60)


def _threads(text: str) -> int:
    return _between(int, text, 1, 256)


def _between(kind: type[_Number], text: str, low: int, high: int) -> _Number:
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(
            f"{shown(text)}; accepted is a number from {low} to {high}"
        )
    return value
