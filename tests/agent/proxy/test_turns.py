"""What the agent hears of the turns that pass through the proxy."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import free_port
from support.inbox_server import InboxServer
from support.proxying import (
    FINISH,
    HEAD_END,
    LAST,
    SSE_HEAD,
    Peer,
    ProxyProcess,
    ScriptedServer,
    chunked,
    dial,
    event,
    request,
)
from support.waiting import until

STREAMS = sorted((Path(__file__).resolve().parents[2] / "data/streams").glob("*.json"))
CHAT = "/v1/chat/completions"
MARKER = "the-marker-of-this-test"


class Scene:
    """A server, the proxy before it, and what an inbox hears."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = InboxServer(folder / "agent.sock").start()
        self.server = ScriptedServer(lambda peer: None)
        self.proxy = ProxyProcess(folder, self.server.port, engine="toy", connections=40)

    def turn(self, client: Any, server: Any) -> dict[str, Any]:
        """The record of the turn that these two make."""
        before = len(self.inbox.records)
        self.server.script = server
        peer = dial(self.proxy.port)
        client(peer)
        peer.close()
        until(lambda: len(self.inbox.records) > before)
        return self.inbox.records[-1]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with made.proxy:
        yield made
    made.server.close()
    made.inbox.stop()


def asks(peer: Peer) -> None:
    peer.send(request(CHAT, json.dumps({"messages": MARKER, "stream": True}).encode()))
    peer.hear_end()


def streams(*gaps: float) -> Any:
    """A server whose chunks come after these pauses, in seconds."""

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD)
        for gap in gaps:
            time.sleep(gap)
            peer.send(event(MARKER))
        peer.send(FINISH, LAST)

    return server


def test_a_turn_has_its_times_tokens_and_ending(scene: Scene) -> None:
    record = scene.turn(asks, streams(0.2, 0.1, 0.1))
    assert record["ending"] == "complete"
    assert (record["prompt_tokens"], record["output_tokens"], record["steps"]) == (7, 3, 3)
    assert record["token_source"] == "reported"
    assert 195_000 < record["ttft_us"] < 300_000
    assert 195_000 < record["decode_us"] < 300_000
    # Of a process of which nothing is known but its listening socket, or of the proxy: never.
    assert record.get("memory_peak_bytes") is None


def test_the_runtime_is_the_process_that_listens(scene: Scene) -> None:
    scene.turn(asks, streams(0.0))
    (hello, *_) = scene.inbox.of("hello")
    assert hello["of_pid"] == os.getpid()
    assert hello["engine"] == "toy"


