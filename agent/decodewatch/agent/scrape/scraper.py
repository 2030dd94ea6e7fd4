"""Asks servers how they are, in the agent's main loop and without ever holding it up.

Each server is asked one question at a time, over a socket that does not block and with a deadline.
What a round found goes to the runtime that is the server's process, else to the system's sample
under the server's address: gauges at every tick until the next round has an end, counters once.
"""

import selectors
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from decodewatch.agent.runtimes import listening
from decodewatch.agent.runtimes.allowance import Allowance
from decodewatch.agent.runtimes.listening import Process
from decodewatch.agent.scrape import measurements as m
from decodewatch.agent.scrape.http import Answer, Fault, Get, Result, fault_of
from decodewatch.agent.scrape.kinds import Round, Said, ServerKind
from decodewatch.agent.scrape.llama_server import LlamaServer
from decodewatch.agent.scrape.spec import SpecReader
from decodewatch.agent.scrape.targets import Target
from decodewatch.agent.scrape.vllm import Vllm
from decodewatch.agent.sources.kit.base import Reading, read_as, unknown
from decodewatch.agent.sources.kit.files import read_once
from decodewatch.shared import logs
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

log = logs.get(__name__)

MEASUREMENTS: Final = tuple(
    {
        row.name: row for row in (*LlamaServer.measurements, *Vllm.measurements, *m.OF_SCRAPES)
    }.values()
)
"""The rows of the table of measurements that are servers'."""
_FIND_AGAIN_US: Final = 60_000_000
"""A process that was not found is looked for again so often: that reads all of /proc."""
_RARELY_US: Final = 1_000_000
"""Between the beginnings of two rounds at least: to ask holds a server up."""
_EVENTS_AT_ONCE: Final = 12
_EVENTS_EVERY_US: Final = 300_000_000
_EVERY_S: Final = 600.0
_MAX_COMMAND: Final = 64 * 1024
_NOTHING_SAID: Final = Said(None, {}, None, {})

Tell = Callable[[str, dict[str, Scalar]], None]


def _kinds() -> tuple[ServerKind, ...]:
    return LlamaServer(), Vllm()


class Followed(Protocol):
    """The runtimes of the agent."""

    def follow(
        self,
        pid: int,
        name: str,
        engine: str,
        now_us: int,
        *,
        version: str | None,
        model: ModelSpec | None,
        settings: Mapping[str, Scalar],
    ) -> str | None:
        """The id of the runtime that is the process; None where it cannot be followed."""
        ...

    def see(self, runtime: str, readings: Iterable[Reading]) -> bool:
        """Readings of a runtime; whether it is still followed."""
        ...


class Scraper:
    """All servers. The main loop calls `look` when a socket was ready or `due_in_us` has passed,
    and `tick` once a second."""

    def __init__(
        self,
        targets: Sequence[Target],
        selector: selectors.BaseSelector,
        runtimes: Followed,
        tell: Tell,
        now_us: int,
        *,
        interval_us: int,
        timeout_us: int,
        key: str | None = None,
        root: Path = Path("/"),
    ) -> None:
        """Each server is asked every `interval_us`; an answer has to be whole within `timeout_us`.
        `tell` takes an event."""
        events = Allowance(_EVENTS_AT_ONCE, _EVENTS_EVERY_US, now_us)

        def told(kind: str, data: dict[str, Scalar]) -> None:
            if events.take(self._now):
                tell(kind, data)

        def ask(target: Target, path: str) -> Get:
            return Get(selector, target, path, key, self._now + timeout_us)

        self._now = now_us

        self._runtimes = runtimes
        self._servers = [
            _Server(target, ask, runtimes, told, now_us, interval_us, root) for target in targets
        ]

    @property
    def busy(self) -> bool:
        """Whether any server worked on a request when it was last asked, or since then."""
        return any(server.busy for server in self._servers)

    def due_in_us(self, now_us: int) -> int:
        """Microseconds until `look` has something to do, if no socket is ready before."""
        return min(server.due_us for server in self._servers) - now_us

    def look(self, now_us: int) -> None:
        """Take the answers that have come, give up on those that are late, ask what is due."""
        self._now = now_us
        for server in self._servers:
            server.look(now_us)

    def tick(self, now_us: int) -> list[Reading]:
        """Hand the readings over; returns those of servers whose process is not known."""
        self._now = now_us
        left: list[Reading] = []
        for server in self._servers:
            left += server.tick(now_us)
        return left

    def close(self) -> None:
        """Give up what is being asked."""
        for server in self._servers:
            server.close()


