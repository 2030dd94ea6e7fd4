"""Where a process is in the trees of cgroups of either version: the folders to look into.

In version 1 every controller (memory, cpu) may have a tree of its own, in version 2 there is one.
Cgroups that no mount shows cannot be seen: in a container, those outside of it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.agent.sources.kit.kernel import Kernel

_CGROUP_FILE_LIMIT: Final = 16 * 1024
_MOUNTS_LIMIT: Final = 256 * 1024  # hosts of many containers have hundreds of mounts
_MOST_LEVELS: Final = 32


class Membership(NamedTuple):
    """Where a process is in the tree of one version."""

    version: int
    path: str


class Mount(NamedTuple):
    """A mount of a tree of cgroups: which cgroup is seen at which folder."""

    root: str
    folder: str


class Levels(NamedTuple):
    """The folders of a process's cgroup and of those that it is within, innermost first."""

    version: int
    folders: list[Path]


def parse_membership(content: bytes, controller: bytes = b"memory") -> Membership | None:
    """The cgroup of a controller in a /proc/<pid>/cgroup, version 1 first; None without one."""
    unified = None
    for line in _whole_lines(content):
        hierarchy, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if not colon or not path.startswith(b"/"):
            continue
        if controller in controllers.split(b","):
            return Membership(1, os.fsdecode(path))
        if hierarchy == b"0" and not controllers:
            unified = Membership(2, os.fsdecode(path))
    return unified


def parse_mounts(content: bytes, version: int, controller: bytes = b"memory") -> list[Mount]:
    """The mounts of a controller's cgroups of a version in a /proc/<pid>/mountinfo."""
    mounts = []
    for line in _whole_lines(content):
        head, _, tail = line.partition(b" - ")
        fields, kind = head.split(b" "), tail.split(b" ")
        if len(fields) < 6 or len(kind) < 3:
            continue
        if (version == 2 and kind[0] == b"cgroup2") or (
            version == 1 and kind[0] == b"cgroup" and controller in kind[2].split(b",")
        ):
            mounts.append(Mount(_unescape(fields[3]), _unescape(fields[4])))
    return mounts


def find_levels(
    pid: int, controllers: tuple[bytes, ...], root: Path, kernel: Kernel
) -> list[Levels | Reason]:
    """Where the process is for each of the controllers, or why that is not known."""
    proc = root / "proc"
    content = read_once(proc / str(pid) / "cgroup", _CGROUP_FILE_LIMIT, kernel)
    if isinstance(content, str):
        return [content] * len(controllers)
    mounts = read_once(proc / "self/mountinfo", _MOUNTS_LIMIT, kernel)
    if isinstance(mounts, str):
        return [mounts] * len(controllers)
    return [_levels(content, mounts, controller, root) for controller in controllers]


class Tightest(NamedTuple):
    """The level with the lowest limit, and whether the limit of any level may not be read."""

    folder: Path
    denied: bool


def tightest(folders: Sequence[Path], limit_of: Callable[[Path], float | Reason]) -> Tightest:
    """Of several levels with the lowest limit the outermost, which holds the others too; the
    innermost that shows a limit where none is set."""
    found: Path | None = None
    lowest: float | None = None
    denied = False
    for folder in folders:
        limit = limit_of(folder)
        if not isinstance(limit, str):
            if lowest is None or limit <= lowest:
                found, lowest = folder, limit
        elif limit in ("unlimited", "implausible"):
            found = found or folder
        else:
            denied = denied or limit == "denied"
    return Tightest(found or folders[0], denied)


class FollowedCounter:
    """A counter that is read of one cgroup, and of another when the process or its limit moves.

    It starts at what the first shows, and grows by what the present one grows by: what another has
    counted before happened to others.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._total: int | None = None

    def move(self) -> None:
        """The next value is of another cgroup."""
        self._last = None

    def see(self, value: int) -> int:
        """The count, now that the cgroup shows this value."""
        if self._total is None:
            self._total = value
        elif self._last is not None and value > self._last:
            self._total += value - self._last
        self._last = value
        return self._total


def _levels(content: bytes, mounts: bytes, controller: bytes, root: Path) -> Levels | Reason:
    membership = parse_membership(content, controller)
    if membership is None:
        return "absent"
    for mount in parse_mounts(mounts, membership.version, controller):
        folders = _folders(membership.path, mount, root)
        if folders:
            return Levels(membership.version, folders)
    return "absent"


def _folders(path: str, mount: Mount, root: Path) -> list[Path]:
    inner = [part for part in path.split("/") if part]
    outer = [part for part in mount.root.split("/") if part]
    if ".." in inner or inner[: len(outer)] != outer:
        return []  # the mount shows another part of the tree
    below = inner[len(outer) :][:_MOST_LEVELS]
    top = root / mount.folder.lstrip("/")
    return [top.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]


def _whole_lines(content: bytes) -> Iterator[bytes]:
    # What follows the last newline was cut, or is nothing.
    yield from content.split(b"\n")[:-1]


def _unescape(field: bytes) -> str:
    # mountinfo writes space, tab, newline and backslash in octal.
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)
