"""Heads, bodies, requests and slots, however their bytes are cut."""

import asyncio
import ipaddress
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.agent.proxy import heads
from decodewatch.agent.proxy.bodies import Chunked, Length, Unreadable
from decodewatch.agent.proxy.orphans import Orphans, Slot, parse_slots
from decodewatch.agent.proxy.requests import Requests
from decodewatch.agent.proxy.settings import ProxySettings, Upstream
from decodewatch.agent.proxy.turns import Turns
from decodewatch.agent.runtimes import listening
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.shared.settings import describe

PAGE = Path(__file__).resolve().parents[3] / "docs/proxy.md"
REQUESTS = (
    b"\r\nPOST /v1/chat/completions HTTP/1.1\r\nhOsT: there\r\nContent-Length: 5\r\n\r\nhello"
    b"GET / HTTP/1.1\nHost:there\nX: Host: there\n\n"
    b"POST /x HTTP/1.1\r\nHost: \t there \r\nTransfer-Encoding: Chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\n00\r\nHost: there\r\n\r\n"
    b"GET / HTTP/1.0\r\n\r\n"
)
PASSED_ON = (
    REQUESTS.replace(b"hOsT: there", b"hOsT: here:1")
    .replace(b"Host:there", b"Host:here:1")
    .replace(b"Host: \t there ", b"Host: \t here:1 ")
)


class Nobody:
    """A server of which nothing is known (`turns.Server`)."""

    ready = False

    def check(self) -> None:
        """Nothing to look at."""

    def see(self, server: str) -> None:
        """Nothing to learn."""

    def monitor(self) -> DecodeMonitor:
        return DecodeMonitor("proxy", engine="toy", of_pid=0, link=Link())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[a:b] for a, b in pairwise(ends)]


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_requests_pass_with_another_host_however_they_are_cut(places: list[int]) -> None:
    loop = asyncio.new_event_loop()
    try:
        turns = Turns(Nobody(), loop, lambda monitor, turn: None)
        requests = Requests(b"here:1", turns)
        out = b"".join(requests.feed(0, part) for part in cut(REQUESTS, places))
        assert out == PASSED_ON and requests.rest() == b"" and not requests.plain
        assert [one.turn is not None for one in requests.exchanges] == [True, False, False, False]
    finally:
        loop.close()


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.lists(st.integers(0, 9999)))
def test_a_chunked_body_has_its_content_and_its_end(parts: list[bytes], places: list[int]) -> None:
    body = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(part), part) for part in parts)
    whole = body + b"0\r\nTrailer: x\r\n\r\n"
    reader, used = Chunked(), 0
    content: list[bytes] = []
    for piece in cut(whole + b"next", places):
        if not reader.done:
            used += reader.feed(piece, 0, content)
    assert reader.done and used == len(whole)
    assert b"".join(content) == b"".join(parts)


@pytest.mark.parametrize("body", [b"x\r\n", b"-1\r\n", b"\r\n", b"1\r\nab\r\n", b"1" * 17_000])
def test_what_is_no_chunk_is_not_read(body: bytes) -> None:
    with pytest.raises(Unreadable):
        Chunked().feed(body + b"\r\n", 0, None)


def test_a_body_of_a_length_ends_there() -> None:
    body = Length(3)
    content: list[bytes] = []
    assert body.feed(b"xab", 1, content) == 3 and not body.done
    assert body.feed(b"cdef", 0, content) == 1 and body.done
    assert b"".join(content) == b"abc"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /\r\nHost: a",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b",
        b"GET / HTTP/1.1\r\n folded: a",
        b"GET / HTTP/1.1\r\nName : a",
        b"GET / HTTP/1.1\r\nContent-Length: +1",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked",
        b"GET / HTTP/1.1\r\nName: a\rTransfer-Encoding: chunked",
        b"GET / HTTP/1.1\r\nName: a\0b",
        b"GET /a\x0bb HTTP/1.1\r\nHost: a",
    ],
)
def test_a_head_that_two_readers_might_read_differently_is_not_understood(head: bytes) -> None:
    assert heads.parse_request(head) is None


