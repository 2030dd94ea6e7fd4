"""A turn as its application watches it: iterators, callbacks, streamers, and how it ended."""

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from operator import index
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.channel import Channel
from decodewatch.agent.wrapper.course import Course, Outcome
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.streams import Either, Stamps, watched, watched_async
from decodewatch.agent.wrapper.tally import Stamp
from decodewatch.agent.wrapper.vitals import Moment, memory_bytes
from decodewatch.shared import records
from decodewatch.shared.errors import shown
from decodewatch.shared.model import ALLOCATIONS, OVERFLOWS, ModelSpec

MOST_TOKENS: Final = 1 << 20
"""Tokens of one chunk."""
ENDINGS: Final = tuple(ending for ending in records.ENDINGS if ending != "lost")

# By name, because importing asyncio or trio to ask them would cost the application megabytes.
_CANCELLATIONS: Final = frozenset({"CancelledError", "Cancelled"})

# `step` asks whether its argument is this, because `==` runs code of whatever a caller passes.
_ONE: Final = 1
_NOWHERE: Final[deque[Stamp]] = deque(maxlen=0)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class HasModel(Protocol):
    """A turn's monitor."""

    model: ModelSpec | None


class Turn:
    """One request and its response. Made by `Session.turn` and `DecodeMonitor.turn`."""

    __slots__ = (
        "_channel",
        "_course",
        "_entered",
        "_error",
        "_link",
        "_monitor",
        "_said",
        "_seen",
        "_stamps",
    )

    def __init__(self, monitor: HasModel, link: Link, channel: Channel, course: Course) -> None:
        self._monitor = monitor  # kept: it lives as long as its turns do
        self._link = link
        self._channel = channel
        self._course = course
        self._stamps: Stamps = course.stamps
        self._entered = False
        self._seen: Outcome | None = None  # of the iterator that was watched last
        self._said: str | None = None  # the ending that the application reported
        self._error: str | None = None  # what it called the failure

    @property
    def id(self) -> str:
        """The turn's id, unique on the device: what the dashboard and the database call it."""
        return self._course.id

    def __enter__(self) -> "Turn":
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(self._seen if error is None else _outcome(error))

    async def __aenter__(self) -> "Turn":
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    def __del__(self) -> None:
        # Also of a turn whose making failed half-way: a finalizer has nobody to raise to.
        if getattr(self, "_course", None) is not None:
            self._end(self._seen or Outcome("cancelled"))

    @overload
    def watch(
        self, source: Iterable[T], tokens: Callable[[T], int] | None = None
    ) -> Generator[T, Any, Any]: ...
    @overload
    def watch(
        self, source: AsyncIterable[T], tokens: Callable[[T], int] | None = None
    ) -> AsyncGenerator[T, Any]: ...
    def watch(self, source: Any, tokens: Callable[[Any], int] | None = None) -> Any:
        """What `source` yields, each chunk a step of one token, or of `tokens(chunk)`.

        A chunk of 0 tokens (a role, a ping) is passed on and is no step. Closing or dropping the
        iterator closes the source. Where several iterators are watched in one turn, the last one
        decides how it ended.
        """
        self._seen = Outcome("cancelled")  # unless it comes to its end
        count = None if tokens is None else self._counter(tokens)
        iteration = _Iteration(self)
        kind = type(source)  # as the interpreter looks for them
        if not hasattr(kind, "__aiter__"):
            return watched(source, count, iteration)
        if not hasattr(kind, "__iter__"):
            return watched_async(source, count, iteration)
        return Either(
            lambda: watched(source, count, iteration),
            lambda: watched_async(source, count, iteration),
        )

    def step(self, tokens: int = 1) -> None:
        """A step came that produced so many tokens."""
        if tokens is _ONE:
            self._stamps.append(time.monotonic_ns())
        else:
            self._stamp(time.monotonic_ns(), tokens)

    def step_at(self, at: int, tokens: int = 1) -> None:
        """The step of an engine elsewhere, which came at a `time.monotonic_ns()` of the past and
        not before the step that was told last."""
        moment = self._moment(at)
        self._stamp(time.monotonic_ns() if moment is None else moment, tokens)

    def hold_up(self, at: int) -> None:
        """Between the step before `at` and the next one the engine waited for its reader: that gap
        is in no percentile, and the turn's decode time is not known."""
        moment = self._moment(at)
        if moment is not None:
            self._stamps.append((moment, 0))

    def callback(
        self, inner: Callable[P, R], tokens: Callable[P, int] | None = None
    ) -> Callable[P, R]:
        """`inner` for an engine that calls it with each chunk: every call is a step of one token,
        or of `tokens(...)` of its arguments. What `inner` returns and raises passes on."""
        if tokens is None:

            def stamped(*args: P.args, **kwargs: P.kwargs) -> R:
                self._stamps.append(time.monotonic_ns())
                return inner(*args, **kwargs)

        else:
            ask = tokens

            def size(call: tuple[Any, Any]) -> int:
                return ask(*call[0], **call[1])

            count = self._counter(size)

            def stamped(*args: P.args, **kwargs: P.kwargs) -> R:
                count((args, kwargs))
                return inner(*args, **kwargs)

        return stamped

    def streamer(self, inner: Any = None) -> "Streamer":
        """A streamer for `generate(streamer=...)` of Hugging Face Transformers, before `inner`.

        Without a `with` block the turn ends with it.
        """
        self._seen = Outcome("cancelled")  # unless it comes to its end
        return Streamer(self, inner)

    def report(
        self,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        ending: str | None = None,
        error: str | None = None,
        estimated: bool | None = None,
    ) -> None:
        """What the engine says of this turn, as it becomes known before the turn ends.

        `output_tokens` is then the turn's, whatever was counted. `ending` is one of ENDINGS and
        wins over what decodewatch saw: `complete` where the caller stops iterating because it saw
        the last chunk, `truncated` where the stream broke off, `aborted` where the engine gave up.
        `error` gives it a name, such as an exception's class: never a text, which may hold the
        prompt. `estimated` is as for `turn()`.
        """
        course = self._course
        if course.ended is not None:
            complain.once(
                "report", "decodewatch: report() after its turn ended; it has to come before"
            )
            return
        if prompt_tokens is not None:
            course.prompt_tokens = token_count("prompt_tokens", prompt_tokens)
        if cached_tokens is not None:
            course.cached_tokens = token_count("cached_tokens", cached_tokens)
        if output_tokens is not None:
            course.reported_tokens = token_count("output_tokens", output_tokens)
        if estimated is not None:
            course.estimated = bool(estimated)
        if ending is not None:
            if ending in ENDINGS:
                self._said = ending
                self._error = None if error is None else str(error)[:128] or None
            else:
                complain.once(
                    "ending",
                    "decodewatch: ending %s; accepted are %s",
                    shown(ending, 30),
                    ", ".join(ENDINGS),
                )

    def overflow(self, policy: str, *, depth: int | None = None, limit: int | None = None) -> None:
        """The context was full. `policy` is what became of it, one of OVERFLOWS: `refuse` the
        prompt, `truncate` the answer, `shift` old tokens out, `summarise` them.

        `depth` is how many tokens there were or would have been, `limit` how many there may be;
        where it happens again in a turn, the last ones count.
        """
        if policy not in OVERFLOWS:
            complain.once(
                "overflow",
                "decodewatch: overflow %s; accepted are %s",
                _plain(policy),
                ", ".join(OVERFLOWS),
            )
            return
        before = self._course.events.get("context_limit")
        self._event(
            "context_limit",
            policy=policy,
            depth=token_count("depth", depth),
            limit=token_count("limit", limit),
            times=1 if before is None else before[1]["times"] + 1,
        )

    def kv_cache(
        self,
        held_bytes: int,
        *,
        peak_bytes: int | None = None,
        tokens: int | None = None,
        stale_tokens: int | None = None,
        allocation: str | None = None,
    ) -> None:
        """What the engine itself says that its KV cache holds at the end of this turn.

        `peak_bytes` is what it held for a moment in the turn at least (a cache that grows by
        copying holds a part of itself twice), `stale_tokens` how many of its `tokens` no prompt
        asked for, `allocation` one of ALLOCATIONS.
        """
        if allocation is not None and allocation not in ALLOCATIONS:
            complain.once(
                "allocation",
                "decodewatch: allocation %s; accepted are %s",
                _plain(allocation),
                ", ".join(ALLOCATIONS),
            )
            allocation = None
        size = token_count("held_bytes", held_bytes)
        if size is None:
            return
        self._event(
            "kv_cache",
            allocation=allocation,
            bytes=size,
            peak_bytes=token_count("peak_bytes", peak_bytes),
            tokens=token_count("tokens", tokens),
            stale_tokens=token_count("stale_tokens", stale_tokens),
        )

    def _event(self, kind: str, **data: Any) -> None:
        """Keep an event of this turn, in place of one of its kind, until the turn's record goes."""
        if self._course.ended is not None:
            complain.once("event", "decodewatch: an event of a turn that has ended; too late")
            return
        self._course.events[kind] = self._link.moment().boot // 1000, data

    def saw(self, ending: str, error: str | None = None) -> None:
        """For adapters: how the engine ended the turn. An exception that leaves the `with` block
        counts for more, and what the application reports for most. `error` as for `report`."""
        self._seen = Outcome(ending, error)

    def failed(self, error: BaseException) -> None:
        """For adapters: the engine ended the turn by raising this. Only its class is kept."""
        self._seen = _outcome(error)

    @property
    def ending(self) -> str | None:
        """How it would end now, by what was seen of its engine; None where nothing was."""
        return None if self._seen is None else self._seen.ending

    @property
    def prompt_tokens(self) -> int | None:
        """The tokens of its prompt, where they are known by now."""
        return self._course.prompt_tokens

    @property
    def entered(self) -> bool:
        """Whether a `with` block holds it, at whose end it ends."""
        return self._entered

    @property
    def model(self) -> ModelSpec | None:
        """The model that its monitor was given."""
        return self._monitor.model

    def end(self, at: Moment | None = None) -> None:
        """The turn is over, for turns without a `with` block. Again: nothing.

        `at` is when, where that was noticed later than it was.
        """
        self._end(self._seen, at)

    def discard(self) -> None:
        """This was no turn: nothing is kept of it, and the agent is told to let it go."""
        course = self._course
        if course.ended is None:
            self._stamps = _NOWHERE
            course.end(Outcome("cancelled"), self._link.moment(), None)
            self._link.discard(self._channel, course)

    def _end(self, seen: Outcome | None, at: Moment | None = None) -> None:
        course = self._course
        if course.ended is not None:
            return
        try:
            outcome = seen or Outcome("complete")
            if self._said is not None:
                error = self._error or outcome.error
                outcome = Outcome(self._said, error if self._said == "error" else None)
            # An engine's own thread may go on calling, and nobody takes its stamps any more.
            self._stamps = _NOWHERE
            memory = memory_bytes() if course.own else None
            course.end(outcome, at or self._link.moment(), memory)
            self._link.end(self._channel, course)
        except Exception:
            # Also where the interpreter is being torn down around a turn's finalizer.
            complain.once("end", "decodewatch: a turn could not be ended", trace=True)

    def _counter(self, tokens: Callable[[T], object]) -> Callable[[T], None]:
        """A function that stamps a chunk with what the application's own function says of it."""
        now = time.monotonic_ns

        def count(chunk: T) -> None:
            at = now()
            try:
                size = tokens(chunk)
            except Exception as error:
                complain.once(
                    "tokens",
                    "decodewatch: tokens= raised %s, and its chunk counts as one token",
                    type(error).__name__,
                )
                size = _ONE
            if size is _ONE:
                self._stamps.append(at)
            else:
                self._stamp(at, size)

        return count

    def _moment(self, at: object) -> int | None:
        """A moment of this turn until now, whatever somebody else's clock says; None: not one."""
        try:
            return max(self._course.accepted_ns, min(index(at), time.monotonic_ns()))  # type: ignore[arg-type]
        except Exception:
            complain.once("at", "decodewatch: at %s; accepted is a time.monotonic_ns()", _plain(at))
            return None

    def _stamp(self, at: int, tokens: object) -> None:
        """Append the stamp of a chunk of so many tokens; none for 0."""
        try:
            size = index(tokens)  # type: ignore[arg-type]  # it says so itself
        except Exception:
            size = -1
        if size == 1:
            self._stamps.append(at)
        elif 1 < size <= MOST_TOKENS:
            self._stamps.append((at, size))
        elif size:
            complain.once(
                "size",
                "decodewatch: a chunk of %s tokens counts as one; accepted is 0 to %d",
                _plain(tokens),
                MOST_TOKENS,
            )
            self._stamps.append(at)


