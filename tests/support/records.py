"""Records and batches for tests: hypothesis strategies, and plain ones with plausible values."""

from typing import Any

from hypothesis import strategies as st

from decodewatch.shared import wire
from decodewatch.shared.records import (
    ENDINGS,
    MAX_TIME_US,
    PHASES,
    THROTTLE_STATES,
    TOKEN_SOURCES,
    Event,
    Floor,
    Phase,
    Record,
    Runtime,
    Sample,
    Stratum,
    Turn,
    Window,
)
from decodewatch.shared.sketch import Sketch

IDS = st.text("abcdef0123456789", min_size=1, max_size=32)
TIMES = st.integers(0, MAX_TIME_US)
TOKENS = st.integers(0, 1 << 40)
BYTES = st.integers(0, (1 << 63) - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
NUMBERS = st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | NAMES.filter(lambda text: len(text) <= 256)
DATA = st.dictionaries(NAMES.filter(lambda text: len(text) <= 64), SCALARS, max_size=6)
SKETCHES = st.lists(st.integers(1, 10**9), max_size=30).map(Sketch.of)
OCTAVES = st.none() | st.integers(0, 40)
SHORT = NAMES.filter(lambda text: len(text) <= 64)
MAYBE = st.none


def _tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=4).map(tuple)


RUNTIMES = st.builds(
    Runtime, IDS, TIMES, st.integers(1, 1 << 31), SHORT, SHORT, MAYBE() | SHORT, MAYBE(), DATA
)
TURNS = st.builds(
    Turn,
    id=IDS,
    runtime=IDS,
    session=MAYBE() | IDS,
    number=MAYBE() | st.integers(0, 1 << 31),
    t=TIMES,
    duration_us=TIMES,
    ttft_us=MAYBE() | TIMES,
    decode_us=MAYBE() | TIMES,
    prompt_tokens=MAYBE() | TOKENS,
    cached_tokens=MAYBE() | TOKENS,
    output_tokens=TOKENS,
    first_tokens=TOKENS,
    steps=TOKENS,
    shared_tokens=TOKENS,
    token_source=st.sampled_from(TOKEN_SOURCES),
    ending=st.sampled_from(ENDINGS),
    error=MAYBE() | SHORT,
    suspended_us=TIMES,
    concurrency=st.integers(1, 1 << 20),
    memory_start_bytes=MAYBE() | BYTES,
    memory_peak_bytes=MAYBE() | BYTES,
    memory_end_bytes=MAYBE() | BYTES,
    itl=_tuples(st.tuples(OCTAVES, SKETCHES)),
)
FLOORS = st.builds(Floor, IDS, IDS, TIMES, BYTES, st.integers(1, 1 << 31), st.booleans())
STRATA = st.builds(
    Stratum, OCTAVES, st.integers(1, 1 << 20), st.sampled_from(THROTTLE_STATES), SKETCHES
)
WINDOWS = st.builds(
    Window, IDS, TIMES, st.integers(1, MAX_TIME_US), TOKENS, TOKENS, _tuples(STRATA)
)
MEASURED = NUMBERS | st.tuples(NUMBERS, NUMBERS, NUMBERS)
PARTS = st.builds(
    Phase, st.integers(1, MAX_TIME_US), TOKENS, st.dictionaries(SHORT, MEASURED, max_size=3)
)
SAMPLES = st.builds(
    Sample,
    MAYBE() | IDS,
    TIMES,
    st.integers(1, MAX_TIME_US),
    st.dictionaries(SHORT, MEASURED, max_size=6),
    st.dictionaries(SHORT, SHORT, max_size=3),
    MAYBE() | st.dictionaries(st.sampled_from(PHASES), PARTS, min_size=1),
)
EVENTS = st.builds(Event, IDS, TIMES, SHORT, MAYBE() | IDS, MAYBE() | IDS, DATA)
OF_KIND: dict[type[Record], st.SearchStrategy[Record]] = {
    Runtime: RUNTIMES,
    Turn: TURNS,
    Floor: FLOORS,
    Window: WINDOWS,
    Sample: SAMPLES,
    Event: EVENTS,
}
RECORDS = st.one_of(*OF_KIND.values())
CLOCKS = st.builds(wire.Clock, TIMES, TIMES, st.booleans())
DEVICES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
BATCHES = st.builds(
    wire.Batch,
    device=DEVICES,
    stream=IDS,
    previous=MAYBE() | IDS,
    number=st.integers(1, wire.MAX_NUMBER),
    boot=IDS,
    clock=CLOCKS,
    records=st.lists(RECORDS, min_size=1, max_size=5).map(tuple),
)


def a_turn(name: str = "turn-1", **changes: object) -> Turn:
    """One plausible turn of 64 tokens; `changes` replace its fields."""
    fields: dict[str, object] = {
        "id": name,
        "runtime": "runtime-1",
        "session": "session-1",
        "number": 0,
        "t": 5_000_000,
        "duration_us": 2_900_000,
        "ttft_us": 410_000,
        "decode_us": 2_394_000,
        "prompt_tokens": 200,
        "cached_tokens": 0,
        "output_tokens": 64,
        "first_tokens": 1,
        "steps": 64,
        "shared_tokens": 0,
        "token_source": "counted",
        "ending": "complete",
        "error": None,
        "suspended_us": 0,
        "concurrency": 1,
        "memory_start_bytes": 400_000_000,
        "memory_peak_bytes": 420_000_000,
        "memory_end_bytes": 410_000_000,
        "itl": ((7, Sketch.of([38_000] * 56)), (8, Sketch.of([38_000] * 7))),
    }
    return Turn(**{**fields, **changes})  # type: ignore[arg-type]


def a_sample(t: int = 10_000_000, **values: object) -> Sample:
    """One plausible sample of the system over 10 s."""
    measured = {"temp_celsius:cpu-thermal": (61.5, 60.0, 63.0), "major_faults": 3, **values}
    return Sample(None, t, 10_000_000, measured, {})  # type: ignore[arg-type]
