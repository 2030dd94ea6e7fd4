"""What a device is: recorded boards, boards nobody has seen, and files that say nonsense."""

import errno
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.devices import DEVICES, FakeKernel, recorded

from decodewatch.agent.hardware import board
from decodewatch.agent.hardware.board import Board


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    """A device of which nothing is known."""
    return FakeKernel(tmp_path)


def read(kernel: FakeKernel) -> Board:
    return board.read(kernel.root, kernel)


def row(found: Board) -> str | None:
    return None if found.row is None else found.row.id


def test_an_orin_nano_super(tmp_path: Path) -> None:
    found = read(recorded("orin_nano_super", tmp_path))
    assert found.model == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert (found.soc, found.l4t, found.jetpack) == ("tegra234", "36.4.4", "6")
    assert found.memory_bytes == 7802844 * 1024
    assert found.gpu_stack == "nvgpu"
    assert row(found) == "jetson-orin-nano-8gb-super"


def test_an_agx_orin(tmp_path: Path) -> None:
    found = read(recorded("agx_orin_64gb_r35", tmp_path))
    assert (found.l4t, found.jetpack, row(found)) == ("35.3.1", "5", "jetson-agx-orin")
    assert found.compatible[0] == "nvidia,p3737-0000+p3701-0005"


def test_a_thor(tmp_path: Path) -> None:
    found = read(recorded("agx_thor_r38", tmp_path))
    assert (found.soc, found.l4t, found.jetpack) == ("tegra264", "38.4.0", "7")
    assert found.gpu_stack == "nvidia"


def test_a_raspberry_pi(tmp_path: Path) -> None:
    found = read(recorded("rpi5", tmp_path))
    assert found.model == "Raspberry Pi 5 Model B Rev 1.0"
    assert (found.soc, found.page_bytes, row(found)) == ("bcm2712", 16384, "raspberry-pi-5")
    assert (found.l4t, found.jetpack, found.gpu_stack) == (None, None, None)


def test_a_phone(tmp_path: Path) -> None:
    found = read(recorded("snapdragon_8plus_gen1_sm8475", tmp_path))
    assert (found.model, found.soc, found.android) == ("22081212C", "SM8475", "13")
    assert row(found) == "sm8475"


def test_a_pc(kernel: FakeKernel) -> None:
    kernel.write("/sys/class/dmi/id/sys_vendor", "LENOVO\n")
    kernel.write("/sys/class/dmi/id/product_name", "21HM\n")
    kernel.write(
        *("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R) Core(TM) Ultra 7 155H\n"),
    )
    kernel.write("/proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
    found = read(kernel)
    assert (found.model, found.kernel) == ("LENOVO 21HM", "6.8.0-60-generic")
    assert found.cpu == "Intel(R) Core(TM) Ultra 7 155H"
    assert row(found) == "intel-core-ultra-1"


@pytest.mark.parametrize(
    ("family", "machine", "soc_id", "compatible", "soc"),
    [
        ("Tegra", "NVIDIA Jetson Orin NX Engineering Reference Developer Kit", "35",
         "nvidia,p3767-0000 nvidia,tegra234", "tegra234"),
        ("Freescale i.MX", "NXP i.MX8MPlus EVK board", "i.MX8MP", "fsl,imx8mp-evk fsl,imx8mp",
         "i.MX8MP"),
        ("Samsung Exynos", "Oriole", "GS101", "google,oriole google,gs101", "GS101"),
        ("Snapdragon", "SDM845", "321", "oneplus,enchilada qcom,sdm845", "SDM845"),
        (None, "KONA", None, "", "KONA"),
        ("AM62X", "BeagleBoard.org BeaglePlay", None, "beagle,am625-beagleplay ti,am625", "am625"),
        ("jep106:0426", "Some board", "jep106:0426:8180", "acme,board mediatek,mt8183", "mt8183"),
        (None, None, None, "apple,j313 apple,t8103 apple,arm-platform", "t8103"),
        (None, None, None, "linux,dummy-virt", None),
    ],
)  # fmt: skip
def test_which_file_names_the_chip_differs_by_maker(
    kernel: FakeKernel,
    family: str | None,
    machine: str | None,
    soc_id: str | None,
    compatible: str,
    soc: str | None,
) -> None:
    for file, content in (("family", family), ("machine", machine), ("soc_id", soc_id)):
        if content is not None:
            kernel.write(f"/sys/devices/soc0/{file}", content + "\n")
    names = "".join(f"{name}\0" for name in compatible.split())
    kernel.write("/proc/device-tree/compatible", names)
    assert read(kernel).soc == soc


def test_what_a_vendor_has_not_filled_in_is_no_model(kernel: FakeKernel) -> None:
    kernel.write("/sys/class/dmi/id/sys_vendor", "To Be Filled By O.E.M.\n")
    kernel.write("/sys/class/dmi/id/product_name", "Default string\n")
    assert read(kernel).model is None


def test_a_board_that_nobody_has_seen_is_of_its_chip_s_family(kernel: FakeKernel) -> None:
    """Report 12: rbonghi/jetson_stats#711, #712."""
    kernel.write("/proc/device-tree/model", b"NVIDIA Jetson of next year\0")
    kernel.write(
        *("/proc/device-tree/compatible", b"nvidia,p9999-0000+p9998-0008\0nvidia,tegra264\0"),
    )
    found = read(kernel)
    assert (found.soc, row(found)) == ("tegra264", "tegra264")
    kernel.write("/proc/device-tree/compatible", b"nvidia,p9999-0000\0nvidia,tegra777\0")
    found = read(kernel)
    assert (found.soc, found.row) == ("tegra777", None)
    assert found.model == "NVIDIA Jetson of next year"


def test_a_gpu_that_is_not_nvidia_s_has_no_stack_of_nvidia_s(kernel: FakeKernel) -> None:
    kernel.write("/proc/device-tree/compatible", b"radxa,rock-5b\0rockchip,rk3588\0")
    kernel.write("/sys/class/devfreq/fb000000.gpu/device/of_node/name", b"gpu\0")
    assert read(kernel).gpu_stack is None


def test_a_driver_of_a_pc_s_gpu_is_seen(kernel: FakeKernel) -> None:
    kernel.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX  580.65.06\n")
    assert read(kernel).gpu_stack == "nvidia"


def test_without_any_file_nothing_is_known_but_what_the_kernel_says_of_itself(
    kernel: FakeKernel,
) -> None:
    found = board.read(kernel.root, kernel, release="6.1.75-android14")
    assert found == Board(
        *(None, None, None, (), None, found.page_bytes, "6.1.75-android14"),
        *(None, None, None, None, None),
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EINVAL, errno.ENODEV])
def test_one_file_that_cannot_be_read_costs_only_itself(tmp_path: Path, number: int) -> None:
    whole = read(recorded("orin_nano_super", tmp_path))
    kernel = FakeKernel(tmp_path / "orin_nano_super")
    kernel.faults["/proc/device-tree/model"] = number
    assert read(kernel).model is None
    assert read(kernel).row == whole.row
    kernel.faults = {"/proc/device-tree": number, "/sys/class": number}
    found = read(kernel)
    assert (found.l4t, found.memory_bytes) == ("36.4.4", whole.memory_bytes)
    assert found.row is None


