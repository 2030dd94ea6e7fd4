"""Records, clocks and spools for tests of the spool and the uplink."""

import random
from collections.abc import Iterator
from pathlib import Path

from decodewatch.agent.spool.spool import Spool
from decodewatch.shared import clock
from decodewatch.shared.records import Event, Record, Sample, Stratum, Turn, Window
from decodewatch.shared.sketch import Sketch
from decodewatch.shared.wire import Acknowledged, Batch, Clock, decode_batch

SECOND = 1_000_000


def now() -> Clock:
    """The device's clocks as they are."""
    return Clock(clock.boot_us(), clock.wall_us(), True)


def open_spool(file: Path, limit_bytes: int = 64 * 1024 * 1024) -> Spool:
    """A spool of the device `dev-1`."""
    return Spool.open(file, device="dev-1", boot="boot-1", limit_bytes=limit_bytes, clock=now)


def batches(spool: Spool) -> list[Batch]:
    """All that waits, decoded, in order. Marks it as sent."""
    found: list[Batch] = []
    after = None
    while stored := spool.oldest(after, 64):
        for one in stored:
            received = decode_batch(one.payload)
            assert not received.refused
            assert (received.batch.stream, received.batch.number) == (one.stream, one.number)
            found.append(received.batch)
        after = stored[-1].place
    return found


def acknowledgement(*batches: Batch) -> list[Acknowledged]:
    """What a collector would say of some batches."""
    return [Acknowledged(one.stream, ((one.number, one.number),)) for one in batches]


def event(name: str) -> Event:
    """An event of this id."""
    return Event(id=name, t=1, event="test", data={"number": 1})


def sample(t_s: int, duration_s: int = 10, noise: random.Random | None = None) -> Sample:
    """A sample of an Orin's size: some thirty measurements."""
    noise = noise or random.Random(t_s)
    values: dict[str, int | float | tuple[int | float, int | float, int | float]] = {}
    for zone in ("cpu", "gpu", "soc0", "soc1", "soc2", "tj"):
        low = round(noise.uniform(40, 50), 2)
        values[f"temp_celsius:{zone}"] = round(low + noise.random(), 2), low, low + 1.5
    for core in range(12):
        hertz = noise.choice((729_600_000, 1_190_400_000, 2_201_600_000))
        values[f"cpu_hertz:{core}"] = hertz, 729_600_000, 2_201_600_000
    for name in ("pgmajfault", "pgfault", "oom_kill", "pswpin", "pswpout"):
        values[name] = noise.randrange(2000)
    values["memory_available_bytes"] = noise.randrange(1 << 34), 1 << 20, 1 << 34
    return Sample(None, t_s * SECOND, duration_s * SECOND, values, {"swap_used_bytes": "absent"})


_ITL = [Sketch.of(int(random.Random(n).gauss(90_000, 9_000)) for _ in range(100)) for n in range(7)]


def window(t_s: int, runtime: str = "run-1", duration_s: int = 10) -> Window:
    """A window of a hundred tokens."""
    strata = (Stratum(9, 1, "none", _ITL[t_s // 10 % len(_ITL)]),)
    return Window(runtime, t_s * SECOND, duration_s * SECOND, 100, 100, strata)


def turns_of(batches: list[Batch]) -> list[str]:
    """The ids of all turns, in order."""
    return [record.id for record in each(batches) if isinstance(record, Turn)]


def each(batches: list[Batch]) -> Iterator[Record]:
    """Every record."""
    for batch in batches:
        yield from batch.records
