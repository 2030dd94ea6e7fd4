"""What the spool keeps, and through what: restarts, damage, its limit, a full disk, power loss."""

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import spool_writer
from support.disks import fill, small_disk
from support.records import a_turn
from support.spooling import (
    acknowledgement,
    batches,
    each,
    event,
    open_spool,
    sample,
    turns_of,
    window,
)
from support.waiting import until

from decodewatch.agent.spool import batching
from decodewatch.agent.spool import files as spool_files
from decodewatch.agent.spool.losses import EVICTED, THINNED
from decodewatch.agent.spool.spool import Spool, SpoolError
from decodewatch.shared.records import Event, Record, Runtime, Sample, Turn, Window
from decodewatch.shared.wire import (
    MAX_SENT,
    Acknowledged,
    Batch,
    Clock,
)

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a spool may be made."""
    return tmp_path / "state" / "spool.db"


@pytest.fixture
def spool(file: Path) -> Iterator[Spool]:
    """An open spool."""
    made = open_spool(file)
    yield made
    made.close()


def ids(found: list[Batch]) -> list[str]:
    """The ids of all events."""
    return [record.id for record in each(found) if isinstance(record, Event)]


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


# Streams, numbers and acknowledgements.


def test_batches_wait_in_order_across_openings_each_with_a_stream_of_its_own(file: Path) -> None:
    streams: list[str] = []
    for opening in range(3):
        spool = open_spool(file)
        assert spool.previous == (streams[-1] if streams else None)
        streams.append(spool.stream)
        for number in range(2):
            spool.append([event(f"{opening}-{number}")])
        spool.close()
    spool = open_spool(file)
    found = batches(spool)
    assert [(one.stream, one.number, one.previous) for one in found] == [
        (stream, number, streams[place - 1] if place else None)
        for place, stream in enumerate(streams)
        for number in (1, 2)
    ]
    assert ids(found) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert spool.depth() == (6, sum(len(one.payload) for one in spool.oldest(None, 9)))
    spool.close()


def test_a_batch_carries_device_boot_and_the_clock_of_its_making(file: Path) -> None:
    spool = Spool.open(file, device="dev-9", boot="b", clock=lambda: Clock(5, 6, False))
    spool.append([event("one")])
    (found,) = batches(spool)
    assert (found.device, found.boot, found.clock) == ("dev-9", "b", Clock(5, 6, False))
    spool.close()


def test_an_acknowledged_batch_is_never_handed_out_again(file: Path) -> None:
    spool = open_spool(file)
    for number in range(5):
        spool.append([event(str(number))])
    found = batches(spool)
    spool.acknowledge(acknowledgement(found[1], found[3]))
    assert ids(batches(spool)) == ["0", "2", "4"]
    assert spool.depth()[0] == 3
    spool.append([event("5")])
    assert ids(batches(spool)) == ["0", "2", "4", "5"]
    spool.acknowledge([Acknowledged(spool.stream, ((1, 6),))])
    assert spool.depth() == (0, 0)
    spool.close()
    spool = open_spool(file)
    assert batches(spool) == []
    spool.close()


def test_numbers_go_on_when_everything_was_acknowledged(spool: Spool) -> None:
    spool.append([event("a")])
    spool.acknowledge(acknowledgement(*batches(spool)))
    spool.append([event("b")])
    assert [one.number for one in batches(spool)] == [2]


def test_acknowledgements_of_what_is_not_there_are_ignored(file: Path) -> None:
    spool = open_spool(file)
    old = spool.stream
    spool.append([event("old")])
    spool.close()
    spool = open_spool(file)
    spool.append([event("new")])
    spool.acknowledge([Acknowledged("0" * 32, ((1, 9),)), Acknowledged(old, ((2, 1 << 62),))])
    assert ids(batches(spool)) == ["old", "new"]
    spool.acknowledge([Acknowledged(old, ((1, (1 << 63) - 1),))])
    assert ids(batches(spool)) == ["new"]
    spool.close()


def test_many_acknowledgements_are_deleted_without_an_append(file: Path) -> None:
    spool = open_spool(file)
    for number in range(600):
        spool.append([event(str(number))])
    assert len(batches(spool)) == 600
    spool.acknowledge([Acknowledged(spool.stream, ((1, 600),))])
    assert spool.depth() == (0, 0)
    with contextlib.closing(sqlite3.connect(shutil.copy(file, file.with_name("copy")))) as copy:
        waiting = copy.execute("SELECT count(*) FROM batch").fetchone()[0]
    assert waiting <= 600
    spool.close()
    assert file.stat().st_size < MIB


def test_what_was_never_sent_cannot_be_acknowledged(file: Path) -> None:
    spool = open_spool(file)
    for number in range(200):
        spool.append([event(f"old-{number}")])
    old = spool.stream
    spool.oldest(None, 2)
    spool.close()
    spool = open_spool(file)
    for number in range(9):
        spool.append([event(f"new-{number}")])
    everything = ((1, (1 << 63) - 1),)
    spool.acknowledge([Acknowledged(spool.stream, everything)])
    assert spool.depth()[0] == 209
    # How far the opening before had come is known to within some batches.
    spool.acknowledge([Acknowledged(old, everything)])
    assert 209 - 80 < spool.depth()[0] <= 207
    spool.oldest(spool._base, 3)
    spool.acknowledge([Acknowledged(spool.stream, everything)])
    assert ids(batches(spool))[-6:] == [f"new-{number}" for number in range(3, 9)]
    spool.close()


def test_get_returns_a_batch_until_it_is_acknowledged(spool: Spool) -> None:
    spool.append([event("a")])
    spool.append([event("b")])
    first, second = spool.oldest(None, 8)
    assert spool.get(first.place) == first
    assert spool.oldest(first.place, 8) == [second]
    spool.acknowledge([Acknowledged(first.stream, ((first.number, first.number),))])
    assert spool.get(first.place) is None
    assert spool.get(second.place) == second


def test_connection_numbers_rise_over_openings_and_loss_of_the_spool(file: Path) -> None:
    numbers = []
    for opening in range(4):
        if opening == 2:
            time.sleep(0.5)  # a device makes no seventy connections in half a second
            file.write_bytes(b"not a database" * 1000)
        spool = open_spool(file)
        numbers += [spool.next_connection() for _ in range(70 if opening == 0 else 2)]
        spool.close()
    assert numbers == sorted(set(numbers))


def test_a_wall_clock_that_nobody_vouches_for_begins_no_connection_numbers(file: Path) -> None:
    def first(t_s: int, wall_s: int, synchronised: bool) -> int:
        for path in file.parent.glob("*"):
            path.unlink()
        clock = Clock(t_s * 10**6, wall_s * 10**6, synchronised)
        spool = Spool.open(file, device="dev-1", boot="boot-1", clock=lambda: clock)
        spool.append([event("one")])
        number = spool.next_connection()
        spool.close()
        return number

    in_2070, today = 3_155_760_000, 1_790_000_000
    assert first(20, in_2070, False) == 20_001  # milliseconds since boot
    assert first(90, in_2070, False) == 90_001  # the spool was lost, in the same boot
    assert first(95, today, True) == today * 1000 + 1


# Files that somebody removes.


@pytest.mark.parametrize(
    "names",
    [("",), ("-wal",), (".lock",), ("", "-wal", ".lock", ".ballast")],
    ids=["database", "log", "lock", "all"],
)
def test_what_is_appended_after_the_files_were_removed_is_in_files_again(
    file: Path, names: tuple[str, ...]
) -> None:
    spool = open_spool(file)
    spool.append([event("before")])
    stream, number = spool.stream, spool.next_connection()
    for name in names:
        Path(f"{file}{name}").unlink()
    spool.append([event("after")])
    assert spool.removals == 1
    assert spool.stream != stream
    assert spool.next_connection() > number
    # As after a crash: only what stands at the paths counts.
    crashed = file.with_name("crashed")
    crashed.mkdir()
    for path in (file, Path(f"{file}-wal")):
        shutil.copy(path, crashed)
    copy = open_spool(crashed / file.name)
    assert "after" in ids(batches(copy))
    copy.close()
    with pytest.raises(SpoolError, match="in use by another agent"):
        open_spool(file)
    spool.append([event("more")])
    assert spool.removals == 1
    spool.close()


def test_the_whole_folder_may_go(file: Path) -> None:
    spool = open_spool(file)
    shutil.rmtree(file.parent)
    spool.append([event("after")])
    spool.close()
    spool = open_spool(file)
    assert ids(batches(spool)) == ["after"]
    spool.close()


def test_files_that_go_while_they_are_written_count_as_not_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(file)
    append = spool._append

    def and_remove(records: Sequence[Record]) -> None:
        append(records)
        file.unlink()

    monkeypatch.setattr(spool, "_append", and_remove)
    with pytest.raises(SpoolError, match="was removed while it was written"):
        spool.append([event("one")])
    monkeypatch.undo()
    spool.append([event("one")])
    assert ids(batches(spool)) == ["one"]
    spool.close()


def test_nothing_is_taken_while_another_agent_has_the_place(file: Path) -> None:
    spool = open_spool(file)
    shutil.rmtree(file.parent)
    other = open_spool(file)
    other.append([event("theirs")])
    for _ in range(2):
        with pytest.raises(SpoolError, match="in use by another agent"):
            spool.append([event("ours")])
    assert ids(batches(other)) == ["theirs"]
    other.close()
    spool.append([event("ours")])
    assert ids(batches(spool)) == ["theirs", "ours"]
    spool.close()


# Making batches.


def test_many_records_become_several_batches_in_one_transaction(spool: Spool) -> None:
    noise = random.Random(1)
    made: list[Record] = [sample(10 * n, noise=noise) for n in range(500)]
    spool.append(made)
    stored = spool.oldest(None, 100)
    assert len(stored) > 1
    assert all(len(one.payload) <= MAX_SENT for one in stored)
    found = batches(spool)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    moments = [record.t for record in each(found) if isinstance(record, Sample)]
    assert moments == [record.t for record in made]


@pytest.mark.parametrize(
    "unfit",
    [
        Event("x", 1, "test", data={"value": float("nan")}),
        Runtime("r", 1, 1, "\udcff", "engine"),
        Event(
            "x", 1, "test", data={str(n): random.Random(n).randbytes(8000).hex() for n in range(9)}
        ),
    ],
    ids=["not a number", "not UTF-8", "too large"],
)
def test_a_record_that_no_batch_can_hold_costs_no_other_record(spool: Spool, unfit: Record) -> None:
    spool.append([event("before"), unfit, event("after")])
    found = [record for record in each(batches(spool)) if isinstance(record, Event)]
    assert [one.event for one in found] == ["test", batching.REFUSED, "test"]
    assert found[1].data["kind"] == unfit.KIND


def test_a_batch_inflates_to_no_more_than_a_collector_reads(spool: Spool) -> None:
    data = {f"n{place}": "a" * 250 for place in range(30)}
    spool.append([Event(f"e{n}", 1, "test", data=data) for n in range(1000)])
    assert len(ids(batches(spool))) == 1000


# Who may use a path.


def test_a_second_agent_is_refused(spool: Spool, file: Path) -> None:
    with pytest.raises(SpoolError, match=rf"{file} is in use by another agent; accepted"):
        open_spool(file)


def test_a_spool_can_be_opened_again_after_its_agent_was_killed(file: Path) -> None:
    with writer(file) as process:
        assert process.stdout
        process.stdout.readline()
    open_spool(file).close()


def test_a_folder_is_no_spool(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match=rf"{tmp_path} is a folder; accepted is a file"):
        open_spool(tmp_path)


def test_a_path_below_a_file_is_no_spool(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match=r"spool\.db: .*; accepted is a file in a folder that"):
        open_spool(tmp_path / "file" / "spool.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            open_spool(tmp_path / "spool.db")
        except SpoolError as error:
            os._exit(0 if "Permission denied; accepted is a file in a folder" in str(error) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_spool_is_readable_by_its_agent_alone(spool: Spool, file: Path) -> None:
    spool.append([event("a")])
    assert {path.name: path.stat().st_mode & 0o077 for path in file.parent.iterdir()} == {
        "spool.db": 0,
        "spool.db-wal": 0,
        "spool.db.lock": 0,
        "spool.db.ballast": 0,
    }


# Damage.


def test_a_file_that_is_no_database_is_set_aside(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"\x7fELF" + bytes(9000))
    spool = open_spool(file)
    assert spool.set_aside == file.with_name("spool.db.corrupt-1")
    assert spool.set_aside.read_bytes().startswith(b"\x7fELF")
    assert spool.previous is None
    spool.append([event("a")])
    assert ids(batches(spool)) == ["a"]
    spool.close()


def test_a_database_of_something_else_is_set_aside_unharmed(file: Path) -> None:
    file.parent.mkdir()
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE photo (name TEXT)")
        other.execute("INSERT INTO photo VALUES ('dear')")
        other.commit()
    spool = open_spool(file)
    assert spool.set_aside
    spool.close()
    with contextlib.closing(sqlite3.connect(spool.set_aside)) as other:
        assert other.execute("SELECT name FROM photo").fetchall() == [("dear",)]


def test_an_empty_file_is_a_new_spool(file: Path) -> None:
    file.parent.mkdir()
    file.touch()
    spool = open_spool(file)
    assert spool.set_aside is None
    spool.close()


def test_few_corrupt_spools_are_kept(file: Path) -> None:
    file.parent.mkdir()
    for number in range(5):
        file.write_bytes(b"%d" % number * 5000)
        open_spool(file).close()
    kept = sorted(path.name for path in file.parent.glob("*.corrupt-*"))
    assert kept == ["spool.db.corrupt-4", "spool.db.corrupt-5"]
    assert len(kept) == spool_files.KEPT_ASIDE


def large(spool: Spool, count: int) -> list[str]:
    """Append so many batches of about 9 KB, and their ids."""
    noise = random.Random(count)
    for number in range(count):
        data = {str(place): noise.randbytes(100).hex() for place in range(30)}
        spool.append([Event(f"{number}-{part}", 1, "test", data=data) for part in range(3)])
    return [f"{number}-{part}" for number in range(count) for part in range(3)]


@pytest.mark.parametrize("when", ["reading", "appending", "opening"])
def test_a_page_damaged_on_the_disk_costs_the_old_spool_and_no_more(file: Path, when: str) -> None:
    spool = open_spool(file)
    large(spool, 300)
    assert len(batches(spool)) == 300
    stream = spool.stream
    if when == "opening":
        spool.close()
    size = file.stat().st_size
    with file.open("r+b") as raw:
        first = 4096 if when == "opening" else MIB // 2
        for page in range(first, size, 4096):
            raw.seek(page)
            raw.write(b"\xff" * 64)
    if when == "opening":
        spool = open_spool(file)
    elif when == "reading":
        batches(spool)
    for number in range(200):  # to reach the damage by what is deleted and used again
        spool.acknowledge([Acknowledged(stream, ((1, number),))])
        spool.append([event(f"new-{number}")])
    assert spool.set_aside and spool.set_aside.exists()
    assert spool.stream != stream
    assert spool.previous is None
    assert "new-199" in ids(batches(spool))
    assert all(one.stream == spool.stream for one in batches(spool))
    spool.close()


def test_a_rotten_batch_is_evicted_and_reported_and_the_others_arrive(file: Path) -> None:
    spool = open_spool(file)
    for number in range(3):
        spool.append([event(str(number)), event(str(number) + "b")])
    place = spool.oldest(None, 3)[1]
    spool.close()
    content = file.read_bytes()
    at = content.index(place.payload) + len(place.payload) // 2
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    spool = open_spool(file)
    assert spool.set_aside is None
    assert ids(batches(spool)) == ["0", "0b", "2", "2b"]
    assert spool.depth()[0] == 2
    spool.acknowledge([Acknowledged(place.stream, ((1, 1),))])
    (told,) = spool.evictions()
    assert told.event == EVICTED
    assert told.data == {
        "stream": place.stream,
        "first": 2,
        "last": 2,
        "batches": 1,
        "records": 2,
        "turns": 0,
    }
    spool.close()


# The limit.


def gone_of(events: list[Event]) -> set[tuple[object, int]]:
    """The stream and number of every batch that some events say is gone."""
    return {
        (one.data["stream"], number)
        for one in events
        if one.event == EVICTED
        for first, last in [(one.data["first"], one.data["last"])]
        if isinstance(first, int) and isinstance(last, int)
        for number in range(first, last + 1)
    }


def idle_and_turns(
    spool: Spool, count: int, every: int = 10, start: int = 0, runtimes: int = 0
) -> list[str]:
    """Append samples and windows, with one turn in so many batches; the turns' ids."""
    made = []
    for number in range(start, start + count):
        records: list[Record] = [sample(10 * number), window(10 * number)]
        for place in range(runtimes):
            one = sample(10 * number, noise=random.Random(10 * number + place))
            records.append(dataclasses.replace(one, runtime=f"run-{place}"))
        if number % every == 0:
            made.append(f"turn-{number}")
            records.append(a_turn(made[-1]))
        spool.append(records)
    return made


