"""A question of the proxy's own to the server: one GET, bounded in bytes and time."""

import asyncio
import ssl
from typing import Final, NamedTuple

from decodewatch.agent.proxy import heads
from decodewatch.agent.proxy.bodies import Body, Chunked, Length, Unreadable, UntilClose
from decodewatch.agent.proxy.settings import Upstream

MOST_BYTES: Final = 1 << 20
_PIECE: Final = 64 * 1024


class Reply(NamedTuple):
    """What came back."""

    status: int
    server: str
    content: bytes


async def ask(
    upstream: Upstream, tls: ssl.SSLContext | None, path: str, seconds: float
) -> Reply | None:
    """GET a path; None where no whole answer of at most MOST_BYTES comes in so many seconds."""
    try:
        return await asyncio.wait_for(_ask(upstream, tls, path), seconds)
    except (OSError, asyncio.TimeoutError, Unreadable, EOFError):
        return None


async def _ask(upstream: Upstream, tls: ssl.SSLContext | None, path: str) -> Reply | None:
    reader, writer = await asyncio.open_connection(upstream.host, upstream.port, ssl=tls)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {upstream.authority}\r\nAccept: application/json\r\n"
            "Connection: close\r\n\r\n".encode("ascii")
        )
        received = b""
        while (found := heads.END.search(received)) is None:
            received += await _more(reader)
            if len(received) > heads.MOST_BYTES:
                return None
        answer = heads.parse_answer(received[: found.start()])
        if answer is None or answer.status < 200:
            return None
        body: Body = UntilClose()
        if answer.chunked:
            body = Chunked()
        elif answer.length is not None:
            body = Length(answer.length)
        content: list[bytes] = []
        data, start = received, found.end()
        while not body.done:
            body.feed(data, start, content)
            if sum(map(len, content)) > MOST_BYTES:
                return None
            if not body.done:
                data, start = await reader.read(_PIECE), 0
                if not data and isinstance(body, UntilClose):
                    break
                if not data:
                    return None
        return Reply(answer.status, answer.server, b"".join(content))
    finally:
        writer.transport.abort()


async def _more(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_PIECE)
    if not data:
        raise EOFError
    return data
