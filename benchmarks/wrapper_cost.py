"""What the wrapper costs a token, against a timestamp and an append written by hand.

    python benchmarks/wrapper_cost.py [--rounds 60] [--check]

Prints a JSON line a case. `ns_per_token` is what a loop over a generator of numbers takes more than
a bare `for` over the same generator, as the median of interleaved rounds (`best` is the least);
`ratio_to_bare` is the median of that round's ratios to the case `bare`, the line
`stamps.append(time.monotonic_ns())` in the loop. The async cases compare with a bare `async for`,
the callback with one that is not wrapped.
With --check the exit status is 1 where a bar of the design is missed.

Not in these figures: what the link's thread does later (case `link_thread`, once a second or at the
end of a turn, in another thread of the same process), and what a turn costs besides its tokens
(case `turn`, once a turn).
"""

import argparse
import asyncio
import json
import logging
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client import CollectorRegistry, Histogram

from decodewatch.agent import DecodeMonitor, Turn
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.tally import Stamp, Tally

TOKENS = 5_000
MOST_TO_BARE = 1.6
MOST_TO_HISTOGRAM = 1 / 5
# Of time to first byte and the like, in seconds; what a service would choose for gaps.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

Case = Callable[[], float]


def generate() -> Iterator[int]:
    """The engine: as quick as a generator can be."""
    yield from range(TOKENS)


async def generate_async() -> AsyncIterator[int]:
    """The engine, for async callers."""
    for number in range(TOKENS):
        yield number


def timed(loop: Callable[[], Any]) -> float:
    """Nanoseconds a token."""
    start = time.perf_counter_ns()
    loop()
    return (time.perf_counter_ns() - start) / TOKENS


def empty() -> None:
    """The loop that all others are compared with."""
    for _ in generate():
        pass


def bare() -> None:
    """A timestamp and an append, as a person writes them."""
    stamps = []
    for _ in generate():
        stamps.append(time.monotonic_ns())  # noqa: PERF401  # that is the case


def bare_local_names() -> None:
    """The same with the lookups taken out of the loop: the least that Python can do."""
    stamps = []
    now = time.monotonic_ns
    for _ in generate():
        stamps.append(now())  # noqa: PERF401  # that is the case


def calling(record: Callable[[float], object]) -> Callable[[], None]:
    """A loop that gives a histogram a gap for every token."""

    def loop() -> None:
        for _ in generate():
            record(0.02)

    return loop


