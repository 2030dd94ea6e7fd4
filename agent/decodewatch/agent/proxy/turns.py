"""Turns as a proxy sees them: a copy of each answer goes to the meter, its chunks are the steps.

Nothing of this happens while bytes are passed on: it is put into a queue, which is worked off
between the reads, a fraction of a millisecond at a time. The queue is bounded; a turn that does not
fit is not measured, and counted.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from decodewatch.agent.meter.dialects import LOGPROBS, TOKEN_IDS
from decodewatch.agent.meter.meter import ESTIMATE, Meter, Metered
from decodewatch.agent.proxy.heads import Answer
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.turn import Turn
from decodewatch.agent.wrapper.vitals import Moment, moment
from decodewatch.shared import logs

log = logs.get(__name__)

MOST_WAITING: Final = 8 << 20
"""Bytes of answers that wait for the meter, of all connections."""
SLICE_NS: Final = 500_000
"""The longest that a read waits for the meter, but for one event that takes longer."""
CAUGHT_UP_NS: Final = 1_000_000
"""After a client that did not read: two reads further apart than this are of a server that waits
for nobody any more. What it had ready comes faster."""

_SSE: Final = frozenset({"text/event-stream"})
_NDJSON: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/stream+json"}
)
_SSE_BEGINNINGS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_NO_TURN: Final = frozenset({"load", "unload"})  # what Ollama calls a request without a prompt
_EVERY_S: Final = 60.0

_Work = Callable[..., Iterator[None] | None]


class Server(Protocol):
    """Who the server is."""

    @property
    def ready(self) -> bool:
        """Whether that is known as well as it can be now; `Turns.wake` is called when it is."""
        ...

    def check(self) -> None:
        """A turn begins: look again where that may have changed."""
        ...

    def see(self, server: str) -> None:
        """What an answer's header Server says."""
        ...

    def monitor(self) -> DecodeMonitor:
        """The monitor of this life of the server."""
        ...


class MeteredTurn:
    """One turn between its acceptance and its end."""

    __slots__ = (
        "accepted_ns",
        "failed",
        "framed",
        "given_up",
        "held",
        "left",
        "meter",
        "metered_ns",
        "monitor",
        "read_ns",
        "turn",
    )

    def __init__(self, accepted_ns: int) -> None:
        self.accepted_ns = accepted_ns
        self.read_ns = accepted_ns  # of the answer, last
        self.left: Moment | None = None  # when the client had gone
        self.given_up = False  # too much waited: nothing more is put into the queue
        # From here on what the queue has come to.
        self.monitor: DecodeMonitor | None = None
        self.turn: Turn | None = None
        self.metered_ns = accepted_ns
        self.meter: Meter | None = None
        self.framed = True
        self.failed: str | None = None
        self.held = 0  # 2: the client does not read; 1: what the server had ready is being read


