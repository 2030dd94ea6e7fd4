"""Memory controllers of devfreq: whose numbers are in which unit."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.dram_devfreq import DramDevfreq, clock, counts_clocks
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S

FOLDER = "/sys/class/devfreq"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def node(kernel: FakeKernel, member: str, now: int, most: int, *levels: int) -> None:
    kernel.write(f"{FOLDER}/{member}/cur_freq", f"{now}\n")
    kernel.write(f"{FOLDER}/{member}/max_freq", f"{most}\n")
    if levels:
        content = " ".join(str(level) for level in levels)
        kernel.write(f"{FOLDER}/{member}/available_frequencies", f"{content} \n")


def read(kernel: FakeKernel) -> dict[str, Value | str]:
    return shown(DramDevfreq(kernel.root, kernel).read())


def test_a_thor_for_anyone(tmp_path: Path) -> None:
    kernel = recorded("agx_thor_r38", tmp_path)
    assert read(kernel) == {
        "dram_busy_share": "absent",
        "dram_hertz": 665_600_000,
        "dram_max_hertz": 4_266_000_000,
        "dram_hw_max_hertz": "absent",
    }


def test_a_rockchip_counts_its_traffic(kernel: FakeKernel) -> None:
    node(kernel, "dmc", 2_112_000_000, 2_112_000_000, 528_000_000, 1_068_000_000, 2_112_000_000)
    kernel.write(f"{FOLDER}/dmc/load", "27@2112000000Hz\n")
    assert read(kernel) == {
        "dram_busy_share": 0.27,
        "dram_hertz": 2_112_000_000,
        "dram_max_hertz": 2_112_000_000,
        "dram_hw_max_hertz": 2_112_000_000,
    }


def test_a_rockchip_of_the_mainline_kernel_does_not(kernel: FakeKernel) -> None:
    node(kernel, "dmc", 856_000_000, 856_000_000)
    assert read(kernel)["dram_busy_share"] == "absent"


def test_an_exynos_or_tensor_counts_in_kilohertz(kernel: FakeKernel) -> None:
    node(kernel, "17000010.devfreq_mif", 1_539_000, 3_172_000, 3_744_000, 3_172_000, 421_000)
    node(kernel, "gs_memlat_devfreq:devfreq_mif_cpu0_memlat@17000010", 9, 9)
    node(kernel, "17000020.devfreq_int", 533_000, 533_000)
    assert read(kernel) == {
        "dram_busy_share": "absent",
        "dram_hertz": 1_539_000_000,
        "dram_max_hertz": 3_172_000_000,
        "dram_hw_max_hertz": 3_744_000_000,
    }


def test_a_mediatek_that_counts_in_hertz(kernel: FakeKernel) -> None:
    node(kernel, "mtk-dvfsrc-devfreq", 800_000_000, 4_266_000_000, 800_000_000, 4_266_000_000)
    assert read(kernel) == {
        "dram_busy_share": "absent",
        "dram_hertz": 800_000_000,
        "dram_max_hertz": 4_266_000_000,
        "dram_hw_max_hertz": 4_266_000_000,
    }


@pytest.mark.parametrize(
    ("now", "most"),
    [
        (12_800_000, 68_256_000),  # kB/s: would be a clock of 12.8 MHz
        (34_128_000, 34_128_000),
        (3_200_000_000, 8_533_000_000),  # transfers a second, by the highest of them
        (800_000, 4_266_000),  # kHz
    ],
)
def test_a_mediatek_that_counts_in_something_else_is_unknown(
    kernel: FakeKernel, now: int, most: int
) -> None:
    node(kernel, "mtk-dvfsrc-devfreq", now, most)
    assert read(kernel) == {
        "dram_busy_share": "absent",
        "dram_hertz": "implausible",
        "dram_max_hertz": "implausible",
        "dram_hw_max_hertz": "absent",
    }


def test_a_mediatek_whose_highest_is_not_readable_is_not_guessed(kernel: FakeKernel) -> None:
    node(kernel, "mtk-dvfsrc-devfreq", 34_128_000, 68_256_000)
    kernel.faults[f"{FOLDER}/mtk-dvfsrc-devfreq/max_freq"] = errno.EACCES
    found = read(kernel)
    assert found["dram_hertz"] == "implausible"
    assert found["dram_max_hertz"] == "denied"


def test_votes_and_other_devices_are_no_clocks_of_a_memory(kernel: FakeKernel) -> None:
    for member in ("soc:qcom,cpu-llcc-ddr-bw", "17000000.gpu", "fdab0000.npu", "15340000.vic"):
        node(kernel, member, 1_000_000_000, 1_000_000_000)
    assert set(read(kernel).values()) == {"absent"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.EACCES, "denied"),
        (errno.EINVAL, "transient"),
        (errno.EAGAIN, "transient"),
        (errno.EIO, "transient"),
        (errno.ETIMEDOUT, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("load", "dram_busy_share"),
        ("cur_freq", "dram_hertz"),
        ("max_freq", "dram_max_hertz"),
        ("available_frequencies", "dram_hw_max_hertz"),
    ],
)
def test_a_file_that_fails_costs_its_own_value_only(
    kernel: FakeKernel, file: str, key: str, error: int, reason: str
) -> None:
    node(kernel, "dmc", 528_000_000, 2_112_000_000, 528_000_000, 2_112_000_000)
    kernel.write(f"{FOLDER}/dmc/load", "0@528000000Hz\n")
    kernel.faults[f"{FOLDER}/dmc/{file}"] = error
    found = read(kernel)
    assert found.pop(key) == reason
    assert not any(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize("load", ["", "27", "127@528000000Hz", "27@528000000", "busy"])
def test_what_is_no_load_is_implausible(kernel: FakeKernel, load: str) -> None:
    node(kernel, "dmc", 528_000_000, 2_112_000_000)
    kernel.write(f"{FOLDER}/dmc/load", f"{load}\n")
    found = read(kernel)
    assert found["dram_busy_share"] == "implausible"
    assert found["dram_hertz"] == 528_000_000


@pytest.mark.parametrize("hertz", ["0", "9999999", "6000000001", "-528000000", "", "<unknown>"])
def test_what_is_no_clock_is_implausible(kernel: FakeKernel, hertz: str) -> None:
    node(kernel, "dmc", 0, 2_112_000_000)
    kernel.write(f"{FOLDER}/dmc/cur_freq", f"{hertz}\n")
    found = read(kernel)
    assert found["dram_hertz"] == "implausible"
    assert found["dram_max_hertz"] == 2_112_000_000


def test_a_cap_that_comes_and_goes(kernel: FakeKernel) -> None:
    node(kernel, "bwmgr", 4_266_000_000, 4_266_000_000, 665_600_000, 2_750_000_000, 4_266_000_000)
    source = DramDevfreq(kernel.root, kernel)
    found = []
    for most in (4_266_000_000, 2_750_000_000, 4_266_000_000):
        kernel.write(f"{FOLDER}/bwmgr/max_freq", f"{most}\n")
        shows = shown(source.read())
        found.append(shows["dram_max_hertz"])
        assert shows["dram_hw_max_hertz"] == 4_266_000_000
    assert found == [4_266_000_000, 2_750_000_000, 4_266_000_000]
    source.close()
    assert not kernel.open_files


def test_a_controller_that_vanishes_and_returns(kernel: FakeKernel) -> None:
    node(kernel, "dmc", 528_000_000, 2_112_000_000)
    source = DramDevfreq(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/dmc")
    assert set(shown(source.read()).values()) == {"absent"}
    node(kernel, "dmc", 1_068_000_000, 2_112_000_000)
    kernel.now += RELIST_S
    source.read()
    assert shown(source.read())["dram_hertz"] == 1_068_000_000


@given(
    st.integers(-(2**63), 2**63) | st.none(),
    st.sampled_from(["bwmgr", "dmc", "devfreq_mif", "mtk-dvfsrc-devfreq"]),
)
def test_any_number_is_a_clock_of_a_memory_or_none(number: int | None, name: str) -> None:
    hertz = clock(number, name)
    assert hertz is None or 10**7 <= hertz <= 6 * 10**9


@given(st.integers(0, 200_000_000 - 1))
def test_no_bandwidth_in_kilobytes_is_taken_for_a_clock(highest: int) -> None:
    """Up to 200 GB/s, which no phone has."""
    assert not counts_clocks(highest)
