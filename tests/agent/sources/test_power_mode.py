"""The power mode: nvpmodel's words and number, its caps, platform profiles, what board this is."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown
from support.waiting import until

from decodewatch.agent.sources import power_mode
from decodewatch.agent.sources.kit import device_tree
from decodewatch.agent.sources.kit.base import REASONS, Reason, Value
from decodewatch.agent.sources.kit.device_tree import compatible, is_jetson
from decodewatch.agent.sources.kit.files import RELIST_S, REPROBE_S
from decodewatch.agent.sources.kit.kernel import Kernel, Spawned
from decodewatch.agent.sources.power_mode import (
    COMMAND,
    EVERY_S,
    MOST_CAPS,
    Mode,
    PowerMode,
    parse_cap,
    parse_profile,
    parse_status,
)

CAPS = "/sys/kernel/nvpmodel_clk_cap"
STATUS = "/var/lib/nvpmodel/status"
PRINTED = "/cmd/nvpmodel_-q.txt"
ACPI = "/sys/firmware/acpi/platform_profile"
PROFILES = "/sys/class/platform-profile"


@pytest.fixture
def jetson(tmp_path: Path) -> FakeKernel:
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/device-tree/compatible", "nvidia,p3767-0005\0nvidia,tegra234\0")
    return kernel


@pytest.fixture
def pc(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def read(source: PowerMode) -> dict[str, Value | str]:
    """What the source shows once its program has printed."""
    source.read()
    return shown(source.read())


def mode(kernel: FakeKernel) -> Value | str:
    return read(PowerMode(kernel.root, kernel))["power_mode"]


# Jetson


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        ("orin_nano_super", {"power_mode": "MAXN_SUPER", "power_cap_hertz:emc": 3_199_000_000}),
        ("agx_orin_64gb_r35", {"power_mode": "MAXN", "power_cap_hertz": "absent"}),
        ("agx_thor_r38", {"power_mode": "absent", "power_cap_hertz": "absent"}),
    ],
)
def test_recorded_jetsons(tmp_path: Path, board: str, expected: dict[str, Value | str]) -> None:
    kernel = recorded(board, tmp_path)
    assert read(PowerMode(kernel.root, kernel)) == expected


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"NV Power Mode: MAXN_SUPER\n2\n", Mode("MAXN_SUPER", 2)),
        (b"NV Fan Mode:quiet\nNV Power Mode: MAXN\n0\n", Mode("MAXN", 0)),
        (b"NV Fan Mode:cool\nNV Power Mode: MODE_10W_2CORE\n4\n", Mode("MODE_10W_2CORE", 4)),
        (b"NVPM WARN: fan mode is not set!\nNV Power Mode: 15W\n1\n", Mode("15W", 1)),
        (b"NV Power Mode: 15W\nNVPM WARN: no number\n", Mode("15W", None)),
        (b"NV Power Mode: 15W\n", Mode("15W", None)),
        (b"NV Power Mode: 15W\r\n1\r\n", Mode("15W", 1)),
        (b"NV Power Mode: 15W\n1", Mode("15W", None)),
        (b"NV Power Mode: MAXN_SU", None),
        (b"NV Power Mode:\n2\n", None),
        (b"NVPM ERROR: failed to read PARAM GPU\n", None),
        (b"NV Fan Mode:quiet\n", None),
        (b"", None),
    ],
)
def test_what_nvpmodel_prints(printed: bytes, expected: Mode | None) -> None:
    assert power_mode.parse(printed) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"pmode:0002", 2),
        (b"pmode:0002\n", 2),
        (b"pmode:0008 fmode:quiet\n", 8),
        (b"fmode:quiet\npmode:0011\n", 11),
        (b"pmode:000", None),
        (b"pmode:00021\n", None),
        (b"pmode:-001\n", None),
        (b"pmode:00x2\n", None),
        (b"pmode:\n", None),
        (b"", None),
    ],
)
def test_the_number_of_a_mode(content: bytes, expected: int | None) -> None:
    assert parse_status(content) == expected


def test_a_mode_is_asked_for_once_a_minute(jetson: FakeKernel) -> None:
    jetson.write(PRINTED, "NV Power Mode: 15W\n1\n")
    source = PowerMode(jetson.root, jetson)
    source.read()
    for second in range(int(3 * EVERY_S)):
        expected = "15W" if second < EVERY_S else "25W"
        if second == 10:
            jetson.write(PRINTED, "NV Power Mode: 25W\n2\n")
        if second not in (EVERY_S, 2 * EVERY_S):
            assert shown(source.read())["power_mode"] == expected, second
        jetson.now += 1
    assert len(jetson.spawned) == 3 and set(jetson.spawned) == {COMMAND}


def test_another_mode_is_seen_at_once_by_its_number(jetson: FakeKernel) -> None:
    """nvpmodel that is run again undoes what was set by hand: report 41 needs to know when."""
    jetson.write(PRINTED, "NV Power Mode: MAXN_SUPER\n2\n")
    jetson.write(STATUS, "pmode:0002\n")
    source = PowerMode(jetson.root, jetson)
    assert read(source)["power_mode"] == "MAXN_SUPER"
    seen = []
    for number, name in ((0, "15W"), (1, "25W"), (2, "MAXN_SUPER")):
        jetson.write(PRINTED, f"NV Power Mode: {name}\n{number}\n")
        jetson.write(STATUS, f"pmode:{number:04}\n")
        for _ in range(3):
            jetson.now += 1
            seen.append(shown(source.read())["power_mode"])
    # A mode that was seen before has its name at once, another one as soon as nvpmodel has run.
    assert [one for one in dict.fromkeys(seen) if one != "transient"] == [
        "15W",
        "25W",
        "MAXN_SUPER",
    ]
    assert seen[2::3] == ["15W", "25W", "MAXN_SUPER"]
    assert seen[6:] == ["MAXN_SUPER"] * 3


def test_while_nvpmodel_runs_for_the_first_time_the_mode_is_to_come(tmp_path: Path) -> None:
    """And not a word that changes a second later: that would be told as another mode."""
    answer = tmp_path / "answer"
    os.mkfifo(answer)

    class Slow(FakeKernel):
        def spawn(
            self, command: Sequence[str], environment: dict[str, str] | None = None
        ) -> Spawned:
            return Kernel.spawn(self, ("cat", str(answer)), environment)

    kernel = Slow(tmp_path)
    kernel.write("/proc/device-tree/compatible", "nvidia,tegra234\0")
    kernel.write(STATUS, "pmode:0002\n")
    source = PowerMode(kernel.root, kernel)
    seen = {str(shown(source.read())["power_mode"])}
    answer.write_bytes(b"NV Power Mode: MAXN_SUPER\n2\n")

    def ended() -> bool:
        seen.add(str(shown(source.read())["power_mode"]))
        return "MAXN_SUPER" in seen

    until(ended)
    assert seen == {"transient", "MAXN_SUPER"}
    source.close()


def test_without_nvpmodel_a_mode_is_told_by_its_number(jetson: FakeKernel) -> None:
    """In a container, or with JetPack 4 and not as root."""
    jetson.write(STATUS, "pmode:0002\n")
    assert mode(jetson) == "mode 2"
    jetson.write(PRINTED, "NVPM ERROR: failed to open the configuration\n")
    assert mode(jetson) == "mode 2"


def test_a_jetson_that_tells_nothing(jetson: FakeKernel) -> None:
    source = PowerMode(jetson.root, jetson)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"power_mode": "absent", "power_cap_hertz": "absent"}
        jetson.now += 1
    assert len(jetson.spawned) == 1
    assert len(jetson.opens) == 2 and len(jetson.listings) == 1


def test_what_nvpmodel_prints_without_a_mode_is_no_mode(jetson: FakeKernel) -> None:
    jetson.write(PRINTED, "NVPM ERROR: \n")
    assert mode(jetson) == "implausible"


def test_a_name_that_cannot_be_printed(jetson: FakeKernel) -> None:
    jetson.write(PRINTED, b"NV Power Mode: MA\x1b[31mXN\xff\n0\n")
    assert mode(jetson) == "MA?[31mXN?"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "denied"),
        (errno.ENOENT, "absent"),
        (errno.EIO, "transient"),
        (errno.EINVAL, "transient"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
def test_one_bad_cap_costs_the_others_nothing(
    jetson: FakeKernel, error: int, reason: Reason
) -> None:
    jetson.write(f"{CAPS}/emc", "2133000000\n")
    jetson.write(f"{CAPS}/nvdla0", "614400000\n")
    jetson.write(PRINTED, "NV Power Mode: 15W\n1\n")
    jetson.faults[f"{CAPS}/nvdla0"] = error
    assert read(PowerMode(jetson.root, jetson)) == {
        "power_mode": "15W",
        "power_cap_hertz:emc": 2_133_000_000,
        "power_cap_hertz:nvdla0": reason,
    }


def test_a_cap_that_another_mode_changes_goes_and_returns(jetson: FakeKernel) -> None:
    source = PowerMode(jetson.root, jetson)
    seen = []
    for cap in ("2133000000", "3199000000", None, "2133000000"):
        if cap is None:
            jetson.remove(f"{CAPS}/emc")
        else:
            jetson.write(f"{CAPS}/emc", cap + "\n")
        jetson.now += RELIST_S
        seen.append(shown(source.read())["power_cap_hertz:emc"])
    assert seen == [2_133_000_000, 3_199_000_000, "absent", 2_133_000_000]
    source.close()
    assert not jetson.open_files


def test_a_denied_folder_of_caps_is_said_and_asked_once_in_a_long_time(jetson: FakeKernel) -> None:
    jetson.faults[CAPS] = errno.EACCES
    source = PowerMode(jetson.root, jetson)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read())["power_cap_hertz"] == "denied"
        jetson.now += 1
    assert jetson.listings == [CAPS]


def test_caps_are_bounded(jetson: FakeKernel) -> None:
    for number in range(MOST_CAPS + 9):
        jetson.write(f"{CAPS}/clock{number}", "1000000000\n")
    assert len(read(PowerMode(jetson.root, jetson))) == MOST_CAPS + 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"3199000000\n", 3_199_000_000),
        (b"0\n", "unlimited"),
        (b"-1\n", "unlimited"),
        (b"9223372036854775807\n", "unlimited"),
        (b"-2\n", "implausible"),
        (b"204000\n", "implausible"),
        (b"3199000000", "implausible"),
        (b"\n", "implausible"),
    ],
)
def test_a_cap(content: bytes, expected: int | str) -> None:
    assert parse_cap(content) == expected


# other devices


@pytest.mark.parametrize("board", ["rpi5", "x86_oddities", "snapdragon_8plus_gen1_sm8475"])
def test_no_program_is_started_on_another_board(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    source = PowerMode(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"power_mode": "absent", "power_cap_hertz": "absent"}
        kernel.now += 1
    assert not kernel.spawned
    assert len(kernel.opens) + len(kernel.listings) <= 3


def test_a_profile_that_is_changed(pc: FakeKernel) -> None:
    source = PowerMode(pc.root, pc)
    seen = []
    for profile in ("balanced\n", "low-power\n", "performance\n", "perf", ""):
        pc.write(ACPI, profile)
        seen.append(shown(source.read())["power_mode"])
    assert seen == ["balanced", "low-power", "performance", "implausible", "implausible"]


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (["balanced"], "balanced"),
        (["quiet", "quiet"], "quiet"),
        (["quiet", "performance"], "custom"),
    ],
)
def test_profiles_of_drivers(pc: FakeKernel, profiles: list[str], expected: str) -> None:
    for number, profile in enumerate(profiles):
        pc.write(f"{PROFILES}/platform-profile-{number}/profile", profile + "\n")
    assert mode(pc) == expected
    pc.faults[f"{PROFILES}/platform-profile-0/profile"] = errno.EIO
    assert mode(pc) == "transient"
    pc.write(ACPI, "cool\n")
    assert mode(pc) == "cool"


def test_a_driver_that_goes_takes_its_profile_with_it(pc: FakeKernel) -> None:
    for number, profile in enumerate(("quiet", "performance")):
        pc.write(f"{PROFILES}/platform-profile-{number}/profile", profile + "\n")
    source = PowerMode(pc.root, pc)
    assert shown(source.read())["power_mode"] == "custom"
    pc.remove(f"{PROFILES}/platform-profile-0")
    pc.now += RELIST_S
    assert shown(source.read())["power_mode"] == "performance"
    source.close()
    assert not pc.open_files


def test_no_file_is_touched_before_the_first_read(jetson: FakeKernel) -> None:
    source = PowerMode(jetson.root, jetson)
    source.close()
    assert not jetson.opens and not jetson.listings and not jetson.spawned


# the board


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"nvidia,p3834-0008\0nvidia,tegra264\0", ["nvidia,p3834-0008", "nvidia,tegra264"]),
        (b"raspberrypi,5-model-b\0brcm,bcm2712\0", ["raspberrypi,5-model-b", "brcm,bcm2712"]),
        (b"nvidia,p3767-0005\0nvidia,teg", ["nvidia,p3767-0005"]),
        (b"\0\0", []),
        (b"", []),
    ],
)
def test_the_names_of_a_board(content: bytes, expected: list[str]) -> None:
    assert device_tree.parse(content) == expected


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        ("orin_nano_super", True),
        ("agx_orin_64gb_r35", True),
        ("agx_thor_r38", True),
        ("rpi5", False),
        ("x86_oddities", False),
    ],
)
def test_which_boards_are_jetsons(tmp_path: Path, board: str, expected: bool) -> None:
    """Report 12: rbonghi/jetson_stats#711, a Thor is known by its tegra264."""
    kernel = recorded(board, tmp_path)
    assert is_jetson(kernel.root, kernel) is expected


