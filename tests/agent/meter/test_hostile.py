"""What a broken or hostile server can send: nothing raises, nothing grows, nothing is kept."""

import gc
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.streams import chat, counts, metered, ndjson, sse

from decodewatch.agent.meter import encoding, framing
from decodewatch.agent.meter import meter as meters
from decodewatch.agent.meter.framing import FRAMINGS, MOST_BYTES
from decodewatch.agent.meter.meter import MOST_CHUNKS, Meter, as_json

MIB = 1 << 20

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**310)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["stop", "abort", "error", "limit"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [
    *(
        "choices",
        "delta",
        "usage",
        "timings",
        "done",
        "message",
        "content",
        "stop",
        "type",
        "error",
    ),
    *("response", "text_output", "logprobs", "token_ids", "finish_reason", "index", "metrics"),
    *("prompt_tokens", "completion_tokens", "predicted_n", "predicted_ms", "prompt_ms", "draft_n"),
    *("speculative_decoding", "incomplete_details", "status", "object", "item", "content_block"),
    *("num_output_tokens", "eval_count", "eval_duration", "tokens_cached", "truncated", "extra"),
    *("prompt_eval_duration", "cache_read_input_tokens", "queue_time_ms", "tool_calls", "text"),
]
KINDS = [
    *("response.completed", "response.output_text.delta", "response.output_item.added"),
    *("message_start", "content_block_start", "content_block_delta", "message_delta", "message"),
]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    known = st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    return known | st.lists(known, max_size=2)


EVENTS = st.builds(
    lambda kind, rest: rest if kind is None else {**rest, "type": kind},
    st.none() | st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(FIELDS), nested(nested(JSON)) | JSON, max_size=5),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=2), st.sampled_from(sorted(FRAMINGS)))
@example([{"done": True, "eval_count": 3, "eval_duration": 10**400}], "ndjson")
@example([{"choices": [], "timings": {"prompt_ms": 10**400, "predicted_n": 10**400}}], "sse")
def test_no_event_raises_and_all_that_is_said_is_json(events: list[Any], name: str) -> None:
    content = sse(*events) if name == "sse" else ndjson(*events)
    said = metered([(10.0, content), (20.0, content)], name)
    json.dumps(said, allow_nan=False)
    assert said["status"] in ("complete", "aborted", "error", "truncated")
    assert said["N"] >= 0 and (said["tpot"] is None or said["tpot"] >= 0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=60), max_size=6),
    st.sampled_from(sorted(FRAMINGS)),
    st.sampled_from([None, "gzip", "deflate", "br", "identity", "\x00"]),
)
def test_no_bytes_raise(reads: list[bytes], name: str, encoding: str | None) -> None:
    said = metered(
        [(float(n), content) for n, content in enumerate(reads)], name, encoding=encoding
    )
    json.dumps(said, allow_nan=False)