@pytest.mark.parametrize("file", STREAMS, ids=lambda file: str(file.stem))
def test_a_recorded_stream_is_measured_as_it_should_be(
    streamed: dict[str, dict[str, Any]], file: Path
) -> None:
    stream = json.loads(file.read_text())
    expected, record = stream["expect"], streamed[file.stem]
    if "N" in expected:
        assert record["output_tokens"] == expected["N"]
    if "status" in expected:
        assert record["ending"] == expected["status"]
    for name, field in (("prompt", "prompt_tokens"), ("cached", "cached_tokens")):
        if expected.get(name) is not None:
            assert record[field] == expected[name]
    if expected.get("ttft") is not None:
        assert record["ttft_us"] == pytest.approx(expected["ttft"] * 1000, abs=60_000)
    source = {"chunks (estimate)": "estimated", "logprobs": "counted", "token_ids": "counted"}
    if "N_src" in expected:
        assert record["token_source"] == source.get(expected["N_src"], "reported")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The record of each recorded stream, played at its own pace, one after another."""
    scene = Scene(tmp_path_factory.mktemp("streams"))
    found = {}
    with scene.proxy:
        for file in STREAMS:
            stream = json.loads(file.read_text())
            leaves = stream.get("cancelled_by_client") is True
            found[file.stem] = scene.turn(leaving(stream) if leaves else asks, playing(stream))
    yield found
    scene.server.close()
    scene.inbox.stop()


def playing(stream: dict[str, Any]) -> Any:
    """A server that plays a recorded stream."""
    kind = {"sse": b"text/event-stream", "ndjson": b"application/x-ndjson"}[stream["framing"]]
    head = SSE_HEAD.replace(b"text/event-stream", kind)
    if stream.get("content_encoding"):
        encoding = b"Content-Encoding: " + stream["content_encoding"].encode()
        head = head.replace(b"Transfer", encoding + b"\r\nTransfer")

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        began = time.monotonic()
        peer.send(head)
        for read in stream["reads"]:
            time.sleep(max(0.0, began + read["t_ms"] / 1000 - time.monotonic()))
            peer.send(chunked([base64.b64decode(read["bytes_base64"])]))
        if stream.get("cancelled_by_client"):
            peer.hear_end()
        else:
            peer.send(LAST)

    return server


def leaving(stream: dict[str, Any]) -> Any:
    """A client that leaves once it has all of the stream."""
    size = sum(len(base64.b64decode(read["bytes_base64"])) for read in stream["reads"])

    def client(peer: Peer) -> None:
        peer.send(request(CHAT))
        peer.hear(HEAD_END)
        peer.hear(len(SSE_HEAD) + size)

    return client


def test_a_client_that_leaves_cancels_the_turn_and_reaches_the_server_at_once(scene: Scene) -> None:
    ended: list[float] = []

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD, event("a"), event("b"))
        peer.hear_end()
        ended.append(time.monotonic())

    left: list[float] = []

    def client(peer: Peer) -> None:
        peer.send(request(CHAT))
        peer.hear(b'"b"')
        left.append(time.monotonic())

    record = scene.turn(client, server)
    assert record["ending"] == "cancelled"
    assert (record["output_tokens"], record["token_source"]) == (2, "estimated")
    assert ended[0] - left[0] < 0.2


def test_a_client_that_resets_before_the_first_token_cancels_too(scene: Scene) -> None:
    def client(peer: Peer) -> None:
        peer.send(request("/api/chat"))
        until(lambda: scene.inbox.of("begin"))
        peer.reset()

    record = scene.turn(client, lambda peer: peer.hear_end())
    assert (record["ending"], record["steps"]) == ("cancelled", 0)
    assert record.get("ttft_us") is None and record.get("decode_us") is None


def test_a_server_that_goes_away_truncates_the_turn(scene: Scene) -> None:
    def server(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD, event("a"))

    record = scene.turn(asks, server)
    assert (record["ending"], record["output_tokens"]) == ("truncated", 1)


def test_an_error_of_http_is_counted_and_has_no_latency(scene: Scene) -> None:
    def server(peer: Peer) -> None:
        peer.hear(b"}")
        body = b'{"error":{"message":"' + MARKER.encode() + b'"}}'
        peer.send(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(body), body)

    record = scene.turn(asks, server)
    assert (record["ending"], record["error"]) == ("error", "HTTP 503")
    assert record.get("ttft_us") is None and record["steps"] == 0


def test_an_answer_that_is_not_streamed_has_its_totals_and_no_ttft(scene: Scene) -> None:
    body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],'
    body += b'"usage":{"prompt_tokens":5,"completion_tokens":9}}'

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        time.sleep(0.2)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
        peer.send(head, b"Content-Length: %d\r\n\r\n" % len(body), body)

    record = scene.turn(asks, server)
    assert (record["ending"], record["output_tokens"], record["prompt_tokens"]) == (
        "complete",
        9,
        5,
    )
    assert record.get("ttft_us") is None and record["duration_us"] >= 195_000


def test_what_is_no_request_for_a_turn_is_none(scene: Scene) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

    def server(peer: Peer) -> None:
        while not peer.ended:
            peer.hear(len(peer.heard) + 1)
            peer.send(ok)

    scene.server.script = server
    for words in (
        request("/v1/embeddings"),
        b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        peer = dial(scene.proxy.port)
        peer.send(words)
        peer.hear(HEAD_END)
        peer.close()
    record = scene.turn(asks, streams(0.0))
    assert [one["turn"] for one in scene.inbox.of("begin")] == [record["id"]]


def test_a_model_that_ollama_only_loads_is_no_turn(scene: Scene) -> None:
    line = b'{"model":"m","response":"","done":true,"done_reason":"load"}\n'

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD.replace(b"text/event-stream", b"application/x-ndjson"))
        peer.send(chunked([line]), LAST)

    scene.server.script = server
    peer = dial(scene.proxy.port)
    peer.send(request("/api/generate"))
    peer.hear_end()
    (forgotten,) = scene.inbox.wait_for("forget")
    (begun,) = scene.inbox.of("begin")
    assert forgotten["turn"] == begun["turn"]
    assert scene.inbox.records == []


def test_pipelined_requests_are_turns_in_their_order(scene: Scene) -> None:
    def server(peer: Peer) -> None:
        while peer.heard.count(b"{}") < 2:
            peer.hear(len(peer.heard) + 1)
        peer.send(SSE_HEAD, event("a"), FINISH, LAST)
        peer.send(SSE_HEAD, event("a"), event("b"), FINISH.replace(b":3}", b":4}"), LAST)

    scene.server.script = server
    peer = dial(scene.proxy.port)
    peer.send(request(CHAT), request("/prefix" + CHAT + "?x=1"))
    peer.hear_end()
    until(lambda: len(scene.inbox.records) == 2)
    assert [record["output_tokens"] for record in scene.inbox.records] == [3, 4]


def test_a_slow_client_is_no_slow_decoding(scene: Scene) -> None:
    filler = chunked([b": " + b"x" * 60_000 + b"\n\n"])

    def server(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD, event("a"), event("b"))
        for _ in range(200):
            peer.send(filler)
        peer.send(event("c"), FINISH, LAST)

    def client(peer: Peer) -> None:
        peer.send(request(CHAT))
        peer.hear(b'"b"')
        time.sleep(1.5)
        peer.hear_end()

    record = scene.turn(client, server)
    assert record["ending"] == "complete" and record["steps"] == 3
    assert record.get("decode_us") is None
    # Of the gap in which the client did not read nothing is told.
    steps = [step for one in scene.inbox.of("progress") for step in one["steps"]]
    assert [gap for gap, _ in steps if gap is not None and gap > 1_000_000] == []


def test_nothing_of_a_prompt_or_an_answer_is_logged_or_told(scene: Scene) -> None:
    scene.turn(asks, streams(0.0, 0.0))

    def broken(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(
            SSE_HEAD, chunked([b"data: {" + MARKER.encode() + b"\n\n"]), event(MARKER), b"z\r\n"
        )
        peer.send(MARKER.encode())

    scene.server.script = broken
    peer = dial(scene.proxy.port)
    asks(peer)
    until(lambda: "not understood" in scene.proxy.said())
    scene.proxy.stop()
    assert MARKER not in scene.proxy.said()
    assert MARKER not in json.dumps(scene.inbox.messages)


def test_turns_are_kept_while_the_agent_is_away(scene: Scene) -> None:
    scene.turn(asks, streams(0.0))
    scene.inbox.stop()
    scene.server.script = streams(0.0, 0.05)
    peer = dial(scene.proxy.port)
    asks(peer)
    assert peer.heard.endswith(LAST)
    scene.inbox.start()
    until(lambda: len(scene.inbox.records) == 2, 20)


def test_a_server_that_starts_again_is_another_runtime(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "import socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while True:\n"
        "    channel, _ = listener.accept()\n"
        "    heard = b''\n"
        "    while b'}' not in heard: heard += channel.recv(65536) or b'}'\n"
        "    channel.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n"
        "Content-Length: 2\\r\\n\\r\\n{}'); channel.close()\n"
    )
    inbox = InboxServer(tmp_path / "agent.sock").start()

    def served() -> subprocess.Popen[bytes]:
        made = subprocess.Popen([sys.executable, "-c", program, str(port)])
        until(lambda: _answers(port))
        return made

    def turn() -> bool:
        peer = dial(proxy.port)
        peer.send(request(CHAT))
        return b"200 OK" in peer.hear_end()

    server = served()
    with ProxyProcess(tmp_path, port, engine="toy") as proxy:
        assert turn()
        until(lambda: inbox.of("hello"))
        first = server.pid
        server.kill()
        server.wait()
        server = served()
        assert turn()
        until(lambda: inbox.of("hello")[-1]["of_pid"] == server.pid)
        assert inbox.of("hello")[0]["of_pid"] == first
        until(lambda: len(inbox.records) == 2)
    server.kill()
    server.wait()
    inbox.stop()


def _answers(port: int) -> bool:
    try:
        peer = dial(port)
    except OSError:
        return False
    peer.send(b"GET / HTTP/1.1\r\n\r\n}")
    return bool(peer.hear_end())