class _Iteration:
    """One watched iterator of a turn (streams.Watcher)."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def started(self) -> Stamps:
        self._turn._course.iterating += 1
        return self._turn._stamps

    def exhausted(self) -> None:
        self._turn._seen = Outcome("complete")

    def failed(self, error: BaseException) -> None:
        self._turn._seen = _outcome(error)

    def stopped(self) -> None:
        self._turn._course.iterating -= 1
        if not self._turn._entered:
            self._turn.end()


class Streamer:
    """Stamps what Hugging Face's `generate` puts: first the prompt, then the ids of each step."""

    def __init__(self, turn: Turn, inner: Any) -> None:
        self._turn = turn
        self._inner = inner
        self._count = turn._counter(_size)
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """The prompt's ids, or those of a step."""
        if not self._prompt_seen:
            self._prompt_seen = True
            self._see_prompt(value)
        else:
            self._count(value)
            # Plain decoding puts one id in one dimension at every step, and whoever begins so goes
            # on so. Assisted decoding puts [1, k].
            if getattr(value, "ndim", None) == 1 and len(value) == 1:
                self.put = _one_id(self._turn, self._inner)  # type: ignore[assignment]
        if self._inner is not None:
            self._inner.put(value)

    def put_draft(self, value: Any) -> None:
        """Tokens that are not certain yet: no step. A later `put` confirms them."""
        put_draft = getattr(self._inner, "put_draft", None)
        if put_draft is not None:
            put_draft(value)

    def end(self) -> None:
        """The engine came to its end."""
        self._turn._seen = Outcome("complete")
        if not self._turn._entered:
            self._turn.end()
        if self._inner is not None:
            self._inner.end()

    def _see_prompt(self, value: Any) -> None:
        try:
            size = _size(value)
        except Exception as error:
            complain.once("streamer", "decodewatch: the prompt's size: %s", type(error).__name__)
            return
        # 0: the prompt was given as embeddings.
        if size and self._turn._course.prompt_tokens is None:
            self._turn.report(prompt_tokens=size)


