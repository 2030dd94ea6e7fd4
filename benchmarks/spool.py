"""The spool: flash writes of an ordinary day, and how fast it takes, hands out and forgets.

    python benchmarks/spool.py --folder /var/tmp

Prints JSON lines. `day` appends a day's batches one after another, each acknowledged before the
next or not at all (a device without a network): one batch a minute, 500 turns of their own, and one
batch each 10 s for two hours. `flash_mb` is what the kernel counted as written by this process, to
be at most 100; it is 0 on a file system in memory, and what the file system writes about its own
files is not in it. `append` is the time of one durable append, and the ratio to a bare commit
of the same bytes on the same disk. `backlog` fills a spool to its limit and then drains it.
"""

import argparse
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from decodewatch.agent.spool.spool import Spool
from decodewatch.shared import clock
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Floor, Measured, Record, Sample, Stratum, Turn, Window
from decodewatch.shared.sketch import Sketch
from decodewatch.shared.wire import Acknowledged, Clock

BAR_MB = 100
SECOND = 1_000_000
DAY_TURNS = 500
DECODING_S = 2 * 3600
NOISE = random.Random(1)


def now() -> Clock:
    return Clock(clock.boot_us(), clock.wall_us(), True)


def gauge(low: float, spread: float, digits: int | None = None) -> Measured:
    values = sorted(round(low + NOISE.random() * spread, digits) for _ in range(3))
    return values[1], values[0], values[2]


def system_sample(t: int, seconds: int) -> Sample:
    """What the agent's sources show of an Orin: 11 zones, 12 cores, memory, faults, pressure."""
    values: dict[str, Measured] = {}
    for zone in (
        "cpu",
        "gpu",
        "cv0",
        "cv1",
        "cv2",
        "soc0",
        "soc1",
        "soc2",
        "tj",
        "tboard",
        "tdiode",
    ):
        values[f"temp_celsius:{zone}-thermal"] = gauge(45, 9, 2)
    for core in range(12):
        values[f"cpu_frequency_hertz:cpu{core}"] = gauge(7.29e8, 1.5e9)
    for name in ("memory_available_bytes", "memory_cached_bytes", "swap_used_bytes"):
        values[name] = gauge(3e9, 2e8)
    for name in ("cpu", "memory", "io"):
        values[f"pressure_some_share:{name}"] = gauge(0, 0.3, 4)
    for name in ("page_faults", "major_faults", "swap_in_pages", "swap_out_pages", "oom_kills"):
        values[name] = NOISE.randrange(5000)
    return Sample(None, t, seconds * SECOND, values, {})


def runtime_sample(t: int, seconds: int) -> Sample:
    values: dict[str, Measured] = {
        "runtime_rss_anon_bytes": gauge(3e8, 1e6),
        "runtime_swap_bytes": (0, 0, 0),
        "runtime_major_faults": NOISE.randrange(30),
    }
    return Sample("runtime-1", t, seconds * SECOND, values, {})


def gaps(tokens: int) -> Sketch:
    return Sketch.of(max(int(NOISE.gauss(95_000, 9_000)), 1) for _ in range(tokens))


def turn(t: int) -> list[Record]:
    """A turn of 200 tokens over two octaves of depth, and the floor of the one before."""
    made = Turn(
        id=uuid7(),
        runtime="runtime-1",
        session=NOISE.randbytes(8).hex(),
        number=NOISE.randrange(12),
        t=t,
        duration_us=20 * SECOND,
        ttft_us=NOISE.randrange(900_000),
        decode_us=19 * SECOND,
        prompt_tokens=NOISE.randrange(900),
        cached_tokens=NOISE.randrange(300),
        output_tokens=200,
        first_tokens=1,
        steps=200,
        shared_tokens=0,
        token_source="counted",
        ending="complete",
        error=None,
        suspended_us=0,
        concurrency=1,
        memory_start_bytes=NOISE.randrange(1 << 30),
        memory_peak_bytes=NOISE.randrange(1 << 30),
        memory_end_bytes=NOISE.randrange(1 << 30),
        itl=((8, gaps(120)), (9, gaps(79))),
    )
    return [made, Floor(uuid7(), "runtime-1", t, NOISE.randrange(1 << 30), 9, True)]


