"""A program that runs an uplink until it is killed.

python uplink_runner.py FOLDER PORT
"""

import sys
import time
from pathlib import Path

from decodewatch.shared.broker import BrokerSettings
from support.spooling import event
from support.uplinking import Loop


def main() -> None:
    """Append a batch ten times a second and deliver them, for ever."""
    loop = Loop(Path(sys.argv[1]), BrokerSettings(broker_port=int(sys.argv[2])))
    loop.uplink.start()
    while True:
        loop.spool.append([event(f"event-{time.monotonic_ns()}")])
        loop.run(0.1)


if __name__ == "__main__":
    main()
