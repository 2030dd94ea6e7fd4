"""What no device should have: pipes for files, sensors of any name, programs that leave others."""

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.children import FastKernel, SteppedKernel, program, runs
from support.devices import FakeKernel, shown
from support.waiting import until

from decodewatch.agent.sampler import Sampler
from decodewatch.agent.sources import MEASUREMENTS, REGISTRY, jtop, nvml, open_sources
from decodewatch.agent.sources.kit.base import LONGEST_KEY, Measurement, Reading
from decodewatch.agent.sources.kit.child import Child
from decodewatch.agent.sources.kit.commands import PolledCommand
from decodewatch.agent.sources.kit.files import PolledFile, read_once
from decodewatch.agent.sources.kit.helper import number
from decodewatch.agent.sources.kit.kernel import KERNEL
from decodewatch.agent.sources.kit.recorded import RecordedKernel
from decodewatch.shared.records import Sample, read, to_json

# What is where a file should be.


def test_a_pipe_that_nobody_writes_to_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_once(tmp_path / "pipe", 64) == "absent"
    file = PolledFile(tmp_path / "pipe")
    assert file.read() == "absent"
    file.close()


def test_a_folder_is_no_file_and_is_not_asked_every_second(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    (tmp_path / "sensor").mkdir()
    file = PolledFile(tmp_path / "sensor", kernel)
    assert [file.read(), file.read()] == ["absent", "absent"]
    assert kernel.opens == ["/sensor"] and not kernel.open_files


def test_a_tree_of_pipes_is_read_to_its_end(tmp_path: Path) -> None:
    for path in (
        *("proc/meminfo", "proc/stat", "proc/vmstat", "proc/device-tree/compatible", "ERRNO.tsv"),
        *("sys/class/thermal/thermal_zone0/type", "sys/class/hwmon/hwmon0/name"),
        *("cmd/nvpmodel_-q.txt", "cmd/getconf_PAGESIZE.txt"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / path)
    for source in open_sources(tmp_path):
        assert not [one for one in source.read() if one.known], source.name
        source.close()
    with pytest.raises(OSError, match=os.strerror(errno.ESPIPE)):
        RecordedKernel(tmp_path).spawn(("/usr/sbin/nvpmodel", "-q"))


# Names of sensors.


@given(st.sampled_from(MEASUREMENTS), st.text() | st.text(min_size=100))
@example(MEASUREMENTS[0], "\ud800")
@settings(deadline=None)
def test_the_collector_takes_a_sensor_of_any_name(row: Measurement, label: str) -> None:
    reading = Reading(row, label, None, "absent")
    assert len(reading.key) <= LONGEST_KEY
    sample = Sample(None, 1, 1, {reading.key: (1, 1, 1)})
    assert read(Sample, json.loads(json.dumps(to_json(sample)))) == sample
    again = Reading(row, reading.label, None, "absent")
    assert again.label == reading.label


def test_names_that_are_cut_stay_apart_and_others_stay_as_they_are() -> None:
    row = MEASUREMENTS[0]
    long = [Reading(row, "n" * 200 + end, None, "absent").key for end in ("1", "2")]
    odd = [Reading(row, f"a{char}", None, "absent").key for char in "\n\t"]
    assert len({*long, *odd}) == 4
    for label in ("cpu-thermal", "nvme Composite", "zönë", "n" * 60):
        assert Reading(row, label, None, "absent").label == label


def test_a_device_whose_files_have_hostile_names_makes_a_sample_that_is_taken(
    tmp_path: Path,
) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/device-tree/compatible", b"nvidia,p3767-0005\0nvidia,tegra234\0")
    hwmon = "/sys/class/hwmon/hwmon0"
    kernel.write(f"{hwmon}/name", "c" * 80)
    kernel.write(f"{hwmon}/temp1_input", "45000\n")
    kernel.write(f"{hwmon}/temp1_label", "l" * 80)
    for name in ("n" * 200, os.fsdecode(b"bad\xff"), "e\nmc"):
        kernel.write(f"/sys/kernel/nvpmodel_clk_cap/{name}", "1000000000\n")
        kernel.write(f"/sys/class/power_supply/{name}/type", "Battery\n")
        kernel.write(f"/sys/class/power_supply/{name}/capacity", "50\n")
    sampler = Sampler(open_sources(tmp_path), 0, lambda source, fault: pytest.fail(source))
    sampler.tick(1_000_000)
    sample = sampler.close(2_000_000)
    sampler.stop()
    assert sample is not None
    assert sum(key.startswith(("temp_celsius:ccc", "power_cap")) for key in sample.values) == 4
    assert read(Sample, json.loads(json.dumps(to_json(sample)))) == sample


# Numbers.


@pytest.mark.parametrize("found", [10**400, -(10**400), float("nan"), float("inf"), True, [1]])
def test_a_number_a_helper_that_cannot_be_is_implausible(found: object) -> None:
    assert number(found, 0, 100) == "implausible"


def test_a_helper_s_integer_that_no_float_can_hold_raises_nothing() -> None:
    large = b"1" + b"0" * 400
    assert shown(jtop.parse(b'{"emc": {"cur": %s}}' % large))["dram_hertz"] == "implausible"
    (gpu,) = nvml.parse(b'{"gpus": [{"id": "a", "busy": %s}]}' % large)
    assert gpu.busy == "implausible"


# Programs that leave others behind.

LEAVES = 'sleep 4711 & echo $! > "$0.left"'
"""Starts a program that holds its output open, and lives on."""


def left(file: Path) -> int:
    """The process that was left behind."""
    written = file.with_suffix(".left")
    return int(until(lambda: written.exists() and written.read_text().strip()))


def test_a_program_that_has_ended_is_done_whoever_holds_its_output(tmp_path: Path) -> None:
    file = program(tmp_path, "mode", f"echo MAXN; {LEAVES}")
    command = PolledCommand((str(file),), every_s=60, deadline_s=10)
    assert until(lambda: command.read() == b"MAXN\n")
    until(lambda: not runs(left(file)), 5, "what it left behind has ended")
    command.close()


def test_a_child_that_has_ended_is_noticed_whoever_holds_its_output(tmp_path: Path) -> None:
    file = program(tmp_path, "printer", f"echo one; {LEAVES}; exit 3")
    child = Child((str(file),), 10.0, SteppedKernel())
    until(lambda: child.read() == [b"one"])
    assert until(lambda: child.read() == "transient"), "though it has not been silent for long"
    until(lambda: not runs(left(file)), 5, "what it left behind has ended")
    child.close()


def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    file = program(tmp_path, "printer", f"trap '' TERM HUP; {LEAVES}; wait")
    child = Child((str(file),), 10.0, FastKernel())
    child.read()
    pid = left(file)
    assert runs(pid)
    child.close()
    until(lambda: not runs(pid), 5, "what it started has ended")


def test_a_group_that_took_the_number_a_child_later_is_left_alone(tmp_path: Path) -> None:
    """Once a child is reaped, its number may be another's: nothing is sent there any more."""
    child = KERNEL.spawn(("true",))
    until(lambda: child.status() == 0)
    other = subprocess.Popen(["sleep", "4711"], start_new_session=True)
    child.pid = other.pid
    child.kill()
    time.sleep(0.1)
    assert other.poll() is None
    os.kill(other.pid, signal.SIGKILL)
    other.wait()


# Thousands of sensors.


def test_a_tick_looks_at_a_bounded_number_of_thousands_of_sensors(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    for place in range(1500):
        kernel.write(f"/sys/class/thermal/thermal_zone{place}/type", "cpu\n")
        kernel.write(f"/sys/class/thermal/cooling_device{place}/type", "cpu\n")
        kernel.write(f"/sys/class/hwmon/hwmon{place}/name", "chip\n")
        kernel.write(f"/sys/class/power_supply/BAT{place}/type", "Battery\n")
        kernel.write(f"/sys/class/powercap/intel-rapl:{place}/name", "package-0\n")
    for name, factory in REGISTRY:
        kernel.opens.clear()
        source = factory(tmp_path, kernel)
        source.read()
        assert len(kernel.opens) <= 1100, name
        source.close()
    assert not kernel.open_files
