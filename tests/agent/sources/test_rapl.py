"""Energy that the CPU counts: wraps, suspends, domains that come and go, limits."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources import rapl
from decodewatch.agent.sources.kit.base import Reason, Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.rapl import MOST_DOMAINS, Rapl, limit_of, step

FOLDER = "/sys/class/powercap"
END = 262_143_328_850


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    domain(made, "intel-rapl:0", "package-0", 50_000_000)
    return made


def domain(kernel: FakeKernel, member: str, name: str, energy: int | None) -> None:
    kernel.write(f"{FOLDER}/{member}/name", f"{name}\n")
    kernel.write(f"{FOLDER}/{member}/max_energy_range_uj", f"{END}\n")
    kernel.write(f"{FOLDER}/{member}/constraint_0_power_limit_uw", "15000000\n")
    if energy is not None:
        kernel.write(f"{FOLDER}/{member}/energy_uj", f"{energy}\n")


def read(source: Rapl, label: str = "package-0") -> tuple[Value | str, Value | str]:
    """Energy and power of a domain."""
    found = shown(source.read())
    return found[f"energy_joules:{label}"], found[f"power_watts:{label}"]


def walk(kernel: FakeKernel, source: Rapl, *energies: int) -> list[tuple[Value | str, Value | str]]:
    """What the source shows while the counter goes on, once a second."""
    found = []
    for energy in energies:
        kernel.now += 1
        kernel.write(f"{FOLDER}/intel-rapl:0/energy_uj", f"{energy}\n")
        found.append(read(source))
    return found


def test_the_power_is_that_between_two_reads(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    assert shown(source.read()) == {
        "energy_joules:package-0": 50.0,
        "power_watts:package-0": "transient",
        "power_limit_watts:package-0": 15.0,
    }
    assert walk(kernel, source, 62_500_000, 62_600_000) == [(62.5, 12.5), (62.6, 0.1)]


def test_two_reads_at_one_moment_have_no_power_between_them(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    read(source)
    kernel.now += 0.001
    kernel.write(f"{FOLDER}/intel-rapl:0/energy_uj", "50000061\n")
    assert read(source) == (50.0, "transient")
    assert walk(kernel, source, 60_010_000) == [(60.01, 10.0)]


def test_a_counter_that_begins_again_goes_on(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    found = walk(kernel, source, END - 8_000_000, END - 3_000_000, 7_000_000, 17_000_000)
    assert found == [
        (262135.32885, "transient"),
        (262140.32885, 5.0),
        (262150.32885, 10.0),
        (262160.32885, 10.0),
    ]


def test_a_counter_that_a_suspend_set_back_is_no_wrap(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    found = walk(kernel, source, 90_000_000_000, 90_010_000_000, 1_000_000, 11_000_000)
    assert found == [
        (90000.0, "transient"),
        (90010.0, 10.0),
        (90010.0, "transient"),
        (90020.0, 10.0),
    ]


def test_a_step_that_no_processor_can_make_is_none(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    found = walk(kernel, source, 60_000_000, 9_000_000_000_000, 9_000_010_000_000)
    assert found == [(60.0, "transient"), (60.0, "transient"), (70.0, 10.0)]


@pytest.mark.parametrize("energy", [0, 5_000_000])
def test_a_counter_that_stands_still_counts_nothing(kernel: FakeKernel, energy: int) -> None:
    """0 W would be said of a virtual machine, and of memory that this processor cannot count."""
    source = Rapl(kernel.root, kernel)
    assert walk(kernel, source, energy, energy, energy)[1:] == [("implausible", "implausible")] * 2


def test_a_counter_that_could_not_be_read_for_a_while_loses_nothing(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    walk(kernel, source, 60_000_000)
    kernel.faults[f"{FOLDER}/intel-rapl:0/energy_uj"] = errno.EIO
    assert walk(kernel, source, 70_000_000) == [("transient", "transient")]
    kernel.faults.clear()
    assert walk(kernel, source, 80_000_000) == [(80.0, 10.0)]


def test_without_the_range_a_wrap_is_not_known(kernel: FakeKernel) -> None:
    kernel.remove(f"{FOLDER}/intel-rapl:0/max_energy_range_uj")
    source = Rapl(kernel.root, kernel)
    found = walk(kernel, source, END - 3_000_000, 7_000_000, 17_000_000)
    assert [watts for _, watts in found] == ["transient", "transient", 10.0]


def test_the_counters_are_for_root_and_the_limits_are_not(tmp_path: Path) -> None:
    """The recorded PC: 0400 since CVE-2020-8694."""
    kernel = recorded("x86_oddities", tmp_path)
    domain(kernel, "intel-rapl:0", "package-0", None)
    kernel.faults[f"{FOLDER}/intel-rapl:0/energy_uj"] = errno.EACCES
    source = Rapl(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {
            "energy_joules:package-0": "denied",
            "power_watts:package-0": "denied",
            "power_limit_watts:package-0": 15.0,
        }
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/intel-rapl:0/energy_uj") == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "denied"),
        (errno.ENODEV, "absent"),
        (errno.EAGAIN, "transient"),
        (errno.EIO, "transient"),
        (errno.ENODATA, "transient"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
def test_one_bad_domain_costs_the_others_nothing(
    kernel: FakeKernel, error: int, reason: Reason
) -> None:
    domain(kernel, "intel-rapl:1", "package-1", 30_000_000)
    kernel.faults[f"{FOLDER}/intel-rapl:0/energy_uj"] = error
    source = Rapl(kernel.root, kernel)
    assert read(source)[0] == reason
    assert read(source, "package-1")[0] == 30.0


def test_domains_by_name_and_in_the_order_of_their_numbers(kernel: FakeKernel) -> None:
    """Cores are a part of the package, and the second driver shows the package once more."""
    for member, name in (
        ("intel-rapl", "intel-rapl"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "uncore"),
        ("intel-rapl:0:2", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl:10", "package-1"),
        ("intel-rapl:10:2", "dram"),
        ("intel-rapl:2:0", "core"),
        ("intel-rapl-mmio:0", "package-0"),
        ("dtpm", "dtpm"),
    ):
        domain(kernel, member, name, 1_000_000)
    found = shown(Rapl(kernel.root, kernel).read())
    assert [key for key in found if key.startswith("energy_joules")] == [
        "energy_joules:package-0",
        "energy_joules:dram",
        "energy_joules:psys",
        "energy_joules:package-1",
        "energy_joules:dram#2",
    ]


@pytest.mark.parametrize("board", ["orin_nano_super", "rpi5", "snapdragon_8plus_gen1_sm8475"])
def test_a_device_without_such_counters_says_so(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    assert shown(Rapl(kernel.root, kernel).read()) == {
        "energy_joules": "absent",
        "power_watts": "absent",
        "power_limit_watts": "absent",
    }


def test_a_driver_that_is_loaded_again_goes_on(kernel: FakeKernel) -> None:
    source = Rapl(kernel.root, kernel)
    walk(kernel, source, 60_000_000)
    kernel.move(f"{FOLDER}/intel-rapl:0", "/sys/away")
    for _ in range(2 * int(RELIST_SOON_S)):
        kernel.now += 1
        assert set(shown(source.read()).values()) == {"absent"}
    assert not kernel.open_files
    kernel.move("/sys/away", f"{FOLDER}/intel-rapl:3")
    kernel.write(f"{FOLDER}/intel-rapl:3/energy_uj", "140000000\n")
    kernel.now += RELIST_S
    assert read(source) == (140.0, 1.0), "80 J in 80 s"
    source.close()
    assert not kernel.open_files


def test_a_domain_whose_name_is_denied_is_left_out_and_said(kernel: FakeKernel) -> None:
    kernel.faults[f"{FOLDER}/intel-rapl:0/name"] = errno.EACCES
    assert set(shown(Rapl(kernel.root, kernel).read()).values()) == {"denied"}


def test_domains_are_bounded(kernel: FakeKernel) -> None:
    for number in range(40):
        domain(kernel, f"intel-rapl:{number}", f"package-{number}", 1_000_000)
    assert len(Rapl(kernel.root, kernel).read()) == 3 * MOST_DOMAINS


def test_no_file_is_touched_before_the_first_read(kernel: FakeKernel) -> None:
    Rapl(kernel.root, kernel)
    assert not kernel.opens and not kernel.listings


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"15000000\n", 15.0),
        (b"4000000000\n", "unlimited"),
        (b"4095875000\n", "unlimited"),
        (b"0\n", "unlimited"),
        (b"-1\n", "implausible"),
        (b"15000000", "implausible"),
        (b"\n", "implausible"),
        (b"none\n", "implausible"),
    ],
)
def test_a_limit(content: bytes, expected: float | str) -> None:
    assert shown([limit_of(content, "package-0")]) == {"power_limit_watts:package-0": expected}


@given(st.binary(max_size=24))
def test_any_bytes_give_a_number_that_they_hold(content: bytes) -> None:
    number = rapl.parse(content)
    if number is not None:
        assert number == int(content.split(b"\0")[0]) >= 0


@given(st.integers(0, 10**15))
def test_a_number_cut_anywhere_is_not_taken_for_another(number: int) -> None:
    content = b"%d\n" % number
    assert rapl.parse(content) == number
    for end in range(len(content)):
        assert rapl.parse(content[:end]) is None


@given(st.integers(0, END), st.integers(0, END), st.floats(0.1, 1000))
def test_a_step_is_never_negative_nor_more_than_can_be(
    before: int, now: int, seconds: float
) -> None:
    moved = step(before, now, END, seconds)
    if moved is not None:
        assert 0 <= moved < 2000e6 * seconds
        assert (before + moved) % END == now % END
