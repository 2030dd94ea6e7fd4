"""Liveness and readiness over HTTP, on the loopback only.

`/healthz` answers as long as the process does; `/readyz` answers 200 where what arrives would be
stored and acknowledged now, else 503 with the reasons.
"""

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from decodewatch.collector.errors import ServerError

HOST = "127.0.0.1"


class _Server(HTTPServer):
    # One request at a time: whoever asks is on this machine, and a slow one is cut off.
    request_queue_size = 16

    def __init__(self, port: int, troubles: Callable[[], list[str]]) -> None:
        super().__init__((HOST, port), _Handler)
        self.troubles = troubles


class _Handler(BaseHTTPRequestHandler):
    timeout = 2
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
            target=self._server.serve_forever, name="health", daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2)
