"""A proxy as a process, a server that does what a test scripts, and clients that speak raw HTTP."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from support.waiting import until

HEAD_END = b"\r\n\r\n"


class Peer:
    """One end of a TCP connection; what it reads is kept."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(10)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channel = channel
        self.heard = b""
        self.ended = ""  # "eof" or "reset", once the other end has ended
        self.done = False  # of a server: its script has come to its end, and so has the connection
        self.step = 0  # bytes of one send; 0: all at once

    def send(self, *parts: bytes) -> None:
        """Send, in pieces of `step` bytes where that is set."""
        data = b"".join(parts)
        size = self.step or max(len(data), 1)
        with contextlib.suppress(ConnectionError):  # the other end has gone; `ended` will tell
            for start in range(0, len(data), size):
                self.channel.sendall(data[start : start + size])

    def hear(self, enough: bytes | int) -> bytes:
        """Read until what was heard contains these bytes, or so many bytes; all of it."""
        while not self.ended and not (
            len(self.heard) >= enough if isinstance(enough, int) else enough in self.heard
        ):
            self._read()
        return self.heard

    def hear_end(self) -> bytes:
        """Read until the other end ends; all of it."""
        while not self.ended:
            self._read()
        return self.heard

    def _read(self) -> None:
        try:
            data = self.channel.recv(1 << 20)
        except ConnectionError:
            self.ended = "reset"
            return
        self.heard += data
        if not data:
            self.ended = "eof"

    def close(self) -> None:
        self.channel.close()

    def end_sending(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.channel.close()


Script = Callable[[Peer], None]


class ScriptedServer:
    """Runs `script` for each connection, in a thread each; `peers` are all of them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.faults: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(channel)
            self.peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        try:
            self.script(peer)
        except BaseException as error:
            self.faults.append(error)
        finally:
            # What was not read yet would turn the end into a reset, or not, as the race goes.
            peer.end_sending()
            with contextlib.suppress(OSError):
                peer.hear_end()
            peer.close()
            peer.done = True

    def close(self) -> None:
        """No more connections."""
        # Wakes the thread in accept(); closing alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class ProxyProcess:
    """`decodewatch agent proxy` before a port of this machine."""

    def __init__(self, folder: Path, upstream: int, /, **settings: object) -> None:
        self.log = folder / "proxy.log"
        self.port = 0
        self._settings = {
            "upstream": f"http://127.0.0.1:{upstream}",
            "listen": "127.0.0.1:0",
            "socket": folder / "agent.sock",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "ProxyProcess":
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        command = [sys.executable, "-m", "decodewatch.shared.cli", "agent", "proxy", *flags]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.port = until(self._listens, 20, f"the proxy runs; see {self.log}")
        return self

    def _listens(self) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        _, found, rest = self.said().partition("proxy runs listen=127.0.0.1:")
        return int(rest.split()[0]) if found else 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Its exit status, and how many seconds it took."""
        assert self._process is not None
        began = time.monotonic()
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        return self._process.wait(20), time.monotonic() - began

    def __enter__(self) -> "ProxyProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)


def dial(port: int) -> Peer:
    """A client."""
    return Peer(socket.create_connection(("127.0.0.1", port), timeout=20))


def request(path: str, body: bytes = b"{}", host: str = "client.example", more: str = "") -> bytes:
    """A POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def chunked(parts: Iterator[bytes] | list[bytes]) -> bytes:
    """The parts of a chunked body, without its end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


def event(text: str) -> bytes:
    """One event of a chat completion, as a chunk."""
    data = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()
    return chunked([data])


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
FINISH = chunked(
    [
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n',
        b"data: [DONE]\n\n",
    ]
)
LAST = b"0\r\n\r\n"
