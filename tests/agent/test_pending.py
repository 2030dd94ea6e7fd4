"""Records wait in bounded memory; what goes is counted, and such a turn is not acknowledged."""

from collections.abc import Sequence

from support.records import a_sample, a_turn

from decodewatch.agent.pending import MOST_RECORDS, Pending, weight
from decodewatch.agent.spool.files import SpoolError
from decodewatch.shared.records import Event, Floor, Phase, Record, Sample, Turn, Window

SECOND = 1_000_000
FLOOR = Floor("t1", "r1", 1, 1, 1, settled=True)
WINDOW = Window("r1", 1, 1, 1, 1)


class ListSpool:
    """What `Pending` asks of a spool."""

    def __init__(self) -> None:
        self.kept: list[Record] = []
        self.attempts = 0
        self.full = False

    def append(self, records: Sequence[Record]) -> None:
        self.attempts += 1
        if self.full:
            raise SpoolError("disk full")
        self.kept += records


def never() -> None:
    raise AssertionError("must not be called")


def test_records_are_committed_in_order_and_turns_then_acknowledged() -> None:
    spool, stored = ListSpool(), []
    pending = Pending(spool.append, 1 << 20)
    pending.add(FLOOR)
    assert not pending.urgent
    pending.add_turn(a_turn("t1"), lambda: stored.append(len(spool.kept)), never)
    assert pending.urgent
    assert pending.commit(0)
    assert [record.KIND for record in spool.kept] == ["floor", "turn"]
    assert stored == [2]
    assert len(pending) == 0 and not pending.urgent and pending.retry_in_us(0) is None
    assert pending.commit(0) and spool.attempts == 1


def test_what_a_sample_has_by_phase_is_weighed_too() -> None:
    values = {f"power_watts:rail{number}": (1.0, 1.0, 1.0) for number in range(10)}
    plain = Sample(None, 1, 1, values)
    assert weight(plain) > weight(Sample(None, 1, 1, {}))
    phased = Sample(None, 1, 1, values, None, {"decode": Phase(1, 1, values)})
    assert weight(phased) - weight(plain) == weight(plain) - weight(Sample(None, 1, 1, {}))


def test_what_may_wait_for_a_tick_is_not_urgent() -> None:
    pending = Pending(ListSpool().append, 1 << 20)
    pending.add(FLOOR)
    assert not pending.soon
    pending.add(FLOOR, soon=True)
    assert pending.soon and not pending.urgent
    pending.commit(0)
    assert not pending.soon


def test_what_fills_half_of_the_room_is_committed_before_anything_has_to_go() -> None:
    spool = ListSpool()
    pending = Pending(spool.append, 1 << 30)
    for _ in range(3 * MOST_RECORDS):
        pending.add(FLOOR, soon=True)
        if pending.urgent:
            pending.commit(0)
    assert pending.dropped == 0 and 4 <= spool.attempts <= 8
    by_weight = Pending(spool.append, 16 * weight(FLOOR))
    for _ in range(9):
        by_weight.add(FLOOR)
    assert by_weight.urgent and by_weight.dropped == 0


def test_a_failing_spool_is_tried_again_ever_more_rarely() -> None:
    spool = ListSpool()
    spool.full = True
    pending = Pending(spool.append, 1 << 20)
    pending.add_turn(a_turn("t1"), lambda: None, never)
    for second in range(120):
        assert not pending.commit(second * SECOND)
    assert spool.attempts == 8  # at 0, 1, 3, 7, 15, 31, 61 and 91 s
    assert pending.retry_in_us(120 * SECOND) == 1 * SECOND
    spool.full = False
    assert not pending.commit(120 * SECOND)
    assert pending.commit(120 * SECOND, last=True)
    assert len(spool.kept) == 1


def test_the_oldest_samples_go_first_then_windows_and_turns_last() -> None:
    pending = Pending(ListSpool().append, 64 * 1024)
    went: list[str] = []
    pending.add_turn(a_turn("t0"), never, lambda: went.append("t0"))
    for record in (a_sample(), WINDOW, FLOOR) * 3:
        pending.add(record)

    def kinds() -> set[str]:
        return {record.KIND for record in pending._records}

    turn = 0
    seen = [kinds()]
    while not went:
        turn += 1
        pending.add_turn(a_turn(f"t{turn}"), never, lambda turn=turn: went.append(f"t{turn}"))  # type: ignore[misc]
        if kinds() != seen[-1]:
            seen.append(kinds())
    assert seen == [
        {"turn", "sample", "window", "floor"},
        {"turn", "window", "floor"},
        {"turn", "floor"},
        {"turn"},
    ]
    assert went == ["t0"]
    assert pending.dropped == 3 * 3 + 1
    assert pending._weight <= 64 * 1024


def test_the_number_of_records_is_bounded_too() -> None:
    spool = ListSpool()
    pending = Pending(spool.append, 1 << 30)
    for number in range(MOST_RECORDS + 5):
        pending.add(Event(f"e{number}", 1, "clock_stepped"))
    assert pending.dropped == 5
    pending.commit(0)
    assert spool.kept[0] == Event("e5", 1, "clock_stepped")
    assert pending._weight == 0


def test_a_turn_that_waits_can_be_claimed_by_another_connection() -> None:
    spool, stored = ListSpool(), []
    pending = Pending(spool.append, 1 << 20)
    assert not pending.waits("t1", never, never)
    pending.add_turn(a_turn("t1"), never, never)
    assert pending.waits("t1", lambda: stored.append("second"), never)
    pending.commit(0)
    assert stored == ["second"]
    assert [type(record) for record in spool.kept] == [Turn]
    assert not pending.waits("t1", never, never)


def test_samples_survive_a_short_failure() -> None:
    spool = ListSpool()
    spool.full = True
    pending = Pending(spool.append, 1 << 20)
    for second in range(1, 6):
        pending.add(a_sample(second * SECOND))
        pending.commit(second * SECOND)
    spool.full = False
    assert pending.commit(60 * SECOND)
    assert [record.t for record in spool.kept if isinstance(record, Sample)] == [
        second * SECOND for second in range(1, 6)
    ]
