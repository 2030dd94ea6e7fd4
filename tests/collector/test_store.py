"""The store, on SQLite and PostgreSQL: everything once, in one transaction, in its place."""

import dataclasses
import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, Table, func, select, text
from support.collecting import SYNCHRONISED, WALL, a_batch
from support.records import BATCHES, a_sample, a_turn

from decodewatch.collector import database
from decodewatch.collector.errors import ServerError
from decodewatch.collector.storage.arrivals import Arrival, Delivery, Heard, Message, read
from decodewatch.collector.storage.store import RetryLater, Store, Tally, Written
from decodewatch.shared import tables, wire
from decodewatch.shared.records import Event, Floor, Record, Runtime, Stratum, Window
from decodewatch.shared.sketch import Sketch
from decodewatch.shared.wire import Acknowledged, Clock, Status

SECOND = 1_000_000


@pytest.fixture
def store(engine: Engine) -> Store:
    return Store(engine, letter_rows=20, letter_bytes=16)


def arriving(batch: wire.Batch, at: int = WALL) -> Arrival:
    return read(Message.of(wire.topic(batch.device, "up"), wire.encode_batch(batch), at))


def heard(status: Status, at: int = WALL, *, retained: bool = False) -> Arrival:
    topic = wire.topic(status.device, "status")
    return read(Message.of(topic, wire.encode_status(status), at, retained=retained))


def write(store: Store, *batches: wire.Batch, at: int = WALL) -> Written:
    return store.write([arriving(batch, at) for batch in batches])


def all_rows(engine: Engine, table: Table) -> list[dict[str, Any]]:
    with database.reading(engine) as connection:
        ordered = select(table).order_by(*table.primary_key)
        return [dict(row) for row in connection.execute(ordered).mappings()]


def one_row(engine: Engine, table: Table) -> dict[str, Any]:
    (row,) = all_rows(engine, table)
    return row


def counts(engine: Engine) -> dict[str, int]:
    return {
        table.name: len(all_rows(engine, table))
        for table in tables.metadata.sorted_tables
        if all_rows(engine, table)
    }


def records_of_every_kind() -> Sequence[Record]:
    sketch = Sketch.of([38_000] * 9)
    return [
        Runtime("runtime-1", 4_000_000, 77, "chat", "llama.cpp", "b1", None, {"n_ctx": 4096}),
        a_turn("turn-1"),
        Floor("turn-1", "runtime-1", 9_000_000, 400_000_000, 3, True),
        Window("runtime-1", 10_000_000, 10_000_000, 64, 64, (Stratum(7, 1, "none", sketch),)),
        a_sample(),
        dataclasses.replace(a_sample(), runtime="runtime-1", unknown={"vm_swap_bytes": "denied"}),
        Event("event-1", 3_000_000, "agent_started", data={"version": "0.1.0"}),
    ]


def test_every_kind_of_record_is_stored_at_its_place(engine: Engine, store: Store) -> None:
    write(store, a_batch(1, records_of_every_kind()))
    expected = {"boot", "device_state", "event", "floor", "runtime", "stream", "turn", "window"}
    assert counts(engine) == dict.fromkeys(expected, 1) | {"sample": 2}
    for table in tables.PLACED:
        for row in all_rows(engine, table):
            assert row["at"] == WALL + row["t"], table.name
    turn = one_row(engine, tables.turn)
    assert Sketch.from_json(turn["itl"][0][1]).n == 56
    assert turn["tpot_us"] == 38_000.0
    assert turn["error"] is None
    window = one_row(engine, tables.window)
    assert window["strata"][0][:3] == [7, 1, "none"]
    system, process = all_rows(engine, tables.sample)
    assert (system["runtime"], process["runtime"]) == ("", "runtime-1")
    assert system["values"]["temp_celsius:cpu-thermal"] == [61.5, 60.0, 63.0]
    assert (system["unknown"], process["unknown"]) == (None, {"vm_swap_bytes": "denied"})


