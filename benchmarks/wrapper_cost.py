"""What the wrapper costs a token, against a timestamp and an append written by hand.

    python benchmarks/wrapper_cost.py [--rounds 60] [--check]

Prints a JSON line a case. `ns_per_token` is what a loop over a generator of numbers takes more than
a bare `for` over the same generator, as the median of interleaved rounds (`best` is the least);
`ratio_to_bare` is the median of that round's ratios to the case `bare`, the line
`stamps.append(time.monotonic_ns())` in the loop. The async cases compare with a bare `async for`,
the callback with one that is not wrapped.
The adapters of engines (`engine_...`) work on stand-ins that do nothing, in the way in which their
engine calls them, and compare with that line at the same place: in the loop over the tokens, in the
streamer, in the callback.
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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client import CollectorRegistry, Histogram

from decodewatch.agent import DecodeMonitor, Turn
from decodewatch.agent.engines import (
    llama_cpp_python,
    onnxruntime_genai,
    transformers,
    xllamacpp,
)
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


class Llama:
    """Stands for that of llama-cpp-python, whose `generate` is a generator of Python's."""

    n_tokens = 0
    draft_model = None

    def generate(self, tokens: list[int]) -> Iterator[int]:
        """The tokens of an answer."""
        self.eval(tokens)
        yield from range(TOKENS)

    def eval(self, tokens: list[int]) -> None:
        """Reads the prompt."""

    def create_completion(self, prompt: str) -> None:
        """Not asked."""


def llama(turn: Turn) -> float:
    """A loop over `generate`, from its second token on: the first sees the prompt, once a turn."""
    llm = Llama()
    with llama_cpp_python.watch(llm, turn):
        tokens = llm.generate([1])
        next(tokens)
        start = time.perf_counter_ns()
        for _ in tokens:
            pass
        return (time.perf_counter_ns() - start) / (TOKENS - 1)


class Generator:
    """Stands for that of ONNX Runtime GenAI."""

    def __init__(self) -> None:
        self._left = TOKENS

    def token_count(self) -> int:
        """Of the prompt and the answer so far."""
        return TOKENS - self._left

    def append_tokens(self, ids: list[int]) -> None:
        """Reads the prompt."""

    def is_done(self) -> bool:
        """Whether the answer is at its end."""
        return not self._left

    def generate_next_token(self) -> None:
        """One step."""
        self._left -= 1

    def get_next_tokens(self) -> list[int]:
        """What it produced."""
        return [7]


def looped(generator: Generator) -> Iterator[int]:
    """The loop that an application writes, as a generator of its own."""
    generator.append_tokens([1])
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])


def genai_empty() -> None:
    """It, not watched."""
    for _ in looped(Generator()):
        pass


def genai_bare() -> None:
    """It, with a timestamp and an append."""
    stamps = []
    for _ in looped(Generator()):
        stamps.append(time.monotonic_ns())  # noqa: PERF401  # that is the case


def genai(turn: Turn) -> None:
    """The adapter."""
    for _ in onnxruntime_genai.tokens(Generator(), turn, [1]):
        pass


class Ids:
    """Stands for a tensor of one id."""

    ndim = 1

    def __len__(self) -> int:
        return 1

    def numel(self) -> int:
        """How many ids."""
        return 1


def streamed(turn: Turn) -> float:
    """The adapter's streamer."""
    with transformers.watch(None, turn) as generation:
        streamer = generation.streamer()
        streamer.put(Ids())
        return timed(lambda: putting(streamer))


class Silent:
    """A streamer that does nothing."""

    def put(self, value: Ids) -> None:
        """A step."""


class Stamping:
    """One that a person writes to know when steps come."""

    def __init__(self) -> None:
        self.stamps: list[int] = []

    def put(self, value: Ids) -> None:
        """A step."""
        self.stamps.append(time.monotonic_ns())


def putting(streamer: Any) -> None:
    """What `generate` of Transformers does with one, the prompt first."""
    ids = Ids()
    for _ in range(TOKENS):
        streamer.put(ids)


