"""What holds the clocks down, by the values of one moment."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.shared.diagnose import showing, throttle
from decodewatch.shared.diagnose.showing import Clock, Increase, Lowered, Seen
from decodewatch.shared.diagnose.throttle import judge
from decodewatch.shared.records import MAX_DATA, THROTTLE_STATES, scalars

COOL = {"temp_celsius": {"tj-thermal": 55.0}, "temp_passive_celsius": {"tj-thermal": 99.0}}
HOT = {"temp_celsius": {"tj-thermal": 98.5}, "temp_passive_celsius": {"tj-thermal": 99.0}}
FULL = Clock("cpu", 1.7e9, 1.728e9, 0.95)
DOWN = Clock("cpu", 0.86e9, 1.728e9, 0.95, below_s=4.0, fallen_s=4.0)
CAP = Lowered("cpu_max_hertz:policy0", 1.728e9, 0.7296e9, 30.0, False, 55.0)


def counted(**counters: float) -> dict[str, dict[str, Increase | None]]:
    """Over-current events in the last 10 s."""
    return {
        "overcurrent_events": {name: Increase(amount, 10.0) for name, amount in counters.items()}
    }


def seen(levels: Any = COOL, **fields: Any) -> Seen:
    return Seen(levels=levels, **fields)


# One cause at a time.


@pytest.mark.parametrize("label", ["cpufreq-cpu0", "thermal-cpufreq-4", "17000000.gpu"])
def test_a_cooling_device_that_limits_clocks_is_heat(label: str) -> None:
    found = judge(seen({**HOT, "cooling_share": {label: 4 / 15, "cpufreq-cpu4": 0.0}}))
    assert (found.state, found.confidence) == ("thermal", "high")
    assert found.evidence["cooling"] == f"{label} 27 %"
    assert found.evidence["tj_celsius"] == 98.5
    assert found.evidence["passive_celsius"] == 99.0
    assert "air or a fan" in found.sentence


def test_a_cooling_device_at_the_state_that_it_rests_in_is_no_heat() -> None:
    levels = {**COOL, "cooling_share": {"thermal-cpufreq-7": 5 / 19}}
    assert judge(seen(levels, at_rest={"thermal-cpufreq-7": 5 / 19})).state == "none"
    assert judge(seen(levels, at_rest={"thermal-cpufreq-7": 4 / 19})).state == "thermal"


def test_a_cooling_device_whose_cap_is_seen_is_heat_though_the_chip_is_cool() -> None:
    """A phone is throttled by its skin: its chip is at 40 C then."""
    levels = {
        "temp_celsius": {"cpuss-0-usr": 40.0},
        "cooling_share": {"thermal-cpufreq-7": 5 / 19},
        "cpu_max_hertz": {"policy0": 2.016e9, "policy7": 1.9008e9},
        "cpu_hw_max_hertz": {"policy0": 2.016e9, "policy7": 3.1872e9},
    }
    rests = seen(levels, at_rest={"thermal-cpufreq-7": 5 / 19})
    found = judge(rests)
    assert found.state == "thermal"
    assert found.evidence["capped"] == "policy7 60 %"
    # Unless somebody else set the cap while it was cool.
    assert judge(replace(rests, lowered=[CAP])).state == "policy"


def test_a_gpu_whose_thermal_level_is_raised_is_throttled() -> None:
    found = judge(seen({**COOL, "gpu_thermal_level": {"": 3}}))
    assert found.state == "thermal"
    assert found.evidence["cooling"] == "gpu_thermal_level 3"


@pytest.mark.parametrize(
    ("name", "amount", "shown"),
    [
        ("cpu_throttle_microseconds", 250_000.0, "package0 25 %"),
        ("cpu_throttle_events", 3.0, "package0 3 times"),
    ],
)
def test_a_throttle_counter_of_a_pc_that_grows_is_heat(
    name: str, amount: float, shown: str
) -> None:
    found = judge(seen({}, increases={name: {"package0": Increase(amount, 1.0)}}))
    assert (found.state, found.confidence) == ("thermal", "high")
    assert found.evidence["throttled_by_counter"] == shown
    still = judge(seen({}, increases={name: {"package0": Increase(0.0, 1.0)}}))
    assert (still.state, still.confidence) == ("none", "high")


@pytest.mark.parametrize(("bit", "state"), [("thermal", "thermal"), ("power", "power")])
def test_the_gpu_driver_is_believed(bit: str, state: str) -> None:
    levels = {"gpu_limited": {"thermal": 0, "power": 0, "idle": 0, "other": 0, bit: 1}}
    assert judge(seen(levels)).state == state
    assert judge(seen(levels)).confidence == "high"


@pytest.mark.parametrize("bit", ["idle", "other"])
def test_a_gpu_that_idles_is_not_throttled(bit: str) -> None:
    levels = {"gpu_limited": {"thermal": 0, "power": 0, "idle": 0, "other": 0, bit: 1}}
    assert judge(seen(levels)).state == "none"


@pytest.mark.parametrize("bit", ["throttled", "soft_temp_limit", "frequency_capped"])
def test_the_firmware_of_a_raspberry_pi_tells_heat(bit: str) -> None:
    found = judge(seen({"firmware_limit": {"under_voltage": 0, bit: 1}}))
    assert found.state == "thermal"
    assert found.evidence["firmware"] == bit


def test_what_the_firmware_does_for_a_low_voltage_is_no_heat() -> None:
    levels = {"firmware_limit": {"under_voltage": 1, "throttled": 1, "frequency_capped": 1}}
    found = judge(seen(levels))
    assert found.state == "power"
    assert found.evidence["firmware"] == "under_voltage, frequency_capped, throttled"
    assert "also" not in found.evidence
    assert "stronger supply" in found.sentence


def test_a_low_voltage_comes_before_heat_which_is_named_too() -> None:
    found = judge(seen({"firmware_limit": {"under_voltage": 1, "soft_temp_limit": 1}}))
    assert found.state == "power"
    assert found.evidence["also"] == "thermal"


def test_what_the_firmware_saw_since_boot_is_told_and_is_not_now() -> None:
    levels = {
        "firmware_limit": {"under_voltage": 0, "throttled": 0},
        "firmware_limit_since_boot": {"under_voltage": 1, "throttled": 1},
    }
    found = judge(seen(levels))
    assert found.state == "none"
    assert found.evidence["since_boot"] == "throttled, under_voltage"


def test_a_sensor_at_its_trip_point_is_heat_only_where_clocks_are_down_under_load() -> None:
    assert judge(seen(HOT, clocks=[FULL])).state == "none"
    found = judge(seen(HOT, clocks=[DOWN]))
    assert (found.state, found.confidence) == ("thermal", "low")
    assert found.evidence["cpu_hertz"] == 860_000_000
    assert "tj-thermal is at 98 °C of 99 °C" in found.sentence
    assert judge(seen(HOT, clocks=[replace(DOWN, below_s=2.0)])).state == "none"
    assert judge(seen(COOL, clocks=[DOWN])).state == "none"


def test_a_constant_of_100_degrees_is_no_heat() -> None:
    """Report 27: a PMIC that shows 100 C for ever, among sensors below 32 C."""
    levels = {
        "temp_celsius": {"PMIC-Die": 100.0, "CPU-therm": 31.5, "GPU-therm": 31.0},
        "temp_passive_celsius": {"CPU-therm": 97.0},
    }
    found = judge(seen(levels, clocks=[DOWN]))
    assert found.state == "none"
    assert found.evidence["tj_celsius"] == 31.5


def test_a_hot_disk_is_no_heat_of_the_chip() -> None:
    """Report 28: Start9Labs/start-technologies#3644, an NVMe at 71 C beside a CPU at 48 C."""
    levels = {"temp_celsius": {"nvme Composite": 71.0, "cpu_thermal": 48.0}}
    warmth = showing.heat(levels)
    assert warmth is not None and (warmth.sensor, warmth.celsius) == ("cpu_thermal", 48.0)


