"""The sources below /proc: meminfo, vmstat, pressure, stat."""

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import DEVICES, FakeKernel, recorded, shown

from decodewatch.agent.sources import cpu, meminfo, pressure, vmstat
from decodewatch.agent.sources.cpu import Cpu, Ticks
from decodewatch.agent.sources.kit.base import REASONS, Reading, read_as
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.meminfo import Meminfo
from decodewatch.agent.sources.pressure import Pressure
from decodewatch.agent.sources.vmstat import Vmstat

KIB = 1024
ORIN = DEVICES / "orin_nano_super"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


# meminfo


def test_memory_of_a_recorded_board(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Meminfo(kernel.root, kernel).read()) == {
        "mem_total_bytes": 7802844 * KIB,
        "mem_available_bytes": 4023972 * KIB,
        "mem_free_bytes": 412356 * KIB,
        "swap_total_bytes": 3901408 * KIB,
        "swap_free_bytes": 3732480 * KIB,
        "nvmap_used_bytes": 2621440 * KIB,
    }


def test_a_line_without_a_space_behind_the_colon_costs_nothing() -> None:
    """Report 34: psutil#2809, `ShadowCallStack:10373888 kB`; and any field may be written so."""
    content = b"MemTotal:16384000 kB\nShadowCallStack:10373888 kB\nMemFree:1024 kB\n"
    found = shown(meminfo.parse(content))
    assert found["mem_total_bytes"] == 16384000 * KIB
    assert found["mem_free_bytes"] == 1024 * KIB


def test_available_memory_may_be_missing() -> None:
    found = shown(meminfo.parse(b"MemTotal: 100 kB\nMemFree: 50 kB\n"))
    assert found["mem_available_bytes"] == "absent"
    assert found["mem_free_bytes"] == 50 * KIB


def test_no_available_memory_while_much_is_free_is_a_bug_of_the_kernel(tmp_path: Path) -> None:
    kernel = recorded("x86_oddities", tmp_path)
    assert shown(Meminfo(kernel.root, kernel).read()) == {
        "mem_total_bytes": 16384000 * KIB,
        "mem_available_bytes": "implausible",
        "mem_free_bytes": 1024000 * KIB,
        "swap_total_bytes": 0,
        "swap_free_bytes": 0,
        "nvmap_used_bytes": "absent",
    }


def test_no_available_memory_on_a_full_device_is_true() -> None:
    found = shown(meminfo.parse(b"MemTotal: 1000 kB\nMemFree: 20 kB\nMemAvailable: 0 kB\n"))
    assert found["mem_available_bytes"] == 0


def test_a_part_larger_than_the_whole_is_implausible() -> None:
    content = (
        b"MemTotal: 100 kB\nMemFree: 101 kB\nMemAvailable: 101 kB\n"
        b"SwapTotal: 5 kB\nSwapFree: 6 kB\nNvMapMemUsed: 101 kB\n"
    )
    assert shown(meminfo.parse(content)) == {
        "mem_total_bytes": 100 * KIB,
        "mem_available_bytes": "implausible",
        "mem_free_bytes": "implausible",
        "swap_total_bytes": 5 * KIB,
        "swap_free_bytes": "implausible",
        "nvmap_used_bytes": "implausible",
    }


@pytest.mark.parametrize("value", ["-5 kB", "5", "5 MB", "5 5 kB", "0x5 kB", "1_0 kB", "", "kB"])
def test_what_is_no_size_is_not_taken_for_one(value: str) -> None:
    found = shown(meminfo.parse(f"MemTotal: {value}\n".encode()))
    assert found["mem_total_bytes"] == "absent"


# vmstat


def test_swapping_and_kills_of_a_recorded_board(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Vmstat(kernel.root, kernel).read()) == {
        "swap_in_bytes": 1476 * 4096,
        "swap_out_bytes": 35045 * 4096,
        "major_faults": 18233,
        "oom_kills": 0,
        "alloc_stalls": 12,
    }


def test_pages_have_the_size_that_the_kernel_gives_them(tmp_path: Path) -> None:
    """Report 45: psutil takes 4 KiB everywhere; a Raspberry Pi 5 has 16."""
    kernel = recorded("rpi5", tmp_path)
    kernel.write("/proc/vmstat", "pswpin 100\npswpout 3\n")
    found = shown(Vmstat(kernel.root, kernel).read())
    assert found["swap_in_bytes"] == 1_638_400
    assert found["swap_out_bytes"] == 3 * 16384


