"""The inbox over HTTP on the loopback, for applications that cannot reach its Unix socket.

An app on Android has no way to a socket of Termux, but to 127.0.0.1. So has every other app of the
device, and every page in a browser: a request needs a token, must name the loopback as its host
(pages reach it under names of their own: DNS rebinding) and must not come from a page. Reads
HTTP/1.1 strictly: what could be understood in two ways is refused. In the agent's one thread, like
`inbox`, nothing here waits. `docs/inbox.md` is the protocol.
"""

import hmac
import json
import re
import selectors
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from decodewatch.agent.errors import AgentError
from decodewatch.agent.inbox import Connection, Handler
from decodewatch.agent.messages import MAX_LINE, Ended, Message, Refusal
from decodewatch.shared import logs
from decodewatch.shared.broker import warn_of_readers
from decodewatch.shared.errors import SettingsError

log = logs.get(__name__)

PATH: Final = "/v1/messages"
MAX_CONNECTIONS: Final = 16
MAX_HEAD: Final = 8 * 1024
"""Bytes of the request line and the headers."""
MAX_BODY: Final = 256 * 1024
MAX_MESSAGES: Final = 512
"""Messages of one body."""
CONNECTIONS_A_SECOND: Final = 50
REQUESTS_A_SECOND: Final = 50
"""Of all applications together; twice as many may come at once."""
REQUEST_S: Final = 10.0
"""A request has to be here so soon after its first byte, or after the connection was made."""
IDLE_S: Final = 60.0
"""So long a connection is kept between two requests."""
ANSWER_S: Final = 5.0
"""So long a request waits for its turns to be stored; those without an answer come again."""
_LINGER_S: Final = 1.0  # for the client to read why its connection closes
_LINGER_BYTES: Final = 4 * MAX_BODY
_RECEIVE: Final = 64 * 1024
_EVERY_S: Final = 60.0
_TOKEN: Final = re.compile(r"[!-~]{16,512}")
_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.IGNORECASE)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STATUS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    417: "Expectation Failed",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_EXTRA: Final = {
    401: "WWW-Authenticate: Bearer\r\n",
    405: "Allow: POST\r\n",
    429: "Retry-After: 1\r\n",
    503: "Retry-After: 1\r\n",
}


class Denied(Exception):
    """A request that is refused as a whole, with its status of HTTP; the connection closes."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Head(NamedTuple):
    """What a request is to be handled by, once it may be."""

    length: int
    keep: bool
    """Whether the connection stays open after it."""
    waits: bool
    """Whether the client waits for a word before it sends the body."""


def read_token(file: Path) -> str:
    """The token in a file, one line. Raises SettingsError, which never shows it."""
    warn_of_readers("inbox_http_token_file", file)
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise SettingsError(f"inbox_http_token_file: {file}: cannot be read: {reason}") from None
    if len(lines) != 1 or not _TOKEN.fullmatch(lines[0]):
        lengths = ", ".join(str(len(line)) for line in lines[:3]) or "0"
        raise SettingsError(
            f"inbox_http_token_file: {file}: {len(lines)} lines of {lengths} characters; accepted "
            "is one line of 16 to 512 letters, digits and signs, without spaces"
        )
    return lines[0]


def listen(port: int) -> socket.socket:
    """A socket that listens on this port of 127.0.0.1. Raises AgentError naming it."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(MAX_CONNECTIONS)
    except OSError as error:
        made.close()
        raise AgentError(f"inbox_http_port: {port}: cannot be used: {error.strerror}") from None
    made.setblocking(False)
    return made


