"""One client's connection and one to the server: what comes over one goes out over the other.

Bytes go on before anything is read in them. A side that ends is ended on the other side at once,
half of it where half was ended; a reset is passed on as one. Where one side does not read, the
other is not read either: at most a few hundred KiB wait in between.
"""

import asyncio
import socket
import struct
import time
from typing import Final, Protocol

from decodewatch.agent.proxy.answers import Answers
from decodewatch.agent.proxy.requests import Requests
from decodewatch.agent.proxy.turns import Turns
from decodewatch.shared import logs

log = logs.get(__name__)

GRACE_S: Final = 1.0
"""A client that sends no more and gets no more for so long has left; else it reads on."""
LINGER_S: Final = 30.0
"""A client whose server has ended the connection has so long to end it too; and where one side is
gone, the other has so long to read anything of what is left for it."""
HIGH_WATER: Final = 64 * 1024
"""Bytes that may wait for one side before the other is not read any more; one read, of 256 KiB at
most, comes on top."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_EVERY_S: Final = 60.0


class Owner(Protocol):
    """The proxy, as a connection needs it."""

    stopping: bool
    turns: Turns
    host: bytes

    def has_room(self) -> bool:
        """Whether one more client may come."""
        ...

    def enter(self, tunnel: "Tunnel") -> None:
        """It is there."""
        ...

    def leave(self, tunnel: "Tunnel") -> None:
        """It is gone."""
        ...

    async def connect(self, side: asyncio.Protocol) -> object:
        """Connect `side` to the server. Raises OSError and asyncio.TimeoutError."""
        ...


class Tunnel:
    """The pair of connections."""

    def __init__(self, owner: Owner, client: asyncio.Transport) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.client = client
        self.upstream: asyncio.Transport | None = None
        self._requests = Requests(owner.host, owner.turns)
        self._answers = Answers(self._requests, owner.turns)
        self._client_ended = False
        self._upstream_ended = False
        self._client_lost = False
        self._upstream_lost = False
        self._closed = False
        self._tls = False
        client.set_write_buffer_limits(HIGH_WATER)
        # Not at once: Python 3.10 begins to read after this, paused or not.
        self._loop.call_soon(self._wait_for_upstream)
        self._connecting: asyncio.Task[None] | None = self._loop.create_task(self._connect())

    def _wait_for_upstream(self) -> None:
        if self.upstream is None and not self.client.is_closing():
            self.client.pause_reading()

    async def _connect(self) -> None:
        try:
            await self._owner.connect(_UpstreamSide(self))
        except (OSError, asyncio.TimeoutError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            log.warning("upstream not reached", every=_EVERY_S, reason=reason)
            _reset(self.client)
        finally:
            self._connecting = None

    @property
    def idle(self) -> bool:
        """Whether no request waits for its answer, as far as is understood."""
        return not self._requests.exchanges and not self._requests.plain

    def connected(self, upstream: asyncio.Transport) -> None:
        """The server is there."""
        self.upstream = upstream
        self._tls = upstream.get_extra_info("sslcontext") is not None
        upstream.set_write_buffer_limits(HIGH_WATER)
        if self.client.is_closing():
            upstream.abort()
        else:
            self.client.resume_reading()

    def from_client(self, data: bytes) -> None:
        """Bytes of the client."""
        at = time.monotonic_ns()
        out = self._requests.feed(at, data)
        if out and self.upstream is not None and not self.upstream.is_closing():
            self.upstream.write(out)

    def from_upstream(self, data: bytes) -> None:
        """Bytes of the server."""
        at = time.monotonic_ns()
        if not self.client.is_closing():
            self.client.write(data)
        try:
            self._answers.feed(at, data)
        except Exception as error:
            # A fault of ours costs a measurement, never a connection. Not its text: see turns.
            log.error("answers not read", every=_EVERY_S, fault=type(error).__name__)
            self._answers.stop()
        if self._owner.stopping and self.idle:
            self.close()

    def client_ended(self) -> None:
        """The client sends no more: it has left, or has said all."""
        self._client_ended = True
        self._answers.cancel()
        upstream = self.upstream
        rest = self._requests.rest()
        if rest and upstream is not None and not upstream.is_closing():
            upstream.write(rest)
        if upstream is None or self._upstream_ended:
            self.close()
        elif upstream.can_write_eof():
            upstream.write_eof()
            self._loop.call_later(GRACE_S, self._after_grace)
        else:
            upstream.close()  # TLS ends as a whole

    def upstream_ended(self) -> None:
        """The server sends no more."""
        self._upstream_ended = True
        self._answers.end(time.monotonic_ns())
        if self._client_ended or self._tls:
            self.close()
        elif not self.client.is_closing():
            self.client.write_eof()
            self._loop.call_later(LINGER_S, self.close)

    def client_lost(self, error: Exception | None) -> None:
        """The client's connection is gone."""
        self._client_lost = True
        self._answers.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self.upstream is None or self._upstream_lost:
            self._gone()
        elif error is not None:
            _reset(self.upstream)
        else:
            self._close(self.upstream)

    def upstream_lost(self, error: Exception | None) -> None:
        """The server's connection is gone."""
        self._upstream_lost = True
        self._answers.end(time.monotonic_ns())
        if self._client_lost:
            self._gone()
        elif error is not None and not self.client.get_write_buffer_size():
            _reset(self.client)
        else:
            self._close(self.client)

    def hold(self, *, client: bool) -> None:
        """The client, or the server, does not read."""
        if client:
            self._answers.held_up(time.monotonic_ns())
            if self.upstream is not None and not self._upstream_ended:
                self.upstream.pause_reading()
        elif not self._client_ended:
            self.client.pause_reading()

    def go_on(self, *, client: bool) -> None:
        """It reads again."""
        if client:
            if self.upstream is not None and not self._upstream_ended:
                self.upstream.resume_reading()
        elif not self._client_ended:
            self.client.resume_reading()

    def close(self) -> None:
        """End both connections in good order; what was taken in still goes out."""
        self._close(self.client)
        if self.upstream is not None:
            self._close(self.upstream)

    def abort(self) -> None:
        """End both at once. What was open has been cancelled, by the proxy."""
        self._answers.cancel()
        self.client.abort()
        if self.upstream is not None:
            self.upstream.abort()

    def _close(self, side: asyncio.Transport) -> None:
        side.close()
        left = side.get_write_buffer_size()
        if left:
            self._loop.call_later(LINGER_S, self._see_left, side, left)

    def _see_left(self, side: asyncio.Transport, before: int) -> None:
        """Whether a side that is closed goes on reading what is left for it."""
        left = side.get_write_buffer_size()
        if left >= before:
            side.abort()
        elif left:
            self._loop.call_later(LINGER_S, self._see_left, side, left)

    def _after_grace(self) -> None:
        self._answers.end_cancelled(time.monotonic_ns())

    def _gone(self) -> None:
        if not self._closed:
            self._closed = True
            self._owner.leave(self)


