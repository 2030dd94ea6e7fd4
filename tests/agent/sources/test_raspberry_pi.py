"""What a Raspberry Pi's firmware says: by file, by command, by the chip of the supply."""

import errno
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S, REPROBE_S
from decodewatch.agent.sources.kit.kernel import Kernel, Spawned
from decodewatch.agent.sources.raspberry_pi import (
    COMMAND,
    COMMAND_DEADLINE_S,
    COMMAND_EVERY_S,
    LIMITS,
    RaspberryPi,
    parse,
)

FILE = "/sys/devices/platform/soc/soc:firmware/get_throttled"
ALARM = "/sys/class/hwmon/hwmon3/in0_lcrit_alarm"
NOT_A_PI = {"firmware_limit": "absent", "firmware_limit_since_boot": "absent"}
NAMES = [
    *(f"firmware_limit:{name}" for name in LIMITS),
    *(f"firmware_limit_since_boot:{name}" for name in LIMITS),
]


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return recorded("rpi5", tmp_path)


def bits(found: dict[str, Value | str]) -> list[Value | str]:
    return [found[name] for name in NAMES]


def test_the_command_of_a_pi_5_with_too_low_a_supply(kernel: FakeKernel) -> None:
    found = shown(RaspberryPi(kernel.root, kernel).read())
    assert list(found) == NAMES
    assert bits(found) == [1, 0, 1, 0, 1, 0, 1, 0]
    assert kernel.spawned == [COMMAND]


def test_the_file_needs_no_child(kernel: FakeKernel) -> None:
    kernel.write(FILE, "e0008\n")
    source = RaspberryPi(kernel.root, kernel)
    assert bits(shown(source.read())) == [0, 0, 0, 1, 0, 1, 1, 1]
    kernel.write(FILE, "0\n")
    kernel.now += 1
    assert bits(shown(source.read())) == [0] * 8
    assert not kernel.spawned
    source.close()
    assert not kernel.open_files


def test_a_pi_5_calls_its_chip_by_another_name(kernel: FakeKernel) -> None:
    chip = "soc@107c000000"
    kernel.write(f"/sys/devices/platform/{chip}/{chip}:firmware/get_throttled", "50005\n")
    source = RaspberryPi(kernel.root, kernel)
    assert bits(shown(source.read())) == [1, 0, 1, 0, 1, 0, 1, 0]
    assert not kernel.spawned


def test_the_command_is_run_seldom(kernel: FakeKernel) -> None:
    source = RaspberryPi(kernel.root, kernel)
    for _ in range(60):
        source.read()
        kernel.now += 1
    assert len(kernel.spawned) == 60 // COMMAND_EVERY_S
    assert kernel.opens.count(FILE) == 1


