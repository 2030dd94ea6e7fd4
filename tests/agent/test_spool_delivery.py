"""Spool and collector together, with acknowledgements lost at random: nothing dear is lost."""

import dataclasses
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.records import a_turn
from support.spooling import acknowledgement, each, open_spool, sample, turns_of, window

from decodewatch.agent.spool.losses import EVICTED
from decodewatch.agent.spool.spool import Spool
from decodewatch.shared.records import Event, Record, Window
from decodewatch.shared.wire import Batch, decode_batch

LIMIT = 1 << 20


class Collector:
    """Stores the first batch that comes under a number, as the real one does."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], Batch] = {}

    def receive(self, payload: bytes) -> Batch:
        received = decode_batch(payload)
        assert not received.refused
        batch = received.batch
        self.stored.setdefault((batch.stream, batch.number), batch)
        return batch

    def told_gone(self) -> Iterator[tuple[object, int]]:
        for record in each(list(self.stored.values())):
            if isinstance(record, Event) and record.event == EVICTED:
                first, last = record.data["first"], record.data["last"]
                assert isinstance(first, int) and isinstance(last, int)
                for number in range(first, last + 1):
                    yield record.data["stream"], number


def deliver(spool: Spool, collector: Collector, noise: random.Random, loss: float) -> None:
    """Send some of the oldest; each acknowledgement may be lost on the way."""
    after = None
    for _ in range(noise.randrange(1, 6)):
        stored = spool.oldest(after, noise.randrange(1, 9))
        if not stored:
            return
        after = stored[-1].place
        for one in stored:
            if noise.random() < 0.8:
                batch = collector.receive(one.payload)
                if noise.random() > loss:
                    spool.acknowledge(acknowledgement(batch))


@pytest.mark.parametrize("seed", range(4))
def test_every_turn_arrives_and_every_number_is_accounted_for(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    file = tmp_path / "spool.db"
    collector = Collector()
    turns: list[str] = []
    tokens = 0
    numbers: set[tuple[str, int]] = set()
    t_s = 0
    for _ in range(noise.randrange(2, 5)):
        spool = open_spool(file, LIMIT)
        for _ in range(noise.randrange(2, 12)):
            for _ in range(noise.randrange(1, 160)):
                t_s += 10
                records: list[Record] = [sample(t_s), window(t_s), *spool.evictions()]
                records.append(dataclasses.replace(sample(t_s + 1), runtime="run-1"))
                tokens += 100
                if noise.random() < 0.2:
                    turns.append(f"turn-{t_s}")
                    records.append(a_turn(turns[-1]))
                spool.append(records)
            deliver(spool, collector, noise, loss=0.4)
        numbers |= {(spool.stream, number) for number in range(1, spool._number + 1)}
        if noise.random() < 0.7:
            spool.close()
        else:
            spool._files.give_up()  # as after kill -9: the database is not closed
            spool._database._connection.close()
    spool = open_spool(file, LIMIT)
    spool.append(spool.evictions())
    while spool.depth()[0]:
        deliver(spool, collector, noise, loss=0.1)
        spool.append(spool.evictions())
    numbers |= {(spool.stream, number) for number in range(1, spool._number + 1)}
    spool.close()
    arrived = list(collector.stored.values())
    assert set(turns_of(arrived)) == set(turns)
    assert numbers == set(collector.stored) | set(collector.told_gone())
    # Nothing is counted twice, either: what merged left where it came from.
    windows = [record for record in each(arrived) if isinstance(record, Window)]
    assert sum(one.tokens for one in windows) <= tokens
    spans = sorted((one.t - one.duration_us, one.t) for one in windows)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
