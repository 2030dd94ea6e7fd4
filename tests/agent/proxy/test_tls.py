"""Before a server that speaks TLS, with a certificate of its own."""

import contextlib
import os
import signal
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from support.inbox_server import InboxServer
from support.proxying import (
    FINISH,
    LAST,
    SSE_HEAD,
    Peer,
    ProxyProcess,
    ScriptedServer,
    dial,
    event,
    request,
)
from support.waiting import until

CHAT = "/v1/chat/completions"


class TlsServer(ScriptedServer):
    """The same behind TLS. What does not come to a handshake is no connection."""

    def __init__(self, certificate: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        super().__init__(lambda peer: None)

    def _serve(self, peer: Peer) -> None:
        try:
            peer.channel = self._context.wrap_socket(peer.channel, server_side=True)
        except OSError:
            peer.close()
            return
        super()._serve(peer)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that it signed itself, for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "made.pem"
    key = folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=toy",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run([*command, "-keyout", key, "-out", made], check=True, capture_output=True)
    made.write_bytes(key.read_bytes() + made.read_bytes())
    return made


class Scene:
    """The server, the proxy before it, and what an inbox hears."""

    def __init__(self, folder: Path, certificate: Path) -> None:
        self.inbox = InboxServer(folder / "agent.sock").start()
        self.server = TlsServer(certificate)
        self.proxy = ProxyProcess(
            folder,
            self.server.port,
            engine="toy",
            upstream=f"https://127.0.0.1:{self.server.port}",
            ca_file=certificate,
        )


@pytest.fixture
def scene(tmp_path: Path, certificate: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, certificate)
    with made.proxy:
        yield made
    made.server.close()
    made.inbox.stop()


def begins(peer: Peer) -> None:
    """A server that says one token, and then nothing until the other end ends."""
    peer.hear(b"}")
    peer.send(SSE_HEAD, event("a"))
    peer.hear_end()


def test_a_turn_is_measured_and_passes_unchanged(scene: Scene) -> None:
    def script(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD)
        for _ in range(3):
            time.sleep(0.05)
            peer.send(event("a"))
        peer.send(FINISH, LAST)

    scene.server.script = script
    with contextlib.closing(dial(scene.proxy.port)) as client:
        client.send(request(CHAT))
        assert client.hear_end() == SSE_HEAD + event("a") * 3 + FINISH + LAST
        assert client.ended == "eof"
    until(lambda: scene.inbox.records)
    (record,) = scene.inbox.records
    assert (record["ending"], record["steps"]) == ("complete", 3)
    assert record["decode_us"] == pytest.approx(100_000, abs=40_000)
    assert scene.server.peers[-1].heard.startswith(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % scene.server.port
    )


def test_megabytes_pass_both_ways(scene: Scene) -> None:
    body, answer = bytes(range(256)) * 20_000, bytes(range(255, -1, -1)) * 20_000

    def script(peer: Peer) -> None:
        peer.hear(body)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer), answer)

    scene.server.script = script
    with contextlib.closing(dial(scene.proxy.port)) as client:
        client.send(request("/x", body))
        assert client.hear_end().endswith(b"\r\n\r\n" + answer)


def test_a_client_that_leaves_reaches_the_server_at_once(scene: Scene) -> None:
    scene.server.script = begins
    client = dial(scene.proxy.port)
    client.send(request(CHAT))
    client.hear(event("a"))
    client.close()
    began = time.monotonic()
    until(lambda: scene.server.peers[-1].ended)
    assert time.monotonic() - began < 0.5
    until(lambda: scene.inbox.records)
    assert scene.inbox.records[-1]["ending"] == "cancelled"


def test_a_server_that_resets_is_a_reset_and_truncates_the_turn(scene: Scene) -> None:
    def script(peer: Peer) -> None:
        peer.hear(b"}")
        peer.send(SSE_HEAD, event("a"))
        time.sleep(0.1)
        peer.channel.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        os.close(peer.channel.detach())

    scene.server.script = script
    with contextlib.closing(dial(scene.proxy.port)) as client:
        client.send(request(CHAT))
        assert client.hear_end() == SSE_HEAD + event("a")
        assert client.ended == "reset"
    until(lambda: scene.inbox.records)
    assert scene.inbox.records[-1]["ending"] == "truncated"


def test_it_stops_within_five_seconds_with_turns_open(scene: Scene) -> None:
    scene.server.script = begins
    clients = [dial(scene.proxy.port) for _ in range(8)]
    for client in clients:
        client.send(request(CHAT))
        client.hear(event("a"))
    status, seconds = scene.proxy.stop(signal.SIGTERM)
    assert (status, seconds < 5) == (0, True)
    assert len(scene.inbox.records) == len(clients)
    for client in clients:
        client.close()


@pytest.mark.parametrize("trusted", [False, True])
def test_a_certificate_that_is_not_trusted_or_of_another_name_is_refused(
    trusted: bool, scene: Scene, tmp_path: Path, certificate: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    # Trusted, but not for this name.
    host = "localhost" if trusted else "127.0.0.1"
    settings = {"ca_file": certificate} if trusted else {}
    url = f"https://{host}:{scene.server.port}"
    with ProxyProcess(folder, 1, engine="toy", upstream=url, **settings) as proxy:
        with contextlib.closing(dial(proxy.port)) as client:
            client.send(request(CHAT))
            assert (client.hear_end(), client.ended) == (b"", "reset")
        assert "upstream not reached" in proxy.said()
        assert "CERTIFICATE_VERIFY_FAILED" in proxy.said()
    assert not [peer for peer in scene.server.peers if peer.heard]
