"""A user's application for tests: short turns of a plain generator until SIGTERM, then a flush.

    python -m support.app FILE [SECONDS_A_TOKEN]

Writes the id of each turn to FILE once it has ended, so that a test knows what must arrive. The
exit status is 0 where the agent acknowledged all of them.
"""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from decodewatch.agent import DecodeMonitor

TOKENS = 8
TURNS_A_SESSION = 5


def decode(pace: float) -> Iterator[int]:
    """A generator that gives a token every `pace` seconds."""
    for token in range(TOKENS):
        time.sleep(pace)
        yield token


def main(file: Path, pace: float) -> int:
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    monitor = DecodeMonitor("test-app", engine="plain")
    with file.open("a") as ended:
        session = monitor.session()
        number = 0
        while not stopping:
            if number % TURNS_A_SESSION == 0:
                session = monitor.session(f"user-{number}")
            with session.turn(prompt_tokens=100) as turn:
                for _ in turn.watch(decode(pace)):
                    if stopping:
                        break
            ended.write(f"{turn.id}\n")
            ended.flush()
            number += 1
    return 0 if monitor.flush(timeout=60) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.005))
