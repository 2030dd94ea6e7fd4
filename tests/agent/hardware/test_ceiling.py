"""The ceiling follows the memory clock that is allowed, and says where it comes from."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodewatch.agent.errors import AgentError
from decodewatch.agent.hardware import measurements
from decodewatch.agent.hardware.ceiling import Clocks, ceiling, specification
from decodewatch.agent.hardware.measurements import Measurement
from decodewatch.shared import devices
from decodewatch.shared.devices import KnownDevice

PI = Measurement(
    at=1_760_000_000_000_000,
    read_bytes_per_second=11.2e9,
    copy_bytes_per_second=12.0e9,
    threads=2,
    model="Raspberry Pi 5 Model B Rev 1.0",
    memory_bytes=8 << 30,
    power_mode=None,
    dram_max_hertz=None,
    running_share=1.0,
)


def known(name: str) -> KnownDevice:
    return next(row for row in devices.rows() if row.id == name)


@pytest.mark.parametrize(
    ("name", "clocks", "gb_per_s"),
    [
        ("jetson-orin-nano-8gb-super", Clocks(3_199_000_000, 3_199_000_000), 102.4),
        # The same board in its mode of 15 W, and the one that is not Super.
        ("jetson-orin-nano-8gb-super", Clocks(2_133_000_000, 3_199_000_000), 68.3),
        ("jetson-orin-nano-8gb", Clocks(None, None), 68.3),
        ("jetson-orin-nano-8gb", Clocks(3_199_000_000, None), 102.4),
        ("jetson-orin-nano-8gb", Clocks(None, 3_199_000_000), 102.4),
        ("jetson-orin-nano-8gb", Clocks(665_600_000, 2_133_000_000), 21.3),
        ("jetson-agx-orin", Clocks(3_199_000_000), 204.7),
        ("jetson-agx-thor-t5000", Clocks(4_266_000_000), 273.0),
        # Ends of a range that mean no limit.
        ("jetson-agx-orin", Clocks(9_223_372_036_854_775_807), 204.8),
        ("jetson-agx-orin", Clocks(0, -1), 204.8),
        ("sm8475", Clocks(None, 3_196_000_000), 51.1),
        ("tensor-g3", Clocks(3_744_000_000), 59.9),
        ("rk3588", Clocks(2_112_000_000), 33.8),
        ("raspberry-pi-5", Clocks(), 17.1),
    ],
)
def test_the_peak_follows_the_memory_clock(name: str, clocks: Clocks, gb_per_s: float) -> None:
    found = specification(known(name), clocks)
    assert found.bytes_per_second == pytest.approx(gb_per_s * 1e9, rel=0.004)


@pytest.mark.parametrize(
    ("name", "clocks", "said"),
    [
        ("jetson-agx-orin", Clocks(2_133_000_000, 3_199_000_000), "at 2133 MHz, the highest memory"
         " clock that is allowed now"),
        ("jetson-agx-orin", Clocks(None, 3_199_000_000), "of the device"),
        ("jetson-agx-orin", Clocks(), "of the specification"),
        ("intel-n100", Clocks(), "the memory that is fitted may be slower or less wide"),
        ("rk3588", Clocks(), "its clock is not readable"),
    ],
)  # fmt: skip
def test_the_peak_says_what_it_holds_for(name: str, clocks: Clocks, said: str) -> None:
    assert said in specification(known(name), clocks).note


def test_memory_that_is_faster_than_the_row_knows_is_other_memory() -> None:
    """A board whose name says LPDDR4X, and whose memory runs as LPDDR5 does."""
    found = specification(known("rk3588-lpddr4x"), Clocks(2_736_000_000, 2_736_000_000))
    assert found.bytes_per_second is None
    assert "2736 MHz, is more than the LPDDR4X of this row can" in found.note
    # An allowed clock alone may stand for no limit.
    found = specification(known("rk3588-lpddr4x"), Clocks(4_294_967_295))
    assert found.bytes_per_second == pytest.approx(33.8e9, rel=0.004)


def test_a_device_without_a_row_has_no_peak() -> None:
    found = specification(None, Clocks(3_199_000_000))
    assert (found.bytes_per_second, found.note) == (None, "not in the table of known devices")
    nothing = ceiling(None, Clocks(), None, [])
    assert (nothing.bytes_per_second, nothing.origin, nothing.measured) == (None, None, None)


def test_what_was_measured_is_the_ceiling() -> None:
    found = ceiling(known("raspberry-pi-5"), Clocks(), None, [PI])
    assert (found.bytes_per_second, found.origin) == (11.2e9, "measured")
    assert found.specification.bytes_per_second == pytest.approx(17.068e9)
    found = ceiling(None, Clocks(), None, [PI])
    assert (found.bytes_per_second, found.origin) == (11.2e9, "measured")


def test_a_measurement_of_another_power_mode_is_not_the_ceiling() -> None:
    row = known("raspberry-pi-5")
    fast = dataclasses.replace(PI, power_mode="MAXN", read_bytes_per_second=13e9, at=PI.at + 1)
    slow = dataclasses.replace(PI, power_mode="15W", read_bytes_per_second=9e9)
    assert ceiling(row, Clocks(), "15W", [fast, slow]).bytes_per_second == 9e9
    assert ceiling(row, Clocks(), "MAXN", [fast, slow]).bytes_per_second == 13e9
    other = ceiling(row, Clocks(), "7W", [fast, slow])
    assert (other.origin, other.measured) == ("specification", fast)
    assert ceiling(row, Clocks(), None, [fast, slow]).bytes_per_second == 13e9, "mode not known"


def test_a_measurement_under_another_cap_of_the_memory_clock_is_not_the_ceiling() -> None:
    made = dataclasses.replace(PI, dram_max_hertz=2_133_000_000.0)
    row = known("rk3588-lpddr5")
    assert ceiling(row, Clocks(2_133_000_000), None, [made]).origin == "measured"
    assert ceiling(row, Clocks(1_066_000_000), None, [made]).origin == "specification"
    assert ceiling(row, Clocks(None), None, [made]).origin == "measured", "cap not readable"


def test_a_cpu_that_cannot_fill_the_bus_does_not_set_the_ceiling_of_the_gpu() -> None:
    slow = dataclasses.replace(PI, read_bytes_per_second=90e9)
    found = ceiling(known("jetson-agx-orin"), Clocks(), None, [slow])
    assert found.origin == "specification"
    assert found.bytes_per_second == pytest.approx(204.8e9)
    assert found.measured is slow
    # Without a peak there is nothing better.
    assert ceiling(known("jetson-orin-8gb"), Clocks(), None, [slow]).origin == "measured"


def test_a_disturbed_measurement_is_no_ceiling() -> None:
    disturbed = dataclasses.replace(PI, at=PI.at + 1, read_bytes_per_second=5e9, running_share=0.5)
    row = known("raspberry-pi-5")
    assert ceiling(row, Clocks(), None, [disturbed]).origin == "specification"
    alone = ceiling(None, Clocks(), None, [disturbed])
    assert (alone.bytes_per_second, alone.origin, alone.measured) == (None, None, disturbed)
    found = ceiling(row, Clocks(), None, [disturbed, PI])
    assert (found.bytes_per_second, found.origin, found.measured) == (11.2e9, "measured", PI)


# The file.


def test_a_disturbed_measurement_is_kept_only_where_none_is_better(tmp_path: Path) -> None:
    def disturbed(after: int, rate: float) -> measurements.Measurement:
        return dataclasses.replace(
            PI, at=PI.at + after, read_bytes_per_second=rate, running_share=0.6
        )

    first, slower, faster = disturbed(0, 8e9), disturbed(1, 7e9), disturbed(2, 9e9)
    assert measurements.store(tmp_path, first) is None
    assert measurements.store(tmp_path, slower) == first
    assert measurements.load(tmp_path) == [first]
    assert measurements.store(tmp_path, faster) is None
    assert measurements.load(tmp_path) == [faster]
    whole = dataclasses.replace(PI, at=PI.at + 3, read_bytes_per_second=8.5e9)
    assert measurements.store(tmp_path, whole) is None
    assert measurements.store(tmp_path, disturbed(4, 9e9)) == whole
    assert measurements.load(tmp_path) == [whole]
    elsewhere = dataclasses.replace(slower, dram_max_hertz=2.1e9)
    assert measurements.store(tmp_path, elsewhere) is None
    assert set(measurements.load(tmp_path)) == {whole, elsewhere}
    again = dataclasses.replace(PI, at=PI.at + 5, read_bytes_per_second=8e9)
    assert measurements.store(tmp_path, again) is None
    assert set(measurements.load(tmp_path)) == {again, elsewhere}


def test_what_was_measured_is_kept_for_each_power_mode(tmp_path: Path) -> None:
    fast = dataclasses.replace(PI, power_mode="MAXN", at=PI.at + 1)
    again = dataclasses.replace(fast, at=PI.at + 2, read_bytes_per_second=12e9)
    for one in (PI, fast, again):
        assert measurements.store(tmp_path, one) is None
    assert measurements.load(tmp_path) == [again, PI]
    assert (tmp_path / measurements.FILE).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == [measurements.FILE]


def test_the_file_is_bounded_and_keeps_nothing_of_another_device(tmp_path: Path) -> None:
    for number in range(40):
        measurements.store(tmp_path, dataclasses.replace(PI, power_mode=f"mode {number}"))
    assert len(measurements.load(tmp_path)) == 16
    other = dataclasses.replace(PI, model="Jetson")
    measurements.store(tmp_path, other)
    assert measurements.load(tmp_path) == [other]


def test_a_measurement_is_of_devices_like_the_one_it_was_made_on() -> None:
    assert PI.is_of(PI.model, PI.memory_bytes)
    assert PI.is_of(PI.model, (8 << 30) - (100 << 20)), "a new kernel keeps more for itself"
    assert not PI.is_of(PI.model, 4 << 30)
    assert not PI.is_of("Raspberry Pi 4 Model B", PI.memory_bytes)
    assert not PI.is_of(PI.model, None)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[]", b"[" * 100_000, b"\xff", b'{"measurements": 1}'),
        b'{"measurements": [{}]}',
        b'{"measurements": [[1, 2]]}',
    ],
)
def test_a_damaged_file_is_nothing_measured(tmp_path: Path, content: bytes) -> None:
    (tmp_path / measurements.FILE).write_bytes(content)
    assert measurements.load(tmp_path) == []
    measurements.store(tmp_path, PI)
    assert measurements.load(tmp_path) == [PI]


WRONG: dict[str, tuple[object, ...]] = {
    "read_bytes_per_second": (0, -1, 1e300, None, "1", True),
    "at": (-1, 1.5, 1 << 60, None),
    "threads": (0, 1.0, None),
    "model": (1, "", "a\nb", "x" * 200),
    "memory_bytes": (0, "8"),
    "power_mode": ([], "\x1b"),
    "running_share": (-0.1, 3, None, "1", True, float("nan")),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_value_that_nobody_can_have_measured_is_not_taken(
    tmp_path: Path, name: str, value: object
) -> None:
    text = json.dumps({"measurements": [{**dataclasses.asdict(PI), name: value}]})
    (tmp_path / measurements.FILE).write_text(text)
    assert measurements.load(tmp_path) == []


@settings(deadline=None)
@given(st.data())
def test_no_cut_of_the_file_gives_another_figure(data: st.DataObject) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        folder = Path(name)
        measurements.store(folder, PI)
        content = (folder / measurements.FILE).read_bytes()
        end = data.draw(st.integers(0, len(content)))
        (folder / measurements.FILE).write_bytes(content[:end])
        assert measurements.load(folder) in ([], [PI])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"nothing: cannot be opened: No such file"):
        measurements.store(tmp_path / "nothing", PI)


def test_a_file_that_cannot_be_read_is_nothing_measured(tmp_path: Path) -> None:
    (tmp_path / measurements.FILE).mkdir()
    assert measurements.load(tmp_path) == []
