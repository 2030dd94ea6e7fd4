"""Bytes on the wire: a token while decoding at 10 tokens a second, and an hour when idle.

    python benchmarks/wire_bytes.py --decode-seconds 60 --idle-seconds 180

Prints JSON lines from a real agent, counted between it and a real broker: `up` and `down` are the
bytes of the TCP streams with MQTT's own, acknowledgements and signs of life, without TLS; `payload`
is the batches alone. By kind of record: the JSON before it is deflated, in bytes.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from rig import Agent, Broker, Collector, Meter

from decodewatch.shared.records import Turn, to_json

TOKENS_PER_S = 10.0
TURN_TOKENS = 200
SETTLE_S = 5.0


class Count:
    """What passed since it was made."""

    def __init__(self, meter: Meter, collector: Collector) -> None:
        self._meter = meter
        self._collector = collector
        self._up, self._down = meter.up, meter.down
        self._payload = collector.payload_bytes
        self._batches = len(collector.batches)
        self._began = time.monotonic()

    def print(self, phase: str, per: str, units: float | None) -> None:
        """Print the line of a phase; `units` None counts the tokens of the turns that ended."""
        seconds = time.monotonic() - self._began
        batches = self._collector.batches[self._batches :]
        records = [record for batch in batches for record in batch.records]
        plain: Counter[str] = Counter()
        for record in records:
            plain[record.KIND] += len(json.dumps(to_json(record), separators=(",", ":")))
        turns = [record for record in records if isinstance(record, Turn)]
        if units is None:
            units = sum(turn.output_tokens for turn in turns)
        up, down = self._meter.up - self._up, self._meter.down - self._down
        payload = self._collector.payload_bytes - self._payload
        line = {
            "benchmark": "wire_bytes",
            "phase": phase,
            "seconds": round(seconds, 1),
            "batches": len(batches),
            "turns": len(turns),
            f"up_bytes_per_{per}": round(up / units, 1),
            f"down_bytes_per_{per}": round(down / units, 1),
            f"payload_bytes_per_{per}": round(payload / units, 1),
            "plain_bytes": dict(plain.most_common()),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decode-seconds", type=float, default=60.0)
    parser.add_argument("--idle-seconds", type=float, default=180.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="decodewatch-bench-") as name:
        folder = Path(name)
        broker = Broker(folder)
        collector = Collector(broker.port)
        meter = Meter(broker.port)
        agent = Agent(folder, meter.port)
        try:
            time.sleep(SETTLE_S)
            count = Count(meter, collector)
            turns = max(round(wanted.decode_seconds * TOKENS_PER_S / TURN_TOKENS), 1)
            agent.decode(turns, TOKENS_PER_S, TURN_TOKENS).wait()
            count.print("decoding", "token", None)
            time.sleep(15)  # the last floor, and the sample that it is in
            count = Count(meter, collector)
            time.sleep(wanted.idle_seconds)
            count.print("idle", "hour", wanted.idle_seconds / 3600)
        finally:
            agent.close()
            collector.close()
            broker.close()


if __name__ == "__main__":
    main()