class _Server:
    """One server: what is asked of it now, and what is known of it."""

    def __init__(
        self,
        target: Target,
        ask: Callable[[Target, str], Get],
        runtimes: Followed,
        tell: Tell,
        now_us: int,
        interval_us: int,
        root: Path,
    ) -> None:
        self.busy = False
        self._now = now_us
        self._target = target
        self._ask = ask
        self._runtimes = runtimes
        self._tell = tell
        self._interval = interval_us
        self._root = root
        self._next_us = now_us
        self._questions: Generator[str, Result, None] | None = None
        self._get: Get | None = None
        self._kind = self._set_kind()
        self._fault: Fault | None = None
        self._up = False  # whether the last round had a good end
        self._gauges: list[Reading] = []
        self._fresh: list[Reading] = []  # counters that were not handed over yet, in their order
        self._counted: dict[str, Reading] = {}  # the counters as they were last read
        self._scraped_us: int | None = None  # when the last good round ended
        self._skipped = 0
        self._advice: str | None = None  # that was told last
        self._process: Process | None = None
        self._last: Process | None = None  # the process that was known last
        self._command: list[str] = []
        self._find_us = now_us
        self._started: str | None = None
        self._runtime: str | None = None
        self._in_system = False  # whether the system's sample has had values of it
        self._said: Said | None = None
        self._read: Said | None = None  # of which the spec was made last
        self._reader: SpecReader | None = None
        self._model: ModelSpec | None = None

    def _set_kind(self) -> ServerKind | None:
        return next((kind for kind in _kinds() if kind.name == self._target.kind), None)

    @property
    def due_us(self) -> int:
        """When `look` has something to do, at the latest."""
        return self._next_us if self._get is None else self._get.deadline_us

    def look(self, now_us: int) -> None:
        """Go on with the round, or begin one that is due."""
        self._now = now_us
        if self._get is not None:
            self._get.late(now_us)
        elif now_us >= self._next_us:
            # Rounds that were missed (the device slept) are not made up for.
            missed = (now_us - self._next_us) // self._interval
            self._next_us += (missed + 1) * self._interval
            # One that lasted longer than the interval makes the next one no sooner than that.
            self._next_us = max(self._next_us, now_us + _RARELY_US)
            self._questions = self._round()
            self._go_on(None)
        while self._get is not None and self._get.result is not None:
            self._go_on(self._get.result)

    def close(self) -> None:
        """Give up what is being asked."""
        if self._get is not None:
            self._get.close()
        if self._questions is not None:
            self._questions.close()
        if self._reader is not None:
            self._reader.close()

    def _go_on(self, result: Result | None) -> None:
        self._get = None
        assert self._questions is not None
        try:
            path = next(self._questions) if result is None else self._questions.send(result)
            self._get = self._ask(self._target, path)
        except StopIteration:
            self._questions = None
        except Exception as error:
            # A fault of this program: it costs this round, and not the agent. Its text is not
            # logged: it may quote what the server answered.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "scrape failed",
                every=_EVERY_S,
                server=self._target.label,
                fault=type(error).__name__,
                where=f"{frame.filename}:{frame.lineno}",
            )
            self._questions = None
            self._failed(Fault("transient", "a fault of the agent"))

    # One round.

    def _round(self) -> Generator[str, Result, None]:
        if not self._up:
            # Answered at once by a server that loads its model or is busy, unlike the others.
            fault = fault_of((yield "/health"))
            if fault is not None and fault.reason not in ("denied", "unsupported"):
                self._failed(fault)
                return
        self._find(self._now)
        if self._kind is None:
            kind = yield from self._recognise()
            if isinstance(kind, Fault):
                self._failed(kind)
                return
            self._kind = kind
            log.info("server recognised", server=self._target.label, kind=kind.name)
        began = self._now
        found = yield from self._kind.ask(lambda: self._command, idle=not self.busy)
        if isinstance(found, Fault):
            self._failed(found)
            return
        self._succeeded(found, began, self._now)
        # Whose process is not known is no runtime, of which this would be told.
        if self._said is None and self._process is not None:
            said = yield from self._kind.describe(lambda: self._command)
            if isinstance(said, Said):
                self._said = said
        self._follow(self._now)

    def _recognise(self) -> Generator[str, Result, ServerKind | Fault]:
        answer = yield "/metrics"
        fault = fault_of(answer)
        if isinstance(answer, Answer) and fault is None:
            for kind in _kinds():
                if kind.recognise(answer.body):
                    return kind
            return Fault("unsupported", "/metrics is of no known server")
        if fault is not None and fault.reason != "unsupported":
            return fault
        answer = yield "/props"
        if isinstance(answer, Answer) and b'"default_generation_settings"' in answer.body:
            return LlamaServer()
        return fault_of(answer) or Fault("unsupported", "no known server")

    def _find(self, now: int) -> None:
        """The server's process, where it is not known or has ended."""
        if self._process is not None:
            if listening.lives(self._process, self._root):
                return
            self._find_us = now
        if now < self._find_us:
            return
        self._find_us = now + _FIND_AGAIN_US
        self._process = listening.find(self._target.ip, self._target.port, self._root)
        if self._process is None:
            self._command = []
            log.info("process of server not known", every=_EVERY_S, server=self._target.label)
            return
        content = read_once(self._root / "proc" / str(self._process.pid) / "cmdline", _MAX_COMMAND)
        raw = b"" if isinstance(content, str) else content
        self._command = raw.decode("utf-8", "replace").rstrip("\0").split("\0") if raw else []
        before, self._last = self._last, self._process
        if before not in (None, self._process):
            self._restarted()

    def _restarted(self) -> None:
        """Another life of the server: its counters began at 0, and it may be another model."""
        zeros = (replace(one, value=0) for one in self._counted.values())
        self._fresh += zeros
        if self._scraped_us is not None:
            self._fresh.append(read_as(m.SCRAPED_TIME, self._scraped_us, "absent"))
        self._counted = {}
        self._said = self._model = self._runtime = self._started = None
        if self._process is None:
            self._tell("server_restarted", {"server": self._target.label})

    def _succeeded(self, found: Round, began: int, now: int) -> None:
        names = (self._started, found.started)
        if None not in names and self._started != found.started:
            self._find_us, self._process = now, None
            self._find(now)
            if self._started is not None:  # not told by another process
                self._restarted()
        elif None in names and self._process is None and self._went_back(found):
            self._restarted()
        self._started = found.started or self._started
        self._skipped += found.skipped
        if found.advice not in (None, self._advice):
            log.warning(found.advice, server=self._target.label)
        self._advice = found.advice
        counters = [
            one for one in found.readings if one.measurement.kind == "counter" and one.known
        ]
        moved = any(
            one.key == m.OUTPUT_TOKENS.name
            and one.key in self._counted
            and one.value != self._counted[one.key].value
            for one in counters
        )
        self._fresh += counters
        self._fresh.append(read_as(m.SCRAPED_TIME, now, "absent"))
        self._fresh.append(read_as(m.SKIPPED_LINES, self._skipped, "absent"))
        self._counted = {one.key: one for one in counters}
        self._scraped_us = now
        # Those that are unknown are told at every tick, like gauges.
        self._gauges = [
            *(one for one in found.readings if one.measurement.kind == "gauge" or not one.known),
            read_as(m.ANSWER_TIME, now - began, "absent"),
        ]
        waiting = (m.RUNNING.name, m.WAITING.name)
        self.busy = moved or any(one.value for one in self._gauges if one.key in waiting)
        self._up, self._fault = True, None

    def _went_back(self, found: Round) -> bool:
        return any(
            one.value is not None
            and one.key in self._counted
            and one.value < (self._counted[one.key].value or 0)
            for one in found.readings
            if one.measurement.kind == "counter"
        )

    def _failed(self, fault: Fault) -> None:
        if self._fault is None or self._fault.reason != fault.reason:
            log.warning(
                "server not read",
                every=_EVERY_S,
                server=self._target.label,
                reason=fault.reason,
                fault=fault.word,
            )
            data: dict[str, Scalar] = {
                "server": self._target.label,
                "reason": fault.reason,
                "fault": fault.word,
            }
            self._tell("scrape_failed", data)
        self._up, self._fault = False, fault
        # One that was at work and does not answer in time is at work, most probably.
        self.busy = self.busy and fault.reason == "transient"
        if fault.reason == "absent":
            self._find_us = self._now  # whoever answers next is another process
        rows = (m.RUNNING,) if self._kind is None else self._kind.measurements
        self._gauges = [unknown(row, fault.reason) for row in rows]
        if fault.reason in ("implausible", "unsupported"):
            # Perhaps another kind of server took its place.
            self._kind = self._set_kind()

    # Where it goes.

    def tick(self, now_us: int) -> list[Reading]:
        """Hand the readings over; returns those that are of no runtime."""
        self._now = now_us
        self._make_spec(now_us)
        if self._process is not None and self._runtime is None and self._questions is not None:
            return []  # they wait until it is registered, at the end of this round
        readings, self._fresh = [*self._fresh, *self._gauges], []
        if self._runtime is not None and self._runtimes.see(self._runtime, readings):
            return []
        self._runtime = None
        if self._process is not None and self._fault is None:
            return []  # it has just ended, or could not be followed
        self._in_system = self._in_system or self._up
        if not self._in_system:
            # Of a runtime that is gone, or a server that never was: one word that it is not there.
            readings = [one for one in readings if one.measurement is m.RUNNING]
        return [replace(one, label=self._target.label) for one in readings]

    def _make_spec(self, now: int) -> None:
        """Begin to make the spec of what the server said, or take the one that was made."""
        if self._reader is not None and self._reader.poll(now):
            if self._reader.said is self._said:
                self._model = self._reader.spec
                self._follow(now)
            self._read, self._reader = self._reader.said, None
        said, process = self._said, self._process
        # The same words of another life may be of another file.
        if said is None or process is None or self._reader is not None:
            return
        if said is not self._read:
            self._reader = SpecReader(said, process.pid, self._root, now)

    def _follow(self, now: int) -> None:
        if self._process is None or self._kind is None:
            self._runtime = None
            return
        said = self._said or _NOTHING_SAID
        self._runtime = self._runtimes.follow(
            self._process.pid,
            self._kind.name,
            self._kind.engine,
            now,
            version=said.version,
            model=self._model,
            settings={"server": self._target.label, **said.settings},
        )
