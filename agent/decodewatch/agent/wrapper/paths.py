"""Where an application finds the agent's inbox (`docs/inbox.md`).

Where the agent itself listens and keeps its state is in its settings.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from decodewatch.agent.android import user_folder

SYSTEM_SOCKET: Final = Path("/run/decodewatch/agent.sock")


def socket_path(
    environment: Mapping[str, str] = os.environ, system_socket: Path = SYSTEM_SOCKET
) -> Path:
    """The inbox that applies now: `$DECODEWATCH_SOCKET`, the system's agent where there is one,
    else that of the same user. Nothing says that anybody listens there."""
    given = environment.get("DECODEWATCH_SOCKET")
    if given:
        return Path(given)
    try:
        if system_socket.exists():
            return system_socket
    except PermissionError:
        return system_socket  # it is the one; connecting will say what is wrong
    below = environment.get("XDG_RUNTIME_DIR")
    if below:
        return Path(below) / "decodewatch/agent.sock"
    return user_folder(environment) / "agent.sock"


def distrust(path: Path) -> str | None:
    """Why nothing may be sent to a socket at `path`; None where it may be.

    Anybody can make a folder below /tmp, and would be told who converses here and when.
    """
    folder = path.parent
    if folder.parent != Path("/tmp"):
        return None
    try:
        seen = folder.lstat()
    except OSError:
        return None  # connecting will say what is wrong
    if not stat.S_ISDIR(seen.st_mode):
        return f"{folder} is not a folder"
    if seen.st_uid not in (0, os.geteuid()) or seen.st_mode & 0o022:
        return (
            f"{folder} belongs to uid {seen.st_uid} with mode {stat.S_IMODE(seen.st_mode):o}; "
            f"accepted is a folder of uid {os.geteuid()} that no other may write to"
        )
    return None