def day() -> Iterator[list[Record]]:
    """The appends of a day, in order."""
    decoding_from = 10 * 3600
    for second in range(0, 86_400, 10):
        t = second * SECOND
        decoding = decoding_from <= second < decoding_from + DECODING_S
        if decoding:
            window = Window(
                *("runtime-1", t, 10 * SECOND, 105, 105), (Stratum(9, 1, "none", gaps(105)),)
            )
            yield [system_sample(t, 10), runtime_sample(t, 10), window]
            if NOISE.random() < DAY_TURNS / (DECODING_S / 10):
                yield turn(t)
        elif second % 60 == 0:
            yield [system_sample(t, 60), runtime_sample(t, 60)]


def written_bytes() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise SystemExit("/proc/self/io does not say what was written")


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that it took."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def spread(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "p50_ms": round(times[len(times) // 2], 3),
        "p99_ms": round(times[len(times) * 99 // 100], 3),
    }


def show(benchmark: str, **figures: object) -> None:
    print(json.dumps({"benchmark": "spool", "part": benchmark, **figures}), flush=True)


def open_spool(file: Path, limit_bytes: int = 64 << 20) -> Spool:
    return Spool.open(file, device="dev-1", boot=uuid7(), limit_bytes=limit_bytes, clock=now)


def run_day(folder: Path, appends: list[list[Record]], connected: bool) -> list[float]:
    spool = open_spool(folder / f"day-{connected}.db")
    before = written_bytes()
    times = []
    for number, records in enumerate(appends, 1):
        times.append(timed(lambda records=records: spool.append(records)))  # type: ignore[misc]
        if connected:
            spool.oldest(None, 8)
            spool.acknowledge([Acknowledged(spool.stream, ((number, number),))])
    written = (written_bytes() - before) / 1e6
    batches, size = spool.depth()
    show(
        "day",
        connected=connected,
        appends=len(appends),
        flash_mb=round(written, 1),
        bar_mb=BAR_MB,
        waiting_batches=batches,
        waiting_mb=round(size / 1e6, 2),
        met=written <= BAR_MB,
    )
    spool.close()
    return times


def bare_commits(file: Path, payload: bytes, count: int) -> list[float]:
    """The same bytes into a plain table, as durable."""
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE batch (id INTEGER PRIMARY KEY, payload BLOB)")
    insert = "INSERT INTO batch VALUES (NULL, ?)"
    times = [timed(lambda: database.execute(insert, (payload,))) for _ in range(count)]
    database.close()
    return times


def run_append(folder: Path, times: list[float], records: list[Record]) -> None:
    spool = open_spool(folder / "one.db")
    spool.append(records)
    payload = spool.oldest(None, 1)[0].payload
    spool.close()
    bare = bare_commits(folder / "bare.db", payload, len(times))
    show(
        "append",
        **spread(times),
        bare_p50_ms=spread(bare)["p50_ms"],
        ratio_to_bare=round(statistics.median(times) / statistics.median(bare), 2),
    )


def run_backlog(folder: Path, appends: list[list[Record]], limit_bytes: int) -> None:
    file = folder / "backlog.db"
    spool = open_spool(file, limit_bytes)
    times: list[float] = []
    while len(times) < 8_000:
        records = appends[len(times) % len(appends)]
        times.append(timed(lambda records=records: spool.append(records)))  # type: ignore[misc]
    size = sum(path.stat().st_size for path in folder.glob("backlog.db*"))
    batches, payload_bytes = spool.depth()
    spool.close()
    open_ms = timed(lambda: open_spool(file, limit_bytes).close())
    spool = open_spool(file, limit_bytes)
    began = time.perf_counter()
    after = None
    while stored := spool.oldest(after, 8):
        after = stored[-1].place
        spool.acknowledge([Acknowledged(one.stream, ((one.number, one.number),)) for one in stored])
    drained = time.perf_counter() - began
    spool.close()
    show(
        "backlog",
        appends=len(times),
        append_max_ms=round(max(times), 1),
        **spread(times),
        limit_mb=round(limit_bytes / 1e6, 1),
        on_disk_mb=round(size / 1e6, 1),
        met=size <= limit_bytes,
        waiting_batches=batches,
        payload_mb=round(payload_bytes / 1e6, 1),
        open_ms=round(open_ms, 1),
        drained_batches_per_s=round(batches / drained),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: temporary)")
    parser.add_argument("--limit-mib", type=int, default=4, help="of the backlog")
    options = parser.parse_args()
    appends = list(day())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        times = run_day(folder, appends, connected=True)
        run_day(folder, appends, connected=False)
        run_append(folder, times, appends[0])
        run_backlog(folder, appends, options.limit_mib << 20)


if __name__ == "__main__":
    main()
