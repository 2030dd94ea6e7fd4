"""The inbox over HTTP: who is let in, what a request may be, and what one bad client costs."""

import contextlib
import http.client
import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.application import AgentProcess, turn_fields
from support.spooled import records
from support.waiting import until

from decodewatch.agent import inbox_http
from decodewatch.agent.errors import AgentError
from decodewatch.agent.inbox import Connection
from decodewatch.agent.inbox_http import (
    CONNECTIONS_A_SECOND,
    MAX_BODY,
    MAX_CONNECTIONS,
    MAX_HEAD,
    MAX_MESSAGES,
    REQUESTS_A_SECOND,
    Denied,
    HttpInbox,
    listen,
    read_head,
    read_token,
)
from decodewatch.agent.messages import Begin, Ended, Message, Refusal
from decodewatch.agent.settings import AgentSettings
from decodewatch.shared.clock import boot_us
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.records import Floor, Runtime, Turn, Window

TOKEN = "correct-horse-battery-staple"
PAGE = Path(__file__).resolve().parents[2] / "docs/inbox.md"
HELLO = b'{"type":"hello","v":1,"name":"app","engine":"mlc","pid":4711}\n'


def request(
    body: bytes = HELLO,
    *,
    method: str = "POST",
    path: str = "/v1/messages",
    version: str = "HTTP/1.1",
    token: str | None = TOKEN,
    host: str | None = "127.0.0.1:8126",
    length: str | None = None,
    headers: str = "",
) -> bytes:
    """The bytes of one request."""
    head = f"{method} {path} {version}\r\n"
    head += "" if host is None else f"Host: {host}\r\n"
    head += "" if token is None else f"Authorization: Bearer {token}\r\n"
    head += f"Content-Length: {len(body) if length is None else length}\r\n{headers}\r\n"
    return head.encode("latin-1") + body


class Server:
    """The inbox and its loop, which only turns inside `pump`. Turns are stored by `store`."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.closings = 0
        self.turns: list[tuple[Connection, str]] = []
        self.selector = selectors.DefaultSelector()
        listener = listen(0)
        self.port = listener.getsockname()[1]
        self.inbox = HttpInbox(listener, TOKEN, self.selector, self)

    def message(self, connection: Connection, message: Message) -> None:
        assert connection.pid == 0, "nobody knows the process behind a request"
        self.heard.append(message)
        if message.TYPE == "hello":
            connection.send({"type": "welcome"})
        if isinstance(message, Begin) and message.turn == "crash":
            raise ZeroDivisionError("a fault of the agent")
        if isinstance(message, Ended):
            if message.record.get("refuse"):
                raise Refusal("turn.t: no", str(message.record["id"]))
            self.turns.append((connection, str(message.record["id"])))

    def closed(self, connection: Connection) -> None:
        self.closings += 1

    def store(self) -> None:
        """What the spool's commit does."""
        turns, self.turns = self.turns, []
        for connection, turn in turns:
            connection.send({"type": "stored", "turn": turn})

    def pump(self) -> None:
        for _ in range(2000):
            ready = self.selector.select(0)
            self.inbox.tick()
            if not ready and not self.inbox.later:
                return
            for key, mask in ready:
                key.data(mask)
        raise AssertionError("the loop never comes to rest")

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), 5)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pump()
        return client


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    with contextlib.suppress(KeyError, ValueError):  # the test has closed it
        made.inbox.close()
    made.inbox.disconnect()
    made.selector.close()


def received(server: Server, client: socket.socket) -> bytes:
    """What the server has answered by now."""
    server.pump()
    found = b""
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        while chunk := client.recv(1 << 16):
            found += chunk
    client.settimeout(5)
    return found


