"""NVML: the real nvidia-ml-py in its helper, on a library that is compiled here."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.children import ChildKernel, FastKernel, runs
from support.devices import FakeKernel, shown
from support.waiting import until

from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.helper import REST_S, SILENCE_S
from decodewatch.agent.sources.nvml import MOST_GPUS, Nvml, limited, parse, readings

STUB = Path(__file__).parents[2] / "data" / "nvml" / "stub.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
needs_pynvml = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the library, and of one of an old driver."""
    assert COMPILER is not None
    made = {}
    for name, flags in (("new", []), ("old", ["-DOLD"])):
        made[name] = tmp_path_factory.mktemp(name)
        library = made[name] / "libnvidia-ml.so.1"
        command = [COMPILER, "-shared", "-fPIC", *flags, "-o", str(library), str(STUB)]
        subprocess.run(command, check=True)
    return made


@pytest.fixture
def pc(tmp_path: Path) -> Path:
    """The root of a device with NVIDIA's driver."""
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    return tmp_path


def shows(source: Nvml, key: str, expected: Value | str) -> dict[str, Value | str]:
    """What it shows as soon as it shows this."""
    found: dict[str, Value | str] = {}

    def look() -> bool:
        nonlocal found
        found = shown(source.read())
        return found.get(key) == expected

    until(look, 20, f"{key} = {expected!r}")
    return found


CARD = {
    "gpu_busy_share": 0.37,
    "gpu_hertz": 1_980_000_000,
    "gpu_memory_hertz": 10_501_000_000,
    "gpu_memory_used_bytes": 9663676416,
    "gpu_memory_total_bytes": 17171480576,
    "temp_celsius:gpu": 61,
    "power_watts:gpu": 187.25,
    "power_limit_watts:gpu": 320.0,
    "gpu_limited:thermal": 1,
    "gpu_limited:power": 1,
    "gpu_limited:idle": 0,
    "gpu_limited:other": 0,
}