def read_head(content: bytes, token: str) -> Head:
    """Read the request line and the headers, without the empty line behind them.

    Who asks is judged before what is asked for. Raises Denied.
    """
    try:
        first, *lines = content.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise Denied(400, "a byte that is not ASCII; accepted are ASCII headers") from None
    words = first.split(" ")
    if len(words) != 3 or not _NAME.fullmatch(words[0]) or not words[1]:
        raise Denied(400, f"the request line; accepted is POST {PATH} HTTP/1.1")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Denied(505, "the version; accepted is HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or not _NAME.fullmatch(name) or _has_control(value):
            raise Denied(400, "a line of the headers; accepted is NAME: VALUE")
        if name in headers and name in _SINGLE:
            raise Denied(400, f"{name}: twice; accepted is once")
        headers[name] = value
    if not _HOST.fullmatch(headers.get("host", "")):
        raise Denied(421, "host: not the loopback; accepted are 127.0.0.1 and localhost")
    if "origin" in headers or "sec-fetch-site" in headers:
        raise Denied(403, "origin: of a browser's page; accepted is none")
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip(), token):
        raise Denied(401, "authorization: not the token; accepted is Bearer and the token")
    if target != PATH:
        raise Denied(404, f"the path; accepted is {PATH}")
    if method != "POST":
        raise Denied(405, "the method; accepted is POST")
    if "transfer-encoding" in headers or "content-length" not in headers:
        raise Denied(411, "content-length: missing; accepted is a body of known length")
    length = headers["content-length"]
    if not re.fullmatch("[0-9]{1,18}", length):
        raise Denied(400, "content-length: not a number; accepted are bytes")
    if int(length) > MAX_BODY:
        raise Denied(413, f"content-length: {int(length)}; accepted are {MAX_BODY} bytes")
    expect = headers.get("expect", "").lower()
    if expect not in ("", "100-continue"):
        raise Denied(417, "expect: unknown; accepted is 100-continue")
    stays = version == "HTTP/1.1"
    keep = stays and "close" not in headers.get("connection", "").lower()
    return Head(int(length), keep, stays and bool(expect))


_SINGLE: Final = frozenset({"host", "authorization", "content-length", "transfer-encoding"})


def _has_control(value: str) -> bool:
    return any((letter < " " and letter != "\t") or letter == "\x7f" for letter in value)