def answers(content: bytes) -> list[tuple[int, list[dict[str, Any]]]]:
    """The responses in what a server has sent: their status and the lines of their bodies."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 100:
            found.append((status, []))
            content = rest
            continue
        (length,) = (int(line[15:]) for line in head.split(b"\r\n") if line[:15] == _LENGTH)
        assert b"Access-Control" not in head
        lines = rest[:length].splitlines()
        found.append((status, [json.loads(line) for line in lines]))
        content = rest[length:]
    return found


_LENGTH = b"Content-Length:"


def ask(server: Server, content: bytes) -> list[tuple[int, list[dict[str, Any]]]]:
    """What a new connection that sends this is answered."""
    with server.connect() as client:
        client.sendall(content)
        return answers(received(server, client))


def ended(server: Server, client: socket.socket) -> bool:
    """Whether the server has closed, all it sent being read."""
    server.pump()
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


# What it is for.


def test_messages_are_handled_and_answered_line_by_line(server: Server) -> None:
    body = HELLO + b'\n{"type":"begin","turn":"t1","t":1}\r\nnonsense\n{"type":"bye"}'
    ((status, lines),) = ask(server, request(body))
    assert status == 200
    assert [message.TYPE for message in server.heard] == ["hello", "begin", "bye"]
    assert [line["type"] for line in lines] == ["welcome", "refused"]


def test_a_request_is_answered_once_its_turns_are_stored_and_not_before(server: Server) -> None:
    turns = b"".join(b'{"type":"turn","record":{"id":"t%d"}}\n' % n for n in range(3))
    with server.connect() as client:
        client.sendall(request(HELLO + turns))
        assert received(server, client) == b""
        server.store()
        ((status, lines),) = answers(received(server, client))
        assert status == 200
        assert [line.get("turn") for line in lines] == [None, "t0", "t1", "t2"]


def test_a_refused_turn_is_not_waited_for(server: Server) -> None:
    body = HELLO + b'{"type":"turn","record":{"id":"t1","refuse":true}}\n{"type":"turn"}\n'
    ((_, lines),) = ask(server, request(body))
    assert [line["type"] for line in lines] == ["welcome", "refused", "refused"]
    assert lines[1]["turn"] == "t1"


def test_a_turn_that_is_not_stored_in_time_is_left_without_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_http, "ANSWER_S", 0.05)
    with server.connect() as client:
        client.sendall(request(HELLO + b'{"type":"turn","record":{"id":"t1"}}\n'))
        assert received(server, client) == b""
        found = until(lambda: received(server, client), 5)
        assert answers(found) == [(200, [{"type": "welcome"}])]
        server.store()  # too late: no answer of the next request may carry it
        client.sendall(request())
        assert answers(received(server, client)) == [(200, [{"type": "welcome"}])]


def test_a_turn_that_has_to_be_given_up_closes_the_connection(server: Server) -> None:
    with server.connect() as client:
        client.sendall(request(HELLO + b'{"type":"turn","record":{"id":"t1"}}\n'))
        server.pump()
        ((connection, _),) = server.turns
        connection.close()
        assert ended(server, client)
        server.store()  # nobody is there to be told, and nothing fails


def test_a_connection_is_kept_for_the_next_request(server: Server) -> None:
    with server.connect() as client:
        for _ in range(3):
            client.sendall(request())
            assert answers(received(server, client)) == [(200, [{"type": "welcome"}])]
    server.pump()
    assert server.closings == 1


@pytest.mark.parametrize(
    "content",
    [request(version="HTTP/1.0"), request(headers="Connection: Close\r\n")],
    ids=["1.0", "close"],
)
def test_a_connection_is_closed_where_the_client_asks_for_that(
    server: Server, content: bytes
) -> None:
    with server.connect() as client:
        client.sendall(content)
        assert b"\r\nConnection: close\r\n" in received(server, client)
        assert ended(server, client)


def test_a_client_that_waits_for_a_word_before_its_body_gets_it(server: Server) -> None:
    whole = request(headers="Expect: 100-continue\r\n")
    with server.connect() as client:
        client.sendall(whole[: -len(HELLO)])
        assert answers(received(server, client)) == [(100, [])]
        client.sendall(HELLO)
        assert answers(received(server, client)) == [(200, [{"type": "welcome"}])]
    wrong = whole.replace(TOKEN.encode(), b"x" * 20)
    assert [status for status, _ in ask(server, wrong[: -len(HELLO)])] == [401]


def test_a_fault_of_the_agent_costs_one_message(server: Server) -> None:
    body = HELLO + b'{"type":"begin","turn":"crash","t":1}\n' + HELLO
    ((status, lines),) = ask(server, request(body))
    assert status == 200
    assert [line["type"] for line in lines] == ["welcome", "refused", "welcome"]
    assert "ZeroDivisionError" in lines[1]["reason"]


# Who is let in.


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (request(token=None), 401),
        (request(token=""), 401),
        (request(token=TOKEN[:-1]), 401),
        (request(token=TOKEN + "x"), 401),
        (request(token=TOKEN.upper()), 401),
        (request(token=None, headers=f"Authorization: Basic {TOKEN}\r\n"), 401),
        (request(token=None, headers=f"Authorization: {TOKEN}\r\n"), 401),
        (request(token=None, headers=f"X-Token: {TOKEN}\r\n"), 401),
        (request(token=None, path=f"/v1/messages?token={TOKEN}"), 401),
        (request(token=None, path="/"), 401),
        (request(token=None, method="GET"), 401),
        (request(token=None, length=str(MAX_BODY * 9)), 401),
        (request(host=None), 421),
        (request(host="attacker.example"), 421),
        (request(host="attacker.example:8126"), 421),
        (request(host="127.0.0.1.attacker.example"), 421),
        (request(host="localhost.attacker.example"), 421),
        (request(host="127.0.0.1:8126@attacker.example"), 421),
        (request(host="127.0.0.2"), 421),
        (request(host="0.0.0.0"), 421),
        (request(host="[::1]"), 421),
        (request(host="192.168.1.7:8126"), 421),
        (request(headers="Origin: https://attacker.example\r\n"), 403),
        (request(headers="Origin: null\r\n"), 403),
        (request(headers="origin: http://127.0.0.1:8126\r\n"), 403),
        (request(headers="Sec-Fetch-Site: same-origin\r\n"), 403),
        (request(method="OPTIONS", headers="Origin: https://a.example\r\n"), 403),
    ],
)
def test_strangers_pages_and_other_names_of_the_host_are_refused(
    server: Server, content: bytes, status: int
) -> None:
    with server.connect() as client:
        client.sendall(content)
        ((found, (line,)),) = answers(received(server, client))
        assert (found, line["type"]) == (status, "refused")
        assert TOKEN not in line["reason"] and "attacker" not in line["reason"]
        assert ended(server, client)
    assert server.heard == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost:65535", "LOCALHOST"])
def test_the_loopback_is_known_by_its_names(server: Server, host: str) -> None:
    assert [status for status, _ in ask(server, request(host=host))] == [200]


def test_the_scheme_is_read_as_http_has_it(server: Server) -> None:
    headers = f"AUTHORIZATION:bEARER  {TOKEN} \r\n"
    assert [status for status, _ in ask(server, request(token=None, headers=headers))] == [200]


def test_the_token_is_compared_in_a_time_that_says_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    class Counting:
        @staticmethod
        def compare_digest(given: str, token: str) -> bool:
            asked.append((given, token))
            return False

    monkeypatch.setattr(inbox_http, "hmac", Counting)
    assert [status for status, _ in ask(server, request())] == [401]
    assert asked == [(TOKEN, TOKEN)]


# What a request may be.


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (request(path="/"), 404),
        (request(path="/v1/messages/"), 404),
        (request(path="//v1/messages"), 404),
        (request(path="/v1/../v1/messages"), 404),
        (request(path="/v1/%6dessages"), 404),
        (request(path="/v1/messages?x=1"), 404),
        (request(path="/v1/messages#x"), 404),
        (request(path="/V1/messages"), 404),
        (request(path="http://127.0.0.1:8126/v1/messages"), 404),
        (request(path="*", method="OPTIONS"), 404),
        (request(path="../../etc/passwd"), 404),
        (request(method="GET"), 405),
        (request(method="PUT"), 405),
        (request(method="post"), 405),
        (request(method="CONNECT"), 405),
        (request(version="HTTP/2.0"), 505),
        (request(version="HTTP/1.11"), 505),
        (request(version="http/1.1"), 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (request(path="/v1/messages extra"), 400),
        (b"\r\n" + request(), 400),
        (b" " + request(), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (request(headers=" folded: no\r\n"), 400),
        (request(headers="no colon\r\n"), 400),
        (request(headers="name : x\r\n"), 400),
        (request(headers="name: \x00\r\n"), 400),
        (request(headers="name: a\nb: c\r\n"), 400),
        (request(headers="name: a\rb: c\r\n"), 400),
        (request(headers="name: \xff\r\n"), 400),
        (request(headers="Host: 127.0.0.1\r\n"), 400),
        (request(headers="content-length: 3\r\n"), 400),
        (request(headers=f"Authorization: Bearer {TOKEN}\r\n"), 400),
        (request(length="+3"), 400),
        (request(length="-3"), 400),
        (request(length="0x10"), 400),
        (request(length="3, 3"), 400),
        (request(length="9" * 5000), 400),
        (request(length=""), 400),
        (request(headers="Transfer-Encoding: chunked\r\n"), 411),
        (request(headers="Transfer-Encoding: identity\r\n"), 411),
        (request(length=str(MAX_BODY + 1)), 413),
        (request(length="9" * 18), 413),
        (request(b"{}\n" * (MAX_MESSAGES + 1)), 413),
        (request(headers="Expect: cookies\r\n"), 417),
        (request(headers=f"X: {'a' * MAX_HEAD}\r\n"), 431),
        (b"a" * MAX_HEAD, 431),
    ],
)
def test_what_can_be_understood_in_two_ways_or_is_too_large_is_refused(
    server: Server, content: bytes, status: int
) -> None:
    with server.connect() as client:
        client.sendall(content)
        ((found, (line,)),) = answers(received(server, client))
        assert (found, line["type"]) == (status, "refused")
        assert ended(server, client)
    assert server.heard == []


def test_a_head_without_a_length_is_refused() -> None:
    head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}"
    with pytest.raises(Denied) as denied:
        read_head(head.encode(), TOKEN)
    assert denied.value.status == 411


def test_a_body_of_the_largest_size_is_taken_and_an_empty_one_too(server: Server) -> None:
    assert ask(server, request(b"")) == [(200, [])]
    padded = HELLO + b" " * (MAX_BODY - 2 * len(HELLO)) + HELLO
    ((status, lines),) = ask(server, request(padded))
    assert status == 200
    # The blanks belong to the second line, which is too long for a message.
    assert [line["type"] for line in lines] == ["welcome", "refused"]


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_bring_the_loop_down(content: bytes) -> None:
    server = Server()
    try:
        with server.connect() as client:
            client.sendall(content + b"\r\n\r\n")
            received(server, client)
        assert [status for status, _ in ask(server, request())] == [200]
    finally:
        server.inbox.close()
        server.inbox.disconnect()
        server.selector.close()


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_request_may_come_in_pieces(server: Server, size: int) -> None:
    content = request() + request()
    found = b""
    with server.connect() as client:
        for start in range(0, len(content), size):
            client.sendall(content[start : start + size])
            found += received(server, client)
    assert answers(found) == [(200, [{"type": "welcome"}])] * 2


# What one bad client costs.


def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    turn = b'{"type":"turn","record":{"id":"t%d"}}\n'
    with server.connect() as client:
        client.sendall(b"".join(request(turn % n) for n in range(3)) + request(path="/nowhere"))
        found = []
        for number in range(3):
            assert received(server, client) == b""
            assert [name for _, name in server.turns] == [f"t{number}"]
            server.store()
            found += answers(received(server, client))
        assert [status for status, _ in found] == [200, 200, 200, 404]
        assert [line["turn"] for _, lines in found[:3] for line in lines] == ["t0", "t1", "t2"]
        assert ended(server, client)


def test_a_pipeline_does_not_grow_while_its_first_request_waits(server: Server) -> None:
    with server.connect() as client:
        client.sendall(request(b'{"type":"turn","record":{"id":"t1"}}\n'))
        server.pump()
        client.settimeout(0.1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                sent += client.send(request() * 1000)
                server.pump()
        assert sent < 32 << 20, "the kernel's buffers are full, and the agent's are not"
        ((connection, _),) = server.turns
        assert isinstance(connection, inbox_http.HttpConnection)
        assert len(connection._received) <= MAX_HEAD + MAX_BODY + (64 << 10)


def test_a_slow_loris_is_closed_however_long_it_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_http, "REQUEST_S", 0.3)
    with server.connect() as client:
        began = time.monotonic()

        def drip() -> bool:
            with contextlib.suppress(OSError):
                client.sendall(b"X")
            server.pump()
            return server.closings == 1

        until(drip, 5)
        assert time.monotonic() - began < 2


def test_a_body_that_never_comes_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_http, "REQUEST_S", 0.2)
    with server.connect() as client:
        client.sendall(request()[:-3])
        assert received(server, client) == b""
        until(lambda: ended(server, client), 5)
    assert server.heard == []


def test_an_idle_connection_is_closed_after_its_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_http, "IDLE_S", 0.2)
    with server.connect() as client:
        client.sendall(request())
        assert received(server, client)
        wait = server.inbox.wait_us()
        assert wait is not None and 0 < wait <= 200_000
        until(lambda: ended(server, client), 5)
    assert server.inbox.wait_us() is None


def test_strangers_cannot_keep_an_application_out(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(server.connect())
        mine.sendall(request())
        assert received(server, mine)
        strangers = [stack.enter_context(server.connect()) for _ in range(MAX_CONNECTIONS + 5)]
        assert ask(server, request()) == [(200, [{"type": "welcome"}])]
        mine.sendall(request())
        assert answers(received(server, mine)) == [(200, [{"type": "welcome"}])]
        assert sum(ended(server, one) for one in strangers) == 7


def test_an_application_too_many_takes_the_place_of_an_idle_one_or_is_sent_away(
    server: Server,
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(MAX_CONNECTIONS)]
        for client in clients:
            client.sendall(request())
            assert received(server, client)
        more = stack.enter_context(server.connect())
        more.sendall(request())
        assert received(server, more)
        assert [ended(server, client) for client in clients] == [True] + [False] * 15
        busy = [*clients[1:], more]
        for number, client in enumerate(busy):
            client.sendall(request(b'{"type":"turn","record":{"id":"t%d"}}\n' % number))
        server.pump()
        crowded = stack.enter_context(server.connect())
        assert [status for status, _ in answers(received(server, crowded))] == [503]
        server.store()
        assert all(received(server, client) for client in busy)


def test_more_connections_than_a_second_has_wait_in_the_kernel(server: Server) -> None:
    clients: list[socket.socket] = []

    while server.inbox._listener in server.selector.get_map():
        clients.append(socket.create_connection(("127.0.0.1", server.port), 5))
        for key, mask in server.selector.select(0):
            key.data(mask)
        assert len(clients) < 10_000, "none is one too many"
    assert len(clients) > 2 * CONNECTIONS_A_SECOND
    wait = server.inbox.wait_us()
    assert wait is not None and wait <= 20_001
    clients[-1].sendall(request())
    assert until(lambda: received(server, clients[-1]), 10), "it is taken once there is room"
    for client in clients:
        client.close()


def test_more_requests_than_a_second_has_are_refused(server: Server) -> None:
    found: list[int] = []
    with server.connect() as client:
        for _ in range(2 * REQUESTS_A_SECOND + 20):
            client.sendall(request(b""))
            found += [status for status, _ in answers(received(server, client))]
            if found[-1] != 200:
                break
    assert found.count(200) >= 2 * REQUESTS_A_SECOND and found[-1] == 429


def test_a_client_that_does_not_read_is_disconnected(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_http, "REQUEST_S", 0.5)
    with server.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        (connection,) = server.inbox._connections
        connection._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.settimeout(0.2)
        body = b"nonsense\n" * MAX_MESSAGES

        def send() -> bool:
            with contextlib.suppress(OSError):
                client.sendall(request(body))
            server.pump()
            assert len(connection._unsent) < 1 << 20
            return server.closings == 1

        until(send, 10)


# With the agent.


def test_the_token_is_one_line_of_a_file_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    for content in (
        "short-secret",
        f"{TOKEN}\n{TOKEN}\n",
        "",
        "with a space in it secret",
        "é" * 20,
    ):
        file.write_text(content)
        with pytest.raises(SettingsError) as refused:
            read_token(file)
        assert str(refused.value).startswith(f"inbox_http_token_file: {file}: ")
        assert "secret" not in str(refused.value) and TOKEN not in str(refused.value)
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        read_token(tmp_path / "none")


def test_port_and_token_are_set_together() -> None:
    with pytest.raises(SettingsError, match="inbox_http_port: 8126 needs inbox_http_token_file"):
        AgentSettings(inbox_http_port=8126)
    with pytest.raises(SettingsError, match="inbox_http_token_file: /t needs inbox_http_port"):
        AgentSettings(inbox_http_token_file=Path("/t"))
    with pytest.raises(SettingsError, match="broker_password_file"):
        AgentSettings(broker_password_file=Path("/p"))
    assert AgentSettings().inbox_http_port == 0


def test_a_port_that_is_taken_is_named_and_only_the_loopback_is_bound() -> None:
    with listen(0) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(AgentError, match=f"inbox_http_port: {port}: cannot be used"):
            listen(port)


Say = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[AgentProcess, Say]]:
    """The agent with this inbox, and a function that sends it messages in one request."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with listen(0) as probe:
        port = probe.getsockname()[1]
    made = AgentProcess(
        *(tmp_path,),
        inbox_http_port=port,
        inbox_http_token_file=token,
        report_interval_s=1,
        idle_interval_s=1,
    )

    def say(*messages: dict[str, Any], keep: http.client.HTTPConnection | None = None) -> Any:
        link = keep or http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        body = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        link.request("POST", "/v1/messages", body, {"Authorization": f"Bearer {TOKEN}"})
        answer = link.getresponse()
        assert answer.status == 200
        lines = [json.loads(line) for line in answer.read().splitlines()]
        if keep is None:
            link.close()
        return lines

    with made:
        yield made, say


