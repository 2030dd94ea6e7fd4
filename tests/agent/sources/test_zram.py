"""zram devices: kernels with more and fewer columns, a device a core, devices that come and go."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, shown

from decodewatch.agent.sources import zram
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.zram import Stored, Zram

MIB = 1 << 20


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    made.write("/sys/block/vda/size", "1\n")
    return made


def device(kernel: FakeKernel, number: int, original: int, used: int, size: int = 512) -> None:
    """A device that holds so many MiB, compressed to a little less than it takes."""
    columns = (original * MIB, used * MIB - 4096, used * MIB, 0, (used + 1) * MIB, 12, 0, 3)
    folder = f"/sys/block/zram{number}"
    kernel.write(f"{folder}/mm_stat", " ".join(f"{column:8}" for column in columns) + "\n")
    kernel.write(f"{folder}/disksize", f"{size * MIB}\n")


def read(source: Zram) -> dict[str, Value | str]:
    """What the source shows, in MiB, by the short names of the values."""
    return {
        key.removeprefix("zram_").removesuffix("_bytes"): (
            value if isinstance(value, str) else value / MIB
        )
        for key, value in shown(source.read()).items()
    }


def test_a_jetson_has_one_device_a_core_and_their_sum_counts(kernel: FakeKernel) -> None:
    for core in range(6):
        device(kernel, core, original=300, used=90, size=635)
    found = read(Zram(kernel.root, kernel))
    assert found == {
        "original": 1800,
        "compressed": 540 - 6 / 256,
        "used": 540,
        "size": 6 * 635,
    }


def test_a_device_that_was_not_set_up_holds_nothing(kernel: FakeKernel) -> None:
    kernel.write("/sys/block/zram0/mm_stat", "0 0 0 0 0 0 0 0 0\n")
    kernel.write("/sys/block/zram0/disksize", "0\n")
    assert set(read(Zram(kernel.root, kernel)).values()) == {0}


def test_without_zram_everything_is_absent(kernel: FakeKernel) -> None:
    source = Zram(kernel.root, kernel)
    for _ in range(int(RELIST_S)):
        assert set(read(source).values()) == {"absent"}
        kernel.now += 1
    assert len(kernel.listings) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.ENODEV, "absent"),
        (errno.EIO, "transient"),
    ],
)
def test_a_sum_of_some_devices_is_no_sum(kernel: FakeKernel, error: int, reason: str) -> None:
    device(kernel, 0, original=300, used=90)
    device(kernel, 1, original=300, used=90)
    kernel.faults["/sys/block/zram1/mm_stat"] = error
    found = read(Zram(kernel.root, kernel))
    assert found == {"original": reason, "compressed": reason, "used": reason, "size": 1024}
    kernel.faults = {"/sys/block/zram1/disksize": error}
    assert read(Zram(kernel.root, kernel))["size"] == reason


def test_a_device_that_goes_and_one_that_comes(kernel: FakeKernel) -> None:
    device(kernel, 0, original=300, used=90)
    device(kernel, 1, original=200, used=50)
    source = Zram(kernel.root, kernel)
    assert read(source)["original"] == 500
    kernel.remove("/sys/block/zram1")
    kernel.now += RELIST_SOON_S
    assert read(source)["original"] == "absent"
    kernel.now += 1
    assert read(source) == {"original": 300, "compressed": 90 - 1 / 256, "used": 90, "size": 512}
    device(kernel, 7, original=1, used=1)
    kernel.now += RELIST_S
    assert read(source)["original"] == 301
    assert len(kernel.open_files) == 2
    source.close()
    assert not kernel.open_files


def test_a_phone_that_denies_the_folder_is_asked_once(kernel: FakeKernel) -> None:
    """Report 39: kiosk-satellite#138, Android writes every refusal to its log."""
    device(kernel, 0, original=300, used=90)
    kernel.faults["/sys/block"] = errno.EACCES
    source = Zram(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(read(source).values()) == {"denied"}
        kernel.now += 1
    assert len(kernel.listings) + len(kernel.opens) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"  4096  74  12288  0  12288  0  0\n", Stored(4096, 74, 12288)),
        (b"  4096  74  12288  0  12288  0  0  0\n", Stored(4096, 74, 12288)),
        (b"  4096  74  12288  0  12288  0  0  0  0\n", Stored(4096, 74, 12288)),
        (b"  4096  74  12288  0  12288  0  0", None),
        (b"  4096  74  12288  0  12288  0\n", None),
        (b"  4096  -74  12288  0  12288  0  0\n", None),
        (b"  4096  74  x  0  12288  0  0\n", None),
        (b"  4096  74  12288  0  x  0  0\n", None),
        (b"  4096  74  12288\n 0  12288  0  0\n", None),
        (b"", None),
    ],
)
def test_columns(line: bytes, expected: Stored | None) -> None:
    assert zram.parse(line) == expected


def test_a_value_that_cannot_be_true_is_left_out(kernel: FakeKernel) -> None:
    device(kernel, 0, original=300, used=90)
    kernel.write("/sys/block/zram0/mm_stat", "garbage\n")
    kernel.write("/sys/block/zram0/disksize", "-1\n")
    assert set(read(Zram(kernel.root, kernel)).values()) == {"implausible"}


@given(st.binary(max_size=60))
def test_any_bytes_are_whole_columns_or_none(content: bytes) -> None:
    found = zram.parse(content)
    assert found is None or min(found) >= 0


@given(st.lists(st.integers(0, 2**50), min_size=7, max_size=9))
def test_a_line_cut_anywhere_is_none(columns: list[int]) -> None:
    line = (" ".join(map(str, columns)) + "\n").encode()
    assert zram.parse(line) == Stored(*columns[:3])
    assert all(zram.parse(line[:end]) is None for end in range(len(line)))
