"""What a server says: a copy is read along, to find each turn's answer in it."""

from typing import Final

from decodewatch.agent.proxy import heads
from decodewatch.agent.proxy.bodies import Body, Chunked, Length, Unreadable, UntilClose
from decodewatch.agent.proxy.heads import Answer
from decodewatch.agent.proxy.requests import Exchange, Requests
from decodewatch.agent.proxy.turns import Turns

_NO_BODY: Final = frozenset({204, 304})
_SWITCHED: Final = 101


class Answers:
    """Reads along one connection's answers, in the order of its requests."""

    def __init__(self, requests: Requests, turns: Turns) -> None:
        self._requests = requests
        self._turns = turns
        self._held = b""  # a head that is not whole
        self._body: Body | None = None
        self._off = False  # nothing more is understood

    def feed(self, at: int, data: bytes) -> None:
        """What was read from the server at a `time.monotonic_ns()`."""
        place = 0
        while place < len(data) and not self._off:
            if self._body is None:
                place = self._head(at, data, place)
            else:
                place = self._content(at, data, place)

    def held_up(self, at: int) -> None:
        """The client does not read, and so the server is not read either."""
        if self._body is not None and self._requests.exchanges:
            turn = self._requests.exchanges[0].turn
            if turn is not None:
                self._turns.hold_up(turn, at)

    def end(self, at: int) -> None:
        """The server's connection has ended."""
        whole = isinstance(self._body, UntilClose)
        exchanges = self._requests.exchanges
        while exchanges:
            turn = exchanges.popleft().turn
            if turn is not None:
                self._turns.end(turn, at, whole=whole)
            whole = False
        self._off = True

    def cancel(self) -> None:
        """The client has left, or sends no more: both look alike."""
        for exchange in self._requests.exchanges:
            if exchange.turn is not None:
                self._turns.cancel(exchange.turn)

    def end_cancelled(self, at: int) -> None:
        """End the turns whose client has left and whose answers do not go on."""
        for exchange in self._requests.exchanges:
            turn = exchange.turn
            if turn is not None and turn.left is not None and turn.read_ns < turn.left.before:
                self._turns.end(turn, at, whole=False)
                exchange.turn = None

    def _head(self, at: int, data: bytes, place: int) -> int:
        held, self._held = self._held, b""
        whole = held + data[place:]
        found = heads.END.search(whole)
        if found is None and len(whole) <= heads.MOST_BYTES:
            self._held = whole
            return len(data)
        answer = None
        if found is not None and found.start() <= heads.MOST_BYTES:
            answer = heads.parse_answer(whole[: found.start()])
        if found is None or answer is None or not self._requests.exchanges:
            self.stop()
            return len(data)
        self._answered(at, answer)
        return place + found.end() - len(held)

    def _answered(self, at: int, answer: Answer) -> None:
        exchange = self._requests.exchanges[0]
        self._turns.see_server(answer.server)
        request = exchange.request
        connected = request.method == "CONNECT" and 200 <= answer.status < 300
        if answer.status == _SWITCHED or connected:
            self._requests.decided(True)
            self._off = True
            self._drop_turns()
            return
        if answer.status < 200:
            return  # the answer proper is still to come
        if request.upgrade:
            self._requests.decided(False)
        exchange.answered = True
        if exchange.turn is not None:
            self._turns.answered(exchange.turn, answer)
        body: Body
        if request.method == "HEAD" or answer.status in _NO_BODY:
            body = Length(0)
        elif answer.chunked:
            body = Chunked()
        elif answer.length is not None:
            body = Length(answer.length)
        else:
            body = UntilClose()
        self._body = body
        if body.done:
            self._whole(at)

    def _content(self, at: int, data: bytes, place: int) -> int:
        assert self._body is not None
        turn = self._requests.exchanges[0].turn
        content: list[bytes] | None = None if turn is None else []
        try:
            end = self._body.feed(data, place, content)
        except Unreadable:
            self.stop()
            return len(data)
        if turn is not None and content:
            self._turns.content(turn, at, b"".join(content))
        if self._body.done:
            self._whole(at)
        return end

    def _whole(self, at: int) -> None:
        """An answer is at its end."""
        exchange: Exchange = self._requests.exchanges.popleft()
        self._body = None
        if exchange.turn is not None:
            self._turns.end(exchange.turn, at, whole=True)

    def stop(self) -> None:
        """These are no answers that two readers would agree on: nothing more is measured here."""
        if not self._off:
            self._off = True
            self._requests.measured = False
            if not self._requests.plain:
                self._turns.count_plain()
            self._drop_turns()

    def _drop_turns(self) -> None:
        for exchange in self._requests.exchanges:
            if exchange.turn is not None:
                self._turns.drop(exchange.turn)
                exchange.turn = None
