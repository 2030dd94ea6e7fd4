"""Nodes of devfreq: which device one is, nodes that come and go, the forms of their numbers."""

import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel

from decodewatch.agent.sources.kit.devfreq import Load, Nodes, parse_highest, parse_load
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S

FOLDER = "/sys/class/devfreq"
WANTED = re.compile("gpu|ga10b|qcom,cpubw")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/devfreq").mkdir(parents=True)
    return made


def node(kernel: FakeKernel, member: str, hertz: int, tree_name: str | None = None) -> None:
    kernel.write(f"{FOLDER}/{member}/cur_freq", f"{hertz}\n")
    if tree_name is not None:
        kernel.write(f"{FOLDER}/{member}/device/of_node/name", tree_name.encode() + b"\0")


def read(nodes: Nodes) -> dict[str, bytes | str]:
    return {found.key: found.read("cur_freq") for found in nodes.look()}


def wanted(kernel: FakeKernel, most: int = 3) -> Nodes:
    return Nodes(kernel.root, WANTED, most, kernel)


def test_a_node_is_known_by_the_name_behind_its_address(kernel: FakeKernel) -> None:
    for member in ("17000000.ga10b", "soc:qcom,cpubw", "fb000000.gpu", "fdab0000.npu", "dmc"):
        node(kernel, member, 1)
    assert [(found.key, found.name) for found in wanted(kernel).look()] == [
        ("17000000.ga10b", "ga10b"),
        ("fb000000.gpu", "gpu"),
        ("soc:qcom,cpubw", "qcom,cpubw"),
    ]


def test_a_node_that_is_only_numbered_is_known_by_the_device_tree(kernel: FakeKernel) -> None:
    node(kernel, "devfreq0", 1, "vic")
    node(kernel, "devfreq1", 2, "ga10b")
    node(kernel, "devfreq2", 3, "gpu")
    nodes = wanted(kernel)
    assert read(nodes) == {"ga10b": b"2\n", "gpu": b"3\n"}


def test_a_node_whose_number_moves_stays_the_same_device(kernel: FakeKernel) -> None:
    node(kernel, "devfreq0", 1, "ga10b")
    node(kernel, "devfreq1", 2, "vic")
    nodes = wanted(kernel)
    assert read(nodes) == {"ga10b": b"1\n"}
    kernel.remove(f"{FOLDER}/devfreq0")
    kernel.move(f"{FOLDER}/devfreq1", f"{FOLDER}/devfreq0")
    node(kernel, "devfreq1", 3, "ga10b")
    kernel.now += RELIST_SOON_S
    assert read(nodes) == {"ga10b": "absent"}, "never the clock of the device with its number"
    kernel.now += 1
    assert read(nodes) == {"ga10b": b"3\n"}
    assert len(kernel.open_files) == 1


def test_a_name_that_only_the_device_tree_has_is_asked_once(kernel: FakeKernel) -> None:
    node(kernel, "17000000.renamed", 1, "ga10b")
    node(kernel, "dmc", 1)
    nodes = wanted(kernel)
    for _ in range(5):
        assert read(nodes) == {"17000000.renamed": b"1\n"}
        kernel.now += RELIST_S
    assert sum("of_node" in path for path in kernel.opens) == 2


def test_nodes_of_one_name_are_told_apart(kernel: FakeKernel) -> None:
    for number in range(3):
        node(kernel, f"devfreq{number}", number, "gpu")
    assert read(wanted(kernel, most=2)) == {"gpu": b"0\n", "gpu#2": b"1\n"}


def test_a_node_that_comes_long_after_boot_is_found(kernel: FakeKernel) -> None:
    nodes = wanted(kernel)
    for _ in range(600):
        assert not nodes.look()
        kernel.now += 1
    assert nodes.missing == "absent"
    node(kernel, "17000000.ga10b", 5)
    kernel.now += RELIST_S
    assert read(nodes) == {"17000000.ga10b": b"5\n"}


def test_a_node_that_vanishes_and_returns(kernel: FakeKernel) -> None:
    node(kernel, "17000000.ga10b", 5)
    nodes = wanted(kernel)
    read(nodes)
    kernel.remove(f"{FOLDER}/17000000.ga10b")
    kernel.listings.clear()
    for _ in range(int(RELIST_S) * 3):
        kernel.now += 1
        assert read(nodes) == {"17000000.ga10b": "absent"}
    assert len(kernel.listings) <= 5
    assert not kernel.open_files
    node(kernel, "17000000.ga10b", 6)
    kernel.now += RELIST_S
    assert read(nodes) == {"17000000.ga10b": b"6\n"}


def test_a_driver_that_is_loaded_again_is_found_soon(kernel: FakeKernel) -> None:
    node(kernel, "17000000.ga10b", 5)
    nodes = wanted(kernel)
    read(nodes)
    kernel.remove(f"{FOLDER}/17000000.ga10b")
    node(kernel, "17000000.ga10b", 6)
    kernel.now += RELIST_SOON_S
    read(nodes)
    kernel.now += 1
    assert read(nodes) == {"17000000.ga10b": b"6\n"}


def test_a_denied_folder_is_said_as_such_and_left_alone(kernel: FakeKernel) -> None:
    kernel.faults[FOLDER] = errno.EACCES
    nodes = wanted(kernel)
    for _ in range(int(REPROBE_S)):
        assert not nodes.look()
        kernel.now += 1
    assert nodes.missing == "denied"
    assert len(kernel.listings) == 1


@pytest.mark.parametrize(
    ("content", "load"),
    [
        (b"27@2112000000Hz\n", Load(0.27, 2_112_000_000)),
        (b"0@0Hz\n", Load(0.0, 0)),
        (b"100@528000000Hz", Load(1.0, 528_000_000)),
        (b"101@528000000Hz\n", None),
        (b"-1@528000000Hz\n", None),
        (b"27\n", None),
        (b"@528000000Hz\n", None),
        (b"27@Hz\n", None),
        (b"27@2112MHz\n", None),
    ],
)
def test_a_load_with_its_clock(content: bytes, load: Load | None) -> None:
    assert parse_load(content) == load


@given(st.binary(max_size=32) | st.from_regex(rb"[0-9@Hz\n ]{0,16}", fullmatch=True))
def test_any_bytes_give_a_share_or_none(content: bytes) -> None:
    load = parse_load(content)
    assert load is None or (0 <= load.share <= 1 and load.hertz >= 0)
    highest = parse_highest(content)
    assert highest is None or str(highest).encode() in content


@given(st.integers(0, 100), st.integers(0, 10**10))
def test_a_load_cut_anywhere_is_none(percent: int, hertz: int) -> None:
    content = b"%d@%dHz\n" % (percent, hertz)
    assert parse_load(content) == Load(percent / 100, hertz)
    assert all(parse_load(content[:end]) is None for end in range(len(content) - 1))


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=30))
def test_the_highest_of_a_list_cut_anywhere_is_none(numbers: list[int]) -> None:
    content = b" ".join(b"%d" % number for number in numbers) + b" \n"
    assert parse_highest(content) == max(numbers)
    assert all(parse_highest(content[:end]) is None for end in range(len(content)))
