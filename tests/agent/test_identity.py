"""Who the device is survives restarts, and the clock says whether it can be trusted."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.devices import FakeKernel

from decodewatch.agent import identity
from decodewatch.agent.errors import AgentError
from decodewatch.agent.hardware import serials
from decodewatch.agent.hardware.serials import Serials
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
        b'{"device":"dev-1","salt":"%s","kind":"mac"}' % (b"00" * 16),
        b'{"device":"dev-1","salt":"%s","kind":1,"mark":2}' % (b"00" * 16),
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


# The hardware behind it.

BOARD = {"device-tree": ["1421022039512"], "mac": ["48:b0:2d:3c:aa:01"]}
OTHER = {"device-tree": ["1421022039513"], "mac": ["48:b0:2d:3c:aa:02"]}


def installed(folder: Path, numbers: Serials, fleet_salt: str = "") -> identity.Identity:
    """The identity of an agent that starts with this state folder on this hardware."""
    identity.make_state(folder)
    return identity.load(folder, None, numbers, fleet_salt)


def moved(folder: Path, to: Path) -> Path:
    """A copy of a state folder, as a disk image that was cloned has it."""
    shutil.copytree(folder, to)
    return to


def test_a_reinstall_gives_the_board_its_id_again(tmp_path: Path) -> None:
    first = installed(tmp_path / "a", BOARD)
    again = installed(tmp_path / "b", BOARD)
    assert first.device == again.device and is_device_id(first.device)
    assert first.device.startswith("dev-") and len(first.device) == 20
    assert first.salt != again.salt, "sessions of before cannot be linked"


def test_two_boards_have_two_ids(tmp_path: Path) -> None:
    one = installed(tmp_path / "a", BOARD)
    assert installed(tmp_path / "b", OTHER).device != one.device


def test_the_secret_of_a_fleet_goes_into_the_id_of_new_devices_only(tmp_path: Path) -> None:
    plain = installed(tmp_path / "a", BOARD)
    salted = installed(tmp_path / "b", BOARD, "secret")
    assert len({plain.device, salted.device}) == 2
    assert installed(tmp_path / "b", BOARD, "another") == replace(salted, made=False)
    assert installed(tmp_path / "c", BOARD, "secret").device == salted.device


def test_no_serial_number_is_kept_or_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    installed(tmp_path, BOARD)
    installed(tmp_path, OTHER)
    assert "other hardware" in caplog.text
    written = (tmp_path / identity.FILE).read_text() + caplog.text
    written += "".join(str(vars(record)) for record in caplog.records)
    for numbers in (*BOARD.values(), *OTHER.values()):
        assert all(number not in written for number in numbers)


def test_a_cloned_image_gets_the_id_of_the_board_it_runs_on(tmp_path: Path) -> None:
    original = installed(tmp_path / "a", BOARD)
    clone = installed(moved(tmp_path / "a", tmp_path / "b"), OTHER)
    assert clone.made and clone.previous == original.device
    assert clone.device == installed(tmp_path / "c", OTHER).device != original.device
    assert clone.salt != original.salt
    again = installed(tmp_path / "b", OTHER)
    assert (again.device, again.salt, again.made, again.previous) == (
        *(clone.device, clone.salt, False, None),
    )
    assert installed(tmp_path / "a", BOARD).device == original.device


def test_a_clone_without_numbers_of_its_own_gets_a_random_id(tmp_path: Path) -> None:
    original = installed(tmp_path / "a", {"mac": ["48:b0:2d:3c:aa:01"]})
    clones = [
        installed(moved(tmp_path / "a", tmp_path / name), {"mac": ["48:b0:2d:3c:aa:99"]})
        for name in ("b", "c")
    ]
    assert clones[0].device == clones[1].device != original.device


def test_a_set_device_keeps_its_name_on_other_hardware(tmp_path: Path) -> None:
    identity.load(tmp_path, "orin-7", BOARD)
    other = identity.load(tmp_path, "orin-7", OTHER)
    assert (other.device, other.made, other.previous) == ("orin-7", True, "orin-7")


def test_a_user_who_may_read_less_keeps_the_device_and_so_does_one_who_may_read_more(
    tmp_path: Path,
) -> None:
    root = {"dmi-uuid": ["4c4c4544-0042-3510-8057-b7c04f4a3732"], "mac": BOARD["mac"]}
    anybody = {"mac": BOARD["mac"]}
    first = installed(tmp_path / "a", anybody)
    assert installed(tmp_path / "a", root).device == first.device
    second = installed(tmp_path / "b", root)
    for _ in range(2):
        kept = installed(tmp_path / "b", anybody)
        assert (kept.device, kept.made, kept.kind) == (second.device, False, "dmi-uuid")
    # What it is known by can be read again, and is another board's.
    other = root | {"dmi-uuid": ["4c4c4544-0042-3510-8057-b7c04f4a3799"]}
    assert installed(tmp_path / "b", other).previous == second.device


def test_hardware_that_loses_or_gains_a_network_card_stays_itself(tmp_path: Path) -> None:
    first = installed(tmp_path, {"mac": ["48:b0:2d:3c:aa:05"]})
    more = {"mac": ["48:b0:2d:3c:aa:01", "48:b0:2d:3c:aa:05"]}
    assert installed(tmp_path, more).device == first.device


def test_without_a_number_of_the_hardware_the_id_is_random(tmp_path: Path) -> None:
    one, other = installed(tmp_path / "a", {}), installed(tmp_path / "b", {})
    assert one.device != other.device
    assert (one.kind, one.mark) == (None, None)


def test_an_agent_from_before_keeps_its_id_and_notices_clones_from_now_on(tmp_path: Path) -> None:
    kept = '{"device": "dev-0123456789ab", "salt": "%s"}' % ("5a" * 16)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / identity.FILE).write_text(kept)
    first = installed(tmp_path / "a", BOARD)
    assert (first.device, first.made, first.salt) == ("dev-0123456789ab", False, b"Z" * 16)
    clone = installed(moved(tmp_path / "a", tmp_path / "b"), OTHER)
    assert clone.previous == "dev-0123456789ab"


def test_after_a_damaged_file_the_board_has_its_id_again(tmp_path: Path) -> None:
    first = installed(tmp_path, BOARD)
    (tmp_path / identity.FILE).write_bytes(b"\0" * 100)
    assert installed(tmp_path, BOARD).device == first.device


def test_boards_with_a_maker_s_placeholder_are_told_apart(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path / "device")
    kernel.write("/sys/class/dmi/id/product_uuid", "03000200-0400-0500-0006-000700080009\n")
    kernel.write("/sys/class/dmi/id/product_serial", "To be filled by O.E.M.\n")
    numbers = serials.read(kernel.root, kernel)
    one = installed(tmp_path / "a", numbers)
    assert installed(tmp_path / "b", numbers).device != one.device


def test_a_guess_costs_a_device_a_tenth_of_a_second_but_not_a_second() -> None:
    began = time.process_time()
    identity._mark(b"salt", "mac", "48:b0:2d:3c:aa:01")
    assert 0.02 < time.process_time() - began < 1


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
