"""A recorded device: a folder that has the device's files, and says what files cannot.

Below the folder lie `proc`, `sys`, `etc` and so on. `ERRNO.tsv` names files whose opening or
reading fails on the device (path, tab, errno); `cmd/` has what programs print, that of
`nvpmodel -q` in `nvpmodel_-q.txt`.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, Spawned
from decodewatch.agent.sources.kit.text import only_number

_RECORDED_LIMIT: Final = 1 << 20  # bytes of a recorded output, or of the list of errors

# Others fail when the open file is read.
_AT_OPEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.EMFILE})


class RecordedKernel(Kernel):
    """The kernel of a recorded device, as far as files show one.

    `faults` maps a path as the device has it, `/proc/stat`, to the error that opening or reading it
    or anything below it gives.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = _faults(root / "ERRNO.tsv")
        self._names: dict[int, str] = {}

    def open(self, path: str) -> int:
        name = self.name(path)
        fault = self.fault(name)
        if fault in _AT_OPEN:
            raise OSError(fault, os.strerror(fault))
        if fault is not None and not Path(path).exists():
            path = os.devnull
        fd = super().open(path)
        self._names[fd] = name
        return fd

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        fault = self.fault(self._names[fd])
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        return super().pread(fd, count, offset)

    def close(self, fd: int) -> None:
        del self._names[fd]
        super().close(fd)

    def listdir(self, path: str) -> list[str]:
        fault = self.fault(self.name(path))
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        return super().listdir(path)

    def process_exists(self, pid: int) -> bool:
        return (self.root / "proc" / str(pid)).is_dir()

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        name = "_".join((os.path.basename(command[0]), *command[1:]))  # noqa: PTH119
        return _Printed(_content(self.root / "cmd" / f"{name}.txt"))

    def page_bytes(self) -> int:
        try:
            recorded = only_number(_content(self.root / "cmd/getconf_PAGESIZE.txt"))
        except OSError:
            recorded = None
        return recorded or super().page_bytes()

    def name(self, path: str) -> str:
        """A path below the root as the device has it."""
        return "/" + str(Path(path).relative_to(self.root))

    def fault(self, name: str) -> int | None:
        """The error of a file, or of a folder that it lies in."""
        while name not in self.faults and len(name) > 1:
            name = os.path.dirname(name)  # noqa: PTH120  the path is one of the device
        return self.faults.get(name)


class _Printed:
    """A program that has printed what was recorded, and ended."""

    pid = 0

    def __init__(self, output: bytes) -> None:
        self._output: bytes | None = output

    def read(self) -> bytes | None:
        output, self._output = self._output, None
        return output or None

    def status(self) -> int | None:
        return 0

    def kill(self) -> None:
        self._output = None


def _faults(table: Path) -> dict[str, int]:
    faults: dict[str, int] = {}
    try:
        content = _content(table)
    except OSError:
        return faults  # none are listed, or nothing can be read at all
    for line in content.decode("utf-8", "replace").splitlines():
        path, tab, rest = line.partition("\t")
        number = getattr(errno, rest.split()[0], None) if rest.split() else None
        if tab and path.startswith("/") and isinstance(number, int):
            faults[path] = number
    return faults


def _content(file: Path) -> bytes:
    """The beginning of a file, not waiting where it is a pipe. Raises OSError."""
    fd = KERNEL.open(str(file))
    try:
        return KERNEL.pread(fd, _RECORDED_LIMIT, 0)
    finally:
        KERNEL.close(fd)