def test_a_device_tree_that_is_denied_tells_nothing(jetson: FakeKernel) -> None:
    jetson.faults["/proc/device-tree"] = errno.EACCES
    assert compatible(jetson.root, jetson) == []


# any bytes


@given(st.binary(max_size=64), st.sampled_from([b"", b"NV Power Mode:"]))
def test_any_output_gives_a_whole_line_or_none(content: bytes, start: bytes) -> None:
    found = power_mode.parse(start + content)
    if found is not None:
        assert found.name.isprintable() and found.name
        assert b"NV Power Mode:" in start + content and b"\n" in content


@given(st.integers(0, 90))
def test_an_output_cut_anywhere_gives_the_mode_or_none(end: int) -> None:
    printed = b"NVPM WARN: x\nNV Fan Mode:quiet\nNV Power Mode: MODE_30W_ALL\n12\n"
    found = power_mode.parse(printed[:end])
    assert found in (None, Mode("MODE_30W_ALL", None), Mode("MODE_30W_ALL", 12))


@given(st.binary(max_size=24), st.sampled_from([b"", b"pmode:"]))
def test_any_bytes_give_the_number_that_they_hold(content: bytes, start: bytes) -> None:
    number = parse_status(start + content)
    if number is not None:
        assert b"pmode:%04d" % number in start + content


@given(st.binary(max_size=24))
def test_any_bytes_give_a_cap_that_they_hold_or_a_reason(content: bytes) -> None:
    cap: Any = parse_cap(content)
    if cap not in REASONS:
        assert cap == int(content.split(b"\0")[0]) > 0


@given(st.text("abcdefgh-", min_size=1, max_size=16))
def test_a_profile_cut_anywhere_is_none(word: str) -> None:
    content = f"{word}\n".encode()
    assert parse_profile(content) == word
    for end in range(len(content)):
        assert parse_profile(content[:end]) is None
