"""Adds up what a stream says of its turn, from the times at which its bytes were read.

The definitions are those of docs/metrics.md: tokens are counted, not chunks; the first token is the
first event with text, reasoning or a tool call in it; TPOT is absent where there is one token.
"""

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Final, NamedTuple

from decodewatch.agent.meter.dialects import ABORTED, SOURCES, Said, Timings, read
from decodewatch.agent.meter.encoding import Inflated
from decodewatch.agent.meter.framing import FRAMINGS, Framing

ESTIMATE: Final = "chunks (estimate)"
MOST_CHUNKS: Final = 1 << 17
"""Chunks of which times are kept, 16 bytes each; of later ones only the sums are."""

_PART: Final = 1 << 10  # bytes taken in at once: about 1 ms, of whatever
_TINY_MS: Final = 0.01  # what servers report where they measured nothing
_CLOCKS_MS: Final = 5.0  # by which a server's time may exceed the client's, before it is wrong
_GLUED_MS: Final = 0.5  # a gap below this is of chunks that were held back, and came together
_LONGEST_TEXT: Final = 1 << 16  # characters compared with the event before


class Chunk(NamedTuple):
    """One event that brought output: when, how many tokens, and whether that was counted."""

    t_ms: float
    tokens: int
    counted: bool


@dataclass(slots=True)
class Server:
    """What follows from the server's own times. None where it does not follow."""

    semantics: str | None = None  # what the server divides its decode time by: "n" or "n-1"
    tpot: float | None = None
    prefill_tps: float | None = None
    steps: int | None = None
    ms_per_step: float | None = None
    acceptance: float | None = None
    queue: float | None = None


@dataclass(slots=True)
class Metered:
    """What the meter says of a turn. Times in ms from the request; None is undefined."""

    status: str
    finish: str | None = None
    prompt: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    N: int = 0
    N_src: str = ESTIMATE
    ttft: float | None = None
    ttfo: float | None = None
    e2e: float | None = None
    tpot: float | None = None
    tpot_ca: float | None = None
    gaps: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    server: Server | None = None  # None where the server says nothing of its times
    flags: list[str] = field(default_factory=list)


