"""What merging samples and windows keeps, and what it must not claim."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import a_turn
from support.spooling import SECOND, event, sample, window

from decodewatch.agent.spool import thinning
from decodewatch.shared import records
from decodewatch.shared.records import Sample, Window

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
