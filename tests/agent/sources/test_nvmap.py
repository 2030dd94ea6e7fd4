"""NvMap's clients: a recorded board, odd names, a Thor that accounts for nothing, and who asks."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.runtimes.gpu_memory import GpuMemory
from decodewatch.agent.sources import nvmap
from decodewatch.agent.sources.kit.base import first_known
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.meminfo import Meminfo
from decodewatch.agent.sources.nvmap import EVERY_S, Clients, NvMap

FILE = "/sys/kernel/debug/nvmap/iovmm/clients"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HEAD = b"CLIENT                        PROCESS      PID        SIZE\n"


def listed(*rows: str, total: str = "900K") -> bytes:
    return HEAD + "".join(f"{row}\n" for row in (*rows, f"total     {total}")).encode()


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """The recorded board as root sees it."""
    made = recorded("orin_nano_super", tmp_path)
    made.faults.clear()
    return made


def test_a_recorded_board(kernel: FakeKernel) -> None:
    source = NvMap(kernel.root, kernel)
    assert shown(source.read()) == {"nvmap_used_bytes": 524688 * KIB}
    assert source.process_bytes(4321) == 512 * MIB
    assert source.process_bytes(1543) == 220 * KIB
    assert source.process_bytes(4322) is None


def test_without_root_it_is_denied_and_what_everybody_may_read_is_taken(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    source, meminfo = NvMap(kernel.root, kernel), Meminfo(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"nvmap_used_bytes": "denied"}
        kernel.now += 1
    assert source.process_bytes(4321) is None
    assert len(kernel.opens) == 1
    both = shown(first_known([*meminfo.read(), *source.read()]))
    assert both["nvmap_used_bytes"] == 2621440 * KIB


def test_before_the_first_read_nothing_is_known(kernel: FakeKernel) -> None:
    source = NvMap(kernel.root, kernel)
    assert source.process_bytes(4321) is None
    assert not kernel.opens


def test_the_list_is_read_at_a_slow_pace(kernel: FakeKernel) -> None:
    source = NvMap(kernel.root, kernel)
    for second in range(int(EVERY_S) * 3):
        kernel.write(FILE, listed(f"user app 77 {second}K", total=f"{second + 1}K"))
        (reading,) = source.read()
        assert reading.value == (second // 10 * 10 + 1) * KIB
        kernel.now += 1
    assert kernel.opens == [FILE]
    source.close()
    assert not kernel.open_files
    assert source.read()[0].value == 30 * KIB, "read anew"


@pytest.mark.parametrize(
    ("rows", "processes"),
    [
        (["user python3 7 100K", "user python3 7 23K"], {7: 123 * KIB}),
        (["user python3 7 3M", "user b 8 2G"], {7: 3 * MIB, 8: 2 * GIB}),
        (["user my llm (v2) 7 100K", "user 12 8 5K"], {7: 100 * KIB, 8: 5 * KIB}),
        (["user  7 100K"], {7: 100 * KIB}),
        (["user total 7 100K"], {7: 100 * KIB}),
        (["user a", "b 7 100K"], {7: 100 * KIB}),
        (["user a", "7 100K", "user b 8 5K"], {8: 5 * KIB}),
        (["user \xff\xfe 7 100K"], {7: 100 * KIB}),
        (["nvdisplay kernel 0 800K", "user b 8 5K"], {8: 5 * KIB}),
        (["user idle 7 0K", "user b 8 5K"], {7: 0, 8: 5 * KIB}),
        (["user a 7 100", "user b -8 5K", "user c x 5K", "user d 9 5T", "user e 10 K"], {}),
    ],
)
def test_rows(rows: list[str], processes: dict[int, int]) -> None:
    assert nvmap.parse(listed(*rows)) == Clients(900 * KIB, processes)


def test_a_thor_lists_its_clients_with_nothing() -> None:
    found = nvmap.parse(listed("user Xorg 1234 0K", "user llama 4321 0K", total="0K"))
    assert found == Clients(None, {}), "not accounted for is not 0"


def test_a_thor_reports_that_it_does_not_account(kernel: FakeKernel) -> None:
    kernel.write(FILE, listed("user llama 4321 0K", total="0K"))
    source = NvMap(kernel.root, kernel)
    assert shown(source.read()) == {"nvmap_used_bytes": "unsupported"}
    assert source.process_bytes(4321) is None


@pytest.mark.parametrize("content", [b"", HEAD, b"total\n", b"total 5\n", b"total 5K", b"\xff\n"])
def test_a_list_without_its_total_says_nothing(kernel: FakeKernel, content: bytes) -> None:
    assert nvmap.parse(content) is None
    kernel.write(FILE, content)
    assert shown(NvMap(kernel.root, kernel).read()) == {"nvmap_used_bytes": "implausible"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EIO, "transient"),
    ],
)
def test_what_cannot_be_read_says_why(kernel: FakeKernel, error: int, reason: str) -> None:
    source = NvMap(kernel.root, kernel)
    source.read()
    kernel.faults[FILE] = error
    kernel.now += EVERY_S
    assert shown(source.read()) == {"nvmap_used_bytes": reason}
    assert source.process_bytes(4321) is None, "not what it was"


@given(st.binary(max_size=120) | st.binary(max_size=60).map(lambda middle: listed() + middle))
def test_any_bytes_are_a_whole_list_or_none(content: bytes) -> None:
    found = nvmap.parse(content)
    if found is not None:
        assert found.total is None or found.total > 0
        assert all(pid > 0 and size >= 0 for pid, size in found.processes.items())


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**40)), min_size=1, max_size=6),
    st.data(),
)
def test_a_list_cut_anywhere_says_nothing(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    whole = listed(*(f"user app {pid} {size}K" for pid, size in rows))
    found = nvmap.parse(whole)
    assert found is not None
    if any(size for _, size in rows):
        assert sum(found.processes.values()) == sum(size for _, size in rows) * KIB
    assert nvmap.parse(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


# who asks


class Fixed:
    """A source that knows processes, as NVML's does."""

    def __init__(self, known: dict[int, int]) -> None:
        self._known = known

    def process_bytes(self, pid: int) -> int | None:
        return self._known.get(pid)


@pytest.fixture
def host(tmp_path: Path) -> str:
    """The link of a process that has the pids of the whole device."""
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    return str(link)


def test_the_first_source_that_knows_a_process_is_believed(kernel: FakeKernel, host: str) -> None:
    source = NvMap(kernel.root, kernel)
    ask = GpuMemory([Meminfo(kernel.root, kernel), source, Fixed({4321: 7, 55: 8})], host)
    assert ask(4321) == 7, "NvMap was not read yet"
    source.read()
    assert ask(4321) == 512 * MIB
    assert ask(55) == 8
    assert ask(56) is None


def test_in_a_container_the_pids_of_drivers_are_those_of_others(tmp_path: Path) -> None:
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026532201]")
    assert GpuMemory([Fixed({17: 5})], str(link))(17) is None


def test_without_a_link_there_are_no_containers(tmp_path: Path) -> None:
    assert GpuMemory([Fixed({17: 5})], str(tmp_path / "none"))(17) == 5


def test_this_machine_names_its_pids_in_a_way_that_is_understood() -> None:
    assert os.readlink("/proc/self/ns/pid").startswith("pid:[")  # noqa: PTH115
    assert GpuMemory([])(os.getpid()) is None
