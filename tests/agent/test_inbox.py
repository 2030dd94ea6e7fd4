"""The socket server: who may connect, what a line may be, and what one bad client costs."""

import contextlib
import json
import os
import selectors
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.application import Application
from support.waiting import until

from decodewatch.agent import inbox as inboxes
from decodewatch.agent.errors import AgentError
from decodewatch.agent.inbox import (
    MAX_CONNECTIONS,
    MAX_OF_ONE_PROCESS,
    MAX_UNSENT,
    Connection,
    Inbox,
    listen,
)
from decodewatch.agent.messages import MAX_LINE, Begin, Bye, Hello, Message, Refusal

HELLO = b'{"type":"hello","v":1,"name":"chat","engine":"llama.cpp"}\n'


class Server:
    """An inbox and its loop, which only turns inside `pump`; it keeps all that it hears."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[Message] = []
        self.connections: list[Connection] = []
        self.closed_connections: list[Connection] = []
        self.selector = selectors.DefaultSelector()
        self.inbox = Inbox(listen(path, 0o660), self.selector, self)

    def message(self, connection: Connection, message: Message) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        self.heard.append(message)
        if isinstance(message, Hello):
            connection.send({"type": "welcome"})
        if isinstance(message, Bye):
            raise Refusal("bye: not now", "t9")
        if isinstance(message, Begin) and message.turn == "crash":
            raise ZeroDivisionError("a fault of the agent")

    def closed(self, connection: Connection) -> None:
        self.closed_connections.append(connection)

    def pump(self) -> bool:
        for _ in range(1000):
            ready = self.selector.select(0)
            if not ready:
                return False
            for key, mask in ready:
                key.data(mask)
        raise AssertionError("the loop never comes to rest")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "run" / "agent.sock")
    yield made
    with contextlib.suppress(KeyError, ValueError):  # the test has closed it
        made.inbox.close()
    made.inbox.disconnect()
    made.selector.close()


def connect(server: Server) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(server.path))
    client.settimeout(5)
    return client


def answers(client: socket.socket) -> list[dict[str, Any]]:
    """What the server has sent so far."""
    client.setblocking(False)
    received = b""
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        while chunk := client.recv(65536):
            received += chunk
    client.settimeout(5)
    return [json.loads(line) for line in received.splitlines()]


def ended(client: socket.socket) -> bool:
    """Whether the server has closed, all it sent being read."""
    try:
        return client.recv(65536) == b""
    except ConnectionResetError:
        return True


def test_messages_arrive_however_the_stream_cuts_them(server: Server) -> None:
    with connect(server) as client:
        begin = b'{"type":"begin","turn":"t1","t":1}\n'
        lines = HELLO + begin + b"\n" + begin
        for start in range(0, len(lines), 7):
            client.sendall(lines[start : start + 7])
            server.pump()
        assert [message.TYPE for message in server.heard] == ["hello", "begin", "begin"]
        assert answers(client) == [{"type": "welcome"}]


def test_the_peer_is_known_by_the_sockets_credentials(server: Server) -> None:
    with connect(server) as client:
        client.sendall(HELLO)
        server.pump()
        assert (server.connections[0].pid, server.connections[0].uid) == (os.getpid(), os.getuid())


def test_a_bad_line_is_refused_and_the_connection_kept(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b'nonsense\n{"type":"begin","turn":"t1","t":"soon"}\n' + HELLO)
        server.pump()
        first, second, third = answers(client)
        assert first["type"] == "refused" and "turn" not in first and "message" not in first
        assert second["reason"].startswith("begin.t: 'soon'") and second["turn"] == "t1"
        assert second["message"] == "begin"
        assert third == {"type": "welcome"}


def test_a_handlers_refusal_reaches_the_application(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b'{"type":"bye"}\n')
        server.pump()
        assert answers(client) == [
            {"type": "refused", "reason": "bye: not now", "message": "bye", "turn": "t9"}
        ]


def test_a_fault_of_the_agent_costs_one_message_only(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b'{"type":"begin","turn":"crash","t":1}\n' + HELLO)
        server.pump()
        refused, welcome = answers(client)
        assert refused["reason"] == "the agent failed: ZeroDivisionError"
        assert refused["message"] == "begin"
        assert welcome == {"type": "welcome"}


def test_a_line_of_the_greatest_length_is_taken(server: Server) -> None:
    with connect(server) as client:
        line = HELLO.rstrip()
        client.sendall(line + b" " * (MAX_LINE - 1 - len(line)) + b"\n")
        server.pump()
        assert len(server.heard) == 1


@pytest.mark.parametrize("tail", [b"\n", b""])
def test_a_longer_line_is_refused_and_closed(server: Server, tail: bytes) -> None:
    with connect(server) as client:
        client.setblocking(False)
        data = HELLO + b"x" * MAX_LINE + tail
        while data:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                data = data[client.send(data) :]
            server.pump()
        assert len(server.closed_connections) == 1
        welcome, refused = answers(client)
        assert welcome == {"type": "welcome"}
        assert refused["reason"].startswith(f"line of more than {MAX_LINE} bytes")
        assert ended(client)


def test_an_end_without_a_newline_is_not_a_message(server: Server) -> None:
    with connect(server) as client:
        client.sendall(HELLO + b'{"type":"begin","turn":"t1","t":1}')
        server.pump()
    server.pump()
    assert [message.TYPE for message in server.heard] == ["hello"]
    assert len(server.closed_connections) == 1


def test_what_was_sent_before_the_end_is_handled_before_closed(server: Server) -> None:
    client = connect(server)
    server.pump()
    client.sendall(HELLO * 50)
    client.close()
    server.pump()
    assert len(server.heard) == 50
    assert len(server.closed_connections) == 1


def test_a_client_that_never_reads_is_disconnected(server: Server) -> None:
    with connect(server) as client:
        client.sendall(HELLO)
        server.pump()
        connection = server.connections[0]
        line = {"type": "stored", "turn": "x" * 1000}
        for _ in range(MAX_UNSENT // 1000 + 1000):
            connection.send(line)
        assert not connection.open
        assert server.closed_connections == [connection]
        connection.send(line)  # what still holds it may go on


def test_a_client_that_reads_late_gets_everything(server: Server) -> None:
    with connect(server) as client:
        client.sendall(HELLO)
        server.pump()
        for number in range(120):
            server.connections[0].send({"number": number, "filler": "x" * 1000})
        seen: list[int] = []

        def all_seen() -> bool:
            seen.extend(a["number"] for a in received() if "number" in a)
            server.pump()
            return len(seen) == 120

        rest = b""

        def received() -> list[dict[str, Any]]:
            nonlocal rest
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                rest += client.recv(1 << 20)
            *lines, rest = rest.split(b"\n")
            return [json.loads(line) for line in lines]

        until(all_seen)
        assert seen == list(range(120))


def test_one_process_cannot_take_all_connections(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_OF_ONE_PROCESS):
            stack.enter_context(connect(server))
            server.pump()
        one_more = stack.enter_context(connect(server))
        server.pump()
        (refused,) = answers(one_more)
        assert refused["reason"] == (
            f"{MAX_OF_ONE_PROCESS} connections of process {os.getpid()} are open; "
            "accepted are no more"
        )
        assert ended(one_more)
        with Application(server.path) as other:
            other.hello()
            until(lambda: server.pump() or other.heard() == {"type": "welcome"})


def test_more_connections_than_the_limit_are_told_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "MAX_OF_ONE_PROCESS", MAX_CONNECTIONS + 1)
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(server))
            server.pump()
        one_more = stack.enter_context(connect(server))
        server.pump()
        (refused,) = answers(one_more)
        assert refused["reason"].startswith(f"{MAX_CONNECTIONS} connections are open")
        assert ended(one_more)
    server.pump()
    with connect(server) as client:
        client.sendall(HELLO)
        server.pump()
        assert answers(client) == [{"type": "welcome"}]


def test_closing_handles_what_was_sent_and_then_accepts_nobody(server: Server) -> None:
    with connect(server) as client:
        server.pump()
        client.sendall(HELLO)
        server.inbox.close()
        assert [message.TYPE for message in server.heard] == ["hello"]
        with pytest.raises(OSError):
            connect(server)
        server.inbox.disconnect()
        assert answers(client) == [{"type": "welcome"}]
        assert ended(client)


@pytest.mark.parametrize("line", [b"\n", HELLO, b"garbage\n"], ids=["blank", "hello", "garbage"])
def test_who_goes_on_sending_does_not_keep_the_inbox_from_closing(
    server: Server, line: bytes
) -> None:
    def flood(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(line * (60_000 // len(line)))

    def read(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while client.recv(65536):
                continue

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(4)]
        server.pump()
        threads = [
            threading.Thread(target=work, args=(client,), daemon=True)
            for client in clients
            for work in (flood, read)
        ]
        for thread in threads:
            thread.start()
        until(lambda: all(inboxes._unread(one._channel) for one in server.inbox._connections))
        began = time.monotonic()
        server.inbox.close()
        assert time.monotonic() - began < inboxes.DRAIN_S + 2
        server.inbox.disconnect()
        for client in clients:
            client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)


# The socket itself.


@pytest.mark.parametrize("mode", [0o660, 0o666])
def test_the_socket_has_its_mode_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        made = listen(tmp_path / "run" / "agent.sock", mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / "agent.sock").stat().st_mode) == mode
    assert os.umask(before) == before
    made.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    listen(path, 0o660).close()
    assert path.exists()
    listen(path, 0o660).close()


def test_a_socket_in_use_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    made = listen(path, 0o660)
    with pytest.raises(AgentError, match=f"socket: {path}: in use by another process"):
        listen(path, 0o660)
    made.close()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("a file")
    with pytest.raises(AgentError, match=f"socket: {path}: not a socket"):
        listen(path, 0o660)
    assert path.read_text() == "a file"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match=f"socket: folder {tmp_path}/file/run: cannot be made"):
        listen(tmp_path / "file" / "run" / "agent.sock", 0o660)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder to somebody else")
def test_a_folder_of_somebody_else_is_refused_to_a_user(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o777)
    os.chown(folder, 12345, 12345)
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    code = (
        "import os, sys, pathlib\n"
        "from decodewatch.agent.inbox import listen\n"
        "from decodewatch.agent.errors import AgentError\n"
        "os.setuid(54321)\n"
        "try: listen(pathlib.Path(sys.argv[1]), 0o660)\n"
        "except AgentError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "agent.sock")], capture_output=True, text=True
    )
    assert "belongs to uid 12345" in done.stdout, done.stderr


_PASSED = """
import os, sys
from decodewatch.agent.inbox import inherited
from decodewatch.agent.errors import AgentError
try:
    found = inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": sys.argv[1]})
    print(found.getsockname(), found.getblocking(), os.get_inheritable(found.fileno()))
