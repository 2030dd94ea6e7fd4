"""Whether a server works on for a client that has left: llama-server says so in /slots."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from decodewatch.agent.proxy.ask import ask
from decodewatch.agent.proxy.settings import Upstream
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.shared import logs

log = logs.get(__name__)

WATCH_S: Final = 5.0
"""The server is asked for so long after a client left, once a second: it must wait with each answer
until it has ended the step it is in."""
PAUSE_S: Final = 1.0
ORPHANED_S: Final = 2.0
"""A server that works on for less than this obeys; llama-server looks for its client once a
second."""
MOST: Final = 16
"""Turns that are watched at once; of more nothing is said."""


class Slot(NamedTuple):
    """A slot that works: on which task, and how many tokens that has."""

    task: int
    tokens: int | None


class _Left:
    """A turn whose client left."""

    def __init__(self, monitor: DecodeMonitor, turn: str, now: float) -> None:
        self.monitor = monitor
        self.turn = turn
        self.since = now
        self.working_s = 0.0
        self.task: int | None = None
        self.first_tokens: int | None = None
        self.tokens: int | None = None


def parse_slots(content: bytes) -> list[Slot]:
    """The slots of /slots that work. Anything else in it is of no interest, and may be a prompt."""
    try:
        slots = json.loads(content)
    except (ValueError, RecursionError):
        return []
    return [
        Slot(_whole(one.get("id_task"), -1), _tokens(one.get("next_token")))
        for one in (slots if isinstance(slots, list) else [])
        if isinstance(one, dict) and one.get("is_processing") is True
    ]


def _tokens(next_token: Any) -> int | None:
    """An array in newer builds, an object in older ones."""
    parts = next_token if isinstance(next_token, list) else [next_token]
    counts = [_whole(one.get("n_decoded"), -1) for one in parts if isinstance(one, dict)]
    return max((count for count in counts if count >= 0), default=None)


def _whole(value: Any, otherwise: int) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else otherwise


class Orphans:
    """Watches the turns of clients that left."""

    def __init__(
        self, upstream: Upstream, tls: ssl.SSLContext | None, open_turns: Callable[[], int]
    ) -> None:
        """`open_turns` is how many turns the server works on for somebody."""
        self._upstream = upstream
        self._tls = tls
        self._open_turns = open_turns
        self._watched: list[_Left] = []
        self._task: asyncio.Task[None] | None = None

    def watch(self, monitor: DecodeMonitor, turn: str) -> None:
        """The client of this turn has left."""
        if len(self._watched) < MOST:
            self._watched.append(_Left(monitor, turn, time.monotonic()))
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._watched:
                await asyncio.sleep(PAUSE_S)
                left = max(one.since for one in self._watched) + WATCH_S - time.monotonic()
                reply = await ask(self._upstream, self._tls, "/slots", max(PAUSE_S, left))
                if reply is None or reply.status != 200:
                    # It cannot be asked. What was seen before still counts.
                    for one in list(self._watched):
                        self._conclude(one, stopped=False)
                    return
                self._see(parse_slots(reply.content), time.monotonic())
        finally:
            self._task = None

    def _see(self, slots: list[Slot], now: float) -> None:
        """Whose the working slots are is not said: those that no open turn accounts for, the oldest
        tasks first, are of those who left."""
        known = {one.task for one in self._watched}
        fresh = sorted((slot for slot in slots if slot.task not in known), key=lambda it: it.task)
        unclaimed = len(slots) - self._open_turns()
        for one in list(self._watched):
            mine = next((slot for slot in slots if slot.task == one.task), None)
            if one.task is None and fresh:
                mine = fresh.pop(0)
            if mine is None or unclaimed <= 0:
                self._conclude(one, stopped=True)
                continue
            unclaimed -= 1
            if one.task is None:
                one.task, one.first_tokens = mine.task, mine.tokens
            one.working_s = now - one.since
            one.tokens = mine.tokens
            if one.working_s >= WATCH_S:
                self._conclude(one, stopped=False)

    def _conclude(self, one: _Left, *, stopped: bool) -> None:
        self._watched.remove(one)
        if one.working_s < ORPHANED_S:
            return
        tokens = None
        if one.tokens is not None and one.first_tokens is not None:
            tokens = max(0, one.tokens - one.first_tokens)
        working_s = round(one.working_s, 1)
        log.warning("server works on for a client that left", every=60, working_s=working_s)
        one.monitor.event(
            "orphaned_generation", one.turn, working_s=working_s, tokens=tokens, stopped=stopped
        )
