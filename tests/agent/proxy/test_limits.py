"""What the proxy costs at most, whatever its clients and its server do."""

import contextlib
import gzip
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

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

from decodewatch.agent.proxy.turns import MOST_WAITING
from decodewatch.agent.wrapper.vitals import parse_memory

CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FINISHED = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    made = ScriptedServer(lambda peer: None)
    yield made
    made.close()


def waits(peer: Peer) -> None:
    """Say nothing, until the other end ends."""
    peer.hear_end()


def memory(proxy: ProxyProcess) -> int:
    found = parse_memory(Path(f"/proc/{proxy.pid}/status").read_bytes())
    assert found is not None
    return found


def test_a_client_that_does_not_read_costs_no_memory(
    server: ScriptedServer, tmp_path: Path
) -> None:
    sent = 0
    piece = chunked([b": " + b"x" * 250_000 + b"\n\n"])

    def flood(peer: Peer) -> None:
        nonlocal sent
        peer.hear(b"{}")
        peer.channel.settimeout(None)
        peer.channel.sendall(SSE_HEAD)
        for _ in range(800):
            peer.channel.sendall(piece)
            sent += len(piece)

    server.script = flood
    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        warm = dial(proxy.port)
        warm.send(request(CHAT))
        warm.hear(2_000_000)
        warm.reset()
        sent = 0
        before = memory(proxy)
        slow = dial(proxy.port)
        slow.send(request(CHAT))
        # It stands still: the server can send no more, long before the 200 MB that it has.
        until(lambda: sent > 0)
        last = -1
        for _ in range(40):
            if sent == last:
                break
            last = sent
            time.sleep(0.25)
        assert sent < 60_000_000
        assert memory(proxy) - before < 4 << 20
        slow.reset()


def test_it_stops_within_five_seconds_and_lets_go_on_what_can(
    server: ScriptedServer, tmp_path: Path
) -> None:
    def slow(peer: Peer) -> None:
        peer.hear(b"{}")
        peer.send(SSE_HEAD, event("a"))
        time.sleep(1.5)
        peer.send(FINISH, LAST)

    def endless(peer: Peer) -> None:
        peer.hear(b"{}")
        peer.send(SSE_HEAD)
        while not peer.ended:
            peer.send(event("a"))
            time.sleep(0.05)
            peer.channel.settimeout(0.01)
            try:
                peer.hear(len(peer.heard) + 1)
            except TimeoutError:
                continue

    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        idle = dial(proxy.port)
        server.script = slow
        ends = dial(proxy.port)
        ends.send(request(CHAT))
        ends.hear(b'"a"')
        server.script = endless
        goes_on = dial(proxy.port)
        goes_on.send(request(CHAT))
        goes_on.hear(b'"a"')
        status, seconds = proxy.stop()
        assert status == 0
        assert 2.9 < seconds < 5
        assert idle.hear_end() == b""
        assert ends.hear_end().endswith(LAST)
        assert not goes_on.hear_end().endswith(LAST)


def test_one_client_too_many_is_disconnected(server: ScriptedServer, tmp_path: Path) -> None:
    with ProxyProcess(tmp_path, server.port, engine="toy", connections=2) as proxy:
        server.script = waits
        first, second = dial(proxy.port), dial(proxy.port)
        until(lambda: len(server.peers) == 2)
        third = dial(proxy.port)
        assert third.hear_end() == b"" and third.ended == "reset"
        first.close()
        until(lambda: server.peers[0].ended or server.peers[1].ended)
        again = dial(proxy.port)
        until(lambda: len(server.peers) == 3)
        second.close()
        again.close()


def test_a_server_that_is_not_there_is_a_client_that_is_reset(tmp_path: Path) -> None:
    with ProxyProcess(tmp_path, free_port()) as proxy:
        client = dial(proxy.port)
        assert client.hear_end() == b"" and client.ended == "reset"
        assert proxy.stop()[0] == 0
        assert "upstream not reached reason=" in proxy.said()