def otel_record(exponential: bool) -> Callable[[float], None]:
    """The record method of an OpenTelemetry histogram."""
    views = [View(instrument_name="itl", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider([InMemoryMetricReader()], views=views if exponential else [])
    histogram = provider.get_meter("benchmark").create_histogram(
        "itl", explicit_bucket_boundaries_advisory=BUCKETS
    )
    return histogram.record


async def empty_async() -> float:
    """The loop that the async cases are compared with."""
    start = time.perf_counter_ns()
    async for _ in generate_async():
        pass
    return (time.perf_counter_ns() - start) / TOKENS


async def bare_async() -> float:
    """A timestamp and an append in it."""
    stamps = []
    start = time.perf_counter_ns()
    async for _ in generate_async():
        stamps.append(time.monotonic_ns())  # noqa: PERF401  # that is the case
    return (time.perf_counter_ns() - start) / TOKENS


async def watched_async(turn: Turn) -> float:
    """What async users write."""
    start = time.perf_counter_ns()
    async for _ in turn.watch(generate_async()):
        pass
    return (time.perf_counter_ns() - start) / TOKENS


def in_turn(monitor: DecodeMonitor, loop: Callable[[Turn], float]) -> Case:
    """A case inside a turn whose steps are all taken in before the next case begins."""

    def case() -> float:
        with monitor.turn(prompt_tokens=100) as turn:
            cost = loop(turn)
        # Where there is no agent this waits in vain, long enough for the thread to be done.
        monitor.flush(0.1)
        return cost

    return case


def watch(turn: Turn) -> None:
    """What users write."""
    for _ in turn.watch(generate()):
        pass


def watch_tokens(turn: Turn) -> None:
    """The same where each chunk is asked for its tokens."""
    for _ in turn.watch(generate(), tokens=lambda chunk: 1):
        pass


def step(turn: Turn) -> None:
    """A call a token, for engines with callbacks."""
    for _ in generate():
        turn.step()


def callback(show: Callable[[int], None]) -> None:
    """A loop that calls back, as engines do."""
    for chunk in generate():
        show(chunk)


def show(chunk: int) -> None:
    """A callback that does nothing."""


def link_thread() -> float:
    """What the link's thread does for a token, here in this one."""
    stamps: list[Stamp] = [10_000_000 * number for number in range(TOKENS)]
    tally = Tally()
    return timed(lambda: tally.add(stamps, 100))


def turn_ns(monitor: DecodeMonitor) -> float:
    """Nanoseconds of beginning and ending a turn."""
    start = time.perf_counter_ns()
    with monitor.turn():
        pass
    cost = time.perf_counter_ns() - start
    monitor.flush(0.1)
    return cost


def cases(present: DecodeMonitor, absent: DecodeMonitor) -> dict[str, Case]:
    """All cases, in the order in which a round runs them."""
    registry = CollectorRegistry()
    histogram = Histogram("itl_seconds", "gaps", buckets=BUCKETS, registry=registry)
    return {
        "empty": lambda: timed(empty),
        "bare": lambda: timed(bare),
        "bare_local_names": lambda: timed(bare_local_names),
        "watch": in_turn(present, lambda turn: timed(lambda: watch(turn))),
        "watch_no_agent": in_turn(absent, lambda turn: timed(lambda: watch(turn))),
        "watch_tokens": in_turn(present, lambda turn: timed(lambda: watch_tokens(turn))),
        "step": in_turn(present, lambda turn: timed(lambda: step(turn))),
        "empty_callback": lambda: timed(lambda: callback(show)),
        "callback": in_turn(present, lambda turn: timed(lambda: callback(turn.callback(show)))),
        "prometheus_observe": lambda: timed(calling(histogram.observe)),
        "otel_explicit_record": lambda: timed(calling(otel_record(False))),
        "otel_exponential_record": lambda: timed(calling(otel_record(True))),
        "empty_async": lambda: asyncio.run(empty_async()),
        "bare_async": lambda: asyncio.run(bare_async()),
        "watch_async": in_turn(present, lambda turn: asyncio.run(watched_async(turn))),
    }


def listen(path: Path) -> subprocess.Popen[bytes]:
    """An agent that stores nothing and says that it did, in a process of its own."""
    program = (
        "import json, socket, sys\n"
        "listener = socket.socket(socket.AF_UNIX)\n"
        "listener.bind(sys.argv[1])\n"
        "listener.listen()\n"
        "channel, _ = listener.accept()\n"
        "for line in channel.makefile('rb'):\n"
        "    message = json.loads(line)\n"
        "    if message['type'] == 'turn':\n"
        "        stored = {'type': 'stored', 'turn': message['record']['id']}\n"
        "        channel.sendall(json.dumps(stored).encode() + b'\\n')\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", program, str(path)])
    for _ in range(500):
        if path.exists():
            return agent
        time.sleep(0.02)
    agent.kill()
    raise SystemExit("the agent of the benchmark did not start")


def measure(rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Every case's nanoseconds a token in every round, and the nanoseconds of a turn."""
    with tempfile.TemporaryDirectory() as folder:
        socket_file = Path(folder) / "agent.sock"
        agent = listen(socket_file)
        try:
            nobody = Path(folder) / "nobody"
            present = DecodeMonitor(
                "present", engine="benchmark", link=Link(socket_path=lambda: socket_file)
            )
            absent = DecodeMonitor(
                "absent", engine="benchmark", link=Link(socket_path=lambda: nobody)
            )
            with present.turn():
                pass
            if not present.flush(5):
                raise SystemExit("the agent of the benchmark does not answer")
            run = cases(present, absent)
            found: dict[str, list[float]] = {name: [] for name in [*run, "link_thread"]}
            turns = []
            for _ in range(rounds):
                for name, case in run.items():
                    found[name].append(case())
                found["link_thread"].append(link_thread())
                turns.append(turn_ns(present))
            return found, turns
        finally:
            agent.kill()
            agent.wait()


def report(case: str, **figures: Any) -> None:
    """One line of the result."""
    head = {"benchmark": "wrapper_cost", "case": case, "python": platform.python_version()}
    print(json.dumps({**head, **figures}), flush=True)


def main() -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description="What the wrapper costs a token.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    arguments = parser.parse_args()
    logging.disable()  # of turns that are given up, where there is no agent
    if not hasattr(socket, "AF_UNIX"):
        raise SystemExit("this system has no Unix sockets")
    found, turns = measure(arguments.rounds)

    def added(name: str) -> list[float]:
        kind = name.rpartition("_")[2]
        base = found[{"async": "empty_async", "callback": "empty_callback"}.get(kind, "empty")]
        return [cost - alone for cost, alone in zip(found[name], base, strict=True)]

    def ratio(name: str, to: str) -> float:
        pairs = zip(added(name), added(to), strict=True)
        return round(statistics.median(one / other for one, other in pairs), 3)

    for name in found:
        if name.startswith("empty") or name == "link_thread":
            report(name, ns_per_token=round(statistics.median(found[name]), 1))
        else:
            report(
                name,
                ns_per_token=round(statistics.median(added(name)), 1),
                best=round(min(added(name)), 1),
                ratio_to_bare=ratio(name, "bare_async" if name.endswith("_async") else "bare"),
                ratio_to_prometheus=ratio(name, "prometheus_observe"),
            )
    report("turn", us_per_turn=round(statistics.median(turns) / 1000, 1))
    to_bare = max(ratio("watch", "bare"), ratio("watch_no_agent", "bare"))
    to_histogram = ratio("watch", "prometheus_observe")
    kept = to_bare <= MOST_TO_BARE and to_histogram <= MOST_TO_HISTOGRAM
    report(
        "bars",
        watch_to_bare=to_bare,
        accepted_to_bare=MOST_TO_BARE,
        watch_to_local_names=ratio("watch", "bare_local_names"),
        watch_to_prometheus=to_histogram,
        accepted_to_prometheus=MOST_TO_HISTOGRAM,
        kept=kept,
    )
    return 1 if arguments.check and not kept else 0


if __name__ == "__main__":
    sys.exit(main())
