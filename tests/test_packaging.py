"""The layout holds: portions of one namespace, typed, and a device that needs no server package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("agent", "shared", "collector", "dashboard", "migrations")
SERVER_PACKAGES = {"sqlalchemy", "alembic", "streamlit", "altair", "pandas", "numpy"}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after one statement."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_portion_closes_the_namespace() -> None:
    # One such file would hide the other portions of an editable install, and only there.
    assert not list(ROOT.glob("*/decodewatch/__init__.py"))


@pytest.mark.parametrize("portion", PORTIONS)
def test_every_portion_is_typed(portion: str) -> None:
    assert (ROOT / portion / "decodewatch" / portion / "py.typed").is_file()


@pytest.mark.parametrize(
    "statement",
    [
        "from decodewatch.agent import DecodeMonitor",
        "import decodewatch.agent.service",
        "import decodewatch.agent.cli",
    ],
)
def test_the_device_loads_no_server_package(statement: str) -> None:
    assert not SERVER_PACKAGES & modules_after(statement)


def test_the_wrapper_loads_no_network_client() -> None:
    # It lives inside the user's application, whose memory is not ours to spend.
    loaded = modules_after("from decodewatch.agent import DecodeMonitor")
    assert not {"paho", "ssl", "asyncio", "sqlite3", "psutil"} & loaded


def test_help_loads_no_component() -> None:
    loaded = modules_after(
        "from decodewatch.shared.cli import _overview; _overview().format_help()"
    )
    assert not {"paho", "sqlite3", *SERVER_PACKAGES} & loaded


def test_a_plain_install_brings_only_what_a_device_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [line.partition(">")[0] for line in project["dependencies"]]
    assert names == ["paho-mqtt", "tomli"]


@pytest.mark.slow
def test_a_wheel_holds_every_portion(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)],
        check=True,
    )
    (wheel,) = tmp_path.glob("decodewatch-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for portion in PORTIONS:
        assert f"decodewatch/{portion}/py.typed" in names
    assert "decodewatch/migrations/env.py" in names
    assert not [name for name in names if name == "decodewatch/__init__.py"]
