"""Cooling devices: which lower clocks, which are fans, and what they say."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.cooling import COOLING, FAN, MOST_DEVICES, Cooling, kind, parse
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S

FOLDER = "/sys/class/thermal"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/thermal").mkdir(parents=True)
    return made


def device(
    kernel: FakeKernel, number: int, cooling_type: str, state: int | str, most: int | str = 10
) -> None:
    folder = f"{FOLDER}/cooling_device{number}"
    kernel.write(f"{folder}/type", cooling_type + "\n")
    kernel.write(f"{folder}/cur_state", f"{state}\n")
    kernel.write(f"{folder}/max_state", f"{most}\n")


def test_an_orin_nano_with_its_fan_turning_is_not_throttled(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Cooling(kernel.root, kernel).read()) == {
        "cooling_share:cpufreq-cpu0": 0.0,
        "cooling_share:cpufreq-cpu4": 0.0,
        "cooling_share:17000000.gpu": 0.0,
        "fan_share:pwm-fan": 0.75,
    }


def test_a_raspberry_pi_with_its_fan_at_its_fastest(tmp_path: Path) -> None:
    kernel = recorded("rpi5", tmp_path)
    assert shown(Cooling(kernel.root, kernel).read()) == {
        "cooling_share": "absent",
        "fan_share:pwm-fan": 1.0,
    }


def test_a_phone_that_is_throttled(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()  # as root sees it
    assert shown(Cooling(kernel.root, kernel).read()) == {
        "cooling_share:thermal-cpufreq-0": 0.0,
        "cooling_share:thermal-cpufreq-4": 3 / 17,
        "cooling_share:thermal-cpufreq-7": 5 / 19,
        "cooling_share:gpu": 0.0,
        "cooling_share:cpu-hotplug7": 0.0,
        "fan_share": "absent",
    }


def test_an_app_on_a_phone_may_not_look_and_does_not_insist(tmp_path: Path) -> None:
    """Report 39: kiosk-satellite#138."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    source = Cooling(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert shown(source.read()) == {"cooling_share": "denied", "fan_share": "denied"}
        kernel.now += 1
    assert len(kernel.listings) + len(kernel.opens) == 1


def test_a_state_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    """Report 17: node_exporter#3420: cooling_device14/cur_state gives EINVAL."""
    kernel = recorded("x86_oddities", tmp_path)
    device(kernel, 15, "Processor", 3)
    assert shown(Cooling(kernel.root, kernel).read()) == {
        "cooling_share:Processor": "transient",
        "cooling_share:Processor#2": 0.3,
        "fan_share": "absent",
    }


@pytest.mark.parametrize(
    "error", [errno.EINVAL, errno.EAGAIN, errno.EIO, errno.ENODATA, errno.ENXIO]
)
def test_one_bad_device_costs_the_others_nothing(kernel: FakeKernel, error: int) -> None:
    device(kernel, 0, "cpufreq-cpu0", 2)
    device(kernel, 1, "17000000.gpu", 5)
    source = Cooling(kernel.root, kernel)
    kernel.faults[f"{FOLDER}/cooling_device0/cur_state"] = error
    found = shown(source.read())
    assert found["cooling_share:cpufreq-cpu0"] == "transient", "not 0: that would be no throttling"
    assert found["cooling_share:17000000.gpu"] == 0.5
    kernel.faults.clear()
    assert shown(source.read())["cooling_share:cpufreq-cpu0"] == 0.2


@pytest.mark.parametrize(
    ("error", "reason"), [(errno.EINVAL, "transient"), (errno.EACCES, "denied")]
)
def test_without_the_highest_state_there_is_no_share(
    kernel: FakeKernel, error: int, reason: str
) -> None:
    device(kernel, 0, "cpufreq-cpu0", 2)
    kernel.faults[f"{FOLDER}/cooling_device0/max_state"] = error
    source = Cooling(kernel.root, kernel)
    assert shown(source.read())["cooling_share:cpufreq-cpu0"] == reason
    kernel.faults.clear()
    kernel.now += RELIST_S
    assert shown(source.read())["cooling_share:cpufreq-cpu0"] == 0.2


@pytest.mark.parametrize(
    "cooling_type",
    ["thermal-cpufreq-0", "cpufreq-cpu4", "Processor", "17000000.gpu", "gpu", "thermal-devfreq-0",
     "cpu-hotplug7", "tpu_cooling", "exynos-gpu", "GPU-balanced", "skin-balanced", "cdsp",
     "thermal-cluster-4-7", "thermal-pause-F0", "idle-cpu0", "cpufreq", "npu0"],
)  # fmt: skip
def test_what_lowers_clocks(cooling_type: str) -> None:
    assert kind(cooling_type) is COOLING


