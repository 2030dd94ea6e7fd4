"""Recorded devices, and a kernel that shows them with the errors that files cannot express."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from decodewatch.agent.sources.base import Kernel, Reading, Value

DEVICES = Path(__file__).parents[1] / "data" / "devices"

_AT_OPEN = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.EMFILE})


class FakeKernel(Kernel):
    """A kernel whose files lie below `root`, with injected errors and a clock that tests move.

    `faults` maps a path as the device has it, `/proc/stat`, to the error that opening or reading it
    or anything below it gives. As in sysfs, a file that is removed while it is open gives ENODEV
    (ESRCH below the folder of a process).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: dict[str, int] = {}
        self.now = 1000.0
        self.opens: list[str] = []
        self.reads: list[str] = []
        self.listings: list[str] = []
        self.pids: set[int] = set()
        self.open_files: dict[int, str] = {}

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
        name = self._name(path)
        self.opens.append(name)
        fault = self._fault(name)
        if fault in _AT_OPEN:
            raise OSError(fault, os.strerror(fault))
        if fault is not None and not Path(path).exists():
            path = os.devnull
        fd = super().open(path)
        self.open_files[fd] = name
        return fd

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        name = self.open_files[fd]
        self.reads.append(name)
        fault = self._fault(name)
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        if os.fstat(fd).st_nlink == 0:
            process = name.startswith("/proc/") and name.split("/")[2].isdigit()
            raise OSError(errno.ESRCH if process else errno.ENODEV, name)
        return super().pread(fd, count, offset)

    def close(self, fd: int) -> None:
        del self.open_files[fd]
        super().close(fd)

    def listdir(self, path: str) -> list[str]:
        name = self._name(path)
        self.listings.append(name)
        fault = self._fault(name)
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        return super().listdir(path)

    def process_exists(self, pid: int) -> bool:
        return pid in self.pids

    def monotonic(self) -> float:
        return self.now

    def _name(self, path: str) -> str:
        return "/" + str(Path(path).relative_to(self.root))

    def _fault(self, name: str) -> int | None:
        while name not in self.faults and len(name) > 1:
            name = os.path.dirname(name)  # noqa: PTH120  the path is one of the device
        return self.faults.get(name)


def recorded(board: str, folder: Path) -> FakeKernel:
    """The kernel of a copy, in `folder`, of a recorded device, with the errors of its ERRNO.tsv."""
    tree = folder / board
    shutil.copytree(DEVICES / board, tree)
    kernel = FakeKernel(tree)
    table = tree / "ERRNO.tsv"
    if table.exists():
        for line in table.read_text().splitlines():
            path, tab, rest = line.partition("\t")
            if tab and path.startswith("/"):
                kernel.faults[path] = getattr(errno, rest.split()[0])
    return kernel


def shown(readings: Iterable[Reading]) -> dict[str, Value | str]:
    """What each reading shows by its key: the value, or the reason for having none."""
    found: dict[str, Value | str] = {}
    for reading in readings:
        assert reading.key not in found, f"{reading.key} is reported twice"
        found[reading.key] = reading.reason if reading.value is None else reading.value  # type: ignore[assignment]
    return found
