"""A copy of a compressed body, inflated as it comes."""

import zlib
from collections.abc import Iterator
from typing import Any, Final

MOST_INFLATED: Final = 256 << 20
"""Bytes that a compressed body may inflate to: a small one may hold gigabytes of zeros."""

_PIECE: Final = 256 << 10
"""Bytes inflated at once, and so the most that are held."""
_IDENTITY: Final = frozenset({"", "identity"})
_GZIP: Final = frozenset({"gzip", "x-gzip"})
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS


class Inflated:
    """Inflates what is fed. After an error nothing more comes out, and `failed` says so."""

    def __init__(self, encoding: str | None) -> None:
        """`encoding` as in the header Content-Encoding; one that is not known fails at once."""
        self._name = (encoding or "").strip().lower()
        self.failed = self._name not in _IDENTITY | _GZIP | {"deflate"}
        self._head = b""  # of deflate, until it shows which of the two it is
        self._inflater: Any = zlib.decompressobj(_GZIP_BITS) if self._name in _GZIP else None
        self._left = MOST_INFLATED
        self._members = 0
        self._ended = False

    def feed(self, content: bytes) -> Iterator[bytes]:
        """What these bytes add to the text, in pieces, some of them empty: each takes about as long
        as any other."""
        if self.failed or self._ended:
            return
        if self._name in _IDENTITY:
            yield content
            return
        if self._inflater is None:
            self._head += content
            if len(self._head) < 2:
                return
            content, self._head = self._head, b""
            self._inflater = zlib.decompressobj(_deflate_bits(content))
        more = True
        while (content or more) and not self._ended:
            try:
                piece = self._inflater.decompress(content, _PIECE)
            except zlib.error:
                # What comes after the last member of a gzip body may be padding.
                self._ended = self._members > 0
                self.failed = not self._ended
                return
            content = self._inflater.unconsumed_tail
            more = len(piece) == _PIECE  # then there may be more of it inside
            self._left -= len(piece)
            if self._left < 0:
                self.failed = True
                return
            yield piece
            if self._inflater.eof:
                content = self._inflater.unused_data
                self._members += 1
                self._ended = self._name not in _GZIP
                self._inflater = zlib.decompressobj(_GZIP_BITS)


def _deflate_bits(head: bytes) -> int:
    """Deflate should have zlib's header; some servers send it without."""
    has_header = head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
