r"""What device this is: model, chip, memory, kernel, NVIDIA's release, by what anybody may read.

    /proc/device-tree/model              `Raspberry Pi 5 Model B Rev 1.0`, ended by a NUL
    /proc/device-tree/compatible         from the board's own name to its chip's, see `kit`
    /etc/nv_tegra_release                `# R36 (release), REVISION: 4.4, GCID: ...`
    /sys/class/dmi/id/{sys_vendor,product_name,product_family}   PCs
    /sys/devices/soc0/{family,machine,soc_id}   phones and others; who writes what, see `_soc0`
    /proc/cpuinfo                        `model name : ...` of a PC
    getprop                              `[ro.soc.model]: [SM8475]`, Android

A device of which none of this is known is a device all the same: what is not known is None.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from decodewatch.agent.android import is_android
from decodewatch.agent.hardware import text
from decodewatch.agent.sources.kit import device_tree
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import after, kibibytes
from decodewatch.shared import devices
from decodewatch.shared.devices import KnownDevice

_SMALL: Final = 1024
_FIRST_CPUS: Final = 16 * 1024  # bytes of /proc/cpuinfo: the first processors are enough
_PROPERTIES_BYTES: Final = 256 * 1024
_PROPERTY_BYTES: Final = 92  # PROP_VALUE_MAX of Android's sys/system_properties.h
_PROPERTIES: Final = (
    *("ro.soc.model", "ro.soc.manufacturer", "ro.board.platform", "ro.hardware"),
    *("ro.product.model", "ro.product.manufacturer", "ro.build.version.release"),
)
_L4T = re.compile(rb"# R(\d{1,3}) \(release\), REVISION: (\d{1,3}(?:\.\d{1,3}){0,2}),")
# The JetPack of a release of L4T.
_JETPACK: Final = ((38, "7"), (36, "6"), (34, "5"), (32, "4"), (28, "3"))
# Names of the GPU's node in the device tree, where the driver is nvgpu: Nano, TX2, Xavier, Orin.
_NVGPU: Final = frozenset({"gm20b", "gp10b", "gv11b", "ga10b", "gpu"})
_MOST_NODES: Final = 64
_NO_CHIPS: Final = frozenset({"arm-platform", "dummy-virt"})
"""What stands behind the chip's name in a Mac's list, and alone in a virtual machine's."""


@dataclass(frozen=True, slots=True)
class Board:
    """What is known of this device. Words are printable and short, whoever wrote them."""

    model: str | None
    """What its maker calls it."""
    soc: str | None
    """Its chip: `tegra234`, `SM8475`, `bcm2712`; a PC has none, see `cpu`."""
    cpu: str | None
    """The processor's own name, where it has one."""
    compatible: tuple[str, ...]
    memory_bytes: int | None
    page_bytes: int
    kernel: str | None
    l4t: str | None
    """NVIDIA's release of Linux for Tegra: `36.4.4`."""
    jetpack: str | None
    """The JetPack that it belongs to: `6`."""
    gpu_stack: str | None
    """`nvgpu` (Orin and older) or `nvidia` (Thor, and GPUs of PCs): they offer different files."""
    android: str | None
    """The version of Android."""
    row: KnownDevice | None
    """Its row in the table of known devices."""


def read(root: Path = Path("/"), kernel: Kernel = KERNEL, release: str | None = None) -> Board:
    """What the device below `root` is. `release` is its kernel's, where no file says it."""

    def named(path: str) -> str | None:
        content = read_once(root / path, _SMALL, kernel)
        return None if isinstance(content, str) else text.name(content)

    compatible = tuple(text.shortened(name) for name in device_tree.compatible(root, kernel))
    cpuinfo = _content(root / "proc/cpuinfo", _FIRST_CPUS, kernel)
    meminfo = _content(root / "proc/meminfo", _SMALL, kernel)
    memory = kibibytes(meminfo, b"MemTotal") or None
    android = _properties(root, kernel)
    cpu = parse_cpu(cpuinfo)
    product = named("sys/class/dmi/id/product_name")
    sold = [product, named("sys/class/dmi/id/product_family"), android.get("ro.product.model")]
    model = named("proc/device-tree/model")
    soc0 = (named(f"sys/devices/soc0/{file}") for file in ("family", "machine", "soc_id"))
    chips = [android.get("ro.soc.model"), _soc0(*soc0)]
    if android:
        model = _together(android.get("ro.product.manufacturer"), android.get("ro.product.model"))
    elif model is None:
        model = _together(named("sys/class/dmi/id/sys_vendor"), product)
    is_tegra = any(name.startswith("nvidia,tegra") for name in compatible)
    l4t, jetpack = parse_l4t(_content(root / "etc/nv_tegra_release", _SMALL, kernel))
    return Board(
        model=model,
        soc=next(filter(None, chips), None) or _chip(compatible),
        cpu=cpu,
        compatible=compatible,
        memory_bytes=memory,
        page_bytes=kernel.page_bytes(),
        kernel=named("proc/sys/kernel/osrelease") or release,
        l4t=l4t,
        jetpack=jetpack,
        gpu_stack=_gpu_stack(root, kernel, is_tegra),
        android=android.get("ro.build.version.release"),
        row=devices.find(
            compatible,
            socs=[*filter(None, chips), *_platforms(android)],
            products=[name for name in sold if name],
            cpu=cpu,
            memory_bytes=memory,
        ),
    )


