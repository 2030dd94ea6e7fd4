"""How a long-lived process starts, says that it is ready, and stops."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType


class Stop:
    """Set by SIGTERM or SIGINT, or by `set`; a main loop waits on it or is woken by `on_stop`.

    `on_stop` runs inside the signal handler of the main thread: it may do no more than write a
    byte to a pipe or set an event.
    """

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        self._event = threading.Event()
        self._on_stop = on_stop

    def install(self) -> "Stop":
        """Catch SIGTERM and SIGINT from now on. Only the main thread may call this."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._caught)
        return self

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.set()

    def set(self) -> None:
        """Ask the process to stop."""
        self._event.set()
        if self._on_stop is not None:
            self._on_stop()

    def is_set(self) -> bool:
        """Whether the process was asked to stop."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until asked to stop, or for so long; whether it was asked."""
        return self._event.wait(seconds)


def notify(state: str) -> bool:
    """Tell systemd, e.g. `READY=1` (sd_notify's protocol); False where no systemd listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), address)
    except OSError:
        return False
    return True