def test_what_is_not_known_is_null_in_the_database_too(engine: Engine, store: Store) -> None:
    write(store, a_batch(1, records_of_every_kind()))
    with engine.connect() as connection:
        for table, column in (("runtime", "model"), ("sample", "unknown")):
            found = connection.execute(
                text(f'SELECT count(*) FROM "{table}" WHERE {column} IS NULL')
            )
            assert found.scalar_one() == 1, column


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(BATCHES, min_size=1, max_size=4))
def test_any_valid_batch_is_stored(engine: Engine, store: Store, batches: list[wire.Batch]) -> None:
    with engine.begin() as connection:
        for table in tables.metadata.sorted_tables:
            connection.execute(table.delete())
    write(store, *batches)
    refused = sum(row["refused"] for row in all_rows(engine, tables.stream))
    assert bool(all_rows(engine, tables.dead_letter)) is bool(refused)
    distinct = {(batch.device, batch.stream, batch.number) for batch in batches}
    assert sum(row["received"] for row in all_rows(engine, tables.stream)) == len(distinct)


def test_a_batch_is_acknowledged_by_stream_and_number(store: Store) -> None:
    written = write(
        store, *(a_batch(number) for number in (1, 2, 5)), a_batch(1, stream="other"),
        a_batch(9, device="device-2"),
    )  # fmt: skip
    assert written.by_device() == {
        "device-1": [
            Acknowledged("stream-1", ((1, 2), (5, 5))),
            Acknowledged("other", ((1, 1),)),
        ],
        "device-2": [Acknowledged("stream-1", ((9, 9),))],
    }


@pytest.mark.parametrize("together", [True, False])
def test_a_batch_that_comes_twice_is_stored_once_and_acknowledged_twice(
    engine: Engine, store: Store, together: bool
) -> None:
    if together:
        total = write(store, a_batch(), a_batch()).tally
    else:
        total = write(store, a_batch()).tally
        again = write(store, a_batch())
        assert again.by_device() == {"device-1": [Acknowledged("stream-1", ((1, 1),))]}
        total.add(again.tally)
    assert total == Tally(stored=1, duplicate=1, records=1)
    stream = one_row(engine, tables.stream)
    assert (stream["received"], stream["duplicate"], stream["records"]) == (1, 1, 1)
    assert len(all_rows(engine, tables.turn)) == 1


def test_a_turn_that_comes_in_two_streams_is_stored_once(engine: Engine, store: Store) -> None:
    # The agent died before its spool acknowledged the turn, and the application sent it again.
    turn = a_turn("the-turn")
    write(store, a_batch(1, [turn]), a_batch(1, [turn], stream="stream-2", previous="stream-1"))
    assert len(all_rows(engine, tables.turn)) == 1
    assert [row["previous"] for row in all_rows(engine, tables.stream)] == [None, "stream-1"]


def test_batches_out_of_order_fill_their_holes(engine: Engine, store: Store) -> None:
    write(store, a_batch(1), a_batch(4))
    stream = one_row(engine, tables.stream)
    assert (stream["watermark"], stream["ranges"], stream["missing"]) == (1, [[4, 4]], 2)
    write(store, a_batch(3), a_batch(2))
    stream = one_row(engine, tables.stream)
    assert (stream["watermark"], stream["ranges"], stream["missing"]) == (4, [], 0)
    assert stream["late"] == 2


def an_eviction(first: Any, last: Any, stream: Any = "stream-1") -> Event:
    data = {"stream": stream, "first": first, "last": last, "records": 40, "turns": 0}
    return Event(f"evicted-{first}", 6_000_000, "spool_evicted", data=data)


