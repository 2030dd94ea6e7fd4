"""What the proxy costs at most, whatever its clients and its server do."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import free_port
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

from decodewatch.agent.wrapper.vitals import parse_memory

CHAT = "/v1/chat/completions"


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
        assert "upstream not reached" in proxy.said()


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
