"""Android and Termux: another platform's name, no psutil, no /tmp, denied files, forbidden calls.

What is run as an app here runs as this machine's own Python, with that of Android's that matters.
"""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.android import NO_FILTER, as_app
from support.application import AgentProcess, Application
from support.devices import DEVICES, FakeKernel, recorded

from decodewatch.agent import android
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import REGISTRY, SourceFactory
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.wrapper.paths import socket_path

PHONE = "snapdragon_8plus_gen1_sm8475"
PLATFORMS = pytest.mark.parametrize("platform", ["android", "linux"])
COMMAND = "from decodewatch.shared.cli import main\nsys.exit(main(sys.argv[1:]))\n"


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )
    if done.returncode == NO_FILTER:
        pytest.skip("this kernel lets no filter of system calls be set")
    return done


class AndroidAgent(AgentProcess):
    """The agent as an app."""

    def command(self) -> list[str]:
        python, _, _, *arguments = super().command()
        return [python, "-c", as_app(COMMAND), *arguments]


def test_a_forbidden_call_ends_an_app() -> None:
    """What the tests below would show if the agent made it."""
    ask = "libc.adjtimex(ctypes.create_string_buffer(512))\n"
    assert run(as_app(ask)).returncode == -signal.SIGSYS


@PLATFORMS
def test_the_clock_is_not_asked_whether_it_is_synchronised(platform: str) -> None:
    lines = (
        "from decodewatch.agent.identity import ClockReader\n"
        "print(ClockReader().read().synchronised)\n"
    )
    done = run(as_app(lines, platform))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"


@PLATFORMS
def test_the_sources_of_a_phone_are_read_without_psutil(platform: str) -> None:
    """Report 32: psutil#2611, importing it raises where sys.platform is `android`."""
    tree = str(DEVICES / PHONE)
    done = run(as_app(COMMAND, platform), "agent", "sources", "--root", tree, "--json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["measurements"]}
    assert found["cpu_busy_share"]["value"] is None
    assert found["cpu_busy_share"]["reason"] == "denied"
    assert found["oom_kills"]["reason"] == "denied"
    assert any(name.startswith("cpu_hertz") for name in found)


def test_the_agent_starts_follows_a_runtime_and_stops(tmp_path: Path) -> None:
    """Reports 31 and 32: psutil fails there at import, or at the first denied file."""
    run(as_app("pass\n"))  # skips where it cannot run
    with AndroidAgent(tmp_path) as agent, Application(agent.socket) as application:
        application.hello()
        assert application.hear()["type"] == "welcome"
        application.begin("t1")
        application.end("t1")
        assert application.hear() == {"type": "stored", "turn": "t1"}
        status, took = agent.stop()
        assert status == 0 and took < 5


def test_a_wrapped_loop_runs_in_an_app(tmp_path: Path) -> None:
    lines = (
        "from decodewatch.agent import DecodeMonitor\n"
        "monitor = DecodeMonitor('chat', engine='toy')\n"
        "print(''.join(monitor.watch(iter('abc'))))\n"
    )
    done = run(as_app(lines))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "abc\n"


# denied files


@pytest.mark.parametrize(("name", "factory"), REGISTRY, ids=[name for name, _ in REGISTRY])
def test_what_is_denied_is_asked_once_in_ten_minutes(
    name: str, factory: SourceFactory, tmp_path: Path
) -> None:
    """Reports 31 and 39: psutil#2195, kiosk-satellite#138."""
    kernel = recorded(PHONE, tmp_path)
    for path in ("/proc", "/sys"):
        kernel.faults[path] = errno.EACCES
    source = factory(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        source.read()
        kernel.now += 1
    asked = kernel.opens + kernel.listings
    refused = [path for path in asked if kernel.fault(path) == errno.EACCES]
    # Twice is a folder whose members have two kinds of names.
    often = {path: refused.count(path) for path in refused if refused.count(path) > 2}
    assert not often
    source.close()


def test_a_process_of_its_own_is_read_where_the_system_is_denied(tmp_path: Path) -> None:
    """Report 31: an app may read /proc/self, and nothing of the system."""
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/77/stat", "77 (app) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 555 0 0\n")
    kernel.write("/proc/77/status", "RssAnon:\t100 kB\nVmSwap:\t5 kB\n")
    kernel.write("/proc/77/cgroup", "0::/\n")
    for path in ("/proc/stat", "/proc/self/mountinfo", "/sys", "/proc/77/smaps_rollup"):
        kernel.faults[path] = errno.EACCES
    process = ProcessReader(77, tmp_path, kernel, ticks_per_second=100)
    for _ in range(int(REPROBE_S) - 1):
        assert process.alive() is True
        assert process.memory().anon_and_swap == 105 * 1024
        process.read()
        kernel.now += 1
    refused = [path for path in kernel.opens if kernel.fault(path) is not None]
    assert sorted(refused) == ["/proc/77/smaps_rollup", "/proc/self/mountinfo"]


# where things are


@pytest.fixture
def on_android(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "android")


def test_android_is_known_by_either_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not android.is_android()
    monkeypatch.setattr(sys, "getandroidapilevel", lambda: 24, raising=False)
    assert android.is_android()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "android")
    assert android.is_android()


@pytest.mark.usefixtures("on_android")
def test_agent_and_application_meet_where_termux_has_its_temporary_files(tmp_path: Path) -> None:
    """There is no /tmp for apps, and neither /run nor /var for root."""
    termux = {"TMPDIR": "/data/data/com.termux/files/usr/tmp"}
    expected = Path(termux["TMPDIR"], f"decodewatch-{os.geteuid()}", "agent.sock")
    settings = AgentSettings()
    assert settings.socket_path(termux) == expected
    assert socket_path(termux, tmp_path / "none") == expected
    assert settings.socket_path({}) == socket_path({}, tmp_path / "none")
    assert settings.state({"XDG_STATE_HOME": "/x"}) == Path("/x/decodewatch")
