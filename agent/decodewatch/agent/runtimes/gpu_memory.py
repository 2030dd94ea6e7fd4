"""Memory that a runtime has on the GPU, where it is accounted for elsewhere than in its RSS."""

import os
from collections.abc import Iterable
from typing import Final, Protocol, runtime_checkable

from decodewatch.shared import logs

log = logs.get(__name__)

# Of every Linux kernel (PROC_PID_INIT_INO): the namespace whose pids drivers know.
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"


@runtime_checkable
class KnowsProcesses(Protocol):
    """A source that knows what each process has on the GPU, as NvMap's and NVML's do."""

    def process_bytes(self, pid: int) -> int | None:
        """What it had at the last read; None where that is not known."""
        ...


class GpuMemory:
    """Asks the sources that know processes, in their order."""

    def __init__(
        self, sources: Iterable[object], namespace_link: str = "/proc/self/ns/pid"
    ) -> None:
        """In a container with pids of its own, those that drivers tell are of other processes:
        nothing is known then. `namespace_link` says whether this is one."""
        self._sources = [source for source in sources if isinstance(source, KnowsProcesses)]
        if self._sources and not _sees_all_pids(namespace_link):
            self._sources = []
            log.info("GPU memory of runtimes not known", reason="pids of a container")

    def __call__(self, pid: int) -> int | None:
        """What the process has on the GPU, as far as a source knows."""
        for source in self._sources:
            found = source.process_bytes(pid)
            if found is not None:
                return found
        return None


def _sees_all_pids(link: str) -> bool:
    try:
        return os.readlink(link) == _FIRST_PID_NAMESPACE  # noqa: PTH115  it names no file
    except OSError:
        return True  # /proc of a kernel without namespaces, or an app of Android: no container
