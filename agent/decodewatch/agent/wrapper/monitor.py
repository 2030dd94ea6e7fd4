"""What an application wraps its decode loop with: a monitor, sessions and turns.

    monitor = DecodeMonitor("chat", engine="llama.cpp", model=ModelSpec.from_gguf(path))
    with monitor.session("user-42").turn(prompt_tokens=31) as turn:
        for token in turn.watch(engine.generate(prompt)):
            ...

A turn begins where `turn()` is called. It ends once: where its `with` block is left, or, without
one, where its watched iterator is exhausted, closed or dropped, or where `end()` is called.

From there on nothing raises into the application, and nothing waits for the agent but `flush`. Only
`DecodeMonitor(...)` itself refuses what no agent would take. A step costs one timestamp and one
append; all else happens between turns, or once a second in a thread that the first turn starts.
"""

import itertools
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.channel import Channel, hello_message
from decodewatch.agent.wrapper.course import Course
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.turn import Turn, token_count
from decodewatch.agent.wrapper.vitals import memory_bytes
from decodewatch.shared import records
from decodewatch.shared.errors import RecordError, SettingsError, shown
from decodewatch.shared.ids import uuid7
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

MOST_SESSIONS: Final = 4096
"""Sessions whose turns one monitor counts. One that was forgotten begins at 0 again, as all do when
the application starts again."""

T = TypeVar("T")


class DecodeMonitor:
    """One model as one engine of this process runs it. Cheap to make; nothing starts here."""

    def __init__(
        self,
        name: str,
        *,
        engine: str,
        engine_version: str | None = None,
        model: ModelSpec | None = None,
        settings: Mapping[str, Scalar] | None = None,
        of_pid: int | None = None,
        link: Link = LINK,
    ) -> None:
        """`name` is the application's, for people. `settings` are the engine's that change speed or
        memory (threads, batch, offloaded layers): a flat object. All monitors of a process share
        one `link`.

        `of_pid` is for a process that watches another one decode, such as a proxy: the other's pid,
        or 0 where it runs elsewhere or is not known. Its memory is then what the agent reads.

        Raises SettingsError for what no agent would take.
        """
        text = records.text(64)
        _check("name", text, name)
        _check("engine", text, engine)
        _check("engine_version", records.optional(text), engine_version)
        _check("settings", records.optional(records.scalars), settings and dict(settings))
        if model is not None and not isinstance(model, ModelSpec):
            raise SettingsError(f"model: {shown(model)}; accepted is a ModelSpec")
        _check("of_pid", records.optional(records.integer(0, 1 << 31)), of_pid)
        self.model = model
        self._link = link
        self._own = of_pid is None
        self._channel = Channel(
            hello_message(name, engine, engine_version, model, settings, of_pid)
        )
        self._numbers: dict[str, itertools.count[int]] = {}
        # Else a program that makes a monitor a request would collect connections.
        weakref.finalize(self, link.leave, self._channel).atexit = False

    def session(self, id: object = None) -> "Session":
        """A conversation. `id` is whatever the application calls it by, and the agent stores only a
        salted hash of it; without one the session is new."""
        if id is None:
            return Session(self, uuid7(), itertools.count())
        text = _session_text(id)
        # One operation, so that two threads that open one session count on together.
        numbers = self._numbers.setdefault(text, itertools.count())
        if len(self._numbers) > MOST_SESSIONS:
            self._forget_oldest()
        return Session(self, text, numbers)

    def _forget_oldest(self) -> None:
        try:
            self._numbers.pop(next(iter(self._numbers)), None)
        except RuntimeError:
            # Another thread opened a session just now, and will do this.
            return

    def turn(
        self,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        accepted_at: int | None = None,
        estimated: bool = False,
    ) -> "Turn":
        """A turn that belongs to no session; see `Session.turn`."""
        return self._turn(None, None, prompt_tokens, cached_tokens, accepted_at, estimated)

    @overload
    def watch(
        self, source: Iterable[T], tokens: Callable[[T], int] | None = None, **turn: Any
    ) -> Generator[T, Any, Any]: ...
    @overload
    def watch(
        self, source: AsyncIterable[T], tokens: Callable[[T], int] | None = None, **turn: Any
    ) -> AsyncGenerator[T, Any]: ...
    def watch(self, source: Any, tokens: Callable[[Any], int] | None = None, **turn: Any) -> Any:
        """A turn of its own for one iterator; `turn` as for `turn()`."""
        return self.turn(**turn).watch(source, tokens)

    def event(self, kind: str, turn: str | None = None, **data: Scalar) -> None:
        """Something that happened to the runtime, or to the turn with this id: one of the kinds in
        docs/inbox.md, with its data. Lost where there is no agent now."""
        message = {"type": "event", "event": kind, "t": self._link.moment().boot // 1000}
        known = {"turn": turn} if turn is not None else {}
        self._link.event(self._channel, {**message, **known, "data": data})

    @property
    def dropped(self) -> int:
        """Turns that were given up: no agent took them in time, or it refused them."""
        return self._channel.dropped

    def flush(self, timeout: float) -> bool:
        """Wait, at most `timeout` seconds, until the agent has stored every turn that ended.

        Whether it has. The only call that waits.
        """
        return self._link.flush(self._channel, timeout)

    def _turn(
        self,
        session: str | None,
        number: int | None,
        prompt_tokens: int | None,
        cached_tokens: int | None,
        accepted_at: int | None,
        estimated: bool,
    ) -> "Turn":
        now = self._link.moment()
        if accepted_at is not None and not (
            type(accepted_at) is int and 0 <= accepted_at <= now.before
        ):
            complain.once(
                "accepted_at", "decodewatch: accepted_at is no time.monotonic_ns() of the past"
            )
            accepted_at = None
        course = Course(
            session=session,
            number=number,
            epoch=self._link.epoch,
            now=now,
            accepted_ns=accepted_at,
            memory_bytes=memory_bytes() if self._own else None,
            own=self._own,
        )
        course.prompt_tokens = token_count("prompt_tokens", prompt_tokens)
        course.cached_tokens = token_count("cached_tokens", cached_tokens)
        course.estimated = bool(estimated)
        self._link.begin(self._channel, course)
        return Turn(self, self._link, self._channel, course)


class Session:
    """One conversation of several turns."""

    def __init__(self, monitor: DecodeMonitor, id: str, numbers: "itertools.count[int]") -> None:
        self._monitor = monitor
        self._id = id
        self._numbers = numbers

    def turn(
        self,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        accepted_at: int | None = None,
        estimated: bool = False,
    ) -> "Turn":
        """A turn that begins now; where it was queued, at `accepted_at` (a `time.monotonic_ns()`).

        `prompt_tokens` is the whole prompt, `cached_tokens` what of it the engine need not read;
        both may be reported later. `estimated` says that a chunk counts as one token only because
        nothing better is known.
        """
        return self._monitor._turn(
            self._id, next(self._numbers), prompt_tokens, cached_tokens, accepted_at, estimated
        )


def _check(field: str, check: records.Check, value: object) -> None:
    try:
        check(value)
    except RecordError as error:
        raise SettingsError(f"DecodeMonitor {field}: {error}") from None


def _session_text(id: object) -> str:
    """The application's own id as a text that the agent takes; long and odd ones as a digest."""
    try:
        text = str(id)
    except Exception as error:
        complain.once(
            "session", "decodewatch: a session id without a text: %s", type(error).__name__
        )
        return uuid7()
    try:
        return str(records.text(256)(text))
    except RecordError:
        # Here, because few need it and it brings megabytes of OpenSSL.
        import hashlib

        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
