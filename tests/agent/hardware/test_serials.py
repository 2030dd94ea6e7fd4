"""Serial numbers: found where a device has them, and never taken from what devices share."""

import errno
import os
import uuid
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.devices import FakeKernel

from decodewatch.agent.hardware import serials, text

NIC = "/sys/class/net/eth0"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """A device of which nothing is known."""
    return FakeKernel(tmp_path)


def found(kernel: FakeKernel) -> dict[str, list[str]]:
    return {kind: list(numbers) for kind, numbers in serials.read(kernel.root, kernel).items()}


def add_interface(
    kernel: FakeKernel, name: str, mac: str, kind: str = "0", uevent: str | None = "DRIVER=r8169\n"
) -> None:
    folder = f"/sys/class/net/{name}"
    kernel.write(f"{folder}/address", mac + "\n")
    kernel.write(f"{folder}/addr_assign_type", kind + "\n")
    if uevent is not None:
        kernel.write(f"{folder}/device/uevent", uevent)


def test_every_kind_is_found_and_the_board_s_own_comes_first(kernel: FakeKernel) -> None:
    kernel.write("/proc/device-tree/serial-number", b"1421022039512\0")
    kernel.write("/proc/cpuinfo", "processor\t: 0\n\nSerial\t\t: 10000000A3B4C5D6\nModel\t: Pi\n")
    kernel.write("/sys/devices/soc0/serial_number", "3094518872\n")
    for part, cid in (("", "150100424a54443452079a4bcd01a400"), ("boot0", "1" * 32)):
        kernel.write(f"/sys/block/mmcblk0{part}/device/type", "MMC\n")
        kernel.write(f"/sys/block/mmcblk0{part}/device/cid", cid + "\n")
    kernel.write("/sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8057-B7C04F4A3732\n")
    kernel.write("/sys/class/dmi/id/product_serial", "7B5W2J2\n")
    kernel.write("/sys/class/dmi/id/board_serial", "/7B5W2J2/CN12963/\n")
    add_interface(kernel, "eth0", "48:b0:2d:3c:aa:01")
    assert list(found(kernel).items()) == [
        ("device-tree", ["1421022039512"]),
        ("cpuinfo", ["10000000a3b4c5d6"]),
        ("soc", ["3094518872"]),
        ("emmc", ["150100424a54443452079a4bcd01a400"]),
        ("dmi-uuid", ["4c4c4544-0042-3510-8057-b7c04f4a3732"]),
        ("dmi-product", ["7b5w2j2"]),
        ("dmi-board", ["/7b5w2j2/cn12963/"]),
        ("mac", ["48:b0:2d:3c:aa:01"]),
    ]


def test_a_card_that_moves_to_another_board_is_no_number_of_the_board(kernel: FakeKernel) -> None:
    kernel.write("/sys/block/mmcblk0/device/type", "SD\n")
    kernel.write("/sys/block/mmcblk0/device/cid", "035344534333324780a1b2c3d4015c00\n")
    assert found(kernel) == {}


def test_the_image_s_own_id_is_no_number_of_the_hardware(kernel: FakeKernel) -> None:
    kernel.write("/etc/machine-id", uuid.uuid4().hex + "\n")
    kernel.write("/var/lib/dbus/machine-id", uuid.uuid4().hex + "\n")
    assert found(kernel) == {}


@pytest.mark.parametrize(
    ("mac", "kind", "uevent"),
    [
        ("48:b0:2d:3c:aa:01", "3", "DRIVER=x\n"),  # somebody set it
        ("48:b0:2d:3c:aa:01", "1", "DRIVER=x\n"),  # made at random
        ("48:b0:2d:3c:aa:01", "0", None),  # a bridge, a veth: no device behind it
        ("48:b0:2d:3c:aa:01", "0", "DEVTYPE=usb_interface\nDRIVER=r8152\n"),
        ("02:fc:00:00:00:01", "0", "DRIVER=virtio_net\n"),  # given by software
        ("52:54:00:12:34:56", "0", "DRIVER=virtio_net\n"),
        ("01:00:5e:3c:aa:01", "0", "DRIVER=x\n"),  # of a group
        ("48:b0:2d:00:00:00", "0", "DRIVER=x\n"),
        ("00:00:00:00:00:00", "0", "DRIVER=x\n"),
        ("48:b0:2d:3c:aa", "0", "DRIVER=x\n"),
        ("48:b0:2d:3c:aa:zz", "0", "DRIVER=x\n"),
        ("", "0", "DRIVER=x\n"),
    ],
)
def test_an_address_that_is_not_the_hardware_s_own_is_left_out(
    kernel: FakeKernel, mac: str, kind: str, uevent: str | None
) -> None:
    add_interface(kernel, "eth0", mac, kind, uevent)
    assert found(kernel) == {}


