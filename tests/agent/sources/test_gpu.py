"""GPUs of devfreq: recorded boards, GPUs that are off, and what their load is written in."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.gpu import MOST_GPUS, Gpu, parse_clock, parse_limit, parse_permille
from decodewatch.agent.sources.kit.files import RELIST_S

FOLDER = "/sys/class/devfreq"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def gpu(
    kernel: FakeKernel, member: str, hertz: int, most: int = 1_000_000_000, **files: str
) -> None:
    kernel.write(f"{FOLDER}/{member}/cur_freq", f"{hertz}\n")
    kernel.write(f"{FOLDER}/{member}/max_freq", f"{most}\n")
    for name, content in files.items():
        kernel.write(f"{FOLDER}/{member}/{name.replace('__', '/')}", content)


def test_an_orin_nano_at_full_load(tmp_path: Path) -> None:
    """Its load is in thousandths: 999 is not 999 percent."""
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Gpu(kernel.root, kernel).read()) == {
        "gpu_busy_share": 0.999,
        "gpu_hertz": 1_020_000_000,
        "gpu_max_hertz": 1_020_000_000,
    }


def test_a_gpu_that_is_switched_off_has_a_clock_of_zero(tmp_path: Path) -> None:
    """The one clock whose 0 is a value: tegrastats shows `GR3D_FREQ 0%@0` for it."""
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    assert shown(Gpu(kernel.root, kernel).read()) == {
        "gpu_busy_share": 0.0,
        "gpu_hertz": 0,
        "gpu_max_hertz": 1_300_500_000,
    }


def test_a_thor_has_a_clock_and_no_load(tmp_path: Path) -> None:
    """Report 2: datadog-agent#52046. gpu-nvd-0 is the video engines', and not the GPU's clock."""
    kernel = recorded("agx_thor_r38", tmp_path)
    assert shown(Gpu(kernel.root, kernel).read()) == {
        "gpu_busy_share": "absent",
        "gpu_hertz": 314_000_000,
        "gpu_max_hertz": 1_575_000_000,
    }


def test_further_parts_of_a_gpu_are_named_and_not_averaged(kernel: FakeKernel) -> None:
    """Report 4: datadog-agent#34840, several GPCs."""
    gpu(kernel, "gpu-gpc-1", 0)
    source = Gpu(kernel.root, kernel)
    assert shown(source.read())["gpu_hertz:gpu-gpc-1"] == 0
    gpu(kernel, "gpu-gpc-0", 800_000_000)
    gpu(kernel, "gpu-gpc-2", 700_000_000)
    kernel.now += RELIST_S
    found = shown(source.read())
    assert found["gpu_hertz"] == 800_000_000
    assert found["gpu_hertz:gpu-gpc-1"] == 0
    assert found["gpu_hertz:gpu-gpc-2"] == 700_000_000


def test_an_rk3588_writes_its_load_with_its_clock(kernel: FakeKernel) -> None:
    gpu(kernel, "fb000000.gpu", 800_000_000, load="27@800000000Hz\n")
    gpu(kernel, "fdab0000.npu", 900_000_000, load="99@900000000Hz\n")
    assert shown(Gpu(kernel.root, kernel).read()) == {
        "gpu_busy_share": 0.27,
        "gpu_hertz": 800_000_000,
        "gpu_max_hertz": 1_000_000_000,
    }


@pytest.mark.parametrize(
    "member",
    [
        "17000000.ga10b",
        "17000000.gpu",
        "17000000.gv11b",
        "17000000.gp10b",
        "57000000.gpu",
        "gpu.0",
        "gpu-gpc-0",
        "fb000000.gpu",
        "fb000000.gpu-panthor",
        "13000000.mali",
        "ffe40000.bifrost",
        "fe400000.valhall",
        "5000000.gpu",
    ],
)
def test_what_is_a_gpu(kernel: FakeKernel, member: str) -> None:
    gpu(kernel, member, 500_000_000)
    assert shown(Gpu(kernel.root, kernel).read())["gpu_hertz"] == 500_000_000


@pytest.mark.parametrize(
    "member",
    [
        "gpu-nvd-0",
        "soc:qcom,gpubw",
        "fdab0000.npu",
        "bwmgr",
        "15340000.vic",
        "gpumcu",
        "mali_bw",
        "soc:qcom,kgsl-busmon",
    ],
)
def test_what_is_no_gpu(kernel: FakeKernel, member: str) -> None:
    gpu(kernel, member, 500_000_000)
    assert set(shown(Gpu(kernel.root, kernel).read()).values()) == {"absent"}


