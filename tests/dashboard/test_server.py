"""`decodewatch dashboard run`: what it refuses, how it starts and how it stops."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from support.brokers import free_port
from support.waiting import until

from .conftest import answers, dashboard

RUN = (sys.executable, "-m", "decodewatch.shared.cli", "dashboard", "run")


def refused(*flags: str) -> tuple[int, str]:
    done = subprocess.run([*RUN, *flags], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_an_address_that_others_can_reach_is_refused_with_the_way_out(host: str) -> None:
    status, said = refused("--listen-host", host)
    assert status == 2
    assert host in said and "no sign-in" in said and "ssh -L" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--listen-port", "0"), "--listen-port"),
        (("--refresh-s", "soon"), "--refresh-s"),
        (("--listen-host", "no such host"), "listen_host"),
        (("--database", "mysql://root:secret@x/y"), "database"),
        (("--log-level", "loud"), "--log-level"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_accepted(flags: tuple[str, str], named: str) -> None:
    status, said = refused(*flags)
    assert status == 2
    assert named in said and "accepted" in said
    assert "secret" not in said and "Traceback" not in said


def test_a_port_that_is_taken_is_a_failure_with_a_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        database = f"sqlite:///{tmp_path / 'd.db'}"
        status, said = refused("--listen-port", str(port), "--database", database)
    assert status == 1
    assert f"listen_port {port}" in said and "in use" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_within_five_seconds_and_in_good_order(
    number: signal.Signals, tmp_path: Path
) -> None:
    port = free_port()
    flags = ("--listen-port", str(port), "--database", f"sqlite:///{tmp_path / 'd.db'}")
    process = subprocess.Popen([*RUN, *flags, "--log-format", "json"], stderr=subprocess.PIPE)
    until(lambda: answers(f"http://127.0.0.1:{port}"), 30, "dashboard answers")
    began = time.monotonic()
    process.send_signal(number)
    _, log = process.communicate(timeout=5)
    assert time.monotonic() - began < 5
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["event"] for line in lines] == [
        "dashboard starting",
        "dashboard ready",
        "dashboard stopped",
    ]


def test_it_listens_on_the_loopback_only(fleet_url: str, tmp_path: Path) -> None:
    with dashboard(fleet_url, tmp_path) as address:
        port = int(address.rpartition(":")[2])
        table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        listening = {
            line.split()[1].split(":")[0]
            for line in table.splitlines()
            if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        }
        assert listening == {"0100007F"}


def test_the_page_asks_nobody_else_for_anything(fleet_at: str) -> None:
    with urllib.request.urlopen(fleet_at, timeout=5) as answer:
        page = answer.read().decode()
    assert "https://" not in page.replace("https://www.w3.org", "")
