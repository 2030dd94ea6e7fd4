"""Throttling, from a cooling device to the spool of the agent."""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import recorded_agent
from support.application import AgentProcess, Application
from support.devices import DEVICES
from support.spooled import events, records

from decodewatch.shared.clock import boot_us
from decodewatch.shared.diagnose.throttle import state_of_shares
from decodewatch.shared.records import Sample, Window

GAP_US = 50_000


class Recorded(AgentProcess):
    """The agent on a copy of a recorded Orin Nano."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tree = folder / "tree"
        shutil.copytree(DEVICES / "orin_nano_super", self.tree)

    def command(self) -> list[str]:
        program = [sys.executable, recorded_agent.__file__]
        return [*program, *map(str, (self.tree, self.state, self.socket))]

    def cool_by(self, state: int) -> None:
        """Have the kernel hold the CPU's clock."""
        with (self.tree / "sys/class/thermal/cooling_device0/cur_state").open("r+") as file:
            file.write(f"{state}\n")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path)
    with made:
        yield made


def test_a_turn_that_is_throttled_halfway_is_kept_apart_and_told_of(agent: Recorded) -> None:
    with Application(agent.socket) as application:
        application.hello()
        application.hear()
        time.sleep(0.5)
        application.begin("t1", prompt_tokens=100)

        def decode(first: int, steps: int) -> None:
            made = [[None if first + n == 0 else GAP_US, 1] for n in range(steps)]
            application.say("progress", turn="t1", t=boot_us(), first=first, steps=made, depth=150)

        time.sleep(1)
        decode(0, 10)
        agent.cool_by(4)
        time.sleep(3)  # many readings, and the steps are of the last second
        decode(10, 20)
        application.end("t1")
        application.hear()
    assert agent.stop()[0] == 0
    strata = [one for window in records(agent.state, Window) for one in window.strata]
    assert {one.throttle: one.itl.n for one in strata} == {"none": 9, "thermal": 20}
    (began,) = events(agent.state, "throttle_began")
    assert (began.data["state"], began.data["cooling"]) == ("thermal", "cpufreq-cpu0 27 %")
    shares = [one.values for one in records(agent.state, Sample) if one.runtime is None]
    assert "thermal" in map(state_of_shares, shares)
