"""The one command: what it says when used well, wrongly, or without a component's packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.plain import PORTIONS

from decodewatch.shared import cli
from decodewatch.shared.errors import DecodewatchError, SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
RPI = ROOT / "tests/data/devices/rpi5"


def test_help_names_every_component(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(component.name in text for component in cli.COMPONENTS)


@pytest.mark.parametrize("words", [[], ["nonsense"]])
def test_a_wrong_command_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("see decodewatch --help\ndecodewatch: error: ")


@pytest.mark.parametrize(
    ("error", "status"), [(SettingsError("port: 'x'"), 2), (DecodewatchError("disk full"), 1)]
)
def test_an_error_is_one_line_and_its_kind_is_the_exit_status(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(component: cli.Component) -> None:
        raise error

    monkeypatch.setattr(cli, "_parser", fail)
    assert cli.main(["agent", "run"]) == status
    assert capsys.readouterr().err == f"decodewatch agent: {error}\n"


@pytest.mark.parametrize("words", [["run"], ["--help"]])
def test_a_component_without_its_packages_names_them_and_the_extra(words: list[str]) -> None:
    done = subprocess.run(
        # -S: without the packages that are installed.
        [sys.executable, "-S", "-m", "decodewatch.shared.cli", "collector", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PORTIONS},
    )
    assert done.returncode == 2
    assert done.stderr == (
        "decodewatch collector: not installed: alembic, sqlalchemy; pip install "
        "'decodewatch[collector]' brings them (from a clone: pip install '.[collector]')\n"
    )


def test_only_the_extras_of_what_is_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "EXTRAS", {"collector": ("json",), "broker": ("no_such_package",)})
    with pytest.raises(SettingsError, match=r"not installed: no_such_package; .*\[broker\]' bring"):
        cli.require("collector", "broker")


def test_the_dashboard_on_an_old_python_is_refused_by_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SettingsError, match=r"needs Python 3\.11 or newer; this is 3\.10\.13"):
        cli.require("dashboard")


def test_every_package_that_is_looked_for_is_one_that_its_extra_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = project["optional-dependencies"]
    for extra, names in cli.EXTRAS.items():
        words = " ".join(installs[extra]).replace(
            "decodewatch[collector]", str(installs["collector"])
        )
        assert all(name in words for name in names)


@pytest.mark.parametrize("command", ["agent run", "agent sources"])
def test_a_wrong_flag_is_answered_in_two_lines_of_which_the_last_says_what_is_wrong(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--no-such", "1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"see decodewatch {command} --help\n"
        f"decodewatch {command}: error: unrecognized arguments: --no-such 1\n"
    )


def test_the_help_of_a_subcommand_begins_with_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["agent", "run", "--help"])
    assert "\n\nWatch this device and its runtimes until stopped.\n\n" in capsys.readouterr().out


def test_a_terminal_without_the_signs_that_are_printed_shows_others_in_their_place() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "decodewatch.shared.cli", "agent", "sources", "--root", str(RPI)],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert b"82.95 ?C" in done.stdout