def test_a_sensor_is_held_against_its_own_trip_point() -> None:
    levels = {
        "temp_celsius": {"soc-thermal": 70.0, "cpu-thermal": 88.0, "tj": 60.0},
        "temp_passive_celsius": {"soc-thermal": 71.0, "cpu-thermal": 95.0, "skin": 40.0},
    }
    warmth = showing.heat(levels)
    assert warmth is not None and (warmth.sensor, warmth.passive) == ("soc-thermal", 71.0)
    assert warmth.at_trip and warmth.hot


def test_the_input_voltage_of_a_jetson_is_power_and_its_current_over_current() -> None:
    assert judge(seen(increases=counted(oc1=1))).state == "power"
    found = judge(seen(increases=counted(oc1=0, oc2=2)))
    assert (found.state, found.confidence) == ("over_current", "high")
    assert found.evidence["oc2_events"] == 2
    both = judge(seen(increases=counted(oc1=1, oc2=2)))
    assert (both.state, both.evidence["also"]) == ("power", "over_current")


@pytest.mark.parametrize("ticks", [1, 10, 300])
def test_oc3_that_ticks_is_nothing_by_itself(ticks: int) -> None:
    found = judge(seen(increases=counted(oc1=0, oc2=0, oc3=ticks), clocks=[FULL]))
    assert (found.state, found.confidence) == ("none", "high")
    assert found.evidence["oc3_per_second"] == ticks / 10


