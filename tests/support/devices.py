"""Recorded devices, and a kernel that shows them with the errors that files cannot express."""

import errno
import os
import shutil
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

from decodewatch.agent.sources.kit.base import Reading, Value
from decodewatch.agent.sources.kit.kernel import Spawned
from decodewatch.agent.sources.kit.recorded import RecordedKernel

DEVICES = Path(__file__).parents[1] / "data" / "devices"


def _close_all(descriptors: dict[int, str]) -> None:
    for fd in descriptors:
        os.close(fd)


class FakeKernel(RecordedKernel):
    """A recorded device whose files tests change, with faults to inject and a clock to move.

    As in sysfs, a file that is removed while it is open gives ENODEV (ESRCH below the folder of a
    process). What is opened, read, listed and started is written down.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.now = 1000.0
        self.opens: list[str] = []
        self.reads: list[str] = []
        self.listings: list[str] = []
        self.spawned: list[tuple[str, ...]] = []
        self.pids: set[int] = set()
        # Tests leave files open; some thousand of them, and select() fails for all that follow.
        weakref.finalize(self, _close_all, self._names)

    @property
    def open_files(self) -> dict[int, str]:
        """The device's paths of the descriptors that are open."""
        return self._names

    def write(self, path: str, content: str | bytes) -> None:
        """Make a file, with its folders."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        target = self.root / path.lstrip("/")
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    def move(self, path: str, to: str) -> None:
        """Give a folder another name, as sysfs does: the old files go, new ones come."""
        shutil.copytree(self.root / path.lstrip("/"), self.root / to.lstrip("/"))
        self.remove(path)

    def open(self, path: str) -> int:
        self.opens.append(self.name(path))
        return super().open(path)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        name = self._names[fd]
        self.reads.append(name)
        if self.fault(name) is None and os.fstat(fd).st_nlink == 0:
            process = name.startswith("/proc/") and name.split("/")[2].isdigit()
            raise OSError(errno.ESRCH if process else errno.ENODEV, name)
        return super().pread(fd, count, offset)

    def listdir(self, path: str) -> list[str]:
        self.listings.append(self.name(path))
        return super().listdir(path)

    def process_exists(self, pid: int) -> bool:
        return pid in self.pids

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        self.spawned.append(tuple(command))
        return super().spawn(command, environment)

    def monotonic(self) -> float:
        return self.now


def recorded(board: str, folder: Path) -> FakeKernel:
    """The kernel of a copy, in `folder`, of a recorded device, with the errors of its ERRNO.tsv."""
    tree = folder / board
    shutil.copytree(DEVICES / board, tree)
    return FakeKernel(tree)


def shown(readings: Iterable[Reading]) -> dict[str, Value | str]:
    """What each reading shows by its key: the value, the word, or the reason for having none."""
    found: dict[str, Value | str] = {}
    for reading in readings:
        assert reading.key not in found, f"{reading.key} is reported twice"
        known = reading.word if reading.value is None else reading.value
        shows = reading.reason if known is None else known
        assert shows is not None
        found[reading.key] = shows
    return found
