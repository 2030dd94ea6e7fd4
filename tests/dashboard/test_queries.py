"""What the queries return from a seeded database, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, func, select
from support import seed

from decodewatch.dashboard import queries
from decodewatch.dashboard.database import reading
from decodewatch.shared import tables
from decodewatch.shared.energy import joules_a_token, totals
from decodewatch.shared.sketch import Sketch

ORIN, PI = "orin-nano-01", "rpi5-kitchen"


@pytest.fixture(scope="module")
def connection(either_url: str) -> Iterator[Connection]:
    with reading(either_url) as opened:
        yield opened


def test_devices_that_are_not_online_come_first(connection: Connection) -> None:
    assert [one.device for one in queries.devices(connection)] == [PI, ORIN]
    assert queries.device_counts(connection) == (2, 1)
    assert [one.device for one in queries.devices(connection, limit=1)] == [PI]


def test_a_device_that_never_reported_is_none(connection: Connection) -> None:
    found = queries.device(connection, ORIN)
    assert found is not None and found.online is True and found.hottest_label == "cpu-thermal"
    assert queries.device(connection, "nobody") is None


def test_the_ledger_is_that_of_the_table(connection: Connection) -> None:
    ledger = queries.ledgers(connection, [ORIN, PI, "nobody"])
    assert ledger[PI] == queries.Ledger(715, 7, 2, 3, 2, 0)
    assert ledger[ORIN].missing == 0
    assert "nobody" not in ledger
    assert [one.ledger for one in queries.streams(connection, PI)] == [ledger[PI]]


def test_percentiles_of_a_period_come_from_the_merged_sketches_of_its_turns(
    connection: Connection, now: int
) -> None:
    since = now - seed.HOUR
    found = queries.decoding(connection, ORIN, since)
    whole = Sketch()
    ttfts = []
    query = select(tables.turn).where(tables.turn.c.device == ORIN, tables.turn.c.at >= since)
    rows = connection.execute(query).all()
    for row in rows:
        ttfts.append(row.ttft_us)
        for _, sketch in row.itl:
            whole.merge(Sketch.from_json(sketch))
    assert found.turns == len(rows) == sum(found.endings.values()) > 50
    assert found.all_itl == whole
    assert found.ttft == Sketch.of(ttfts)
    assert not found.cut


def test_a_period_with_more_turns_than_may_be_read_says_so(
    connection: Connection, now: int
) -> None:
    all_of_it = queries.decoding(connection, ORIN, now - seed.HOUR)
    found = queries.decoding(connection, ORIN, now - seed.HOUR, limit=10)
    assert found.cut and found.turns == all_of_it.turns
    assert found.ttft.n == 10


def test_a_device_without_turns_in_the_period_has_none(connection: Connection, now: int) -> None:
    found = queries.decoding(connection, PI, now - 10 * seed.MINUTE)
    assert (found.turns, found.ttft.n, found.itl) == (0, 0, {})


def test_turns_carry_the_floor_after_them_where_it_is_known(
    connection: Connection, now: int
) -> None:
    found = queries.turns(connection, ORIN, now - seed.HOUR)
    assert all(one.at > other.at for one, other in pairwise(found))
    assert any(one.floor_bytes is None and one.memory_end_bytes is not None for one in found)
    assert any(one.floor_bytes is not None and one.floor_settled for one in found)
    assert len(queries.turns(connection, ORIN, now - seed.HOUR, limit=7)) == 7


def test_windows_merge_their_strata(connection: Connection, now: int) -> None:
    found = queries.windows(connection, ORIN, now - seed.HOUR)
    query = select(func.sum(tables.window.c.tokens)).where(
        tables.window.c.device == ORIN, tables.window.c.at >= now - seed.HOUR
    )
    assert sum(one.itl.n for one in found) == connection.execute(query).scalar()
    assert len(queries.windows(connection, ORIN, 0, limit=5)) == 5


def test_samples_come_in_order_and_thinned_over_the_whole_period(
    connection: Connection, now: int
) -> None:
    since = now - seed.HOUR
    every = queries.samples(connection, ORIN, since)
    some = queries.samples(connection, ORIN, since, stride=6)
    assert [one.at for one in every] == sorted(one.at for one in every)
    assert 340 < len(every) <= 361 and 55 < len(some) < 65
    assert some[0].at - every[0].at < seed.MINUTE


def test_samples_carry_what_they_keep_apart_by_phase(connection: Connection, now: int) -> None:
    found = queries.samples(connection, ORIN, now - seed.HOUR)
    phases = totals(one.phases for one in found)
    assert set(phases) == {"idle", "prefill", "decode"}
    assert sum(one.duration_us for one in phases.values()) == len(found) * 10 * seed.SECOND
    energy = joules_a_token(phases)
    assert not isinstance(energy, str) and energy[0].rail == "device_watts:VDD_IN"
    assert energy[0].watts == pytest.approx(seed.LEVELS["decode"]["device_watts:{}"])
    assert energy[0].joules == pytest.approx(energy[0].watts * 0.012, rel=0.01)


def test_a_sample_without_phases_has_none(tmp_path: Path, now: int) -> None:
    url = seed.database(tmp_path / "d.db", now, (seed.Board(hours=0.1),))
    engine = create_engine(url)
    with engine.begin() as writer:
        writer.execute(tables.sample.update().values(phases=None))
    engine.dispose()
    with reading(url) as connection:
        found = queries.samples(connection, ORIN, 0)
    assert found and all(one.phases == {} for one in found)


def test_a_stride_keeps_a_period_within_the_bound() -> None:
    assert queries.stride(seed.HOUR) == 1
    assert 7 * 24 * 360 / queries.stride(7 * 24 * seed.HOUR) <= queries.MOST_SAMPLES


def test_runtimes_carry_their_model(connection: Connection) -> None:
    found = queries.runtimes(connection, ORIN)[0]
    assert found.model is not None and found.model.name == "SmolLM2-135M-Instruct"
    assert queries.runtime(connection, ORIN, found.runtime) == found
    assert queries.runtime(connection, PI, found.runtime) is None
    assert queries.runtime(connection, PI, None) is None


def test_events_are_the_newest_first(connection: Connection, now: int) -> None:
    found = queries.events(connection, ORIN, 0)
    assert [one.event for one in found] == [
        "source_failed",
        "clock_stepped",
        "runtime_started",
        "agent_started",
    ]
    assert queries.events(connection, ORIN, 0, limit=1) == found[:1]


def test_how_a_boot_is_placed(connection: Connection) -> None:
    found = queries.device(connection, ORIN)
    assert found is not None and found.boot is not None
    assert queries.boot_placed(connection, ORIN, found.boot) == "clock"
    assert queries.boot_placed(connection, ORIN, "nothing") is None


def test_a_model_of_a_newer_collector_is_unknown_and_hides_nothing_else(
    tmp_path: Path, now: int
) -> None:
    board = seed.Board(model={"name": "new", "allocation": "quantum"}, hours=0.1)
    url = seed.database(tmp_path / "d.db", now, (board,))
    with reading(url) as connection:
        found = queries.runtimes(connection, ORIN)[0]
    assert found.model is None and found.name == "chat"


def test_a_column_of_the_tables_never_overflows_a_page(tmp_path: Path) -> None:
    """No query is without a bound: a database with many devices is read in part."""
    url = f"sqlite:///{tmp_path / 'd.db'}"
    engine = create_engine(url)
    tables.metadata.create_all(engine)
    state = {"online": True, "connection": 1, "first_received_at": 1, "last_received_at": 1}
    with engine.begin() as writer:
        writer.execute(
            tables.device_state.insert(), [{"device": f"d{k:04}", **state} for k in range(250)]
        )
    engine.dispose()
    with reading(url) as connection:
        assert len(queries.devices(connection)) == queries.MOST_DEVICES
        assert queries.device_counts(connection) == (250, 250)
