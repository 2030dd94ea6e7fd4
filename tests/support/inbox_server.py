"""A small inbox that speaks docs/inbox.md over a real socket, and can misbehave on request."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

from support.waiting import until


class InboxServer:
    """Takes connections at a path, keeps what it is told, and answers as its fields say now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = True  # False: accepts, and leaves everything in the socket
        self.stores = True  # False: takes turns and never acknowledges them
        self.refuses_hello: str | None = None
        self.refuses_begins: str | None = None
        self.refuses_turns: str | None = None
        self.gate = threading.Event()  # cleared: stops reading, like a stopped process
        self.gate.set()
        self.messages: list[dict[str, Any]] = []
        self.connections = 0
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def start(self) -> "InboxServer":
        """Listen; also again after `stop`."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen(16)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Vanish with all connections, as a killed agent does."""
        if self._listener is not None:
            # Wakes the thread in accept(); closing alone does not.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.path.unlink(missing_ok=True)
        with self._lock:
            for channel in self._open:
                channel.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of one type, as they came."""
        return [message for message in list(self.messages) if message["type"] == kind]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of all turns that came, repetitions too."""
        return [message["record"] for message in self.of("turn")]

    def wait_for(self, kind: str, count: int = 1, seconds: float = 10) -> list[dict[str, Any]]:
        """The messages of one type, once there are so many."""
        until(lambda: len(self.of(kind)) >= count, seconds, f"{count} {kind} messages")
        return self.of(kind)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                channel, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(channel)
            self.connections += 1
            if self.reads:
                threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        with channel, channel.makefile("rb") as lines:
            try:
                for line in lines:
                    self.gate.wait()
                    assert len(line) <= 64 * 1024
                    message = json.loads(line)
                    self.messages.append(message)
                    answer = self._answer(message)
                    if answer is not None:
                        channel.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                pass  # the application has gone; its messages are what tests look at
            finally:
                with self._lock:
                    if channel in self._open:
                        self._open.remove(channel)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        if message["type"] == "hello":
            if self.refuses_hello is not None:
                return {"type": "refused", "reason": self.refuses_hello}
            return {"type": "welcome", "v": 1, "device": "test", "runtime": "r1"}
        if message["type"] == "begin" and self.refuses_begins is not None:
            turn = message["turn"]
            reason = self.refuses_begins
            return {"type": "refused", "message": "begin", "turn": turn, "reason": reason}
        if message["type"] == "turn":
            turn = message["record"]["id"]
            if self.refuses_turns is not None:
                reason = self.refuses_turns
                return {"type": "refused", "message": "turn", "turn": turn, "reason": reason}
            if self.stores:
                return {"type": "stored", "turn": turn}
        return None