def test_addresses_are_in_the_order_of_their_values_not_of_their_names(kernel: FakeKernel) -> None:
    for number in range(9):
        add_interface(kernel, f"eth{number}", f"48:b0:2d:3c:aa:{0x20 - number:02x}")
    assert found(kernel)["mac"] == [f"48:b0:2d:3c:aa:{last:02x}" for last in range(0x18, 0x1C)]


@pytest.mark.parametrize(
    "junk",
    [
        *("", "0", "00000000000000000000", "FFFFFFFFFFFFFFFF", "0123456789", "123456789012"),
        *("1234567890", "0123456789ABCDEF", "To be filled by O.E.M.", "To Be Filled By O.E.M"),
        *("Default string", "System Serial Number", "Not Specified", "None", "N/A", "Unknown"),
        *("Chassis Serial Number", "Base Board Serial Number", "INVALID", "XXXXXXXX", "12345"),
        *("03000200-0400-0500-0006-000700080009", "00000000-0000-0000-0000-000000000000"),
        *("ffffffff-ffff-ffff-ffff-ffffffffffff", "        ", "1212121212", "\x00\x00", "\xff" * 9),
    ],
)
def test_what_thousands_of_boards_share_is_no_serial_number(kernel: FakeKernel, junk: str) -> None:
    for path in (
        "/proc/device-tree/serial-number",
        "/sys/devices/soc0/serial_number",
        "/sys/class/dmi/id/product_uuid",
        "/sys/class/dmi/id/product_serial",
    ):
        kernel.write(path, junk.encode("latin-1") + b"\n")
    kernel.write("/proc/cpuinfo", b"Serial\t\t: " + junk.encode("latin-1") + b"\n")
    assert found(kernel) == {}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO])
def test_what_cannot_be_read_is_left_out_and_costs_nothing_else(
    kernel: FakeKernel, number: int
) -> None:
    kernel.write("/sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8057-B7C04F4A3732\n")
    add_interface(kernel, "eth0", "48:b0:2d:3c:aa:01")
    kernel.faults["/sys/class/dmi/id/product_uuid"] = number
    assert found(kernel) == {"mac": ["48:b0:2d:3c:aa:01"]}
    kernel.faults["/sys/class/net"] = number
    assert found(kernel) == {}
    assert not kernel.open_files


def test_a_serial_number_whose_line_was_cut_is_none(kernel: FakeKernel) -> None:
    kernel.write("/proc/cpuinfo", "processor\t: 0\nSerial\t\t: 10000000a3b4")
    assert found(kernel) == {}


def test_this_machine_s_numbers_can_be_read() -> None:
    numbers = serials.read()
    assert all(values and all(values) for values in numbers.values())
    if os.geteuid() == 0 and Path("/sys/class/dmi/id/product_uuid").exists():
        content = Path("/sys/class/dmi/id/product_uuid").read_bytes()
        assert ("dmi-uuid" in numbers) == (text.serial(content) is not None)


@given(st.binary(max_size=80))
@example(b"\xff\xfe\0")
@example(b"abc\x1b[2Jdef1\n")
def test_no_bytes_make_a_text_that_cannot_be_printed(content: bytes) -> None:
    for made in (text.serial(content), text.name(content), text.printable(content)):
        assert made is None or (made.isprintable() and 0 < len(made) <= 128 and made.strip())


@given(st.uuids())
def test_a_real_uuid_is_taken(value: uuid.UUID) -> None:
    assert text.serial(str(value).upper().encode() + b"\n") == str(value)


@given(st.integers(0, 2**32 - 1))
def test_two_different_serial_numbers_stay_different(number: int) -> None:
    one = text.serial(f"10000000{number:08x}".encode())
    other = text.serial(f"10000000{number ^ 1:08x}".encode())
    assert one is None or one != other