class Meter:
    """The meter of one response. Never raises for what a server can send."""

    def __init__(self, framing: str = "sse", encoding: str | None = None) -> None:
        """`framing` is one of FRAMINGS; `document` for an answer that is not streamed."""
        self._framing: Framing = FRAMINGS[framing]()
        self._streamed = framing != "document"
        self._inflated = Inflated(encoding)
        self._times = array("d")
        self._sizes = array("q")
        self._count = 0  # tokens of all chunks
        self._chunk_count = 0
        self._last_ms = 0.0
        self._ttfo: float | None = None
        self._glued = 0  # gaps below _GLUED_MS
        self._counts = _Counts()
        self._echo = _Echo()
        self._prompt: int | None = None
        self._cached: int | None = None
        self._reasoning: int | None = None
        self._timings: Timings | None = None
        self._finish: str | None = None
        self._closed = False  # the turn's totals came, and no output after them
        self._error = False
        self._cancelled = False
        self._bad = False
        self._several = False
        self._context_full = False
        self._context_shifted = False
        self._events = 0

    @property
    def finished(self) -> bool:
        """Whether the server said that the turn is at its end."""
        return self._finish is not None

    def read(self, t_ms: float, content: bytes) -> list[Chunk]:
        """Take in a read that was complete at `t_ms`; the chunks that it completed."""
        return [chunk for part in self.parts(t_ms, content) for chunk in part]

    def parts(self, t_ms: float, content: bytes) -> Iterator[list[Chunk]]:
        """The same, a small part at a time, for who has other things to do in between: a read may
        inflate to a thousand times its size. No other read may come before the last part."""
        for piece in self._inflated.feed(content):
            for start in range(0, len(piece) or 1, _PART):
                yield self._take(t_ms, self._framing.feed(piece[start : start + _PART]))

    def end(self, t_ms: float, *, cancelled: bool = False, failed: bool = False) -> list[Chunk]:
        """The stream has ended; `cancelled` by the client, `failed` with an error of HTTP."""
        self._cancelled = cancelled
        self._error |= failed
        return self._take(t_ms, self._framing.end())

    def _take(self, t_ms: float, payloads: Iterable[bytes]) -> list[Chunk]:
        chunks = []
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                continue
            try:
                # Bytes of a text that are no UTF-8 are a fault, but a token came all the same.
                text = payload.decode(errors="replace")
                self._bad |= "\ufffd" in text and text.encode() != payload
                event = json.loads(text)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict):
                self._bad = True
                continue
            chunk = self._add(t_ms, read(event))
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _add(self, t_ms: float, said: Said) -> Chunk | None:
        self._events += 1
        self._error |= said.error
        self._finish = said.finish or self._finish
        self._closed = said.closing or (self._closed and not said.output)
        self._several |= said.several
        self._context_full |= said.context_full
        self._context_shifted |= said.context_shifted
        self._timings = _joined(self._timings, said.timings)
        # An event may leave out what an earlier one had added in: of a cache, say. And 0 is what
        # servers say that do not know.
        self._prompt = max(self._prompt or 0, said.prompt or 0) or None
        if said.cached is not None:
            self._cached = said.cached
        if said.reasoning_tokens is not None:
            self._reasoning = said.reasoning_tokens
        self._counts.see(said)
        if not (said.output and self._streamed):
            return None
        if said.answer and self._ttfo is None:
            self._ttfo = t_ms
        self._glued += bool(self._chunk_count) and t_ms - self._last_ms < _GLUED_MS
        self._echo.see(said.text)
        tokens, counted = self._counts.chunk()
        self._chunk_count += 1
        self._count += tokens
        self._last_ms = t_ms
        if len(self._times) < MOST_CHUNKS:
            self._times.append(t_ms)
            self._sizes.append(tokens)
        return Chunk(t_ms, tokens, counted)

    # What it comes to.

    def result(self) -> Metered:
        """What is known of the turn now."""
        found = self._counts.total()
        total, source = (self._count, ESTIMATE) if found is None else found
        made = Metered(self._status(), self._finish, N=total, N_src=source)
        made.prompt, made.cached, made.reasoning = self._prompt, self._cached, self._reasoning
        if self._times:
            first, last = self._times[0], self._last_ms
            made.ttft, made.ttfo, made.e2e = first, self._ttfo, last
            made.tpot = _over(last - first, total - 1)
            made.tpot_ca = _over(last - first, total - self._sizes[0])
            made.gaps = [b - a for a, b in pairwise(self._times)]
            made.chunk_tokens = list(self._sizes)
        made.server = self._server()
        made.flags = list(self._flags(made))
        return made

    def _status(self) -> str:
        if self._error:
            return "error"
        if self._finish in ABORTED:
            # Servers call it so, too, where it was the client that left.
            return "cancelled" if self._cancelled else "aborted"
        if self._finish is not None or self._closed:
            return "complete"
        if self._cancelled:
            return "cancelled"
        return "complete" if self._events and not self._streamed else "truncated"

    def _inconsistent(self) -> bool:
        """Whether the server books more time before the first token than the client waited for."""
        prompt_ms = None if self._timings is None else self._timings.prompt_ms
        return bool(prompt_ms and self._times and prompt_ms > self._times[0] + _CLOCKS_MS)

    def _server(self) -> Server | None:
        times = self._timings
        if times is None:
            return None
        made = Server(queue=times.queue_ms)
        spent, tokens = times.decode_ms, times.decode_tokens
        if times.drafted:
            accepted = times.accepted or 0
            made.acceptance = accepted / times.drafted
            if tokens is not None and tokens > 1:
                made.steps = max(tokens - 1 - accepted, 1)
        if self._inconsistent():
            return made
        if times.prompt_ms is not None and times.prompt_ms > _TINY_MS and times.prompt_processed:
            made.prefill_tps = times.prompt_processed / times.prompt_ms * 1000
        if spent is None or spent <= _TINY_MS or tokens is None or tokens < 2:
            return made
        made.tpot = spent / (tokens - 1)
        said = times.decode_ms_per_token
        if said is not None:
            by_all, by_gaps = abs(said * tokens - spent), abs(said * (tokens - 1) - spent)
            made.semantics = "n" if by_all < by_gaps else "n-1"
        if made.steps is not None:
            made.ms_per_step = spent / made.steps
        return made

    def _flags(self, made: Metered) -> Iterator[str]:
        if self._bad:
            yield "bad_frame"
        if self._framing.too_long:
            yield "event_too_long"
        if self._inflated.failed:
            yield "bad_encoding"
        if self._bursty(made.server):
            yield "bursty"
        if self._echo.cumulative(self._chunk_count):
            yield "cumulative_text"
        if made.N_src != ESTIMATE and self._chunk_count > made.N:
            yield "more_chunks_than_tokens"
        if self._several:
            yield "several_choices"
        if self._context_full:
            yield "context_full"
        if self._context_shifted:
            yield "context_shift"
        if self._inconsistent():
            yield "timing_inconsistent"
        if self._chunk_count > len(self._times):
            yield "gaps_left_out"

    def _bursty(self, server: Server | None) -> bool:
        """Whether chunks were held back and came together, so that gaps say nothing.

        Not where the server is as fast as that, or makes several tokens a step and sends each.
        """
        gaps = self._chunk_count - 1
        if gaps < 1 or 2 * self._glued < gaps:
            return False
        if server is None:
            return True
        if server.steps is not None:
            return 2 * (gaps - self._glued) < server.steps
        return server.tpot is None or server.tpot >= 2 * _GLUED_MS


