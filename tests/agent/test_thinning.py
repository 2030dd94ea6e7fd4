"""What merging samples and windows keeps, and what it must not claim."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import a_turn
from support.spooling import SECOND, event, sample, window

from decodewatch.agent.spool import thinning
from decodewatch.shared import records
from decodewatch.shared.energy import joules_a_token, totals
from decodewatch.shared.records import Phase, Sample, Window

MINUTE_US = 60 * SECOND


def plain(t_s: int, duration_s: int, values: dict[str, records.Measured], **unknown: str) -> Sample:
    return Sample(None, t_s * SECOND, duration_s * SECOND, values, unknown)


def test_adjoining_samples_become_one_of_their_whole_time() -> None:
    (merged,) = thinning.merge(
        [
            plain(10, 10, {"temp": (40, 39, 41), "faults": 5}),
            plain(40, 30, {"temp": (60, 50, 70), "faults": 7}),
        ],
        MINUTE_US,
    )
    assert merged == plain(40, 40, {"temp": (55.0, 39, 70), "faults": 12})


def test_a_counter_that_was_unknown_in_a_part_is_unknown_in_the_whole() -> None:
    (merged,) = thinning.merge(
        [
            plain(10, 10, {"faults": 5, "temp": (40, 39, 41)}),
            plain(20, 10, {}, faults="denied", temp="absent"),
        ],
        MINUTE_US,
    )
    assert isinstance(merged, Sample)
    assert merged.values == {"temp": (40, 39, 41)}
    assert merged.unknown == {"faults": "denied"}


RAIL = "device_watts:VDD_IN"


def phased(t_s: int, **phases: Phase) -> Sample:
    return Sample(None, t_s * SECOND, 10 * SECOND, {}, None, phases)


def test_phases_are_merged_phase_by_phase() -> None:
    (merged,) = thinning.merge(
        [
            phased(10, idle=Phase(8, 0, {RAIL: (2, 1, 3)}), decode=Phase(2, 20, {RAIL: (8, 7, 9)})),
            phased(20, decode=Phase(6, 60, {RAIL: (12, 9, 13)}), prefill=Phase(4, 0, {})),
            plain(30, 10, {}),
        ],
        MINUTE_US,
    )
    assert isinstance(merged, Sample)
    assert merged.phases == {
        "idle": Phase(8, 0, {RAIL: (2, 1, 3)}),
        "prefill": Phase(4, 0, {}),
        "decode": Phase(8, 80, {RAIL: (11.0, 7, 13)}),
    }


def test_power_that_was_unknown_in_a_part_of_a_phase_is_unknown_in_the_whole() -> None:
    (merged,) = thinning.merge(
        [
            phased(10, decode=Phase(10, 20, {RAIL: (2, 1, 3), "gpu_busy_share": (1, 1, 1)})),
            phased(20, decode=Phase(10, 900, {"gpu_busy_share": (0, 0, 0)})),
        ],
        MINUTE_US,
    )
    assert isinstance(merged, Sample)
    assert merged.phases == {"decode": Phase(20, 920, {"gpu_busy_share": (0.5, 0, 1)})}


def test_samples_without_phases_stay_without() -> None:
    (merged,) = thinning.merge([plain(10, 10, {}), plain(20, 10, {})], MINUTE_US)
    assert isinstance(merged, Sample) and merged.phases is None


WATTS = st.floats(0.1, 60).map(lambda watts: (round(watts, 3), 0.0, 100.0))
DECODED = st.builds(
    Phase, st.integers(1, 10**7), st.integers(0, 900), st.fixed_dictionaries({RAIL: WATTS})
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["decode", "idle"]), DECODED), min_size=2, max_size=12
    ),
    st.randoms(use_true_random=False),
)
def test_samples_merged_in_any_order_give_the_same_joules_a_token(
    phases: list[dict[str, Phase]], order: random.Random
) -> None:
    samples: list[records.Record] = [
        phased(10 * number, **one) for number, one in enumerate(phases, start=1)
    ]
    before = totals(phases)
    while len(samples) > 1:
        place = order.randrange(len(samples) - 1)
        samples[place : place + 2] = thinning.merge(samples[place : place + 2], 10 * MINUTE_US)
    (merged,) = samples
    assert isinstance(merged, Sample)
    after = totals([merged.phases or {}])
    assert {name: (one.duration_us, one.tokens) for name, one in after.items()} == {
        name: (one.duration_us, one.tokens) for name, one in before.items()
    }
    energy, expected = joules_a_token(after), joules_a_token(before)
    if isinstance(expected, str):
        assert energy == expected
    else:
        assert energy[0].joules == pytest.approx(expected[0].joules, rel=1e-4)  # type: ignore[union-attr]


def test_samples_with_a_gap_between_them_stay_apart() -> None:
    apart = [plain(10, 10, {"faults": 5}), plain(40, 10, {"faults": 5})]
    assert thinning.merge(apart, MINUTE_US) == apart


def test_merging_stops_at_the_longest_interval() -> None:
    merged = thinning.merge([sample(10 * n) for n in range(1, 13)], MINUTE_US)
    assert [(one.t, one.duration_us) for one in merged if isinstance(one, Sample)] == [
        (60 * SECOND, 60 * SECOND),
        (120 * SECOND, 60 * SECOND),
    ]


def test_windows_of_two_runtimes_do_not_mix() -> None:
    merged = thinning.merge(
        [window(10, "a"), window(10, "b"), window(20, "a"), window(20, "b")], MINUTE_US
    )
    assert [(one.runtime, one.tokens) for one in merged if isinstance(one, Window)] == [
        ("a", 200),
        ("b", 200),
    ]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(1, 700))
def test_windows_keep_every_token_and_sketches_merge_exactly(count: int, longest_s: int) -> None:
    windows = [window(10 * n) for n in range(1, count + 1)]
    merged = thinning.merge(windows, longest_s * SECOND)

    def totals(found: list[records.Record]) -> tuple[int, int, int, int]:
        kept = [one for one in found if isinstance(one, Window)]
        strata = [stratum.itl for one in kept for stratum in one.strata]
        return (
            sum(one.tokens for one in kept),
            sum(one.duration_us for one in kept),
            sum(itl.n for itl in strata),
            sum(itl.total for itl in strata),
        )

    assert totals(merged) == totals(list(windows))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.sampled_from(thinning.LEVELS))
def test_every_level_keeps_all_but_samples_and_windows_and_stays_valid(
    moments: list[int], level: int
) -> None:
    noise = random.Random(len(moments))
    made: list[records.Record] = []
    for moment in moments:
        made += (sample(moment, noise=noise), window(moment), a_turn(f"t{len(made)}"))
        made.append(event(f"e{len(made)}"))
    thin = thinning.thin(made, level)
    dear = [one for one in made if not isinstance(one, (Sample, Window))]
    assert [one for one in thin if not isinstance(one, (Sample, Window))] == dear
    assert thinning.detail(thin) == len(thin) - len(dear)
    for one in thin:
        assert records.from_json(json.loads(json.dumps(records.to_json(one)))) == one
    if level == thinning.LEVELS[-1]:
        assert thin == dear
