"""What a client sends: passed on as it is, but for the Host of each request."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from decodewatch.agent.proxy import heads
from decodewatch.agent.proxy.bodies import Body, Chunked, Length, Unreadable
from decodewatch.agent.proxy.heads import Request
from decodewatch.agent.proxy.turns import MeteredTurn, Turns

MOST_PIPELINED: Final = 256
"""Requests of one connection without an answer that are understood."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    request: Request
    turn: MeteredTurn | None = None
    answered: bool = False


class Requests:
    """Reads along one connection's requests. `exchanges` are those that wait for their answers."""

    def __init__(self, host: bytes, turns: Turns) -> None:
        """`host` is what Host will say."""
        self.exchanges: deque[Exchange] = deque()
        self.plain = False
        """Whether this is a plain tunnel from now on: nothing is understood, nothing changed."""
        self.measured = True
        """Whether the answers are understood, without which there are no turns."""
        self._host = host
        self._turns = turns
        self._held = b""  # a head that is not whole
        self._body: Body | None = None
        self._current: Exchange | None = None  # whose body this is
        self._undecided = False  # an upgrade was asked for, and not answered

    def feed(self, at: int, data: bytes) -> bytes:
        """What came at a `time.monotonic_ns()`; what is to be sent on now.

        Part of a head waits until the rest of it is there.
        """
        if self.plain:
            return data
        out: list[bytes] = []
        self._feed(at, data, out)
        return out[0] if len(out) == 1 else b"".join(out)

    def give_up(self) -> None:
        """From here on a plain tunnel."""
        self.plain = True
        self._turns.count_plain()

    def rest(self) -> bytes:
        """What was held back of a head, now that no more comes."""
        held, self._held = self._held, b""
        return held

    def decided(self, switched: bool) -> None:
        """An upgrade was answered."""
        self._undecided = False
        if switched:
            self.plain = True

    def _feed(self, at: int, data: bytes, out: list[bytes]) -> None:
        place = 0
        while place < len(data) and not self.plain:
            if self._body is not None:
                try:
                    end = self._body.feed(data, place, None)
                except Unreadable:
                    self.give_up()
                    break
                out.append(data[place:end])
                place = end
                if self._body.done:
                    self._body_ended(at)
            elif self._undecided:
                # Of the new protocol, or of the next request: only the server knows.
                self.give_up()
            else:
                held, self._held = self._held, b""
                taken = self._head(at, held + data[place:], out)
                if taken is None:
                    return
                place += taken - len(held)
        if place < len(data):
            out.append(data[place:])

    def _head(self, at: int, data: bytes, out: list[bytes]) -> int | None:
        """Take in the head that `data` begins with; its size, None where it is not whole."""
        # Empty lines before a request are allowed, and are passed on.
        start = len(data) - len(data.lstrip(b"\r\n"))
        found = heads.END.search(data, start)
        if found is None and len(data) <= heads.MOST_BYTES and heads.begins_request(data[start:]):
            self._held = data
            return None
        request = None
        if found is not None and found.start() - start <= heads.MOST_BYTES:
            request = heads.parse_request(data[start : found.start()])
        if found is None or request is None or len(self.exchanges) >= MOST_PIPELINED:
            self.give_up()
            out.append(data)
            return len(data)
        out.append(data[:start])
        out.append(heads.with_host(data[start : found.start()], self._host))
        out.append(found[0])
        self._current = Exchange(request)
        self.exchanges.append(self._current)
        self._undecided = request.upgrade
        body: Body = Chunked() if request.chunked else Length(request.length)
        self._body = body
        if body.done:
            self._body_ended(at)
        return found.end()

    def _body_ended(self, at: int) -> None:
        exchange, self._body, self._current = self._current, None, None
        assert exchange is not None
        if exchange.request.generates and not exchange.answered and self.measured:
            exchange.turn = self._turns.begin(at)