def test_it_warns_of_a_server_and_an_agent_that_are_not_there_yet(
    server: ScriptedServer, tmp_path: Path
) -> None:
    agent, port = tmp_path / "agent.sock", free_port()
    with ProxyProcess(tmp_path, port, engine="toy") as proxy:
        until(lambda: f"upstream not reached yet upstream=http://127.0.0.1:{port}" in proxy.said())
        assert f"no agent at {agent} yet" in proxy.said()
        assert proxy.stop()[0] == 0
    inbox = InboxServer(agent).start()
    proxy = ProxyProcess(tmp_path, server.port, engine="toy")
    proxy.log = tmp_path / "second.log"
    with proxy:
        # It listens before it could warn: wait until all that comes first has been said.
        until(lambda: inbox.connections == 1)
        with contextlib.closing(dial(proxy.port)) as client:
            client.send(request(CHAT))
            until(lambda: server.peers)
        assert proxy.stop()[0] == 0
        assert "not reached yet" not in proxy.said() and "no agent" not in proxy.said()
    assert len(server.peers) == 1  # its start took none
    inbox.stop()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"engine": "llama.cpp"}, "llama-server"),  # as scraping calls it
        ({"engine": "toy"}, "toy"),
        ({}, "127.0.0.1:{port}"),
        ({"engine": "toy", "name": "mine"}, "mine"),
    ],
)
def test_a_runtime_without_a_name_has_its_engines_or_else_the_servers_address(
    server: ScriptedServer, tmp_path: Path, settings: dict[str, str], name: str
) -> None:
    def script(peer: Peer) -> None:
        if peer.hear(HEAD_END).startswith(b"GET "):
            peer.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            peer.send(stream_of(FINISHED))

    server.script = script
    inbox = InboxServer(tmp_path / "agent.sock").start()
    with ProxyProcess(tmp_path, server.port, **settings) as proxy:
        with contextlib.closing(dial(proxy.port)) as client:
            client.send(request(CHAT))
            client.hear(FINISHED)
        inbox.wait_for("turn")
    (hello,) = inbox.of("hello")
    assert hello["name"] == name.format(port=server.port)
    inbox.stop()


