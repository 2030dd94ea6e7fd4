"""Real children for sources that keep one running, and clocks under which their deadlines pass."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from decodewatch.agent.sources.kit.kernel import Kernel, Spawned

FASTER = 20


class ChildKernel(Kernel):
    """The real kernel; what it starts is written down."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.children: list[Spawned] = []

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        self.commands.append(tuple(command))
        child = super().spawn(command, environment)
        self.children.append(child)
        return child


class FastKernel(ChildKernel):
    """One whose clock runs `FASTER` times as fast: 10 s of silence pass in half a second."""

    def monotonic(self) -> float:
        return time.monotonic() * FASTER


class SteppedKernel(ChildKernel):
    """One whose clock is moved by the test."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def program(folder: Path, name: str, script: str) -> Path:
    """An executable shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"


def open_files() -> int:
    """Descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
