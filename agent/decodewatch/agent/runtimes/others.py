"""Whether a process may speak for another one: a proxy for the server behind it."""

import re
from pathlib import Path
from typing import Final

_UIDS: Final = re.compile(rb"^Uid:\s*(\d+)\s+(\d+)\s+(\d+)", re.MULTILINE)
_NAMESPACES: Final = re.compile(rb"^NSpid:((?:\s+\d+)+)$", re.MULTILINE)


def objection(speaker: int, uid: int, pid: int, root: Path = Path("/")) -> str | None:
    """Why the process `speaker` of user `uid` may not speak for process `pid`; None if it may.

    It may where it could look at that process itself: as root, or where both are of one user. Both
    pids are of the agent's pid namespace; a speaker in another one counts its neighbours otherwise.
    """
    own = _status(speaker, root)
    spaces = _NAMESPACES.search(own or b"")
    if own is None or (spaces is not None and len(spaces[1].split()) != 1):
        return "the process that says so is of another pid namespace"
    other = _status(pid, root)
    if other is None:
        return f"process {pid} is not there, or cannot be seen"
    uids = _UIDS.search(other)
    if uid != 0 and (uids is None or any(int(one) != uid for one in uids.groups())):
        return f"process {pid} is not of uid {uid}; accepted is one of the same user, or root"
    return None


def _status(pid: int, root: Path) -> bytes | None:
    try:
        return (root / "proc" / str(pid) / "status").read_bytes()
    except OSError:
        return None
