"""What a device is stands in its row: the newest description, however the records arrive."""

from itertools import permutations
from typing import Any

import pytest
from sqlalchemy import Engine, select
from support.collecting import SYNCHRONISED, WALL, a_batch

from decodewatch.collector import database
from decodewatch.collector.storage import state
from decodewatch.collector.storage.arrivals import Message, read
from decodewatch.collector.storage.store import Store
from decodewatch.shared import tables, wire
from decodewatch.shared.devices import DESCRIBED
from decodewatch.shared.records import Event, Scalar
from decodewatch.shared.wire import Batch, Clock

SECOND = 1_000_000


def described(t_s: int, mode: str, kind: str = DESCRIBED) -> Event:
    data: dict[str, Scalar] = {
        "model": "Jetson Orin Nano",
        "power_mode": mode,
        "memory_bytes": 8 << 30,
    }
    return Event(f"event-{t_s}-{kind}", t_s * SECOND, kind, data=data)


@pytest.fixture
def store(engine: Engine) -> Store:
    return Store(engine, letter_rows=20, letter_bytes=16)


def write(store: Store, *batches: Batch, at: int = WALL) -> None:
    store.write(
        [
            read(Message.of(wire.topic(batch.device, "up"), wire.encode_batch(batch), at))
            for batch in batches
        ]
    )


def row(engine: Engine) -> dict[str, Any]:
    with database.reading(engine) as connection:
        (found,) = connection.execute(select(tables.device_state)).mappings()
        return dict(found)


def test_the_newest_description_stays_whatever_the_order() -> None:
    events = [described(1, "A"), described(2, "B"), described(3, "C"), described(9, "D", "other")]
    for some in permutations(events):
        found = state.unseen("device-1", WALL)
        for event in some:
            state.take_event(found, event, WALL + event.t)
        assert found["described_at"] == WALL + 3 * SECOND
        assert found["description"]["power_mode"] == "C"


def test_other_events_describe_nothing() -> None:
    found = state.unseen("device-1", WALL)
    state.take_event(found, described(1, "A", "power_mode_changed"), WALL)
    assert (found["described_at"], found["description"]) == (None, None)


def test_a_description_is_stored_with_the_batch_that_brings_it(
    engine: Engine, store: Store
) -> None:
    write(store, a_batch(1, [described(5, "MAXN"), described(6, "15W")]))
    assert row(engine)["description"] == described(6, "15W").data
    assert row(engine)["described_at"] == WALL + 6 * SECOND
    # Late, and older: an agent that was away for a while sends what it has kept.
    write(store, a_batch(2, [described(4, "7W")]))
    assert row(engine)["description"]["power_mode"] == "15W"
    write(store, a_batch(3, [Event("e", 9 * SECOND, "agent_started", data={"version": "1"})]))
    assert row(engine)["described_at"] == WALL + 6 * SECOND


def test_a_device_that_said_nothing_of_itself_has_no_description(
    engine: Engine, store: Store
) -> None:
    write(store, a_batch(1))
    assert (row(engine)["described_at"], row(engine)["description"]) == (None, None)


def test_a_boot_that_is_moved_takes_its_description_along(engine: Engine, store: Store) -> None:
    unset = Clock(60 * SECOND, 60 * SECOND, False)  # the clock says 1970
    write(store, a_batch(1, [described(5, "MAXN")], clock=unset), at=WALL + 600 * SECOND)
    assert row(engine)["described_at"] == WALL + 545 * SECOND
    write(store, a_batch(2, [described(50, "15W")], clock=SYNCHRONISED), at=WALL + 601 * SECOND)
    found = row(engine)
    assert (found["described_at"], found["description"]["power_mode"]) == (
        WALL + 50 * SECOND,
        "15W",
    )
