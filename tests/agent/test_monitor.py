"""What an application sees of the wrapper, and what an agent is told of its turns."""

import asyncio
import gc
import itertools
import logging
import statistics
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inbox_server import InboxServer
from support.waiting import until

from decodewatch.agent import DecodeMonitor, ModelSpec, Turn
from decodewatch.agent.messages import turn_record
from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.vitals import Moment, moment
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.sketch import Sketch


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[InboxServer]:
    server = InboxServer(tmp_path / "agent.sock").start()
    yield server
    server.stop()


@pytest.fixture
def monitor(inbox: InboxServer) -> DecodeMonitor:
    return DecodeMonitor(
        "chat", engine="toy", link=Link(tick_s=0.05, socket_path=lambda: inbox.path)
    )


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complain, "_said", set())


def only_record(monitor: DecodeMonitor, inbox: InboxServer) -> dict[str, Any]:
    """The record of the one turn that ended, which the agent's own reader accepts."""
    assert monitor.flush(5)
    (record,) = inbox.records
    turn_record(record, "runtime", None, moment().boot // 1000)
    return record


def ending(monitor: DecodeMonitor, inbox: InboxServer) -> tuple[str, str | None]:
    record = only_record(monitor, inbox)
    return record["ending"], record.get("error")


def sketches(record: dict[str, Any]) -> dict[int | None, Sketch]:
    return {octave: Sketch.from_json(sketch) for octave, sketch in record["itl"]}


class Source:
    """A generator that says whether it was closed."""

    def __init__(self, count: int = 5, fails_with: BaseException | None = None) -> None:
        self.closed = False
        self.generator = self._generate(count, fails_with)

    def _generate(self, count: int, fails_with: BaseException | None) -> Generator[int, None, None]:
        try:
            yield from range(count)
            if fails_with is not None:
                raise fails_with
        except GeneratorExit:
            self.closed = True
            raise


async def async_range(count: int, pause: float = 0) -> AsyncGenerator[int, None]:
    for number in range(count):
        await asyncio.sleep(pause)
        yield number


# How turns end.


def test_an_exhausted_iterator_completes_its_turn(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.session("u").turn(prompt_tokens=10, cached_tokens=4) as turn:
        assert list(turn.watch(iter("abcde"))) == list("abcde")
    record = only_record(monitor, inbox)
    assert record["ending"] == "complete" and "error" not in record
    assert (record["prompt_tokens"], record["cached_tokens"]) == (10, 4)
    assert (record["steps"], record["output_tokens"], record["first_tokens"]) == (5, 5, 1)
    assert record["session"] == "u" and record["number"] == 0
    assert record["token_source"] == "counted" and record["concurrency"] == 1
    assert 0 <= record["ttft_us"] <= record["duration_us"]
    assert record["memory_start_bytes"] > 0
    assert record["memory_peak_bytes"] >= record["memory_end_bytes"] > 0


def test_a_loop_that_is_left_early_is_cancelled_and_closes_the_generator(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    source = Source()
    with monitor.turn() as turn:
        for token in turn.watch(source.generator):
            if token == 2:
                break
        assert source.closed
    assert ending(monitor, inbox) == ("cancelled", None)
    assert inbox.records[0]["output_tokens"] == 3


def test_a_block_that_is_left_with_an_open_iterator_is_cancelled_and_the_iterator_goes_on(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        stream = turn.watch(iter(range(4)))
        assert next(stream) == 0
    assert ending(monitor, inbox) == ("cancelled", None)
    assert next(stream) == 1
    # Nobody counts its steps any more, and they do not pile up.
    until(lambda: not turn._course.stamps)
    assert list(stream) == [2, 3]
    until(lambda: not monitor._link._outlived)
    assert inbox.records[0]["output_tokens"] == 1


def test_an_iterator_that_begins_after_its_turn_goes_on_uncounted(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        stream = turn.watch(iter(range(4)))
    another = turn.watch(iter(range(3)), tokens=lambda token: 2)
    assert list(stream) == [0, 1, 2, 3] and list(another) == [0, 1, 2]
    turn.step()
    assert ending(monitor, inbox) == ("cancelled", None)
    assert inbox.records[0]["output_tokens"] == 0 and not turn._course.stamps


def test_an_error_of_the_engine_passes_on_unchanged(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    raised = ValueError("the secret prompt")
    source = Source(3, raised)
    with pytest.raises(ValueError) as caught, monitor.turn() as turn:
        list(turn.watch(source.generator))
    assert caught.value is raised
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert caught.traceback[-1].name == "_generate"
    assert ending(monitor, inbox) == ("error", "ValueError")
    assert "secret" not in str(inbox.messages)


def test_an_error_of_the_caller_is_an_error_and_closes_the_generator(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    source = Source()
    raised = KeyError("mine")
    with pytest.raises(KeyError) as caught, monitor.turn() as turn:
        for _ in turn.watch(source.generator):
            raise raised
    assert caught.value is raised
    assert source.closed
    assert ending(monitor, inbox) == ("error", "KeyError")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interruption_is_cancellation(
    monitor: DecodeMonitor, inbox: InboxServer, kind: type[BaseException]
) -> None:
    with pytest.raises(kind), monitor.turn() as turn:
        list(turn.watch(Source(2, kind()).generator))
    assert ending(monitor, inbox) == ("cancelled", None)


def test_an_error_that_the_caller_handles_is_still_the_turns(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        try:
            list(turn.watch(Source(2, OSError("gone")).generator))
        except OSError:
            pass  # shown to the user
    assert ending(monitor, inbox) == ("error", "OSError")


def test_of_several_iterators_the_last_one_decides(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        for _ in turn.watch(iter(range(10))):
            break
        list(turn.watch(iter(range(3))))
    assert ending(monitor, inbox) == ("complete", None)
    assert inbox.records[0]["output_tokens"] == 4


@pytest.mark.parametrize("said", ["complete", "truncated", "aborted"])
def test_what_the_application_reports_wins(
    monitor: DecodeMonitor, inbox: InboxServer, said: str
) -> None:
    with monitor.turn() as turn:
        for _ in turn.watch(iter(range(10))):
            turn.report(ending=said)
            break
    assert ending(monitor, inbox) == (said, None)


def test_without_a_block_the_turn_ends_with_its_iterator(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    assert list(monitor.watch(iter(range(3)))) == [0, 1, 2]
    for _ in monitor.watch(iter(range(3)), prompt_tokens=7):
        break
    with pytest.raises(OSError):
        list(monitor.watch(Source(1, OSError()).generator))
    never_begun = monitor.watch(iter(range(3)))
    del never_begun
    assert monitor.flush(5)
    assert [(one["ending"], one.get("error")) for one in inbox.records] == [
        ("complete", None),
        ("cancelled", None),
        ("error", "OSError"),
        ("cancelled", None),
    ]
    assert inbox.records[1]["prompt_tokens"] == 7


def test_a_turn_ends_once(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn() as turn:
        list(turn.watch(iter(range(2))))
        turn.end()
    turn.end()
    del turn
    gc.collect()
    assert ending(monitor, inbox) == ("complete", None)


def test_a_turn_that_is_forgotten_is_cancelled(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    monitor.turn().step()
    gc.collect()
    assert ending(monitor, inbox) == ("cancelled", None)


# The iterator is as good as the one that it watches.


def test_the_generator_is_not_kept_alive(monitor: DecodeMonitor) -> None:
    source = Source(3, ValueError())
    generator = weakref.ref(source.generator)
    with monitor.turn() as turn:
        watched = turn.watch(source.generator)
        source.generator = None  # type: ignore[assignment]
        with pytest.raises(ValueError) as caught:
            list(watched)
        gc.collect()
        # Although the traceback is still there, with the frames that the error went through.
        assert "watched" in [entry.name for entry in caught.traceback]
        assert generator() is None


def test_dropping_the_iterator_drops_the_generator_at_once(monitor: DecodeMonitor) -> None:
    gc.disable()
    try:
        source = Source()
        generator = weakref.ref(source.generator)
        watched = monitor.watch(source.generator)
        source.generator = None  # type: ignore[assignment]
        next(watched)
        del watched
        assert source.closed and generator() is None
    finally:
        gc.enable()


def test_send_and_throw_reach_the_generator_and_its_value_comes_back(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    def echo() -> Generator[str, str, str]:
        said = "start"
        while said != "stop":
            try:
                said = (yield said) or "nothing"
            except KeyError as error:
                said = f"caught {error.args[0]}"
        return "value"

    with monitor.turn() as turn:
        watched = turn.watch(echo())
        assert next(watched) == "start"
        assert next(watched) == "nothing"
        assert watched.throw(KeyError("a")) == "caught a"
        assert watched.send("b") == "b"
        assert next(watched) == "nothing"
        assert watched.throw(KeyError("c")) == "caught c"
        with pytest.raises(StopIteration) as stopped:
            watched.send("stop")
        assert stopped.value.value == "value"
    assert ending(monitor, inbox) == ("complete", None)
    assert inbox.records[0]["output_tokens"] == 6


def test_what_is_thrown_at_a_source_that_does_not_catch_it_comes_back(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    source = Source()
    thrown = LookupError("x")
    with monitor.turn() as turn:
        watched = turn.watch(source.generator)
        next(watched)
        with pytest.raises(LookupError) as caught:
            watched.throw(thrown)
        assert caught.value is thrown
        with pytest.raises(StopIteration):
            next(watched)
    assert ending(monitor, inbox) == ("error", "LookupError")


def test_sending_to_a_source_that_takes_nothing_fails_as_delegation_does(
    monitor: DecodeMonitor,
) -> None:
    watched = monitor.watch(iter(range(3)))
    next(watched)
    with pytest.raises(AttributeError, match="send"):
        watched.send("x")


def test_a_source_that_is_not_iterable_fails_as_in_a_loop(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        list(monitor.watch(5))  # type: ignore[call-overload]
    assert ending(monitor, inbox) == ("error", "TypeError")


# Async.


def test_an_async_iterator_is_watched(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    async def main() -> list[int]:
        async with monitor.turn(prompt_tokens=3) as turn:
            return [token async for token in turn.watch(async_range(5))]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert ending(monitor, inbox) == ("complete", None)
    assert inbox.records[0]["steps"] == 5


def test_a_cancelled_task_cancels_its_turn(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    closed = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            for number in itertools.count():
                yield number
                await asyncio.sleep(0.001 if number < 3 else 60)
        except asyncio.CancelledError:
            closed.append("cancelled")
            raise

    async def main() -> None:
        seen: list[int] = []

        async def chat() -> None:
            async with monitor.turn() as turn:
                async for token in turn.watch(source()):
                    seen.append(token)  # noqa: PERF401  # a list that is read meanwhile

        task = asyncio.create_task(chat())
        while len(seen) < 4:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert closed == ["cancelled"]
    assert ending(monitor, inbox) == ("cancelled", None)
    assert inbox.records[0]["output_tokens"] == 4


def test_closing_or_leaving_an_async_iterator_closes_the_source(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    closed: list[str] = []

    async def source(name: str) -> AsyncGenerator[int, None]:
        try:
            for number in range(9):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    async def main() -> None:
        watched = monitor.watch(source("closed"))
        await watched.__anext__()
        await watched.aclose()
        async for _ in monitor.watch(source("dropped")):
            break
        while len(closed) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert closed == ["closed", "dropped"]
    assert monitor.flush(5)
    assert [record["ending"] for record in inbox.records] == ["cancelled", "cancelled"]


def test_send_and_throw_reach_an_async_generator(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    async def echo() -> AsyncGenerator[str, str]:
        said = "start"
        while said != "stop":
            try:
                said = (yield said) or "nothing"
            except KeyError as error:
                said = f"caught {error.args[0]}"

    async def main() -> None:
        watched = monitor.watch(echo())
        assert await watched.__anext__() == "start"
        assert await watched.athrow(KeyError("a")) == "caught a"
        assert await watched.asend("b") == "b"
        assert await watched.__anext__() == "nothing"
        assert await watched.athrow(KeyError("c")) == "caught c"
        with pytest.raises(StopAsyncIteration):
            await watched.asend("stop")

    asyncio.run(main())
    assert ending(monitor, inbox) == ("complete", None)
    assert inbox.records[0]["output_tokens"] == 5


def test_an_error_of_an_async_engine_passes_on_unchanged(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    raised = OSError("prompt")

    async def source() -> AsyncIterator[int]:
        yield 1
        raise raised

    async def main() -> None:
        async with monitor.turn() as turn:
            async for _ in turn.watch(source()):
                pass

    with pytest.raises(OSError) as caught:
        asyncio.run(main())
    assert caught.value is raised
    assert ending(monitor, inbox) == ("error", "OSError")


def test_a_source_of_both_kinds_is_watched_as_it_is_used(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    class Both:
        def __iter__(self) -> Iterator[int]:
            return iter(range(2))

        def __aiter__(self) -> AsyncIterator[int]:
            return async_range(3)

    async def main(turn: Turn) -> list[int]:
        return [token async for token in turn.watch(Both())]  # type: ignore[attr-defined]

    with monitor.turn() as turn:
        assert list(turn.watch(Both())) == [0, 1]
        assert asyncio.run(main(turn)) == [0, 1, 2]
    assert only_record(monitor, inbox)["steps"] == 5


# Tokens.


def test_chunks_of_several_tokens_share_their_gap_and_chunks_of_none_are_no_steps(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    def chunks() -> Iterator[str]:
        for chunk in ("", "ab", "c", "", "defg"):
            yield chunk
            time.sleep(0.004)

    with monitor.turn(prompt_tokens=100) as turn:
        assert "".join(turn.watch(chunks(), tokens=len)) == "abcdefg"
    record = only_record(monitor, inbox)
    assert (record["steps"], record["output_tokens"], record["first_tokens"]) == (3, 7, 2)
    assert record["shared_tokens"] == 4
    (sketch,) = sketches(record).values()
    assert sketch.n == 5  # one of "c", four of "defg"
    assert sketch.minimum >= 2000  # the gap of "defg" spans two pauses
    assert abs(sketch.total - record["decode_us"]) <= 4


def test_gaps_are_kept_apart_by_depth(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn(prompt_tokens=5) as turn:
        list(turn.watch(iter(range(12))))
    # Step j attends to 5 + j tokens: gaps at depths 6, 7; 8 to 15; 16.
    assert {
        octave: sketch.n for octave, sketch in sketches(only_record(monitor, inbox)).items()
    } == {
        2: 2,
        3: 8,
        4: 1,
    }


def test_a_prompt_that_is_counted_last_still_gives_the_depth(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        for token in turn.watch(iter(range(12))):
            if token == 11:
                turn.report(prompt_tokens=5, cached_tokens=2, output_tokens=13)
    record = only_record(monitor, inbox)
    assert {octave: sketch.n for octave, sketch in sketches(record).items()} == {2: 2, 3: 8, 4: 1}
    assert (record["prompt_tokens"], record["cached_tokens"]) == (5, 2)
    assert (record["output_tokens"], record["token_source"]) == (13, "reported")


def test_what_is_not_known_is_left_out(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn(estimated=True) as turn:
        list(turn.watch(iter(range(3))))
    record = only_record(monitor, inbox)
    assert not {"prompt_tokens", "cached_tokens", "session", "number"} & set(record)
    assert list(sketches(record)) == [None]
    assert record["token_source"] == "estimated"


def test_one_step_has_no_decode_time_and_none_has_no_ttft(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    with monitor.turn() as turn:
        list(turn.watch(iter("a")))
    with monitor.turn() as turn:
        list(turn.watch(iter(["abc"]), tokens=len))
    with monitor.turn() as turn:
        list(turn.watch(iter("")))
    assert monitor.flush(5)
    one, burst, none = (
        turn_record(record, "runtime", None, moment().boot // 1000) for record in inbox.records
    )
    assert one.ttft_us is not None and one.decode_us is None and one.tpot_us is None
    assert burst.output_tokens == 3 and burst.tpot_us is None and burst.itl == ()
    assert none.ttft_us is None and none.output_tokens == 0 and none.ending == "complete"


def test_ttft_counts_from_when_the_request_was_accepted(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    accepted = time.monotonic_ns() - 2_000_000_000
    with monitor.turn(accepted_at=accepted) as turn:
        list(turn.watch(iter("ab")))
    record = only_record(monitor, inbox)
    assert 2_000_000 <= record["ttft_us"] < 7_000_000
    assert record["duration_us"] >= record["ttft_us"]
    assert abs(moment().boot // 1000 - record["t"] - 2_000_000) < 5_000_000


def test_callbacks_and_steps_count(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    def show(text: str, last: bool = False) -> bool:
        return last

    with monitor.turn() as turn:
        one = turn.callback(show)
        many = turn.callback(show, tokens=lambda text, last=False: len(text))
        assert one("hello") is False
        assert many("abc", last=True) is True
        assert many("") is False
        turn.step()
        turn.step(4)
        turn.step(tokens=0)
    record = only_record(monitor, inbox)
    assert (record["steps"], record["output_tokens"], record["ending"]) == (4, 9, "complete")


def test_a_streamer_counts_the_prompt_and_the_tokens(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    class Tensor(list[int]):
        def numel(self) -> int:
            return len(self)

    seen: list[Any] = []

    class Inner:
        def put(self, value: Any) -> None:
            seen.append(value)

        def end(self) -> None:
            seen.append("end")

    streamer = monitor.turn().streamer(Inner())
    streamer.put(Tensor(range(7)))
    streamer.put_draft(Tensor([1, 2]))
    streamer.put(Tensor([1]))
    streamer.put([2, 3])
    streamer.end()
    assert len(seen) == 4 and seen[-1] == "end"
    record = only_record(monitor, inbox)
    assert (record["prompt_tokens"], record["output_tokens"], record["steps"]) == (7, 3, 2)
    assert record["ending"] == "complete"


def test_turns_are_numbered_within_their_session(
    monitor: DecodeMonitor, inbox: InboxServer
) -> None:
    def turn(session: object) -> None:
        with monitor.session(session).turn() as one:
            one.step()

    for session in ("a", "b", "a", 7, "x" * 300, "\ud800", ""):
        turn(session)
    fresh = monitor.session()
    for _ in range(2):
        with fresh.turn() as one:
            one.step()
    assert monitor.flush(5)
    records = inbox.records
    assert [record["number"] for record in records] == [0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert [record["session"] for record in records[:4]] == ["a", "b", "a", "7"]
    for record in records:
        assert 0 < len(record["session"]) <= 256
    assert records[-1]["session"] == records[-2]["session"]


def test_the_most_turns_at_once_are_counted(monitor: DecodeMonitor, inbox: InboxServer) -> None:
    with monitor.turn() as a:
        with monitor.turn(), monitor.turn():
            pass
        a.step()
    with monitor.turn():
        pass
    assert monitor.flush(5)
    # The inner ones end first.
    assert [record["concurrency"] for record in inbox.records] == [3, 3, 3, 1]


# Suspension.


def test_a_sleep_of_the_device_is_told_and_its_gaps_are_dropped(inbox: InboxServer) -> None:
    slept_ns = 0

    def now() -> Moment:
        real = moment()
        return real._replace(boot=real.boot + slept_ns)

    link = Link(tick_s=600, moment=now, socket_path=lambda: inbox.path)
    monitor = DecodeMonitor("chat", engine="toy", link=link)
    with monitor.turn(prompt_tokens=1) as turn:
        for token in turn.watch(iter(range(10))):
            if token == 5:
                slept_ns = 3_000_000_000
    record = only_record(monitor, inbox)
    assert abs(record["suspended_us"] - 3_000_000) < 50_000
    assert record["duration_us"] < 2_000_000  # awake
    assert record["itl"] == [] and record["steps"] == 10
    assert all(gap is None for gap, _ in inbox.of("progress")[-1]["steps"])


def test_a_thread_that_waits_between_the_clocks_is_not_a_sleep(inbox: InboxServer) -> None:
    calls = itertools.count()

    def now() -> Moment:
        real = moment()
        # Every second reading lost the interpreter for 80 ms on one side of the boot clock.
        lost = 80_000_000 if next(calls) % 2 else 0
        return real._replace(before=real.before - lost)

    link = Link(tick_s=600, moment=now, socket_path=lambda: inbox.path)
    monitor = DecodeMonitor("chat", engine="toy", link=link)
    with monitor.turn(prompt_tokens=1) as turn:
        list(turn.watch(iter(range(10))))
    record = only_record(monitor, inbox)
    assert record["suspended_us"] == 0 and sketches(record)[1].n == 2


# It never hurts.


def test_what_the_application_gets_wrong_is_logged_once_and_never_raised(
    monitor: DecodeMonitor, inbox: InboxServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("the secret prompt")

    def raises(chunk: str) -> int:
        raise RuntimeError("the secret prompt " + chunk)

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with monitor.session(Odd()).turn(
                prompt_tokens="the secret prompt",  # type: ignore[arg-type]
                cached_tokens=-1,
                accepted_at=1 << 62,
            ) as turn:
                assert list(turn.watch(iter("ab"), tokens=raises)) == ["a", "b"]
                assert list(turn.watch(iter("c"), tokens=lambda chunk: -3)) == ["c"]
                assert list(turn.watch(iter("d"), tokens=lambda chunk: None)) == ["d"]  # type: ignore[arg-type,return-value]
                turn.step("the secret prompt")  # type: ignore[arg-type]
                turn.report(output_tokens=1.5, ending="the end")  # type: ignore[arg-type]
            turn.report(ending="complete")
    assert monitor.flush(5)
    for record in inbox.records:
        assert (record["output_tokens"], record["token_source"]) == (5, "counted")
        assert "prompt_tokens" not in record and "cached_tokens" not in record
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said)) == 9
    assert "secret" not in caplog.text


def test_a_log_handler_that_raises_does_not_reach_the_application(monitor: DecodeMonitor) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError

    logger = logging.getLogger("decodewatch.agent")
    handler = Broken()
    logger.addHandler(handler)
    try:
        with monitor.turn(prompt_tokens=-1) as turn:
            turn.step()
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "DecodeMonitor name: ''; accepted is text of 1 to 64 characters"),
        ({"engine": "x" * 65}, "DecodeMonitor engine: .*; accepted is text of 1 to 64"),
        ({"settings": {"a": [1]}}, "DecodeMonitor settings: .*; accepted is a finite number"),
        ({"model": "m.gguf"}, "model: 'm.gguf'; accepted is a ModelSpec"),
    ],
)
def test_a_monitor_that_no_agent_would_take_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        DecodeMonitor(**{"name": "chat", "engine": "toy", **arguments})


def test_the_agent_hears_what_decodes(inbox: InboxServer) -> None:
    monitor = DecodeMonitor(
        "chat",
        engine="toy",
        engine_version="1.2",
        model=ModelSpec(name="small", layers=2),
        settings={"threads": 2, "flash": True},
        link=Link(socket_path=lambda: inbox.path),
    )
    list(monitor.watch(iter("ab")))
    assert monitor.flush(5)
    (hello,) = inbox.of("hello")
    assert hello["v"] == 1 and hello["name"] == "chat" and hello["engine"] == "toy"
    assert hello["engine_version"] == "1.2" and hello["settings"] == {"threads": 2, "flash": True}
    assert ModelSpec.from_json(hello["model"]) == ModelSpec(name="small", layers=2)


def cost_ns(loop: Callable[[], object], count: int) -> float:
    start = time.perf_counter_ns()
    loop()
    return (time.perf_counter_ns() - start) / count


def test_a_step_costs_little_more_than_a_timestamp_and_an_append(tmp_path: Path) -> None:
    """A loose bound, for noisy machines; benchmarks/wrapper_cost.py has the exact figure."""
    count = 5_000
    link = Link(tick_s=600, socket_path=lambda: tmp_path / "nobody")
    monitor = DecodeMonitor("chat", engine="toy", link=link)

    def tokens() -> Iterator[int]:
        yield from range(count)

    def bare() -> None:
        for _ in tokens():
            pass

    def by_hand() -> None:
        stamps = []
        for _ in tokens():
            stamps.append(time.monotonic_ns())  # noqa: PERF401  # as a person would

    ratios = []
    for _ in range(30):
        with monitor.turn() as turn:

            def watched(turn: Turn = turn) -> None:
                for _ in turn.watch(tokens()):
                    pass

            alone, hand, ours = (cost_ns(loop, count) for loop in (bare, by_hand, watched))
        ratios.append((ours - alone) / (hand - alone))
        assert not monitor.flush(0.03)  # the link's thread has taken the steps in
    assert statistics.median(ratios) < 2.5