def test_what_a_device_gave_up_is_evicted_and_not_missing(engine: Engine, store: Store) -> None:
    write(store, a_batch(1), a_batch(10, [an_eviction(2, 7)]))
    stream = one_row(engine, tables.stream)
    assert (stream["missing"], stream["evicted_count"], stream["evicted"]) == (2, 6, [[2, 7]])
    write(store, a_batch(5))
    stream = one_row(engine, tables.stream)
    assert (stream["evicted_count"], stream["evicted"]) == (5, [[2, 4], [6, 7]])
    assert len(all_rows(engine, tables.turn)) == 2, "what arrives after all is stored"


def test_a_stream_of_which_nothing_arrived_can_be_evicted(engine: Engine, store: Store) -> None:
    write(store, a_batch(1, [an_eviction(1, 9, "old")], stream="stream-2", previous="old"))
    old, _ = all_rows(engine, tables.stream)
    assert (old["stream"], old["received"], old["evicted_count"]) == ("old", 0, 9)


@pytest.mark.parametrize(
    ("first", "last", "stream"),
    [(0, 5, "s"), (5, 4, "s"), (1, 2, ""), (1.5, 2, "s"), ("1", "2", 3)],
)
def test_an_eviction_that_says_nothing_is_stored_as_an_event_only(
    engine: Engine, store: Store, first: Any, last: Any, stream: Any
) -> None:
    write(store, a_batch(1, [an_eviction(first, last, stream)]))
    assert one_row(engine, tables.stream)["evicted_count"] == 0
    assert len(all_rows(engine, tables.event)) == 1


def test_a_boot_in_1970_moves_to_its_place_when_the_device_learns_the_time(
    engine: Engine, store: Store
) -> None:
    lost = Clock(60 * SECOND, 61 * SECOND, False)
    write(store, a_batch(1, records_of_every_kind(), clock=lost), at=WALL + 100 * SECOND)
    boot = one_row(engine, tables.boot)
    assert (boot["placed"], boot["offset_us"]) == ("receipt", WALL + 40 * SECOND)
    state = one_row(engine, tables.device_state)
    assert state["clock_synchronised"] is False
    assert state["sample_at"] == WALL + 50 * SECOND
    write(store, a_batch(2, clock=SYNCHRONISED), at=WALL + 200 * SECOND)
    boot = one_row(engine, tables.boot)
    assert (boot["placed"], boot["offset_us"]) == ("clock", WALL)
    for table in tables.PLACED:
        for row in all_rows(engine, table):
            assert row["at"] == WALL + row["t"], table.name
    state = one_row(engine, tables.device_state)
    assert state["clock_synchronised"] is True
    assert state["sample_at"] == WALL + 10 * SECOND
    assert (state["turn_id"], state["turn_at"]) == ("stream-1-2", WALL + 7_900_002)


def test_only_the_boot_that_learns_the_time_is_moved(engine: Engine, store: Store) -> None:
    lost = Clock(60 * SECOND, 61 * SECOND, False)
    write(store, a_batch(1, boot="other", clock=lost), a_batch(2, boot="boot-1", clock=lost))
    before = {row["turn"]: row["at"] for row in all_rows(engine, tables.turn)}
    write(store, a_batch(3, boot="boot-1"))
    after = {row["turn"]: row["at"] for row in all_rows(engine, tables.turn)}
    assert after["stream-1-1"] == before["stream-1-1"]
    assert after["stream-1-2"] != before["stream-1-2"]


def test_the_status_after_a_reconnection_places_what_waited_in_the_spool(
    engine: Engine, store: Store
) -> None:
    # A batch that was made at 60 s and waited an hour; the status is fresh.
    lost = Clock(60 * SECOND, 61 * SECOND, False)
    write(store, a_batch(1, clock=lost), at=WALL + 3660 * SECOND)
    fresh = Clock(3661 * SECOND, 3662 * SECOND, False)
    store.write([heard(Status("device-1", True, 1, None, "boot-1", fresh), WALL + 3661 * SECOND)])
    assert one_row(engine, tables.boot)["offset_us"] == WALL
    assert one_row(engine, tables.turn)["at"] == WALL + 5_000_001