def test_a_full_spool_keeps_to_its_limit_and_loses_detail_before_turns(file: Path) -> None:
    spool = open_spool(file, MIB)
    turns = idle_and_turns(spool, 2000, runtimes=3)
    assert total_bytes(file.parent) <= 1.1 * MIB
    found = batches(spool)
    assert turns_of(found) == turns
    # Nothing vanished untold: each number waits, or a batch that waits tells that it is gone.
    told = [one for one in each(found) if isinstance(one, Event)]
    waiting = {(one.stream, one.number) for one in found}
    assert waiting.isdisjoint(gone_of(told))
    assert {number for _, number in waiting | gone_of(told)} == set(range(1, 2001))
    assert all(isinstance(one.data["records"], int) for one in told)
    # The newest keep their detail; the older, the longer the intervals.
    spans = [
        record.duration_us // 1_000_000 for record in each(found) if isinstance(record, Sample)
    ]
    assert spans[0] > 60
    assert 60 in spans
    assert spans[-1] == 10
    # Counters and tokens are all there in what was merged, and only there.
    tokens = sum(record.tokens for record in each(found) if isinstance(record, Window))
    covered = sum(record.duration_us for record in each(found) if isinstance(record, Window))
    assert tokens == covered // 1_000_000 * 10
    spool.close()
    spool = open_spool(file, MIB)
    assert turns_of(batches(spool)) == turns
    spool.close()


