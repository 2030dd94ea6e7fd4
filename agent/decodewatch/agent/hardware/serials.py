"""What only this one piece of hardware has: serial numbers and MAC addresses.

They are read to make the device's id and to notice that a disk image was cloned, see `identity`.
They are hashed there, and are neither kept, nor logged, nor sent.

`/etc/machine-id` is not among them: it is a file of the image, and is cloned with it. The number of
an SD card is not either: it moves to another board with the image, and would hide the move.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from decodewatch.agent.hardware import text
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import after

Serials = Mapping[str, Sequence[str]]
"""Serial numbers by the kind of their place, the best kind first. One kind may have several."""

_SMALL: Final = 512
_CPUINFO_BYTES: Final = 256 * 1024
_MOST_MEMBERS: Final = 64
_MOST_ADDRESSES: Final = 4
_PERMANENT: Final = b"0"  # addr_assign_type: the address that the hardware came with
_LOCAL_OR_GROUP: Final = 0b11  # of a MAC address's first byte: given by software, or of many


def read(root: Path = Path("/"), kernel: Kernel = KERNEL) -> Serials:
    """What can be read now; kinds that cannot, or hold nothing that tells devices apart, are left
    out."""
    found = {kind: reader(root, kernel) for kind, reader in _KINDS}
    return {kind: values for kind, values in found.items() if values}


def _device_tree(root: Path, kernel: Kernel) -> list[str]:
    return _one(root / "proc/device-tree/serial-number", kernel)


def _cpuinfo(root: Path, kernel: Kernel) -> list[str]:
    """The line `Serial : 10000000abcdef01` that Raspberry Pis and older phones have."""
    content = read_once(root / "proc/cpuinfo", _CPUINFO_BYTES, kernel)
    rest = None if isinstance(content, str) else after(content, b"Serial")
    number = None if rest is None else text.serial(rest.strip().removeprefix(b":"))
    return [] if number is None else [number]


def _emmc(root: Path, kernel: Kernel) -> list[str]:
    """The card identification of flash that is soldered to the board (device/type is `MMC`)."""
    found = []
    for disk in _members(root / "sys/block", kernel):
        if not disk.startswith("mmcblk") or not disk[len("mmcblk") :].isdigit():
            continue  # boot partitions repeat the disk's own
        folder = root / "sys/block" / disk / "device"
        if read_once(folder / "type", _SMALL, kernel) == b"MMC\n":
            found += _one(folder / "cid", kernel)
    return found


def _dmi(name: str) -> Callable[[Path, Kernel], list[str]]:
    return lambda root, kernel: _one(root / "sys/class/dmi/id" / name, kernel)


def _soc(root: Path, kernel: Kernel) -> list[str]:
    return _one(root / "sys/devices/soc0/serial_number", kernel)


def _mac(root: Path, kernel: Kernel) -> list[str]:
    """Addresses that network hardware came with, the lowest first: names and numbers change.

    Not those of adapters on USB, which move from board to board.
    """
    found = []
    for interface in _members(root / "sys/class/net", kernel):
        folder = root / "sys/class/net" / interface
        device = read_once(folder / "device/uevent", 4096, kernel)
        kind = read_once(folder / "addr_assign_type", _SMALL, kernel)
        if isinstance(device, str) or b"usb" in device or isinstance(kind, str):
            continue
        address = read_once(folder / "address", _SMALL, kernel)
        if kind.strip() == _PERMANENT and not isinstance(address, str):
            mac = _hardware_address(address)
            if mac is not None:
                found.append(mac)
    return sorted(set(found))[:_MOST_ADDRESSES]


def _hardware_address(content: bytes) -> str | None:
    try:
        octets = bytes(int(part, 16) for part in content.strip().split(b":"))
    except ValueError:
        return None
    if len(octets) != 6 or octets[0] & _LOCAL_OR_GROUP or not any(octets[3:]):
        return None
    return text.serial(octets.hex(":").encode())


_KINDS: Final[tuple[tuple[str, Callable[[Path, Kernel], list[str]]], ...]] = (
    ("device-tree", _device_tree),
    ("cpuinfo", _cpuinfo),
    ("soc", _soc),
    ("emmc", _emmc),
    ("dmi-uuid", _dmi("product_uuid")),  # root, like the two below
    ("dmi-product", _dmi("product_serial")),
    ("dmi-board", _dmi("board_serial")),
    ("mac", _mac),
)


def _one(path: Path, kernel: Kernel) -> list[str]:
    content = read_once(path, _SMALL, kernel)
    number = None if isinstance(content, str) else text.serial(content)
    return [] if number is None else [number]


def _members(folder: Path, kernel: Kernel) -> list[str]:
    try:
        return sorted(kernel.listdir(str(folder)))[:_MOST_MEMBERS]
    except OSError:
        return []