HOSTILE = {
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "UTF-16": '{"choices":[]}'.encode("utf-16"),
    "digits": b'{"usage":{"completion_tokens":' + b"9" * 6000 + b"}}",
    "NUL": b"\x00" * 100,
    "no object": b"[1,2]",
    "a number": b"7",
    "cut": b'{"choices":[{"del',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("framing_name", ["sse", "ndjson"])
def test_a_bad_event_is_counted_and_the_next_one_is_read(name: str, framing_name: str) -> None:
    bad, good = HOSTILE[name], chat("a", finish="stop")
    if framing_name == "sse":
        content = b"data: " + bad + b"\n\n" + sse(good)
    else:
        content = bad + b"\n" + ndjson(good)
    said = metered([(5.0, content)], framing_name)
    assert (said["N"], said["status"], said["flags"]) == (1, "complete", ["bad_frame"])


@pytest.mark.parametrize("text", [b"\xff\xfe\xc3", b"\xed\xa0\x80", b"\xc3"])
def test_a_text_that_is_no_utf8_is_said_and_its_token_counted(text: bytes) -> None:
    bad = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text
    said = metered([(5.0, bad), (25.0, sse(chat("\ufffd", finish="stop")))])
    assert (said["N"], said["tpot"], said["flags"]) == (2, 20, ["bad_frame"])
    assert metered([(25.0, sse(chat("\ufffd"), b'data: {"x":"\\ud800"}\n\n'))])["flags"] == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-5", "1e400", "1e30", "true"])
def test_a_number_that_cannot_be_is_unknown(number: str) -> None:
    names = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms")
    own = "{" + ",".join(f'"{name}":{number}' for name in names) + "}"
    tokens = f'{{"prompt_tokens":{number},"completion_tokens":{number}}}'
    event = f'data: {{"choices":[],"usage":{tokens},"timings":{own}}}\n\n'.encode()
    said = metered([(5.0, sse(chat("a", finish="stop"))), (6.0, event)])
    assert (said["N"], said["N_src"], said["prompt"]) == (1, "chunks (estimate)", None)
    assert set(said["server"].values()) == {None} and said["flags"] == []


def grown(work: Callable[[], object]) -> int:
    """Bytes that Python held at most during this, beyond what it held before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["sse", "ndjson", "document"])
def test_a_line_of_100_mb_is_left_out_and_never_held(name: str) -> None:
    meter = Meter(name)
    piece = b"x" * (64 << 10)

    def work() -> None:
        meter.read(1.0, b"data: ")
        for _ in range(1600):
            meter.read(1.0, piece)
        after = sse(chat("a", finish="stop")) if name == "sse" else ndjson(chat("a", finish="stop"))
        meter.read(2.0, b"\n\n" + after)
        meter.end(3.0)

    assert grown(work) < 3 * MOST_BYTES
    said = as_json(meter.result())
    assert said["flags"] == ["event_too_long"]
    assert name == "document" or (said["N"], said["status"]) == (1, "complete")


def test_an_event_of_too_many_lines_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MOST_BYTES", 64 << 10)
    meter = Meter()
    lines = b"data: xxxx\n" * 1000

    def work() -> None:
        for _ in range(50):
            meter.read(1.0, lines)
        meter.read(2.0, b"data: {}\n\n" + sse(chat("a", finish="stop")))

    assert grown(work) < 8 * (64 << 10)
    said = as_json(meter.result())
    assert (said["N"], said["flags"]) == (1, ["event_too_long"])


def zeros(size: int, bits: int = 31) -> Iterator[bytes]:
    """A body that inflates to so many zeros."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, bits)
    for _ in range(size // MIB):
        yield deflater.compress(bytes(MIB))
    yield deflater.flush()


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_a_bomb_is_inflated_in_pieces_and_given_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MOST_INFLATED", 16 * MIB)
    bomb = b"".join(zeros(64 * MIB, 31 if name == "gzip" else 15))
    assert len(bomb) < MIB
    meter = Meter("sse", name)
    began = time.process_time()
    assert grown(lambda: meter.read(1.0, bomb)) < 3 * MOST_BYTES
    assert time.process_time() - began < 5
    assert "bad_encoding" in as_json(meter.result())["flags"]


def test_a_whole_stream_that_was_compressed_into_little_is_read() -> None:
    # 10 000 chunks that are alike: 100 to 1, in one read.
    content = gzip.compress(sse(*[chat("a")] * 10_000, chat(finish="stop")))
    assert len(content) < 50_000
    said = metered([(9.0, content)], encoding="gzip")
    assert (said["N"], said["status"], said["flags"]) == (10_000, "complete", ["bursty"])


def test_a_body_of_several_gzip_members_and_padding_is_read() -> None:
    parts = [sse(chat("a")), sse(chat("b", finish="stop"))]
    content = b"".join(gzip.compress(part) for part in parts)
    for padding in (b"", bytes(20)):
        said = metered([(9.0, content + padding)], encoding="gzip")
        assert (said["N"], said["status"]) == (2, "complete")
        assert "bad_encoding" not in said["flags"]


@pytest.mark.parametrize("name", ["br", "zstd", "gzip"])
def test_what_cannot_be_inflated_is_said(name: str) -> None:
    said = metered([(9.0, sse(chat("a", finish="stop")))], encoding=name)
    assert (said["N"], said["flags"]) == (0, ["bad_encoding"])


def test_a_turn_without_end_takes_bounded_memory_and_keeps_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 4096
    assert MOST_CHUNKS * 16 == 2 * MIB, "what the times and sizes of one turn take"
    monkeypatch.setattr(meters, "MOST_CHUNKS", most)
    meter = Meter()
    batch = sse(*[chat("a")] * 256)
    batches = 2 * most // 256

    def work() -> None:
        for n in range(batches):
            meter.read(10.0 * n, batch)

    assert grown(work) < MIB
    said = as_json(meter.result())
    assert (said["N"], len(said["gaps"])) == (256 * batches, most - 1)
    assert said["tpot"] == pytest.approx(10 * (batches - 1) / (256 * batches - 1), abs=1e-3)
    assert said["flags"] == ["bursty", "gaps_left_out"]


def test_lines_that_end_at_every_byte_take_linear_time() -> None:
    meter = Meter()
    began = time.process_time()
    for end in (b"\r", b"\n", b"\r\n"):
        meter.read(1.0, end * (256 << 10))
    # A search of the rest for each line would take minutes.
    assert time.process_time() - began < 10


def reachable(thing: object) -> Iterator[object]:
    """Everything that an object of ours holds on to."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            yield one
            if not callable(one):
                waiting += gc.get_referents(one)


def test_no_text_of_an_answer_is_kept() -> None:
    marker = "MARKER-7f3a"
    meter = Meter()
    events = [
        chat(marker),
        chat(f"{marker} and more", usage=counts(3, 2)),
        chat(delta={"reasoning": marker, "tool_calls": [{"function": {"arguments": marker}}]}),
        chat(finish="stop"),
    ]
    meter.read(1.0, sse(*events) + f"data: {marker} is no JSON\n\n".encode())
    meter.end(2.0)
    held = list(reachable(meter)) + list(reachable(meter.result()))
    assert any(one == "stop" for one in held), "the search finds text"
    assert not [one for one in held if isinstance(one, str) and marker in one]
    assert not [
        one for one in held if isinstance(one, bytes | bytearray) and marker.encode() in one
    ]
    assert marker not in json.dumps(as_json(meter.result()))
