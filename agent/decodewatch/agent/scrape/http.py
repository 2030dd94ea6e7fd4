"""One plain GET over a socket that never blocks: the main loop says when it is ready."""

import errno
import os
import selectors
import socket
from typing import Final, NamedTuple

from decodewatch.agent.scrape.targets import Target
from decodewatch.agent.sources.kit.base import Reason

MAX_BYTES: Final = 1 << 20
"""An answer is at most so long, its head and the frames of its chunks among it."""
_MAX_HEAD: Final = 64 * 1024
_MAX_INTERIM: Final = 16
_RECEIVE: Final = 64 * 1024
_UNSUPPORTED: Final = frozenset({400, 404, 405, 410, 501})
_MAX_NAMED: Final = 160  # characters of a request in words, which go into an event


class Answer(NamedTuple):
    """A whole answer. Names of headers are in lower case; of several of one name the last."""

    status: int
    headers: dict[str, str]
    body: bytes
    request: str
    """What it answers, such as `GET /metrics`."""


class Fault(NamedTuple):
    """Why there is no answer, or none that is of use; `word` is for people."""

    reason: Reason
    word: str


Result = Answer | Fault


def fault_of(result: Result) -> Fault | None:
    """What is wrong with an answer, by its status; None where it is whole and good."""
    if isinstance(result, Fault):
        return result
    status = result.status
    if status == 200:
        return None
    if status in (401, 403):
        return Fault("denied", f"{result.request}: status {status}")
    if 300 <= status < 400:  # whoever answers elsewhere is not the server that was named
        return Fault("unsupported", f"{result.request}: status {status}, a redirection")
    reason: Reason = "unsupported" if status in _UNSUPPORTED else "transient"
    return Fault(reason, f"{result.request}: status {status}")


class _Wrong(Exception):
    """The answer breaks the rules of HTTP or ours; the text says which."""


