"""How a long-lived process starts, says that it is ready, and stops."""

import os
import select
import signal
import socket
from collections.abc import Callable
from types import FrameType


class Stop:
    """Set by SIGTERM or SIGINT, or by `set`; a main loop waits on it or is woken by `on_stop`.

    `on_stop` runs inside the signal handler of the main thread: it may do no more than write a
    byte to a pipe. For the same reason there is no `threading.Event` here: its lock could be held
    by the very code that the signal interrupts, and a second signal would then wait for ever.
    """

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        self._set = False
        self._on_stop = on_stop
        # Never read, so that it stays readable for every waiter once it was written.
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def install(self) -> "Stop":
        """Catch SIGTERM and SIGINT from now on. Only the main thread may call this."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._caught)
        # Handlers run in the main thread, but the kernel may interrupt another one: then this is
        # all that wakes the main thread out of `wait`.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.set()

    def set(self) -> None:
        """Ask the process to stop; from any thread, or from a signal handler."""
        if self._set:
            return
        self._set = True
        os.write(self._write, b"s")
        if self._on_stop is not None:
            self._on_stop()

    def is_set(self) -> bool:
        """Whether the process was asked to stop."""
        return self._set

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until asked to stop, or for so long; whether it was asked."""
        waiter = select.poll()
        waiter.register(self._read, select.POLLIN)
        waiter.poll(None if seconds is None else max(0.0, seconds * 1000))
        return self._set


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
