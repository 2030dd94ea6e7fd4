"""Watched iterators: they pass on what an engine yields and stamp each step.

They behave as `yield from source` would: `send`, `throw` and `close` reach the source, exceptions
pass on unchanged. One thing is lost: the value that a generator returns at its end reaches the
caller only after a `send` or a `throw`, because asking for it costs too much at every token.
"""

import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Generic, Protocol, TypeVar

from decodewatch.agent.wrapper.tally import Stamp

T = TypeVar("T")
Count = Callable[[T], None]
"""Stamps a chunk with its number of tokens. Never raises."""
Stamps = list[Stamp] | deque[Stamp]
"""A turn's list, or what forgets everything: its turn has ended."""


class Watcher(Protocol):
    """Who wants to know how an iterator ends. None of these raises.

    One that the caller closes or drops before its end just stops.
    """

    def started(self) -> Stamps:
        """The first chunk is being asked for. Where its stamps go."""

    def exhausted(self) -> None:
        """The source has nothing more."""

    def failed(self, error: BaseException) -> None:
        """The source raised, or the caller threw."""

    def stopped(self) -> None:
        """It will stamp nothing more."""


def watched(
    source: Iterable[T], count: Count[T] | None, watcher: Watcher
) -> Generator[T, Any, Any]:
    """The chunks of `source`. Without `count` each one is a step of one token."""
    now = time.monotonic_ns
    iterator: Iterator[T] | None = None
    stamps = watcher.started()
    try:
        iterator = iter(source)
        resume: Callable[[], T] | None = None
        try:
            # These two loops are what every token pays for. `stamps.append` and not a local name
            # for it: Python 3.11 and newer have an instruction for exactly this.
            if count is None:
                for chunk in iterator:
                    stamps.append(now())
                    if (sent := (yield chunk)) is not None:
                        resume = partial(_send, iterator, sent)
                        break
            else:
                for chunk in iterator:
                    count(chunk)
                    if (sent := (yield chunk)) is not None:
                        resume = partial(_send, iterator, sent)
                        break
        except Exception as error:
            # A source that raised is finished. One that waits at its yield did not raise: the
            # caller threw this.
            if not isinstance(iterator, GeneratorType) or not _waits(iterator):
                raise
            resume = partial(iterator.throw, error)
        value = None
        if resume is not None:
            value = yield from _driven(iterator, resume, count or _stamper(stamps))
    except GeneratorExit:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
        raise
    except BaseException as error:
        watcher.failed(error)
        raise
    else:
        watcher.exhausted()
        return value
    finally:
        watcher.stopped()
        # A traceback keeps this frame, and must not keep the engine's generator with it.
        iterator = source = None  # type: ignore[assignment]


def _driven(
    iterator: Iterator[T], step: Callable[[], T], count: Count[T]
) -> Generator[T, Any, Any]:
    """The rest of an iterator whose caller uses `send` or `throw`."""
    while True:
        try:
            chunk = step()
        except StopIteration as stop:
            return stop.value
        count(chunk)
        try:
            sent = yield chunk
        except Exception as error:
            if not isinstance(iterator, GeneratorType):
                raise
            step = partial(iterator.throw, error)
        else:
            step = partial(next, iterator) if sent is None else partial(_send, iterator, sent)


def _waits(generator: "GeneratorType[Any, Any, Any]") -> bool:
    """Whether it is neither finished nor just being run, by another thread."""
    return generator.gi_frame is not None and not generator.gi_running


def _send(iterator: Any, value: Any) -> Any:
    """AttributeError where the source is no generator, as `yield from` has it."""
    return iterator.send(value)


async def watched_async(
    source: AsyncIterable[T], count: Count[T] | None, watcher: Watcher
) -> AsyncGenerator[T, Any]:
    """The chunks of an async `source`; see `watched`."""
    now = time.monotonic_ns
    iterator: AsyncIterator[T] | None = None
    stamps = watcher.started()
    try:
        iterator = source.__aiter__()
        resume: Callable[[], Awaitable[T]] | None = None
        try:
            if count is None:
                async for chunk in iterator:
                    stamps.append(now())
                    if (sent := (yield chunk)) is not None:
                        resume = partial(_asend, iterator, sent)
                        break
            else:
                async for chunk in iterator:
                    count(chunk)
                    if (sent := (yield chunk)) is not None:
                        resume = partial(_asend, iterator, sent)
                        break
        except Exception as error:
            if not isinstance(iterator, AsyncGeneratorType) or iterator.ag_frame is None:
                raise
            resume = partial(iterator.athrow, error)
        # An async generator cannot delegate, so what `_driven` does stands here.
        while resume is not None:
            try:
                chunk = await resume()
            except StopAsyncIteration:
                break
            (count or _stamper(stamps))(chunk)
            try:
                sent = yield chunk
            except Exception as error:
                if not isinstance(iterator, AsyncGeneratorType):
                    raise
                resume = partial(iterator.athrow, error)
            else:
                resume = iterator.__anext__ if sent is None else partial(_asend, iterator, sent)
    except GeneratorExit:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()
        raise
    except BaseException as error:
        watcher.failed(error)
        raise
    else:
        watcher.exhausted()
    finally:
        watcher.stopped()
        iterator = source = None  # type: ignore[assignment]


async def _asend(iterator: Any, value: Any) -> Any:
    return await iterator.asend(value)


def _stamper(stamps: Stamps) -> Count[Any]:
    def stamp(chunk: Any) -> None:
        stamps.append(time.monotonic_ns())

    return stamp


class Either(Generic[T]):
    """A source that can be iterated both ways, watched in the way in which it is."""

    def __init__(
        self,
        sync: Callable[[], Generator[T, Any, Any]],
        asynchronous: Callable[[], AsyncGenerator[T, Any]],
    ) -> None:
        self._sync = sync
        self._async = asynchronous

    def __iter__(self) -> Generator[T, Any, Any]:
        return self._sync()

    def __aiter__(self) -> AsyncGenerator[T, Any]:
        return self._async()