@pytest.mark.parametrize("cooling_type", ["pwm-fan", "Fan", "fan0", "gpio-fan", "cpu_fan", "FAN1"])
def test_what_is_a_fan(cooling_type: str) -> None:
    assert kind(cooling_type) is FAN


@pytest.mark.parametrize(
    "cooling_type",
    ["intel_powerclamp", "TCC Offset", "LCD", "Charger", "iwlwifi", "cpu-throttle-alert",
     "hot-surface-alert", "mtktscpu-sysrst", "input-current", "output", "battery", "", "modem_pa",
     "cpu-voltage-cdev", "gpu-vdd-cdev", "chg_mdis", "DISP"],
)  # fmt: skip
def test_what_is_neither(kernel: FakeKernel, cooling_type: str) -> None:
    assert kind(cooling_type) is None
    device(kernel, 0, cooling_type, 5)
    assert shown(Cooling(kernel.root, kernel).read()) == {
        "cooling_share": "absent",
        "fan_share": "absent",
    }


def test_a_device_whose_number_moves_keeps_its_label(kernel: FakeKernel) -> None:
    device(kernel, 0, "cpufreq-cpu0", 1)
    device(kernel, 1, "pwm-fan", 9)
    source = Cooling(kernel.root, kernel)
    first = {"cooling_share:cpufreq-cpu0": 0.1, "fan_share:pwm-fan": 0.9}
    assert shown(source.read()) == first
    kernel.move(f"{FOLDER}/cooling_device0", f"{FOLDER}/cooling_device7")
    kernel.move(f"{FOLDER}/cooling_device1", f"{FOLDER}/cooling_device0")
    kernel.now += RELIST_SOON_S
    assert shown(source.read()) == dict.fromkeys(first, "absent"), "a fan is not the CPU's clock"
    kernel.now += 1
    assert shown(source.read()) == first
    assert len(kernel.open_files) == 2


def test_a_device_that_vanishes_and_returns(kernel: FakeKernel) -> None:
    device(kernel, 0, "cpufreq-cpu0", 1)
    device(kernel, 1, "gpu", 2)
    source = Cooling(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/cooling_device1")
    for _ in range(int(RELIST_S) * 2):
        kernel.now += 1
        found = shown(source.read())
        assert found["cooling_share:gpu"] == "absent"
        assert found["cooling_share:cpufreq-cpu0"] == 0.1
    device(kernel, 5, "gpu", 6, 12)
    kernel.now += RELIST_S
    assert shown(source.read())["cooling_share:gpu"] == 0.5


def test_a_folder_that_becomes_denied_leaves_the_labels(kernel: FakeKernel) -> None:
    device(kernel, 0, "gpu", 2)
    source = Cooling(kernel.root, kernel)
    source.read()
    kernel.faults[FOLDER] = errno.EACCES
    kernel.now += RELIST_S
    assert shown(source.read()) == {"cooling_share:gpu": "absent", "fan_share": "denied"}
    kernel.faults.clear()
    kernel.now += REPROBE_S
    assert shown(source.read())["cooling_share:gpu"] == 0.2


def test_a_large_machine_does_not_fill_the_table(kernel: FakeKernel) -> None:
    for number in range(MOST_DEVICES + 50):
        device(kernel, number, "Processor", 0)
    source = Cooling(kernel.root, kernel)
    assert len(source.read()) == MOST_DEVICES + 1
    assert len(kernel.open_files) == MOST_DEVICES
    source.close()
    assert not kernel.open_files


@pytest.mark.parametrize(
    ("state", "most", "share"),
    [
        (b"0\n", b"10\n", 0.0),
        (b"10\n", b"10\n", 1.0),
        (b"11\n", b"10\n", None),
        (b"-1\n", b"10\n", None),
        (b"0\n", b"0\n", None),
        (b"1", b"10\n", None),
        (b"1\n", b"1", None),
        (b"18446744073709551615\n", b"10\n", None),
    ],
)
def test_what_is_a_share(state: bytes, most: bytes, share: float | None) -> None:
    assert parse(state, most) == share


@given(st.binary(max_size=24), st.binary(max_size=24))
def test_any_bytes_give_a_share_or_none(state: bytes, most: bytes) -> None:
    share = parse(state, most)
    assert share is None or 0 <= share <= 1


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_number_cut_anywhere_is_not_taken_for_another(state: int, most: int) -> None:
    first, second = b"%d\n" % state, b"%d\n" % most
    for end in range(len(first)):
        assert parse(first[:end], second) is None
    for end in range(len(second)):
        assert parse(first, second[:end]) is None