except AgentError as error:
    print(error)
"""


def passed(fd: int, count: str = "1") -> str:
    """What `inherited` makes of a descriptor that is passed as systemd does, as number 3."""
    code = (
        f"import os, sys; os.dup2({fd}, 3)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    os.set_inheritable(fd, True)
    done = subprocess.run(
        [sys.executable, "-c", code, "-c", _PASSED, count],
        close_fds=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or done.stderr


def test_a_socket_passed_by_systemd_is_used(tmp_path: Path) -> None:
    with listen(tmp_path / "agent.sock", 0o660) as made:
        assert passed(made.fileno()) == f"{tmp_path}/agent.sock False False"


def test_a_wrong_descriptor_passed_by_systemd_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        assert "AF_UNIX SOCK_DGRAM; accepted is a listening Unix" in passed(datagrams.fileno())
    with listen(tmp_path / "agent.sock", 0o660) as made:
        assert "'2' sockets passed; accepted is 1" in passed(made.fileno(), "2")


def test_sockets_passed_to_another_process_are_not_ours() -> None:
    assert inboxes.inherited({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) is None
    assert inboxes.inherited({}) is None


def test_the_credentials_are_three_integers() -> None:
    # What `Connection` unpacks is struct ucred.
    assert struct.calcsize("3i") == 12