def _one_id(turn: Turn, inner: Any) -> Callable[[Any], None]:
    """A `put` that need not ask how many ids there are. It knows no streamer: a cycle would keep
    the turn of one that is dropped."""
    if inner is None:

        def put(value: Any) -> None:
            turn._stamps.append(time.monotonic_ns())

    else:
        show = inner.put

        def put(value: Any) -> None:
            turn._stamps.append(time.monotonic_ns())
            show(value)

    return put


def _size(value: Any) -> int:
    """The number of ids in a tensor, an array or a list."""
    count = getattr(value, "numel", None)
    return int(count()) if count is not None else int(getattr(value, "size", None) or len(value))


def _outcome(error: BaseException) -> Outcome:
    """Of the exception only its class: its text may hold the prompt."""
    if isinstance(error, (GeneratorExit, KeyboardInterrupt, SystemExit)):
        return Outcome("cancelled")
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _CANCELLATIONS:
        return Outcome("cancelled")
    return Outcome("error", type(error).__name__[:128] or None)


def token_count(field: str, value: object) -> int | None:
    """A number of tokens, or None with a word to the log."""
    if value is None:
        return None
    try:
        count = index(value)  # type: ignore[arg-type]  # it says so itself
    except Exception:
        count = -1
    if 0 <= count < 1 << 40:
        return count
    complain.once(
        field, "decodewatch: %s %s; accepted is a whole number from 0", field, _plain(value)
    )
    return None


def _plain(value: object) -> str:
    """A value for the log: of anything but a number only its type, because it may be the prompt."""
    return shown(value) if isinstance(value, (int, float)) else type(value).__name__
