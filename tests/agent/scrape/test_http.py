"""One request against a server that behaves in every way that it can."""

import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from support.scrape_server import ScrapeServer, answer, chunked

from decodewatch.agent.scrape.http import MAX_BYTES, Answer, Fault, Get, Result, fault_of
from decodewatch.agent.scrape.targets import Target
from decodewatch.shared.clock import boot_us

LOOPBACK = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[ScrapeServer]:
    with ScrapeServer({}) as made:
        yield made


def get(port: int, path: str = "/x", seconds: float = 5, **of: str) -> Result:
    """What becomes of a request; no turn of the loop may take long meanwhile."""
    selector = selectors.DefaultSelector()
    target = Target(of.get("address", LOOPBACK), port, of.get("prefix", ""))
    made = Get(selector, target, path, of.get("key"), boot_us() + round(seconds * 1e6))
    longest = 0.0
    while made.result is None:
        ready = selector.select(0.05)
        began = time.monotonic()
        for key, mask in ready:
            key.data(mask)
        made.late(boot_us())
        longest = max(longest, time.monotonic() - began)
    assert longest < 0.5
    assert not selector.get_map()
    selector.close()
    return made.result


def reply(server: ScrapeServer, answers: bytes | Callable[[socket.socket], None]) -> Result:
    server.answers["/x"] = answers
    return get(server.port)


@pytest.mark.parametrize(
    "raw",
    [
        answer("hello"),
        chunked(b"he", b"llo"),
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello and more that is not of it",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer("hello"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_an_answer_is_read_however_it_is_framed_and_cut(server: ScrapeServer, raw: bytes) -> None:
    def slowly(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw:
            connection.sendall(bytes([byte]))

    for how in (raw, slowly):
        found = reply(server, how)
        assert isinstance(found, Answer)
        assert (found.status, found.body) == (200, b"hello")


def test_headers_are_known_by_their_names_in_lower_case(server: ScrapeServer) -> None:
    found = reply(server, answer("", "200 OK", "Process-Start-Time-Unix: 17"))
    assert isinstance(found, Answer)
    assert found.headers["process-start-time-unix"] == "17"


def test_the_request_names_the_host_the_prefix_and_the_key(server: ScrapeServer) -> None:
    server.answers["/v2/x"] = answer("")
    assert fault_of(get(server.port, prefix="/v2", key="sk-1")) is None
    head = server.heads[0].decode()
    assert head.startswith("GET /v2/x HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in head
    assert "\r\nAuthorization: Bearer sk-1\r\n" in head
    assert "\r\nAccept-Encoding: identity\r\n" in head


def test_ipv6_is_asked_too() -> None:
    with ScrapeServer({"/x": answer("hello")}, address="::1") as server:
        assert isinstance(get(server.port, address="::1"), Answer)
        assert f"Host: [::1]:{server.port}".encode() in server.heads[0]


def test_a_fault_names_the_request_with_its_prefix_and_not_at_any_length(
    server: ScrapeServer,
) -> None:
    fault = fault_of(get(server.port, "/metrics", prefix="/v1"))
    assert fault == Fault("unsupported", "GET /v1/metrics: status 404")
    fault = fault_of(get(server.port, prefix="/a" * 1000))
    assert fault is not None and len(fault.word) < 200  # it goes into an event


def test_nobody_listening_is_absent() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    found = get(port)
    assert isinstance(found, Fault) and found.reason == "absent"


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\n", answer("hello")[:-1], chunked(b"hello")[:-8]]
)
def test_an_answer_that_stays_out_ends_at_the_deadline(server: ScrapeServer, begin: bytes) -> None:
    def hang(connection: socket.socket) -> None:
        connection.sendall(begin)
        server.hang(connection)

    server.answers["/x"] = hang
    began = time.monotonic()
    assert get(server.port, seconds=0.4) == Fault("transient", "GET /x: no answer in time")
    assert time.monotonic() - began < 3


def test_a_server_that_takes_no_connection_ends_at_the_deadline() -> None:
    with socket.socket() as full:
        full.bind((LOOPBACK, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex((LOOPBACK, port))
        assert get(port, seconds=0.4) == Fault("transient", "GET /x: no answer in time")
        for one in waiting:
            one.close()


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\nConte", answer("hello")[:-1], chunked(b"hello")[:-9]]
)
def test_half_an_answer_is_cut_short(server: ScrapeServer, raw: bytes) -> None:
    assert reply(server, raw) == Fault("transient", "GET /x: cut short")


def test_a_reset_is_transient(server: ScrapeServer) -> None:
    def reset(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    found = reply(server, reset)
    assert isinstance(found, Fault) and found.reason == "transient"


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b""],
)
def test_an_endless_answer_ends_at_its_bound(server: ScrapeServer, head: bytes) -> None:
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(head)
        while True:
            connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 65536

    found = reply(server, endless)
    assert isinstance(found, Fault) and found.reason == "implausible"
    assert sent < MAX_BYTES + (16 << 20)  # what the kernel's buffers hold besides


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"220 smtp.example.org ESMTP\r\n\r\n", "no HTTP/1 answer"),
        (b"SSH-2.0-x\r\n", "no HTTP/1 answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20000, "interim answers without an end"),
        (b"HTTP/2 200\r\n\r\n", "no HTTP/1 answer"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "no HTTP/1 answer"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "a header without a colon"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "two lengths"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n", "longer than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unknown transfer-encoding"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
            "content-encoding that nobody asked for",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "a chunk without a size",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 9 + b"\r\n",
            "a chunk without a size",
        ),
    ],
)
def test_what_breaks_the_rules_is_implausible(server: ScrapeServer, raw: bytes, word: str) -> None:
    assert reply(server, raw) == Fault("implausible", f"GET /x: {word}")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("301 Moved", "unsupported"),
        ("307 Temporary Redirect", "unsupported"),
        ("401 Unauthorized", "denied"),
        ("403 Forbidden", "denied"),
        ("404 Not Found", "unsupported"),
        ("501 Not Implemented", "unsupported"),
        ("429 Too Many Requests", "transient"),
        ("503 Service Unavailable", "transient"),
    ],
)
def test_a_status_says_why_there_is_nothing(server: ScrapeServer, status: str, reason: str) -> None:
    elsewhere = f"Location: http://127.0.0.1:{server.port}/other"
    fault = fault_of(reply(server, answer("", status, elsewhere)))
    assert fault is not None and fault.reason == reason
    assert fault.word.startswith(f"GET /x: status {status[:3]}")
    assert server.asked == ["/x"]  # a redirection is not followed
