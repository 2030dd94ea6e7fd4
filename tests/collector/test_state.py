"""The current state of a device does not depend on the order in which messages arrive."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.collecting import WALL
from support.records import a_sample, a_turn

from decodewatch.collector.storage import state
from decodewatch.shared.wire import Clock, Status

STATUSES = st.lists(
    st.tuples(st.integers(0, 3), st.booleans()).map(lambda it: a_status(it[0], online=it[1])),
    min_size=1,
    max_size=4,
)


def a_status(connection: int, *, online: bool) -> Status:
    return Status("device-1", online, connection, "0.1.0", f"boot-{connection}", None)


def heard(*statuses: Status, retained: bool = False) -> dict[str, Any]:
    row = state.unseen("device-1", WALL)
    for place, status in enumerate(statuses):
        state.hear(row, status, WALL + place, retained=retained)
    return row


@given(STATUSES)
def test_the_order_of_retained_statuses_does_not_matter(statuses: list[Status]) -> None:
    ends = {
        (row["online"], row["connection"])
        for row in (heard(*some, retained=True) for some in permutations(statuses))
    }
    assert len(ends) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.data())
def test_two_collectors_end_with_the_same_row_however_they_take_turns(
    connections: list[int], data: st.DataObject
) -> None:
    # Each connection begins with `online`; its will comes at any time after that.
    statuses = [a_status(number, online=True) for number in connections]
    for number in data.draw(st.lists(st.sampled_from(connections), unique=True)):
        begun = statuses.index(a_status(number, online=True))
        place = data.draw(st.integers(begun + 1, len(statuses)))
        statuses.insert(place, a_status(number, online=False))
    alone = heard(*statuses)
    one, two = list(statuses), list(statuses)
    merged = []
    while one or two:
        chosen = one if one and (not two or data.draw(st.booleans())) else two
        merged.append(chosen.pop(0))
    together = heard(*merged)
    assert (together["online"], together["connection"]) == (alone["online"], alone["connection"])


def test_a_late_will_of_an_older_connection_does_not_put_a_device_out() -> None:
    row = heard(a_status(1, online=True), a_status(2, online=True), a_status(1, online=False))
    assert row["online"]
    assert row["connection"] == 2
    assert row["boot"] == "boot-2"


def test_the_will_of_the_current_connection_puts_it_out() -> None:
    assert not heard(a_status(2, online=True), a_status(2, online=False))["online"]


def test_a_device_that_counts_anew_is_believed_when_it_says_so_itself() -> None:
    far, new = a_status(9_000, online=False), a_status(5, online=True)
    row = heard(far, new)
    assert (row["online"], row["connection"], row["boot"]) == (True, 5, "boot-5")
    assert not heard(far, new, a_status(5, online=False))["online"]
    assert heard(far, new, a_status(4, online=False))["online"], "a late will"


@pytest.mark.parametrize(
    ("clock", "believed"),
    [
        (None, False),
        (Clock(1, WALL + 1, True), True),
        (Clock(1, WALL, True), False),
        (Clock(1, WALL + 1, False), False),
    ],
)
def test_a_retained_status_that_counts_anew_needs_a_clock_that_vouches_for_it(
    clock: Clock | None, believed: bool
) -> None:
    row = heard(a_status(9_000, online=False))
    new = Status("device-1", True, 5, "0.1.0", "boot-5", clock)
    state.hear(row, new, WALL + 9, retained=True)
    assert row["online"] is believed


def test_the_first_connection_may_have_any_number() -> None:
    assert heard(a_status(0, online=True))["online"]


def test_a_retained_status_says_nothing_about_when_the_device_was_there() -> None:
    row = state.unseen("device-1", WALL)
    state.hear(row, a_status(1, online=True), WALL + 500, retained=True)
    assert row["online"]
    assert row["last_received_at"] == WALL


def test_a_retained_status_that_is_known_changes_nothing() -> None:
    row = heard(a_status(1, online=True))
    before = dict(row)
    state.hear(row, a_status(1, online=True), WALL + 9_000_000, retained=True)
    assert row == before


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_newest_sample_and_turn_are_shown_whichever_comes_last(order: tuple[int, int]) -> None:
    row = state.unseen("device-1", WALL)
    for place in order:
        at = WALL + place * 1_000_000
        state.take_sample(row, a_sample(mem_total_bytes=(float(place), 1, 9)), at)
        state.take_turn(row, a_turn(f"turn-{place}"), at)
    assert row["memory_total_bytes"] == 2
    assert row["sample_at"] == WALL + 2_000_000
    assert row["turn_id"] == "turn-2"
    assert row["turn_at"] == WALL + 2_000_000 + 2_900_000


def test_a_turn_that_began_earlier_and_ended_later_is_the_newest() -> None:
    row = state.unseen("device-1", WALL)
    state.take_turn(row, a_turn("long", duration_us=60_000_000), WALL)
    state.take_turn(row, a_turn("short", duration_us=1_000_000), WALL + 1_000_000)
    assert row["turn_id"] == "long"


def test_the_hottest_sensor_is_one_of_the_chip() -> None:
    values = {
        "temp_celsius:PMIC-Die": (100.0, 100.0, 100.0),
        "temp_celsius:cpu-thermal": (71.0, 60.0, 90.0),
        "temp_celsius:gpu-thermal": (72.5, 70.0, 75.0),
        "swap_total_bytes": (100.0, 100.0, 100.0),
        "swap_free_bytes": (60.0, 60.0, 60.0),
    }
    columns = state.sample_columns(WALL, values)
    assert (columns["hottest_label"], columns["hottest_celsius"]) == ("gpu-thermal", 72.5)
    assert columns["swap_used_bytes"] == 40


@pytest.mark.parametrize("value", [1e300, -5.0, (1e19, 0, 0)])
def test_a_size_that_cannot_be_one_is_not_known(value: Any) -> None:
    assert state.sample_columns(WALL, {"mem_total_bytes": value})["memory_total_bytes"] is None


@pytest.mark.parametrize(
    ("shares", "held"),
    [
        ({"thermal": (0.4, 0, 1), "power": (0.0, 0, 0)}, "thermal"),
        ({"thermal": (0.1, 0, 1), "over_current": (0.2, 0, 1)}, "over_current"),
        ({"thermal": (0.0, 0, 0), "power": (0.0, 0, 0)}, "none"),
        ({}, None),
    ],
)
def test_the_throttle_state_is_that_of_the_newest_sample(shares: Any, held: str | None) -> None:
    row = state.unseen("device-1", WALL)
    hot: dict[str, Any] = {"throttled_share:thermal": (1.0, 1, 1)}
    state.take_sample(row, a_sample(**hot), WALL)
    assert row["throttle"] == "thermal"
    values: dict[str, Any] = {f"throttled_share:{label}": share for label, share in shares.items()}
    state.take_sample(row, a_sample(**values), WALL + 10_000_000)
    assert row["throttle"] == held
    state.take_sample(row, a_sample(**hot), WALL + 5_000_000)
    assert row["throttle"] == held, "an older sample"


def test_what_a_sample_does_not_say_is_not_known() -> None:
    columns = state.sample_columns(WALL, {})
    assert columns.pop("sample_at") == WALL
    assert set(columns.values()) == {None}
