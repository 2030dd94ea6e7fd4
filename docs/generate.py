"""Writes the pages that are made from the code: settings.md and measurements.md.

python docs/generate.py           writes them
python docs/generate.py --check   exits with 1 where one is not what the code says
"""

import sys
from pathlib import Path

from decodewatch.agent import sources, throttle
from decodewatch.agent.proxy.settings import ProxySettings
from decodewatch.agent.runtimes import cgroup, process
from decodewatch.agent.scrape import scraper
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources.kit.base import Measurement
from decodewatch.collector.broker import EmbeddedSettings
from decodewatch.collector.settings import CollectorSettings
from decodewatch.collector.up import UpSettings
from decodewatch.dashboard.settings import DashboardSettings
from decodewatch.shared.settings import DEFAULT_FILE, TABLES, describe

FOLDER = Path(__file__).resolve().parent
SETTINGS = {
    "agent": AgentSettings,
    "proxy": ProxySettings,
    "collector": CollectorSettings,
    "dashboard": DashboardSettings,
    "broker": EmbeddedSettings,
    "up": UpSettings,
}
SETTINGS_TOP = f"""\
# Settings

*Made from the code by `python docs/generate.py`.*

Every setting has four sources, the later ones winning: its default; the table of its component in
a TOML file (`--settings FILE`, else `$DECODEWATCH_SETTINGS`, else `{DEFAULT_FILE}`
where that exists); the environment, `DECODEWATCH_<TABLE>_<SETTING>`; the command's flag, with `-`
for `_`. A setting that is unknown, of the wrong type or out of range stops the command with status
2 and says what is accepted; so does a table of the file that is none of these. Several components
may share one file: each reads its own table.
"""
MEASUREMENTS_TOP = """\
# Measurements

*Made from the code by `python docs/generate.py`.*

What the agent reads, source by source, in the order in which sources are believed: where two
of them know the same measurement, the first one's value is taken. A measurement with several
sensors has a label after a colon, e.g. `temp_celsius:cpu-thermal`. A gauge is sent as mean, minimum
and maximum of an interval, a counter as its increase; a word is a setting of the device, and an
event tells when it changes. What cannot be read is sent with its reason: `absent`, `denied`,
`transient`, `implausible`, `unsupported`, or `unlimited` for a limit that is not set; never as 0.
`decodewatch agent sources` shows all of it on the machine it runs on.
"""


def settings_page() -> str:
    parts = [SETTINGS_TOP]
    for table, command in TABLES.items():
        parts.append(f"\n## `[{table}]`: {command}\n")
        parts.append("| setting | default | accepted | meaning |\n|---|---|---|---|")
        for item in describe(SETTINGS[table]):
            default = "" if item.default is None else f"`{item.default}`"
            parts.append(f"| `{item.name}` | {default} | {item.accepted} | {item.accepts.help} |")
    return "\n".join(parts) + "\n"


def _where(platform: str, permission: str, reads: str) -> str:
    return f"Platform: {platform}. Permission: {permission}. Source: `{reads}`."


def _rows(rows: "tuple[Measurement, ...]") -> list[str]:
    lines = ["", "| measurement | unit | kind | meaning |\n|---|---|---|---|"]
    lines += [f"| `{row.name}` | {_unit(row)} | {row.kind} | {row.help} |" for row in rows]
    return lines


def _unit(row: Measurement) -> str:
    return "" if row.unit == "word" else row.unit.replace("_", " ")


def measurements_page() -> str:
    lines = [MEASUREMENTS_TOP]
    for name, factory in sources.REGISTRY:
        lines.append(f"\n## {name}\n")
        lines.append(_where(factory.platform, factory.permission, factory.reads))
        lines += _rows(factory.measurements)
    lines.append("\n## The throttle verdict\n")
    lines.append(_where("all", "anyone", "the readings above"))
    lines += _rows((throttle.SHARE,))
    lines.append("\n## A runtime's process\n")
    lines.append(_where("Linux", "root, and the process's own user", "/proc/PID"))
    lines += _rows(process.MEASUREMENTS)
    lines.append("\n## A runtime's cgroup\n")
    lines.append(_where("Linux, cgroup version 1 and 2", "anyone", "the mounted cgroups"))
    lines += _rows(cgroup.MEASUREMENTS)
    lines.append("\n## A scraped server\n")
    lines.append(_where("any", "the server's API key, where it wants one", "/metrics, /slots"))
    lines += _rows(scraper.MEASUREMENTS)
    return "\n".join(lines) + "\n"


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