@needs_compiler
@needs_pynvml
class TestLibrary:
    @pytest.fixture(autouse=True)
    def library(self, libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries["new"]))
        monkeypatch.setenv("NVML_STUB", "card")

    def test_a_card(self, pc: Path) -> None:
        kernel = FastKernel()
        source = Nvml(pc, kernel)
        assert shows(source, "gpu_busy_share", 0.37) == CARD
        assert source.process_bytes(4321) == 1_000_000_000
        assert source.process_bytes(4322) is None, "NVML does not say it of this process"
        assert source.process_bytes(1) is None
        source.close()
        assert not runs(kernel.children[0].pid)

    def test_an_old_driver(
        self, pc: Path, libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries["old"]))
        source = Nvml(pc, FastKernel())
        assert shows(source, "gpu_busy_share", 0.37) == CARD
        assert source.process_bytes(4321) == 1_000_000_000
        source.close()

    def test_a_thor_refuses_much(self, pc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVML_STUB", "thor")
        source = Nvml(pc, FastKernel())
        found = shows(source, "gpu_busy_share", 0.37)
        assert found["gpu_hertz"] == 1_980_000_000
        assert found["temp_celsius:gpu"] == 48
        for key in (
            "gpu_memory_hertz",
            "gpu_memory_used_bytes",
            "gpu_memory_total_bytes",
            "power_watts:gpu",
            "gpu_limited:thermal",
            "gpu_limited:idle",
        ):
            assert found[key] == "unsupported", key
        assert source.process_bytes(4321) == 1_000_000_000
        source.close()

    def test_an_orin_knows_nothing_and_its_zeros_are_none(
        self, pc: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Report 8: henrygd/beszel#286 and micytao/vllm-playground#11."""
        monkeypatch.setenv("NVML_STUB", "nvgpu")
        kernel = FastKernel()
        source = Nvml(pc, kernel)
        found = shows(source, "gpu_busy_share", "unsupported")
        assert set(found.values()) == {"unsupported"}
        assert len(caplog.records) == 1
        assert f"retry_s={REST_S:.0f}" in caplog.text
        assert not runs(kernel.children[0].pid)

    def test_the_second_of_two_stays_when_the_first_is_lost(
        self, pc: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NVML_STUB", "two")
        source = Nvml(pc, ChildKernel())
        both = shows(source, "gpu_busy_share", 0.37)
        assert both["gpu_busy_share:gpu#2"] == 0.99
        assert both["power_watts:gpu#2"] == 187.25
        assert both["gpu_limited:thermal#2"] == 1
        assert source.process_bytes(4321) == 2_000_000_000
        one = shows(source, "gpu_busy_share", "transient")
        assert one["gpu_busy_share:gpu#2"] == 0.99
        assert one["power_watts:gpu"] == "transient"
        assert source.process_bytes(4321) is None, "what is known is not all of it"
        source.close()

    def test_a_driver_that_does_not_return(
        self, pc: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("NVML_STUB", "hang")
        kernel = FastKernel()
        source = Nvml(pc, kernel)
        assert set(shown(source.read()).values()) == {"transient"}

        def said() -> bool:
            assert set(shown(source.read()).values()) == {"transient"}
            return bool(caplog.records)

        until(said)
        assert f"printed_nothing_for_s={SILENCE_S:g}" in caplog.text
        assert not runs(kernel.children[0].pid)
        source.close()

    def test_a_card_that_fell_off_the_bus(
        self, pc: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The helper starts anew: the driver may have been loaded again."""
        monkeypatch.setenv("NVML_STUB", "lost")
        kernel = FastKernel()
        source = Nvml(pc, kernel)

        def again() -> bool:
            assert set(shown(source.read()).values()) == {"transient"}
            return len(kernel.children) == 2

        until(again)
        monkeypatch.setenv("NVML_STUB", "card")
        assert shows(source, "gpu_busy_share", 0.37) == CARD
        assert ["no GPU answers" in record.getMessage() for record in caplog.records] == [True]
        source.close()

    def test_a_driver_that_was_updated_without_a_restart(
        self, pc: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("NVML_STUB", "mismatch")
        source = Nvml(pc, FastKernel())
        shows(source, "gpu_busy_share", "unsupported")
        assert len(caplog.records) == 1
        assert "version mismatch" in caplog.text

    def test_a_helper_that_is_killed_is_started_again(self, pc: Path) -> None:
        kernel = FastKernel()
        source = Nvml(pc, kernel)
        shows(source, "gpu_busy_share", 0.37)
        os.kill(kernel.children[0].pid, signal.SIGKILL)
        assert set(shows(source, "gpu_busy_share", "transient").values()) == {"transient"}
        assert source.process_bytes(4321) is None
        shows(source, "gpu_busy_share", 0.37)
        assert len(kernel.children) == 2
        source.close()


@needs_pynvml
def test_a_driver_without_the_library(pc: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On this machine, or the test has nothing to say."""
    try:
        import ctypes

        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has NVML")
    caplog.set_level("INFO")
    kernel = FastKernel()
    source = Nvml(pc, kernel)
    found = shows(source, "gpu_busy_share", "absent")
    assert set(found.values()) == {"absent"}
    until(lambda: (source.read(), caplog.records)[1])
    assert "NVML Shared Library Not Found" in caplog.text
    for _ in range(50):
        source.read()
    assert len(kernel.children) == 1
    assert len(caplog.records) == 1


def test_the_package_is_not_installed(
    pc: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (pc / "pynvml.py").write_text("raise ImportError('No module named pynvml')")
    monkeypatch.setenv("PYTHONPATH", str(pc))
    source = Nvml(pc, FastKernel())
    until(lambda: (source.read(), caplog.records)[1])
    assert set(shown(source.read()).values()) == {"absent"}
    assert len(caplog.records) == 1
    assert "nvidia-ml-py cannot be imported" in caplog.text


def test_nothing_is_started_without_the_driver(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.write("/sys/module/nvgpu/refcnt", "1\n")
    source = Nvml(tmp_path, kernel)
    for _ in range(int(REPROBE_S) * 2):
        assert set(shown(source.read()).values()) == {"absent"}
        kernel.now += 1
    assert not kernel.spawned
    assert len(kernel.listings) == 6, "three folders, every ten minutes"


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x0, set()),
        (0x1, {"idle"}),
        (0x4, {"power"}),
        (0x80 | 0x8, {"power"}),
        (0x20, {"thermal"}),
        (0x40 | 0x8, {"thermal"}),
        (0x8, {"other"}),
        (0x2, {"other"}),
        (0x100, {"other"}),
        (0x40 | 0x4 | 0x10, {"thermal", "power", "other"}),
    ],
)
def test_what_holds_the_clock_back(bits: int, expected: set[str]) -> None:
    assert {name for name, holds in limited(bits).items() if holds} == expected


def gpu_line(**values: object) -> bytes:
    return json.dumps({"gpus": [{"id": "a", **values}]}).encode()


def test_numbers_that_cannot_be_true() -> None:
    line = gpu_line(
        busy=101,
        clock=-1,
        power=4294967295,
        temperature=65535,
        memory={"total": 100, "used": 101},
        limits="N/A",
        processes={"4321": 1.5, "x": 3, "12": 7},
    )
    (gpu,) = parse(line)
    found = shown(readings(gpu, 0))
    assert found.pop("gpu_memory_total_bytes") == 100
    assert found.pop("gpu_memory_hertz") == found.pop("power_limit_watts:gpu") == "absent"
    assert set(found.values()) == {"implausible"}
    assert gpu.processes == {12: 7}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = ("id", "busy", "clock", "power", "temperature", "limits", "memory", "processes")


@settings(max_examples=50)
@given(st.lists(JSON | st.dictionaries(st.sampled_from(NAMES), JSON), max_size=MOST_GPUS + 2))
def test_no_line_of_a_helper_makes_it_raise(gpus: list[object]) -> None:
    found = parse(json.dumps({"gpus": gpus}).encode())
    assert len(found) <= MOST_GPUS
    for place, gpu in enumerate(found):
        for reading in readings(gpu, place):
            assert reading.value is None or 0 <= abs(reading.value) < 1 << 63


@given(st.binary(max_size=100), st.integers(0, 200))
def test_no_bytes_however_cut_make_it_raise_or_show_a_value(noise: bytes, cut: int) -> None:
    assert parse(noise) == []
    line = gpu_line(busy=37, clock=1980)
    assert parse(line[: min(cut, len(line) - 1)]) == []


def test_a_document_that_is_nested_too_deeply_is_none() -> None:
    assert parse(b"[" * 60_000) == []
    assert parse(b'{"gpus":' * 20_000) == []
