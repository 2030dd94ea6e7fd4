"""jtop: the real jetson-stats without its service, and a module in its place that has one."""

import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import ChildKernel, FastKernel, runs
from support.devices import FakeKernel, shown
from support.waiting import until

from decodewatch.agent.sources.jtop import Jtop, parse
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.helper import FOLDER, REST_S, SILENCE_S

HAS_JETSON_STATS = importlib.util.find_spec("jtop") is not None
SERVICE = Path("/run/jtop.sock")

FAKE = """
import time


class JtopException(Exception):
    pass


class Dict:
    def __init__(self, data):
        self._data = data

    def keys(self):
        return self._data.keys()

    def __getitem__(self, key):
        return self._data[key]


class Model:
    name = "MAXN_SUPER"


class jtop:
    def __init__(self, interval):
        assert interval >= 1, "shorter ones stall the service"
        self.rounds = 0
        self.memory = Dict({
            "RAM": {"tot": 7802000, "used": 6700000, "shared": 524288, "lfb": 12},
            "EMC": {"cur": 2133000, "max": 3199000, "min": 204000, "val": 0, "online": True},
        })
        self.gpu = Dict({"gpu": {"status": {"load": 33.5}, "freq": {"cur": 612000}}})
        self.nvpmodel = Model()
        self.temperature = {"cv0": {"temp": -256, "online": False}}
        self.power = {
            "rail": {"VDD_CPU_GPU_CV": {"power": 773, "avg": 700}, "VDD_SOC": {"power": 1424}},
            "tot": {"name": "VDD_IN", "power": 5299, "avg": 5000},
        }
        print("jtop prints this")

    def start(self):
        pass

    def ok(self):
        time.sleep(0.05)
        return True
"""

VALUES: dict[str, Value | str] = {
    "dram_hertz": 2_133_000_000,
    "dram_max_hertz": 3_199_000_000,
    "nvmap_used_bytes": 524288 * 1024,
    "gpu_busy_share": 0.335,
    "gpu_hertz": 612_000_000,
    "power_watts:VDD_CPU_GPU_CV": 0.773,
    "power_watts:VDD_SOC": 1.424,
    "power_watts:VDD_IN": 5.299,
    "device_watts:VDD_IN": 5.299,
    "power_mode": "MAXN_SUPER",
}


def nothing(reason: str) -> dict[str, Value | str]:
    return {row.name: reason for row in Jtop.measurements}


@pytest.fixture
def jetson(tmp_path: Path) -> Path:
    """The root of a Jetson with the service's socket."""
    for file, content in (
        ("proc/device-tree/compatible", b"nvidia,p3767-0005\0nvidia,tegra234\0"),
        ("run/jtop.sock", b""),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes(content)
    return tmp_path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module that the helper imports for jetson-stats."""
    module = tmp_path / "modules/jtop.py"
    module.parent.mkdir()
    module.write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(module.parent))
    return module


def change(module: Path, old: str, new: str) -> None:
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))


def shows(source: Jtop, expected: dict[str, Value | str]) -> None:
    until(lambda: shown(source.read()) == expected, 20, str(expected))


def test_what_it_knows(jetson: Path, fake: Path) -> None:
    """Report 42: with an interval below a second the service stalls; the module refuses it."""
    kernel = FastKernel()
    source = Jtop(jetson, kernel)
    shows(source, VALUES)
    source.close()
    assert not runs(kernel.children[0].pid)


def test_a_start_that_hangs(jetson: Path, fake: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Report 44: jetson_stats 7.2.2 waits without an end for a service that does not answer."""
    change(
        fake, "    def start(self):\n        pass", "    def start(self):\n        time.sleep(60)"
    )
    kernel = FastKernel()
    source = Jtop(jetson, kernel)

    def said() -> bool:
        assert shown(source.read()) == nothing("transient")
        return bool(caplog.records)

    until(said)
    assert f"printed_nothing_for_s={SILENCE_S:g}" in caplog.text
    assert not runs(kernel.children[0].pid)
    source.close()


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ('"EMC": {"cur"', '"EMC": {}, "other": {"cur"', {"dram_hertz", "dram_max_hertz"}),
        ('"EMC": {"cur"', '"other": {"cur"', {"dram_hertz", "dram_max_hertz"}),
        ('"shared": 524288, ', "", {"nvmap_used_bytes"}),
        ('"shared": 524288', '"shared": 0', {"nvmap_used_bytes"}),
        ('"status": {"load": 33.5}, ', "", {"gpu_busy_share"}),
        ("Model()", "None", {"power_mode"}),
    ],
)
def test_what_is_missing_costs_only_itself(
    jetson: Path, fake: Path, old: str, new: str, missing: set[str]
) -> None:
    """Report 44: of an EMC without values and of others, jtop raises KeyError."""
    change(fake, old, new)
    source = Jtop(jetson, FastKernel())
    shows(source, {**VALUES, **dict.fromkeys(missing, "absent")})
    source.close()


