"""What the readers ask of the operating system, so that tests can put faults in its place."""

import errno
import os
import signal
import time
from collections.abc import Sequence
from typing import Final, Protocol

from decodewatch.agent.sources.kit.base import Reason

SPAWNED_ENVIRONMENT: Final = {"LC_ALL": "C"}
"""Added to the environment of every child: its words must not depend on the device's language."""


_REAP_S: Final = 0.2
"""A child that was killed is waited for at most so long."""


class Spawned(Protocol):
    """A child process of which nothing is waited for."""

    pid: int

    def read(self) -> bytes | None:
        """What it printed since the last call, b"" where nothing; None: it closed its output."""
        ...

    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        ...

    def kill(self) -> None:
        """End it, and forget it. May be called again."""
        ...


class _Child:
    """A child of this process; see `Spawned`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        # Here and not at the top: most devices have nothing to start, and this costs 1 MiB.
        import subprocess

        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **SPAWNED_ENVIRONMENT, **environment},
            bufsize=0,
            start_new_session=True,  # a group of its own, so that what it starts ends with it
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def read(self) -> bytes | None:
        if self._output.closed:
            return None
        try:
            return os.read(self._output.fileno(), 64 * 1024) or None
        except BlockingIOError:
            return b""

    def status(self) -> int | None:
        if self._process.returncode is None and self._has_ended():
            self._kill_group()
        return self._process.poll()

    def kill(self) -> None:
        import subprocess

        self._output.close()
        if self.status() is None:
            self._kill_group()
            self._process.kill()
            try:
                self._process.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                pass  # it hangs in a driver, where nothing ends it; `subprocess` waits for it later

    def _has_ended(self) -> bool:
        """Whether it has ended, which leaves its number, and so its group's, to nobody else yet."""
        if not hasattr(os, "waitid"):
            return False  # Android's Python; there, what it started may live on
        try:
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, look) is not None
        except ChildProcessError:
            return False  # somebody else has waited for it

    def _kill_group(self) -> None:
        """End what it started and left behind, but for what went into a session of its own."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass  # nothing is left, or what is left is somebody else's


class Kernel:
    """What the readers ask of the operating system. Tests put faults and a clock in its place."""

    def open(self, path: str) -> int:
        """A file descriptor to read from. Raises OSError."""
        # Never waiting: what should be a file may be a pipe that nobody writes to.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """At most `count` bytes from `offset` on. Raises OSError."""
        return os.pread(fd, count, offset)

    def close(self, fd: int) -> None:
        """Close the descriptor. Raises OSError."""
        os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """The names in a folder. Raises OSError."""
        return os.listdir(path)  # noqa: PTH208  a Path a name would cost more than the listing

    def process_exists(self, pid: int) -> bool:
        """Whether there is such a process, also where /proc hides it."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # EPERM: it is there and belongs to somebody else
        return True

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        """Start a program; its errors go nowhere. Raises OSError where it is not there."""
        return _Child(command, environment or {})

    def page_bytes(self) -> int:
        """The size of a page: 16 KiB on a Raspberry Pi 5 and on newer phones."""
        return os.sysconf("SC_PAGE_SIZE")

    def monotonic(self) -> float:
        """Seconds of a clock that never steps."""
        return time.monotonic()


KERNEL: Final = Kernel()

# What stays as it is until somebody changes the device.
# ENODEV and ESRCH come from a file kept open when its device or process went away.
_PERMANENT: Final[dict[int, Reason]] = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.EISDIR: "absent",  # no such file: a folder, a pipe
    errno.ESPIPE: "absent",
    errno.EISDIR: "absent",
    errno.ELOOP: "absent",
    errno.ENODEV: "absent",
    errno.ESRCH: "absent",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EOPNOTSUPP: "unsupported",
}


def reason_of(error: OSError) -> Reason:
    """Why a value is unknown after this error."""
    return _PERMANENT.get(error.errno or 0, "transient")


def errno_name(error: OSError) -> str:
    """EACCES, for the log."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))
