"""Files of the state folder: a full disk, a kill, a second process and a trap leave them whole."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.disks import fill, small_disk

from decodewatch.agent import identity, state_files
from decodewatch.agent.errors import AgentError
from decodewatch.agent.hardware import measurements
from decodewatch.agent.hardware.measurements import Measurement

SERIALS = {"device-tree": ["1423419012345"]}


@pytest.mark.parametrize("leave", [0, 20, 4096])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, leave: int) -> None:
    with small_disk(tmp_path / "disk", 64) as folder:
        state_files.replace(folder / "kept.json", b"old", 0o600)
        fill(folder / "filler", leave=leave)
        with pytest.raises(AgentError, match=r"kept\.json: cannot be written: No space left"):
            state_files.replace(folder / "kept.json", b"new" * 4096, 0o600)
        assert (folder / "kept.json").read_bytes() == b"old"
        assert sorted(file.name for file in folder.iterdir()) == ["filler", "kept.json"]


def test_a_write_that_takes_a_part_only_is_no_write(tmp_path: Path) -> None:
    """The limit of a file's size stands for a disk that is nearly full: it takes 20 bytes."""
    state_files.replace(tmp_path / "kept.json", b"old", 0o600)
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from decodewatch.agent import state_files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        f"state_files.replace(Path({str(tmp_path / 'kept.json')!r}), b'n' * 100, 0o600)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "kept.json: cannot be written: File too large" in done.stderr
    assert (tmp_path / "kept.json").read_bytes() == b"old"


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\nfrom decodewatch.agent import state_files\n"
        f"file = Path({str(tmp_path / 'kept.json')!r})\nprint('ready', flush=True)\n"
        "for n in range(10**9):\n"
        "    state_files.replace(file, str(n % 10).encode() * 9999, 0o600)\n"
    )
    for pause in (0.0, 0.005, 0.011, 0.023):
        writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.05 + pause)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        content = (tmp_path / "kept.json").read_bytes()
        assert len(content) == 9999 and len(set(content)) == 1
    state_files.replace(tmp_path / "kept.json", b"after it", 0o600)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.json"]


def test_what_lies_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """Root measures the bandwidth in the folder of another user."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "kept.new").symlink_to(tmp_path / "precious")
    state_files.replace(tmp_path / "kept.json", b"new", 0o644)
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "kept.json").read_bytes() == b"new"
    assert not (tmp_path / "kept.json").is_symlink()


def test_the_mode_is_what_was_asked_for_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        state_files.replace(tmp_path / "kept.json", b"new", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "kept.json").stat().st_mode & 0o777 == 0o644


# Identity and bandwidth.


def _first_start(folder: str, told: "multiprocessing.SimpleQueue[str]") -> None:
    told.put(identity.load(Path(folder), None).salt.hex())


def test_agents_that_start_at_once_in_a_new_folder_are_one_device(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        told: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
        agents = [context.Process(target=_first_start, args=(str(folder), told)) for _ in range(4)]
        for agent in agents:
            agent.start()
        salts = {told.get() for _ in agents}
        for agent in agents:
            agent.join()
        assert salts == {identity.load(folder, None).salt.hex()}


@pytest.mark.parametrize("before", [{}, {"device-tree": ["of another board 77"]}])
def test_an_identity_that_a_full_disk_does_not_take_keeps_no_agent_from_running(
    tmp_path: Path, before: dict[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 64) as folder:
        first = identity.load(folder, None, before)
        kept = (folder / identity.FILE).read_bytes()
        fill(folder / "filler")
        found = identity.load(folder, None, SERIALS)
        assert found.kind == "device-tree" and "identity not kept" in caplog.text
        assert found.previous == (first.device if before else None)
        assert (folder / identity.FILE).read_bytes() == kept
        (folder / "filler").unlink()
        assert identity.load(folder, None, SERIALS).device == found.device


def test_a_first_identity_that_cannot_be_kept_is_none(tmp_path: Path) -> None:
    """It would be another one at each start."""
    with small_disk(tmp_path / "disk", 64) as folder:
        fill(folder / "filler")
        with pytest.raises(AgentError, match=r"identity\.json: cannot be written: No space left"):
            identity.load(folder, None)
        assert not (folder / identity.FILE).exists()


def test_a_measurement_that_a_full_disk_does_not_take_leaves_the_one_before(tmp_path: Path) -> None:
    old = Measurement(1, 1e9, 1e9, 2, "a board", 1 << 30, None, None, 1.0)
    with small_disk(tmp_path / "disk", 64) as folder:
        measurements.store(folder, old)
        fill(folder / "filler")
        with pytest.raises(AgentError, match=r"bandwidth\.json: cannot be written: No space left"):
            measurements.store(
                folder, Measurement(2, 2e9, 2e9, 2, "a board", 1 << 30, None, None, 1.0)
            )
        assert measurements.load(folder) == [old]