def shared(engine: Engine) -> list[dict[str, Any]]:
    """What the events say that tell of two devices with one id."""
    rows = all_rows(engine, tables.event)
    return [row["data"] for row in rows if row["event"] == "device_id_shared"]


def test_two_streams_with_one_predecessor_show_two_devices_with_one_id(
    engine: Engine, store: Store
) -> None:
    write(store, a_batch(1), a_batch(1, stream="stream-2", previous="stream-1"))
    write(store, a_batch(2, stream="stream-2", previous="stream-1"), a_batch(1, device="device-2"))
    write(store, a_batch(1, stream="stream-3", previous="stream-2"))
    assert shared(engine) == []
    write(store, a_batch(1, stream="clone", previous="stream-1"), at=WALL + SECOND)
    names = {"stream": "clone", "other_stream": "stream-2", "previous": "stream-1"}
    assert shared(engine) == [names]
    (event,) = all_rows(engine, tables.event)
    assert (event["device"], event["at"]) == ("device-1", WALL + SECOND)
    write(store, a_batch(1, stream="clone-2", previous="stream-1"), at=WALL + 2 * SECOND)
    assert len(shared(engine)) == 1, "one an hour"
    write(store, a_batch(1, stream="clone-3", previous="stream-1"), at=WALL + 3700 * SECOND)
    assert len(shared(engine)) == 2


def booted(boot: str, number: int, began_s: int, ran_s: int, synchronised: bool = True) -> Any:
    clock = Clock(ran_s * SECOND, WALL + (began_s + ran_s) * SECOND, synchronised)
    return a_batch(number, stream=f"of-{boot}", boot=boot, clock=clock)


def test_two_boots_that_run_at_once_show_two_devices_with_one_id(
    engine: Engine, store: Store
) -> None:
    write(store, booted("a", 1, 0, 100), booted("b", 1, 200, 10))
    write(store, booted("a", 2, 0, 190), booted("b", 2, 200, 60))
    assert shared(engine) == [], "what waited in the spool comes late"
    write(store, booted("a", 3, 0, 250))
    assert shared(engine) == [], "clocks step"
    write(store, booted("c", 1, 0, 900, synchronised=False))
    assert shared(engine) == [], "nobody knows when that was"
    write(store, booted("a", 4, 0, 300))
    assert shared(engine) == [{"boot": "a", "other_boot": "b"}]


def test_jitter_leaves_records_where_they_are(engine: Engine, store: Store) -> None:
    write(store, a_batch(1))
    jittered = Clock(SYNCHRONISED.t + SECOND, SYNCHRONISED.wall + SECOND + 900_000, True)
    write(store, a_batch(2, clock=jittered))
    assert one_row(engine, tables.boot)["offset_us"] == WALL
    assert [row["at"] - row["t"] for row in all_rows(engine, tables.turn)] == [WALL, WALL]


def test_a_device_is_unknown_until_its_status_is_heard(engine: Engine, store: Store) -> None:
    write(store, a_batch())
    state = one_row(engine, tables.device_state)
    assert (state["connection"], state["status_at"], state["online"]) == (-1, None, False)
    store.write([heard(Status("device-1", True, 0, "0.1.0", "boot-1", SYNCHRONISED), WALL + 5)])
    state = one_row(engine, tables.device_state)
    assert (state["connection"], state["status_at"], state["online"]) == (0, WALL + 5, True)
    assert (state["agent_version"], state["boot"]) == ("0.1.0", "boot-1")


def test_a_duplicate_shows_that_the_device_is_there(engine: Engine, store: Store) -> None:
    write(store, a_batch(), at=WALL)
    write(store, a_batch(), at=WALL + 7)
    assert one_row(engine, tables.device_state)["last_received_at"] == WALL + 7