@pytest.mark.parametrize("name", sorted(path.name for path in DEVICES.iterdir() if path.is_dir()))
def test_every_recorded_device_is_read_without_a_fault(name: str, tmp_path: Path) -> None:
    kernel = recorded(name, tmp_path)
    assert read(kernel).page_bytes > 0
    assert not kernel.open_files


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"# R36 (release), REVISION: 4.4, GCID: 1, BOARD: generic\n", ("36.4.4", "6")),
        (b"# R35 (release), REVISION: 3.1, GCID: 1\n", ("35.3.1", "5")),
        (b"# R34 (release), REVISION: 1.1, GCID: 1\n", ("34.1.1", "5")),
        (b"# R32 (release), REVISION: 7.2, GCID: 1\n", ("32.7.2", "4")),
        (b"# R39 (release), REVISION: 2.0, GCID: 1\n", ("39.2.0", "7")),
        (b"# R39 (release), REVISION: 2, GCID: 1\n", ("39.2", "7")),
        (b"# R21 (release), REVISION: 5.0, GCID: 1\n", ("21.5.0", None)),
        (b"# R36 (release), REVISION: 4.", (None, None)),
        (b"# R36 (release), REVISION: 4", (None, None)),
        (b"Ubuntu 22.04\n", (None, None)),
        (b"", (None, None)),
    ],
)
def test_the_release_of_l4t(line: bytes, expected: tuple[str | None, str | None]) -> None:
    assert board.parse_l4t(line) == expected


def test_properties_of_android_are_found_among_many() -> None:
    printed = b"".join(
        b"[%s]: [%s]\n" % one
        for one in (
            (b"ro.boot.serialno", b"ABC123"),
            (b"ro.soc.model", b"Tensor G3"),
            (b"ro.soc.manufacturer", b"Google"),
            (b"ro.product.model", b"Pixel 8"),
            (b"ro.product.manufacturer", b"Google"),
            (b"ro.hardware", b""),
        )
    )
    assert board.parse_properties(printed) == {
        "ro.soc.model": "Tensor G3",
        "ro.soc.manufacturer": "Google",
        "ro.product.model": "Pixel 8",
        "ro.product.manufacturer": "Google",
    }
    assert board.parse_properties(b"[ro.soc.model]: [Tensor G3") == {}


def test_what_cannot_be_printed_is_not_shown(kernel: FakeKernel) -> None:
    kernel.write("/proc/device-tree/model", b"Board \x1b[2J\xff\r\x07" + b"x" * 900 + b"\0")
    model = read(kernel).model
    assert model is not None and model.isprintable() and len(model) == 128
    kernel.write("/proc/device-tree/compatible", b"evil,\x1b]0;x\x07\0" + b"y" * 900 + b"\0")
    assert all(name.isprintable() and len(name) <= 128 for name in read(kernel).compatible)


@given(st.binary(max_size=200))
@example(b"# R36 (release), REVISION: 4.4,")
def test_no_bytes_make_a_parser_raise_or_invent_a_release(content: bytes) -> None:
    l4t, jetpack = board.parse_l4t(content)
    assert (l4t is None) or content.startswith(b"# R" + l4t.split(".")[0].encode())
    assert jetpack is None or l4t is not None
    name = board.parse_cpu(content)
    assert name is None or name.isprintable()
    assert all(value.isprintable() for value in board.parse_properties(content).values())


@settings(deadline=None)
@given(st.binary(max_size=120), st.binary(max_size=120), st.binary(max_size=120))
def test_no_files_make_the_reading_fail(model: bytes, compatible: bytes, cpuinfo: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        kernel = FakeKernel(Path(folder))
        kernel.write("/proc/device-tree/model", model)
        kernel.write("/proc/device-tree/compatible", compatible)
        kernel.write("/proc/cpuinfo", cpuinfo)
        kernel.write("/proc/meminfo", cpuinfo)
        found = read(kernel)
    words = (found.model, found.soc, found.cpu, *found.compatible)
    assert all(word is None or (word.isprintable() and len(word) <= 128) for word in words)
