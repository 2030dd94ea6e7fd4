"""Who the device is survives restarts, and the clock says whether it can be trusted."""

from pathlib import Path

import pytest

from decodewatch.agent import identity
from decodewatch.agent.errors import AgentError
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.ids import is_device_id


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    first = identity.load(tmp_path, None)
    assert first.made and is_device_id(first.device)
    second = identity.load(tmp_path, None)
    assert (second.device, second.salt, second.made) == (first.device, first.salt, False)
    assert (tmp_path / identity.FILE).stat().st_mode & 0o777 == 0o600


def test_a_set_device_wins_and_keeps_the_salt(tmp_path: Path) -> None:
    made = identity.load(tmp_path, None)
    assert identity.load(tmp_path, "orin-7").device == "orin-7"
    assert identity.load(tmp_path, "orin-7").salt == made.salt
    assert identity.load(tmp_path, None).device == made.device


@pytest.mark.parametrize("device", ["", "a/b", "a+b", "#", "a\nb", "x" * 65, "-a", "é"])
def test_a_device_that_cannot_be_one_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(SettingsError, match=r"device: .* is not a device id"):
        identity.load(tmp_path, device)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[1]", b'{"device":"a/b","salt":"00"}', b"\xff", b"[" * 200_000),
        b'{"device":["a","b"],"salt":"%s"}' % (b"00" * 16),
        b'{"device":"dev-1","salt":["00"]}',
    ],
)
def test_a_damaged_identity_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / identity.FILE).write_bytes(content)
    made = identity.load(tmp_path, None)
    assert made.made
    assert (tmp_path / "identity.damaged").read_bytes() == content
    assert identity.load(tmp_path, None).device == made.device


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / identity.FILE).mkdir()
    with pytest.raises(AgentError, match=rf"{identity.FILE}: cannot be read: Is a directory"):
        identity.load(tmp_path, None)
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=f"state_folder: {tmp_path}/file/state: Not a directory"):
        identity.make_state(tmp_path / "file" / "state")


def test_sessions_are_hashed_with_the_devices_salt() -> None:
    one = identity.Identity("d", b"a" * 16, made=False)
    other = identity.Identity("d", b"b" * 16, made=False)
    assert one.session("user-1") == one.session("user-1") != one.session("user-2")
    assert one.session("user-1") != other.session("user-1")
    assert len(one.session("user-1")) == 16


def test_the_boot_is_the_kernels() -> None:
    assert identity.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_boot_that_cannot_be_read_lasts_for_this_process(tmp_path: Path) -> None:
    first, second = identity.boot_id(tmp_path), identity.boot_id(tmp_path)
    assert first.startswith("process-") and first != second


def test_both_clocks_are_read_together() -> None:
    reader = identity.ClockReader()
    one, two = reader.read(), reader.read()
    assert 0 <= two.t - one.t < 1_000_000
    assert abs((two.wall - one.wall) - (two.t - one.t)) < 500_000
    assert isinstance(one.synchronised, bool)


def test_the_kernels_status_says_whether_the_clock_is_synchronised() -> None:
    reader = identity.ClockReader()
    kernel = reader._adjtimex
    assert kernel is not None

    def answer(status: int) -> bool:
        def adjtimex() -> int:
            at = reader._status_at
            reader._timex[at : at + 4] = status.to_bytes(4, "little")
            return 0

        reader._adjtimex = adjtimex
        return reader.read().synchronised

    assert answer(0x2001)  # STA_PLL and STA_NANO, as a running NTP client leaves it
    assert not answer(0x40)
    reader._adjtimex = lambda: -1
    assert not reader.read().synchronised
    reader._adjtimex = None
    assert not reader.read().synchronised