def test_a_runtime_that_changes_replaces_what_was_known_of_it(engine: Engine, store: Store) -> None:
    def runtime(t: int, version: str) -> Runtime:
        return Runtime("runtime-1", t, 77, "chat", "llama.cpp", version, None, None)

    write(store, a_batch(1, [runtime(5, "new")]))
    write(store, a_batch(2, [runtime(4, "old")]))
    assert one_row(engine, tables.runtime)["engine_version"] == "new"
    write(store, a_batch(3, [runtime(6, "newer"), runtime(5, "new")]))
    assert one_row(engine, tables.runtime)["engine_version"] == "newer"


def test_records_that_are_not_valid_make_one_dead_letter_and_the_others_are_stored(
    engine: Engine, store: Store
) -> None:
    value = wire.unpack(wire.encode_batch(a_batch()))
    value["records"] += [{"kind": "turn"}, {"kind": "mystery"}]
    message = Message.of("decodewatch/1/device-1/up", json.dumps(value).encode(), WALL)
    for _ in range(2):
        written = store.write([read(message)])
        assert written.by_device() == {"device-1": [Acknowledged("stream-1", ((1, 1),))]}
    found = one_row(engine, tables.dead_letter)
    assert found["reason"].startswith("2 of 3 records refused: records[1]: turn.")
    assert "mystery" in found["reason"]
    stream = one_row(engine, tables.stream)
    assert (stream["received"], stream["records"], stream["refused"]) == (1, 1, 2)
    assert len(all_rows(engine, tables.turn)) == 1


def test_a_batch_that_cannot_be_read_is_put_aside_once_and_acknowledged(
    engine: Engine, store: Store
) -> None:
    value = wire.unpack(wire.encode_batch(a_batch(3))) | {"clock": "noon"}
    message = Message.of("decodewatch/1/device-1/up", json.dumps(value).encode(), WALL)
    for _ in range(2):
        written = store.write([read(message)])
        assert written.by_device() == {"device-1": [Acknowledged("stream-1", ((3, 3),))]}
    found = one_row(engine, tables.dead_letter)
    assert (found["device"], found["size"]) == ("device-1", len(message.payload))
    assert found["payload"] == message.payload[:16]
    stream = one_row(engine, tables.stream)
    assert (stream["received"], stream["duplicate"], stream["records"]) == (1, 1, 0)


def test_a_letter_of_nobody_is_kept_and_makes_no_device(engine: Engine, store: Store) -> None:
    message = Message.of("decodewatch/1/a\0 \ud800b/up", b"\0\xff", WALL)
    assert store.write([read(message)]).by_device() == {}
    assert one_row(engine, tables.dead_letter)["device"] == ""
    assert all_rows(engine, tables.device_state) == []


def test_dead_letters_are_bounded_and_the_newest_stay(engine: Engine, store: Store) -> None:
    for place in range(200):
        store.write([read(Message.of("decodewatch/1/d/up", b"%d" % place, WALL + place))])
    kept = {row["received_at"] - WALL for row in all_rows(engine, tables.dead_letter)}
    assert 20 <= len(kept) <= 23
    assert kept == set(range(200 - len(kept), 200))


