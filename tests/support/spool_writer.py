"""A program that fills a spool until it is killed, and says what the spool has taken.

    python spool_writer.py FILE

After each append it writes a line `stream number`; it acknowledges all but the newest KEPT.
"""

import random
import sys
from pathlib import Path

from decodewatch.agent.spool.spool import Spool
from decodewatch.shared.records import Event
from decodewatch.shared.wire import Acknowledged, Clock

KEPT = 60


def main() -> None:
    """Write for ever."""
    noise = random.Random()
    spool = Spool.open(
        Path(sys.argv[1]),
        device="dev-1",
        boot="boot-1",
        limit_bytes=8 << 20,
        clock=lambda: Clock(1, 1_700_000_000_000_000, True),
    )
    number = place = 0
    while True:
        number += 1
        padding = noise.randbytes(noise.choice((10, 100, 100, 2000, 9000))).hex()
        data = {f"p{start}": padding[start : start + 200] for start in range(0, len(padding), 200)}
        name = f"{spool.stream[:20]}-{number}"
        parts = list(data.items()) or [("p", "")]
        records = [
            Event(f"{name}-{start}", 1, "test", data=dict(parts[start : start + 30]))
            for start in range(0, len(parts), 30)
        ]
        spool.append(records)
        print(spool.stream, number, flush=True)
        if number % 7 == 0 and number > KEPT:
            while sent := spool.oldest(place, 64):  # only what was sent can be acknowledged
                place = sent[-1].place
            spool.acknowledge([Acknowledged(spool.stream, ((1, number - KEPT),))])


if __name__ == "__main__":
    main()
