"""Files kept open, folders whose members come and go, and the table of measurements."""

import errno
import logging
import time
from pathlib import Path

import pytest
from support.devices import FakeKernel, recorded

from decodewatch.agent import sources
from decodewatch.agent.sources import MEASUREMENTS, REGISTRY, open_sources
from decodewatch.agent.sources.kit import files
from decodewatch.agent.sources.kit.base import (
    REASONS,
    Measurement,
    Reading,
    first_known,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.files import (
    READ_LIMIT,
    RELIST_S,
    RELIST_SOON_S,
    REPROBE_S,
    PolledFile,
    PolledFolder,
    read_once,
)

ROW = Measurement("temp_celsius", "celsius", "gauge", "a temperature")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    made.write("/sys/value", "1\n")
    return made


def polled(kernel: FakeKernel, path: str = "sys/value") -> PolledFile:
    return PolledFile(kernel.root / path, kernel)


def test_a_file_is_opened_once_and_read_anew_each_time(kernel: FakeKernel) -> None:
    file = polled(kernel)
    assert file.read() == b"1\n"
    kernel.write("/sys/value", "2\n")
    assert file.read() == b"2\n"
    assert kernel.opens == ["/sys/value"]
    assert kernel.reads == ["/sys/value"] * 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.ESRCH, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
def test_a_lasting_error_is_asked_again_after_ten_minutes_only(
    kernel: FakeKernel, error: int, reason: str
) -> None:
    kernel.faults["/sys/value"] = error
    file = polled(kernel)
    assert file.read() == reason
    kernel.faults.clear()
    kernel.now += REPROBE_S - 1
    assert file.read() == reason
    assert len(kernel.opens) == 1
    kernel.now += 1
    assert file.read() == b"1\n"


@pytest.mark.parametrize(
    "error",
    [
        errno.EAGAIN,
        errno.EINVAL,
        errno.ENODATA,
        errno.EIO,
        errno.ETIMEDOUT,
        errno.EBUSY,
        errno.ENXIO,
        errno.EMFILE,
        errno.EDOM,
        12345,
    ],
)
def test_a_passing_error_costs_one_reading(kernel: FakeKernel, error: int) -> None:
    file = polled(kernel)
    assert file.read() == b"1\n"
    kernel.faults["/sys/value"] = error
    before = len(kernel.reads) + len(kernel.opens)
    assert file.read() == "transient"
    assert len(kernel.reads) + len(kernel.opens) == before + 1, "no second attempt"
    kernel.faults.clear()
    assert file.read() == b"1\n"


def test_after_an_error_of_the_sensor_the_file_stays_open(kernel: FakeKernel) -> None:
    file = polled(kernel)
    kernel.faults["/sys/value"] = errno.EAGAIN
    assert [file.read(), file.read()] == ["transient", "transient"]
    assert kernel.opens == ["/sys/value"]


def test_after_an_error_of_the_file_it_is_opened_anew(kernel: FakeKernel) -> None:
    file = polled(kernel)
    file.read()
    kernel.faults["/sys/value"] = errno.ENXIO
    file.read()
    kernel.faults.clear()
    assert file.read() == b"1\n"
    assert kernel.opens == ["/sys/value"] * 2
    assert len(kernel.open_files) == 1, "the old one was closed"


def test_a_lasting_error_is_said_once(kernel: FakeKernel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kernel.faults["/sys/value"] = errno.EACCES
    file = polled(kernel)
    for _ in range(5):
        file.read()
        kernel.now += REPROBE_S
    assert [record.getMessage() for record in caplog.records] == [
        f"file not readable errno=EACCES reason=denied retry_s=600 path={kernel.root}/sys/value"
    ]


def test_what_several_sources_may_not_read_is_said_once_in_a_process(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel.faults["/sys/value"] = kernel.faults["/sys/class"] = errno.EACCES
    for _ in range(3):
        assert polled(kernel).read() == "denied"
        assert folder(kernel).look() == "denied"
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_what_a_device_does_not_have_is_for_developers(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kernel.faults["/sys/value"] = kernel.faults["/sys/class"] = errno.ENOENT
    assert polled(kernel).read() == folder(kernel).look() == "absent"
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]


def test_paths_without_end_are_not_all_remembered(kernel: FakeKernel) -> None:
    for number in range(2000):
        PolledFile(kernel.root / f"proc/{number}", kernel).read()
    assert len(files._said) <= 512


def test_a_passing_error_is_not_said(kernel: FakeKernel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kernel.faults["/sys/value"] = errno.EAGAIN
    polled(kernel).read()
    assert not caplog.records


def test_an_absent_file_can_be_tried_early_and_a_denied_one_cannot(kernel: FakeKernel) -> None:
    kernel.faults["/sys/value"] = errno.ENOENT
    absent = polled(kernel)
    absent.read()
    kernel.faults["/sys/value"] = errno.EACCES
    denied = polled(kernel)
    denied.read()
    kernel.faults.clear()
    absent.retry_if_absent()
    denied.retry_if_absent()
    assert (absent.read(), denied.read()) == (b"1\n", "denied")


def test_a_closed_file_opens_again(kernel: FakeKernel) -> None:
    file = polled(kernel)
    file.read()
    file.close()
    file.close()
    assert not kernel.open_files
    assert file.read() == b"1\n"


def test_a_descriptor_that_was_closed_by_others_is_replaced(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    file = polled(kernel)
    file.read()
    kernel.faults["/sys/value"] = errno.EBADF
    kernel.close = _refuse  # type: ignore[method-assign]
    assert file.read() == "transient"
    kernel.faults.clear()
    assert file.read() == b"1\n"
    assert "errno=EBADF" in caplog.text


def _refuse(fd: int) -> None:
    raise OSError(errno.EBADF, "bad descriptor")


def test_a_long_file_is_read_to_the_limit_and_no_further(kernel: FakeKernel) -> None:
    kernel.write("/sys/value", b"x" * (READ_LIMIT + 5))
    assert polled(kernel).read() == b"x" * READ_LIMIT


def test_a_file_that_comes_in_pages_is_read_whole(kernel: FakeKernel) -> None:
    """/proc/vmstat hands out at most a page a read, cut between two lines."""
    kernel.write("/sys/value", b"a" * 4090 + b"b" * 4090 + b"c" * 100)
    whole = kernel.pread
    kernel.pread = lambda fd, count, offset: whole(fd, min(count, 4090), offset)  # type: ignore[method-assign]
    assert polled(kernel).read() == b"a" * 4090 + b"b" * 4090 + b"c" * 100


def test_reading_once_closes_the_file_whatever_happens(kernel: FakeKernel) -> None:
    assert read_once(kernel.root / "sys/value", 1, kernel) == b"1"
    kernel.faults["/sys/value"] = errno.EIO
    assert read_once(kernel.root / "sys/value", 64, kernel) == "transient"
    assert read_once(kernel.root / "sys/none", 64, kernel) == "absent"
    assert not kernel.open_files


def folder(kernel: FakeKernel, most: int = 8) -> PolledFolder:
    return PolledFolder(kernel.root / "sys/class", "zone", most, kernel)


def zones(kernel: FakeKernel, *names: str) -> None:
    for name in names:
        kernel.write(f"/sys/class/{name}/type", "x\n")


def test_members_come_in_the_order_of_their_numbers(kernel: FakeKernel) -> None:
    zones(kernel, "zone10", "zone2", "zone0", "zone", "zonex", "zone1x", "cooling0", "zone²")
    assert folder(kernel).look() == ["zone0", "zone2", "zone10"]


def test_a_folder_is_listed_again_when_it_is_time(kernel: FakeKernel) -> None:
    zones(kernel, "zone0")
    polled_folder = folder(kernel)
    assert polled_folder.look() == ["zone0"]
    kernel.now += RELIST_S - 1
    assert polled_folder.look() is None
    kernel.now += 1
    assert polled_folder.look() == ["zone0"]


def test_a_folder_is_listed_soon_after_a_member_vanished_but_not_at_once(
    kernel: FakeKernel,
) -> None:
    zones(kernel, "zone0")
    polled_folder = folder(kernel)
    polled_folder.look()
    polled_folder.look_again()
    assert polled_folder.look() is None
    kernel.now += RELIST_SOON_S
    assert polled_folder.look() == ["zone0"]
    assert polled_folder.look() is None


def test_a_denied_folder_is_left_alone_and_said_once(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    """jxlarrea/kiosk-satellite#138: Android writes every refusal to its log."""
    caplog.set_level(logging.DEBUG)
    zones(kernel, "zone0")
    kernel.faults["/sys/class"] = errno.EACCES
    polled_folder = folder(kernel)
    assert polled_folder.look() == "denied"
    for _ in range(1199):
        kernel.now += 1
        polled_folder.look()
    assert len(kernel.listings) == 2
    assert len(caplog.records) == 1


def test_members_beyond_the_bound_are_left_out_and_said_once(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    zones(kernel, *(f"zone{number}" for number in range(10)))
    polled_folder = folder(kernel, most=4)
    for _ in range(3):
        assert polled_folder.look() == ["zone0", "zone1", "zone2", "zone3"]
        kernel.now += RELIST_S
    assert len(caplog.records) == 1
    assert "left_out=6" in caplog.text


def test_a_reading_has_a_value_or_a_reason() -> None:
    assert Reading(ROW, "tj", 0.0, None).key == "temp_celsius:tj"
    assert Reading(ROW, "", None, "absent").key == "temp_celsius"
    for value, reason in ((None, None), (0, "absent")):
        with pytest.raises(ValueError, match="temp_celsius: value"):
            Reading(ROW, "", value, reason)  # type: ignore[arg-type]


def test_a_value_that_no_table_can_store_is_implausible() -> None:
    assert read_as(ROW, 2**63, "absent").reason == "implausible"
    assert read_as(ROW, 2**63 - 1, "absent").value == 2**63 - 1


def test_every_module_of_the_folder_is_registered() -> None:
    shared = {"__init__"}
    modules = {path.stem for path in Path(sources.__path__[0]).glob("*.py")} - shared
    assert sorted(modules) == sorted(name for name, _ in REGISTRY)


def test_the_table_of_measurements_is_well_formed() -> None:
    names = [row.name for row in MEASUREMENTS]
    assert len(names) == len(set(names))
    for row in MEASUREMENTS:
        assert row.help
        assert row.name.isidentifier() and row.name.islower()
        if row.unit in ("bytes", "celsius", "hertz", "microseconds", "share"):
            assert row.name.endswith("_" + row.unit)


def test_sources_report_what_they_register(tmp_path: Path) -> None:
    for (name, factory), source in zip(REGISTRY, open_sources(tmp_path), strict=True):
        assert source.name == name
        readings = source.read()
        assert {reading.measurement for reading in readings} == set(factory.measurements)
        assert all(reading.reason in REASONS for reading in readings)


def test_a_tick_of_all_sources_costs_less_than_three_thousandths_of_a_second(
    tmp_path: Path,
) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    made = open_sources(kernel.root)
    for source in made:
        source.read()
    began = time.process_time()
    for _ in range(100):
        for source in made:
            source.read()
    assert (time.process_time() - began) / 100 < 0.003
    for source in made:
        source.close()


def test_opening_the_sources_touches_no_file(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    for _, factory in REGISTRY:
        factory(tmp_path, kernel)
    assert not kernel.opens and not kernel.listings


def test_of_several_sources_the_first_that_knows_is_believed() -> None:
    row = Measurement("power_watts", "watts", "gauge", "")
    none = unknown(row, "absent")
    denied = unknown(row, "denied", "VDD_IN")
    known = read_as(row, 5.0, "absent", "VDD_IN")
    later = read_as(row, 6.0, "absent", "VDD_IN")
    assert first_known([none, known, later]) == [known]
    assert first_known([denied, known]) == [known]
    assert first_known([none, denied]) == [denied]
    assert first_known([unknown(row, "absent"), unknown(row, "denied")]) == [unknown(row, "denied")]
    # That nothing may be read is not hidden by a sensor that is not there.
    away = unknown(row, "absent", "battery")
    assert first_known([unknown(row, "denied"), away]) == [unknown(row, "denied"), away]
    assert first_known([unknown(row, "denied"), known]) == [known]
    first, second = unknown(row, "denied"), unknown(row, "transient")
    assert first_known([first, second]) == [first]