def test_kills_are_absent_before_linux_4_13() -> None:
    found = shown(vmstat.parse(b"pswpin 1\npswpout 2\npgmajfault 3\n", 4096))
    assert found["oom_kills"] == "absent"
    assert found["major_faults"] == 3


def test_names_that_begin_alike_are_told_apart() -> None:
    found = shown(vmstat.parse(b"oom_kill_x 7\nxoom_kill 8\npswpin_thp 9\noom_kill 1\n", 4096))
    assert found["oom_kills"] == 1
    assert found["swap_in_bytes"] == "absent"


def test_the_stalls_of_all_zones_are_added_up() -> None:
    lines = b"allocstall_dma 1\nallocstall_normal 20\nallocstall_movable 300\npgskip_dma 9\n"
    assert shown(vmstat.parse(lines, 4096))["alloc_stalls"] == 321


def test_stalls_before_linux_4_10_have_one_line() -> None:
    lines = b"slabs_scanned 7\nallocstall 5\npageoutrun 9\n"
    assert shown(vmstat.parse(lines, 4096))["alloc_stalls"] == 5


@pytest.mark.parametrize(
    "lines",
    [
        b"allocstall_dma 1\nallocstall_normal 20\n",
        b"allocstall_dma 1\nallocstall_normal 20\nallocst",
        b"allocstall_dma 1\nallocstall_normal\npgskip_dma 9\n",
        b"allocstall_dma 1\nallocstall_normal -2\npgskip_dma 9\n",
    ],
)
def test_the_stalls_of_some_zones_are_not_those_of_all(lines: bytes) -> None:
    """A part of a sum would look like a counter that was reset, and then like many stalls."""
    assert shown(vmstat.parse(lines, 4096))["alloc_stalls"] == "absent"


def test_a_phone_whose_vmstat_is_denied_is_asked_once(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Vmstat(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(shown(source.read()).values()) == {"denied"}
        kernel.now += 1
    assert len(kernel.opens) == 1


# pressure


def test_pressure_of_a_recorded_board(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    found = shown(Pressure(kernel.root, kernel).read())
    assert found["psi_memory_some_microseconds"] == 1893321
    assert found["psi_memory_full_microseconds"] == 622110


def test_full_may_be_missing() -> None:
    """Report 21: node_exporter#3051, a kernel whose cpu file has `some` only."""
    content = (DEVICES / "x86_oddities/proc/pressure/cpu").read_bytes()
    assert pressure.parse(content) == (111749368752, None)


def test_a_board_that_shows_some_of_its_cpu_and_nothing_else(tmp_path: Path) -> None:
    """Report 21: the rest costs it nothing."""
    kernel = recorded("x86_oddities", tmp_path)
    found = shown(Pressure(kernel.root, kernel).read())
    assert found["psi_cpu_some_microseconds"] == 111749368752
    assert found["psi_cpu_full_microseconds"] == "unsupported"
    assert found["psi_memory_some_microseconds"] == "absent"


def test_interrupts_have_full_only(kernel: FakeKernel) -> None:
    kernel.write("/proc/pressure/irq", "full avg10=0.00 avg60=0.00 avg300=0.01 total=48123\n")
    assert shown(Pressure(kernel.root, kernel).read())["psi_irq_full_microseconds"] == 48123


@pytest.mark.parametrize("line", [b"some 12\n", b"some avg10=0.00\n", b"some avg10=0 total=\n"])
def test_a_line_without_a_total_has_none(line: bytes) -> None:
    assert pressure.parse(line) == (None, None)


def test_the_zero_that_kernels_print_for_full_cpu_is_not_a_value(kernel: FakeKernel) -> None:
    lines = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=0\n"
    kernel.write("/proc/pressure/cpu", lines)
    found = shown(Pressure(kernel.root, kernel).read())
    assert found["psi_cpu_some_microseconds"] == 12
    assert found["psi_cpu_full_microseconds"] == "unsupported"


def test_pressure_that_is_switched_off_is_probed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Report 20: node_exporter#1961, netdata#7531, EOPNOTSUPP at every read, a log full of it."""
    kernel = recorded("rpi5", tmp_path)
    caplog.set_level(logging.INFO)
    source = Pressure(kernel.root, kernel)
    for _ in range(300):
        found = shown(source.read())
        kernel.now += 1
    assert found["psi_memory_some_microseconds"] == "unsupported"
    assert found["psi_memory_full_microseconds"] == "unsupported"
    assert kernel.reads.count("/proc/pressure/memory") == 1
    assert caplog.text.count("reason=unsupported") == 1


PSI_FILES = ("cpu", "memory", "io", "irq")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EOPNOTSUPP, "unsupported"),
        (errno.EIO, "transient"),
    ],
)
@pytest.mark.parametrize("missing", PSI_FILES)
def test_one_file_that_fails_costs_the_others_nothing(
    kernel: FakeKernel, missing: str, error: int, reason: str
) -> None:
    """Report 22: node_exporter PR#3263, irq is missing before 6.1, and that wiped all of them."""
    for name in PSI_FILES:
        kernel.write(f"/proc/pressure/{name}", "some avg10=0 total=1\nfull avg10=0 total=2\n")
    kernel.faults[f"/proc/pressure/{missing}"] = error
    found = shown(Pressure(kernel.root, kernel).read())
    for name in PSI_FILES:
        key, value = ("irq_full", 2) if name == "irq" else (f"{name}_some", 1)
        assert found[f"psi_{key}_microseconds"] == (reason if name == missing else value)