def _refuse(engine: Engine, turn: str) -> None:
    """Make the database refuse one turn, as a value that it cannot hold would."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(
                text(
                    "CREATE TRIGGER refuse BEFORE INSERT ON turn WHEN NEW.turn = "
                    f"'{turn}' BEGIN SELECT RAISE(ABORT, 'no such turn here'); END"
                )
            )
        else:
            check = f"ALTER TABLE turn ADD CONSTRAINT refuse CHECK (turn <> '{turn}')"
            connection.execute(text(check))


def test_a_batch_that_the_database_refuses_costs_itself_alone(engine: Engine, store: Store) -> None:
    _refuse(engine, "stream-1-2")
    written = write(store, *(a_batch(number) for number in (1, 2, 3)))
    assert written.by_device() == {"device-1": [Acknowledged("stream-1", ((1, 3),))]}
    stored = [row["turn"] for row in all_rows(engine, tables.turn)]
    assert stored == ["stream-1-1", "stream-1-3"]
    assert "not storable: IntegrityError" in one_row(engine, tables.dead_letter)["reason"]
    assert one_row(engine, tables.stream)["missing"] == 0


def test_a_defect_that_one_batch_meets_costs_that_batch_alone(engine: Engine, store: Store) -> None:
    good, bad = arriving(a_batch(1)), arriving(a_batch(2))
    assert isinstance(bad, Delivery)
    object.__setattr__(bad.received.batch.records[0], "itl", 5)  # as a defect elsewhere would
    written = store.write([good, bad])
    assert written.by_device() == {"device-1": [Acknowledged("stream-1", ((1, 2),))]}
    assert [row["turn"] for row in all_rows(engine, tables.turn)] == ["stream-1-1"]
    assert "TypeError" in one_row(engine, tables.dead_letter)["reason"]


def test_what_fails_leaves_nothing_of_its_transaction(engine: Engine, store: Store) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE device_state RENAME TO away"))
    with pytest.raises(RetryLater):
        write(store, a_batch(1), a_batch(2))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO device_state"))
    assert counts(engine) == {}
    assert write(store, a_batch(1), a_batch(2)).tally.stored == 2


def test_two_collectors_that_get_the_same_batches_store_them_once(engine: Engine) -> None:
    # Many streams of few devices, in different orders: whoever locks in another order would wait
    # for the other one for ever.
    batches = [
        a_batch(number, stream=f"stream-{stream}", device=f"device-{device}", boot=f"boot-{stream}")
        for number in (1, 2) for stream in range(5) for device in range(3)
    ]  # fmt: skip
    orders: list[Iterable[wire.Batch]] = [batches, reversed(batches), batches[7:] + batches[:7]]
    totals: list[Tally] = []

    def collect(order: Iterable[wire.Batch]) -> None:
        own = database.open_engine(engine.url.render_as_string(hide_password=False))
        one = Store(own, letter_rows=10, letter_bytes=10)
        total = Tally()
        items = list(order)
        for start in range(0, len(items), 10):
            while True:
                try:
                    total.add(write(one, *items[start : start + 10]).tally)
                    break
                except RetryLater:
                    continue
        totals.append(total)
        own.dispose()

    threads = [threading.Thread(target=collect, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(total.stored for total in totals) == len(batches)
    assert sum(total.duplicate for total in totals) == 2 * len(batches)
    assert sum(row["received"] for row in all_rows(engine, tables.stream)) == len(batches)
    with engine.connect() as connection:
        turns = connection.execute(select(func.count()).select_from(tables.turn)).scalar_one()
    assert turns == len({(b.device, b.stream, b.number) for b in batches})


def test_a_large_group_of_many_devices_is_stored(engine: Engine, store: Store) -> None:
    write(store, *(a_batch(1, device=f"device-{number}") for number in range(1000)))
    assert len(all_rows(engine, tables.device_state)) == 1000


def test_a_status_that_cannot_be_stored_is_put_aside(engine: Engine, store: Store) -> None:
    item = heard(Status("device-1", True, 1, None, None, None))
    assert isinstance(item, Heard)
    object.__setattr__(item.status, "connection", "x")
    store.write([item])
    assert "not storable" in one_row(engine, tables.dead_letter)["reason"]


def test_a_database_that_was_removed_is_noticed_before_anything_is_acknowledged(
    sqlite: Engine,
) -> None:
    store = Store(sqlite, letter_rows=1, letter_bytes=1)
    write(store, a_batch(1))
    Path(str(sqlite.url.database)).unlink()
    with pytest.raises(ServerError, match="removed or replaced"):
        write(store, a_batch(2))


def test_a_locked_database_is_tried_again_later(sqlite: Engine) -> None:
    store = Store(sqlite, letter_rows=1, letter_bytes=1)
    with sqlite.begin(), pytest.raises(RetryLater, match="locked"):
        write(store, a_batch(1))
    assert write(store, a_batch(1)).tally.stored == 1
