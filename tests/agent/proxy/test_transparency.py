"""Through the proxy both sides see byte for byte what they see without it, but for Host."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.proxying import (
    FINISH,
    HEAD_END,
    LAST,
    SSE_HEAD,
    Peer,
    ProxyProcess,
    Script,
    ScriptedServer,
    chunked,
    dial,
    event,
    request,
)
from support.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHAT = "/v1/chat/completions"
GET = b"GET /health HTTP/1.1\r\nHost: client.example\r\n\r\n"


class Scene:
    """The server in front of which the proxy stands, one script after another."""

    def __init__(self, folder: Path) -> None:
        self.server = ScriptedServer(lambda peer: None)
        self.proxy = ProxyProcess(folder, self.server.port, engine="toy")

    def play(self, port: int, client: Script, server: Script, step: int) -> tuple[Peer, Peer]:
        """Both sides of one connection."""
        self.server.peers.clear()
        self.server.faults.clear()

        def stepped(peer: Peer) -> None:
            peer.step = step
            server(peer)

        self.server.script = stepped
        here = dial(port)
        here.step = step
        client(here)
        here.close()
        (there,) = self.server.peers
        until(lambda: there.done)
        return here, there


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("proxy"))
    with made.proxy:
        yield made
    made.server.close()


def renamed(heard: bytes, scene: Scene) -> bytes:
    """What a server heard, if its client had called it as the proxy does."""
    return heard.replace(b"client.example", b"127.0.0.1:%d" % scene.server.port)


def says(*parts: bytes) -> Callable[[Peer], None]:
    """A client that says all at once and reads to the end."""

    def client(peer: Peer) -> None:
        peer.send(*parts)
        peer.hear_end()

    return client


def answers(heads: int, *parts: bytes, after: bytes = b"") -> Callable[[Peer], None]:
    """A server that answers once it has heard so many heads, and what comes after them."""

    def server(peer: Peer) -> None:
        while not peer.ended and peer.heard.count(HEAD_END) < heads:
            peer.hear(len(peer.heard) + 1)
        peer.hear(after)
        peer.send(*parts)

    return server


def expecting(peer: Peer) -> None:
    body = b"the body that waited"
    head = request(CHAT, b"", more="Expect: 100-continue\r\n")
    peer.send(head.replace(b"Length: 0", b"Length: %d" % len(body)))
    peer.hear(b"100 Continue\r\n\r\n")
    peer.send(body)
    peer.hear_end()


def continuing(peer: Peer) -> None:
    peer.hear(HEAD_END)
    peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    peer.hear(b"waited")
    peer.send(OK)


def upgrading(peer: Peer) -> None:
    peer.send(b"GET /ws HTTP/1.1\r\nHost: client.example\r\nUpgrade: websocket\r\n\r\n")
    peer.hear(HEAD_END)
    peer.send(b"\x81\x05hello GET /x HTTP/1.1\r\nHost: client.example\r\n\r\n")
    peer.hear_end()


def switching(peer: Peer) -> None:
    peer.hear(HEAD_END)
    peer.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
    peer.hear(b"/x HTTP/1.1\r\nHost: client.example\r\n\r\n")
    peer.send(b"\x82\x02\x00\xffHTTP/1.1 200 what\r\n\r\n")


def half_closing(peer: Peer) -> None:
    peer.send(request(CHAT))
    peer.end_sending()
    peer.hear_end()


def after_their_end(peer: Peer) -> None:
    peer.hear_end()
    peer.send(SSE_HEAD, event("late"), FINISH, LAST)


def resets(peer: Peer) -> None:
    peer.hear(HEAD_END)
    peer.send(SSE_HEAD, event("a"))
    while peer.heard.count(HEAD_END) < 2:
        peer.hear(len(peer.heard) + 1)
    peer.reset()


def goes_on(peer: Peer) -> None:
    peer.send(request(CHAT))
    peer.hear(b'"a"')
    peer.send(GET)
    peer.hear_end()


def speaks_first(peer: Peer) -> None:
    peer.send(b"220 no HTTP at all\r\n")
    peer.hear(b"QUIT\r\n")
    peer.send(b"221 bye\r\n")


def listens_first(peer: Peer) -> None:
    peer.hear(b"\r\n")
    peer.send(b"QUIT\r\n")
    peer.hear_end()


SLOW = gzip.compress(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 3)
BIG_HEAD = b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\nHost: client.example\r\n\r\n"
SCENES: dict[str, tuple[Script, Script]] = {
    "a request and its answer": (says(request("/x", b"hello")), answers(1, OK, after=b"hello")),
    "one request after another": (says(GET, GET, GET), answers(3, OK, OK, OK)),
    "a stream": (says(request(CHAT)), answers(1, SSE_HEAD, event("a"), event("b"), FINISH, LAST)),
    "chunks with extensions and trailers": (
        says(
            b"POST /v1/messages HTTP/1.1\r\nhost:client.example\r\n",
            b"transfer-encoding: chunked\r\n\r\n",
            b'5;a="b;c"\r\nhello\r\n0000\r\nTrailer: yes\r\n\r\n',
            GET,
        ),
        answers(
            3,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"3 ; x\r\nabc\r\n0\r\nT: 1\r\n\r\n",
            OK,
        ),
    ),
    "100-continue": (expecting, continuing),
    "417 instead of it": (
        says(request(CHAT, b"", more="Expect: 100-continue\r\n")),
        answers(1, b"HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\n\r\n"),
    ),
    "hints before the answer": (says(GET), answers(1, b"HTTP/1.1 103 Early Hints\r\n\r\n", OK)),
    "HEAD": (
        says(GET.replace(b"GET", b"HEAD"), GET),
        answers(2, b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n", OK),
    ),
    "no content, not modified": (
        says(GET, GET, GET),
        answers(
            3,
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            OK,
        ),
    ),
    "HTTP/1.0 without Host": (
        says(b"GET / HTTP/1.0\r\n\r\n"),
        answers(1, b"HTTP/1.0 200 OK\r\n\r\nuntil the end"),
    ),
    "errors": (
        says(request(CHAT), request(CHAT)),
        answers(
            2,
            b'HTTP/1.1 429 Slow down\r\nContent-Length: 13\r\n\r\n{"error":"x"}',
            b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n",
        ),
    ),
    "gzip": (
        says(request(CHAT)),
        answers(
            1,
            SSE_HEAD.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer"),
            chunked([SLOW[:20], SLOW[20:]]),
            LAST,
        ),
    ),
    "an upgrade": (upgrading, switching),
    "an upgrade that is not taken": (
        says(request(CHAT, more="Upgrade: h2c\r\nConnection: Upgrade\r\n")),
        answers(1, SSE_HEAD, event("a"), FINISH, LAST),
    ),
    "CONNECT": (
        says(b"CONNECT a:1 HTTP/1.1\r\n\r\n"),
        answers(1, b"HTTP/1.1 200 OK\r\n\r\nanything"),
    ),
    "HTTP/2 at once": (
        says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nclient"),
        answers(2, b"\x00\x00\x00\x04", after=b"client"),
    ),
    "no HTTP": (listens_first, speaks_first),
    "two lengths": (
        says(b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", GET),
        answers(2, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ),
    "length and chunks": (
        says(
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        answers(1, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ),
    "no chunk after all": (
        says(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", GET),
        answers(2, b"HTTP/1.1 400 Bad Request\r\n\r\n", after=b"example\r\n\r\n"),
    ),
    "answers that are none": (says(request(CHAT)), answers(1, b"data: hello\n\n" * 9)),
    "chunks that are none": (says(request(CHAT)), answers(1, SSE_HEAD, b"zz\r\nhello\r\n")),
    "the end of half a connection": (half_closing, after_their_end),
    "an answer that breaks off": (
        says(request(CHAT)),
        answers(1, SSE_HEAD, event("a")[:-9], after=b"{}"),
    ),
    "a reset": (goes_on, resets),
    "half a head": (says(b"GET / HTT"), lambda peer: None),
}


# Of these the proxy understands nothing from some point on, and leaves it as it is.
UNCHANGED = ("no HTTP", "two lengths", "no chunk after all")


@pytest.mark.parametrize("step", [0, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("name", SCENES)
def test_both_sides_see_what_they_see_without_a_proxy(scene: Scene, name: str, step: int) -> None:
    client, server = SCENES[name]
    plain = scene.play(scene.server.port, client, server, step)
    through = scene.play(scene.proxy.port, client, server, step)
    assert through[0].heard == plain[0].heard
    assert through[0].ended == plain[0].ended
    changed = plain[1].heard
    if name not in UNCHANGED and name != "an upgrade":
        changed = renamed(changed, scene)
    elif name == "an upgrade":
        # Of the request alone: what comes after it is another protocol.
        head, end, rest = changed.partition(HEAD_END)
        changed = renamed(head, scene) + end + rest
    assert through[1].heard == changed
    assert scene.server.faults == []


def test_a_head_that_is_too_long_passes_as_it_is(scene: Scene) -> None:
    _, there = scene.play(scene.proxy.port, says(BIG_HEAD), answers(1, OK), 0)
    assert there.heard == BIG_HEAD


def test_bodies_of_many_megabytes_pass_both_ways(scene: Scene) -> None:
    piece = bytes(range(256)) * 4096
    count = 24

    def upload(peer: Peer) -> None:
        head = request(CHAT, b"").replace(b"Length: 0", b"Length: %d" % (count * len(piece)))
        peer.send(head, piece * count)
        peer.hear_end()

    def download(peer: Peer) -> None:
        body = peer.hear(HEAD_END).partition(HEAD_END)[2]
        digest, left = hashlib.sha256(body), count * len(piece) - len(body)
        while left:
            data = peer.channel.recv(1 << 20)
            digest.update(data)
            left -= len(data)
        assert digest.digest() == hashlib.sha256(piece * count).digest()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * len(piece)))
        peer.send(piece * count)

    here, _ = scene.play(scene.proxy.port, upload, download, 0)
    assert scene.server.faults == []
    assert zlib.crc32(here.heard.partition(HEAD_END)[2]) == zlib.crc32(piece * count)