def chunks() -> Iterator[dict[str, Any]]:
    """Those of a server that counts its tokens: each just made, and so in the processor's cache."""
    timings = {"cache_n": 0, "prompt_n": 9, "predicted_n": 0}
    chunk = {"choices": [{"delta": {"content": "a"}, "finish_reason": None}], "timings": timings}
    for number in range(1, TOKENS + 1):
        timings["predicted_n"] = number
        yield chunk


def calling_back(on_chunk: Callable[[Any], Any]) -> float:
    """Each chunk given to a callback by code that is not Python's, as xllamacpp gives it."""
    start = time.perf_counter_ns()
    deque(map(on_chunk, chunks()), maxlen=0)
    return (time.perf_counter_ns() - start) / TOKENS


def ignore(chunk: Any) -> bool:
    """A callback that does nothing."""
    return False


def stamping() -> Callable[[Any], bool]:
    """One that a person writes to know when chunks come."""
    stamps = []

    def on_chunk(chunk: Any) -> bool:
        stamps.append(time.monotonic_ns())
        return False

    return on_chunk


def llama_server(turn: Turn) -> float:
    """The adapter around it."""
    found: list[float] = []

    def serve(request: Any, on_chunk: Callable[[Any], Any]) -> None:
        found.append(calling_back(on_chunk))

    xllamacpp.handle(turn, serve, {"stream": True}, ignore)
    return found[0]


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
        "engine_llama_cpp_python": in_turn(present, llama),
        "empty_genai": lambda: timed(genai_empty),
        "bare_genai": lambda: timed(genai_bare),
        "engine_onnxruntime_genai": in_turn(present, lambda turn: timed(lambda: genai(turn))),
        "empty_streamer": lambda: timed(lambda: putting(Silent())),
        "bare_streamer": lambda: timed(lambda: putting(Stamping())),
        "engine_transformers": in_turn(present, streamed),
        "empty_chunk": lambda: calling_back(ignore),
        "bare_chunk": lambda: calling_back(stamping()),
        "engine_xllamacpp": in_turn(present, llama_server),
    }


# What each case is compared with: the loop with nothing in it, and with the bare line.
BASES = {
    "watch_async": ("empty_async", "bare_async"),
    "bare_async": ("empty_async", "bare_async"),
    "callback": ("empty_callback", "bare"),
    "bare_genai": ("empty_genai", "bare_genai"),
    "engine_onnxruntime_genai": ("empty_genai", "bare_genai"),
    "bare_streamer": ("empty_streamer", "bare_streamer"),
    "engine_transformers": ("empty_streamer", "bare_streamer"),
    "bare_chunk": ("empty_chunk", "bare_chunk"),
    "engine_xllamacpp": ("empty_chunk", "bare_chunk"),
}
ELSE = ("empty", "bare")
ENGINES = (
    "engine_llama_cpp_python",
    "engine_onnxruntime_genai",
    "engine_transformers",
    "engine_xllamacpp",
)


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
        base = found[BASES.get(name, ELSE)[0]]
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
                ratio_to_bare=ratio(name, BASES.get(name, ELSE)[1]),
                ratio_to_prometheus=ratio(name, "prometheus_observe"),
            )
    report("turn", us_per_turn=round(statistics.median(turns) / 1000, 1))
    to_bare = max(ratio("watch", "bare"), ratio("watch_no_agent", "bare"))
    to_histogram = ratio("watch", "prometheus_observe")
    of_engines = {name: ratio(name, BASES.get(name, ELSE)[1]) for name in ENGINES}
    kept = max(to_bare, *of_engines.values()) <= MOST_TO_BARE and to_histogram <= MOST_TO_HISTOGRAM
    report(
        "bars",
        watch_to_bare=to_bare,
        accepted_to_bare=MOST_TO_BARE,
        watch_to_local_names=ratio("watch", "bare_local_names"),
        watch_to_prometheus=to_histogram,
        accepted_to_prometheus=MOST_TO_HISTOGRAM,
        **{f"{name}_to_bare": figure for name, figure in of_engines.items()},
        kept=kept,
    )
    return 1 if arguments.check and not kept else 0


if __name__ == "__main__":
    sys.exit(main())