@pytest.mark.parametrize(
    ("us", "busy", "state"),
    [
        (150_000, 0.9, "none"),
        (250_000, 0.9, "over_current"),
        (250_000, 0.1, "none"),
        (250_000, None, "over_current"),
    ],
)
def test_oc3_counts_where_it_takes_time_from_work(
    us: float, busy: float | None, state: str
) -> None:
    increases = {
        **counted(oc1=0, oc2=0, oc3=200),
        "overcurrent_microseconds": {"oc3": Increase(us, 10.0)},
    }
    levels = COOL if busy is None else {**COOL, "gpu_busy_share": {"": busy}}
    assert judge(seen(levels, increases=increases)).state == state


def test_a_share_of_time_is_not_told_from_one_batch_of_counts() -> None:
    """The counters of a Jetson are written every 2 s: one second may hold the ticks of two."""
    increases = {"overcurrent_microseconds": {"oc3": Increase(60_000, 1.0)}}
    assert throttle.oc3_duty(seen(increases=increases)) is None


def test_oc3_counts_where_clocks_under_load_fell_with_it() -> None:
    found = judge(seen(increases=counted(oc1=0, oc2=0, oc3=200), clocks=[DOWN]))
    assert (found.state, found.confidence) == ("over_current", "low")
    assert found.evidence["oc3_per_second"] == 20
    assert judge(seen(increases=counted(oc3=0), clocks=[DOWN])).state == "none"


def test_a_current_alarm_needs_clocks_that_fell() -> None:
    levels = {**COOL, "power_alarm": {"VDD_IN": 1, "VDD_SOC": 0}}
    assert judge(seen(levels, clocks=[FULL])).state == "none"
    found = judge(seen(levels, clocks=[DOWN]))
    assert (found.state, found.evidence["power_alarm"]) == ("over_current", "VDD_IN")


@pytest.mark.parametrize(
    ("watts", "clock", "state"), [(15.0, DOWN, "power"), (15.0, FULL, "none"), (9.0, DOWN, "none")]
)
def test_a_package_at_its_power_limit_with_clocks_down_is_power(
    watts: float, clock: Clock, state: str
) -> None:
    levels = {
        **COOL,
        "power_watts": {"package-0": watts},
        "power_limit_watts": {"package-0": 15.0},
    }
    assert judge(seen(levels, clocks=[clock])).state == state


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (COOL, "cable"),
        ({"temp_celsius": {"tj": 65.0}}, "cable"),
        ({"temp_celsius": {"tj": 83.2}}, "It is also at 83 °C. Use"),
        (
            {"temp_celsius": {"tj": 83.2}, "temp_passive_celsius": {"tj": 85.0}},
            "It is also at 83 °C, 2 °C below its passive trip point. Use",
        ),
        (
            {"temp_celsius": {"tj": 85.1}, "temp_passive_celsius": {"tj": 85.0}},
            "It is also at 85 °C, its passive trip point. Use",
        ),
        (
            {"temp_celsius": {"tj": 88.0}, "temp_passive_celsius": {"tj": 85.0}},
            "It is also at 88 °C, 3 °C above its passive trip point. Use",
        ),
    ],
)
def test_a_low_voltage_says_so_where_it_is_also_hot(levels: Any, said: str) -> None:
    found = judge(seen({**levels, "firmware_limit": {"under_voltage": 1}}))
    assert found.state == "power"
    assert said in found.sentence
    assert ("also at" in found.sentence) == ("also at" in said)


