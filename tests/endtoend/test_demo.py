"""`make demo`'s program: a real model, the whole path, a summary, a quick stop."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "examples/demo.py")]


@pytest.mark.slow
def test_a_demo_that_exits_stores_every_turn_once_and_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--turns", "3", "--exit", "--tokens", "24", "--pause", "0.1"],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 turns (3 complete) in 1 session on 1 device" in done.stdout
    for name in ("TTFT", "ITL", "TPOT"):
        assert re.search(rf"^{name} +[0-9.]+ .* [0-9]+$", done.stdout, re.MULTILINE)
    ledger = re.search(
        r"demo-device +\w+ +(\d+) +(\d+) +\d+ +\d+ +0 +0$", done.stdout, re.MULTILINE
    )
    assert ledger is not None, done.stdout
    assert ledger[1] == ledger[2], "sent and stored"


@pytest.mark.slow
def test_a_demo_stops_within_five_seconds_of_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    log, state = tmp_path / "out", tmp_path / "state"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [*DEMO, "--tokens", "400", "--pause", "0", "--keep", str(state)],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the whole foreground group, as in a terminal
        )
    try:
        until(lambda: "[user-1] Why" in log.read_text(), 120, "the first turn")
        time.sleep(0.5)  # into the second turn
        began = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(5)
        assert time.monotonic() - began < 5
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    said = log.read_text()
    assert "killed" not in said, said
    # Each child has a session of its own: all of them name this folder in command or environment.
    assert processes_that_name(tmp_path) == []
    told = len(re.findall(r"\[user-\d+\]", said))
    assert told >= 2, "the turn that was cut short is told too"
    with sqlite3.connect(state / "server" / "decodewatch.db") as database:
        assert database.execute("SELECT count(*) FROM turn").fetchone() == (told,)
        (last,) = database.execute("SELECT ending FROM turn ORDER BY at DESC LIMIT 1").fetchone()
    assert last == "cancelled"


@pytest.mark.slow
def test_a_demo_leaves_no_folder(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert demo.stdout is not None
    until(lambda: "starting collector" in demo.stdout.readline(), 60)  # type: ignore[union-attr]
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=10)
    assert list(tmp_path.glob("decodewatch-demo-*")) == []


def processes_that_name(folder: Path) -> list[str]:
    """The command lines of the processes that have a folder in command or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if str(folder).encode() in command + (process / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def test_a_wrong_model_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/chat.py"), "--model", str(broken)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert str(broken) in done.stderr
