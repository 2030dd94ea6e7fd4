"""What llama.cpp itself says about the memory of a model's contexts, read from its log.

As a program it loads a model and ends: python llama_memory.py MODEL CELLS SEQUENCES KV_TYPE
"""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

_CACHE = (
    r" size = +(?P<size>[\d.]+) MiB \( *(?P<cells>\d+) cells, +(?P<layers>\d+) layers, +"
    r"(?:\d+/)?(?P<streams>\d+) seqs[^)]*\)"
    r", [KR] \(\w+\): +(?P<first>[\d.]+) MiB, [VS] \(\w+\): +(?P<second>[\d.]+) MiB"
)
_SIZES = re.compile("llama_kv_cache:" + _CACHE)
_STATES = re.compile("llama_memory_recurrent:" + _CACHE)


DEADLINE = 120.0
"""Seconds."""


class Cache(NamedTuple):
    """One line of the log; sizes are MiB with two decimals, as text."""

    size: str
    cells: int
    layers: int
    streams: int
    first: str  # K, or what convolutions keep
    second: str  # V, or recurrent states


class Memory(NamedTuple):
    """Every cache that llama.cpp makes for a model: free layers before those held to a window."""

    kv: list[Cache]
    state: list[Cache]


def memory_of(model: Path, cells: int, *, sequences: int = 1, kv_type: str = "F16") -> Memory:
    """Load the model in a process of its own, which ends as soon as llama.cpp has spoken."""
    with subprocess.Popen(
        [sys.executable, __file__, str(model), str(cells), str(sequences), kv_type],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(DEADLINE, process.kill)
        deadline.start()
        lines = []
        # A thread of llama.cpp writes the log, some time later: nothing but a later line says that
        # one is complete.
        for line in process.stdout:
            lines.append(line.decode(errors="replace"))
            if "model loaded" in lines[-1]:
                break
        process.stdin.close()
        process.stdout.read()
        process.wait()
        deadline.cancel()
    log = "".join(lines)
    assert "model loaded" in log, log[-2000:]
    # llama.cpp plans the memory first and then takes it, and says everything twice.
    taken = log[log.rindex("loaded meta data with") :]
    return Memory(_found(_SIZES, taken), _found(_STATES, taken))


def _found(pattern: re.Pattern[str], log: str) -> list[Cache]:
    return [
        Cache(
            match["size"],
            int(match["cells"]),
            int(match["layers"]),
            int(match["streams"]),
            match["first"],
            match["second"],
        )
        for match in pattern.finditer(log)
    ]


def main() -> None:
    """Load, and leave when standard input ends; a server's orderly end would take seconds."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.n_ctx = int(sys.argv[2])
    parameters.n_parallel = int(sys.argv[3])
    kind = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + sys.argv[4])
    parameters.cache_type_k = kind
    parameters.cache_type_v = kind
    parameters.n_gpu_layers = 0
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.cpuparams.n_threads = 1
    parameters.verbosity = 5
    server = xllamacpp.Server(parameters)
    assert server is not None
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
