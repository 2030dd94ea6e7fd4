"""The agent's commands: what they print, and how they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.application import AgentProcess
from support.devices import DEVICES

from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.show import Machine, Read, as_text, for_people
from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as
from decodewatch.shared.diagnose.throttle import Verdict
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.records import Scalar

COMMAND = [sys.executable, "-m", "decodewatch.shared.cli", "agent"]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )


def test_sources_prints_every_measurement_of_this_machine() -> None:
    done = run("sources")
    assert done.returncode == 0, done.stderr
    assert "mem_total_bytes" in done.stdout
    assert "meminfo: /proc/meminfo" in done.stdout


@pytest.mark.parametrize("board", sorted(path.name for path in DEVICES.iterdir() if path.is_dir()))
def test_sources_reads_a_recorded_device_and_says_why_not(board: str) -> None:
    done = run("sources", "--root", str(DEVICES / board), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["measurements"]
    assert found
    for reading in found:
        assert list(reading) == ["name", "value", "unit", "source", "reason"]
        assert (reading["value"] is None) == (reading["reason"] is not None)
        assert reading["unit"] and reading["source"]
    names = [reading["name"] for reading in found]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (25_276_510_208, "bytes", "23.54 GiB"),
        (0, "bytes", "0 bytes"),
        (1_328_683_251, "microseconds", "1328.68 s"),
        (1_728_000_000, "hertz", "1728 MHz"),
        (0.254, "share", "25.4 %"),
        (61.5, "celsius", "61.5 °C"),
        (7, "count", "7"),
    ],
)
def test_sources_prints_values_as_people_say_them(value: float, unit: str, shown: str) -> None:
    assert for_people(value, unit) == shown


def reading(row: Measurement, value: float | None, reason: Reason = "absent") -> Reading:
    return read_as(row, value, reason)


SLOWED = Measurement("cpu_throttle_microseconds", "microseconds", "counter", "")
ENERGY = Measurement("energy_joules", "joules", "counter", "")
BUSY = Measurement("cpu_busy_share", "share", "gauge", "")


def test_counters_say_since_when_they_count_and_names_in_microseconds_are_explained_once() -> None:
    rows = [reading(SLOWED, 2_801_440_000), reading(ENERGY, 5.0), reading(BUSY, 0.5)]
    text = as_text([Read("a", "/a", rows, 1), Read("b", "/b", rows, 1)])
    assert text.count("2801.44 s since boot\n") == 2
    assert text.count("5 J since the counter began\n") == 2
    assert text.count("50 %\n") == 2
    assert text.count("*_microseconds: shown in s here") == 1
    assert "_microseconds:" not in as_text([Read("b", "/b", [reading(BUSY, 0.5)], 1)])


def test_what_may_not_be_read_comes_before_what_is_not_there() -> None:
    found = [
        Read("one", "/one", [reading(BUSY, None)], 1),
        Read("two", "/two", [reading(BUSY, None, "denied"), reading(SLOWED, None)], 1),
        Read("three", "/three", [reading(BUSY, None)], 1),
    ]
    lines = as_text(found).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["Nothing", "two", "one", "three"]


@pytest.mark.parametrize("known", [False, True])
def test_a_device_without_a_ceiling_says_how_to_get_one(known: bool) -> None:
    description: dict[str, Scalar] = {"spec_note": "not in the table of known devices"}
    if known:
        description["ceiling_bytes_per_second"] = 41_200_000_000
    verdict = Verdict("none", "low", {}, "Nothing.", ())
    text = as_text([], Machine(description, verdict))
    assert ("devices; `decodewatch agent bandwidth` measures it\n" in text) != known


def test_a_log_that_cannot_be_read_to_its_end_exits_with_1() -> None:
    done = run("sources", "--tegrastats", "/proc/self/mem")  # opens, and gives EIO at its beginning
    assert done.returncode == 1
    assert done.stderr == "decodewatch agent: /proc/self/mem: cannot be read: Input/output error\n"


def test_sources_of_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run("sources", "--root", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert f"--root: {tmp_path}/nothing is not a folder" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "a/b"], "device: 'a/b' is not a device id"),
        (["--device", "a\x07b"], "device: 'a\\x07b' is not a device id"),
        (["--sample-interval-s", "0"], "--sample-interval-s: '0'; accepted is a number from 0.1"),
        (["--broker-port", "99999"], "--broker-port: '99999'; accepted is a whole number"),
        (["--socket-mode", "0777"], "--socket-mode: '0777'; accepted is 0660 or 0666"),
        (["--spool-limit-bytes", "1"], "--spool-limit-bytes: '1'; accepted"),
        (["--settings", "/nonexistent.toml"], "/nonexistent.toml: no such settings file"),
        (["--socket", "/tmp/" + "x" * 120], "has 125 bytes; accepted are 107"),
        (["--broker-user", "u", "--broker-password-file", "/nonexistent"], "/nonexistent"),
        (["--broker-ca-file", "/nonexistent"], "broker_ca_file"),
    ],
)
def test_wrong_settings_exit_with_2_and_name_what_is_accepted(
    tmp_path: Path, flags: list[str], message: str
) -> None:
    here = ["--state-folder", str(tmp_path / "state"), "--socket", str(tmp_path / "s")]
    done = run("run", *here, *flags)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_an_unknown_setting_in_the_environment_is_refused(tmp_path: Path) -> None:
    done = run("run", DECODEWATCH_AGENT_DEVICES="x")
    assert done.returncode == 2
    assert "$DECODEWATCH_AGENT_DEVICES: no such setting; known are" in done.stderr


def test_a_spool_path_that_is_a_folder_exits_with_1(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path)
    (agent.state / "spool.db").mkdir(parents=True)
    done = subprocess.run(agent.command(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert f"{agent.state}/spool.db is a folder" in done.stderr


def test_a_state_folder_that_cannot_be_made_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    done = subprocess.run(
        AgentProcess(tmp_path).command(), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert f"state_folder: {tmp_path}/state: File exists" in done.stderr


def test_a_second_agent_on_one_socket_or_one_spool_exits_with_1(tmp_path: Path) -> None:
    with AgentProcess(tmp_path) as first:
        done = subprocess.run(first.command(), capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert f"socket: {first.socket}: in use by another process" in done.stderr
        second = AgentProcess(tmp_path, socket=tmp_path / "other.sock")
        done = subprocess.run(second.command(), capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert "spool.db is in use by another agent" in done.stderr
        assert first.socket.exists()
        assert first.stop()[0] == 0


def test_a_spool_that_is_not_a_database_is_set_aside_and_said_so(tmp_path: Path) -> None:
    from support.spooled import events

    agent = AgentProcess(tmp_path)
    agent.state.mkdir()
    (agent.state / "spool.db").write_bytes(b"not a database\n" * 1000)
    with agent:
        assert agent.stop()[0] == 0
    (event,) = events(agent.state, "agent_started")
    assert str(event.data["spool_set_aside"]).startswith("spool.db.")


# Where things are by default.


def test_the_state_folder_follows_its_rules(tmp_path: Path) -> None:
    settings = AgentSettings()
    assert settings.state({"STATE_DIRECTORY": "/a:/b"}) == Path("/a")
    assert AgentSettings(state_folder=tmp_path).state({"STATE_DIRECTORY": "/a"}) == tmp_path
    expected = "/var/lib/decodewatch" if os.geteuid() == 0 else "/x/decodewatch"
    assert settings.state({"XDG_STATE_HOME": "/x"}) == Path(expected)


def test_the_socket_follows_its_rules(tmp_path: Path) -> None:
    settings = AgentSettings()
    assert settings.socket_path({"DECODEWATCH_SOCKET": "/s"}) == Path("/s")
    assert settings.socket_path({"RUNTIME_DIRECTORY": "/r"}) == Path("/r/agent.sock")
    own = AgentSettings(socket=tmp_path / "s")
    assert own.socket_path({"DECODEWATCH_SOCKET": "/s"}) == tmp_path / "s"
    with pytest.raises(SettingsError, match=r"socket: .* has 200 bytes; accepted are 107"):
        AgentSettings(socket=Path("/" + "x" * 199)).socket_path({})
