"""Writes the pages that are made from the code: settings.md and measurements.md.

python docs/generate.py           writes them
python docs/generate.py --check   exits with 1 where one is not what the code says
"""

import sys
from pathlib import Path

from decodewatch.agent import sources
from decodewatch.agent.runtimes import cgroup, process
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources.kit.base import Measurement
from decodewatch.collector.broker import EmbeddedSettings
from decodewatch.collector.settings import CollectorSettings
from decodewatch.collector.up import UpSettings
from decodewatch.dashboard.settings import DashboardSettings
from decodewatch.shared.settings import DEFAULT_FILE, describe

FOLDER = Path(__file__).resolve().parent
SECTIONS = (
    ("agent", "decodewatch agent run", AgentSettings),
    ("collector", "decodewatch collector", CollectorSettings),
    ("dashboard", "decodewatch dashboard run", DashboardSettings),
    ("broker", "decodewatch broker run", EmbeddedSettings),
    ("up", "decodewatch up", UpSettings),
)
SETTINGS_TOP = f"""\
# Settings

*Made from the code by `python docs/generate.py`.*

Every setting has four sources, the later ones winning: its default; the table of its component in
a TOML file (`--settings FILE`, else `$DECODEWATCH_SETTINGS`, else `{DEFAULT_FILE}`
where that exists); the environment, `DECODEWATCH_<TABLE>_<SETTING>`; the command's flag, with `-`
for `_`. A setting that is unknown, of the wrong type or out of range stops the command with status
2 and says what is accepted.
"""
MEASUREMENTS_TOP = """\
# Measurements

*Made from the code by `python docs/generate.py`.*

What the agent reads on Linux. A measurement with several sensors has a label after a colon, e.g.
`temp_celsius:cpu-thermal`. A gauge is sent as mean, minimum and maximum of an interval, a counter
as its increase. What cannot be read is sent with its reason: `absent`, `denied`, `transient`,
`implausible`, `unsupported`, or `unlimited` for a limit that is not set; never as 0.
`decodewatch agent sources` shows all of it on the machine it runs on.
"""


def settings_page() -> str:
    parts = [SETTINGS_TOP]
    for section, command, kind in SECTIONS:
        parts.append(f"\n## `[{section}]`: {command}\n")
        parts.append("| setting | default | accepted | meaning |\n|---|---|---|---|")
        for item in describe(kind):
            default = "" if item.default is None else f"`{item.default}`"
            parts.append(f"| `{item.name}` | {default} | {item.accepted} | {item.accepts.help} |")
    return "\n".join(parts) + "\n"


def _table(heading: str, rows: "tuple[Measurement, ...]") -> str:
    lines = [f"\n## {heading}\n", "| measurement | unit | kind | meaning |\n|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.unit} | {row.kind} | {row.help} |" for row in rows]
    return "\n".join(lines)


def measurements_page() -> str:
    return (
        "\n".join(
            (
                MEASUREMENTS_TOP,
                _table("The system", tuple(sources.MEASUREMENTS)),
                _table("A runtime's process", tuple(process.MEASUREMENTS)),
                _table("A runtime's cgroup", tuple(cgroup.MEASUREMENTS)),
            )
        )
        + "\n"
    )


PAGES = {"settings.md": settings_page, "measurements.md": measurements_page}


def main() -> int:
    stale = []
    for name, page in PAGES.items():
        file = FOLDER / name
        if "--check" not in sys.argv:
            file.write_text(page(), encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != page():
            stale.append(name)
    if stale:
        print(f"not what the code says: {', '.join(stale)}; run: python docs/generate.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
