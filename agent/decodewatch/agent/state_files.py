"""The small files of the state folder: whole or not there, whatever ends the writing of them."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from decodewatch.agent.errors import AgentError


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from reading and replacing the folder's files meanwhile.

    Raises AgentError where the folder cannot be opened.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise AgentError(f"{folder}: cannot be opened: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def replace(file: Path, content: bytes, mode: int) -> None:
    """Write a file so that a power loss or a full disk leaves the old one or the new one, whole.

    Nothing that lies at the place of the new one is followed or written to: root may write to the
    folder of another user. Raises AgentError.
    """
    new = file.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                os.fchmod(fd, mode)  # whatever the umask is
                rest = content
                while rest:  # a disk that is nearly full takes a part
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            new.rename(file)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise AgentError(f"{file}: cannot be written: {error.strerror}") from None
