"""A server of scripted answers: `answers` says for each path which bytes come, or what is done."""

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = bytes | Callable[[socket.socket], None]


def answer(body: bytes | str, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer of HTTP."""
    raw = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(raw)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + raw


def chunked(*parts: bytes) -> bytes:
    """A whole answer in chunks, with extensions and a trailer."""
    frames = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + frames + b"0\r\nTrailer: x\r\n\r\n"


NOT_FOUND = answer("", "404 Not Found")
HEALTHY = answer('{"status":"ok"}')


def as_json(value: Any) -> bytes:
    """A whole answer with a JSON document."""
    return answer(json.dumps(value), "200 OK", "Content-Type: application/json")


class ScrapeServer:
    """Answers in threads, so that one that hangs hangs nobody else. `asked` are the paths."""

    def __init__(self, answers: dict[str, Answer], port: int = 0, address: str = "127.0.0.1"):
        self.answers = answers
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.stopping = threading.Event()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{'[::1]' if ':' in address else address}:{self.port}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(4096)
                if not data:
                    return
                head += data
            path = head.split()[1].decode()
            self.heads.append(head)
            self.asked.append(path)
            reply = self.answers.get(path, NOT_FOUND)
            if callable(reply):
                reply(connection)
            else:
                connection.sendall(reply)

    def hang(self, connection: socket.socket) -> None:
        """An answer that never comes; ends with the server."""
        self.stopping.wait(30)

    def close(self) -> None:
        """Stop answering."""
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in [self._accepting, *self._threads]:
            thread.join(5)

    def __enter__(self) -> "ScrapeServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """As a process of its own: answers with the files of a folder, `/metrics` with `metrics`.

    Arguments: the folder, and the port; prints the port that it has.
    """
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    server = ScrapeServer({}, port)

    def reply(path: Path) -> Callable[[socket.socket], None]:
        return lambda connection: connection.sendall(path.read_bytes())

    for path in folder.iterdir():
        server.answers["/" + path.name.replace("+", "/")] = reply(path)
    print(server.port, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
