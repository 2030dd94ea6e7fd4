"""Where the body of a message ends, however its bytes are cut, and what is in it. Pure."""

from typing import Final, Protocol

_MOST_LINE: Final = 16 * 1024
_MOST_TRAILERS: Final = 64 * 1024
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class Unreadable(Exception):
    """These bytes are no body of the kind that the head announced."""


class Body(Protocol):
    """One body. `feed` is not called again once it is `done`."""

    done: bool

    def feed(self, data: bytes, start: int, content: list[bytes] | None) -> int:
        """Take in bytes from `start`; how far the body reaches in them. What they add to its
        content is appended to `content`, where that is wanted. Raises Unreadable."""
        ...


class Length:
    """A body of so many bytes."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length

    def feed(self, data: bytes, start: int, content: list[bytes] | None) -> int:
        end = min(len(data), start + self._left)
        if content is not None:
            content.append(data[start:end])
        self._left -= end - start
        self.done = not self._left
        return end


class UntilClose:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: bytes, start: int, content: list[bytes] | None) -> int:
        if content is not None:
            content.append(data[start:])
        return len(data)


class Chunked:
    """A chunked body: its sizes, extensions and trailers are no content."""

    def __init__(self) -> None:
        self.done = False
        self._left = 0  # of the chunk
        self._line: bytearray | None = bytearray()  # a line that is not whole; None: in a chunk
        self._after_chunk = False  # the line is the end of a chunk
        self._trailers = -1  # bytes of them so far; -1: not reached

    def feed(self, data: bytes, start: int, content: list[bytes] | None) -> int:
        place = start
        while place < len(data) and not self.done:
            if self._line is None:
                end = min(len(data), place + self._left)
                if content is not None:
                    content.append(data[place:end])
                self._left -= end - place
                place = end
                if not self._left:
                    self._line, self._after_chunk = bytearray(), True
                continue
            feed = data.find(b"\n", place)
            end = len(data) if feed < 0 else feed + 1
            self._line += data[place:end]
            place = end
            if len(self._line) > _MOST_LINE:
                raise Unreadable
            if feed >= 0:
                line, self._line = bytes(self._line), bytearray()
                self._end_line(line.rstrip(b"\r\n"), len(line))
        return place

    def _end_line(self, line: bytes, size: int) -> None:
        if self._trailers >= 0:
            self._trailers += size
            if self._trailers > _MOST_TRAILERS:
                raise Unreadable
            self.done = not line
        elif self._after_chunk:
            if line:
                raise Unreadable
            self._after_chunk = False
        else:
            digits = line.partition(b";")[0].strip(b" \t")
            if not 0 < len(digits) <= 15 or not _HEX.issuperset(digits):
                raise Unreadable
            self._left = int(digits, 16)
            if self._left:
                self._line = None
            else:
                self._trailers = 0
