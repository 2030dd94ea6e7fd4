"""A disk image that is copied to other hardware, the agent's state and all."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.devices import recorded
from support.records import a_turn
from support.spooled import batches, events
from support.spooling import now, open_spool
from support.waiting import until

from decodewatch.agent import identity
from decodewatch.agent.spool.spool import Spool

PROGRAM = Path(__file__).parents[2] / "support" / "hardware_agent.py"


def spool_of(device: str, file: Path) -> Spool:
    return Spool.open(file, device=device, boot="boot-1", clock=now)


def waiting(spool: Spool) -> int:
    return spool.depth()[0]


def test_the_batches_of_another_device_are_set_aside_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "spool.db"
    with contextlib.closing(open_spool(file)) as original:
        original.append([a_turn("t1")])
        stream = original.stream
    with contextlib.closing(spool_of("dev-2", file)) as clone:
        assert waiting(clone) == 0
        assert clone.previous is None, "the predecessor of its stream is no stream of its own"
        assert clone.set_aside is not None
        aside = clone.set_aside
        clone.append([a_turn("t2")])
    # Nothing of it is lost: under its old name it opens for the device that filled it.
    with contextlib.closing(open_spool(aside)) as recovered:
        assert waiting(recovered) == 1 and recovered.previous == stream
    with contextlib.closing(spool_of("dev-2", file)) as again:
        assert again.set_aside is None and waiting(again) == 1


def test_a_spool_from_before_devices_were_noted_is_this_device_s(tmp_path: Path) -> None:
    import sqlite3

    file = tmp_path / "spool.db"
    with contextlib.closing(open_spool(file)) as old:
        old.append([a_turn("t1")])
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("DELETE FROM meta WHERE name = 'device'")
        database.commit()
    with contextlib.closing(open_spool(file)) as spool:
        assert spool.set_aside is None and waiting(spool) == 1
    with contextlib.closing(spool_of("dev-2", file)) as clone:
        assert clone.set_aside is not None, "it was noted meanwhile"


class Boards:
    """Two boards of one kind, and the agent on each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("one", "two"):
            kernel = recorded("orin_nano_super", folder / name)
            kernel.write("/proc/device-tree/serial-number", f"14210220{name}\0".encode())

    def run(self, board: str, state: Path, seconds: float = 2.5) -> None:
        """Let the agent run there for a while."""
        tree = self.folder / board / "orin_nano_super"
        log = self.folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(tree), str(state), str(self.folder / "s")],
                stderr=out,
            )
        try:
            until(lambda: b"agent runs" in log.read_bytes(), 20, "the agent runs")
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0, log.read_text()


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[Boards]:
    yield Boards(tmp_path)


def test_a_clone_is_a_device_of_its_own_and_says_which_it_was(boards: Boards) -> None:
    original, clone = boards.folder / "state-1", boards.folder / "state-2"
    boards.run("one", original)
    first = {batch.device for batch in batches(original)}
    shutil.copytree(original, clone)
    boards.run("two", clone)
    second = {batch.device for batch in batches(clone)}
    assert len(first) == len(second) == 1 and first != second
    (changed,) = events(clone, "identity_changed")
    assert changed.data == {"previous": first.pop(), "identified_by": "device-tree"}
    (started,) = events(clone, "agent_started")
    assert started.data["spool_set_aside"] == "spool.db.corrupt-1"
    assert started.data["previous_stream"] is None
    # And the original goes on as it was.
    boards.run("one", original)
    assert not events(original, "identity_changed")
    assert len({batch.device for batch in batches(original)}) == 1
    assert identity.load(original, None).device != identity.load(clone, None).device


def test_the_device_is_described_with_its_ceiling(boards: Boards) -> None:
    state = boards.folder / "state"
    boards.run("one", state, 6.5)
    (described,) = events(state, "device_described")
    assert described.data["soc"] == "tegra234"
    assert described.data["ceiling_from"] == "specification"
    assert described.data["ceiling_bytes_per_second"] == 102_368_000_000
    assert described.data["identified_by"] == "device-tree"
    assert all("14210220" not in str(value) for value in described.data.values())