def test_power_without_sensors(jetson: Path, fake: Path) -> None:
    change(fake, "        print(", "        self.power = {}\n        print(")
    source = Jtop(jetson, FastKernel())
    without = {key: value for key, value in VALUES.items() if "watts" not in key}
    shows(source, {**without, "power_watts": "absent", "device_watts": "absent"})
    source.close()


@pytest.mark.parametrize(
    ("text", "reason", "rests"),
    [
        (
            "Mismatch version jtop service: [4.2.2] and client: [4.2.1]. Please run:\\n\\nsudo",
            "unsupported",
            True,
        ),
        ("Mismatch of Python versions between library and service", "unsupported", True),
        ("Authentication with jetson-stats server failed", "denied", True),
        ("Error connection", "transient", False),
        ("Lost connection with jtop server", "transient", False),
    ],
)
def test_what_the_service_refuses_is_said_once(
    jetson: Path,
    fake: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    reason: str,
    rests: bool,
) -> None:
    """Report 13: NVIDIA-AI-IOT/ros2_jetson_stats#6, a container whose version is another."""
    change(
        fake, "        pass\n\n    def ok", f"        raise JtopException('{text}')\n\n    def ok"
    )
    kernel = FastKernel()
    source = Jtop(jetson, kernel)
    until(lambda: (source.read(), caplog.records)[1])
    assert shown(source.read()) == nothing(reason)
    message = caplog.records[0].getMessage()
    assert text.split("\\n")[0] in message and "\n" not in message
    assert (f"retry_s={REST_S:.0f}" in message) == rests
    if rests:
        for _ in range(100):
            source.read()
        assert len(kernel.children) == 1
    else:
        until(lambda: (source.read(), len(kernel.children) == 2)[1])
    assert len(caplog.records) == 1
    source.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [("PermissionError(13, 'x')", "denied"), ("ConnectionRefusedError(111, 'x')", "absent")],
)
def test_a_service_that_does_not_let_in(
    jetson: Path, fake: Path, caplog: pytest.LogCaptureFixture, error: str, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    raises = f"""        try:
            raise {error}
        except OSError:
            raise JtopException("no")

    def ok"""
    change(fake, "        pass\n\n    def ok", raises)
    source = Jtop(jetson, FastKernel())
    until(lambda: (source.read(), caplog.records)[1])
    assert shown(source.read()) == nothing(reason)


def test_a_service_that_stops_answering(
    jetson: Path, fake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(fake, "        return True", "        self.rounds += 1\n        return self.rounds < 4")
    source = Jtop(jetson, FastKernel())
    shows(source, VALUES)
    shows(source, nothing("transient"))
    shows(source, VALUES)
    assert "jtop.service stopped answering" in caplog.text
    source.close()


def test_any_other_fault_is_said_and_tried_again(
    jetson: Path, fake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(fake, "        return True", "        raise KeyError('power')")
    kernel = FastKernel()
    source = Jtop(jetson, kernel)
    until(lambda: (source.read(), len(kernel.children) == 2)[1])
    assert len(caplog.records) == 1
    assert "KeyError: 'power'" in caplog.text
    source.close()


def test_a_helper_that_is_killed_is_started_again(jetson: Path, fake: Path) -> None:
    kernel = FastKernel()
    source = Jtop(jetson, kernel)
    shows(source, VALUES)
    os.kill(kernel.children[0].pid, signal.SIGKILL)
    shows(source, nothing("transient"))
    shows(source, VALUES)
    assert len(kernel.children) == 2
    source.close()


def test_a_helper_whose_agent_is_gone_ends(jetson: Path, fake: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(FOLDER / "jtop_helper.py")], stdout=subprocess.PIPE
    ) as helper:
        assert helper.stdout is not None
        assert helper.stdout.readline().startswith(b'{"emc"')
        helper.stdout.close()
        assert helper.wait(10) == 0


def test_the_package_is_not_installed(
    jetson: Path, fake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fake.write_text("raise ImportError('No module named jtop')")
    source = Jtop(jetson, FastKernel())
    until(lambda: (source.read(), caplog.records)[1])
    assert shown(source.read()) == nothing("absent")
    assert len(caplog.records) == 1
    assert "jetson-stats cannot be imported" in caplog.text


@pytest.mark.skipif(not HAS_JETSON_STATS, reason="jetson-stats is not installed")
@pytest.mark.skipif(SERVICE.exists(), reason="this machine has the service")
def test_jetson_stats_itself_without_its_service(
    jetson: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel = ChildKernel()
    source = Jtop(jetson, kernel)
    until(lambda: (source.read(), caplog.records)[1], 30)
    assert shown(source.read()) == nothing("absent")
    assert len(caplog.records) == 1
    assert "The jtop.service is not active" in caplog.text
    assert not runs(kernel.children[0].pid)


def test_nothing_is_started_without_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/device-tree/compatible", "nvidia,p3767-0005\0nvidia,tegra234\0")
    kernel.write("/run/other.sock", "")
    source = Jtop(tmp_path, kernel)
    for _ in range(int(REPROBE_S) * 2):
        assert shown(source.read()) == nothing("absent")
        kernel.now += 1
    assert not kernel.spawned
    assert len(kernel.listings) == 2
    assert len(caplog.records) == 1


def test_nothing_is_started_on_another_board(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.write("/run/jtop.sock", "")
    assert shown(Jtop(tmp_path, kernel).read()) == nothing("absent")
    assert not kernel.spawned and not kernel.listings


def line(**values: object) -> bytes:
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("current", "hertz"),
    [
        (612000, 612_000_000),
        (314, 314_000_000),
        (1574, 1_574_000_000),
        (76800, 76_800_000),
        (0, 0),
        (-1, "implausible"),
        ("612000", "implausible"),
    ],
)
def test_a_thor_has_the_gpu_clock_in_megahertz_or_kilohertz(
    current: object, hertz: Value | str
) -> None:
    assert shown(parse(line(gpu={"load": 1, "cur": current})))["gpu_hertz"] == hertz


def test_values_that_cannot_be_true() -> None:
    rails = {"VDD_IN": 4294967295, "NC": 0, "": 1, "a\nb": 1000}
    found = shown(parse(line(emc={"cur": 0, "max": 1e99}, gpu={"load": 120}, rails=rails, mode=3)))
    assert (
        found["dram_hertz"] == found["dram_max_hertz"] == found["gpu_busy_share"] == "implausible"
    )
    assert found["device_watts:VDD_IN"] == "implausible"
    assert found["power_watts:a?b"] == 1.0
    assert "power_watts:NC" not in found
    assert found["power_mode"] == "absent"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["emc", "shared", "rails", "gpu", "mode"]), JSON))
def test_no_line_of_the_helper_makes_it_raise(values: dict[str, object]) -> None:
    for reading in parse(line(**values)):
        assert reading.value is None or 0 <= reading.value < 1 << 63


@given(st.binary(max_size=100), st.integers(0, 200))
def test_no_bytes_however_cut_show_a_value(noise: bytes, cut: int) -> None:
    whole = line(emc={"cur": 2133000, "max": 3199000}, shared=524288, mode="MAXN")
    for content in (noise, whole[: min(cut, len(whole) - 1)]):
        assert all(not reading.known for reading in parse(content))
