"""The registered runtimes: what applications say over the inbox, and how each of them ends."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from decodewatch.agent.identity import Identity
from decodewatch.agent.inbox import DRAIN_S, Connection
from decodewatch.agent.messages import (
    VERSION,
    Begin,
    Bye,
    Ended,
    Forget,
    Happened,
    Hello,
    Message,
    Progress,
    Refusal,
    event_data,
    session_of,
    turn_record,
)
from decodewatch.agent.pending import Pending
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes import others
from decodewatch.agent.runtimes.allowance import Allowance
from decodewatch.agent.runtimes.live import Emit, LiveRuntime
from decodewatch.agent.runtimes.oom import KillCounter
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.runtimes.tellers import Teller
from decodewatch.agent.sources.kit.base import Reading
from decodewatch.shared import logs
from decodewatch.shared.clock import boot_us
from decodewatch.shared.ids import uuid7
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Event, Runtime, Scalar

log = logs.get(__name__)

MAX_RUNTIMES: Final = 128
MAX_REMEMBERED: Final = 4096
"""Turns that the agent knows to have stored; one that comes again is acknowledged, not stored."""
LINGER_US: Final = 5_000_000
"""So long after `bye` a process may still live, or connect again, before its runtime has ended."""
EVENTS_AT_ONCE: Final = 12
EVENTS_EVERY_US: Final = 60_000_000
"""Of the events that applications report: so many at once, and one more in each such time."""
_LOG_EVERY_S: Final = 1.0
# A process whose connection has ended is usually a few milliseconds from its own end.
_HURRY_US: Final = 1_000_000
_HURRY_STEP_US: Final = 50_000


class Runtimes:
    """Handles the inbox's messages (`inbox.Handler`) and follows every process that said hello."""

    def __init__(
        self,
        identity: Identity,
        boot: str,
        pending: Pending,
        oom_kills: Callable[[int], int | None],
        phases: Phases,
        throttle_at: Callable[[int], str],
        *,
        silence_us: int,
        root: Path = Path("/"),
        gpu_bytes: Callable[[int], int | None] | None = None,
    ) -> None:
        """`oom_kills` reads the device's count of OOM kills now; `throttle_at` says the throttle
        state at a moment of the boot clock; `gpu_bytes` is what a process has on the GPU, by its
        pid."""
        self._identity = identity
        self._boot = boot
        self._pending = pending
        self._emit: Emit = pending.add
        self._oom_kills = oom_kills
        self._phases = phases
        self._throttle_at = throttle_at
        self._kills = KillCounter()
        self._silence_us = silence_us
        self._root = root
        self._gpu_bytes = gpu_bytes
        self._live: dict[str, LiveRuntime] = {}
        self._of: dict[Connection, LiveRuntime] = {}
        self._byes: set[Connection] = set()  # of these, the ones that said bye
        # Those that speak for another process: what they say of themselves is not about it.
        self._speakers: set[Connection] = set()
        self._tellers: dict[Connection, Teller] = {}
        self._outlived: dict[Connection, str] = {}  # of these, whose runtime has ended: its id
        self._events = Allowance(EVENTS_AT_ONCE, EVENTS_EVERY_US, boot_us())
        self._done: OrderedDict[str, None] = OrderedDict()
        self._hurry_until = 0

    # What applications say.

    def message(self, connection: Connection, message: Message) -> None:
        """Take one message. Raises Refusal."""
        now = boot_us()
        if isinstance(message, Hello):
            self._hello(connection, message, now)
            return
        live = self._of.get(connection)
        if live is None and connection in self._outlived:
            self._heard_late(connection, message, now)
            return
        if live is None:
            raise Refusal(f"{message.TYPE}: before hello; accepted is hello first")
        if isinstance(message, Begin):
            if message.turn not in self._done:
                live.begin(message, self._session(message.session), now)
                live.told(message.turn, self._tellers[connection])
        elif isinstance(message, Progress):
            if message.turn not in self._done:
                live.progress(message, now)
                live.told(message.turn, self._tellers[connection])
        elif isinstance(message, Ended):
            self._ended(connection, live.id, live, message, now)
        elif isinstance(message, Forget):
            live.forget(message.turn, now)
        elif isinstance(message, Happened):
            live.last_sign_us = now
            self._happened(live, message, now)
        else:
            assert isinstance(message, Bye)
            live.last_sign_us = now
            if connection not in self._speakers:
                self._byes.add(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        now = boot_us()
        teller = self._tellers.pop(connection, None)
        if teller is not None:
            teller.leave(now)
            if teller.gone_us is not None:
                self._hurry_until = now + _HURRY_US
        said_bye = connection in self._byes
        self._byes.discard(connection)
        self._speakers.discard(connection)
        self._outlived.pop(connection, None)
        live = self._of.pop(connection, None)
        # A process may have several connections; what counts is how the last of them closes.
        if live is None or live in self._of.values():
            return
        if said_bye:
            live.leave(now)
        if live.alive() is False:
            self._end(live, now)

    def _hello(self, connection: Connection, hello: Hello, now: int) -> None:
        pid = connection.pid or hello.pid
        if pid is None:
            raise Refusal(
                "hello.pid: missing; accepted is the process's own pid, because nothing tells the "
                "agent which process this is"
            )
        of_pid = None if hello.of_pid == connection.pid else hello.of_pid
        other = self._other(connection, of_pid)
        pid = other or pid
        reader = None
        if connection.pid:
            reader = ProcessReader(pid, self._root, gpu_bytes=self._gpu_bytes)
        started = reader.identity() if reader is not None else "elsewhere"
        life = f"{self._boot}:{pid}:{started}"
        if of_pid is not None and other is None:
            # Its own memory is not the runtime's.
            life += f":for:{hello.name}:{of_pid}"
            if reader is not None:
                reader.close()
            reader = None
        name = hashlib.sha256(life.encode()).hexdigest()[:16]
        record = Runtime(
            id=name,
            t=now,
            pid=pid,
            name=hello.name,
            engine=hello.engine,
            engine_version=hello.engine_version,
            model=hello.model,
            settings=hello.settings,
        )
        live = self._live.get(name)
        if live is not None:
            if reader is not None:
                reader.close()
            live.come_back(now)
            live.describe(record)
        else:
            live = self._register(record, reader, now)
        self._of[connection] = live
        if connection not in self._tellers:
            self._tellers[connection] = Teller(connection.pid, self._root, lasts=connection.lasts)
        self._outlived.pop(connection, None)
        self._speakers.discard(connection)
        if other is not None:
            self._speakers.add(connection)
        connection.send(
            {"type": "welcome", "v": VERSION, "device": self._identity.device, "runtime": name}
        )

    def _other(self, connection: Connection, of_pid: int | None) -> int | None:
        """The process that a connection speaks for, where it may; None: for itself, or for one that
        is not known."""
        if not of_pid:
            return None
        why = "the agent does not see the process that says so"
        if connection.pid:
            why = others.objection(connection.pid, connection.uid, of_pid, self._root) or ""
        if not why:
            return of_pid
        log.warning(
            "a runtime's process is not known",
            every=_LOG_EVERY_S,
            pid=connection.pid,
            of_pid=of_pid,
            reason=why,
        )
        return None

    def _register(self, record: Runtime, reader: ProcessReader | None, now: int) -> LiveRuntime:
        if len(self._live) >= MAX_RUNTIMES and not self._make_place(now):
            if reader is not None:
                reader.close()
            raise Refusal(f"hello: {MAX_RUNTIMES} runtimes are registered; accepted are no more")
        live = LiveRuntime(
            record, reader, self._emit, self._phases, self._silence_us, now, self._throttle_at
        )
        self._live[record.id] = live
        self._emit(record, soon=True)
        data: dict[str, Scalar] = {"pid": record.pid, "name": record.name, "engine": record.engine}
        # An agent that starts again hears hello again: the same start has the same id.
        event = hashlib.sha256(f"runtime_started:{record.id}".encode()).hexdigest()[:32]
        self._emit(Event(event, now, "runtime_started", record.id, None, data), soon=True)
        log.info(
            "runtime registered",
            every=_LOG_EVERY_S,
            runtime=record.id,
            pid=record.pid,
            engine=record.engine,
        )
        return live

    def _make_place(self, now: int) -> bool:
        """Forget the runtime that was not heard of for longest, of those that nothing is due of."""
        connected = list(self._of.values())
        idle = [one for one in self._live.values() if not one.turns and one not in connected]
        if not idle:
            return False
        self._forget(min(idle, key=lambda one: one.last_sign_us), now)
        return True

    def _ended(
        self,
        connection: Connection,
        runtime: str,
        live: LiveRuntime | None,
        message: Ended,
        now: int,
    ) -> None:
        """`live` is None where the runtime has ended."""
        session = self._session(session_of(message.record))
        turn = turn_record(message.record, runtime, session, now)

        def stored() -> None:
            self._remember(turn.id)
            connection.send({"type": "stored", "turn": turn.id})

        if turn.id in self._done:
            connection.send({"type": "stored", "turn": turn.id})
        elif not self._pending.waits(turn.id, stored, connection.close):
            for number, told in enumerate(message.events or ()):
                # A turn may come again, to another agent too: its events have the same ids then.
                name = hashlib.sha256(f"{turn.id}:{number}:{told.event}".encode()).hexdigest()[:32]
                t = min(told.t, now)
                self._emit(Event(name, t, told.event, runtime, turn.id, told.data))
            turn = turn if live is None else live.end_turn(turn, now)
            self._pending.add_turn(turn, stored, connection.close)

    def _heard_late(self, connection: Connection, message: Message, now: int) -> None:
        """A message about a runtime that has ended, from the process that speaks for it."""
        if isinstance(message, Ended):
            self._ended(connection, self._outlived[connection], None, message, now)
        elif isinstance(message, Begin):
            raise Refusal("begin: the runtime has ended; accepted is hello first", message.turn)

    def _happened(self, live: LiveRuntime, message: Happened, now: int) -> None:
        data = event_data(message)
        if not self._events.take(now):
            return
        if self._events.untold:
            data["untold"] = self._events.untold
            self._events.untold = 0
        event = Event(uuid7(), message.t, message.event, live.id, message.turn, data)
        self._emit(event, soon=True)

    def _session(self, name: str | None) -> str | None:
        return None if name is None else self._identity.session(name)

    def _remember(self, turn: str) -> None:
        self._done[turn] = None
        self._done.move_to_end(turn)
        if len(self._done) > MAX_REMEMBERED:
            self._done.popitem(last=False)

    # What the agent found by itself.

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
        """The id of the runtime that is the process `pid`, which the agent found to be a server.

        What the process says of itself over the inbox stands; the rest is filled in. None where the
        process is gone, or there is no place for one more runtime.
        """
        live = next(
            (one for one in self._live.values() if one.record.pid == pid and one.alive()), None
        )
        if live is None:
            reader = ProcessReader(pid, self._root, gpu_bytes=self._gpu_bytes)
            life = f"{self._boot}:{pid}:{reader.identity()}"
            runtime = hashlib.sha256(life.encode()).hexdigest()[:16]
            record = Runtime(runtime, now_us, pid, name, engine, version, model, settings)
            if not reader.alive():
                reader.close()
                return None
            try:
                live = self._register(record, reader, now_us)
            except Refusal as refusal:
                log.warning("server not followed", every=60, pid=pid, reason=str(refusal))
                return None
        live.last_sign_us = now_us
        live.found(version, model, settings)
        return live.id

    def see(self, runtime: str, readings: Iterable[Reading]) -> bool:
        """Readings of a runtime that `follow` named; whether it is still followed."""
        live = self._live.get(runtime)
        if live is None:
            return False
        live.see(readings)
        return True

    # What the clock brings.

    def tick(self, now_us: int, oom_kills: int | None) -> None:
        """Read every runtime's process once, and see which have ended."""
        self._kills.see(oom_kills, now_us)
        for live in self._live.values():
            live.tick(now_us)
        self.look(now_us)
        courses = [course for live in self._live.values() for course in live.courses(now_us)]
        self._phases.keep(courses, now_us)

    def look(self, now_us: int) -> None:
        """End the runtimes whose processes are gone, or of which nothing was heard for long."""
        for live in list(self._live.values()):
            alive = live.alive()
            if alive is False:
                # What it said last may still lie in its socket.
                until = time.monotonic() + DRAIN_S
                for connection in [one for one, its in self._of.items() if its is live]:
                    connection.drain(until)
                if live.id in self._live:
                    self._end(live, now_us)
            elif live.left_us is not None and now_us - live.left_us >= LINGER_US:
                self._end(live, now_us)
            elif now_us - live.last_sign_us >= self._silence_us and live not in self._of.values():
                self._silent(live, alive, now_us)
            else:
                self._lose_orphaned(live, now_us)

    def look_in_us(self, now_us: int) -> int | None:
        """Microseconds until `look` should be called before the next tick; None: at the tick."""
        return _HURRY_STEP_US if now_us < self._hurry_until else None

    def busy(self, now_us: int) -> bool:
        """Whether any runtime decodes, or ended a turn whose floor is being read."""
        return any(live.busy(now_us) for live in self._live.values())

    def close_interval(self, now_us: int) -> None:
        """Hand over the windows and samples of the interval that ends now."""
        for live in self._live.values():
            live.close_interval(now_us)

    def stop(self, now_us: int) -> None:
        """The agent stops; the runtimes go on without it, but for those that have left."""
        for live in list(self._live.values()):
            if live.left_us is None:
                live.end(now_us)
            else:
                self._end(live, now_us)
        self._live.clear()
        self._of.clear()

    # How a runtime ends.

    def _silent(self, live: LiveRuntime, alive: bool | None, now: int) -> None:
        """Not connected, and not heard of for long: its turns are lost; it is, too, unless seen."""
        had_turns = bool(live.turns)
        if had_turns:
            self._lose_turns(live, now, "silent", {})
        if alive is not None:
            return
        if had_turns:
            live.end(now)
            del self._live[live.id]
        else:
            self._forget(live, now)

    def _forget(self, live: LiveRuntime, now: int) -> None:
        """A runtime without open turns of which nothing is heard: no longer followed."""
        live.end(now)
        del self._live[live.id]
        self._ended_well(live, now, "exit" if live.said_bye else "silent")

    def _end(self, live: LiveRuntime, now: int) -> None:
        live.end(now, exited=True)
        del self._live[live.id]
        for connection in [one for one, its in self._of.items() if its is live]:
            del self._of[connection]
            if connection in self._speakers:
                self._outlived[connection] = live.id
        evidence, kills = self._oom_evidence(live, now)
        cause = "exit" if live.said_bye else "oom_kill" if evidence else "unknown"
        facts: dict[str, Scalar] = {
            "limit_bytes": live.limit_bytes,
            "oom_kills": kills,
            "evidence": evidence,
        }
        if live.said_bye:
            live.let_stale_go()
        if live.turns:
            self._lose_turns(live, now, cause, facts)
        elif cause == "oom_kill":
            data: dict[str, Scalar] = {"cause": cause, "said_bye": live.said_bye, **facts}
            self._event("runtime_vanished", live.id, now, data)
        else:
            self._ended_well(live, now, cause)
        log.info(
            "runtime ended",
            every=_LOG_EVERY_S,
            runtime=live.id,
            pid=live.record.pid,
            cause=cause,
        )

    def _ended_well(self, live: LiveRuntime, now: int, cause: str) -> None:
        """Report the end of a runtime that has no turn open."""
        data: dict[str, Scalar] = {"cause": cause, "said_bye": live.said_bye}
        if live.turns_stale:
            data["turns_stale"] = live.turns_stale
        self._emit(Event(uuid7(), now, "runtime_ended", live.id, None, data), soon=True)

    def _oom_evidence(self, live: LiveRuntime, now: int) -> tuple[str | None, int | None]:
        """Which counter says that the kernel killed it, and how many kills that counter shows.

        The cgroup's count is of that cgroup alone and is believed where it can be read; the
        device's count is of every process, and each kill in it is claimed by one death only.
        """
        self._kills.see(self._oom_kills(now), now)
        counter, name = (live.kills, "cgroup") if live.kills.known else (self._kills, "vmstat")
        kills = counter.kills(now) if counter.known else None
        if not counter.claim(now):
            return None, kills
        if counter is not self._kills:
            self._kills.claim(now)
        return name, kills

    def _lose_turns(
        self, live: LiveRuntime, now: int, cause: str, facts: dict[str, Scalar]
    ) -> None:
        """Report every open turn as lost, and the runtime as vanished in the last of them."""
        last = max(live.turns.values(), key=lambda turn: (turn.last_sign_us, turn.t))
        for turn in live.turns.values():
            end = turn.last_sign_us if cause == "silent" else now
            self._phases.end(turn.course, end, now)
            self._emit(turn.lost(live.id, end), urgent=True)
            self._remember(turn.id)
        data: dict[str, Scalar] = {
            "cause": cause,
            "said_bye": live.said_bye,
            "phase": "decode" if last.steps else "prefill",
            "depth": last.depth,
            "tokens": last.tokens,
            "prompt_tokens": last.prompt_tokens,
            "turns_lost": len(live.turns),
            "turns_stale": live.turns_stale,
            "memory_bytes": last.memory_last,
            "memory_peak_bytes": last.memory_peak,
            **facts,
        }
        self._event("runtime_vanished", live.id, now, data, last.id)
        live.turns.clear()

    def _lose_orphaned(self, live: LiveRuntime, now: int) -> None:
        """Report the turns as lost that only a process told of which is gone, such as a proxy. The
        runtime itself goes on."""
        turns = live.orphaned()
        for turn in turns:
            assert turn.teller is not None and turn.teller.gone_us is not None
            end = turn.teller.gone_us
            self._phases.end(turn.course, end, now)
            self._emit(turn.lost(live.id, end), urgent=True)
            self._remember(turn.id)
            del live.turns[turn.id]
        if turns:
            log.warning(
                "turns lost: who told of them is gone",
                every=_LOG_EVERY_S,
                runtime=live.id,
                turns=len(turns),
            )

    def _event(
        self, kind: str, runtime: str, now: int, data: dict[str, Scalar], turn: str | None = None
    ) -> None:
        self._emit(Event(uuid7(), now, kind, runtime, turn, data), urgent=True)