@pytest.mark.parametrize(
    "board", ["orin_nano_super", "agx_thor_r38", "x86_oddities", "snapdragon_8plus_gen1_sm8475"]
)
def test_no_child_is_started_on_other_boards(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    kernel.write("/cmd/vcgencmd_get_throttled.txt", "throttled=0x0\n")
    kernel.write(FILE, "0\n")
    source = RaspberryPi(kernel.root, kernel)
    for _ in range(int(RELIST_S) * 2):
        assert shown(source.read()) == NOT_A_PI
        kernel.now += 1
    assert not kernel.spawned
    assert len(kernel.opens) <= 1, "the board is looked at once"


def test_without_the_word_the_chip_knows_the_supply(kernel: FakeKernel) -> None:
    kernel.remove("/cmd/vcgencmd_get_throttled.txt")
    source = RaspberryPi(kernel.root, kernel)
    absent = ["absent"] * 7
    assert bits(shown(source.read())) == [1, *absent]
    kernel.write(ALARM, "0\n")
    kernel.now += 1
    assert bits(shown(source.read())) == [0, *absent]
    kernel.move("/sys/class/hwmon/hwmon3", "/sys/class/hwmon/hwmon9")
    kernel.now += RELIST_S
    assert bits(shown(source.read())) == [0, *absent], "its number moved"
    kernel.remove("/sys/class/hwmon/hwmon9")
    kernel.now += RELIST_S
    assert bits(shown(source.read())) == ["absent"] * 8
    assert len(kernel.spawned) == 1, f"a missing program is looked for every {REPROBE_S} s"


@pytest.mark.parametrize("alarm", ["", "2\n", "1", "-1\n", "x\n"])
def test_an_alarm_that_is_neither_on_nor_off_is_unknown(kernel: FakeKernel, alarm: str) -> None:
    kernel.remove("/cmd/vcgencmd_get_throttled.txt")
    kernel.write(ALARM, alarm)
    assert bits(shown(RaspberryPi(kernel.root, kernel).read())) == ["absent"] * 8


@pytest.mark.parametrize(
    ("error", "reason"), [(errno.EINVAL, "absent"), (errno.EACCES, "absent"), (None, "implausible")]
)
def test_what_neither_file_nor_command_say_is_unknown(
    kernel: FakeKernel, error: int | None, reason: str
) -> None:
    """The file fails and there is no command; or the file says something else."""
    kernel.remove("/cmd/vcgencmd_get_throttled.txt")
    kernel.remove("/sys/class/hwmon")
    kernel.write(FILE, "error\n")
    if error is not None:
        kernel.faults[FILE] = error
    assert bits(shown(RaspberryPi(kernel.root, kernel).read())) == [reason] * 8


def test_a_command_that_prints_an_error_says_nothing(kernel: FakeKernel) -> None:
    kernel.remove("/sys/class/hwmon")
    kernel.write("/cmd/vcgencmd_get_throttled.txt", 'error=1 error_msg="Command not registered"\n')
    assert bits(shown(RaspberryPi(kernel.root, kernel).read())) == ["implausible"] * 8


class WithPrograms(FakeKernel):
    """A recorded device that starts real programs out of a folder."""

    def __init__(self, root: Path, programs: Path) -> None:
        super().__init__(root)
        self.programs = programs

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        self.spawned.append(tuple(command))
        return Kernel().spawn([str(self.programs / command[0]), *command[1:]], environment)


def program(folder: Path, script: str) -> None:
    file = folder / "vcgencmd"
    file.write_text("#!/bin/sh\n" + script)
    file.chmod(0o755)


def read_until(kernel: FakeKernel, source: RaspberryPi, reason: str) -> list[Value | str]:
    """Read once a (short) second until the first limit since boot is no longer `reason`."""
    deadline = time.monotonic() + 20
    while True:
        found = bits(shown(source.read()))
        if found[4] != reason or time.monotonic() > deadline:
            return found
        time.sleep(0.01)
        kernel.now += 0.01


def test_a_real_child_is_waited_for_by_nobody(kernel: FakeKernel, tmp_path: Path) -> None:
    kernel.remove("/sys/class/hwmon")
    program(tmp_path, "echo throttled=0x20002\n")
    kernel = WithPrograms(kernel.root, tmp_path)
    source = RaspberryPi(kernel.root, kernel)
    assert read_until(kernel, source, "transient") == [0, 1, 0, 0, 0, 1, 0, 0]
    source.close()


def test_one_who_may_not_open_the_firmwares_device_still_knows_the_supply(
    kernel: FakeKernel, tmp_path: Path
) -> None:
    """/dev/vcio is for the group video: without it vcgencmd fails."""
    program(tmp_path, "echo 'Can'\\''t open device file: /dev/vcio' >&2; exit 255\n")
    kernel = WithPrograms(kernel.root, tmp_path)
    source = RaspberryPi(kernel.root, kernel)
    assert read_until(kernel, source, "transient") == [1, *["unsupported"] * 7]


def test_a_command_that_hangs_is_ended(kernel: FakeKernel, tmp_path: Path) -> None:
    program(tmp_path, "exec sleep 1000\n")
    kernel = WithPrograms(kernel.root, tmp_path)
    source = RaspberryPi(kernel.root, kernel)
    assert bits(shown(source.read())) == [1, *["transient"] * 7]
    kernel.now += COMMAND_DEADLINE_S + 1
    source.read()
    kernel.now += COMMAND_EVERY_S
    assert bits(shown(source.read())) == [1, *["transient"] * 7]
    assert len(kernel.spawned) == 1


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"throttled=0x50005\n", 0x50005),
        (b"50005\n", 0x50005),
        (b"0x50005\n", 0x50005),
        (b"throttled=0x0\n", 0),
        (b"throttled=0x50005", None),
        (b"throttled=0x\n", None),
        (b"throttled=\n", None),
        (b"throttled=-1\n", None),
        (b"5_0\n", None),
        (b"123456789\n", None),
        (b"", None),
        (b"VCHI initialization failed\n", None),
    ],
)
def test_what_is_a_word(content: bytes, word: int | None) -> None:
    assert parse(content) == word


@given(st.binary(max_size=24))
def test_any_bytes_give_a_word_of_32_bits_or_none(content: bytes) -> None:
    word = parse(content)
    assert word is None or 0 <= word < 1 << 32


@given(st.integers(0, (1 << 32) - 1), st.sampled_from([b"%x\n", b"throttled=0x%x\n"]))
def test_a_word_cut_anywhere_is_not_taken_for_another(word: int, form: bytes) -> None:
    content = form % word
    assert parse(content) == word
    for end in range(len(content)):
        assert parse(content[:end]) is None
