"""Where a boot lies in the calendar, from what its clocks say."""

from hypothesis import given
from hypothesis import strategies as st
from support.collecting import WALL

from decodewatch.collector.storage.placement import AHEAD_US, JITTER_US, Placement, place
from decodewatch.shared.wire import Clock

SECOND = 1_000_000


def test_a_synchronised_clock_places_a_boot() -> None:
    assert place(None, Clock(5, WALL + 5, True), WALL + 99) == Placement(WALL, "clock", 5)


def test_a_boot_that_believes_in_1970_is_placed_by_receipt_and_moves_when_it_learns_the_time() -> (
    None
):
    first = place(None, Clock(10 * SECOND, 12 * SECOND, False), WALL + 40 * SECOND)
    assert first == Placement(WALL + 30 * SECOND, "receipt", None)
    assert place(first, Clock(60 * SECOND, WALL + 60 * SECOND, True), WALL) == Placement(
        WALL, "clock", 60 * SECOND
    )


def test_of_several_receipts_the_least_delayed_counts() -> None:
    placement = None
    for delay in (30, 600, 3, 90):
        placement = place(placement, Clock(SECOND, 0, False), WALL + SECOND + delay * SECOND)
    assert placement == Placement(WALL + 3 * SECOND, "receipt", None)


def test_a_clock_that_is_not_synchronised_does_not_move_a_boot_that_was() -> None:
    placed = place(None, Clock(5, WALL + 5, True), WALL)
    assert place(placed, Clock(9, 0, False), WALL - 100 * SECOND) == placed


@given(st.integers(-JITTER_US, JITTER_US))
def test_a_boot_is_not_moved_by_jitter(jitter: int) -> None:
    placed = place(None, Clock(5, WALL + 5, True), WALL)
    again = place(placed, Clock(50, WALL + 50 + jitter, True), WALL)
    assert again == Placement(WALL, "clock", 50)


def test_a_clock_that_is_far_ahead_of_the_servers_is_not_believed() -> None:
    mad = Clock(5, (1 << 53) - 1, True)
    assert place(None, mad, WALL) == Placement(WALL - 5, "receipt", None)
    ahead = Clock(5, WALL + AHEAD_US, True)
    assert place(None, ahead, WALL).placed == "clock"
    placed = place(None, Clock(5, WALL + 5, True), WALL)
    assert place(placed, Clock(99, (1 << 53) - 1, True), WALL) == placed


def test_the_newest_synchronised_reading_counts_not_the_one_that_arrives_last() -> None:
    new, old = Clock(200, WALL + 200 + 5 * SECOND, True), Clock(100, WALL + 100, True)
    assert place(place(None, new, WALL), old, WALL).offset_us == WALL + 5 * SECOND
    assert place(place(None, old, WALL), new, WALL).offset_us == WALL + 5 * SECOND
