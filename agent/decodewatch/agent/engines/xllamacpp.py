"""xllamacpp: llama.cpp's server inside the process, as tried with 2026.10.

    monitor = xllamacpp.monitor("chat", parameters)
    with monitor.session("user-42").turn() as turn:
        xllamacpp.handle(turn, server.handle_chat_completions, request, on_chunk)

`request` gets `timings_per_token`, so that each chunk says how many tokens there are by now: a
chunk of text may hold several tokens, and the last one none. The server swallows what the callback
raises; the turn keeps the exception's class.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping
from importlib import metadata
from typing import Any, Final

from decodewatch.agent.engines.holding import Holding
from decodewatch.agent.engines.llama_cpp import model_spec
from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.turn import Turn
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

ENGINE: Final = "llama.cpp"

OnChunk = Callable[[Any], Any]
"""Gets each chunk of an answer; what is true in return ends it."""

_SETTINGS: Final = (
    "n_batch",
    "n_ubatch",
    "n_gpu_layers",
    "n_parallel",
    "cache_ram_mib",
    "ctx_shift",
    "kv_unified",
    "use_mmap",
    "use_mlock",
)


def monitor(name: str, parameters: Any, *, link: Link = LINK) -> DecodeMonitor:
    """The monitor of a `Server` that was made with these `CommonParams`.

    Raises SettingsError for a `name` that no agent would take.
    """
    try:
        version: str | None = metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        version = None
    return DecodeMonitor(
        name,
        engine=ENGINE,
        engine_version=version and f"xllamacpp {version}"[:64],
        model=spec(parameters),
        settings=settings(parameters),
        link=link,
    )


def spec(parameters: Any) -> ModelSpec | None:
    """The spec of the model that `CommonParams` name; None where its file cannot be read."""
    overflow = "shift" if parameters.ctx_shift else "truncate"
    types = parameters.cache_type_k, parameters.cache_type_v
    return model_spec(parameters.model.path, types, context_limit(parameters), overflow)


def context_limit(parameters: Any) -> int | None:
    """The tokens of context that one turn may have; None where that is the model's own."""
    context = int(parameters.n_ctx)
    if context <= 0:
        return None
    slots = 1 if getattr(parameters, "kv_unified", False) else max(1, int(parameters.n_parallel))
    return context // slots


def settings(parameters: Any) -> dict[str, Scalar]:
    """What of `CommonParams` changes speed or memory."""
    found: dict[str, Scalar] = {}
    for name in _SETTINGS:
        value = getattr(parameters, name, None)
        if isinstance(value, (bool, int)):
            found[name] = value
    threads = getattr(getattr(parameters, "cpuparams", None), "n_threads", None)
    if isinstance(threads, int):
        found["n_threads"] = threads
    return found


def handle(
    turn: Turn,
    method: Callable[[Any, OnChunk], Any],
    request: Mapping[str, Any] | str | bytes,
    on_chunk: OnChunk,
) -> Any:
    """What `method(request, on_chunk)` returns, measured in `turn`.

    `method` is `handle_chat_completions` or `handle_completions` of a `Server`. `on_chunk` gets the
    chunks as it would without this, with `timings` in them. Of an answer that is not streamed only
    the counts are known.
    """
    asked, streams = _asked(request)
    with _Answer(turn, streams, not isinstance(request, Mapping)) as answer:
        return method(asked, answer.callback(on_chunk))


def _asked(request: Any) -> tuple[Any, bool]:
    """The request with `timings_per_token` in the form in which it was given, and whether it asks
    for a stream. What is no request is left to the server to refuse."""
    if isinstance(request, Mapping):
        return {**request, "timings_per_token": True}, bool(request.get("stream"))
    try:
        body = json.loads(request)
        asked, streams = _asked(body) if isinstance(body, dict) else (None, False)
    except (TypeError, ValueError, RecursionError):
        asked = None
    if asked is None:
        return request, False
    text = json.dumps(asked)
    return (text.encode() if isinstance(request, bytes) else text), streams


def _read(chunk: Any) -> Any:
    """A chunk that came as JSON; any other as it is."""
    if not isinstance(chunk, (str, bytes)):
        return chunk
    try:
        return json.loads(chunk)
    except (ValueError, RecursionError):
        return None