def a_turn_of(name: str, error: str) -> Turn:
    return a_turn(name, error=error)


def test_when_turns_alone_fill_the_spool_the_oldest_go_and_are_told(file: Path) -> None:
    spool = open_spool(file, MIB)
    turns = []
    for number in range(200):
        noise = random.Random(number)
        names = [noise.randbytes(32).hex() for _ in range(40)]
        turns += names
        errors = [noise.randbytes(32).hex() for _ in names]
        spool.append([sample(10 * number), *map(a_turn_of, names, errors)])
    assert total_bytes(file.parent) <= 1.1 * MIB
    found = batches(spool)
    kept = turns_of(found)
    assert 0 < len(kept) < len(turns)
    assert kept == turns[-len(kept) :]
    assert not [record for record in found[0].records if isinstance(record, Sample)]
    assert spool.evictions() == [], "nobody listens yet"
    spool.acknowledge(acknowledgement(found[-1]))
    told = spool.evictions()
    assert len(told) == 1, "ranges that meet are one"
    assert told[0].data["turns"] == len(turns) - len(kept)
    inside = [one for one in each(found) if isinstance(one, Event)]
    waiting = {number for _, number in gone_of(inside)} | {one.number for one in found}
    assert {number for _, number in gone_of(told)} == set(range(1, 201)) - waiting
    spool.close()
    # Handed out and not stored: told again by the next opening, until it is.
    spool = open_spool(file, 1 * MIB)
    spool.acknowledge(acknowledgement(found[-2]))
    again = spool.evictions()
    assert [one.id for one in again] == [one.id for one in told]
    spool.append(again)
    spool.acknowledge(acknowledgement(found[-3]))
    assert spool.evictions() == []
    spool.close()