def test_a_power_limit_says_so_where_it_is_also_hot() -> None:
    found = judge(seen({"temp_celsius": {"x86_pkg_temp": 91.0}, "gpu_limited": {"power": 1}}))
    assert found.state == "power"
    assert "It is also at 91 °C. Raise the limit" in found.sentence


def test_heat_comes_before_a_power_limit() -> None:
    found = judge(seen({"gpu_limited": {"thermal": 1, "power": 1}}))
    assert (found.state, found.evidence["also"]) == ("thermal", "power")


def test_a_cap_that_was_lowered_while_it_was_cool_is_policy() -> None:
    """Report 41: a public file. 55 C, OC1 and OC2 at 0, OC3 ticks, the clock at 729.6 MHz."""
    lowered = Lowered("cpu_min_hertz:policy0", 1.728e9, 0.7296e9, 120.0, False, 55.0)
    found = judge(seen(increases=counted(oc1=0, oc2=0, oc3=40), lowered=[lowered]))
    assert found.state == "policy"
    assert found.evidence["setting"] == "cpu_min_hertz:policy0"
    assert (found.evidence["before_hertz"], found.evidence["after_hertz"]) == (1.728e9, 0.7296e9)
    assert found.sentence.startswith("Not throttled, a setting was changed: cpu_min_hertz:policy0")
    assert "from 1.73 GHz to 730 MHz 2 min ago at 55 °C" in found.sentence


def test_a_power_mode_is_named_rather_than_the_caps_that_it_sets() -> None:
    mode = Lowered("power_mode", "MAXN", "15W", 20.0, False, 55.0)
    found = judge(seen(lowered=[CAP, mode]))
    assert (found.state, found.evidence["before"], found.evidence["after"]) == (
        "policy", "MAXN", "15W",
    )  # fmt: skip
    assert found.evidence["settings_changed"] == 2


def test_a_cap_that_was_lowered_in_heat_is_heat() -> None:
    found = judge(seen(HOT, lowered=[replace(CAP, hot=True, celsius=98.0)]))
    assert (found.state, found.confidence) == ("thermal", "low")


def test_a_setting_that_was_lowered_this_moment_is_not_judged_yet() -> None:
    assert judge(seen(lowered=[replace(CAP, ago_s=1.0)])).state == "none"


# Where nothing can be said.


def test_without_anything_that_would_show_it_the_state_is_unknown() -> None:
    unknown = {
        "cooling_share": frozenset({"absent"}),
        "overcurrent_events": frozenset({"absent"}),
    }
    found = judge(Seen(levels={"cpu_busy_share": {"": 0.5}}, unknown=unknown))
    assert (found.state, found.reason, found.watched) == ("unknown", "absent", ())
    assert "no trip points, cooling devices or counters can be read." in found.sentence
    denied = judge(Seen(unknown={**unknown, "temp_passive_celsius": frozenset({"denied"})}))
    assert (denied.state, denied.reason) == ("unknown", "denied")
    assert "rights" in denied.sentence


def test_low_clocks_alone_are_unknown_and_neither_throttling_nor_none() -> None:
    levels = {"cpu_hertz": {"policy0": 1e9}, "cpu_max_hertz": {"policy0": 2e9}}
    assert judge(Seen(levels=levels, clocks=showing.clocks(levels))).state == "unknown"


def test_a_cpu_that_runs_at_all_that_it_can_is_held_by_nothing() -> None:
    levels = {
        "cpu_hertz": {"policy0": 0.4e9, "policy4": 2e9},
        "cpu_max_hertz": {"policy0": 1.8e9, "policy4": 2e9},
        "cpu_hw_max_hertz": {"policy0": 1.8e9, "policy4": 2e9},
        "cpu_busy_share": {"": 0.9},
    }
    found = judge(Seen(levels=levels, clocks=showing.clocks(levels)))
    assert (found.state, found.confidence) == ("none", "low")