class _Answer(Holding):
    """One answer of the server."""

    def __init__(self, turn: Turn, streams: bool, in_text: bool) -> None:
        """`in_text` is whether the chunks come as JSON, as they do where the request is."""
        super().__init__(turn)
        self._streams = streams
        self._in_text = in_text
        self._prompt: int | None = None
        self._tokens: int | None = None
        self._finish: str | None = None
        self._error: str | None = None
        self._failed: BaseException | None = None
        self._stopped = False
        self._counter: Generator[Any, Any, None] | None = None

    def __enter__(self) -> "_Answer":  # type: ignore[override]  # private: its caller has the turn
        super().__enter__()
        return self

    def callback(self, inner: OnChunk) -> OnChunk:
        """`inner`, with each chunk counted before."""
        if not self._streams:

            def whole(chunk: Any) -> Any:
                read = _read(chunk)
                self._look(read)
                return self._passed(inner, chunk, read)

            return whole
        # The `send` of a generator, because resuming one is cheaper than the call of a function: a
        # step must not cost more than it has to.
        self._counter = self._counting((lambda chunk: None) if self._in_text else inner)
        next(self._counter)
        count = self._counter.send
        if not self._in_text:
            return count

        def text(chunk: Any) -> Any:
            read = _read(chunk)
            count(read)
            return self._passed(inner, chunk, read)

        return text

    def _counting(self, inner: OnChunk) -> Generator[Any, Any, None]:
        now = time.monotonic_ns
        stamps = self._turn._stamps
        answer: Any = None
        due = 0  # the count of a chunk of one token; 0 before the first
        try:
            while True:
                chunk = yield answer
                try:
                    # What every token pays for.
                    count = chunk["timings"]["predicted_n"]
                    if count == due:
                        stamps.append(now())
                        due += 1
                    else:
                        due = self._count(chunk, count, due)
                except Exception:
                    # A role, an error, the reason of the end: these may have no timings.
                    self._look(chunk)
                answer = inner(chunk)
                if answer:
                    self._look(chunk)
                    self._stopped = True
        except GeneratorExit:
            return
        except BaseException as error:
            self._failed = error
            raise
        finally:
            if due:
                self._tokens = due - 1

    def _count(self, chunk: Any, count: int, due: int) -> int:
        """Stamp a chunk of another number of tokens than one, or the first; the next count due."""
        at = time.monotonic_ns()
        seen = max(due - 1, 0)
        if not seen or count == seen:
            # The first token comes with the prompt's figures; no new one with the end's reason.
            self._look(chunk)
        self._turn.step_at(at, count - seen)
        return count + 1

    def _passed(self, inner: OnChunk, chunk: Any, read: Any) -> Any:
        """What `inner` says to a chunk that was counted."""
        try:
            answer = inner(chunk)
        except BaseException as error:
            self._failed = error
            raise
        if answer:
            self._look(read)
            self._stopped = True
        return answer

    def _look(self, chunk: Any) -> None:
        """Take in what a chunk says besides its tokens. Never raises."""
        try:
            if chunk is None:
                return
            error = chunk.get("error")
            if error is not None:
                self._see_error(error)
                return
            for choice in chunk.get("choices") or ():
                self._finish = choice.get("finish_reason") or self._finish
            timings = chunk.get("timings")
            if timings:
                cached = timings["cache_n"]
                self._prompt = timings["prompt_n"] + cached
                self._tokens = timings["predicted_n"]
                self._turn.report(prompt_tokens=self._prompt, cached_tokens=cached)
        except Exception as error:
            kind = type(error).__name__
            complain.once("chunk", "decodewatch: a chunk that is not understood: %s", kind)

    def _see_error(self, error: Any) -> None:
        kind = error.get("type")
        self._error = str(kind)[:128] if kind else "error"
        if kind == "exceed_context_size_error":
            prompt = error.get("n_prompt_tokens")
            self._turn.report(prompt_tokens=prompt)
            self._turn.overflow("refuse", depth=prompt, limit=error.get("n_ctx"))

    def _end(self, error: BaseException | None) -> None:
        if self._counter is not None:
            self._counter.close()
        if self._tokens is not None:
            self._turn.report(output_tokens=self._tokens)
        if self._error is not None:
            self._turn.saw("error", self._error)
        elif self._failed is not None:
            self._turn.failed(self._failed)
        elif self._stopped and self._finish is None:
            self._turn.saw("cancelled")
        else:
            self._turn.saw("complete")
        self._see_limit()

    def _see_limit(self) -> None:
        model = self._turn.model
        limit = None if model is None else model.context_limit
        if limit is None or self._prompt is None or self._tokens is None:
            return
        depth = self._prompt + self._tokens
        if depth > limit:
            self._turn.overflow("shift", depth=depth, limit=limit)
        elif depth == limit and self._finish == "length":
            self._turn.overflow("truncate", depth=depth, limit=limit)