def hello(pid: int | None = 4711) -> dict[str, Any]:
    return {"type": "hello", "v": 1, "name": "app", "engine": "mlc", "pid": pid}


def test_an_application_over_http_has_its_turns_stored_with_its_own_word_for_its_memory(
    agent: tuple[AgentProcess, Say],
) -> None:
    process, say = agent
    t = boot_us()
    (welcome,) = say(hello(), {"type": "begin", "turn": "t1", "t": t, "prompt_tokens": 31})
    assert welcome["type"] == "welcome"
    steps = [[None, 1], [38_000, 1], [40_000, 1]]
    progress = {"turn": "t1", "first": 0, "steps": steps, "depth": 34, "memory_bytes": 5_000_000}
    say(hello(), {"type": "progress", "t": boot_us(), **progress})
    ended = turn_fields("t1", memory_end_bytes=4_000_000, steps=3, output_tokens=3, itl=[])
    _, stored = say(hello(), {"type": "turn", "record": ended})
    assert stored == {"type": "stored", "turn": "t1"}
    # Sent again, as after an answer that was lost: stored once.
    assert say(hello(), {"type": "turn", "record": ended})[1] == stored
    say(hello(), {"type": "bye"})
    assert process.stop()[0] == 0
    (runtime,) = records(process.state, Runtime)
    assert (runtime.pid, runtime.id) == (4711, welcome["runtime"])
    (turn,) = records(process.state, Turn)
    assert turn.runtime == runtime.id and turn.memory_peak_bytes == 5_000_000
    assert [(octave, gaps.n) for octave, gaps in turn.itl] == [(5, 2)]
    assert [window.tokens for window in records(process.state, Window)] == [3]
    assert all(floor.bytes == 4_000_000 for floor in records(process.state, Floor))


