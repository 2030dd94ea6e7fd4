"""What cannot be run here (no Docker engine) at least names commands and settings that exist."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from decodewatch.collector.settings import CollectorSettings
from decodewatch.dashboard.settings import DashboardSettings
from decodewatch.shared.settings import load

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"collector": CollectorSettings, "dashboard": DashboardSettings}


def services() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return dict(document["services"])


@pytest.mark.parametrize("name", KINDS)
def test_a_service_of_the_compose_file_has_a_command_and_settings_that_exist(name: str) -> None:
    service = services()[name]
    program, *arguments = service["command"]
    assert program == "decodewatch"
    subprocess.run(
        [sys.executable, "-m", "decodewatch.shared.cli", *arguments, "--help"],
        check=True,
        capture_output=True,
    )
    load(KINDS[name], name, {}, service["environment"])  # raises where a setting does not exist


def test_every_file_that_the_compose_file_mounts_exists() -> None:
    for service in services().values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        build = service.get("build")
        assert build is None or (ROOT / build["dockerfile"]).is_file()


def test_images_and_bases_name_a_version() -> None:
    images = [item["image"] for item in services().values() if "image" in item]
    dockerfile = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    images += [line.split()[1] for line in dockerfile if line.startswith("FROM ")]
    for image in images:
        assert ":" in image and not image.endswith(":latest"), image


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_units_are_valid(tmp_path: Path) -> None:
    for name in ("decodewatch-agent.service", "decodewatch-agent.socket"):
        text = (ROOT / "deploy" / name).read_text()
        # The program is where an installation puts it; any that exists serves for the check.
        (tmp_path / name).write_text(text.replace("/opt/decodewatch/bin/decodewatch", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "decodewatch" in line]
    assert complaints == []


def test_the_command_of_the_unit_exists() -> None:
    unit = (ROOT / "deploy/decodewatch-agent.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])
    subprocess.run(
        [sys.executable, "-m", "decodewatch.shared.cli", *words[1:3], "--help"],
        check=True,
        capture_output=True,
    )