def test_without_psi_everything_is_absent(kernel: FakeKernel) -> None:
    assert set(shown(Pressure(kernel.root, kernel).read()).values()) == {"absent"}


# cpu


def stat(*cpus: tuple[int, ...], first: int = 0) -> str:
    """A /proc/stat of these CPUs, with the sum first and the long lines behind."""
    lines = [
        "cpu  " + " ".join(str(sum(column)) for column in zip(*cpus, strict=True)),
        *(f"cpu{first + at} " + " ".join(map(str, fields)) for at, fields in enumerate(cpus)),
        "intr 1234 " + "0 " * 200,
        "ctxt 99",
    ]
    return "\n".join(lines) + "\n"


def run(kernel: FakeKernel, *states: str) -> list[float | int | str]:
    """What the source shows at each of these states of /proc/stat."""
    source = Cpu(kernel.root, kernel)
    found = []
    for state in states:
        kernel.write("/proc/stat", state)
        found.append(shown(source.read())["cpu_busy_share"])
    return found


def test_the_busy_share_is_between_two_reads(kernel: FakeKernel) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    before = stat((100, 0, 50, 800, 50, 0, 0, 0, 10, 0))
    after = stat((120, 5, 55, 860, 60, 1, 2, 7, 15, 0))
    assert run(kernel, before, after) == ["transient", 40 / 110]


def test_a_share_is_known_again_after_the_next_read(kernel: FakeKernel) -> None:
    first, second = stat((10, 0, 0, 10)), stat((20, 0, 0, 20))
    assert run(kernel, first, first, second) == ["transient", "transient", 0.5]


def test_offline_cpus_do_not_drag_the_share(kernel: FakeKernel) -> None:
    """psutil#2512: the sum that the kernel prints counts CPUs that are off."""
    both = stat((100, 0, 0, 100), (500, 0, 0, 500))
    one = "cpu  630 0 0 600\ncpu0 130 0 0 110\nintr 1\n"
    assert run(kernel, both, one) == ["transient", 0.75]


def test_a_cpu_that_comes_online_counts_from_its_second_read(kernel: FakeKernel) -> None:
    one = stat((100, 0, 0, 100))
    two = stat((110, 0, 0, 100), (900, 0, 0, 0))
    three = stat((110, 0, 0, 110), (900, 0, 0, 10))
    assert run(kernel, one, two, three) == ["transient", 1.0, 0.0]


@pytest.mark.parametrize("back", [(99, 0, 0, 100), (100, 0, 0, 99), (0, 0, 0, 0)])
def test_a_counter_that_goes_back_gives_no_value(kernel: FakeKernel, back: tuple[int, ...]) -> None:
    before = stat((100, 0, 0, 100), (100, 0, 0, 100))
    reset = stat((200, 0, 0, 100), back)
    then = stat((200, 0, 0, 200), tuple(field + 100 for field in back))
    shares = run(kernel, before, reset, then)
    assert shares[:2] == ["transient", "transient"]
    assert isinstance(shares[2], float) and 0 <= shares[2] <= 1