def test_a_cap_that_nothing_explains_is_unknown() -> None:
    levels: dict[str, dict[str, float]] = {
        "cpu_max_hertz": {"policy7": 1.9e9},
        "cpu_hw_max_hertz": {"policy7": 3.19e9},
        "gpu_thermal_level": {"": 0},
    }
    found = judge(Seen(levels=levels, unknown={"cooling_share": frozenset({"denied"})}))
    assert (found.state, found.reason) == ("unknown", "denied")
    assert found.evidence["capped"] == "policy7 60 %"
    fell = replace(CAP, hot=None, celsius=None)
    found = judge(Seen(levels={"gpu_thermal_level": {"": 0}}, lowered=[fell]))
    assert found.state == "unknown" and found.evidence["setting"] == "cpu_max_hertz:policy0"


def test_none_says_what_was_watched() -> None:
    levels = {**COOL, "cooling_share": {"cpufreq-cpu0": 0.0}}
    found = judge(seen(levels, increases=counted(oc1=0)))
    assert (found.state, found.confidence) == ("none", "high")
    assert found.watched == (
        "cooling devices", "temperatures against trip points", "over-current counters",
    )  # fmt: skip
    assert found.sentence == (
        "No sign of throttling in what can be watched: cooling devices, temperatures against trip "
        "points, over-current counters."
    )


BLIND = " Heat would not show here."


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (seen({}, increases=counted(oc1=0)), BLIND),
        (seen({"temp_celsius": {"tj": 50.0}}, increases=counted(oc1=0)), BLIND),
        (seen({"firmware_limit": {"under_voltage": 0}}), BLIND),
        (seen({"firmware_limit": {"under_voltage": 0, "soft_temp_limit": 0}}), ""),
        (seen({"gpu_limited": {"thermal": 0}}), " Heat of the CPU would not show here."),
        (seen({"gpu_thermal_level": {"": 0}}), " Heat of the CPU would not show here."),
        (seen({"cooling_share": {"Processor": 0.0}}), ""),
        (seen(COOL), ""),
        (seen({}, increases={"cpu_throttle_events": {"package0": Increase(0, 4.0)}}), ""),
    ],
)
def test_none_says_where_heat_would_not_show(shown: Seen, said: str) -> None:
    found = judge(shown)
    assert found.state == "none"
    assert found.sentence.endswith(f"{', '.join(found.watched)}.{said}")


def test_counters_of_which_one_reading_is_known_are_little_to_go_by() -> None:
    found = judge(Seen(increases={"overcurrent_events": {"oc1": None, "oc2": None}}))
    assert (found.state, found.confidence) == ("none", "low")


# Clocks.


def test_the_best_policy_tells_the_clock_of_the_cpu() -> None:
    levels = {
        "cpu_hertz": {"policy0": 0.7e9, "policy4": 1.7e9},
        "cpu_mean_hertz": {"policy4": 1.6e9},
        "cpu_max_hertz": {"policy0": 1.8e9, "policy4": 2e9},
        "cpu_busy_share": {"": 0.9},
    }
    (cpu,) = showing.clocks(levels)
    assert (cpu.hertz, cpu.allowed_hertz, cpu.loaded) == (1.6e9, 2e9, True)


def test_an_unreadable_cap_is_that_of_the_hardware_and_never_zero() -> None:
    """Report 33: termux-packages#29844, scaling_max_freq is denied."""
    levels = {"cpu_hertz": {"policy0": 1e9}, "cpu_hw_max_hertz": {"policy0": 2.016e9}}
    (cpu,) = showing.clocks(levels)
    assert cpu.allowed_hertz == 2.016e9
    caps: list[dict[str, float]] = [{}, {"policy0": 0.0}, {"policy1": 2e9}]
    for cap in caps:
        assert showing.clocks({"cpu_hertz": {"policy0": 1e9}, "cpu_max_hertz": cap}) == []


def test_a_gpu_that_is_switched_off_has_a_clock_of_zero() -> None:
    levels = {"gpu_hertz": {"": 0.0}, "gpu_max_hertz": {"": 1.3e9}, "gpu_busy_share": {"": 0.0}}
    (gpu,) = showing.clocks(levels)
    assert (gpu.share, gpu.loaded) == (0.0, False)


