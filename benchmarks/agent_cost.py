"""What the agent costs a device: memory and CPU, with all sources at 1 Hz, and TLS where it can.

    python benchmarks/agent_cost.py --seconds 60

Prints one JSON line for an idle device and one while an application decodes 10 tokens a second.
`cpu_share` is of one core. The bars are those of the design: 38 MiB RSS, 22 MiB of it anonymous,
0.5 % of one core; to aim at: 32 and 16 MiB.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from rig import Agent, Broker, Collector

SETTLE_S = 5.0
BARS = {"rss_mib": 38.0, "rss_anon_mib": 22.0, "cpu_share": 0.005}


def memory_mib(pid: int) -> dict[str, float]:
    """RSS and RssAnon of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            found[name] = int(rest.split()[0]) / 1024
    return {"rss_mib": round(found["VmRSS"], 2), "rss_anon_mib": round(found["RssAnon"], 2)}


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process."""
    # The scheduler's own count: the ticks of /proc/<pid>/stat are as long as what is measured.
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def written_bytes(pid: int) -> int:
    """Bytes that a process had the kernel write to storage."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def measure(agent: Agent, seconds: float, phase: str, tls: bool) -> None:
    """Watch the agent for so long and print what it cost."""
    pid = agent.process.pid
    cpu, written, began = cpu_s(pid), written_bytes(pid), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    figures = {
        **memory_mib(pid),
        "cpu_share": round((cpu_s(pid) - cpu) / took, 5),
    }
    line = {
        "benchmark": "agent_cost",
        "phase": phase,
        "tls": tls,
        "seconds": round(took, 1),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        **figures,
        "written_mb_per_day": round((written_bytes(pid) - written) / took * 86400 / 1e6, 1),
        "within_bars": all(figures[name] <= bar for name, bar in BARS.items()),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="decodewatch-bench-") as name:
        folder = Path(name)
        broker = Broker(folder)
        collector = Collector(broker.port)
        tls = broker.tls_port is not None
        flags = ("--broker-ca-file", str(broker.certificate)) if tls else ()
        agent = Agent(folder, broker.tls_port or broker.port, *flags)
        try:
            time.sleep(SETTLE_S)
            measure(agent, seconds, "idle", tls)
            turns = round((seconds + SETTLE_S) / 20) + 1
            application = agent.decode(turns, tokens_per_s=10, tokens=200)
            time.sleep(SETTLE_S)
            measure(agent, seconds, "decoding", tls)
            application.kill()
            application.wait()
        finally:
            agent.close()
            collector.close()
            broker.close()


if __name__ == "__main__":
    main()