def test_waiting_for_storage_may_go_back_into_idle(kernel: FakeKernel) -> None:
    before, after = stat((10, 0, 0, 100, 50)), stat((20, 0, 0, 115, 45))
    assert run(kernel, before, after) == ["transient", 0.5]


def test_a_kernel_that_shows_only_the_sum(kernel: FakeKernel) -> None:
    assert run(kernel, "cpu  1 1 1 1\n", "cpu  4 1 1 2\n") == ["transient", 0.75]


def test_a_denied_stat_is_said_as_such_and_left_alone(tmp_path: Path) -> None:
    """Report 31: psutil#2195, Termux may not read /proc/stat; importing psutil failed there."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Cpu(kernel.root, kernel)
    for _ in range(300):
        assert shown(source.read()) == {"cpu_busy_share": "denied"}
        kernel.now += 1
    assert len(kernel.opens) == 1


def test_after_a_gap_the_share_does_not_reach_across_it(kernel: FakeKernel) -> None:
    source = Cpu(kernel.root, kernel)
    kernel.write("/proc/stat", stat((100, 0, 0, 100)))
    source.read()
    kernel.faults["/proc/stat"] = errno.EIO
    assert shown(source.read()) == {"cpu_busy_share": "transient"}
    kernel.faults.clear()
    kernel.write("/proc/stat", stat((200, 0, 0, 100)))
    assert shown(source.read()) == {"cpu_busy_share": "transient"}
    kernel.write("/proc/stat", stat((200, 0, 0, 200)))
    assert shown(source.read()) == {"cpu_busy_share": 0.0}


# whatever comes


def psi_readings(content: bytes) -> list[Reading]:
    values = pressure.parse(content)
    rows = Pressure.measurements[:2]
    return [read_as(row, value, "absent") for row, value in zip(rows, values, strict=True)]


PARSERS: list[tuple[Callable[[bytes], list[Reading]], Path]] = [
    (meminfo.parse, ORIN / "proc/meminfo"),
    (lambda content: vmstat.parse(content, 4096), ORIN / "proc/vmstat"),
    (psi_readings, ORIN / "proc/pressure/memory"),
]


@pytest.mark.parametrize(("parse", "path"), PARSERS, ids=["meminfo", "vmstat", "pressure"])
def test_a_file_cut_anywhere_shows_its_values_or_none(
    parse: Callable[[bytes], list[Reading]], path: Path
) -> None:
    whole = path.read_bytes()
    values = shown(parse(whole))
    for end in range(len(whole)):
        for key, value in shown(parse(whole[:end])).items():
            assert value in (values[key], "absent"), (end, key)


def test_a_stat_cut_anywhere_shows_its_ticks_or_none() -> None:
    whole = stat((123, 456, 789, 12345, 67), (223, 456, 789, 22345, 67)).encode()
    ticks = {b"cpu": Ticks(346 + 912 + 1578, 34690 + 134), **cpu.parse(whole)}
    for end in range(len(whole)):
        assert cpu.parse(whole[:end]).items() <= ticks.items()


WORDS = st.sampled_from(
    [b"MemTotal:", b"MemFree:", b"pswpin ", b"oom_kill ", b"allocstall_dma ", b"some ",
     b"full ", b" total=", b"cpu", b"cpu0 ", b"kB", b" ", b"\n", b"-", b"\0", b"_",
     b"\xff", b"9" * 30, b"12", b"\xd9\xa3"]
)  # fmt: skip
CONTENTS = st.binary(max_size=200) | st.lists(WORDS, max_size=30).map(b"".join)


@given(CONTENTS)
def test_any_bytes_give_a_value_in_range_or_a_reason(content: bytes) -> None:
    for parse, _ in PARSERS:
        for reading in parse(content):
            if reading.value is None:
                assert reading.reason in REASONS
            else:
                assert isinstance(reading.value, int) and 0 <= reading.value < 2**63


@given(st.lists(CONTENTS, min_size=2, max_size=4))
def test_any_sequence_of_bytes_gives_a_share_or_a_reason(contents: list[bytes]) -> None:
    before: dict[bytes, Ticks] = {}
    for content in contents:
        now = cpu.parse(content)
        share = cpu.busy_share(before, now)
        assert share is None or 0 <= share <= 1
        before = now
