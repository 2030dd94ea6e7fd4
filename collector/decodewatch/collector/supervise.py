"""Starting several programs as one: in their order, each ready before the next, and all stopped.

A program that ends is started again, later each time; one that ends again and again, or that says
that its settings are wrong, ends all of them. If the supervisor is killed its children end too.

Each child has a session of its own: Ctrl-C in a terminal goes to the whole foreground group, and
would stop all at the same moment, an application before the agent has taken its last turn.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

from decodewatch.collector.errors import ServerError
from decodewatch.shared import logs
from decodewatch.shared.cli import EXIT_FAILURE, EXIT_SETTINGS
from decodewatch.shared.lifecycle import Stop

_log = logs.get(__name__)

RESTART_S = (0.5, 30.0)
STEADY_S = 60.0
"""A child that has run for so long was well: when it ends, counting begins anew."""
MOST_RESTARTS = 10
"""In a row; about three minutes. Then it will not get well by itself."""
STOP_S = 3.5
_LINE = 8192  # bytes of a child's line of log passed on in one piece


@dataclass(frozen=True, slots=True)
class Child:
    """A program: its name in the log, its command, and how to see that it is ready.

    `ready` returns None when it is, else why not; it may take a second or so. With `restart` False
    it may end by itself: see `Supervisor.status`.
    """

    name: str
    command: Sequence[str]
    ready: Callable[[], str | None] = lambda: None
    ready_within_s: float = 60.0
    restart: bool = True
    environment: Mapping[str, str] | None = None


class _Running:
    """A child and its current process."""

    def __init__(self, child: Child, prefix: bytes) -> None:
        self.child = child
        self._prefix = prefix
        self.restarts = 0
        self.next_start: float | None = None
        self.process = self._spawn()
        self.started = time.monotonic()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        tether = (sys.executable, "-m", "decodewatch.collector.tether", str(os.getpid()))
        environment = None
        if self.child.environment is not None:
            environment = {**os.environ, **self.child.environment}
        process = subprocess.Popen(
            [*tether, *self.child.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        threading.Thread(target=_pass_on, args=(self._prefix, process.stdout), daemon=True).start()
        return process

    def start_again(self) -> None:
        """Start a new process in the place of the one that ended."""
        self.next_start = None
        self.process = self._spawn()
        self.started = time.monotonic()


def _pass_on(prefix: bytes, lines: BinaryIO) -> None:
    """Write a child's lines to our stderr, each with the prefix before it."""
    out = sys.stderr.buffer
    with lines:
        while line := lines.readline(_LINE):
            try:
                out.write(prefix + line.rstrip(b"\n") + b"\n")
                out.flush()
            except (OSError, ValueError):
                continue  # nobody reads ours; the child must not stop for that


class Supervisor:
    """The running children. Only the main thread may use it: children end with the thread that
    started them. As a context manager it stops them all at the end."""

    def __init__(self, *, prefix: bool = True) -> None:
        """With `prefix`, each line that a child logs begins with its name."""
        self._prefix = prefix
        self._running: list[_Running] = []

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, child: Child, stop: Stop) -> bool:
        """Start a program and wait until it is ready; False where the stop came first.

        Raises ServerError where it ends before that, or is not ready in time.
        """
        running = _Running(child, f"{child.name:9} | ".encode() if self._prefix else b"")
        self._running.append(running)
        deadline = time.monotonic() + child.ready_within_s
        while not stop.is_set():
            status = running.process.poll()
            if status is not None and (child.restart or status != 0):
                raise ServerError(
                    f"{child.name} ended while it started, {_shown(status)}; its log says why"
                )
            if self.tend() is not None:
                raise ServerError(f"{child.name} not started: another one ended for good")
            why = child.ready()
            if why is None:
                _log.info("started", name=child.name, pid=running.process.pid)
                return True
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{child.name} is not ready after {child.ready_within_s:g} s: {why}"
                )
            stop.wait(0.1)
        return False

    def status(self, name: str) -> int | None:
        """The exit status of a child that may end by itself; None while it runs."""
        (running,) = (item for item in self._running if item.child.name == name)
        return running.process.poll()

    def tend(self) -> int | None:
        """Start again what has ended; None, or the exit status where that is hopeless."""
        now = time.monotonic()
        for running in self._running:
            if running.next_start is not None:
                if now >= running.next_start:
                    running.start_again()
                continue
            status = running.process.poll()
            if status is None or not running.child.restart:
                continue
            if now - running.started > STEADY_S:
                running.restarts = 0
            running.restarts += 1
            name = running.child.name
            if status == EXIT_SETTINGS:
                _log.error("ended, and would again", name=name, ended=_shown(status))
                return EXIT_SETTINGS
            if running.restarts > MOST_RESTARTS:
                _log.error("ended too often", name=name, restarts=MOST_RESTARTS)
                return EXIT_FAILURE
            delay = min(RESTART_S[1], RESTART_S[0] * 2.0 ** (running.restarts - 1))
            running.next_start = now + delay
            _log.warning(
                "ended, will be started again", name=name, ended=_shown(status), in_s=delay
            )
        return None

    def watch(self, stop: Stop) -> int:
        """Tend the children until asked to stop; the exit status."""
        while not stop.wait(0.2):
            status = self.tend()
            if status is not None:
                return status
        return 0

    def end(self, name: str) -> None:
        """Stop one child for good, in good order."""
        (running,) = (item for item in self._running if item.child.name == name)
        self._running.remove(running)
        _stop([running])

    def stop(self) -> None:
        """Stop all children, the last one started first; kill what is left in the end."""
        _stop(list(reversed(self._running)))
        self._running.clear()


def _stop(children: Sequence[_Running]) -> None:
    deadline = time.monotonic() + STOP_S
    alive = [item for item in children if item.process.poll() is None]
    for running in alive:
        running.process.send_signal(signal.SIGTERM)
        # What this one depends on should not go before it, but it may not use up all the time.
        try:
            running.process.wait(max(0.0, deadline - time.monotonic()) / 2)
        except subprocess.TimeoutExpired:
            continue
    for running in alive:
        try:
            running.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("killed: did not stop", name=running.child.name, after_s=STOP_S)
            running.process.kill()
            running.process.wait()


def _shown(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
