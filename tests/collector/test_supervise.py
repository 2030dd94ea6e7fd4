"""Programs that are started together, kept running and stopped together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import until

from decodewatch.collector import supervise
from decodewatch.collector.errors import ServerError
from decodewatch.collector.supervise import Child, Supervisor
from decodewatch.shared.lifecycle import Stop

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); open({0!r}, 'w'); time.sleep(600)"
)


def python(code: str, name: str = "child", **more: object) -> Child:
    return Child(name, [sys.executable, "-c", code], **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def pids(folder: Path) -> list[int]:
    """The processes that have run, each of which leaves a file named after it."""
    return sorted(int(file.name) for file in folder.iterdir())


def leaves_its_pid(folder: Path, then: str) -> str:
    return f"import os; open({str(folder)!r} + '/' + str(os.getpid()), 'w'); {then}"


def test_children_start_in_order_each_after_the_one_before_is_ready(tmp_path: Path) -> None:
    order: list[str] = []

    def ready(name: str) -> str | None:
        order.append(name)
        return None if order.count(name) == 2 else "not yet"

    with Supervisor() as supervisor:
        for name in ("one", "two"):
            assert supervisor.start(
                python(SLEEP, name, ready=lambda name=name: ready(name)), Stop()
            )
    assert order == ["one", "one", "two", "two"]


def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        supervisor.start(python(leaves_its_pid(tmp_path, SLEEP)), Stop())
        (first,) = until(lambda: pids(tmp_path))
        os.kill(first, signal.SIGKILL)
        until(lambda: supervisor.tend() is None and len(pids(tmp_path)) == 2)
        assert supervisor.tend() is None
        (second,) = set(pids(tmp_path)) - {first}
        assert alive(second)
    assert not alive(second)


def test_a_child_that_dies_again_and_again_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "RESTART_S", (0.01, 0.01))
    with Supervisor() as supervisor:
        supervisor.start(python("import time; time.sleep(0.2); raise SystemExit(7)"), Stop())
        until(lambda: supervisor.tend() == 1, 60)


def test_a_child_whose_settings_are_wrong_is_not_started_again() -> None:
    with Supervisor() as supervisor:
        supervisor.start(python("import time; time.sleep(0.2); raise SystemExit(2)"), Stop())
        until(lambda: supervisor.tend() == 2)


def test_a_child_that_ends_while_it_starts_is_named_with_its_status() -> None:
    child = python("raise SystemExit(3)", "broker", ready=lambda: "not yet")
    with Supervisor() as supervisor, pytest.raises(ServerError, match=r"broker ended.*status 3"):
        supervisor.start(child, Stop())


def test_a_child_that_does_not_get_ready_is_named_with_the_reason() -> None:
    child = python(SLEEP, "broker", ready=lambda: "says nothing", ready_within_s=0.3)
    with Supervisor() as supervisor, pytest.raises(ServerError, match=r"broker.*says nothing"):
        supervisor.start(child, Stop())


def test_a_child_may_be_allowed_to_end() -> None:
    with Supervisor() as supervisor:
        supervisor.start(python("raise SystemExit(5)", "example", restart=False), Stop())
        assert until(lambda: supervisor.status("example")) == 5
        assert supervisor.tend() is None


def test_a_command_that_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child("broker", ["/nowhere/program"], ready=lambda: "not yet")
    with Supervisor() as supervisor, pytest.raises(ServerError, match="broker ended"):
        supervisor.start(child, Stop())
    said = [""]

    def shown() -> bool:
        said[0] += capfd.readouterr().err
        return "broker    | tether: /nowhere/program: No such file" in said[0]

    until(shown)


def test_stopping_takes_less_than_five_seconds_whatever_a_child_does(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        marks = [tmp_path / "one", tmp_path / "two"]
        for mark in marks:
            supervisor.start(python(STUBBORN.format(str(mark)), mark.name), Stop())
        until(lambda: all(mark.exists() for mark in marks))
        began = time.monotonic()
    assert time.monotonic() - began < 5


def test_a_child_goes_only_after_those_that_were_started_after_it(tmp_path: Path) -> None:
    marks = {name: tmp_path / name for name in ("agent", "chat")}
    code = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    asked = time.monotonic()\n"
        "    time.sleep(0.8)\n"
        "    open({0!r}, 'w').write(f'{{asked}} {{time.monotonic()}}')\n"
        "    sys.exit()\n"
        "signal.signal(15, stop)\n"
        "open({0!r}, 'w')\n"
        "time.sleep(600)"
    )
    with Supervisor() as supervisor:
        for name, mark in marks.items():
            supervisor.start(python(code.format(str(mark)), name), Stop())
        until(lambda: all(mark.exists() for mark in marks.values()))
    asked = {name: float(mark.read_text().split()[0]) for name, mark in marks.items()}
    assert asked["agent"] > float(marks["chat"].read_text().split()[1])


def test_ctrl_c_in_a_terminal_reaches_no_child(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        supervisor.start(python(leaves_its_pid(tmp_path, SLEEP)), Stop())
        (child,) = until(lambda: pids(tmp_path))
        assert os.getsid(child) == os.getpgid(child) == child


def test_being_asked_to_stop_ends_the_wait_for_a_child() -> None:
    stop = Stop()
    stop.set()
    with Supervisor() as supervisor:
        assert not supervisor.start(python(SLEEP, ready=lambda: "never"), stop)


def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from decodewatch.collector.supervise import Child, Supervisor
from decodewatch.shared.lifecycle import Stop
supervisor = Supervisor()
child = Child("child", [sys.executable, "-c", {leaves_its_pid(tmp_path, SLEEP)!r}])
supervisor.start(child, Stop())
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    (child,) = until(lambda: pids(tmp_path))
    process.kill()
    process.wait()
    until(lambda: not alive(child), 5)
