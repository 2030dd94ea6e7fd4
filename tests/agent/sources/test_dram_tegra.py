"""The memory of Jetsons: clocks, caps, and a load only where its unit is known."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources import dram_tegra
from decodewatch.agent.sources.dram_tegra import DramTegra, busy_share, knows_unit, parse_release
from decodewatch.agent.sources.kit.base import Value

EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
CACTMON = "/sys/kernel/debug/cactmon/mc_all"
ACTMON = "/sys/kernel/actmon_avg_activity/mc_all"
CAP = "/sys/kernel/nvpmodel_clk_cap/emc"
TREE = "/proc/device-tree/compatible"
RELEASE = "/etc/nv_tegra_release"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def read(kernel: FakeKernel) -> dict[str, Value | str]:
    return shown(DramTegra(kernel.root, kernel).read())


def orin(tmp_path: Path) -> FakeKernel:
    """An AGX Orin of JetPack 5, read by root."""
    return recorded("agx_orin_64gb_r35", tmp_path)


def test_an_agx_orin_of_jetpack_5(tmp_path: Path) -> None:
    assert read(orin(tmp_path)) == {
        "dram_busy_share": 0.01,
        "dram_hertz": 2_133_000_000,
        "dram_max_hertz": "absent",
        "dram_hw_max_hertz": 3_199_000_000,
    }


def test_a_load_whose_unit_is_not_known_is_unknown_and_never_zero(tmp_path: Path) -> None:
    """Report 10: jetson_stats#715. 1951390 // 3199000 is 0 however busy the memory is."""
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults.clear()  # as root sees it
    assert read(kernel) == {
        "dram_busy_share": "unsupported",
        "dram_hertz": 3_199_000_000,
        "dram_max_hertz": 3_199_000_000,
        "dram_hw_max_hertz": 3_199_000_000,
    }
    assert not any("actmon" in path for path in kernel.opens)


def test_old_names_of_the_load_are_not_believed_on_a_new_release(tmp_path: Path) -> None:
    """Report 10: a kernel may still have the file, with the other unit in it."""
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults.clear()
    kernel.write(CACTMON, "1951390\n")
    kernel.write(ACTMON, "1951390\n")
    assert read(kernel)["dram_busy_share"] == "unsupported"


def test_a_missing_load_costs_nothing_else(tmp_path: Path) -> None:
    """Report 11: jetson_stats#470, where it ended the service."""
    kernel = orin(tmp_path)
    kernel.remove(CACTMON)
    found = read(kernel)
    assert found["dram_busy_share"] == "absent"
    assert found["dram_hertz"] == 2_133_000_000


def test_a_board_that_nobody_knows_is_a_thor_by_its_chip(kernel: FakeKernel) -> None:
    """Report 12: jetson_stats#711 and #712."""
    kernel.write(TREE, b"nvidia,p9999-0000+p3834-0099\0nvidia,p3834-0099\0nvidia,tegra264\0")
    kernel.write(f"{EMC}/rate", "4266000000\n")
    assert read(kernel) == {
        "dram_busy_share": "unsupported",
        "dram_hertz": 4_266_000_000,
        "dram_max_hertz": "absent",
        "dram_hw_max_hertz": "absent",
    }


