"""The documentation says what the code does: every field, event, topic and setting is in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from decodewatch.shared import records, wire

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_generated_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", records.KINDS.values(), ids=records.KINDS)
def test_every_field_of_a_record_is_documented(kind: type[records.Record]) -> None:
    page = (DOCS / "records.md").read_text()
    section = page.split(f"## `{kind.KIND}`")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    assert {item.name for item in kind.FIELDS} <= documented


def test_every_event_that_the_agent_sends_is_documented() -> None:
    page = (DOCS / "records.md").read_text()
    source = "".join(file.read_text() for file in (ROOT / "agent/decodewatch/agent").rglob("*.py"))
    # How events are made in the agent: Event(id, t, "kind", ...) or a helper called _event("kind".
    sent = set(re.findall(r"""Event\(\s*\w+\(\),\s*[\w.()]+,\s*"(\w+)\"""", source))
    sent |= set(re.findall(r"""\b_?event\(\s*"(\w+)\"""", source))
    assert "agent_started" in sent
    assert {kind for kind in sent if f"`{kind}`" not in page} == set()


def test_every_topic_is_documented() -> None:
    page = (DOCS / "mqtt.md").read_text()
    assert all(f"| `{leaf}` |" in page for leaf in wire.LEAVES)


def links() -> list[tuple[Path, str]]:
    """Every relative link of every page."""
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md")]
    return [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if "://" not in target
    ]


@pytest.mark.parametrize(("page", "target"), links(), ids=lambda value: str(value).split("/")[-1])
def test_a_link_leads_to_a_file(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text() + (DOCS / "deploy.md").read_text()
    commands = set(
        re.findall(r"decodewatch ((?:agent|collector|dashboard|broker|up)(?: [a-z]+)?)", text)
    )
    assert commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "decodewatch.shared.cli", *command.split(), "--help"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"decodewatch {command}: {done.stderr}"
