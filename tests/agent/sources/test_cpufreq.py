"""CPU clocks: recorded boards, CPUs that go offline, values that cannot be true."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources import cpufreq
from decodewatch.agent.sources.cpufreq import MOST_POLICIES, Cpufreq
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S

FOLDER = "/sys/devices/system/cpu/cpufreq"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def policy(kernel: FakeKernel, number: int, khz: int | str, most: int = 2_000_000) -> None:
    kernel.write(f"{FOLDER}/policy{number}/scaling_cur_freq", f"{khz}\n")
    kernel.write(f"{FOLDER}/policy{number}/scaling_max_freq", f"{most}\n")
    kernel.write(f"{FOLDER}/policy{number}/cpuinfo_max_freq", f"{most}\n")


def test_clocks_of_a_recorded_board(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Cpufreq(kernel.root, kernel).read()) == {
        "cpu_hertz:policy0": 1_728_000_000,
        "cpu_max_hertz:policy0": 1_728_000_000,
        "cpu_hw_max_hertz:policy0": 1_728_000_000,
        "cpu_hertz:policy4": 1_728_000_000,
        "cpu_max_hertz:policy4": 1_728_000_000,
        "cpu_hw_max_hertz:policy4": 1_728_000_000,
    }


def test_a_phone_that_is_capped(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_max_hertz:policy7"] == 1_900_800_000
    assert found["cpu_hw_max_hertz:policy7"] == 3_187_200_000


def test_a_denied_maximum_is_unknown_and_never_zero(tmp_path: Path) -> None:
    """termux-packages#29844: a maximum of 0 was divided by."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_max_hertz:policy0"] == "denied"
    assert found["cpu_hw_max_hertz:policy0"] == 2_016_000_000
    assert found["cpu_hertz:policy0"] == 1_017_600_000
    assert found["cpu_max_hertz:policy4"] == 1_766_400_000


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EINVAL])
def test_a_policy_that_is_offline_is_unknown_and_never_zero(kernel: FakeKernel, error: int) -> None:
    """psutil#2512: zeros of offline CPUs dragged the mean."""
    policy(kernel, 0, 1_500_000)
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.faults[f"{FOLDER}/policy4"] = error
    found = shown(source.read())
    assert found["cpu_hertz:policy4"] == "transient"
    assert found["cpu_hertz:policy0"] == 1_500_000_000
    kernel.faults.clear()
    assert shown(source.read())["cpu_hertz:policy4"] == 1_000_000_000


def test_a_policy_whose_folder_goes_and_returns(kernel: FakeKernel) -> None:
    policy(kernel, 0, 1_500_000)
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/policy4")
    for _ in range(300):
        kernel.now += 1
        found = shown(source.read())
        assert found["cpu_hertz:policy4"] == "absent"
        assert found["cpu_hertz:policy0"] == 1_500_000_000
    assert len(kernel.listings) <= 8
    policy(kernel, 4, 1_100_000)
    kernel.now += RELIST_S
    assert shown(source.read())["cpu_hertz:policy4"] == 1_100_000_000


def test_a_policy_that_comes_back_at_once_is_found_soon(kernel: FakeKernel) -> None:
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/policy4")
    policy(kernel, 4, 1_100_000)
    kernel.now += RELIST_SOON_S
    source.read()
    kernel.now += 1
    assert shown(source.read())["cpu_hertz:policy4"] == 1_100_000_000


def test_a_machine_without_cpufreq_says_so(kernel: FakeKernel) -> None:
    assert set(shown(Cpufreq(kernel.root, kernel).read()).values()) == {"absent"}


def test_a_denied_folder_is_said_as_such_and_left_alone(kernel: FakeKernel) -> None:
    kernel.faults[FOLDER] = errno.EACCES
    source = Cpufreq(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(shown(source.read()).values()) == {"denied"}
        kernel.now += 1
    assert len(kernel.listings) == 1


def test_policies_beyond_the_bound_are_left_out(kernel: FakeKernel) -> None:
    for number in range(MOST_POLICIES + 3):
        policy(kernel, number, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    assert len(source.read()) == 3 * MOST_POLICIES
    source.close()
    assert not kernel.open_files


@pytest.mark.parametrize("khz", ["0", "<unknown>", "", "1.8", "-1728000", "999", "20000001"])
def test_what_is_no_clock_is_implausible(kernel: FakeKernel, khz: str) -> None:
    """psutil#2049: a clock of 1.8 beside a maximum of 1800."""
    policy(kernel, 0, khz)
    assert shown(Cpufreq(kernel.root, kernel).read())["cpu_hertz:policy0"] == "implausible"


@given(st.binary(max_size=24))
def test_any_bytes_give_a_clock_or_none(content: bytes) -> None:
    value = cpufreq.parse(content)
    assert value is None or 10**6 <= value <= 20 * 10**9


@given(st.integers(1_000, 20_000_000))
def test_a_clock_cut_anywhere_is_not_taken_for_another(khz: int) -> None:
    content = b"%d\n" % khz
    assert cpufreq.parse(content) == khz * 1000
    assert all(cpufreq.parse(content[:end]) is None for end in range(len(content)))
