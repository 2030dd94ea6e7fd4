"""Streams of inference servers as tests write them: reads with their times, and what is in them."""

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from decodewatch.agent.meter.meter import Meter, as_json

FOLDER = Path(__file__).resolve().parents[1] / "data/streams"

Read = tuple[float, bytes]
"""When a read was complete, in ms from the request, and what it returned."""

DONE = b"data: [DONE]\n\n"


class Recorded(NamedTuple):
    """One file of tests/data/streams."""

    name: str
    framing: str
    encoding: str | None
    cancelled: bool
    reads: list[Read]
    expect: dict[str, Any]


def recorded(file: Path) -> Recorded:
    """Read one of them."""
    whole = json.loads(file.read_text())
    reads = [(one["t_ms"], base64.b64decode(one["bytes_base64"])) for one in whole["reads"]]
    return Recorded(
        whole["id"],
        whole["framing"],
        whole["content_encoding"],
        whole["cancelled_by_client"],
        reads,
        whole["expect"],
    )


RECORDED = [recorded(file) for file in sorted(FOLDER.glob("*.json"))]


def sse(*events: Any, end: str = "\n") -> bytes:
    """Events of an SSE stream, each a JSON document or bytes as they are."""
    found = b""
    for event in events:
        if isinstance(event, bytes):
            found += event
        else:
            text = json.dumps(event, ensure_ascii=False)
            found += f"data: {text}{end}{end}".encode()
    return found


def ndjson(*documents: Any) -> bytes:
    """Lines of an NDJSON stream."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in documents)


def chat(text: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> Any:
    """A chunk of OpenAI's chat completions; `delta` and other fields of it as given."""
    delta = more.pop("delta", {} if text is None else {"content": text})
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    choice.update(more.pop("choice", {}))
    return {"object": "chat.completion.chunk", "choices": [choice], **more}


def usage(prompt: int, completion: int, **more: Any) -> Any:
    """The last chunk, which has the usage and no choice."""
    return {"choices": [], "usage": counts(prompt, completion, **more)}


def counts(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """OpenAI's usage."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


def metered(
    reads: Iterable[Read],
    framing: str = "sse",
    *,
    encoding: str | None = None,
    cancelled: bool = False,
    failed: bool = False,
) -> dict[str, Any]:
    """What the meter says of these reads."""
    meter = Meter(framing, encoding)
    t_ms = 0.0
    for t_ms, content in reads:
        meter.read(t_ms, content)
    meter.end(t_ms, cancelled=cancelled, failed=failed)
    return as_json(meter.result())


def of_pieces(reads: Sequence[Read], size: int) -> list[Read]:
    """The same bytes in reads of `size` at most, each at the time of the read that it was in."""
    return [
        (t_ms, content[start : start + size])
        for t_ms, content in reads
        for start in range(0, len(content), size)
    ]


def glued(reads: Sequence[Read]) -> list[Read]:
    """The same bytes in one read, at the time of the last."""
    return [(reads[-1][0], b"".join(content for _, content in reads))]


def cut_in_two(reads: Sequence[Read], place: int) -> list[Read]:
    """The same bytes in two reads, at the times of the first and the last."""
    whole = b"".join(content for _, content in reads)
    return [(reads[0][0], whole[:place]), (reads[-1][0], whole[place:])]
