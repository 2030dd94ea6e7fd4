"""The files around the spool's database: its lock, the ballast, and what was set aside."""

import errno
import fcntl
import os
import stat
from pathlib import Path

from decodewatch.agent.errors import AgentError
from decodewatch.shared import logs

log = logs.get(__name__)

KEPT_ASIDE = 2
"""Corrupt spools that are kept for a person to look at; the oldest goes when there are more."""
_BLOCK = 4096
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_ACCEPTED = "accepted is a file in a folder that the agent may write"


class SpoolError(AgentError):
    """The spool cannot be used or written; what was to be stored is not, and may be tried again."""


class SpoolFiles:
    """The path of a spool's database, and what belongs to it."""

    def __init__(self, file: Path, ballast_bytes: int) -> None:
        # SQLite puts its files beside what a link points to; ours must stand there too.
        self.file = Path(os.path.realpath(file))
        self._ballast = self._beside("ballast")
        self.ballast_bytes = ballast_bytes
        self._lock: int | None = None
        self._found: dict[Path, tuple[int, int]] = {}  # which file stood at a path

    def _beside(self, suffix: str) -> Path:
        return self.file.with_name(f"{self.file.name}.{suffix}")

    def take(self) -> None:
        """Make the folder and the file, and lock them against a second agent; nothing to do where
        they are locked.

        Two agents on one spool would give two batches one number. Raises SpoolError.
        """
        if self._lock is not None:
            return
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.file.exists() and not stat.S_ISREG(self.file.stat().st_mode):
                kind = "a folder" if self.file.is_dir() else "not a regular file"
                raise SpoolError(f"spool: {self.file} is {kind}; {_ACCEPTED}")
            lock = os.open(self._beside("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.make()
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise SpoolError(
                f"spool: {self.file} is in use by another agent; accepted is a spool of its own"
            ) from None
        except OSError as error:
            raise SpoolError(f"spool: {self.file}: {error.strerror}; {_ACCEPTED}") from None
        self._lock = lock

    def make(self) -> None:
        """Make the empty file, readable by the agent alone, where there is none. Raises OSError."""
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def note_places(self) -> None:
        """Remember which files stand at the paths, for `in_place`: the database is open and has a
        write-ahead log."""
        paths = (self.file, Path(f"{self.file}-wal"), self._beside("lock"))
        self._found = {path: found for path in paths if (found := _inode(path)) is not None}

    def in_place(self) -> bool:
        """Whether they still do. What goes into a file that somebody removed is nowhere."""
        return all(_inode(path) == found for path, found in self._found.items())

    def give_up(self) -> None:
        """Let another agent have the spool."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def set_aside(self) -> Path:
        """Rename the database and its write-ahead log; their new name. Raises SpoolError."""
        kept = self._kept_aside()
        number = 1 + max((number for number, _ in kept), default=0)
        aside = self._beside(f"corrupt-{number}")
        try:
            self.file.rename(aside)
            for suffix in ("-wal", "-journal"):
                part = Path(f"{self.file}{suffix}")
                if part.exists():
                    part.rename(f"{aside}{suffix}")
            for _, old in kept[: max(len(kept) - KEPT_ASIDE + 1, 0)]:
                _remove(old)
            self.make()
        except OSError as error:
            raise SpoolError(
                f"spool: {self.file} is corrupt and cannot be moved: {error.strerror}; {_ACCEPTED}"
            ) from None
        return aside

    def drop_aside(self) -> bool:
        """Remove what was set aside, to make room on the disk; whether that removed anything."""
        kept = self._kept_aside()
        for _, old in kept:
            _remove(old)
        return len(self._kept_aside()) < len(kept)

    def _kept_aside(self) -> list[tuple[int, Path]]:
        found = []
        for path in self.file.parent.glob(f"{_escaped(self.file.name)}.corrupt-*"):
            number = path.name.rpartition("-")[2]
            if number.isascii() and number.isdigit():
                found.append((int(number), path))
        return sorted(found)

    def make_ballast(self) -> bool:
        """Reserve the ballast's blocks, or as many as there are; False where there are not all.

        They are what lets SQLite go on when somebody else has filled the disk.
        """
        size = self.ballast_bytes
        try:
            fd = os.open(self._ballast, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while not _reserve(fd, size):
                    size //= 2
            finally:
                os.close(fd)
        except OSError as error:
            log.warning("ballast not made", file=self._ballast, reason=error.strerror)
            return error.errno not in _FULL
        return size == self.ballast_bytes

    def drop_ballast(self) -> bool:
        """Give the ballast's blocks to the disk; whether there were any."""
        try:
            self._ballast.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("ballast not removed", file=self._ballast, reason=error.strerror)
            return False
        return True

    def has_room(self) -> bool:
        """Whether the disk has room for the ballast several times over."""
        return self._free_bytes() >= 3 * self.ballast_bytes

    def spare_bytes(self) -> int:
        """What the database may still take of a full disk: half of the ballast's blocks.

        The other half is for its write-ahead log, or for nobody.
        """
        try:
            held = self._ballast.stat().st_size
        except OSError:
            held = 0
        return min(held + self._free_bytes(), self.ballast_bytes) // 2

    def _free_bytes(self) -> int:
        try:
            disk = os.statvfs(self.file.parent)
        except OSError as error:
            log.warning("room on the disk not known", every=600, reason=error.strerror)
            return 0
        return disk.f_bavail * disk.f_frsize


def _inode(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path; None where there is none, or it cannot be reached."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reserve(fd: int, size: int) -> bool:
    """Make a file so large, with all its blocks; False, and the file empty, where they are not."""
    if os.fstat(fd).st_size >= size:
        return True
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            for start in range(0, size, _BLOCK):
                os.pwrite(fd, b"\xa5" * _BLOCK, start)
    except OSError as error:
        os.ftruncate(fd, 0)
        if error.errno not in _FULL or size < 2 * _BLOCK:
            raise
        return False
    return True


def _remove(aside: Path) -> None:
    for path in (aside, Path(f"{aside}-wal"), Path(f"{aside}-journal")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("corrupt spool not removed", file=path, reason=error.strerror)


def _escaped(name: str) -> str:
    """A file name as a pattern that matches nothing but itself."""
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in name)
