"""Which process of this device listens at an address: the server that a proxy or a scrape is of.

/proc/net/tcp names the listening socket by its inode, and /proc/<pid>/fd the process that holds it.
The second needs the rights of that process's user, or root.
"""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LISTEN: Final = b"0A"
# What only passes connections on, or holds a socket for somebody else.
_NO_SERVERS: Final = frozenset(
    {"systemd", "init", "docker-proxy", "rootlessport", "slirp4netns", "pasta", "ssh", "sshd"}
)


class Process(NamedTuple):
    """One life of one process; `started` is in clock ticks since boot."""

    pid: int
    started: int


def parse_listening(content: bytes, address: Address, port: int) -> set[int]:
    """The inodes of the sockets of a /proc/net/tcp or tcp6 that listen at an address and port,
    those that listen at all addresses among them."""
    found = set()
    for line in content.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN or not fields[9].isdigit():
            continue
        where, _, number = fields[1].partition(b":")
        try:
            bound, its = _address(where), int(number, 16)
        except ValueError:
            continue
        same = bound == address or _v4(bound) == address
        if its == port and (same or bound.is_unspecified):
            found.add(int(fields[9]))
    return found


def _address(text: bytes) -> Address:
    """Words of 32 bits in the order of this machine. Raises ValueError."""
    words = [text[start : start + 8] for start in range(0, len(text), 8)]
    raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return ipaddress.ip_address(raw)


def _v4(address: Address) -> Address | None:
    return address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None


def is_local(address: Address) -> bool:
    """Whether an address is one of this machine's."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return not address.is_unspecified


def find(address: Address, port: int, root: Path = Path("/")) -> Process | None:
    """The process that listens there; None where it is on another machine, cannot be seen, or only
    passes connections on. Of several that share the socket it is the eldest, which started the
    others. Reads all of /proc: some milliseconds."""
    if not is_local(address):
        return None
    inodes: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            content = (root / "proc/net" / name).read_bytes()
        except OSError:
            continue
        inodes |= parse_listening(content, address, port)
    wanted = {f"socket:[{inode}]" for inode in inodes if inode}
    found = [one for one in _holders(wanted, root) if one is not None] if wanted else []
    return min(found, key=lambda one: (one.started, one.pid), default=None)


def lives(process: Process, root: Path = Path("/")) -> bool:
    """Whether a process that was found still runs."""
    return _process(process.pid, root) == process


def _holders(wanted: set[str], root: Path) -> Iterator[Process | None]:
    proc = root / "proc"
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return
    for pid in pids:
        folder = f"{proc}/{pid}/fd"
        try:
            files = os.listdir(folder)  # noqa: PTH208  # thousands of them: no objects
            held = any(_link(f"{folder}/{name}") in wanted for name in files)
        except OSError:
            continue  # another user's, or gone
        if held:
            yield _process(pid, root)


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


_STAT: Final = re.compile(rb"^\d+ \((.*)\) (\S) (.*)$", re.DOTALL)


def _process(pid: int, root: Path) -> Process | None:
    try:
        stat = _STAT.match((root / f"proc/{pid}/stat").read_bytes())
    except OSError:
        return None
    if stat is None or stat[2] in b"ZXx" or stat[1].decode("utf-8", "replace") in _NO_SERVERS:
        return None
    return Process(pid, int(stat[3].split()[18]))