def test_a_batch_that_a_collector_may_have_keeps_its_number_and_what_is_dear(file: Path) -> None:
    spool = open_spool(file, 1 * MIB)
    idle_and_turns(spool, 20, every=2)
    sent = batches(spool)
    idle_and_turns(spool, 1500, start=20, every=5)
    after = {one.number: one for one in batches(spool)}
    for one in sent:
        if one.number % 2:  # the first, third, ... hold a turn
            assert turns_of([after[one.number]]) == turns_of([one])
        if one.number in after:
            new = [record for record in after[one.number].records if record not in one.records]
            assert {record.event for record in new if isinstance(record, Event)} <= {THINNED}
            assert not [one for one in new if not isinstance(one, (Event, Sample, Window))]
    spool.close()


def test_batches_of_two_streams_are_not_packed_into_one(file: Path) -> None:
    streams = []
    for opening in range(5):
        spool = open_spool(file, 1 * MIB)
        streams.append(spool.stream)
        idle_and_turns(spool, 300, start=300 * opening)
        spool.close()
    spool = open_spool(file, 1 * MIB)
    found = batches(spool)
    for stream in streams:
        mine = [one for one in found if one.stream == stream]
        told = [one for one in each(mine) if isinstance(one, Event)]
        assert {name for name, _ in gone_of(told)} <= {stream}
        gone = {number for _, number in gone_of(told)} | {one.number for one in mine}
        assert gone == set(range(1, 301))
    spool.close()