def parse_cpu(cpuinfo: bytes) -> str | None:
    """The name that the first processor of a /proc/cpuinfo gives itself."""
    for line in (b"model name", b"Hardware"):
        rest = after(cpuinfo, line)
        if rest is not None:
            found = text.name(rest.strip().removeprefix(b":"))
            # Arm's kernels say `ARMv8 Processor rev 1 (v8l)`, which is none.
            if found is not None and not found.startswith("ARMv"):
                return found
    return None


def parse_l4t(content: bytes) -> tuple[str | None, str | None]:
    """Release of Linux for Tegra, and the JetPack that it is of, by an /etc/nv_tegra_release."""
    found = _L4T.match(content)
    if found is None:
        return None, None
    major = int(found[1])
    jetpack = next((name for least, name in _JETPACK if major >= least), None)
    return f"{major}.{found[2].decode()}", jetpack


def parse_properties(content: bytes) -> dict[str, str]:
    """The properties that matter of what `getprop` prints, `[name]: [value]` a line."""
    found = {}
    for name in _PROPERTIES:
        rest = after(content, f"[{name}]: [".encode())
        value = None if rest is None or not rest.endswith(b"]") else text.name(rest[:-1])
        if value is not None:
            found[name] = value
    return found


def _properties(root: Path, kernel: Kernel) -> Mapping[str, str]:
    """Android's properties; none anywhere else."""
    if root != Path("/"):
        return parse_properties(_content(root / "cmd/getprop.txt", _PROPERTIES_BYTES, kernel))
    return _own_properties() if is_android() else {}


def _own_properties() -> dict[str, str]:
    """The same by Android's libc, without a child: they lie in memory that every app shares."""
    try:
        import ctypes

        function: Callable[..., int] = ctypes.CDLL(None).__system_property_get
        found = {}
        for name in _PROPERTIES:
            buffer = ctypes.create_string_buffer(_PROPERTY_BYTES)
            function(name.encode(), buffer)
            value = text.name(buffer.value)
            if value is not None:
                found[name] = value
        return found
    except (ImportError, OSError, AttributeError):
        return {}


def _platforms(android: Mapping[str, str]) -> list[str]:
    """Code names of the chip, which older phones have instead of its name."""
    names = (android.get("ro.board.platform"), android.get("ro.hardware"))
    return [name for name in names if name]


def _soc0(family: str | None, machine: str | None, soc_id: str | None) -> str | None:
    """The chip's name by /sys/devices/soc0. Which of its files has it differs by maker.

    | family | machine | soc_id |
    |---|---|---|
    | Snapdragon | SDM845 | 321 |
    | Freescale i.MX | NXP i.MX8MPlus EVK board | i.MX8MP |
    | Samsung Exynos | Oriole | GS101 |
    | Tegra | NVIDIA Jetson Orin NX ... | 35 |
    | AM62X | BeagleBoard.org BeaglePlay | |
    """
    if soc_id is not None and soc_id[:1].isalpha() and not soc_id.startswith("jep106"):
        return soc_id
    return machine if machine is not None and family in (None, "Snapdragon") else None


def _chip(compatible: tuple[str, ...]) -> str | None:
    """`nvidia,tegra234`, the last and least specific of the names, without its maker."""
    names = [name.rpartition(",")[2].strip() for name in compatible]
    chips = [name for name in names if name and name not in _NO_CHIPS]
    return chips[-1] if chips else None


def _gpu_stack(root: Path, kernel: Kernel, is_tegra: bool) -> str | None:
    folder = root / "sys/class/devfreq"
    try:
        nodes = sorted(kernel.listdir(str(folder)))[:_MOST_NODES]
    except OSError:
        nodes = []
    # Some kernels of newer boards have both: the newer driver is the one in use.
    if "gpu-gpc-0" in nodes or _content(root / "proc/driver/nvidia/version", _SMALL, kernel):
        return "nvidia"
    for node in nodes if is_tegra else ():
        # Recorded nodes may lack of_node; their own name ends in the same word.
        of_node = _content(folder / node / "device/of_node/name", _SMALL, kernel)
        if (text.printable(of_node) or node.rpartition(".")[2]) in _NVGPU:
            return "nvgpu"
    return None


def _content(path: Path, limit: int, kernel: Kernel) -> bytes:
    content = read_once(path, limit, kernel)
    return b"" if isinstance(content, str) else content


def _together(maker: str | None, product: str | None) -> str | None:
    """`LENOVO 21HM`, and no maker twice: `Raspberry Pi` is part of what it calls its boards."""
    if maker is None or product is None or product.casefold().startswith(maker.casefold()):
        return product or maker
    return text.shortened(f"{maker} {product}")


def kernel_release() -> str:
    """The release of the running kernel, which some Androids show in no file."""
    return os.uname().release