class HttpConnection(Connection):
    """One connection of an application that the agent cannot look at: its pid is not known."""

    lasts = False

    def __init__(self, inbox: "HttpInbox", channel: socket.socket) -> None:
        super().__init__(0, -1, inbox)
        self.authorised = False
        """Whether a request on it had the token."""
        self.idle = False
        """Whether it is kept between two requests."""
        self.until = time.monotonic() + REQUEST_S
        """When something has to be done: what it waits for has not come."""
        self._inbox = inbox
        self._channel = channel
        self._received = bytearray()
        self._unsent = bytearray()
        self._head: Head | None = None
        self._answers = bytearray()
        self._asked = False  # a request is being handled, or waits for its turns
        self._waits = False
        self._awaited: set[str] = set()  # the turns that it waits for
        self._lingers = False
        self._lingered = 0

    def expect(self, turn: str) -> None:
        """A turn is about to be taken; the request waits until it is stored."""
        self._awaited.add(turn)

    def unexpect(self, turn: str) -> None:
        """The turn was not taken."""
        self._awaited.discard(turn)

    def send(self, message: Mapping[str, Any]) -> None:
        if not self.open:
            return
        turn = message.get("turn")
        if isinstance(turn, str):
            self._awaited.discard(turn)
        if not self._asked:
            return  # too late for the request that it belongs to; the turn comes again
        self._answers += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if self._waits and not self._awaited:
            self._respond(200, self._answers)
            # Not at once: who calls is the spool's commit.
            self._inbox.later.add(self)

    def drain(self, until: float) -> None:
        while self.open and time.monotonic() < until and self._reading and self._receive():
            pass

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._inbox.forget(self, self._channel)
        self._channel.close()

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and self.open:
            self._receive()
        self.advance()

    def advance(self) -> None:
        """Handle the requests that are here whole, one after the other."""
        while self.open and self._reading and not self._lingers:
            try:
                body = self._next_body()
                if body is None:
                    break
                self._take(body)
            except Denied as denied:
                log.warning(
                    "request refused", every=_EVERY_S, status=denied.status, reason=str(denied)
                )
                self.deny(denied.status, str(denied))

    def deny(self, status: int, reason: str) -> None:
        """Refuse a request, and close once that is sent."""
        self._head = Head(0, False, False)
        line = json.dumps({"type": "refused", "reason": reason}, separators=(",", ":"))
        self._respond(status, line.encode() + b"\n")

    def expire(self) -> None:
        """What it waited for did not come in time."""
        if self._waits:
            self._respond(200, self._answers)
            self._inbox.later.add(self)
        else:
            self.close()

    @property
    def _reading(self) -> bool:
        """Whether it is the client's turn."""
        return not self._asked and not self._unsent

    def _receive(self) -> int:
        try:
            chunk = self._channel.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            chunk = b""  # it is gone, and so is what it would have read
        if self._lingers:
            self._lingered += len(chunk)
        if not chunk or self._lingered > _LINGER_BYTES:
            self.close()
            return 0
        if not self._lingers:
            if self.idle:
                self.idle = False
                self.until = time.monotonic() + REQUEST_S
            self._received += chunk
            self.advance()
        return len(chunk)

    def _next_body(self) -> bytes | None:
        """The body of the next request, None where it is not here yet. Raises Denied."""
        received = self._received
        if self._head is None:
            end = received.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(received) >= MAX_HEAD:
                    raise Denied(431, f"headers of more than {MAX_HEAD} bytes; accepted are these")
                return None
            self._head = read_head(bytes(received[:end]), self._inbox.token)
            del received[: end + 4]
            self.authorised = True
            if not self._inbox.requests.take():
                raise Denied(429, f"too many requests; accepted are {REQUESTS_A_SECOND} a second")
            if self._head.waits and len(received) < self._head.length:
                self._unsent += b"HTTP/1.1 100 Continue\r\n\r\n"
                self._flush()
        if len(received) < self._head.length:
            return None
        body = bytes(received[: self._head.length])
        del received[: self._head.length]
        return body

    def _take(self, body: bytes) -> None:
        lines = [line for line in body.split(b"\n") if line.strip()]
        if len(lines) > MAX_MESSAGES:
            raise Denied(413, f"{len(lines)} messages; accepted are {MAX_MESSAGES}")
        self._asked = True
        for line in lines:
            if len(line) >= MAX_LINE:
                self._refuse(f"line of more than {MAX_LINE} bytes; accepted are {MAX_LINE}")
            else:
                self._handle(line)
            if not self.open:
                return
        if self._awaited:
            self._waits = True
            self.until = time.monotonic() + ANSWER_S
            self._watch()
        else:
            self._respond(200, self._answers)

    def _respond(self, status: int, content: bytes | bytearray) -> None:
        assert self._head is not None
        head = (
            f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: application/x-ndjson\r\n"
            f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\n"
            f"X-Content-Type-Options: nosniff\r\n{_EXTRA.get(status, '')}"
            f"Connection: {'keep-alive' if self._head.keep else 'close'}\r\n\r\n"
        )
        self._unsent += head.encode() + content
        self._answers.clear()
        self._awaited.clear()
        self._asked = self._waits = False
        self._lingers = not self._head.keep
        self._head = None
        self.until = time.monotonic() + REQUEST_S
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._channel.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass  # the rest when it can be written
        except OSError:
            self.close()
            return
        if not self._unsent:
            self._sent()
        self._watch()

    def _sent(self) -> None:
        """All that was to be said is on its way."""
        now = time.monotonic()
        if self._lingers:
            self.until = now + _LINGER_S
            try:
                self._channel.shutdown(socket.SHUT_WR)
            except OSError:
                self.until = now  # it has gone already
        elif self._head is None:
            self.idle = not self._received
            self.until = now + (IDLE_S if self.idle else REQUEST_S)

    def _watch(self) -> None:
        if self.open:
            mask = selectors.EVENT_READ if self._reading else 0
            mask |= selectors.EVENT_WRITE if self._unsent else 0
            self._inbox.watch(self, self._channel, mask)


