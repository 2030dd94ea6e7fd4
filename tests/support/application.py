"""A process that talks to the inbox as any application would: by hand, line by line."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from decodewatch.shared.clock import boot_us
from decodewatch.shared.sketch import Sketch
from support.waiting import until

# Relays standard input to the socket and the socket to standard output. A line that starts with
# "!" is an order to itself: `!allocate N` takes N bytes of memory, `!connect` opens another
# connection, which carries all that follows, and `!close` closes the oldest.
_RELAY = """
import select, socket, sys
def connect():
    links.append(socket.socket(socket.AF_UNIX))
    links[-1].connect(sys.argv[1])
links, kept = [], []
connect()
# Unbuffered: what a buffer held, select would not show.
out, lines = sys.stdout.buffer, open(0, "rb", buffering=0)
while True:
    ready, _, _ = select.select([lines, *links], [], [])
    for link in [one for one in links if one in ready]:
        data = link.recv(65536)
        if not data:
            links.remove(link)
            data = b'{"type":"closed"}\\n'
        out.write(data); out.flush()
    if lines in ready:
        line = lines.readline()
        if not line:
            break
        if line.startswith(b"!allocate "):
            kept.append(bytearray(b"x") * int(line[10:]))
            out.write(b'{"type":"allocated"}\\n'); out.flush()
        elif line == b"!connect\\n":
            connect()
        elif line == b"!close\\n":
            links.pop(0).close()
        else:
            links[-1].sendall(line)
"""


class Application:
    """One such process. What the agent answers is heard in order."""

    def __init__(self, socket: Path, *, cgroup: Path | None = None) -> None:
        """With `cgroup` it moves itself into that cgroup (a folder with cgroup.procs) first."""
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        command = [sys.executable, "-I", "-S", "-u", "-c", _RELAY, str(socket)]
        if cgroup is not None:
            into = f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"'
            command = ["sh", "-c", into, "sh", *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(json.loads(line))

    def raw(self, line: bytes) -> None:
        """Send bytes as they are, and a newline."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def say(self, kind: str, **fields: Any) -> None:
        """Send one message."""
        self.raw(json.dumps({"type": kind, **fields}).encode())

    def hello(self, **fields: Any) -> None:
        """Say hello, with plausible fields unless given."""
        self.say("hello", **{"v": 1, "name": "chat", "engine": "llama.cpp", **fields})

    def begin(self, turn: str, **fields: Any) -> int:
        """Begin a turn now; its `t`."""
        t: int = fields.pop("t", boot_us())
        self.say("begin", turn=turn, t=t, **fields)
        return t

    def end(self, turn: str, **fields: Any) -> None:
        """Report the end of a turn with plausible figures unless given."""
        self.say("turn", record=turn_fields(turn, **fields))

    def hear(self, seconds: float = 10) -> dict[str, Any]:
        """The next answer."""
        return self._heard.get(timeout=seconds)

    def heard(self) -> dict[str, Any] | None:
        """The next answer, None where there is none yet."""
        try:
            return self._heard.get_nowait()
        except queue.Empty:
            return None

    def allocate(self, size: int) -> None:
        """Take so many bytes of memory, without waiting for it."""
        self.raw(b"!allocate %d" % size)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def gone(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Exit in the relay's own order: its input ends."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait(10)

    def __enter__(self) -> "Application":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.gone():
            self.kill()


def turn_fields(turn: str, **fields: Any) -> dict[str, Any]:
    """A turn record as an application sends it: 16 tokens in 1 s that ended just now."""
    whole = {
        "id": turn,
        "session": "conversation-1",
        "number": 0,
        "t": max(boot_us() - 1_000_000, 0),
        "duration_us": 1_000_000,
        "ttft_us": 200_000,
        "decode_us": 750_000,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 16,
        "first_tokens": 1,
        "steps": 16,
        "shared_tokens": 0,
        "token_source": "counted",
        "ending": "complete",
        "suspended_us": 0,
        "concurrency": 1,
        "itl": [[6, Sketch.of([50_000] * 15).to_json()]],
    }
    return {**whole, **fields}


class AgentProcess:
    """`decodewatch agent run` with folders of its own; `kill` and `start` bring a new one."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.state = folder / "state"
        self.socket = folder / "run" / "agent.sock"
        self.log = folder / "agent.log"
        self._settings = {
            "device": "dev-test",
            "state_folder": self.state,
            "socket": self.socket,
            "broker_port": 9,  # nobody listens there
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command that runs the agent."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        return [sys.executable, "-m", "decodewatch.shared.cli", "agent", "run", *flags]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "AgentProcess":
        """Start it, and wait until it says that it runs."""
        with self.log.open("ab") as log:
            began = log.tell()
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        until(lambda: self._runs(began), 20, f"the agent runs; see {self.log}")
        return self

    def _runs(self, since: int) -> bool:
        assert self._process is not None
        said = self.log.read_bytes()[since:]
        assert self._process.poll() is None, said.decode()
        return b"agent runs" in said

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> tuple[int, float]:
        """SIGTERM; its exit status and how many seconds it took."""
        began = time.monotonic()
        return self._end(signal.SIGTERM), time.monotonic() - began

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        return self._process.wait(20)

    def __enter__(self) -> "AgentProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