def test_more_than_the_spool_can_ever_hold_is_refused_and_costs_nothing(file: Path) -> None:
    spool = open_spool(file, 1 * MIB)
    kept = large(spool, 10)
    noise = random.Random(1)
    data = [{str(n): noise.randbytes(120).hex() for n in range(30)} for _ in range(300)]
    with pytest.raises(SpoolError, match=r"spool\.db has no room, the limit is reached"):
        spool.append([Event(f"e{n}", 1, "test", data=one) for n, one in enumerate(data)])
    spool.append([event("small")])
    assert ids(batches(spool)) == [*kept, "small"]
    spool.close()


def test_an_emptied_spool_gives_its_room_back(file: Path) -> None:
    spool = open_spool(file)
    large(spool, 2000)
    assert len(batches(spool)) == 2000
    spool.acknowledge([Acknowledged(spool.stream, ((1, 2000),))])
    assert file.stat().st_size > 7 * MIB
    for number in range(20):
        spool.append([event(str(number))])
    assert total_bytes(file.parent) < 4 * MIB
    spool.close()


# A full disk.


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3072) as disk:
        spool = open_spool(disk / "spool.db")
        turns = idle_and_turns(spool, 50, every=1)
        fill(disk / "filler")
        # Nothing is refused, though the disk has not a block: what is old goes for what is new.
        turns += idle_and_turns(spool, 1500, every=1, start=50)
        assert not (disk / "spool.db.ballast").exists()
        found = batches(spool)
        kept = turns_of(found)
        assert kept == turns[-len(kept) :]
        assert len(kept) > 50
        spool.close()
        spool = open_spool(disk / "spool.db")
        assert turns_of(batches(spool))[-len(kept) :] == kept
        fill(disk / "filler2")
        turns += idle_and_turns(spool, 50, every=1, start=2000)
        assert turns_of(batches(spool))[-1] == turns[-1]
        (disk / "filler").unlink()
        (disk / "filler2").unlink()
        spool.append([event("room again")])
        assert (disk / "spool.db.ballast").stat().st_size == 512 * 1024
        spool.close()


