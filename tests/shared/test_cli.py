"""The one command: what it says when used well, wrongly, or without a component's packages."""

import subprocess
import sys

import pytest

from decodewatch.shared import cli
from decodewatch.shared.errors import DecodewatchError, SettingsError


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
    assert "usage: decodewatch" in capsys.readouterr().err


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
    assert capsys.readouterr().err == f"decodewatch: {error}\n"


def test_a_component_without_its_packages_names_the_extra() -> None:
    # A meta path finder that hides SQLAlchemy is what a device without the extra looks like.
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sqlalchemy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
from decodewatch.shared.cli import main
sys.exit(main(["collector", "run"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "decodewatch: decodewatch collector: the package 'sqlalchemy' is not installed; "
        "pip install 'decodewatch[collector]' brings it\n"
    )
