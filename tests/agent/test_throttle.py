"""What holds the clocks down over time: recorded devices, and long sequences of readings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded

from decodewatch.agent.runtimes.windows import stretches
from decodewatch.agent.sampler import Sampler
from decodewatch.agent.sources import MEASUREMENTS, REGISTRY
from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, first_known, unknown
from decodewatch.agent.throttle import (
    EVENTS,
    HISTORY,
    NORMAL_S,
    SHARE,
    ThrottleWatch,
    verdict_of,
)
from decodewatch.shared.diagnose.showing import COUNTERS, READ
from decodewatch.shared.diagnose.throttle import THROTTLED
from decodewatch.shared.records import MAX_DATA, THROTTLE_STATES, Scalar, scalars

SECOND = 1_000_000
START = 5_000 * SECOND
_ROWS = {row.name: row for row in MEASUREMENTS}


def row(name: str) -> Measurement:
    """The row of the table of measurements, or one like it where no source has it."""
    kind = "word" if name == "power_mode" else "counter" if name in COUNTERS else "gauge"
    found = _ROWS.get(name)
    return found or Measurement(name, "count", kind, "")  # type: ignore[arg-type]


def readings(values: dict[str, Any]) -> list[Reading]:
    """Readings by key: a number, a word, or None for one that could not be read this time."""
    found = []
    for key, value in values.items():
        name, _, label = key.partition(":")
        if value is None:
            found.append(unknown(row(name), "transient", label))
        elif isinstance(value, str):
            found.append(Reading(row(name), label, None, None, value))
        else:
            found.append(Reading(row(name), label, value, None))
    return found


class Device:
    """A device whose values a test changes, watched once a second."""

    def __init__(self, **values: Any) -> None:
        self.now = START
        self.events: list[tuple[str, dict[str, Scalar]]] = []
        self.watch = ThrottleWatch(lambda kind, data: self.events.append((kind, data)))
        self.values: dict[str, Any] = values
        self.states: list[str] = []

    def run(self, seconds: int = 1, **changes: Any) -> str:
        """So many seconds with these values; the state at their end."""
        self.set(**changes)
        for _ in range(seconds):
            self.now += SECOND
            found = self.watch.see(readings(self.values), self.now)
            state = self.watch.verdict.state
            self.states.append(state)
            shares = {reading.label: reading.value for reading in found}
            assert set(shares) == set(THROTTLED)
            if state == "unknown":
                assert set(shares.values()) == {None}
            else:
                assert shares == {label: int(label == state) for label in THROTTLED}
        return state

    def set(self, **changes: Any) -> None:
        self.values.update({name.replace("__", ":"): value for name, value in changes.items()})

    def count(self, key: str, by: int) -> None:
        self.values[key] += by

    @property
    def told(self) -> list[tuple[str, Scalar]]:
        return [(kind, data["state"]) for kind, data in self.events]


def a_jetson(**changes: Any) -> Device:
    """An Orin Nano under load: cool, at full clock."""
    device = Device(
        **{
            "temp_celsius:tj-thermal": 60.0,
            "temp_celsius:cpu-thermal": 59.0,
            "temp_passive_celsius:tj-thermal": 99.0,
            "temp_passive_celsius:cpu-thermal": 99.0,
            "cooling_share:cpufreq-cpu0": 0.0,
            "cooling_share:17000000.gpu": 0.0,
            "overcurrent_events:oc1": 0,
            "overcurrent_events:oc2": 0,
            "overcurrent_events:oc3": 27_390,
            "cpu_hertz:policy0": 1_728_000_000,
            "cpu_max_hertz:policy0": 1_728_000_000,
            "cpu_min_hertz:policy0": 729_600_000,
            "cpu_hw_max_hertz:policy0": 1_728_000_000,
            "cpu_busy_share": 0.2,
            "gpu_hertz": 1_020_000_000,
            "gpu_max_hertz": 1_020_000_000,
            "gpu_busy_share": 0.99,
            "power_mode": "MAXN_SUPER",
        }
    )
    device.set(**changes)
    return device


# Recorded devices.


def read(kernel: FakeKernel) -> list[Reading]:
    """What the registered sources read, the second time."""
    sources = [factory(kernel.root, kernel) for _, factory in REGISTRY]
    for source in sources:
        source.read()
    kernel.now += 1.0
    found = first_known(reading for source in sources for reading in source.read())
    for source in sources:
        source.close()
    return found


@pytest.mark.parametrize(
    ("board", "state", "confidence"),
    [
        # OC3 ticks and the CPU runs at half of its clock at times: no counter says for how long.
        ("orin_nano_super", "none", "high"),
        ("agx_orin_64gb_r35", "none", "low"),  # idle, and one reading of counters
        ("agx_thor_r38", "none", "low"),
        ("rpi5", "power", "high"),  # 0x50005: under-voltage and throttled now; its fan is no sign
        # Android lets apps see caps, and neither temperatures nor cooling devices.
        ("snapdragon_8plus_gen1_sm8475", "unknown", "low"),
        ("x86_oddities", "none", "low"),  # throttled at some time since boot
    ],
)
def test_recorded_devices(board: str, state: str, confidence: str, tmp_path: Path) -> None:
    found = verdict_of(read(recorded(board, tmp_path)))
    assert (found.state, found.confidence) == (state, confidence), found.sentence


def test_the_firmware_of_a_raspberry_pi_is_quoted(tmp_path: Path) -> None:
    found = verdict_of(read(recorded("rpi5", tmp_path)))
    assert found.evidence["firmware"] == "under_voltage, throttled"
    assert found.evidence["cpu_hertz"] == 1_500_000_000
    assert found.evidence["tj_celsius"] == 83.0


def test_a_phone_that_root_looks_at_is_held_by_its_cooling_devices(tmp_path: Path) -> None:
    """States 3 of 17 and 5 of 19 at 40 C might be those of rest. The caps that they set are seen
    in cpufreq, 64 % and 60 % of the clock: it is the skin that is warm."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()
    found = verdict_of(read(kernel))
    assert (found.state, found.confidence) == ("thermal", "high")
    assert found.evidence["cooling"] == "thermal-cpufreq-7 26 %"
    assert found.evidence["capped"] == "policy7 60 %"
    # Without the caps the same states say nothing.
    for policy, khz in (("policy4", 2745600), ("policy7", 3187200)):
        kernel.write(f"/sys/devices/system/cpu/cpufreq/{policy}/scaling_max_freq", f"{khz}\n")
    assert verdict_of(read(kernel)).state == "none"


