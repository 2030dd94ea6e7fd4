"""The proxy between real clients, llama.cpp's own server with a real model, and the real agent."""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.application import AgentProcess
from support.brokers import free_port, listens
from support.inbox_server import InboxServer
from support.proxying import SSE_HEAD, Peer, ProxyProcess, ScriptedServer, dial, event, request
from support.spooled import events, records
from support.waiting import until

from decodewatch.shared.records import Runtime, Turn, Window

pytest.importorskip("xllamacpp")

CHAT = "/v1/chat/completions"
MARKER = "zanzibarmarker"
PROGRAM = Path(__file__).resolve().parents[2] / "support/llama_server.py"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Port and pid of a server."""
    port = free_port()
    log = tmp_path_factory.mktemp("llama") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(port)], stdout=out, stderr=out
        )
    until(lambda: b"listens at" in log.read_bytes() and listens(port), 60, "the model is loaded")
    yield port, process.pid
    process.kill()
    process.wait()


def body(content: str, **more: Any) -> bytes:
    whole = {"messages": [{"role": "user", "content": content}], **more}
    return json.dumps(whole).encode()


def ask(port: int, content: str, **more: Any) -> bytes:
    """The whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", CHAT, body(content, **more))
    answer = connection.getresponse().read()
    connection.close()
    return answer


def test_turns_of_a_real_server(llama: tuple[int, int], tmp_path: Path) -> None:
    port, pid = llama
    agent = AgentProcess(tmp_path, report_interval_s=1)
    agent.start()
    with ProxyProcess(tmp_path, port, socket=agent.socket) as proxy:
        # A token that ends an answer is one that no client sees: not here.
        streaming = [
            ask(proxy.port, f"{MARKER} {number}", stream=True, max_tokens=24, ignore_eos=True)
            for number in range(5)
        ]
        whole = json.loads(ask(proxy.port, "hello", max_tokens=8))
        two = [
            threading.Thread(
                target=ask,
                args=(proxy.port, f"say {number}"),
                kwargs={"max_tokens": 60, "stream": True},
            )
            for number in range(2)
        ]
        for one in two:
            one.start()
        for one in two:
            one.join(60)
        # The agent dies in the middle of a turn, and another one comes.
        leaves = dial(proxy.port)
        endless = body("count", stream=True, max_tokens=3000, ignore_eos=True)
        leaves.send(request(CHAT, endless))
        leaves.hear(b'"content":"')
        agent.kill()
        time.sleep(0.3)
        agent.start()
        leaves.close()
        # In prefill: nothing but the request has passed.
        early = dial(proxy.port)
        early.send(request(CHAT, body("word " * 1200, stream=True, max_tokens=50)))
        time.sleep(0.3)
        early.close()
        again = dial(proxy.port)
        again.channel.settimeout(60)
        again.send(request(CHAT, body("last", stream=True, max_tokens=2)))
        assert b"[DONE]" in again.hear(b"[DONE]")
        again.close()
        status, seconds = proxy.stop()
        assert (status, seconds < 5) == (0, True)
        assert "all_turns_stored=True" in proxy.said()
        said = proxy.said()
    agent.stop()

    turns = {turn.t: turn for turn in records(agent.state, Turn)}
    *streamed, plain, first, second, cut, early_cut, last = (turns[t] for t in sorted(turns))
    prefill_off, decode_off = [], []
    for turn, answer in zip(streamed, streaming, strict=True):
        events_of = [line for line in answer.split(b"\n\n") if b'"content":"' in line]
        assert (turn.ending, turn.token_source) == ("complete", "reported")
        assert turn.steps == len(events_of)
        timings = json.loads(
            next(line for line in answer.split(b"\n\n") if b'"timings"' in line)[6:]
        )["timings"]
        assert turn.output_tokens == timings["predicted_n"]
        assert turn.prompt_tokens == timings["prompt_n"] + timings["cache_n"]
        assert turn.ttft_us is not None and turn.decode_us is not None
        prefill_off.append((turn.ttft_us / 1000, timings["prompt_ms"]))
        decode_off.append((turn.decode_us / 1000, timings["predicted_ms"]))
    # On a busy machine the server's own thread may be late with an event that it has timed.
    assert _agree(prefill_off, 60) and _agree(decode_off, 2), (prefill_off, decode_off)
    assert (plain.ending, plain.steps, plain.ttft_us) == ("complete", 0, None)
    assert plain.output_tokens == whole["usage"]["completion_tokens"]
    assert (first.concurrency, second.concurrency) == (2, 2)
    assert (cut.ending, cut.token_source) == ("cancelled", "estimated") and cut.steps >= 1
    assert (early_cut.ending, early_cut.steps, early_cut.ttft_us) == ("cancelled", 0, None)
    assert (last.ending, last.output_tokens) == ("complete", 2)

    # All of them are the server's own, and so is the memory.
    runtimes = records(agent.state, Runtime)
    assert {(one.pid, one.engine) for one in runtimes} == {(pid, "llama.cpp")}
    assert {turn.runtime for turn in turns.values()} == {runtimes[0].id}
    assert all((turn.memory_end_bytes or 0) > 30 << 20 for turn in (*streamed, plain, last))
    concurrency = {part.concurrency for one in records(agent.state, Window) for part in one.strata}
    assert {1, 2} <= concurrency
    assert events(agent.state, "runtime_ended") == []

    spool = b"".join(file.read_bytes() for file in agent.state.iterdir() if file.is_file())
    for text in (said, agent.log.read_text(), spool.decode("latin-1")):
        assert MARKER not in text


def _agree(pairs: list[tuple[float, float]], most_ms: float) -> bool:
    """Whether most of the pairs are within 5 % or so many ms."""
    within = [one == pytest.approx(other, rel=0.05, abs=most_ms) for one, other in pairs]
    return sum(within) * 2 > len(within)


def test_a_server_that_works_on_for_nobody_is_an_event(tmp_path: Path) -> None:
    """llama.cpp's server obeys when it decodes; this one has the same interface, and does not."""
    tokens = 40

    def server(peer: Peer) -> None:
        nonlocal tokens
        heard = peer.hear(b"\r\n\r\n")
        if heard.startswith(b"GET /slots"):
            tokens += 1
            slot = {"id": 0, "is_processing": True, "id_task": 7, "prompt": MARKER}
            slots = json.dumps([{**slot, "next_token": [{"n_decoded": tokens}]}, {"id": 1}])
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(slots)}\r\n\r\n"
            peer.send(head.encode(), slots.encode())
        else:
            peer.send(SSE_HEAD.replace(b"Content-Type", b"Server: llama.cpp\r\nContent-Type"))
            peer.send(event("a"))
            peer.hear_end()

    inbox = InboxServer(tmp_path / "agent.sock").start()
    scripted = ScriptedServer(server)
    with ProxyProcess(tmp_path, scripted.port, engine="llama.cpp") as proxy:
        client = dial(proxy.port)
        client.send(request(CHAT))
        client.hear(b'"a"')
        client.close()
        (told,) = inbox.wait_for("event", seconds=15)
        assert MARKER not in proxy.said()
    assert told["event"] == "orphaned_generation"
    assert told["turn"] == inbox.records[0]["id"]
    assert 4 <= told["data"]["working_s"] <= 7
    assert 3 <= told["data"]["tokens"] <= 5 and told["data"]["stopped"] is False
    scripted.close()
    inbox.stop()
