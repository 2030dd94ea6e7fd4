"""What the agent reads of one runtime's process, by its pid: /proc/<pid>.

The files are opened when the reader is made. An open file of /proc stays with its process, also
after the pid was given to another one: it fails then, and never shows a stranger's memory.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.agent.runtimes import smaps
from decodewatch.agent.runtimes.cgroup import CgroupReader, CgroupReadings
from decodewatch.agent.sources.kit.base import Measurement, Reading, Reason, read_as, unknown
from decodewatch.agent.sources.kit.files import PolledFile
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.text import kibibytes, whole_number

RSS_ANON = Measurement(
    "runtime_rss_anon_bytes",
    "bytes",
    "gauge",
    "memory of the runtime that is its own: heap, KV cache, weights that are not mapped",
)
VM_SWAP = Measurement("runtime_swap_bytes", "bytes", "gauge", "what of it was swapped out")
RSS_FILE = Measurement(
    "runtime_rss_file_bytes",
    "bytes",
    "gauge",
    "mapped files in memory, the model's weights among them; the kernel may take them back",
)
RSS_SHMEM = Measurement(
    "runtime_rss_shmem_bytes",
    "bytes",
    "gauge",
    "memory that the runtime shares with others, or with the GPU's driver, in memory",
)
GPU = Measurement(
    "runtime_gpu_bytes",
    "bytes",
    "gauge",
    "memory on the GPU that NvMap (Jetson) or NVML accounts to the runtime; in no RSS",
)
CPU_TIME = Measurement(
    "runtime_cpu_microseconds", "microseconds", "counter", "CPU time of all threads"
)
MEASUREMENTS: Final = (
    RSS_ANON,
    VM_SWAP,
    RSS_FILE,
    RSS_SHMEM,
    CPU_TIME,
    smaps.PSS,
    smaps.PRIVATE,
    GPU,
)
"""The rows of the table of measurements that are a runtime's; `cgroup` has the rest."""


class Stat(NamedTuple):
    """What matters of /proc/<pid>/stat. Times are in clock ticks; `started` counts from boot."""

    state: str
    cpu_ticks: int
    started: int


class ProcessMemory(NamedTuple):
    """The memory of a process. Before Linux 4.5, RssAnon, RssFile and RssShmem are absent."""

    rss_anon: Reading
    swap: Reading
    rss_file: Reading
    rss_shmem: Reading

    @property
    def anon_and_swap(self) -> int | None:
        """The memory of a runtime, RssAnon + VmSwap; None where either is unknown."""
        anon, swap = self.rss_anon.value, self.swap.value
        return None if anon is None or swap is None else int(anon + swap)


def parse_stat(content: bytes) -> Stat | None:
    """The /proc/<pid>/stat of a process, whatever its name holds; None where it is not whole."""
    # The name is in parentheses and may contain parentheses, spaces and newlines: nothing behind
    # it does.
    name_end = content.rfind(b")")
    if name_end < 0 or not content.endswith(b"\n"):
        return None
    fields = content[name_end + 1 :].split()
    if len(fields) < 20 or len(fields[0]) != 1 or not fields[0].isalpha():
        return None
    user, system, started = (whole_number(fields[index]) for index in (11, 12, 19))
    if user is None or system is None or started is None or min(user, system, started) < 0:
        return None
    return Stat(fields[0].decode(), user + system, started)


def parse_status(content: bytes) -> ProcessMemory:
    """The memory lines of a /proc/<pid>/status."""
    return ProcessMemory(
        read_as(RSS_ANON, kibibytes(content, b"RssAnon"), "absent"),
        read_as(VM_SWAP, kibibytes(content, b"VmSwap"), "absent"),
        read_as(RSS_FILE, kibibytes(content, b"RssFile"), "absent"),
        read_as(RSS_SHMEM, kibibytes(content, b"RssShmem"), "absent"),
    )