@pytest.mark.parametrize(
    ("method", "target", "generates"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/proxy/openai/v1/chat/completions?api-version=1", True),
        ("POST", "http://a:1/v1/completions", True),
        ("POST", "/completion", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/messages", True),
        ("POST", "/v1/messages/count_tokens", False),
        ("POST", "/api/chat", True),
        ("POST", "/api/generate", True),
        ("POST", "/v2/models/m/generate_stream", True),
        ("POST", "/v1/embeddings", False),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/api/chats", False),
    ],
)
def test_a_turn_is_known_by_its_method_and_path(method: str, target: str, generates: bool) -> None:
    request = heads.parse_request(f"{method} {target} HTTP/1.1\r\nHost: a".encode())
    assert request is not None and request.generates is generates


@pytest.mark.parametrize("between", [b" ", b"\t ", b" \r", b" \0", b":", b"a "])
@pytest.mark.parametrize("name", [b"Host", b"Name"])
def test_no_head_takes_longer_than_its_length(name: bytes, between: bytes) -> None:
    value = between * (heads.MOST_BYTES // len(between) - 40)
    head = b"GET / HTTP/1.1\r\n" + name + b": a" + value + b"a"
    began = time.process_time()
    heads.parse_request(head)
    heads.with_host(head, b"upstream")
    heads.parse_answer(head.replace(b"GET / HTTP/1.1", b"HTTP/1.1 200 OK"))
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize(
    ("head", "renamed"),
    [
        (b"GET / HTTP/1.1\r\nA: b\r\nhOsT:\t a b \r\nC: d", b"A: b\r\nhOsT:\t u:1 \r\nC: d"),
        (b"GET / HTTP/1.1\nHost:\n", b"Host:u:1\n"),
        (b"GET / HTTP/1.1\r\nX-Host: a", b"X-Host: a"),
        (b"Host: a\r\n", b""),
    ],
)
def test_host_alone_is_changed_and_the_space_around_it_stays(head: bytes, renamed: bytes) -> None:
    first = head.partition(b"\n")[0] + b"\n"
    assert heads.with_host(head, b"u:1") == first + renamed


def test_slots_of_one_task_are_no_fault_of_the_watch() -> None:
    slots = b"""[{"is_processing":true},{"is_processing":true,"next_token":[{"n_decoded":3}]}]"""

    async def watched() -> Orphans:
        watch = Orphans(Upstream("http", "127.0.0.1", 1), None, lambda: 0)
        watch.watch(DecodeMonitor("toy", engine="toy", of_pid=0), "t1")
        watch._see(parse_slots(slots), time.monotonic() + 3)
        watch.stop()
        return watch

    (left,) = asyncio.run(watched())._watched
    assert left.working_s == pytest.approx(3, abs=0.5)


def test_slots_say_who_works_in_old_and_new_builds() -> None:
    slots = [
        {"id": 0, "is_processing": True, "id_task": 3, "next_token": [{"n_decoded": 41}]},
        {"id": 1, "is_processing": True, "id_task": 4, "next_token": {"n_decoded": 2}},
        {"id": 2, "is_processing": True, "next_token": None},
        {"id": 3, "is_processing": False},
        "odd",
    ]
    assert parse_slots(json.dumps(slots).encode()) == [Slot(3, 41), Slot(4, 2), Slot(-1, None)]
    assert parse_slots(b"[[") == [] and parse_slots(b"{}") == []


def test_an_upstream_is_called_as_its_url_calls_it() -> None:
    def upstream(url: str) -> Upstream:
        return ProxySettings(upstream=url).upstream_address()

    assert upstream("http://localhost:8080/").authority == "localhost:8080"
    assert upstream("http://[::1]:80").authority == "[::1]"
    assert upstream("https://a").url == "https://a"


def test_every_setting_and_limit_is_in_the_page() -> None:
    page = PAGE.read_text()
    for item in describe(ProxySettings):
        assert f"| `{item.name}` |" in page, item.name


def test_a_listening_socket_is_found_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as every:
        loopback = ipaddress.ip_address("127.0.0.1")
        for listener in (one, every):
            found = listening.find(loopback, listener.getsockname()[1])
            assert found is not None and found.pid == os.getpid() and listening.lives(found)
        port = one.getsockname()[1]
        assert listening.find(ipaddress.ip_address("192.0.2.1"), port) is None
        assert listening.find(ipaddress.ip_address("127.0.0.2"), port) is None
    assert listening.find(loopback, port) is None


def test_a_table_of_sockets_is_read_with_its_oddities() -> None:
    table = (
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid\n"
        b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1\n"
        b"   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 12 1\n"
        b"   2: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 13 1\n"
        b"   3: 0000000000000000FFFF00000100007F:1F90 0:0 0A 0:0 0:0 0 0 0 14 1\n"
        b"   4: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 15 1\n"
        b"   5: bad\n   6: zz:1 x 0A x x x x x 16\n"
    )
    found = listening.parse_listening(table, ipaddress.ip_address("127.0.0.1"), 8080)
    assert found == {11, 13, 14}


def test_the_unit_of_the_proxy_runs_a_command_that_exists() -> None:
    unit = (PAGE.parents[1] / "deploy/decodewatch-proxy.service").read_text()
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2])
    done = subprocess.run(
        [sys.executable, "-m", "decodewatch.shared.cli", *words[1:3], "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "--upstream" in done.stdout