def test_a_fan_at_full_speed_is_no_throttling(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.write("/sys/class/thermal/cooling_device3/cur_state", "4\n")
    assert verdict_of(read(kernel)).state == "none"


def test_a_cooling_device_of_a_recorded_board_is_throttling(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    kernel.write("/sys/class/thermal/cooling_device0/cur_state", "4\n")
    kernel.write("/sys/class/thermal/thermal_zone8/temp", "99500\n")
    found = verdict_of(read(kernel))
    assert found.state == "thermal"
    assert found.evidence["cooling"] == "cpufreq-cpu0 27 %"
    assert (found.evidence["tj_celsius"], found.evidence["passive_celsius"]) == (99.5, 99.0)


def test_a_machine_that_shows_nothing_is_unknown_and_says_why(tmp_path: Path) -> None:
    found = verdict_of(read(FakeKernel(tmp_path)))
    assert (found.state, found.reason, found.watched) == ("unknown", "absent", ())


def test_a_container_that_may_read_nothing_says_so() -> None:
    found = verdict_of([unknown(row(name), "denied") for name in ("cooling_share", "temp_celsius")])
    assert (found.state, found.reason) == ("unknown", "denied")


# Sequences: heat.


def test_heat_begins_and_ends() -> None:
    device = a_jetson()
    assert device.run(60) == "none"
    hot = {"temp_celsius__tj-thermal": 99.5, "cooling_share__cpufreq-cpu0": 4 / 15}
    assert device.run(1, **hot) == "thermal"
    device.run(28)
    device.run(1, **{"temp_celsius__tj-thermal": 101.25})
    cool = {"temp_celsius__tj-thermal": 90.0, "cooling_share__cpufreq-cpu0": 0.0}
    assert device.run(4, **cool) == "thermal"
    assert device.run(10) == "none"
    assert device.told == [("throttle_began", "thermal"), ("throttle_ended", "thermal")]
    began, ended = (data for _, data in device.events)
    assert began["cooling"] == "cpufreq-cpu0 27 %" and began["tj_celsius"] == 99.5
    assert str(began["verdict"]).startswith("Heat holds the clocks down: the cooling device")
    assert ended["seconds"] == 34 and ended["then"] == "none"
    assert ended["hottest_celsius"] == 101.2
    assert device.states.count("thermal") == 34


def test_a_governor_that_swings_around_its_trip_point_makes_one_stretch() -> None:
    device = a_jetson()
    device.run(10)
    for second in range(300):
        device.run(1, **{"cooling_share__cpufreq-cpu0": (second % 3 == 0) * 0.1})
    assert device.told == [("throttle_began", "thermal")]
    assert set(device.states[10:]) == {"thermal"}


def test_clocks_down_at_the_trip_point_are_heat_after_three_seconds() -> None:
    """Where the kernel shows no cooling device."""
    device = a_jetson()
    for key in [key for key in device.values if key.startswith("cooling_share")]:
        del device.values[key]
    device.run(10, **{"temp_celsius__tj-thermal": 98.2})
    assert device.run(3, gpu_hertz=612_000_000) == "none"
    assert device.run(1) == "thermal"
    assert device.watch.verdict.evidence["gpu_hertz"] == 612_000_000
    assert device.run(10, gpu_hertz=1_020_000_000) == "none"


def test_a_low_clock_at_low_load_is_none_however_warm_it_is() -> None:
    device = a_jetson(gpu_busy_share=0.99, **{"temp_celsius__tj-thermal": 98.9})
    device.run(5)
    slow = {"gpu_hertz": 306_000_000, "cpu_hertz__policy0": 115_200_000}
    assert device.run(120, gpu_busy_share=0.3, cpu_busy_share=0.05, **slow) == "none"
    assert device.run(60, gpu_busy_share=0.0, gpu_hertz=0) == "none"
    assert device.events == []


def test_a_load_that_comes_and_goes_does_not_add_up_to_three_seconds() -> None:
    device = a_jetson(gpu_hertz=612_000_000, **{"temp_celsius__tj-thermal": 98.9})
    for _ in range(30):
        device.run(2, gpu_busy_share=0.99)
        device.run(1, gpu_busy_share=0.4)
    assert set(device.states) == {"none"}


def test_a_zone_that_vanishes_for_some_readings_changes_nothing() -> None:
    device = a_jetson()
    device.run(5)
    hot = {"temp_celsius__tj-thermal": 99.5, "cooling_share__cpufreq-cpu0": 0.2}
    device.run(5, **hot)
    gone = dict.fromkeys(("temp_celsius__tj-thermal", "cooling_share__cpufreq-cpu0"))
    assert device.run(4, **gone) == "thermal"
    device.run(20, **hot)
    assert device.told == [("throttle_began", "thermal")]


def test_a_phone_that_rests_in_a_cooling_state_is_throttled_when_it_rises() -> None:
    device = Device(
        **{"temp_celsius:cpuss-0": 35.0, "cooling_share:cpufreq-7": 0.1, "gpu_thermal_level": 0}
    )
    assert device.run(60) == "none"
    assert device.run(30, **{"cooling_share__cpufreq-7": 0.3}) == "thermal"
    assert device.run(30, **{"cooling_share__cpufreq-7": 0.1}) == "none"


def test_a_phone_that_is_hot_when_the_agent_starts_is_throttled() -> None:
    device = Device(**{"temp_celsius:cpuss-0": 85.0, "cooling_share:cpufreq-7": 0.3})
    assert device.run(5) == "thermal"


def test_a_cap_that_a_cooling_device_set_is_heat_whichever_is_seen_first() -> None:
    device = a_jetson()
    device.run(60)
    device.run(1, cpu_max_hertz__policy0=1_344_000_000)
    device.run(60, **{"cooling_share__cpufreq-cpu0": 0.2, "temp_celsius__tj-thermal": 99.0})
    assert device.told == [("throttle_began", "thermal")]
    assert device.watch.verdict.evidence["setting"] == "cpu_max_hertz:policy0"


def test_a_cap_that_fell_in_heat_counts_as_long_as_the_heat_lasts() -> None:
    """Android's thermal service sets caps without a cooling device that an app may read."""
    device = Device(**{"temp_celsius:cpu-0": 82.0, "cpu_max_hertz:policy7": 3_187_200_000})
    device.run(30)
    assert device.run(5, cpu_max_hertz__policy7=1_900_800_000) == "thermal"
    assert device.run(3 * int(NORMAL_S)) == "thermal"
    assert device.run(10, cpu_max_hertz__policy7=3_187_200_000) == "unknown"


# Sequences: counters.


def test_a_throttle_counter_of_a_pc_counts_while_it_grows() -> None:
    key = "cpu_throttle_microseconds:package0"
    device = Device(**{key: 112_000, "cpu_throttle_events:package0": 30})
    assert device.run(30) == "none"
    for _ in range(20):
        device.count(key, 400_000)
        device.run(1)
    assert set(device.states[-20:]) == {"thermal"}
    assert device.watch.verdict.evidence["throttled_by_counter"] == "package0 40 %"
    assert device.run(12) == "none"


@pytest.mark.parametrize("restarted", [0, 3])
def test_a_counter_that_restarts_did_not_grow(restarted: int) -> None:
    device = a_jetson(overcurrent_events__oc2=4_000_000_000)
    device.run(10)
    assert device.run(10, overcurrent_events__oc2=restarted) == "none"
    device.count("overcurrent_events:oc2", 1)
    assert device.run(1) == "over_current"
    assert device.watch.verdict.evidence["oc2_events"] == 1


def test_a_counter_that_is_not_read_for_a_while_tells_what_it_counted_meanwhile() -> None:
    device = a_jetson()
    device.run(5)
    device.run(3, overcurrent_events__oc1=None)
    assert device.run(1, overcurrent_events__oc1=2) == "power"


def test_what_was_counted_while_the_device_slept_is_not_of_now() -> None:
    device = a_jetson()
    device.run(5)
    device.now += 3600 * SECOND
    assert device.run(3, overcurrent_events__oc2=40) == "none"


@pytest.mark.parametrize("a_second", [1, 7, 30])
def test_oc3_that_ticks_at_idle_is_none(a_second: int) -> None:
    """For root too, who sees how long the ticks take: 1.07 ms each."""
    device = a_jetson(gpu_busy_share=0.02, gpu_hertz=306_000_000)
    device.values["overcurrent_microseconds:oc3"] = 32_000_000
    for second in range(600):
        if second % 2:  # written every 2 s
            device.count("overcurrent_events:oc3", 2 * a_second)
            device.count("overcurrent_microseconds:oc3", 2 * a_second * 1_074)
        device.run(1)
    assert set(device.states) == {"none"}
    assert device.watch.verdict.evidence["oc3_per_second"] == pytest.approx(a_second, rel=0.25)
    assert device.events == []


def test_oc3_that_ticks_under_load_with_full_clocks_is_none() -> None:
    device = a_jetson()
    for _ in range(300):
        device.count("overcurrent_events:oc3", 12)
        device.run(1)
    assert set(device.states) == {"none"}


def test_oc3_that_ticks_while_clocks_under_load_fall_is_over_current() -> None:
    device = a_jetson()
    for second in range(60):
        device.count("overcurrent_events:oc3", 12)
        device.run(1, gpu_hertz=1_020_000_000 if second < 30 else 612_000_000)
    assert device.told == [("throttle_began", "over_current")]
    assert device.states.index("over_current") == 33
    assert device.events[0][1]["confidence"] == "low"


def test_oc3_that_takes_time_from_work_is_over_current() -> None:
    device = a_jetson(overcurrent_microseconds__oc3=0)
    device.run(10)
    for _ in range(20):
        device.count("overcurrent_microseconds:oc3", 80_000)
        device.run(1)
    assert device.states[-1] == "over_current"
    assert device.watch.verdict.evidence["oc3_duty_share"] == 0.08


# Sequences: policy.


def test_nvpmodel_that_undoes_jetson_clocks_is_policy() -> None:
    """Report 41: a public file. 55 C, OC1 and OC2 stay 0, OC3 ticks as ever; the lowest clock was
    1728000 kHz and is 729600, where the CPU runs now."""
    device = a_jetson(**{"cpu_min_hertz__policy0": 1_728_000_000, "temp_celsius__tj-thermal": 55.0})
    for _ in range(60):
        device.count("overcurrent_events:oc3", 5)
        device.run(1)
    assert device.states[-1] == "none"
    undone = {"cpu_min_hertz__policy0": 729_600_000, "cpu_hertz__policy0": 729_600_000}
    for _ in range(60):
        device.count("overcurrent_events:oc3", 5)
        device.run(1, **undone)
    assert device.told == [("clock_policy_changed", "policy")]
    verdict = device.watch.verdict
    assert verdict.evidence["setting"] == "cpu_min_hertz:policy0"
    assert verdict.evidence["tj_celsius"] == 59.0  # of the sensor next to its trip point
    # Ten minutes later it is what is usual.
    assert device.run(int(NORMAL_S)) == "none"
    assert device.told == [("clock_policy_changed", "policy")]


def test_a_lowest_clock_that_is_lower_matters_only_while_the_clock_is() -> None:
    device = a_jetson(cpu_min_hertz__policy0=1_728_000_000)
    device.run(10)
    assert device.run(20, cpu_min_hertz__policy0=729_600_000) == "none"
    assert device.run(5, cpu_hertz__policy0=1_190_400_000) == "policy"
    assert device.run(9, cpu_hertz__policy0=1_728_000_000) == "none"


def test_a_cap_that_is_lifted_again_is_no_change_any_more() -> None:
    device = a_jetson()
    device.run(10)
    assert device.run(30, gpu_max_hertz=612_000_000, gpu_hertz=612_000_000) == "policy"
    assert device.run(9, gpu_max_hertz=1_020_000_000, gpu_hertz=1_020_000_000) == "none"
    assert device.run(300) == "none"


def test_a_lower_power_mode_is_policy_also_where_it_is_noticed_late() -> None:
    device = a_jetson(**{"temp_celsius__tj-thermal": 95.0})
    device.run(60)
    lower = {"gpu_max_hertz": 612_000_000, "cpu_max_hertz__policy0": 1_190_400_000}
    device.run(20, **lower, gpu_hertz=612_000_000)  # near its trip point: it might be heat
    assert device.states[-1] == "thermal"
    device.run(20, power_mode="15W")
    assert device.states[-1] == "policy"
    assert device.watch.verdict.evidence["after"] == "15W"


def test_a_faster_power_mode_is_none() -> None:
    device = a_jetson(power_mode="15W", gpu_max_hertz=612_000_000, gpu_hertz=612_000_000)
    device.run(60)
    device.run(60, gpu_max_hertz=1_020_000_000, gpu_hertz=1_020_000_000)
    assert device.run(900, power_mode="MAXN_SUPER") == "none"
    assert device.events == []


def test_a_phone_that_is_touched_is_not_changed() -> None:
    """It raises its lowest clock for a second or two, and lowers it again."""
    device = a_jetson()
    device.run(10)
    for _ in range(200):
        device.run(2, cpu_min_hertz__policy0=1_190_400_000)
        device.run(7, cpu_min_hertz__policy0=729_600_000, cpu_hertz__policy0=800_000_000)
    assert set(device.states) == {"none"}


def test_caps_that_fall_while_nobody_knows_how_warm_it_is_are_unknown() -> None:
    device = Device(**{"cpu_max_hertz:policy7": 3_187_200_000, "gpu_thermal_level": 0})
    assert device.run(30) == "none"
    assert device.run(10, cpu_max_hertz__policy7=1_900_800_000) == "unknown"
    assert device.events == []


# Several causes, hysteresis, bounds.


def test_a_worse_cause_takes_over_and_the_lesser_one_returns_after_it() -> None:
    device = a_jetson(**{"cooling_share__cpufreq-cpu0": 0.2, "temp_celsius__tj-thermal": 99.0})
    device.run(10)
    device.count("overcurrent_events:oc1", 1)
    assert device.run(1) == "power"
    assert device.watch.verdict.evidence["also"] == "thermal"
    assert device.run(10) == "thermal"
    assert device.told == [
        ("throttle_began", "thermal"),
        ("throttle_ended", "thermal"),
        ("throttle_began", "power"),
        ("throttle_ended", "power"),
        ("throttle_began", "thermal"),
    ]
    assert [data.get("then") for _, data in device.events][1:4:2] == ["power", "thermal"]


def test_events_of_a_device_that_throttles_every_other_minute_are_bounded() -> None:
    device = a_jetson()
    for _ in range(120):
        device.run(15, **{"cooling_share__cpufreq-cpu0": 0.2})
        device.run(15, **{"cooling_share__cpufreq-cpu0": 0.0})
    began = [data for kind, data in device.events if kind == "throttle_began"]
    ended = [data for kind, data in device.events if kind == "throttle_ended"]
    assert EVENTS < len(began) <= EVENTS + 13
    assert len(began) - len(ended) in (0, 1)
    untold = sum(int(str(data.get("stretches_untold", 0))) for data in began)
    assert len(began) + untold > 100
    assert device.states.count("thermal") > 120 * 15


def test_verdicts_of_the_past_are_known_for_steps_that_are_heard_of_later() -> None:
    device = a_jetson()
    assert device.watch.state_at(START) == "unknown"
    device.run(10)
    hot_from = device.now + SECOND
    device.run(10, **{"cooling_share__cpufreq-cpu0": 0.2})
    device.run(20, **{"cooling_share__cpufreq-cpu0": 0.0})
    at = device.watch.state_at
    assert at(START) == "unknown" and at(START + 3 * SECOND) == "none"
    assert at(hot_from - 1) == "none" and at(hot_from) == "thermal"
    assert at(device.now) == at(device.now + SECOND) == "none"
    for second in range(2 * HISTORY):
        device.run(9, **{"cooling_share__cpufreq-cpu0": 0.2 * (second % 2)})
    assert at(hot_from) == "unknown"  # too long ago to be remembered


def test_steps_are_cut_where_the_state_changed() -> None:
    steps: Sequence[tuple[int | None, int]] = [(None, 1), *[(100_000, 2)] * 9]
    # The steps lie at 0.1 s to 1.0 s; it is throttled from 0.35 s on, and not from 0.85 s on.
    found = stretches(steps, 120, SECOND, lambda t: "thermal" if 350_000 <= t < 850_000 else "none")
    assert [(len(part), depth, state) for part, depth, state in found] == [
        (3, 106, "none"),
        (5, 116, "thermal"),
        (2, 120, "none"),
    ]
    assert [step for part, _, _ in found for step in part] == steps
    assert stretches(steps, None, SECOND, lambda t: "none") == [(steps, None, "none")]


def test_the_verdict_is_part_of_the_systems_samples() -> None:
    sampler = Sampler([], START, lambda source, fault: None)
    device = a_jetson()
    for second in range(1, 11):
        device.set(**{"cooling_share__cpufreq-cpu0": 0.2 * (second > 5)})
        sampler.tick(START + second * SECOND)
        sampler.conclude(device.watch.see(readings(device.values), START + second * SECOND))
        assert sampler.readings[-1].measurement is SHARE
    sample = sampler.close(START + 10 * SECOND)
    assert sample is not None
    assert sample.values["throttled_share:thermal"] == (0.5, 0, 1)
    assert sample.values["throttled_share:power"] == (0.0, 0, 0)


def test_a_verdict_that_is_unknown_is_null_with_its_reason() -> None:
    watch = ThrottleWatch(lambda kind, data: None)
    found = watch.see([unknown(row("cooling_share"), "denied")], START)
    assert {(one.key, one.value, one.reason) for one in found} == {
        (f"throttled_share:{state}", None, "denied") for state in THROTTLED
    }


# Whatever is read.

_KEYS = st.sampled_from(
    sorted(
        f"{name}:{label}" if label else name
        for name in READ
        for label in ("", "policy0", "tj-thermal", "oc1", "oc3", "package0", "thermal", "power")
    )
)
_REASONS: Sequence[Reason] = ("absent", "denied", "transient", "implausible")
_VALUES = st.none() | st.floats(-1e3, 1e12) | st.integers(0, 1 << 40) | st.sampled_from([0, 1])
_MOMENTS = st.lists(
    st.tuples(st.integers(1, 700), st.dictionaries(_KEYS, _VALUES, max_size=12)), max_size=12
)


def plausible(values: dict[str, Any]) -> dict[str, Any]:
    """The power mode is a word, everything else a number."""
    return {
        key: str(value)[:9] if key.startswith("power_mode") and value is not None else value
        for key, value in values.items()
    }


@settings(max_examples=200)
@given(_MOMENTS)
def test_any_readings_at_any_moments_give_a_verdict(moments: list[tuple[int, Any]]) -> None:
    events: list[dict[str, Scalar]] = []
    watch = ThrottleWatch(lambda kind, data: events.append(data))
    now = START
    for seconds, values in moments:
        now += seconds * SECOND
        found = watch.see(readings(plausible(values)), now)
        assert len(found) == len(THROTTLED)
        assert watch.verdict.state in THROTTLE_STATES
        assert watch.state_at(now) == watch.verdict.state
        assert verdict_of(readings(plausible(values))).state in THROTTLE_STATES
    for data in events:
        assert len(data) <= MAX_DATA
        scalars(data)


_CLOCK_KEYS = ("cpu_hertz", "cpu_mean_hertz", "cpu_max_hertz", "cpu_hw_max_hertz", "gpu_hertz")


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.fixed_dictionaries({key: st.integers(1, 10**10) for key in _CLOCK_KEYS}),
            st.floats(20, 120),
            st.floats(0, 0.79),
        ),
        max_size=15,
    )
)
def test_a_device_without_load_is_never_hot_by_its_clocks(moments: list[Any]) -> None:
    watch = ThrottleWatch(lambda kind, data: None)
    now = START
    for seconds, clocks, celsius, busy in moments:
        now += seconds * SECOND
        values = {
            "temp_celsius:tj": celsius,
            "temp_passive_celsius:tj": 95.0,
            "gpu_max_hertz": 10**9,
            "cpu_busy_share": busy,
            "gpu_busy_share": busy,
            **{f"{key}:policy0" if "cpu" in key else key: clock for key, clock in clocks.items()},
            "cpu_max_hertz:policy0": 2 * 10**9,
        }
        watch.see(readings(values), now)
        assert watch.verdict.state == "none"