def test_who_is_not_root_has_the_cap_of_the_power_mode(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults["/sys/kernel/debug"] = errno.EACCES
    assert read(kernel) == {
        "dram_busy_share": "unsupported",
        "dram_hertz": "denied",
        "dram_max_hertz": 3_199_000_000,
        "dram_hw_max_hertz": "denied",
    }


def test_a_first_nano_has_its_clock_elsewhere_and_its_load_for_anyone(kernel: FakeKernel) -> None:
    kernel.write(TREE, b"nvidia,p3450-0000\0nvidia,jetson-nano\0nvidia,tegra210\0")
    kernel.write("/sys/kernel/debug/clk/emc/clk_rate", "1600000000\n")
    kernel.write(ACTMON, "40000000\n")
    kernel.write("/sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "0\n")
    assert read(kernel) == {
        "dram_busy_share": 0.25,
        "dram_hertz": 1_600_000_000,
        "dram_max_hertz": "unlimited",
        "dram_hw_max_hertz": "absent",
    }
    kernel.faults["/sys/kernel/debug"] = errno.EACCES
    assert read(kernel)["dram_busy_share"] == "denied", "a load is nothing without its clock"


@pytest.mark.parametrize(
    ("chip", "release", "known"),
    [
        ("tegra210", 32, True),
        ("tegra186", None, True),
        ("tegra194", 35, True),
        ("tegra194", None, True),
        ("tegra234", 34, True),
        ("tegra234", 35, True),
        ("tegra234", 36, False),
        ("tegra234", None, False),  # a container: it may be either
        ("tegra264", 38, False),
        ("tegra264", None, False),
        ("tegra999", None, False),
    ],
)
def test_where_the_unit_of_the_load_is_known(chip: str, release: int | None, known: bool) -> None:
    assert knows_unit(["nvidia,p0000", f"nvidia,{chip}"], release) is known


@pytest.mark.parametrize(
    ("content", "release"),
    [
        (b"# R36 (release), REVISION: 4.4, GCID: 41062509, BOARD: generic\n", 36),
        (b"# R32 (release), REVISION: 7.6\n", 32),
        (b"# R39 (release)", 39),
        (b"# R3", None),
        (b"# R36 (rel", None),
        (b"36.4.4\n", None),
        (b"", None),
    ],
)
def test_releases(content: bytes, release: int | None) -> None:
    assert parse_release(content) == release


def test_a_cap_above_the_hardware_is_the_hardware(tmp_path: Path) -> None:
    kernel = orin(tmp_path)
    found = []
    for cap in ("665600000", "2133000000", "4266000000", "0", "-1", "garbage"):
        kernel.write(CAP, f"{cap}\n")
        found.append(read(kernel)["dram_max_hertz"])
    assert found == [
        665_600_000,
        2_133_000_000,
        3_199_000_000,
        "unlimited",
        "implausible",
        "implausible",
    ]


def test_the_load_follows_the_clock(tmp_path: Path) -> None:
    """The same traffic is a larger share of a slower memory."""
    kernel = orin(tmp_path)
    source = DramTegra(kernel.root, kernel)
    found = []
    for hertz, activity in (
        (2_133_000_000, 127_980_000),
        (3_199_000_000, 127_980_000),
        (3_199_000_000, 0),
        (204_000_000, 127_980_000),  # the clock fell between the two reads
    ):
        kernel.write(f"{EMC}/rate", f"{hertz}\n")
        kernel.write(CACTMON, f"{activity}\n")
        found.append(shown(source.read())["dram_busy_share"])
    assert found == [0.6, pytest.approx(0.4, abs=0.001), 0.0, "implausible"]


@pytest.mark.parametrize("rate", ["0", "3199000", "31990000000", "-1", "", "3199 MHz"])
def test_what_is_no_clock_gives_neither_clock_nor_load(tmp_path: Path, rate: str) -> None:
    """3199000 is kHz: the unit is Hz."""
    kernel = orin(tmp_path)
    kernel.write(f"{EMC}/rate", f"{rate}\n")
    found = read(kernel)
    assert found["dram_hertz"] == "implausible"
    assert found["dram_busy_share"] == "implausible"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EINVAL, "transient"),
        (errno.EIO, "transient"),
        (errno.ETIMEDOUT, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("path", "lost"),
    [
        (f"{EMC}/rate", {"dram_hertz", "dram_busy_share"}),
        (f"{EMC}/max_rate", {"dram_hw_max_hertz"}),
        (CACTMON, {"dram_busy_share"}),
        (CAP, {"dram_max_hertz"}),
    ],
)
def test_a_file_that_fails_costs_its_own_value_only(
    tmp_path: Path, path: str, lost: set[str], error: int, reason: str
) -> None:
    kernel = orin(tmp_path)
    kernel.write(CAP, "2133000000\n")
    kernel.faults[path] = error
    found = read(kernel)
    assert {key for key, value in found.items() if value == reason} == lost
    assert {key for key, value in found.items() if isinstance(value, str)} == lost


def test_debugfs_that_is_denied_on_a_pc_says_nothing_of_a_memory_controller(
    kernel: FakeKernel,
) -> None:
    kernel.faults["/sys/kernel/debug"] = errno.EACCES
    assert set(read(kernel).values()) == {"absent"}
    kernel.write(TREE, b"raspberrypi,5-model-b\0brcm,bcm2712\0")
    assert set(read(kernel).values()) == {"absent"}


def test_what_board_it_is_is_asked_once(tmp_path: Path) -> None:
    kernel = orin(tmp_path)
    source = DramTegra(kernel.root, kernel)
    for _ in range(1200):
        source.read()
        kernel.now += 1
    assert kernel.opens.count(TREE) == kernel.opens.count(RELEASE) == 1
    source.close()
    assert not kernel.open_files


@given(st.binary(max_size=24))
def test_any_bytes_give_a_clock_of_a_memory_or_none(content: bytes) -> None:
    clock = dram_tegra.parse_clock(content)
    assert clock is None or 10**7 <= clock <= 6 * 10**9
    parse_release(content)


@given(st.integers(10**7, 6 * 10**9))
def test_a_clock_cut_anywhere_is_not_taken_for_another(hertz: int) -> None:
    content = b"%d\n" % hertz
    assert dram_tegra.parse_clock(content) == hertz
    assert all(dram_tegra.parse_clock(content[:end]) is None for end in range(len(content)))


@given(st.integers(-(2**63), 2**63), st.integers(10**7, 6 * 10**9))
def test_a_load_is_a_share_or_none(activity: int, hertz: int) -> None:
    share = busy_share(activity, hertz)
    assert share is None or 0 <= share <= 1