class Bucket:
    """Lets so many through a second, and twice as many at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = 2 * rate
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether one more may pass."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._rate, 2 * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class HttpInbox:
    """Accepts connections, at most `MAX_CONNECTIONS`, and hands their messages on.

    Between a connection and the handler it notes which turns a request has to wait for.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        selector: selectors.BaseSelector,
        handler: Handler,
    ) -> None:
        self.token = token
        self.requests = Bucket(REQUESTS_A_SECOND)
        self.later: set[HttpConnection] = set()
        """Those that may have a whole request more."""
        self._handler = handler
        self._listener = listener
        self._selector = selector
        self._connections: dict[HttpConnection, None] = {}  # in the order of their making
        self._accepted = Bucket(CONNECTIONS_A_SECOND)
        self._pause_until: float | None = None
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def message(self, connection: Connection, message: Message) -> None:
        """One valid message of a body. Raises Refusal."""
        assert isinstance(connection, HttpConnection)
        turn = message.record.get("id") if isinstance(message, Ended) else None
        if not isinstance(turn, str):
            self._handler.message(connection, message)
            return
        connection.expect(turn)
        try:
            self._handler.message(connection, message)
        except Refusal:
            connection.unexpect(turn)
            raise

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._handler.closed(connection)

    def tick(self) -> None:
        """What has to be done by now. Once a round of the main loop."""
        later, self.later = self.later, set()
        for connection in later:
            connection.advance()
        now = time.monotonic()
        for connection in [one for one in self._connections if one.until <= now]:
            connection.expire()
        if self._pause_until is not None and self._pause_until <= now:
            self._pause_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def wait_us(self) -> int | None:
        """Microseconds until `tick` has something to do; None where that is nothing."""
        if self.later:
            return 0
        moments = [one.until for one in self._connections]
        if self._pause_until is not None:
            moments.append(self._pause_until)
        return round((min(moments) - time.monotonic()) * 1e6) + 1 if moments else None

    def close(self) -> None:
        """Stop accepting, and handle what the applications have sent."""
        if self._pause_until is None:
            self._selector.unregister(self._listener)
        self._pause_until = None
        self._listener.close()
        until = time.monotonic() + _LINGER_S
        for connection in list(self._connections):
            connection.drain(until)

    def disconnect(self) -> None:
        """Disconnect all applications."""
        for connection in list(self._connections):
            connection.close()

    def watch(self, connection: HttpConnection, channel: socket.socket, mask: int) -> None:
        """Have the main loop report what a connection waits for; nothing for 0."""
        watched = channel in self._selector.get_map()
        if not mask:
            if watched:
                self._selector.unregister(channel)
        elif not watched:
            self._selector.register(channel, mask, connection.ready)
        elif self._selector.get_key(channel).events != mask:
            self._selector.modify(channel, mask, connection.ready)

    def forget(self, connection: HttpConnection, channel: socket.socket) -> None:
        """A connection closes."""
        self.watch(connection, channel, 0)
        del self._connections[connection]
        self.later.discard(connection)
        self.closed(connection)

    def _accept(self, mask: int) -> None:
        if not self._accepted.take():
            # What comes now waits in the kernel's queue, and costs nothing here.
            self._pause_until = time.monotonic() + 1 / CONNECTIONS_A_SECOND
            self._selector.unregister(self._listener)
            return
        try:
            channel, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors left
            log.error("connection not accepted", every=_EVERY_S, reason=error.strerror)
            return
        channel.setblocking(False)
        crowded = len(self._connections) >= MAX_CONNECTIONS
        if crowded:
            # Whoever has not shown the token gives way, so that nobody keeps the others out; then
            # whoever asks nothing now, and will connect again.
            strangers = [one for one in self._connections if not one.authorised]
            idle = [one for one in self._connections if one.idle]
            for oldest in (strangers or idle)[:1]:
                oldest.close()
                crowded = False
        connection = HttpConnection(self, channel)
        self._connections[connection] = None
        self.watch(connection, channel, selectors.EVENT_READ)
        if crowded:
            log.warning("too many connections, one refused", every=_EVERY_S)
            connection.deny(503, f"{MAX_CONNECTIONS} connections are open; accepted are no more")
            if connection.open:
                connection.close()