@pytest.mark.parametrize("started_full", [False, True])
def test_where_not_even_the_ballast_helps_the_spool_says_so_and_goes_on_later(
    tmp_path: Path, started_full: bool
) -> None:
    with small_disk(tmp_path / "disk", 4096) as disk:
        spool = open_spool(disk / "spool.db")
        large(spool, 60 if started_full else 1)
        (disk / "spool.db.ballast").unlink()
        fill(disk / "filler")
        with pytest.raises(SpoolError, match=r"spool\.db.*full"):
            # The log, then the database, take what blocks they still have.
            for _ in range(100):
                large(spool, 10)
                fill(disk / "more")
        (disk / "filler").unlink()
        (disk / "more").unlink(missing_ok=True)
        before = len(batches(spool))
        spool.append([event("last")])
        found = batches(spool)
        assert len(found) == before + 1
        assert [one.number for one in found] == list(range(1, len(found) + 1))
        spool.close()


def test_a_spool_opens_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2048) as disk:
        spool = open_spool(disk / "spool.db")
        large(spool, 5)
        spool.close()
        fill(disk / "filler")
        spool = open_spool(disk / "spool.db")
        spool.append([event("a")])
        assert ids(batches(spool))[-1] == "a"
        spool.close()


def test_a_new_spool_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        fill(disk / "filler")
        with pytest.raises(SpoolError, match=r"spool\.db: .*(full|No space left)"):
            open_spool(disk / "spool.db")
        (disk / "filler").unlink()
        open_spool(disk / "spool.db").close()