def test_a_gpu_whose_driver_loads_after_boot_is_found(kernel: FakeKernel) -> None:
    (kernel.root / "sys/class/devfreq").mkdir(parents=True)
    source = Gpu(kernel.root, kernel)
    assert set(shown(source.read()).values()) == {"absent"}
    gpu(kernel, "17000000.ga10b", 306_000_000, device__load="0\n")
    kernel.now += RELIST_S
    assert shown(source.read())["gpu_busy_share"] == 0.0


def test_a_gpu_that_vanishes_is_absent_and_keeps_its_name(kernel: FakeKernel) -> None:
    gpu(kernel, "17000000.ga10b", 306_000_000, device__load="120\n")
    source = Gpu(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/17000000.ga10b")
    assert set(shown(source.read()).values()) == {"absent"}
    gpu(kernel, "17000000.ga10b", 408_000_000, device__load="130\n")
    kernel.now += RELIST_S
    source.read()
    assert shown(source.read()) == {
        "gpu_busy_share": 0.13,
        "gpu_hertz": 408_000_000,
        "gpu_max_hertz": 1_000_000_000,
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EINVAL, "transient"),
        (errno.EAGAIN, "transient"),
        (errno.EBUSY, "transient"),
        (errno.EIO, "transient"),
        (errno.ETIMEDOUT, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("file", "key"),
    [("cur_freq", "gpu_hertz"), ("max_freq", "gpu_max_hertz"), ("device/load", "gpu_busy_share")],
)
def test_a_file_that_fails_costs_its_own_value_only(
    tmp_path: Path, file: str, key: str, error: int, reason: str
) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.faults = {f"{FOLDER}/17000000.gpu/{file}": error}
    found = shown(Gpu(kernel.root, kernel).read())
    assert found.pop(key) == reason
    assert len(found) == 2
    assert not any(isinstance(value, str) for value in found.values())


def test_a_load_that_is_denied_is_not_looked_for_elsewhere(kernel: FakeKernel) -> None:
    gpu(kernel, "fb000000.gpu", 800_000_000, load="27@800000000Hz\n")
    kernel.faults[f"{FOLDER}/fb000000.gpu/load"] = errno.EACCES
    assert shown(Gpu(kernel.root, kernel).read())["gpu_busy_share"] == "denied"


@pytest.mark.parametrize("load", ["1001", "-1", "", "99.9", "<error>", "27@800000000Hz"])
def test_what_is_no_load_is_implausible(kernel: FakeKernel, load: str) -> None:
    gpu(kernel, "17000000.ga10b", 306_000_000, device__load=f"{load}\n")
    assert shown(Gpu(kernel.root, kernel).read())["gpu_busy_share"] == "implausible"


def test_a_highest_clock_of_zero_is_no_limit_that_anybody_could_divide_by(
    kernel: FakeKernel,
) -> None:
    gpu(kernel, "17000000.ga10b", 0, most=0)
    found = shown(Gpu(kernel.root, kernel).read())
    assert found["gpu_hertz"] == 0
    assert found["gpu_max_hertz"] == "implausible"


def test_gpus_beyond_the_bound_are_left_out_and_files_are_closed(kernel: FakeKernel) -> None:
    for number in range(MOST_GPUS + 2):
        gpu(kernel, f"gpu-gpc-{number}", 314_000_000)
    source = Gpu(kernel.root, kernel)
    assert len(source.read()) == 3 * MOST_GPUS
    source.close()
    assert not kernel.open_files


@given(st.binary(max_size=24))
def test_any_bytes_give_plausible_values_or_none(content: bytes) -> None:
    clock = parse_clock(content)
    assert clock is None or clock == 0 or 10**6 <= clock <= 10**10
    assert parse_limit(content) == (clock or None)
    share = parse_permille(content)
    assert share is None or 0 <= share <= 1


@given(st.integers(0, 1000), st.integers(10**6, 10**10))
def test_a_number_cut_anywhere_is_not_taken_for_another(load: int, hertz: int) -> None:
    written = b"%d\n" % load
    assert parse_permille(written) == load / 1000
    assert all(parse_permille(written[:end]) is None for end in range(len(written)))
    written = b"%d\n" % hertz
    assert parse_clock(written) == hertz
    assert all(parse_clock(written[:end]) is None for end in range(len(written)))
