"""Readings become samples; what cannot be read says why; one bad source costs only itself."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.agent.sampler import Sampler, Series
from decodewatch.agent.sources.kit.base import Measurement, Reading, Value, unknown
from decodewatch.shared.records import MAX_MEASUREMENTS, Sample, read, to_json

TEMP = Measurement("temp_celsius", "celsius", "gauge", "")
FREE = Measurement("mem_free_bytes", "bytes", "gauge", "")
BUSY = Measurement("cpu_busy_share", "share", "gauge", "")
FAULTS = Measurement("major_faults", "count", "counter", "")
KILLS = Measurement("oom_kills", "count", "counter", "")
SECOND = 1_000_000


def known(measurement: Measurement, value: Value, label: str = "") -> Reading:
    return Reading(measurement, label, value, None)


def sent(sample: Sample) -> Sample:
    """The sample as the collector reads it."""
    return read(Sample, json.loads(json.dumps(to_json(sample))))


class Scripted:
    """A source that gives what it was told to give, read after read; the last for ever."""

    measurements = (TEMP,)

    def __init__(self, name: str, *answers: list[Reading] | Exception) -> None:
        self.name = name
        self.reads = 0
        self.closed = False
        self._answers = list(answers)

    def read(self) -> list[Reading]:
        self.reads += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def closed(series: Series, now_us: int = 10 * SECOND) -> Sample:
    made = series.close(now_us)
    assert made is not None
    return made


def test_a_gauge_is_its_mean_minimum_and_maximum() -> None:
    series = Series(0)
    for value in (60.0, 66.0, 61.005):
        series.add([known(TEMP, value, "cpu")])
    sample = closed(series)
    assert sample.values == {"temp_celsius:cpu": (62.34, 60.0, 66.0)}
    assert (sample.runtime, sample.t, sample.duration_us) == (None, 10 * SECOND, 10 * SECOND)
    assert sample.unknown is None


@pytest.mark.parametrize(
    ("measurement", "value", "shown"),
    [(FREE, 1000.6, 1001), (BUSY, 0.123456, 0.1235), (TEMP, 61.23456, 61.23)],
)
def test_a_gauge_has_the_digits_that_mean_something(
    measurement: Measurement, value: float, shown: float
) -> None:
    series = Series(0)
    series.add([known(measurement, value)])
    assert closed(series).values == {measurement.name: (shown, shown, shown)}


def test_a_counter_is_its_increase_across_intervals() -> None:
    series = Series(0)
    for count in (100, 103):
        series.add([known(FAULTS, count)])
    assert closed(series).values == {"major_faults": 3}
    series.add([known(FAULTS, 110)])  # since the last reading of the interval before
    assert closed(series, 20 * SECOND).values == {"major_faults": 7}


def test_a_counter_that_was_reset_never_decreases() -> None:
    series = Series(0)
    for count in (100, 105, 2, 4):
        series.add([known(FAULTS, count)])
    assert closed(series).values == {"major_faults": 7}


def test_a_counter_that_was_read_once_is_not_known_yet() -> None:
    series = Series(0)
    series.add([known(FAULTS, 100)])
    sample = closed(series)
    assert (sample.values, sample.unknown) == ({}, {"major_faults": "transient"})


def test_what_was_read_at_times_is_known_and_what_was_never_says_why() -> None:
    series = Series(0)
    series.add([unknown(TEMP, "transient", "cpu"), unknown(TEMP, "denied", "gpu")])
    series.add([known(TEMP, 50.0, "cpu"), unknown(TEMP, "denied", "gpu")])
    sample = closed(series)
    assert sample.values == {"temp_celsius:cpu": (50.0, 50.0, 50.0)}
    assert sample.unknown == {"temp_celsius:gpu": "denied"}


def test_a_sensor_that_vanished_is_not_remembered_as_a_value() -> None:
    series = Series(0)
    series.add([known(TEMP, 50.0, "usb")])
    closed(series)
    series.add([unknown(TEMP, "absent", "usb")])
    assert closed(series, 20 * SECOND).values == {}


def test_an_interval_without_readings_gives_no_sample() -> None:
    series = Series(0)
    assert series.close(10) is None
    series.add([known(TEMP, 50.0), known(FAULTS, 1)])
    assert closed(series, 20).duration_us == 10
    assert series.close(30) is None
    series.add([known(TEMP, 50.0)])
    assert closed(series, 40).duration_us == 10


def test_measurements_are_bounded() -> None:
    series = Series(0)
    series.add([known(TEMP, 1.0, f"known-{n}") for n in range(MAX_MEASUREMENTS + 9)])
    series.add([unknown(TEMP, "absent", f"unknown-{n}") for n in range(MAX_MEASUREMENTS + 9)])
    sample = closed(series)
    assert len(sample.values) == MAX_MEASUREMENTS
    assert sent(sample).values == sample.values


_NUMBERS: st.SearchStrategy[Value] = st.integers(0, 1 << 60) | st.floats(-1e6, 1e9)


@given(st.lists(_NUMBERS, min_size=1, max_size=30), st.sampled_from([TEMP, FREE, BUSY]))
def test_a_gauges_mean_lies_between_its_extremes(
    values: list[Value], measurement: Measurement
) -> None:
    series = Series(0)
    for value in values:
        series.add([known(measurement, value)])
    sample = closed(series)
    measured = sample.values[measurement.name]
    assert isinstance(measured, tuple)
    mean, low, high = measured
    assert low <= high
    assert low - abs(low) * 1e-9 <= mean <= high + abs(high) * 1e-9
    assert sent(sample) == sample


# The sampler.


def told() -> tuple[list[tuple[str, str]], Callable[[str, str], None]]:
    said: list[tuple[str, str]] = []
    return said, lambda source, fault: said.append((source, fault))


def test_a_faulty_source_costs_only_itself_says_so_once_and_backs_off() -> None:
    said, failed = told()
    bad = Scripted("bad", ZeroDivisionError("a fault"))
    good = Scripted("good", [known(TEMP, 50.0)])
    sampler = Sampler([bad, good], 0, failed)
    for second in range(1, 200):
        sampler.tick(second * SECOND)
    assert said == [("bad", "ZeroDivisionError")]
    assert good.reads == 199
    assert bad.reads == 3  # at 1 s, at 61 s, and then not before 181 s
    sample = sampler.close(200 * SECOND)
    assert sample is not None and sample.values == {"temp_celsius": (50.0, 50.0, 50.0)}


def test_a_source_that_recovers_is_read_every_second_again() -> None:
    _, failed = told()
    source = Scripted("odd", ValueError("once"), [known(TEMP, 50.0)])
    sampler = Sampler([source], 0, failed)
    for second in range(1, 71):
        sampler.tick(second * SECOND)
    assert source.reads == 1 + 10


def test_the_devices_oom_kills_are_known_between_ticks() -> None:
    _, failed = told()
    source = Scripted("vmstat", [known(KILLS, 4)], [known(KILLS, 5)], [unknown(KILLS, "denied")])
    sampler = Sampler([source], 0, failed)
    assert sampler.oom_kills is None
    sampler.tick(SECOND)
    assert sampler.oom_kills == 4
    assert sampler.read_oom_kills(SECOND + 1) == 5
    sampler.tick(2 * SECOND)
    assert sampler.oom_kills is None


def test_the_first_tick_says_how_many_sources_have_something(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    _, failed = told()
    sources = [
        Scripted("one", [known(TEMP, 50.0), unknown(FREE, "transient")]),
        Scripted("soon", [unknown(BUSY, "transient")]),
        Scripted("none", [unknown(FREE, "absent")]),
        Scripted("bad", ValueError("a fault")),
    ]
    sampler = Sampler(sources, 0, failed)
    for second in range(1, 4):
        sampler.tick(second * SECOND)
    (line,) = [record for record in caplog.records if record.getMessage() == "sources"]
    assert getattr(line, "fields") == {  # noqa: B009 (set by `shared.logs`)
        "read": 1,
        "to_come": 1,
        "of": 4,
        "see": "decodewatch agent sources",
    }


def test_stopping_closes_every_source() -> None:
    _, failed = told()
    source = Scripted("one", [known(TEMP, 50.0)])
    Sampler([source], 0, failed).stop()
    assert source.closed


def test_a_reason_that_lasts_is_told_when_it_is_new_and_once_an_hour() -> None:
    series = Series(0)
    told = []
    for minute in range(1, 130):
        series.add([unknown(TEMP, "absent"), unknown(FAULTS, "transient")])
        sample = series.close(minute * 60_000_000)
        assert sample is not None and sample.unknown is not None
        assert sample.unknown[FAULTS.name] == "transient"
        if TEMP.name in sample.unknown:
            told.append(minute)
    assert told == [1, 61, 121]


def test_a_reason_is_told_again_after_the_sensor_was_there() -> None:
    series = Series(0)
    seen = []
    for minute, reading in enumerate(
        (
            unknown(TEMP, "absent"),
            unknown(TEMP, "absent"),
            known(TEMP, 1.0),
            unknown(TEMP, "absent"),
            unknown(TEMP, "denied"),
        ),
        start=1,
    ):
        series.add([reading])
        sample = series.close(minute * 60_000_000)
        assert sample is not None
        seen.append((sample.unknown or {}).get(TEMP.name))
    assert seen == ["absent", None, None, "absent", "denied"]


def test_sensors_that_come_back_under_new_names_leave_room_for_others() -> None:
    """Radios count on: without that, the names of before would fill every sample for ever."""
    series = Series(0)
    minute = 60 * SECOND
    now = 0
    for name in range(3 * MAX_MEASUREMENTS // 32):
        now += minute
        series.add(known(TEMP, 40, f"radio_{name}_{number}") for number in range(32))
        sample = series.close(now)
        assert sample is not None and len(sample.values) == 32, "the present ones are all there"
        assert len(sent(sample).unknown or ()) <= MAX_MEASUREMENTS
    for _ in range(62):
        now += minute
        series.add([known(FREE, 1)])
        sample = series.close(now)
    assert sample is not None and sample.unknown is None, "what is gone for an hour is forgotten"


def test_a_counter_whose_source_was_left_alone_for_a_while_goes_on_where_it_was() -> None:
    series = Series(0)
    series.add([known(FAULTS, 100)])
    series.add([known(FAULTS, 110)])
    assert (first := series.close(10 * SECOND)) is not None and first.values == {FAULTS.name: 10}
    for t in range(2, 8):
        series.add([known(FREE, 1)])
        away = series.close(t * 10 * SECOND)
        assert away is not None and away.unknown == {FAULTS.name: "transient"}
    series.add([known(FAULTS, 150)])
    assert (last := series.close(80 * SECOND)) is not None and last.values == {FAULTS.name: 40}


def test_a_counter_gone_mad_costs_only_itself() -> None:
    """One that jumps up and back each second adds up to more than a record can hold."""
    series = Series(0)
    for value in (0, (1 << 63) - 1) * 4:
        series.add([known(FAULTS, value), known(FREE, 1)])
    sample = series.close(10 * SECOND)
    assert sample is not None and sent(sample).values == {FREE.name: (1, 1, 1)}
    assert sample.unknown == {FAULTS.name: "transient"}
