"""A client in C: the inbox needs no Python."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.application import AgentProcess
from support.spooled import events, records
from support.waiting import until

from decodewatch.shared.records import Turn, Window

CLIENT = Path(__file__).resolve().parents[2] / "examples/client.c"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled without a warning. CI installs gcc: see SYSTEM_PACKAGES."""
    made = tmp_path_factory.mktemp("client") / "client"
    strict = ("-Wall", "-Wextra", "-Werror", "-O2", "-fsanitize=undefined")
    command = ["cc", *strict, "-fno-sanitize-recover", "-o", str(made), str(CLIENT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def test_a_client_in_c_gives_the_agent_a_turn_and_hears_that_it_is_stored(
    client: Path, tmp_path: Path
) -> None:
    with AgentProcess(tmp_path, report_interval_s=1, idle_interval_s=1) as agent:
        done = subprocess.run(
            [str(client), str(agent.socket)], capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 0, done.stdout + done.stderr
        welcome, stored = done.stdout.splitlines()
        assert '"welcome"' in welcome and '"stored"' in stored
        until(lambda: "runtime ended" in agent.log.read_text(), 10, "its process has ended")
        assert agent.stop()[0] == 0
    (end,) = events(agent.state, "runtime_ended")
    assert end.data == {"cause": "exit", "said_bye": True}
    (turn,) = records(agent.state, Turn)
    assert turn.id in stored
    assert (turn.prompt_tokens, turn.output_tokens, turn.steps) == (31, 16, 16)
    assert turn.ending == "complete" and turn.ttft_us is not None and turn.decode_us is not None
    assert 15 * 20_000 <= turn.decode_us <= turn.duration_us - turn.ttft_us
    assert turn.memory_end_bytes or turn.memory_start_bytes, "the agent looked at the process"
    # What it told of its steps: depth 32 was the first gap's, 47 the last one's.
    assert [octave for octave, _ in turn.itl] == [5]
    (sketch,) = (sketch for _, sketch in turn.itl)
    assert sketch.n == 15 and abs(sketch.total - turn.decode_us) <= 15
    assert sum(window.tokens for window in records(agent.state, Window)) == 16


def test_the_client_says_so_where_there_is_no_agent_or_it_goes(
    client: Path, tmp_path: Path
) -> None:
    nobody = subprocess.run([str(client), str(tmp_path / "no.sock")], capture_output=True)
    assert nobody.returncode == 1 and b"no.sock" in nobody.stderr
    wrong = subprocess.run([str(client)], capture_output=True)
    assert wrong.returncode == 2 and b"usage" in wrong.stderr
    with AgentProcess(tmp_path) as agent:
        os.kill(agent.pid, signal.SIGSTOP)  # it accepts by its kernel alone, and answers nothing
        left = subprocess.Popen([str(client), str(agent.socket)], stderr=subprocess.PIPE)
        counts = Path(f"/proc/{left.pid}/io")
        # hello, begin, 16 progresses and the turn: all of them are in the socket.
        until(lambda: "syscw: 19\n" in counts.read_text(), 10, "the turn was sent")
        agent.kill()
        _, said = left.communicate(timeout=10)
        assert left.returncode == 1 and b"send the turn again" in said


def test_the_example_is_short_enough_to_be_read() -> None:
    lines = CLIENT.read_text().splitlines()
    assert len(lines) < 65
    assert max(map(len, lines)) <= 100