# The state of an interval.


@pytest.mark.parametrize(
    ("shares", "state"),
    [
        ({}, None),
        ({"thermal": (0.0, 0, 0), "policy": (0.0, 0, 0)}, "none"),
        ({"thermal": (0.1, 0, 1), "policy": (0.0, 0, 0)}, "thermal"),
        ({"thermal": [0.2, 0, 1], "over_current": [0.5, 0, 1]}, "over_current"),
        ({"thermal": 0.5, "power": 0.5}, "power"),
        ({"nonsense": 1.0}, None),
    ],
)
def test_the_state_of_an_interval_is_that_of_most_of_its_time(
    shares: dict[str, Any], state: str | None
) -> None:
    values = {f"throttled_share:{label}": share for label, share in shares.items()}
    assert throttle.state_of_shares({"temp_celsius:cpu": (50, 50, 50), **values}) == state


# Whatever is read.

_LABELS = st.sampled_from(
    ["", "policy0", "policy4", "tj-thermal", "PMIC-Die", "oc1", "oc2", "oc3", "package0", "thermal",
     "power", "under_voltage", "throttled", "soft_temp_limit", "VDD_IN", "x" * 128]
)  # fmt: skip
_VALUES = st.floats(-1e12, 1e12, allow_nan=False) | st.integers(-(1 << 62), 1 << 62)
_LEVELS = st.dictionaries(
    st.sampled_from(sorted(showing.READ)), st.dictionaries(_LABELS, _VALUES, max_size=4)
)
_SECONDS = st.just(0.0) | st.floats(1e-6, 1e6)  # the boot clock counts microseconds
_WORDS = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=128)  # see word_of
_CLOCKS = st.builds(
    Clock,
    st.sampled_from(["cpu", "gpu", "gpu:1"]),
    st.floats(0, 1e11),
    st.floats(1, 1e11),
    st.none() | st.floats(0, 1),
    _SECONDS,
    _SECONDS,
)
_LOWERED = st.builds(
    Lowered,
    st.sampled_from(["cpu_max_hertz:policy0", "power_mode", "y" * 200]),
    st.floats(0, 1e11) | _WORDS,
    st.floats(0, 1e11) | _WORDS,
    _SECONDS,
    st.none() | st.booleans(),
    st.none() | st.floats(-40, 150),
)
_SEEN = st.builds(
    Seen,
    levels=_LEVELS,
    increases=st.dictionaries(
        st.sampled_from(showing.COUNTERS),
        st.dictionaries(
            _LABELS, st.none() | st.builds(Increase, st.floats(0, 1e15), _SECONDS), max_size=4
        ),
    ),
    unknown=st.dictionaries(
        st.sampled_from(sorted(showing.READ)),
        st.frozensets(st.sampled_from(["absent", "denied", "transient", "implausible"])),
    ),
    at_rest=st.dictionaries(_LABELS, st.floats(0, 1)),
    clocks=st.lists(_CLOCKS, max_size=3),
    lowered=st.lists(_LOWERED, max_size=3),
)


@given(_SEEN)
def test_whatever_is_seen_gives_a_verdict_that_an_event_can_hold(what: Seen) -> None:
    found = judge(what)
    assert found.state in THROTTLE_STATES
    assert found.sentence.endswith((".", "…", ")")) and len(found.sentence) <= 256
    data = {"state": found.state, **found.evidence, "verdict": found.sentence, "confidence": "low"}
    assert len(data) < MAX_DATA
    scalars(json.loads(json.dumps(data)))
    assert (found.reason is None) == (found.state != "unknown")
    assert found.state != "none" or found.watched


@given(_SEEN)
def test_clocks_without_load_never_make_a_device_hot(what: Seen) -> None:
    """However low they are and however warm it is: only what is no clock may say so."""
    kept = {name: what.levels[name] for name in what.levels if "temp" in name or "cpu_" in name}
    idle = [replace(clock, busy=0.1, below_s=0.0, fallen_s=0.0) for clock in what.clocks]
    assert judge(Seen(levels=kept, clocks=idle)).state in ("none", "unknown")