# Power loss and kill -9.


@contextlib.contextmanager
def writer(file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that fills a spool until the end of the block, where it is killed."""
    command = [sys.executable, spool_writer.__file__, str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def stopped(process: "subprocess.Popen[str]") -> bool:
    status = Path(f"/proc/{process.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def check(file: Path, stream: str, number: int) -> None:
    """Whether a spool has what a writer said that it took: up to `number` of `stream`."""
    spool = open_spool(file)
    assert spool.set_aside is None
    assert spool.previous == stream
    found = batches(spool)
    seen = {(one.stream, one.number) for one in found}
    assert len(seen) == len(found)
    for one in found:
        for record in one.records:
            assert isinstance(record, Event)
            assert record.id.startswith(f"{one.stream[:20]}-{one.number}-")
    newest = max(seen_number for name, seen_number in seen if name == stream)
    assert newest >= number
    oldest = max(newest - spool_writer.KEPT + 1, 1)
    assert {(stream, one) for one in range(oldest, newest + 1)} <= seen
    assert (spool.stream, 1) not in seen
    spool.append([event("after")])
    assert (batches(spool)[-1].stream, batches(spool)[-1].number) == (spool.stream, 1)
    spool.close()


def test_power_loss_at_any_moment_leaves_all_that_was_taken(tmp_path: Path) -> None:
    noise = random.Random(7)
    live = tmp_path / "live"
    with writer(live / "spool.db") as process:
        assert process.stdout
        line = process.stdout.readline()
        for copy_number in range(25):
            until_number = int(line.split()[1]) + noise.randrange(1, 40)
            while int(line.split()[1]) < until_number:
                line = process.stdout.readline()
            time.sleep(noise.random() / 200)
            process.send_signal(signal.SIGSTOP)
            until(lambda: stopped(process), what="the writer stands still")
            copy = tmp_path / f"copy-{copy_number}"
            copy.mkdir()
            shutil.copy(live / "spool.db", copy)
            shutil.copy(live / "spool.db-wal", copy)
            process.send_signal(signal.SIGCONT)
            if copy_number % 2:
                # What was being written behind the last commit may be anything.
                with (copy / "spool.db-wal").open("ab") as log:
                    log.write(noise.randbytes(noise.randrange(1, 9000)))
            stream, number = line.split()
            check(copy / "spool.db", stream, int(number))
            shutil.rmtree(copy)


@pytest.mark.slow
def test_a_writer_killed_twenty_times_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    noise = random.Random(8)
    file = tmp_path / "spool.db"
    streams = set()
    for _ in range(20):
        with writer(file) as process:
            assert process.stdout
            lines = [process.stdout.readline() for _ in range(noise.randrange(1, 120))]
            time.sleep(noise.random() / 200)
        stream, number = lines[-1].split()
        assert stream not in streams
        streams.add(stream)
        check(file, stream, int(number))
        with contextlib.closing(open_spool(file)) as spool:
            spool.acknowledge(acknowledgement(*batches(spool)))
