"""What every source is made of: the table of measurements, readings, and files kept open.

A source is one file of this folder: rows of the table of measurements, a pure `parse`, and a thin
reader that takes the root folder. It is registered by one line in `__init__.py`.
"""

import errno
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

log = logging.getLogger(__name__)

Unit = Literal["bytes", "celsius", "hertz", "microseconds", "share", "count"]
Kind = Literal["gauge", "counter"]
Value = int | float

Reason = Literal["absent", "denied", "transient", "implausible", "unsupported", "unlimited"]
"""Why a value is unknown.

absent: the device has no such file, line or sensor (now). denied: the agent may not read it.
transient: it could not be read this time. implausible: what was read cannot be true.
unsupported: the kernel knows it and does not offer it. unlimited: there is no limit to report.
"""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

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


_TOO_LARGE: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table of measurements. A gauge is a level, a counter only grows in a boot."""

    name: str
    unit: Unit
    kind: Kind
    help: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one measurement, or why there is none.

    `label` tells several sensors of one measurement apart and is '' where there is one only.
    Exactly one of `value` and `reason` is None.
    """

    measurement: Measurement
    label: str
    value: Value | None
    reason: Reason | None

    def __post_init__(self) -> None:
        if (self.value is None) is (self.reason is None):
            raise ValueError(
                f"{self.key}: value {self.value!r} with reason {self.reason!r};"
                " accepted is exactly one of the two"
            )

    @property
    def key(self) -> str:
        """The measurement's name, and the label after a colon: `temp_celsius:cpu-thermal`."""
        name = self.measurement.name
        return f"{name}:{self.label}" if self.label else name


def unknown(measurement: Measurement, reason: Reason, label: str = "") -> Reading:
    """A reading without a value."""
    return Reading(measurement, label, None, reason)


def read_as(
    measurement: Measurement, value: Value | None, reason: Reason, label: str = ""
) -> Reading:
    """A reading of `value`, or of nothing for `reason` where it is None.

    A value that 63 bits cannot hold is implausible: nothing that counts or measures gets there, and
    no table could store it.
    """
    if value is None:
        return Reading(measurement, label, None, reason)
    if not -_TOO_LARGE < value < _TOO_LARGE:
        return Reading(measurement, label, None, "implausible")
    return Reading(measurement, label, value, None)


def all_unknown(measurements: Iterable[Measurement], reason: Reason) -> list[Reading]:
    """What a source of one file reports when the file cannot be read."""
    return [Reading(measurement, "", None, reason) for measurement in measurements]


class Source(Protocol):
    """Hardware that is read about once a second."""

    name: str

    def read(self) -> list[Reading]:
        """Every measurement of the source now. Never raises for what a device can do."""
        ...

    def close(self) -> None:
        """Close the files. A later `read` opens them again."""
        ...


class SourceFactory(Protocol):
    """What is registered: called with the root folder it makes a source."""

    @property
    def measurements(self) -> tuple[Measurement, ...]: ...

    def __call__(self, root: Path, /) -> Source: ...


class Kernel:
    """What the readers ask of the operating system. Tests put faults and a clock in its place."""

    def open(self, path: str) -> int:
        """A file descriptor to read from. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

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

    def monotonic(self) -> float:
        """Seconds of a clock that never steps."""
        return time.monotonic()


KERNEL: Final = Kernel()

# What stays as it is until somebody changes the device: asked again after REPROBE_S only.
# ENODEV and ESRCH come from a file kept open when its device or process went away.
_PERMANENT: Final[dict[int, Reason]] = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.ENODEV: "absent",
    errno.ESRCH: "absent",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EOPNOTSUPP: "unsupported",
}
# The sensor has nothing to say now (a gated GPU, a radio that is down); its file stays good.
# After any other error the file is opened anew at the next read.
_FILE_STAYS_GOOD: Final = frozenset(
    {errno.EAGAIN, errno.EINVAL, errno.ENODATA, errno.EIO, errno.ETIMEDOUT, errno.EBUSY}
)


def reason_of(error: OSError) -> Reason:
    """Why a value is unknown after this error."""
    return _PERMANENT.get(error.errno or 0, "transient")


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


class PolledFile:
    """A small file of /proc or /sys, read again and again through one descriptor.

    One attempt a read and no retry: some sensors answer EAGAIN for as long as they sleep. A file
    that is absent, denied or unsupported is asked again after `REPROBE_S`, and said so once.
    """

    __slots__ = ("_failure", "_fd", "_kernel", "_path", "_retry_at", "_said")

    def __init__(self, path: Path, kernel: Kernel = KERNEL) -> None:
        self._path = str(path)
        self._kernel = kernel
        self._fd: int | None = None
        self._failure: Reason | None = None
        self._said: Reason | None = None
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
        self._failure = self._said = None
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
            log.warning("file not closed path=%s errno=%s", self._path, _errno_name(error))
        self._fd = None

    def _failed(self, error: OSError) -> Reason:
        reason = reason_of(error)
        if error.errno not in _FILE_STAYS_GOOD:
            self.close()
        if reason == "transient":
            return reason
        if reason != self._said and error.errno != errno.ESRCH:  # an ended process is no news
            self._said = reason
            log.info(
                "file not readable path=%s errno=%s reason=%s retry_s=%.0f",
                self._path,
                _errno_name(error),
                reason,
                REPROBE_S,
            )
        self._failure = reason
        self._retry_at = self._kernel.monotonic() + REPROBE_S
        return reason


class PolledFolder:
    """The numbered members of a folder that come and go: thermal_zone0, policy4."""

    def __init__(self, path: Path, prefix: str, most: int, kernel: Kernel = KERNEL) -> None:
        """`most` bounds how many members are returned; those with higher numbers are left out."""
        self._path = str(path)
        self._prefix = prefix
        self._most = most
        self._kernel = kernel
        self._listed_at = float("-inf")
        self._due_at = float("-inf")
        self._said: str | None = None

    def look(self) -> list[str] | Reason | None:
        """The members in the order of their numbers, or why they cannot be listed.

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
            self._say(f"folder not readable errno={_errno_name(error)} reason={reason}")
            return reason
        self._due_at = now + RELIST_S
        start = len(self._prefix)
        members = [
            name
            for name in names
            if name.startswith(self._prefix) and name[start:].isascii() and name[start:].isdigit()
        ]
        members.sort(key=lambda name: int(name[start:]))
        left_out = len(members) - self._most
        if left_out > 0:
            self._say(f"folder has too many members most={self._most} left_out={left_out}")
            return members[: self._most]
        self._said = None
        return members

    def look_again(self) -> None:
        """A member vanished: list at the next `look`, but no sooner than `RELIST_SOON_S`."""
        self._due_at = min(self._due_at, self._listed_at + RELIST_SOON_S)

    def _say(self, text: str) -> None:
        if text != self._said:
            log.info("%s path=%s", text, self._path)
            self._said = text


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
