"""From the bytes of a stream to its events, however the bytes are cut: SSE and NDJSON.

Bytes are framed and only whole events are decoded: an event may be cut inside a character, and text
inside of JSON may hold what Unicode, but not SSE, counts as the end of a line. SSE is as the HTML
standard has it ("Server-sent events", parsing an event stream), but that an event without data is
nothing.
"""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

MOST_BYTES: Final = 4 << 20
"""Bytes of one event at most; a longer one is left out and counted."""

_BOM: Final = b"\xef\xbb\xbf"


class Framing(Protocol):
    """Cuts a stream into events."""

    too_long: int
    """How many events were left out because they had more than MOST_BYTES."""

    def feed(self, content: bytes) -> Iterator[bytes]:
        """The payloads of the events that are whole with these bytes."""
        ...

    def end(self) -> Iterator[bytes]:
        """What is whole because the stream has ended."""
        ...


class _Lines:
    """Lines without their ends: LF, and CR and CRLF where `carriage_return` says so.

    One that is too long comes as None.
    """

    def __init__(self, *, carriage_return: bool) -> None:
        self._rest = bytearray()
        self._carriage_return = carriage_return
        self._after_return = False  # a line feed that comes first belongs to the line before
        self._too_long = False

    def feed(self, content: bytes) -> Iterator[bytes | None]:
        if not content:
            return
        if self._carriage_return:
            if self._after_return:
                content = content.removeprefix(b"\n")
            self._after_return = content.endswith(b"\r")
            content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = content.split(b"\n")
        for part in whole:
            if self._rest or self._too_long or len(part) > MOST_BYTES:
                self._add(part)
                yield self.last()
            else:
                yield part  # as nearly always: nothing of the line came before
        self._add(rest)

    def last(self) -> bytes | None:
        """What came after the last end of a line."""
        line = None if self._too_long else bytes(self._rest)
        self._rest.clear()
        self._too_long = False
        return line

    def _add(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > MOST_BYTES:
            self._too_long = True
            self._rest.clear()
        else:
            self._rest += part


class Sse:
    """Server-sent events: the data of each, its lines joined by LF; comments are nothing.

    An event that is not closed by an empty line when the stream ends was cut, and does not count.
    """

    def __init__(self) -> None:
        self.too_long = 0
        self._lines = _Lines(carriage_return=True)
        self._data = bytearray()  # each line with an LF behind it
        self._skips = False  # the event at hand is too long
        self._first = True

    def feed(self, content: bytes) -> Iterator[bytes]:
        for line in self._lines.feed(content):
            if line is None:
                self._skip()
                continue
            if self._first:
                self._first = False
                line = line.removeprefix(_BOM)
            if not line and (self._data or self._skips):
                data = bytes(self._data).removesuffix(b"\n")
                self._data.clear()
                skips, self._skips = self._skips, False
                if not skips and data.strip(b"\n"):
                    yield data
            elif line.startswith(b"data:"):
                self._add(line[5:].removeprefix(b" "))
            elif line.startswith(b"error:"):
                # How older llama-servers tell of errors; the object behind it does not say so.
                self._add(b'{"error":%s}' % line[6:])

    def end(self) -> Iterator[bytes]:
        yield from ()

    def _add(self, value: bytes) -> None:
        if len(self._data) + len(value) > MOST_BYTES:
            self._skip()
        elif not self._skips:
            self._data += value
            self._data += b"\n"

    def _skip(self) -> None:
        self.too_long += not self._skips
        self._skips = True
        self._data.clear()


class Ndjson:
    """One JSON document a line; the last one may lack its newline."""

    def __init__(self) -> None:
        self.too_long = 0
        self._lines = _Lines(carriage_return=False)

    def feed(self, content: bytes) -> Iterator[bytes]:
        for line in self._lines.feed(content):
            yield from self._event(line)

    def end(self) -> Iterator[bytes]:
        yield from self._event(self._lines.last())

    def _event(self, line: bytes | None) -> Iterator[bytes]:
        if line is None:
            self.too_long += 1
        elif line.strip():
            yield line


class Document:
    """A body that is one JSON document: an answer that was not streamed."""

    def __init__(self) -> None:
        self.too_long = 0
        self._content = bytearray()

    def feed(self, content: bytes) -> Iterator[bytes]:
        if not self.too_long:
            self._content += content
            if len(self._content) > MOST_BYTES:
                self.too_long = 1
                self._content.clear()
        yield from ()

    def end(self) -> Iterator[bytes]:
        if self._content.strip():
            yield bytes(self._content)
        self._content.clear()


FRAMINGS: Final[dict[str, Callable[[], Framing]]] = {
    "sse": Sse,
    "ndjson": Ndjson,
    "document": Document,
}