class Turns:
    """All turns of the proxy."""

    def __init__(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        cancelled: Callable[[DecodeMonitor, str], None],
    ) -> None:
        """`cancelled` is called with the monitor and the id of a turn whose client left."""
        self._server = server
        self._loop = loop
        self._cancelled = cancelled
        self._work: deque[tuple[_Work, tuple[Any, ...], int]] = deque()
        self._parts: Iterator[None] | None = None  # of what is first in the queue, and has begun
        self._waiting = 0
        self._scheduled = False
        self.open = 0
        """Turns that began and did not end."""
        self.plain = 0
        """Connections that became plain tunnels, or whose answers were not understood."""
        self.unmeasured = 0
        """Turns that were let go because too much waited for the meter."""

    # What connections say, at once.

    def begin(self, at: int) -> MeteredTurn:
        """A request for a turn was read to its last byte."""
        turn = MeteredTurn(at)
        self._server.check()
        self._put(0, self._begin, turn)
        return turn

    def answered(self, turn: MeteredTurn, answer: Answer) -> None:
        """The head of its answer came."""
        self._put(0, self._answered, turn, answer)

    def content(self, turn: MeteredTurn, at: int, content: bytes) -> None:
        """More of its answer was read."""
        turn.read_ns = at
        self._put(len(content), self._content, turn, at, content)

    def hold_up(self, turn: MeteredTurn, at: int) -> None:
        """Its client does not read, so that the server will soon have to wait."""
        self._put(0, self._hold_up, turn, at)

    def cancel(self, turn: MeteredTurn) -> None:
        """Its client has left."""
        if turn.left is None:
            turn.left = moment()

    def end(self, turn: MeteredTurn, at: int, *, whole: bool) -> None:
        """Its answer has ended; `whole` by the rules of HTTP."""
        self._put(0, self._end, turn, at, whole)

    def drop(self, turn: MeteredTurn) -> None:
        """It cannot be followed any further, and is none."""
        self._put(0, self._drop, turn)

    def count_plain(self) -> None:
        """A connection is not understood from here on."""
        self.plain += 1
        log.warning("connection not understood, only passed on", every=_EVERY_S, so_far=self.plain)

    def see_server(self, server: str) -> None:
        """An answer came; what its header Server says."""
        self._server.see(server)

    # The queue.

    def wake(self) -> None:
        """Go on, now that the server is known."""
        if self._work and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def finish(self, seconds: float) -> None:
        """Work off what is there, whoever the server is, for so long at most: the proxy ends."""
        until = time.monotonic() + seconds
        while self._work and time.monotonic() < until:
            self._step()

    def _put(self, size: int, work: _Work, turn: MeteredTurn, *more: Any) -> None:
        if turn.given_up:
            return
        arguments: tuple[Any, ...] = (turn, *more)
        if self._waiting + size > MOST_WAITING:
            # Its meter would miss what is left out now.
            turn.given_up = True
            self.unmeasured += 1
            log.warning(
                "turns not measured: too much at once", every=_EVERY_S, turns=self.unmeasured
            )
            work, arguments, size = self._drop, (turn,), 0
        self._work.append((work, arguments, size))
        self._waiting += size
        self.wake()

    def _pump(self) -> None:
        self._scheduled = False
        until = time.monotonic_ns() + SLICE_NS
        while self._work and self._server.ready:
            self._step()
            if time.monotonic_ns() >= until:
                self.wake()
                return

    def _step(self) -> None:
        """Do what is first in the queue, or a part of it."""
        work, arguments, size = self._work[0]
        try:
            if self._parts is None:
                self._parts = work(*arguments)
            if self._parts is not None and next(self._parts, self) is None:
                return
        except Exception as error:
            # Not its text, and no trace with it: they may hold what was parsed.
            log.error("a turn was lost to a fault", every=_EVERY_S, fault=type(error).__name__)
            self._drop(arguments[0])
        self._parts = None
        self._work.popleft()
        self._waiting -= size

    # What is done later.

    def _begin(self, one: MeteredTurn) -> None:
        one.monitor = self._server.monitor()
        one.turn = one.monitor.turn(accepted_at=one.accepted_ns, estimated=True)
        self.open += 1

    def _answered(self, one: MeteredTurn, answer: Answer) -> None:
        if one.turn is None:
            return
        if answer.status >= 400:
            one.failed = f"HTTP {answer.status}"
        elif answer.status in (204, 205) or answer.status >= 300:
            self._drop(one)
        else:
            framing = _framing(answer)
            one.framed = framing is not None
            one.meter = Meter(framing or "document", answer.encoding)

    def _content(self, one: MeteredTurn, at: int, content: bytes) -> Iterator[None]:
        if one.turn is None or one.meter is None:
            return
        if not one.framed:
            one.framed = True
            if content.lstrip().startswith(_SSE_BEGINNINGS):
                one.meter = Meter("sse")
        held, gap_ns, one.metered_ns = one.held, at - one.metered_ns, at
        if held == 2 or gap_ns >= CAUGHT_UP_NS:
            one.held = max(0, held - 1)
        for chunks in one.meter.parts(self._ms(one, at), content):
            for chunk in chunks:
                if held:
                    one.turn.hold_up(at)
                one.turn.step_at(at, chunk.tokens)
            yield

    def _hold_up(self, one: MeteredTurn, at: int) -> None:
        one.held = 2
        if one.turn is not None:
            one.turn.hold_up(at)

    def _end(self, one: MeteredTurn, at: int, whole: bool) -> None:
        turn, one.turn = one.turn, None
        if turn is None:
            return
        self.open -= 1
        left = one.left
        if one.failed is not None:
            turn.report(ending="error", error=one.failed)
        elif one.meter is None:
            turn.report(ending="truncated" if left is None else "cancelled")
        else:
            for chunk in one.meter.end(self._ms(one, at), cancelled=left is not None):
                turn.step_at(at, chunk.tokens)
            made = one.meter.result()
            if made.finish in _NO_TURN and not made.N:
                turn.discard()
                return
            _report(turn, made, whole=whole)
            if made.status != "cancelled":
                left = None
        turn.end(left)
        if left is not None and one.monitor is not None:
            self._cancelled(one.monitor, turn.id)

    def _drop(self, one: MeteredTurn) -> None:
        turn, one.turn, one.meter = one.turn, None, None
        if turn is not None:
            self.open -= 1
            turn.discard()

    def _ms(self, one: MeteredTurn, at: int) -> float:
        return (at - one.accepted_ns) / 1e6


def _framing(answer: Answer) -> str | None:
    """How the events of an answer are framed; None where only its beginning can tell."""
    kind = answer.content_type
    if kind in _SSE:
        return "sse"
    if kind in _NDJSON:
        return "ndjson"
    readable = answer.encoding in (None, "identity")
    return None if readable and kind not in ("application/json", "text/json") else "document"


def _report(turn: Turn, made: Metered, *, whole: bool) -> None:
    """Tell a turn what the meter says of it."""
    status = made.status
    if status == "truncated" and whole and "bad_encoding" in made.flags:
        status = "complete"  # as far as HTTP goes: nothing in it could be read
    counted = made.N_src in (TOKEN_IDS, LOGPROBS)
    reported = None if counted or made.N_src == ESTIMATE else made.N
    turn.report(
        prompt_tokens=made.prompt,
        cached_tokens=made.cached,
        output_tokens=reported,
        ending=status,
        error="error in the answer" if status == "error" else None,
        estimated=not counted,
    )