class ProcessReader:
    """Reads one process until it ends. Never raises for what a process or a kernel can do."""

    def __init__(
        self,
        pid: int,
        root: Path = Path("/"),
        kernel: Kernel = KERNEL,
        *,
        gpu_bytes: Callable[[int], int | None] | None = None,
        ticks_per_second: int | None = None,
    ) -> None:
        """`gpu_bytes` tells what the process with a pid has on the GPU, where that is known.

        `ticks_per_second` is the kernel's clock tick; that of this machine unless given.
        """
        self.pid = pid
        folder = root / "proc" / str(pid)
        self._kernel = kernel
        self._stat = PolledFile(folder / "stat", kernel)
        self._status = PolledFile(folder / "status", kernel)
        self._smaps = smaps.SmapsReader(pid, root, kernel)
        self._gpu_bytes = gpu_bytes
        self._cgroup = CgroupReader(pid, root, kernel)
        self._tick_us = 1_000_000 / (ticks_per_second or os.sysconf("SC_CLK_TCK"))
        self._ended = False
        self._started: int | None = None
        first = self._read_stat()
        self._status.read()  # opens it while the process is known to be there
        self._identity: int | Reason = first if isinstance(first, str) else first.started
        if not isinstance(first, str):
            self._started = first.started

    def identity(self) -> int | Reason:
        """When the process started, in clock ticks since boot, or why that is unknown.

        With the pid and the boot it names the process: pids are used again.
        """
        return self._identity

    def alive(self) -> bool | None:
        """Whether the process runs. A zombie does not. None where the agent cannot see.

        Once False it stays False, whoever gets the pid.
        """
        stat = self._read_stat()
        if not isinstance(stat, str):
            return True
        if self._ended:
            return False
        if stat == "absent" and self._started is None:
            # Android and hidepid= leave out of /proc what belongs to other users.
            return None if self._kernel.process_exists(self.pid) else False
        return None

    def memory(self) -> ProcessMemory:
        """RssAnon, VmSwap, RssFile and RssShmem now."""
        content = "absent" if self._ended else self._status.read()
        if content == "absent" and self._started is not None:
            self._ended = True
        if isinstance(content, str):
            reason: Reason = content
            return ProcessMemory(
                unknown(RSS_ANON, reason),
                unknown(VM_SWAP, reason),
                unknown(RSS_FILE, reason),
                unknown(RSS_SHMEM, reason),
            )
        return parse_status(content)

    def cpu(self) -> Reading:
        """The CPU time so far, in steps of a clock tick (10 ms on most kernels)."""
        stat = self._read_stat()
        if isinstance(stat, str):
            return unknown(CPU_TIME, stat)
        return read_as(CPU_TIME, round(stat.cpu_ticks * self._tick_us), "implausible")

    def elsewhere(self) -> list[Reading]:
        """What its status does not say: its part of what it shares, and its memory on the GPU."""
        found: list[Reading] = []
        if not self._ended:
            gpu = None if self._gpu_bytes is None else self._gpu_bytes(self.pid)
            found = [*self._smaps.read(), read_as(GPU, gpu, "absent")]
        # Asked last: these were found by the pid, and are this process's if it has it still.
        stat = self._read_stat()
        if isinstance(stat, str):
            return [unknown(row, stat) for row in (smaps.PSS, smaps.PRIVATE, GPU)]
        return found

    def cgroup(self) -> CgroupReadings:
        """Memory limit, use, OOM kills and CPU quota of its cgroups, also after the process ended.

        The count of kills then tells a kill by the kernel from a crash.
        """
        return self._cgroup.read(ended=self._read_stat() == "absent")

    def read(self) -> list[Reading]:
        """Everything of the above as readings."""
        return [*self.memory(), self.cpu(), *self.elsewhere(), *self.cgroup()]

    def close(self) -> None:
        """Close the files. The reader is of no use afterwards."""
        self._ended = True
        self._stat.close()
        self._status.close()
        self._cgroup.close()

    def _read_stat(self) -> Stat | Reason:
        if self._ended:
            return "absent"
        content = self._stat.read()
        if isinstance(content, str):
            # A process that was there and is not any more has ended.
            self._ended = content == "absent" and self._started is not None
            return content
        stat = parse_stat(content)
        if stat is None:
            return "implausible"
        if stat.state in "ZXx" or (self._started is not None and stat.started != self._started):
            self._ended = True
            return "absent"
        return stat
