"""What the proxy adds to a stream, against a direct connection to the same server in the same run.

    python benchmarks/proxy_cost.py [--seconds 6] [--rounds 3] [--check]

A scripted server sends 50 tokens a second a stream, each event with the moment at which it was
written. A client in a process of its own reads 1, 8 and 64 streams at once, in turns directly and
through the proxy, and takes for every event how long it was under way. Prints a JSON line a number
of streams: `itl_*` and `ttft_*` are milliseconds that an event and a first event take longer
through the proxy, at p50 and p99 (of all events of all rounds, the direct figure subtracted);
`*_direct_ms` and `*_proxy_ms` are the figures themselves. `throughput` has events a second with a
server that sends as fast as it can, and the ratio of the two. With --check the exit status is 1
where the added p99 at 8 streams is 2 ms or more.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

from rig import free_port

A_SECOND = 50
STREAMS = (1, 8, 64)
MOST_ADDED_MS = 2.0
FLOOD = 3000  # events of a stream that is sent as fast as can be
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = '"object":"chat.completion.chunk","model":"bench","system_fingerprint":"b0"'


def event(delta: str, finish: str = "null") -> bytes:
    """One event as a chunk, with the moment at which it was made."""
    data = (
        f'data: {{"choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":{finish}}}],'
        f'"sent":{time.monotonic_ns()},{TEXT}}}\n\n'
    ).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int) -> None:
    """The scripted server."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()  # somebody who only looked whether this listens
            return
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        wanted = json.loads(await reader.readexactly(int(head.split(b"Length: ")[1].split()[0])))
        began = time.monotonic()
        writer.write(HEAD)
        for number in range(wanted["tokens"]):
            if not wanted["flood"]:
                due = began + wanted["phase"] + number / A_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(event('"content":"word "'))
            if wanted["flood"]:
                await writer.drain()
        writer.write(event("", '"stop"') + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=256)
    await server.serve_forever()


async def stream(port: int, phase: float, tokens: int, flood: bool) -> list[float]:
    """How long each event of one stream was under way, in ms; the first counts from the start of
    sending the request, less the pause that the server was told to make."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"tokens": tokens, "phase": phase, "flood": flood}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    asked = time.monotonic_ns()
    writer.write(head.encode() + body)
    found: list[float] = []
    rest = b""
    while not rest.endswith(b"\r\n0\r\n\r\n"):
        data = await reader.read(1 << 18)
        now = time.monotonic_ns()
        if not data:
            raise SystemExit("a stream broke off")
        rest = rest[-512:] + data if flood else rest + data
        if flood:
            continue
        *events, rest_ = rest.split(b"\n\n")
        rest = rest_
        for one in events:
            if b'"content"' in one:
                sent = int(one.partition(b'"sent":')[2].partition(b",")[0])
                start = sent if found else asked + round(phase * 1e9)
                found.append((now - start) / 1e6)
    writer.close()
    return found


async def load(port: int, streams: int, seconds: float, flood: bool) -> dict[str, Any]:
    """What one client process sees of so many streams at once."""
    tokens = FLOOD if flood else round(seconds * A_SECOND)
    began = time.monotonic()
    found = await asyncio.gather(
        *(stream(port, number / streams / A_SECOND, tokens, flood) for number in range(streams))
    )
    spent = time.monotonic() - began
    return {
        "first": [one[0] for one in found if one],
        "rest": [value for one in found for value in one[1:]],
        "events_per_second": streams * tokens / spent,
    }


def measured(port: int, streams: int, seconds: float, flood: bool = False) -> dict[str, Any]:
    """The same from a process of its own."""
    command = [sys.executable, __file__, "--client", str(port), str(streams), str(seconds)]
    done = subprocess.run([*command, str(int(flood))], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def percentile(values: list[float], q: float) -> float:
    """By rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def compare(direct: list[float], through: list[float], name: str) -> dict[str, float]:
    """What one kind of latency costs."""
    figures = {}
    for label, q in (("p50", 0.5), ("p99", 0.99)):
        plain, proxied = percentile(direct, q), percentile(through, q)
        figures[f"{name}_{label}_added_ms"] = round(proxied - plain, 3)
        figures[f"{name}_{label}_direct_ms"] = round(plain, 3)
        figures[f"{name}_{label}_proxy_ms"] = round(proxied, 3)
    return figures


def wait_for(port: int) -> None:
    """Until somebody listens."""
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"nobody listens on port {port}")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(seconds: float, rounds: int) -> bool:
    """Measure and print; whether the bar is kept."""
    upstream, port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, __file__, "--server", str(upstream)])
        wait_for(upstream)
        proxy = subprocess.Popen(
            [
                *(sys.executable, "-m", "decodewatch.shared.cli", "agent", "proxy"),
                *("--upstream", f"http://127.0.0.1:{upstream}", "--engine", "bench"),
                *("--listen", f"127.0.0.1:{port}", "--socket", f"{folder}/nobody.sock"),
                *("--log-level", "error"),
            ]
        )
        try:
            wait_for(port)
            kept = True
            for streams in STREAMS:
                runs: dict[int, list[dict[str, Any]]] = {upstream: [], port: []}
                spent = cpu_s(proxy.pid)
                for number in range(rounds):
                    # In turns, and each first as often as the other.
                    order = (upstream, port) if number % 2 else (port, upstream)
                    for target in order:
                        runs[target].append(measured(target, streams, seconds))
                spent = cpu_s(proxy.pid) - spent
                plain = [[one[kind] for one in runs[upstream]] for kind in ("first", "rest")]
                through = [[one[kind] for one in runs[port]] for kind in ("first", "rest")]
                flat = [[list(chain(*lists)) for lists in kinds] for kinds in (plain, through)]
                figures = {
                    **compare(flat[0][0], flat[1][0], "ttft"),
                    **compare(flat[0][1], flat[1][1], "itl"),
                }
                report(
                    streams=streams,
                    events=len(flat[1][1]),
                    proxy_cpu_us_per_event=round(spent * 1e6 / max(1, len(flat[1][1])), 1),
                    **figures,
                )
                if streams == 8:
                    kept = figures["itl_p99_added_ms"] < MOST_ADDED_MS
            for streams in STREAMS:
                pairs = [
                    [measured(it, streams, 1, True)["events_per_second"] for it in (upstream, port)]
                    for _ in range(rounds)
                ]
                report(
                    case="throughput",
                    streams=streams,
                    direct_per_second=round(statistics.median(plain for plain, _ in pairs)),
                    proxy_per_second=round(statistics.median(through for _, through in pairs)),
                    ratio=round(statistics.median(b / a for a, b in pairs), 3),
                )
            report(case="bars", accepted_added_p99_ms_at_8_streams=MOST_ADDED_MS, kept=kept)
            return kept
        finally:
            for process in (proxy, server):
                process.kill()
                process.wait()


def report(**figures: Any) -> None:
    """One line of the result."""
    print(json.dumps({"benchmark": "proxy_cost", **figures}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="What the proxy adds to a stream.")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--server", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.server:
        asyncio.run(serve(wanted.server))
    elif wanted.client:
        port, streams, seconds, flood = wanted.client
        found = asyncio.run(load(int(port), int(streams), float(seconds), flood == "1"))
        print(json.dumps(found))
    else:
        return 0 if bench(wanted.seconds, wanted.rounds) or not wanted.check else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