def test_many_clients_at_once_each_get_their_own_answer(
    server: ScriptedServer, tmp_path: Path
) -> None:
    def echo(peer: Peer) -> None:
        body = peer.hear(b"}").partition(HEAD_END)[2]
        peer.send(SSE_HEAD, event(body.decode().strip("{}")), FINISH, LAST)

    server.script = echo
    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        clients = [dial(proxy.port) for _ in range(100)]
        for number, client in enumerate(clients):
            client.send(request(CHAT, b"{number %d}" % number))
        for number, client in enumerate(clients):
            assert b'"number %d"' % number in client.hear(LAST)
            client.close()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "upstream: not set"),
        (["--upstream=ftp://a"], "upstream: 'ftp://a'"),
        (["--upstream=http://a/v1"], "without a path"),
        (["--upstream=http://user:secret@a"], "upstream"),
        (["--upstream=http://a:99999"], "upstream"),
        (["--upstream=http://a..b"], "upstream"),
        ([f"--upstream=http://{'a' * 64}.local"], "upstream"),
        (["--upstream=http://localhost:8079"], "is where the proxy listens"),
        (["--upstream=http://127.0.0.1:9", "--listen=0.0.0.0:9"], "is where the proxy listens"),
        (["--upstream=http://0.0.0.0:9", "--listen=LOCALHOST:9"], "is where the proxy listens"),
        (["--upstream=http://a", "--listen=a:80"], "is where the proxy listens"),
        (["--upstream=http://a:x"], "http://HOST[:PORT], by default port 80"),
        (["--upstream=http://a", f"--listen={'a' * 64}:8079"], "listen"),
        (["--upstream=http://a", "--listen=8079"], "listen: '8079'; accepted is HOST:PORT"),
        (["--upstream=http://a", "--name="], "name"),
        (["--upstream=https://a", "--ca-file=/nowhere"], "ca_file: /nowhere"),
        (["--upstream=http://a", "--connections=0"], "--connections: '0'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(flags: list[str], named: str) -> None:
    command = [sys.executable, "-m", "decodewatch.shared.cli", "agent", "proxy", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert named in done.stderr and "accepted" in done.stderr


def test_a_port_that_is_taken_is_a_failure_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ["--upstream=http://127.0.0.1:1", f"--listen={listen}", "--engine=toy"]
        command = [sys.executable, "-m", "decodewatch.shared.cli", "agent", "proxy", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert f"listen: {listen} cannot be used" in done.stderr


def test_a_killed_proxy_takes_its_connections_with_it(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.script = waits
    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        client = dial(proxy.port)
        client.send(request(CHAT))
        until(lambda: server.peers and server.peers[0].heard)
        proxy.stop(signal.SIGKILL)
        client.hear_end()
        until(lambda: server.peers[0].ended)


def stream_of(content: bytes, encoding: str = "") -> bytes:
    """An answer of SSE."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return f"{head}{encoding}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("line", [b"\n", b":\n", b'data: {"choices":[]}\n\n'])
def test_an_answer_that_inflates_to_very_much_holds_nobody_else_up(
    line: bytes, server: ScriptedServer, tmp_path: Path
) -> None:
    bomb = gzip.compress(line * ((8 << 20) // len(line)))

    def script(peer: Peer) -> None:
        peer.hear(b"}")
        if b"bomb" in peer.heard:
            peer.send(stream_of(bomb, "Content-Encoding: gzip\r\n"))
        else:
            peer.send(OK)

    server.script = script
    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        with contextlib.closing(dial(proxy.port)) as hostile:
            hostile.send(request(CHAT, b'{"bomb":1}'))
            hostile.hear(len(bomb))
            waits_ms = []
            for _ in range(20):
                with contextlib.closing(dial(proxy.port)) as other:
                    began = time.monotonic()
                    other.send(request("/health"))
                    other.hear(b"ok")
                    waits_ms.append((time.monotonic() - began) * 1000)
        assert sorted(waits_ms)[10] < 100
        status, seconds = proxy.stop()
        assert (status, seconds < 5) == (0, True)


@pytest.mark.slow
def test_a_turn_that_is_too_much_is_counted_once_and_the_next_one_is_measured(
    server: ScriptedServer, tmp_path: Path
) -> None:
    inbox = InboxServer(tmp_path / "agent.sock").start()
    # Slow to read and quick to send: the queue fills.
    flood = b"data: {}\n\n" * ((3 * MOST_WAITING) // 10)

    def script(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(stream_of(flood) if b"flood" in peer.heard else stream_of(FINISHED))

    server.script = script
    with ProxyProcess(tmp_path, server.port, engine="toy") as proxy:
        with contextlib.closing(dial(proxy.port)) as client:
            client.send(request(CHAT, b'{"flood":1}'))
            client.hear(len(flood))
        with contextlib.closing(dial(proxy.port)) as client:
            client.send(request(CHAT))
            client.hear(FINISHED)
        until(lambda: inbox.records, 30)
        assert "turns not measured" in proxy.said()
        assert re.findall(r"turns=(\d+)", proxy.said()) == ["1"]
    assert [one["ending"] for one in inbox.records] == ["complete"]
    inbox.stop()


def test_a_client_that_does_not_read_the_rest_of_an_answer_keeps_its_place(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """Else a client could have any number of rests kept, one connection after another."""
    ports: list[int] = []

    def script(peer: Peer) -> None:
        peer.hear(HEAD_END)
        if b"/small" in peer.heard:
            peer.send(OK)
            return
        peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        # Until the kernel takes no more of it, and the proxy has to keep some.
        unsent: list[int] = []
        while len(unsent) < 2 or unsent[-1] > unsent[-2]:
            peer.send(bytes(24 << 10))
            time.sleep(0.02)
            unsent.append(queued(proxy.port, ports[-1]))
        peer.reset()

    def has_reset(number: int) -> bool:
        return len(server.peers) > number and server.peers[number].done

    server.script = script
    with ProxyProcess(tmp_path, server.port, engine="toy", connections=2) as proxy:
        clients = []
        for number in range(2):
            channel = socket.socket()
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            channel.connect(("127.0.0.1", proxy.port))
            ports.append(channel.getsockname()[1])
            clients.append(Peer(channel))
            clients[-1].send(request("/big"))
            until(partial(has_reset, number), 60)
        assert refused(proxy)
        for client in clients:
            client.reset()
        until(lambda: not refused(proxy))
    assert not [fault for fault in server.faults if not isinstance(fault, OSError)]


def queued(here: int, there: int) -> int:
    """The bytes that the kernel has to send on a connection between two ports."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if local.endswith(f":{here:04X}") and remote.endswith(f":{there:04X}"):
            return int(queues.partition(":")[0], 16)
    return -1


def refused(proxy: ProxyProcess) -> bool:
    """Whether one more client is sent away."""
    with contextlib.closing(dial(proxy.port)) as one:
        one.send(request("/small"))
        return not one.hear(b"ok")
