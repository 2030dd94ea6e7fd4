"""`make demo`'s program: a real model, the whole path, a summary, a quick stop."""

import os
import re
import signal
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
    log = tmp_path / "out"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [*DEMO, "--tokens", "400"],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the whole foreground group, as in a terminal
        )
    try:
        until(lambda: "[user-1] Why" in log.read_text(), 120, "the first turn")
        began = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(5)
        assert time.monotonic() - began < 5
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    group = subprocess.run(["pgrep", "-g", str(demo.pid)], capture_output=True, text=True)
    assert group.stdout == "", "no process is left"
    assert list(tmp_path.glob("decodewatch-demo-*")) == [], "no folder is left"


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