def test_gaps_that_progress_did_not_tell_whole_are_not_made_up(
    agent: tuple[AgentProcess, Say],
) -> None:
    process, say = agent
    say(hello(), {"type": "begin", "turn": "t1", "t": boot_us()})
    late = {"turn": "t1", "first": 7, "steps": [[38_000, 1]], "depth": 34}
    say(hello(), {"type": "progress", "t": boot_us(), **late})
    say(hello(), {"type": "turn", "record": turn_fields("t1", steps=8, itl=[])})
    assert process.stop()[0] == 0
    assert [turn.itl for turn in records(process.state, Turn)] == [()]


def test_the_shell_example_of_the_documentation_works(agent: tuple[AgentProcess, Say]) -> None:
    process, _ = agent
    script = PAGE.read_text().split("```sh\n")[1].split("```")[0]
    flag = next(word for word in process.command() if word.startswith("--inbox-http-port="))
    environment = {**os.environ, "TOKEN": TOKEN, "PORT": flag.partition("=")[2]}
    done = subprocess.run(
        ["sh", "-eu", "-c", script], capture_output=True, text=True, timeout=30, env=environment
    )
    assert done.returncode == 0 and done.stderr == ""
    answered = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert answered == ["welcome", "welcome", "stored"]
    assert process.stop()[0] == 0
    (turn,) = records(process.state, Turn)
    assert (turn.output_tokens, turn.memory_end_bytes) == (3, 510_000_000)
    assert 0 <= boot_us() - turn.t < 60_000_000
    assert [gaps.n for _, gaps in turn.itl] == [2]


