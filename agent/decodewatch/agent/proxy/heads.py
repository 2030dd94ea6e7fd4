"""The heads of HTTP/1 requests and answers, as far as a proxy must understand them. Pure.

What is unusual enough that two readers might disagree about it is not understood: None. Then the
proxy stops looking, and passes on what it gets.
"""

import re
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 64 * 1024
"""Bytes of one head that is understood."""
END: Final = re.compile(rb"\r?\n\r?\n")
"""The empty line after a head."""

# None of these can be made to look at the same bytes again and again: whoever sends a head would
# hold up everybody else.
_REQUEST: Final = re.compile(rb"([!-~]+) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_ANSWER: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: .*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\r\n\0]*)")
_HOST: Final = re.compile(rb"(?im)^host:[ \t]*([^\r\n]*)")
_TURN_PATHS: Final = (
    "/chat/completions",
    "/completions",
    "/completion",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/generate",
    "/generate_stream",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a request's head says. Without `length` and `chunked` it has no body."""

    method: str
    path: str
    length: int
    chunked: bool
    upgrade: bool

    @property
    def generates(self) -> bool:
        """Whether it asks for a turn: by its path, also where that lies below a prefix."""
        return self.method == "POST" and self.path.endswith(_TURN_PATHS)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer's head says. `length` None: as long as the connection, unless chunked."""

    status: int
    length: int | None
    chunked: bool
    content_type: str
    encoding: str | None
    server: str


def parse_request(head: bytes) -> Request | None:
    """A request's head, without the empty line after it."""
    first, fields = _parts(head)
    line = _REQUEST.fullmatch(first)
    if line is None or fields is None or len(_all(fields, b"host")) > 1:
        return None
    lengths, codings = _all(fields, b"content-length"), _codings(fields)
    length = _length(lengths)
    if codings and line[3] == b"0":
        return None
    if length is None or (lengths and codings) or codings not in ([], [b"chunked"]):
        return None
    target = line[2].decode("latin-1")
    path = re.sub(r"^[a-zA-Z]+://[^/]*", "", target).partition("?")[0].partition("#")[0]
    return Request(
        method=line[1].decode("latin-1"),
        path=path.rstrip("/"),
        length=length,
        chunked=bool(codings),
        upgrade=bool(_all(fields, b"upgrade")) or line[1] == b"CONNECT",
    )


def begins_request(start: bytes) -> bool:
    """Whether this may become a request's head: as far as its first line is there, it is one."""
    line, end, _ = start.partition(b"\n")
    return not end or _REQUEST.fullmatch(line.removesuffix(b"\r")) is not None


def with_host(head: bytes, host: bytes) -> bytes:
    """A request's head with another Host, where it has one; the rest as it is."""
    first, line_feed, fields = head.partition(b"\n")
    found = _HOST.search(fields)
    if found is None:
        return head
    start = found.start(1)
    end = start + len(found[1].rstrip(b" \t"))
    return first + line_feed + fields[:start] + host + fields[end:]


def parse_answer(head: bytes) -> Answer | None:
    """An answer's head, without the empty line after it."""
    first, fields = _parts(head)
    line = _ANSWER.fullmatch(first)
    if line is None or fields is None:
        return None
    codings = _codings(fields)
    length: int | None = None
    if not codings and _all(fields, b"content-length"):
        length = _length(_all(fields, b"content-length"))
        if length is None:
            return None
    encodings = [*_all(fields, b"content-encoding"), *[it for it in codings if it != b"chunked"]]
    return Answer(
        status=int(line[2]),
        length=length,
        chunked=codings[-1:] == [b"chunked"],
        content_type=_text(_all(fields, b"content-type")).partition(";")[0].strip().lower(),
        encoding=_text(encodings) or None,
        server=_text(_all(fields, b"server"))[:128],
    )


def _parts(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]] | None]:
    """The first line, and the fields in lower case; None where one is no field."""
    first, *lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            return first, None
        fields.append((found[1].lower(), found[2].strip(b" \t")))
    return first, fields


def _all(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for its, value in fields if its == name]


def _text(values: list[bytes]) -> str:
    return b",".join(values).decode("latin-1")


def _codings(fields: list[tuple[bytes, bytes]]) -> list[bytes]:
    values = b",".join(_all(fields, b"transfer-encoding")).lower().split(b",")
    return [value.strip() for value in values if value.strip()]


def _length(values: list[bytes]) -> int | None:
    """What Content-Length says, 0 where there is none; None where it is no number, or several."""
    different = set(values)
    if not different:
        return 0
    (value, *more) = different
    return int(value) if not more and value.isdigit() and len(value) < 19 else None
