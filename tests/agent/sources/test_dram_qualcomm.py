"""What Qualcomm's phones ask of their memory: votes in bytes, clocks in kHz."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.dram_qualcomm import DramQualcomm, parse_clock, parse_vote
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import REPROBE_S

DEVFREQ = "/sys/class/devfreq"
DDR = "/sys/devices/system/cpu/bus_dcvs/DDR"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def vote(kernel: FakeKernel, name: str, now: int) -> None:
    kernel.write(f"{DEVFREQ}/soc:{name}/cur_freq", f"{now}\n")


def read(kernel: FakeKernel) -> dict[str, Value | str]:
    return shown(DramQualcomm(kernel.root, kernel).read())


def test_a_snapdragon_8_plus_gen_1_as_root(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()
    vote(kernel, "qcom,cpu-llcc-ddr-bw", 2086)
    assert read(kernel) == {
        "dram_vote_bytes_per_second": 2086 << 20,
        "dram_hertz": 1_555_000_000,
        "dram_hw_max_hertz": 3_196_000_000,
    }


def test_an_app_is_denied_and_does_not_insist(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults[DEVFREQ] = errno.EACCES
    source = DramQualcomm(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {
            "dram_vote_bytes_per_second": "denied",
            "dram_hertz": "denied",
            "dram_hw_max_hertz": 3_196_000_000,
        }
        kernel.now += 1
    assert kernel.listings == [DEVFREQ]
    assert kernel.opens.count(f"{DDR}/cur_freq") == 1


@pytest.mark.parametrize(
    ("level", "megahertz"),
    [(1144, 300), (1720, 451), (2086, 547), (2929, 768), (3879, 1017), (5931, 1555), (6881, 1804),
     (7980, 2092)],
)  # fmt: skip
def test_a_vote_is_in_units_of_two_to_the_twentieth(level: int, megahertz: int) -> None:
    """The levels of a phone's available_frequencies are clocks times 4 bytes, in that unit."""
    bytes_per_second = parse_vote(b"%d\n" % level)
    assert bytes_per_second is not None
    assert 0 <= megahertz * 1_000_000 * 4 - bytes_per_second < 1 << 20


def test_the_vote_that_ends_at_the_memory_is_taken(kernel: FakeKernel) -> None:
    """On a Snapdragon 845 `cpubw` ends at the cache; before, it went to the memory."""
    vote(kernel, "qcom,cpubw", 3000)
    assert read(kernel)["dram_vote_bytes_per_second"] == 3000 << 20
    vote(kernel, "qcom,llccbw", 2000)
    assert read(kernel)["dram_vote_bytes_per_second"] == 2000 << 20
    vote(kernel, "qcom,cpu-llcc-ddr-bw", 1000)
    vote(kernel, "qcom,cpu-cpu-llcc-bw", 9000)
    vote(kernel, "qcom,gpubw", 8000)
    assert read(kernel)["dram_vote_bytes_per_second"] == 1000 << 20


@pytest.mark.parametrize("content", ["1000001", "-1", "", "7980 MB/s", "<none>"])
def test_what_is_no_vote_is_implausible(kernel: FakeKernel, content: str) -> None:
    kernel.write(f"{DEVFREQ}/soc:qcom,cpubw/cur_freq", f"{content}\n")
    assert read(kernel)["dram_vote_bytes_per_second"] == "implausible"


@pytest.mark.parametrize("khz", ["0", "3196", "3196000000", "-1", ""])
def test_what_is_no_clock_in_kilohertz_is_implausible(kernel: FakeKernel, khz: str) -> None:
    """3196 would be MHz and 3196000000 Hz."""
    kernel.write(f"{DDR}/cur_freq", f"{khz}\n")
    assert read(kernel)["dram_hertz"] == "implausible"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.EACCES, "denied"),
        (errno.EINVAL, "transient"),
        (errno.EIO, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("path", "key"),
    [
        (f"{DEVFREQ}/soc:qcom,cpubw/cur_freq", "dram_vote_bytes_per_second"),
        (f"{DDR}/cur_freq", "dram_hertz"),
        (f"{DDR}/hw_max_freq", "dram_hw_max_hertz"),
    ],
)
def test_a_file_that_fails_costs_its_own_value_only(
    kernel: FakeKernel, path: str, key: str, error: int, reason: str
) -> None:
    vote(kernel, "qcom,cpubw", 7980)
    kernel.write(f"{DDR}/cur_freq", "5333000\n")
    kernel.write(f"{DDR}/hw_max_freq", "5333000\n")
    kernel.faults[path] = error
    found = read(kernel)
    assert found.pop(key) == reason
    assert not any(isinstance(value, str) for value in found.values())


def test_a_machine_without_one_says_so(kernel: FakeKernel) -> None:
    assert set(read(kernel).values()) == {"absent"}


def test_closing_closes_every_file(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()
    vote(kernel, "qcom,cpubw", 7980)
    source = DramQualcomm(kernel.root, kernel)
    source.read()
    assert len(kernel.open_files) == 3
    source.close()
    assert not kernel.open_files


@given(st.binary(max_size=24))
def test_any_bytes_give_plausible_values_or_none(content: bytes) -> None:
    found = parse_vote(content)
    assert found is None or 0 <= found <= 10**6 << 20
    clock = parse_clock(content)
    assert clock is None or 10**7 <= clock <= 6 * 10**9


@given(st.integers(0, 10**6), st.integers(10_000, 6_000_000))
def test_a_number_cut_anywhere_is_not_taken_for_another(level: int, khz: int) -> None:
    written = b"%d\n" % level
    assert parse_vote(written) == level << 20
    assert all(parse_vote(written[:end]) is None for end in range(len(written)))
    written = b"%d\n" % khz
    assert parse_clock(written) == khz * 1000
    assert all(parse_clock(written[:end]) is None for end in range(len(written)))
