"""The agent's commands: `decodewatch agent run`, `decodewatch agent sources`."""

import argparse
import json
import time
from pathlib import Path

from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import Reading, Source, open_sources
from decodewatch.shared import logs
from decodewatch.shared.cli import add_command
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.settings import add_flags, load

_BETWEEN_READS_S = 0.5  # shares, such as that of busy CPUs, are known from the second reading on


def add(parser: argparse.ArgumentParser) -> None:
    """Give `decodewatch agent` its subcommands."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = add_command(commands, "run", "watch this device and its runtimes until stopped")
    add_flags(run, AgentSettings)
    run.set_defaults(run=_run)
    sources = add_command(
        commands, "sources", "print what every source reads now, its unit, or why there is nothing"
    )
    sources.add_argument(
        "--root",
        metavar="FOLDER",
        default="/",
        help="folder that has proc and sys, such as a recorded device (default: /)",
    )
    sources.add_argument("--json", action="store_true", help="one JSON object a line")
    sources.set_defaults(run=_sources)


def _run(arguments: argparse.Namespace) -> int:
    # Not at the top: `sources` needs neither the network client nor SQLite.
    from decodewatch.agent import identity, service

    settings = load(AgentSettings, "agent", vars(arguments))
    logs.setup(settings.log_level, settings.log_format)
    state = settings.state()
    identity.make_state(state)
    who = identity.load(state, settings.device)
    listener = service.open_listener(settings)
    try:
        service.Service(
            settings,
            who,
            identity.boot_id(),
            listener,
            sources=open_sources(),
            clock=identity.ClockReader(),
        ).run()
    finally:
        listener.close()
    return 0


def _sources(arguments: argparse.Namespace) -> int:
    root = Path(arguments.root)
    if not root.is_dir():
        raise SettingsError(f"--root: {root} is not a folder; accepted is one with proc and sys")
    sources = open_sources(root)
    for source in sources:
        source.read()
    time.sleep(_BETWEEN_READS_S)
    for source in sources:
        began = time.perf_counter()
        readings = source.read()
        took_us = round((time.perf_counter() - began) * 1_000_000)
        _print(source, readings, took_us, as_json=arguments.json)
        source.close()
    return 0


def _print(source: Source, readings: list[Reading], took_us: int, *, as_json: bool) -> None:
    if not as_json:
        print(f"{source.name} ({took_us} us)")
    for reading in readings:
        row = reading.measurement
        if as_json:
            fields = {
                "source": source.name,
                "measurement": row.name,
                "label": reading.label,
                "kind": row.kind,
                "unit": row.unit,
                "value": reading.value,
                "reason": reading.reason,
                "read_us": took_us,
            }
            print(json.dumps(fields))
        else:
            if reading.value is None:
                shown = f"unknown: {reading.reason}"
            else:
                shown = _for_people(reading.value, row.unit)
            print(f"  {reading.key:<44} {shown}")


def _for_people(value: int | float, unit: str) -> str:
    """A value as a person says it; `--json` has it as it is sent."""
    if unit == "bytes":
        power = min(max(value.bit_length() - 1, 0) // 10, 4) if isinstance(value, int) else 0
        return f"{value / (1 << 10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    if unit == "microseconds":
        return f"{value / 1_000_000:.6g} s"
    if unit == "hertz":
        return f"{value / 1_000_000:.6g} MHz"
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "celsius":
        return f"{value:g} °C"
    return f"{value}" if unit == "count" else f"{value:g} {unit}"
