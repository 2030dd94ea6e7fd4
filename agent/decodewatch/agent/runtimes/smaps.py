"""What is a process's own of the memory that it shares: /proc/<pid>/smaps_rollup.

Lines such as `Pss:    29944 kB` (proc_pid_smaps(5), since 4.14). The kernel walks all pages of the
process for them, which takes milliseconds a GiB: they are read at a slow pace.
"""

from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import kibibytes

PSS = Measurement(
    "runtime_pss_bytes",
    "bytes",
    "gauge",
    "memory of the runtime, mapped weights too, shared pages by its part of them; once a minute",
)
PRIVATE = Measurement(
    "runtime_private_bytes",
    "bytes",
    "gauge",
    "what the runtime wrote and shares with nobody, and its part of what is swapped out; once a "
    "minute",
)

EVERY_S: Final = 60.0
_COST: Final = 1 / 1000
"""Reading takes no more of the time than this, of however many GiB."""


class Smaps(NamedTuple):
    """Both values, or why they are unknown."""

    pss: Reading
    private: Reading


def parse(content: bytes) -> Smaps:
    """The readings of a smaps_rollup."""
    dirty, swapped = kibibytes(content, b"Private_Dirty"), kibibytes(content, b"SwapPss")
    private = None if dirty is None or swapped is None else dirty + swapped
    return Smaps(
        read_as(PSS, kibibytes(content, b"Pss"), "absent"), read_as(PRIVATE, private, "absent")
    )


def _unknown(reason: Reason) -> Smaps:
    return Smaps(unknown(PSS, reason), unknown(PRIVATE, reason))


class SmapsReader:
    """Reads the memory of one process, and reports it until it is time to read again.

    What it fails with says nothing about the process: only its owner may read this file, and a
    process that has just called exec() gives ESRCH to who had it open.
    """

    def __init__(self, pid: int, root: Path = Path("/"), kernel: Kernel = KERNEL) -> None:
        self._kernel = kernel
        self._file = PolledFile(root / "proc" / str(pid) / "smaps_rollup", kernel)
        self._due_at = float("-inf")
        self._last = _unknown("transient")

    def read(self) -> Smaps:
        """The values of at most a minute ago, or why there are none.

        The file is found by the pid, which may be another process's by now: the caller believes
        them when it has seen afterwards that its process still lives.
        """
        began = self._kernel.monotonic()
        if began >= self._due_at:
            content = self._file.read()
            # Not kept open: it would keep the process's page tables after its end.
            self._file.close()
            took = self._kernel.monotonic() - began
            self._due_at = began + max(EVERY_S, took / _COST)
            self._last = _unknown(content) if isinstance(content, str) else parse(content)
        return self._last
