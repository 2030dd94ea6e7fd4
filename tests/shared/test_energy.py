"""Joules a decoded token: power times time over tokens, with its rail, or why there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.shared.energy import LEAST_TOKENS, LEAST_US, joules_a_token, totals
from decodewatch.shared.records import Measured, Phase

SECOND = 1_000_000
IN, CPU, GPU = "device_watts:VDD_IN", "power_watts:VDD_CPU", "power_watts:VDD_GPU"


def part(seconds: float, tokens: int = 0, **watts: float) -> Phase:
    rails = {"total": IN, "cpu": CPU, "gpu": GPU}
    values: dict[str, Measured] = {rails[name]: (one, one, one) for name, one in watts.items()}
    return Phase(round(seconds * SECOND), tokens, values)


def test_the_energy_of_a_token_is_power_times_time_over_tokens_summed_before_dividing() -> None:
    found = joules_a_token(
        totals([{"decode": part(10, 100, total=10.0)}, {"decode": part(5, 25, total=4.0)}])
    )
    assert not isinstance(found, str)
    (energy,) = found
    assert energy.rail == IN
    assert energy.joules == pytest.approx((100 + 20) / 125)
    assert energy.watts == pytest.approx(120 / 15)
    assert (energy.tokens, energy.duration_us) == (125, 15 * SECOND)


def test_only_decode_counts_and_the_other_phases_do_not() -> None:
    phases = {
        "decode": part(10, 200, total=10.0),
        "mixed": part(10, 50, total=20.0),
        "prefill": part(10, 0, total=20.0),
        "idle": part(600, 0, total=2.0),
    }
    found = joules_a_token(totals([phases]))
    assert not isinstance(found, str) and found[0].joules == pytest.approx(0.5)


def test_the_whole_device_comes_first_and_then_the_rail_that_takes_most() -> None:
    found = joules_a_token(totals([{"decode": part(10, 100, cpu=1.0, gpu=4.0, total=3.0)}]))
    assert not isinstance(found, str)
    assert [one.rail for one in found] == [IN, GPU, CPU]


def test_a_sample_that_does_not_know_a_rail_lends_it_neither_time_nor_tokens() -> None:
    samples = [
        {"decode": part(10, 100, total=10.0, cpu=2.0)},
        {"decode": part(10, 100, cpu=4.0)},
    ]
    found = joules_a_token(totals(samples))
    assert not isinstance(found, str)
    assert [(one.rail, one.joules, one.tokens) for one in found] == [
        (IN, 1.0, 100),
        (CPU, 0.3, 200),
    ]


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ({}, "no decode"),
        ({"idle": part(600, 0, total=2.0)}, "no decode"),
        ({"decode": part(60, 0, total=2.0)}, "no decode"),
        ({"mixed": part(60, 900, total=2.0)}, "no decode"),
        ({"decode": part(60, 900)}, "no rail"),
        ({"decode": Phase(60 * SECOND, 900, {"gpu_busy_share": (1, 1, 1)})}, "no rail"),
        ({"decode": Phase(60 * SECOND, 900, {"device_watts:VDD_IN": 7})}, "no rail"),
        ({"decode": part(60, LEAST_TOKENS - 1, total=2.0)}, "too few"),
        ({"decode": part(LEAST_US / SECOND - 0.1, 900, total=2.0)}, "too few"),
    ],
)
def test_without_a_rail_or_enough_tokens_it_is_unknown_and_says_why(
    phases: dict[str, Phase], why: str
) -> None:
    assert joules_a_token(totals([phases])) == why


def test_a_rail_with_enough_tokens_is_told_where_that_of_the_device_has_too_few() -> None:
    samples = [{"decode": part(20, 200, cpu=1.0)}, {"decode": part(1, 10, total=9.0)}]
    found = joules_a_token(totals(samples))
    assert not isinstance(found, str) and [one.rail for one in found] == [CPU]


PARTS = st.builds(part, st.floats(0.001, 100), st.integers(0, 10_000), total=st.floats(0, 100))


@given(st.lists(st.dictionaries(st.sampled_from(["idle", "decode"]), PARTS), max_size=20))
def test_totals_keep_all_time_and_tokens_and_means_lie_between_the_samples(
    samples: list[dict[str, Phase]],
) -> None:
    found = totals(samples)
    for name in ("idle", "decode"):
        parts = [phases[name] for phases in samples if name in phases]
        assert (name in found) == bool(parts)
        if parts:
            total = found[name]
            assert total.duration_us == sum(one.duration_us for one in parts)
            assert total.tokens == sum(one.tokens for one in parts)
            means = [one.values[IN][0] for one in parts]  # type: ignore[index]
            slack = 1e-9 * max(means)
            assert min(means) - slack <= total.levels[IN].mean <= max(means) + slack