class _Chunks:
    """Takes the frames off a body that comes in chunks."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._left = 0  # of the chunk that is being read, with its line end
        self._trailers = False
        self.body = bytearray()

    def feed(self, data: bytes) -> bool:
        """Take bytes in; whether that was the end. Raises _Wrong."""
        self._raw += data
        start, raw = 0, self._raw
        while True:
            if self._left:
                part = raw[start : start + self._left]
                self.body += part[: max(self._left - 2, 0)]
                start += len(part)
                self._left -= len(part)
                if self._left:
                    break
                continue
            end = raw.find(b"\n", start)
            if end < 0:
                if len(raw) - start > _MAX_HEAD:
                    raise _Wrong("a chunk without a size")
                break
            line = bytes(raw[start:end]).strip()
            start = end + 1
            if self._trailers:
                if not line:
                    return True
                continue
            size = _chunk_size(line)
            if size == 0:
                self._trailers = True
            else:
                self._left = size + 2
        del raw[:start]
        return False


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not 0 < len(digits) <= 8 or not all(digit in b"0123456789abcdefABCDEF" for digit in digits):
        raise _Wrong("a chunk without a size")
    return int(digits, 16)


class Get:
    """One request; `result` is None until it has an end. At most one connection, closed then."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        target: Target,
        path: str,
        key: str | None,
        deadline_us: int,
    ) -> None:
        """Begins at once. `key` is sent as a bearer's."""
        self.result: Result | None = None
        self.path = path
        self.deadline_us = deadline_us
        self._selector = selector
        self._request = f"GET {target.prefix}{path}"[:_MAX_NAMED]
        lines = [
            f"GET {target.prefix}{path} HTTP/1.1",
            f"Host: {target.label}",
            "User-Agent: decodewatch-agent",
            "Accept: */*",
            "Accept-Encoding: identity",
            "Connection: close",
        ]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        self._unsent = "\r\n".join([*lines, "", ""]).encode()
        self._head = bytearray()
        self._interim = 0
        self._answer: tuple[int, dict[str, str]] | None = None  # once the head is whole
        self._chunks: _Chunks | None = None
        self._length: int | None = None
        self._body = bytearray()
        self._received = 0
        self._socket: socket.socket | None = None
        self._connect(target)

    def _connect(self, target: Target) -> None:
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        try:
            made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._fail("transient", error.strerror or "no socket")
            return
        made.setblocking(False)
        self._socket = made
        code = made.connect_ex((target.address, target.port))
        if code not in (0, errno.EINPROGRESS):
            self._lost(code)
            return
        self._selector.register(made, selectors.EVENT_WRITE, self._ready)

    def late(self, now_us: int) -> None:
        """Give up where the deadline has passed."""
        if self.result is None and now_us >= self.deadline_us:
            self._fail("transient", "no answer in time")

    def close(self) -> None:
        """Give up."""
        if self.result is None:
            self._fail("transient", "given up")

    def _ready(self, mask: int) -> None:
        if self._socket is None:
            return
        try:
            if self._unsent:
                self._send(self._socket)
            else:
                self._receive(self._socket)
        except (BlockingIOError, InterruptedError):
            pass  # not ready after all
        except OSError as error:
            self._lost(error.errno)
        except _Wrong as wrong:
            self._fail("implausible", str(wrong))

    def _send(self, channel: socket.socket) -> None:
        code = channel.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lost(code)
            return
        self._unsent = self._unsent[channel.send(self._unsent) :]
        if not self._unsent:
            self._selector.modify(channel, selectors.EVENT_READ, self._ready)

    def _receive(self, channel: socket.socket) -> None:
        data = channel.recv(_RECEIVE)
        self._received += len(data)
        if self._received > MAX_BYTES:
            raise _Wrong(f"longer than {MAX_BYTES} bytes")
        if not data:
            self._closed()
            return
        if self._answer is None:
            self._head += data
            self._take_head()
        else:
            self._take(data)

    def _take_head(self) -> None:
        while True:
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > _MAX_HEAD or not b"HTTP/1.".startswith(self._head[:7]):
                    raise _Wrong("no HTTP/1 answer")
                return
            status, headers = _parse_head(bytes(self._head[:end]))
            rest = bytes(self._head[end + 4 :])
            if not 100 <= status < 200:
                break
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise _Wrong("interim answers without an end")
            self._head = bytearray(rest)  # an interim answer: the real one follows
        self._head.clear()
        self._answer = status, headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise _Wrong("content-encoding that nobody asked for")
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                raise _Wrong("unknown transfer-encoding")
            self._chunks = _Chunks()
        elif status in (204, 304):
            self._length = 0
        elif "content-length" in headers:
            self._length = _length(headers["content-length"])
        self._take(rest)

    def _take(self, data: bytes) -> None:
        assert self._answer is not None
        if self._chunks is not None:
            if self._chunks.feed(data):
                self._end(Answer(*self._answer, bytes(self._chunks.body), self._request))
            return
        self._body += data
        if self._length is not None and len(self._body) >= self._length:
            self._end(Answer(*self._answer, bytes(self._body[: self._length]), self._request))

    def _closed(self) -> None:
        if self._answer is not None and self._chunks is None and self._length is None:
            self._end(Answer(*self._answer, bytes(self._body), self._request))
        else:
            self._fail("transient", "cut short")

    def _lost(self, code: int | None) -> None:
        # Nobody listens there; anything else may pass.
        reason: Reason = "absent" if code == errno.ECONNREFUSED else "transient"
        self._fail(reason, os.strerror(code or errno.EIO))

    def _fail(self, reason: Reason, word: str) -> None:
        self._end(Fault(reason, f"{self._request}: {word}"))

    def _end(self, result: Result) -> None:
        self.result = result
        made, self._socket = self._socket, None
        if made is not None:
            try:
                self._selector.unregister(made)
            except KeyError:
                pass  # it did not come so far
            made.close()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or len(words[1]) != 3:
        raise _Wrong("no HTTP/1 answer")
    if not words[1].isdigit():
        raise _Wrong("no HTTP/1 answer")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise _Wrong("a header without a colon")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        if key == "content-length" and headers.get(key, text) != text:
            raise _Wrong("two lengths")
        headers[key] = text
    return int(words[1]), headers


def _length(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise _Wrong("no length")
    if int(text) > MAX_BYTES:
        raise _Wrong(f"longer than {MAX_BYTES} bytes")
    return int(text)
