"""What reading every source once a second costs: time a source, and open files.

    python benchmarks/sources.py --rounds 200

Prints one JSON line for this machine and one for each recorded device. `cpu_share` is of one core
at 1 Hz, without the time that a real sensor's driver takes: files of a recording answer at once.
"""

import argparse
import errno
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from decodewatch.agent.sources import REGISTRY
from decodewatch.agent.sources.kit.kernel import Kernel, Spawned

DEVICES = Path(__file__).resolve().parents[1] / "tests/data/devices"
BAR = 0.005


class Tree(Kernel):
    """This machine's files, and no programs: its own say nothing of a recorded device."""

    def spawn(self, command: Sequence[str], environment: dict[str, str] | None = None) -> Spawned:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def measure(name: str, root: Path, rounds: int) -> None:
    """Read all sources of a device so often and print what one round costs."""
    kernel = Tree()
    before = descriptors()
    sources = [factory(root, kernel) for _, factory in REGISTRY]
    for source in sources:
        source.read()
        source.read()
    opened = descriptors() - before
    readings = 0
    took = dict.fromkeys((source.name for source in sources), 0.0)
    for _ in range(rounds):
        readings = 0
        for source in sources:
            began = time.thread_time()
            readings += len(source.read())
            took[source.name] += time.thread_time() - began
    for source in sources:
        source.close()
    each = {name: round(seconds / rounds * 1e6, 1) for name, seconds in took.items()}
    share = sum(took.values()) / rounds
    line = {
        "benchmark": "sources",
        "device": name,
        "rounds": rounds,
        "readings": readings,
        "open_files": opened,
        "left_open": descriptors() - before,
        "us": each,
        "cpu_share": round(share, 5),
        "within_bar": share <= BAR,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="of reading every source")
    rounds = parser.parse_args().rounds
    measure("this machine", Path("/"), rounds)
    for device in sorted(path for path in DEVICES.iterdir() if path.is_dir()):
        measure(device.name, device, rounds)


if __name__ == "__main__":
    main()