class _Counts:
    """The numbers of tokens that a stream tells, by source: of each chunk, and in the end.

    A total tells of a chunk by how much it grew since the chunk before, if it was known then: one
    that comes at the end alone says nothing of the last chunk.
    """

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._here: dict[str, int] = {}  # the totals that the event at hand has
        self._reached: dict[str, int] = {}  # the totals at the chunk before
        self._sums: set[str] = set()  # the sources of which the totals are added up here
        self._partial: set[str] = set()  # of these, the ones that some chunk lacked
        self._chunks = 0

    def see(self, said: Said) -> None:
        """Take in an event."""
        self._here = {}
        for source, total in said.totals.items():
            # A server that tells 0 of a turn with output does not know.
            if total:
                self._here[source] = self._totals[source] = max(total, self._totals.get(source, 0))
        for source, tokens in said.tokens.items():
            self._sums.add(source)
            self._here[source] = self._totals[source] = self._totals.get(source, 0) + tokens

    def chunk(self) -> tuple[int, bool]:
        """The event that was seen last is a chunk: its tokens, and whether the server said so."""
        tokens, counted = 1, False
        for source in SOURCES:
            if source in self._here and (not self._chunks or source in self._reached):
                grown = self._here[source] - self._reached.get(source, 0)
                if grown > 0:
                    tokens, counted = grown, True
                    break
        for source in self._totals:
            if source in self._here:
                if self._chunks and source not in self._reached:
                    self._partial.add(source)
                self._reached[source] = self._here[source]
            elif source in self._reached:
                self._reached[source] += tokens
                self._partial.add(source)
        self._chunks += 1
        return tokens, counted

    def total(self) -> tuple[int, str] | None:
        """The turn's tokens and who says so; None where nobody does."""
        unsure = self._sums & self._partial
        for source in SOURCES:
            if source in self._totals and source not in unsure:
                return self._totals[source], source
        return None


class _Echo:
    """Notices a server that sends all of the text again with each chunk. Keeps no text."""

    def __init__(self) -> None:
        self._length = 0
        self._hash = hash("")
        self._grown = 0
        self._same = 0
        self._sure = 0  # those that grew from more than one letter

    def see(self, text: str) -> None:
        """Take in a chunk's text."""
        if self._length and hash(text[: self._length]) == self._hash:
            self._grown += len(text) > self._length
            self._sure += len(text) > self._length > 1
            self._same += len(text) == self._length
        self._length = len(text) if len(text) <= _LONGEST_TEXT else 0
        self._hash = hash(text)

    def cumulative(self, chunks: int) -> bool:
        """Whether all of so many chunks began with the one before, and not by chance."""
        return (self._grown > 1 or self._sure > 0) and self._grown + self._same == chunks - 1


def _joined(before: Timings | None, new: Timings | None) -> Timings | None:
    """What is known of the server's times; the newest wins where it knows."""
    if before is None or new is None:
        return new or before
    for item in fields(Timings):
        if getattr(new, item.name) is None:
            setattr(new, item.name, getattr(before, item.name))
    return new


def as_json(made: Metered) -> dict[str, Any]:
    """As docs/metrics.md shows it: ms to a microsecond; of the server's only what it says."""
    return {
        "status": made.status,
        "finish": made.finish,
        "prompt": made.prompt,
        "cached": made.cached,
        "reasoning": made.reasoning,
        "N": made.N,
        "N_src": made.N_src,
        "ttft": _rounded(made.ttft),
        "ttfo": _rounded(made.ttfo),
        "e2e": _rounded(made.e2e),
        "tpot": _rounded(made.tpot),
        "tpot_ca": _rounded(made.tpot_ca),
        "gaps": [_rounded(gap) for gap in made.gaps],
        "chunk_tokens": made.chunk_tokens,
        "server": None
        if made.server is None
        else {item.name: _rounded(getattr(made.server, item.name)) for item in fields(Server)},
        "flags": made.flags,
    }


def _over(spent: float, tokens: int) -> float | None:
    return spent / tokens if tokens > 0 else None


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
