"""Liveness and readiness over HTTP, on the loopback only.

`/healthz` answers as long as the process does; `/readyz` answers 200 where what arrives would be
stored and acknowledged now, else 503 with the reasons.
"""

import contextlib
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from decodewatch.collector.errors import ServerError
from decodewatch.shared import logs

_log = logs.get(__name__)

HOST = "127.0.0.1"
REQUEST_S = 2.0
"""A request that is not answered by then is cut off, however it spends the time."""
REQUESTS = 8
"""At once; one more cuts the oldest off."""
_LOOK_S = 0.2


class _Server(ThreadingHTTPServer):
    """A thread a request. The one that accepts also cuts off, and waits for nobody."""

    request_queue_size = 16
    block_on_close = False

    def __init__(self, port: int, troubles: Callable[[], list[str]]) -> None:
        super().__init__((HOST, port), _Handler)
        self.socket.settimeout(_LOOK_S)  # a client may be gone again before it is accepted
        self.troubles = troubles
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # until when, the oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= REQUESTS:
            self.cut_off(1)
        with self._lock:
            self._open[request] = time.monotonic() + REQUEST_S
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = sum(until < now for until in self._open.values())
        self.cut_off(late)

    def cut_off(self, count: int = REQUESTS) -> None:
        """End the oldest requests: what waits for their clients is woken."""
        with self._lock:
            for request in list(self._open)[:count]:
                del self._open[request]
                with contextlib.suppress(OSError):  # its client has gone
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("request not answered", trace=traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    server_version = "decodewatch"
    sys_version = ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        if self.path == "/healthz":
            self._answer(HTTPStatus.OK, [])
        elif self.path == "/readyz":
            troubles = self.server.troubles()
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if troubles else HTTPStatus.OK, troubles)
        else:
            self._answer(HTTPStatus.NOT_FOUND, ["accepted are /healthz and /readyz"])

    def _answer(self, status: HTTPStatus, troubles: list[str]) -> None:
        body = json.dumps({"ok": status == HTTPStatus.OK, "troubles": troubles}).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: somebody asks every few seconds, for ever."""


class Health:
    """The HTTP server and its thread."""

    def __init__(self, port: int, troubles: Callable[[], list[str]]) -> None:
        """Listen. Raises ServerError where the port is taken."""
        try:
            self._server = _Server(port, troubles)
        except OSError as error:
            raise ServerError(
                f"health_port: cannot listen on {HOST}:{port}: {error.strerror}; "
                "accepted is a free port, or 0 for none"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), name="health", daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, and give the port back."""
        self._server.shutdown()
        self._server.cut_off()
        self._server.server_close()
        self._thread.join(2)
