"""Streams recorded in files, for bug reports and tests: what the meter says of them.

A file is a JSON object: `framing` (sse or ndjson), `content_encoding` or null,
`cancelled_by_client`, and `reads`, each with `t_ms` (when the read was complete, the request being
sent at 0) and `bytes_base64`.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.errors import AgentError
from decodewatch.agent.meter.framing import FRAMINGS
from decodewatch.agent.meter.meter import Meter, Metered
from decodewatch.shared.errors import shown

MOST_BYTES: Final = 64 << 20
"""Bytes of a file at most."""


def metered(file: Path) -> tuple[str | None, Metered]:
    """The file's own `id`, and what the meter says. Raises AgentError naming file and field."""
    stream = _load(file)
    framing = stream.get("framing", "sse")
    if not isinstance(framing, str) or framing not in FRAMINGS:
        raise AgentError(f"{file}: framing: {shown(framing)}; accepted are {', '.join(FRAMINGS)}")
    encoding = stream.get("content_encoding")
    if encoding is not None and not isinstance(encoding, str):
        raise AgentError(f"{file}: content_encoding: {shown(encoding)}; accepted is text or null")
    reads = stream.get("reads")
    if not isinstance(reads, list):
        raise AgentError(f"{file}: reads: {_kind(reads)}; accepted is a list of reads")
    meter = Meter(framing, encoding)
    t_ms = 0.0
    for number, one in enumerate(reads):
        where = f"{file}: reads[{number}]"
        before = t_ms
        t_ms, content = _read(one, where)
        if number and t_ms < before:
            raise AgentError(f"{where}.t_ms: {t_ms}; accepted is no less than {before}, before it")
        meter.read(t_ms, content)
    meter.end(t_ms, cancelled=stream.get("cancelled_by_client") is True)
    name = stream.get("id")
    return name if isinstance(name, str) else None, meter.result()


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)  # a device never comes to its end
        if len(content) > MOST_BYTES:
            raise AgentError(f"{file}: more than {MOST_BYTES >> 20} MiB; accepted is less")
        stream = json.loads(content)
    except OSError as error:
        raise AgentError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AgentError(f"{file}: no JSON: {error}; accepted is a recorded stream") from None
    if not isinstance(stream, dict):
        raise AgentError(f"{file}: {_kind(stream)}; accepted is a JSON object")
    return stream


def _read(one: Any, where: str) -> tuple[float, bytes]:
    if not isinstance(one, dict):
        raise AgentError(f"{where}: {_kind(one)}; accepted is an object")
    t_ms, text = one.get("t_ms"), one.get("bytes_base64")
    if not isinstance(t_ms, (int, float)) or isinstance(t_ms, bool) or not abs(t_ms) < 1e12:
        raise AgentError(f"{where}.t_ms: {shown(t_ms)}; accepted is a number of ms")
    if not isinstance(text, str):
        raise AgentError(f"{where}.bytes_base64: {_kind(text)}; accepted is base64")
    try:
        return float(t_ms), base64.b64decode(text, validate=True)
    except ValueError as error:
        raise AgentError(f"{where}.bytes_base64: {error}; accepted is base64") from None


def _kind(value: Any) -> str:
    """What a value is. Itself it may hold text of an answer, which nothing is to show."""
    return f"a {type(value).__name__}"