class ClientSide(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._tunnel: Tunnel | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._owner.has_room():
            _reset(transport)
            return
        self._tunnel = Tunnel(self._owner, transport)
        self._owner.enter(self._tunnel)

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.from_client(data)

    def eof_received(self) -> bool:
        if self._tunnel is not None:
            self._tunnel.client_ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tunnel is not None:
            self._tunnel.client_lost(exc)

    def pause_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.hold(client=True)

    def resume_writing(self) -> None:
        if self._tunnel is not None:
            self._tunnel.go_on(client=True)


class _UpstreamSide(asyncio.Protocol):
    """A connection to the server."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._tls = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tls = transport.get_extra_info("sslcontext") is not None
        self._tunnel.connected(transport)

    def data_received(self, data: bytes) -> None:
        self._tunnel.from_upstream(data)

    def eof_received(self) -> bool:
        self._tunnel.upstream_ended()
        return not self._tls  # TLS ends as a whole

    def connection_lost(self, exc: Exception | None) -> None:
        self._tunnel.upstream_lost(exc)

    def pause_writing(self) -> None:
        self._tunnel.hold(client=False)

    def resume_writing(self) -> None:
        self._tunnel.go_on(client=False)


def _reset(transport: asyncio.Transport) -> None:
    """End a connection by a reset."""
    channel = transport.get_extra_info("socket")
    if channel is not None and not transport.is_closing():
        try:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        except OSError:
            pass  # it has gone already
    transport.abort()
