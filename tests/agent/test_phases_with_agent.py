"""Power by phase and joules a token, from a wrapped loop and a rail to the spool of the agent."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import recorded_agent
from support.application import AgentProcess
from support.devices import DEVICES
from support.spooled import records
from support.waiting import until

from decodewatch.shared.energy import totals
from decodewatch.shared.records import Phase, Sample, Turn, Window

BOARD = "agx_orin_64gb_r35"
TOTAL, GPU = "device_watts:sum", "power_watts:VDD_GPU_SOC"
VOLTS = 20.008
AMPS = {"idle": 0.120, "prefill": 0.920, "decode": 0.520}
TOKENS, TOKEN_S, PREFILL_S = 120, 0.03, 1.2

# It draws what it does from the rail: as long a number each time, over the one that was there.
_LOOP = f"""
import os, sys, time
from decodewatch.agent import DecodeMonitor
rail = os.open(sys.argv[1], os.O_WRONLY)
def draw(amps):
    os.pwrite(rail, b"%03d\\n" % round(1000 * amps), 0)
def decode():
    draw({AMPS["prefill"]})
    time.sleep({PREFILL_S})
    draw({AMPS["decode"]})
    for token in range({TOKENS}):
        yield token
        time.sleep({TOKEN_S})
    draw({AMPS["idle"]})
monitor = DecodeMonitor("chat", engine="plain")
time.sleep(1)
with monitor.turn(prompt_tokens=100) as turn:
    for token in turn.watch(decode()):
        if sys.argv[2:] and token == {TOKENS // 2}:
            os._exit(9)
assert monitor.flush(10)
time.sleep(1)
"""


class Recorded(AgentProcess):
    """The agent on a copy of a recorded device."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tree = folder / "tree"
        shutil.copytree(DEVICES / BOARD, self.tree)

    @property
    def rail(self) -> Path:
        return self.tree / "sys/class/hwmon/hwmon3/curr1_input"

    def command(self) -> list[str]:
        program = [sys.executable, recorded_agent.__file__]
        return [*program, *map(str, (self.tree, self.state, self.socket))]

    def run(self, *more: str) -> int:
        """Run the loop to its end, and how it ended."""
        environment = {**os.environ, "DECODEWATCH_SOCKET": str(self.socket)}
        command = [sys.executable, "-c", _LOOP, str(self.rail), *more]
        return subprocess.run(command, env=environment, timeout=60, check=False).returncode

    def phases(self) -> list[dict[str, Phase]]:
        return [dict(one.phases) for one in records(self.state, Sample) if one.phases]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path)
    with made:
        yield made


def test_power_and_utilisation_are_apart_by_the_turns_own_times(agent: Recorded) -> None:
    assert agent.run() == 0
    assert agent.stop()[0] == 0
    found = totals(agent.phases())
    assert set(found) == {"idle", "prefill", "decode"}
    (turn,) = records(agent.state, Turn)
    assert turn.output_tokens == TOKENS and turn.ttft_us is not None
    # Every token once, but for the first, which prefill made.
    windows = sum(window.tokens for window in records(agent.state, Window))
    assert windows == TOKENS
    assert {name: total.tokens for name, total in found.items() if total.tokens} == {
        "decode": TOKENS - turn.first_tokens
    }
    # The agent's boot clock and the wrapper's monotonic one are some microseconds apart.
    assert found["prefill"].duration_us == pytest.approx(turn.ttft_us, abs=2000)
    decoded = turn.duration_us - turn.ttft_us
    assert found["decode"].duration_us == pytest.approx(decoded, abs=2000)
    base = found["idle"].levels[TOTAL].mean - VOLTS * AMPS["idle"]
    for phase, amps in AMPS.items():
        watts = found[phase].levels[GPU].mean
        assert watts == pytest.approx(VOLTS * amps, rel=0.05)
        assert found[phase].levels[TOTAL].mean == pytest.approx(watts + base, rel=0.01)
        assert found[phase].levels["dram_busy_share"].mean == pytest.approx(0.01)
    # All the time is in a phase, up to the last reading.
    system = [one for one in records(agent.state, Sample) if one.runtime is None]
    read_us = sum(sample.duration_us for sample in system)
    assert sum(total.duration_us for total in found.values()) == read_us
    decode = found["decode"].levels[TOTAL]
    joules = decode.integral / 1e6 / decode.tokens
    per_token_s = decoded / 1e6 / (TOKENS - 1)
    assert joules == pytest.approx((VOLTS * AMPS["decode"] + base) * per_token_s, rel=0.05)


def test_a_turn_ends_with_its_process(agent: Recorded) -> None:
    assert agent.run("die") == 9
    until(lambda: b"runtime ended" in agent.log.read_bytes())
    time.sleep(1)  # a turn that was thought to go on would decode
    agent.stop()
    (lost,) = records(agent.state, Turn)
    assert lost.ending == "lost"
    found = totals(agent.phases())
    windows = sum(window.tokens for window in records(agent.state, Window))
    assert found["decode"].tokens == windows - lost.first_tokens > 0
    decoded = lost.duration_us - lost.ttft_us
    assert found["decode"].duration_us == pytest.approx(decoded, abs=100_000)
