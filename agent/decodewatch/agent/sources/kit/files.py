"""Files and folders of /proc and /sys that are read again and again."""

import errno
import logging
from pathlib import Path
from typing import Final

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, errno_name, reason_of

log = logging.getLogger(__name__)

REPROBE_S: Final = 600.0
"""A file or folder that is absent, denied or unsupported is left alone for so long.

A denied open is not free: Android writes each one to its log.
"""
RELIST_S: Final = 60.0
"""A folder whose members come and go is listed again so often."""
RELIST_SOON_S: Final = 10.0
"""At least so long lies between two listings, however many members vanish."""

READ_LIMIT: Final = 16 * 1024
"""Bytes read of a file at most. /proc/vmstat has 4 to 6 KiB. /proc/stat may be longer, but its
first lines matter: these hold some 200 CPUs."""
_WHOLE: Final = 1024
"""A first read shorter than this was the whole file. A longer one goes on until nothing comes: some
of /proc hands out at most a page a read, and cuts it between two lines."""

# The sensor has nothing to say now (a gated GPU, a radio that is down); its file stays good.
# After any other error the file is opened anew at the next read.
_FILE_STAYS_GOOD: Final = frozenset(
    {errno.EAGAIN, errno.EINVAL, errno.ENODATA, errno.EIO, errno.ETIMEDOUT, errno.EBUSY}
)


_MOST_SAID: Final = 512
_said: set[tuple[str, str]] = set()


def _say(path: str, reason: Reason | None, text: str) -> None:
    """Log something of a path once in a process, however many sources look at it.

    That something is absent is for developers: most devices lack most of what can be read.
    """
    if (path, text) in _said:
        return
    if len(_said) >= _MOST_SAID:
        _said.clear()  # of processes that come and go; at worst something is said again
    _said.add((path, text))
    log.log(logging.DEBUG if reason == "absent" else logging.INFO, "%s path=%s", text, path)


class PolledFile:
    """A small file of /proc or /sys, read again and again through one descriptor.

    One attempt a read and no retry: some sensors answer EAGAIN for as long as they sleep. A file
    that is absent, denied or unsupported is asked again after `REPROBE_S`, and said so once.
    """

    __slots__ = ("_failure", "_fd", "_kernel", "_path", "_retry_at")

    def __init__(self, path: Path, kernel: Kernel = KERNEL) -> None:
        self._path = str(path)
        self._kernel = kernel
        self._fd: int | None = None
        self._failure: Reason | None = None
        self._retry_at = 0.0

    def read(self) -> bytes | Reason:
        """The first `READ_LIMIT` bytes of the file, or why they could not be read."""
        kernel = self._kernel
        if self._failure is not None and kernel.monotonic() < self._retry_at:
            return self._failure
        try:
            fd = self._fd
            if fd is None:
                fd = self._fd = kernel.open(self._path)
            content = chunk = kernel.pread(fd, READ_LIMIT, 0)
            if len(content) >= _WHOLE:
                while chunk and len(content) < READ_LIMIT:
                    chunk = kernel.pread(fd, READ_LIMIT - len(content), len(content))
                    content += chunk
        except OSError as error:
            return self._failed(error)
        self._failure = None
        return content

    def retry_if_absent(self) -> None:
        """Try a file that was absent at the next read: something says that it may have come."""
        if self._failure == "absent":
            self._failure = None

    def close(self) -> None:
        """Close the descriptor; a later read opens the file again."""
        if self._fd is None:
            return
        try:
            self._kernel.close(self._fd)
        except OSError as error:
            log.warning("file not closed path=%s errno=%s", self._path, errno_name(error))
        self._fd = None

    def _failed(self, error: OSError) -> Reason:
        reason = reason_of(error)
        if error.errno not in _FILE_STAYS_GOOD:
            self.close()
        if reason == "transient":
            return reason
        if error.errno != errno.ESRCH:  # an ended process is no news
            told = f"errno={errno_name(error)} reason={reason} retry_s={REPROBE_S:.0f}"
            _say(self._path, reason, f"file not readable {told}")
        self._failure = reason
        self._retry_at = self._kernel.monotonic() + REPROBE_S
        return reason


class PolledFolder:
    """The members of a folder that come and go: thermal_zone0, policy4."""

    def __init__(
        self,
        path: Path,
        prefix: str,
        most: int,
        kernel: Kernel = KERNEL,
        *,
        numbered: bool = True,
    ) -> None:
        """The members begin with `prefix`, and go on with their number where they are `numbered`.

        `most` bounds how many are returned; those with higher numbers, or the last by their names,
        are left out.
        """
        self._numbered = numbered
        self._path = str(path)
        self._prefix = prefix
        self._most = most
        self._kernel = kernel
        self._listed_at = float("-inf")
        self._due_at = float("-inf")

    def look(self) -> list[str] | Reason | None:
        """The members in the order of their numbers or names, or why they cannot be listed.

        None while it is not yet time to look again.
        """
        now = self._kernel.monotonic()
        if now < self._due_at:
            return None
        self._listed_at = now
        try:
            names = self._kernel.listdir(self._path)
        except OSError as error:
            reason = reason_of(error)
            self._due_at = now + (RELIST_S if reason == "transient" else REPROBE_S)
            told = f"folder not readable errno={errno_name(error)} reason={reason}"
            _say(self._path, reason, told)
            return reason
        self._due_at = now + RELIST_S
        start = len(self._prefix)
        members = [name for name in names if name.startswith(self._prefix)]
        if self._numbered:
            members = [
                name for name in members if name[start:].isascii() and name[start:].isdigit()
            ]
            members.sort(key=lambda name: int(name[start:]))
        else:
            members.sort()
        left_out = len(members) - self._most
        if left_out > 0:
            told = f"folder has too many members most={self._most} left_out={left_out}"
            _say(self._path, None, told)
        return members[: self._most]

    def look_again(self) -> None:
        """A member vanished: list at the next `look`, but no sooner than `RELIST_SOON_S`."""
        self._due_at = min(self._due_at, self._listed_at + RELIST_SOON_S)


def read_once(path: Path, limit: int, kernel: Kernel = KERNEL) -> bytes | Reason:
    """At most `limit` bytes of a file that is not polled, or why they could not be read."""
    try:
        fd = kernel.open(str(path))
        try:
            content = b""
            while len(content) < limit:
                chunk = kernel.pread(fd, limit - len(content), len(content))
                if not chunk:
                    break
                content += chunk
        finally:
            kernel.close(fd)
    except OSError as error:
        return reason_of(error)
    return content