@pytest.mark.parametrize("program", ["awk", "mawk", "gawk", "busybox"])
def test_the_clock_of_the_shell_example_is_right_on_a_device_that_has_run_for_long(
    program: str, tmp_path: Path
) -> None:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    (tmp_path / "awk").symlink_to(found)
    (line,) = (one for one in PAGE.read_text().splitlines() if one.startswith("now() "))
    times = []
    # mawk's %d ends at 2^31 - 1, which is 36 minutes in microseconds.
    for uptime in ("3600.25", "3600.26", "31536000.07"):
        (tmp_path / "uptime").write_text(f"{uptime} 100.00\n")
        script = line.replace("/proc/uptime", str(tmp_path / "uptime"))
        assert script != line
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["sh", "-euc", f"{script}\nnow"]
        times.append(subprocess.check_output(command, text=True, env=environment))
    assert times == ["3600250000", "3600260000", "31536000070000"]


def test_a_token_that_is_made_as_documented_is_taken_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (made,) = re.findall(r"`(\(umask .* > token\))`", PAGE.read_text())
    subprocess.run(["sh", "-euc", f"umask 022; {made}"], check=True, cwd=tmp_path)
    assert len(read_token(tmp_path / "token")) == 32
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0 and caplog.records == []


def test_an_application_over_http_has_to_name_its_process(agent: tuple[AgentProcess, Say]) -> None:
    _, say = agent
    (refused,) = say(hello(pid=None))
    assert refused["type"] == "refused"
    assert refused["reason"] == (
        "hello.pid: missing; accepted is the process's own pid, because nothing tells the agent "
        "which process this is"
    )


def test_what_was_asked_before_the_agent_stops_is_answered(
    agent: tuple[AgentProcess, Say],
) -> None:
    process, say = agent
    lines = say(hello(), *({"type": "turn", "record": turn_fields(f"t{n}")} for n in range(50)))
    assert [line["type"] for line in lines] == ["welcome"] + ["stored"] * 50
    status, seconds = process.stop()
    assert status == 0 and seconds < 5
    assert len(records(process.state, Turn)) == 50


def test_an_agent_without_the_setting_listens_on_no_port(tmp_path: Path) -> None:
    with AgentProcess(tmp_path) as process:
        table = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        inodes = {line.split()[9] for line in table if line.split()[3] == "0A"}
        fds = Path(f"/proc/{process.pid}/fd").iterdir()
        own = {str(fd.readlink())[8:-1] for fd in fds if str(fd.readlink()).startswith("socket:")}
        assert not own & inodes


def test_a_bad_token_file_stops_the_agent_before_it_runs(tmp_path: Path) -> None:
    process = AgentProcess(tmp_path, inbox_http_port=8126, inbox_http_token_file="/none")
    done = subprocess.run(process.command(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "inbox_http_token_file: /none: cannot be read" in done.stderr
