"""The agent's main loop: one thread that owns everything but the network client's own thread."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from decodewatch.agent import inbox as inboxes
from decodewatch.agent.hardware import board as boards
from decodewatch.agent.hardware.board import Board
from decodewatch.agent.hardware.watch import DeviceWatch
from decodewatch.agent.identity import ClockReader, Identity
from decodewatch.agent.inbox import Inbox
from decodewatch.agent.pending import Pending
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes.gpu_memory import GpuMemory
from decodewatch.agent.runtimes.runtimes import Runtimes
from decodewatch.agent.sampler import Sampler
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import Source
from decodewatch.agent.spool.spool import Spool, SpoolError
from decodewatch.agent.throttle import ThrottleWatch
from decodewatch.agent.uplink import Uplink
from decodewatch.shared import __version__, logs
from decodewatch.shared.clock import boot_us, wall_us
from decodewatch.shared.ids import uuid7
from decodewatch.shared.lifecycle import Stop, notify
from decodewatch.shared.records import Event, Scalar

if TYPE_CHECKING:
    from decodewatch.agent.inbox_http import HttpInbox
    from decodewatch.agent.scrape.scraper import Scraper

log = logs.get(__name__)

SPOOL_FILE: Final = "spool.db"
STEP_US: Final = 1_000_000
"""The wall clock stepped where it moved by more than this against the boot clock in one tick."""
_SECOND_US: Final = 1_000_000
_STOP_S: Final = 3.0  # of the 5 s within which a process stops; the rest is for the spool


class Wake:
    """A pipe that wakes the main loop from another thread or a signal handler."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._taken = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        selector.register(self._read, selectors.EVENT_READ, self._drain)

    def set(self) -> None:
        """Wake the loop."""
        try:
            os.write(self._write, b"w")
        except (BlockingIOError, InterruptedError):
            pass  # it is full of wakes that nobody has seen yet: one more says nothing new

    def taken(self) -> bool:
        """Whether somebody woke the loop since the last call."""
        taken, self._taken = self._taken, False
        return taken

    def _drain(self, mask: int) -> None:
        self._taken = True
        try:
            while len(os.read(self._read, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass  # emptied

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)


class _Watchdog:
    """Tells systemd, where it asks for that, that the loop still turns."""

    def __init__(self) -> None:
        asked = os.environ.get("WATCHDOG_USEC", "")
        ours = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
        self._every = int(asked) / 2 / _SECOND_US if asked.isdecimal() and ours else None
        self._last = float("-inf")

    def tick(self) -> None:
        """A sign of life, when one is due."""
        now = time.monotonic()
        if self._every is not None and now - self._last >= self._every:
            self._last = now
            notify("WATCHDOG=1")


class Listener(NamedTuple):
    """The inbox's listening socket; `path` is that of one which the agent made and removes."""

    channel: socket.socket
    path: Path | None

    def close(self) -> None:
        """Close it, and remove what the agent made."""
        self.channel.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def open_listener(settings: AgentSettings) -> Listener:
    """The socket that systemd passed, else one at the set path. Raises AgentError."""
    passed = inboxes.inherited()
    if passed is not None:
        return Listener(passed, None)
    path = settings.socket_path()
    return Listener(inboxes.listen(path, int(settings.socket_mode, 8)), path)


def _open_http(settings: AgentSettings) -> "Callable[..., HttpInbox] | None":
    """What makes the inbox over HTTP, its port and token being good; None where it is off.

    Raises SettingsError and AgentError.
    """
    if not settings.inbox_http_port or settings.inbox_http_token_file is None:
        return None
    # Not at the top: most devices do without.
    from decodewatch.agent import inbox_http

    token = inbox_http.read_token(settings.inbox_http_token_file)
    listener = inbox_http.listen(settings.inbox_http_port)
    return partial(inbox_http.HttpInbox, listener, token)


def _open_scraper(settings: AgentSettings) -> "Callable[..., Scraper] | None":
    """What makes the scraper, its servers and key being good; None where there is none to scrape.

    Raises SettingsError.
    """
    if not settings.scrape:
        return None
    # Not at the top: most devices do without.
    from decodewatch.agent.scrape import targets
    from decodewatch.agent.scrape.scraper import Scraper

    return partial(
        Scraper,
        targets.targets(settings.scrape),
        interval_us=round(settings.scrape_interval_s * _SECOND_US),
        timeout_us=round(settings.scrape_timeout_s * _SECOND_US),
        key=targets.read_key(settings.scrape_key_file),
    )


class Ticks:
    """Deadlines at a fixed interval of the boot clock: no drift, and none made up for later."""

    def __init__(self, interval_us: int, now_us: int) -> None:
        self._interval = interval_us
        self.next_us = now_us + interval_us

    def due(self, now_us: int) -> bool:
        """Whether a tick is due; if so, the next one lies in the future."""
        if now_us < self.next_us:
            return False
        missed = (now_us - self.next_us) // self._interval
        self.next_us += (missed + 1) * self._interval
        return True


class StepWatch:
    """Notices that the wall clock stepped: an operator, or NTP after a boot without a clock."""

    def __init__(self) -> None:
        self._offset = wall_us() - boot_us()

    def step_us(self) -> int | None:
        """By how much the wall clock moved against the boot clock since the last call, if it
        stepped."""
        offset = wall_us() - boot_us()
        moved, self._offset = offset - self._offset, offset
        return moved if abs(moved) > STEP_US else None


class Service:
    """Joins the parts: readings and messages become records, records go into the spool."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        boot: str,
        listener: Listener,
        *,
        sources: Sequence[Source],
        clock: ClockReader,
        board: Board | None = None,
    ) -> None:
        """`board` is what the device is, that of this machine unless given.

        Raises SettingsError and AgentError; nothing runs before `run`.
        """
        now = boot_us()
        scraper = _open_scraper(settings)
        door = _open_http(settings)
        self._settings = settings
        self._clock = clock
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._wake = Wake(self._selector)
        self.stop = Stop(self._wake.set)
        self._spool = Spool.open(
            settings.state() / SPOOL_FILE,
            device=identity.device,
            boot=boot,
            limit_bytes=settings.spool_limit_bytes,
            clock=clock.read,
        )
        self._pending = Pending(self._spool.append, settings.pending_limit_bytes)
        self._sampler = Sampler(sources, now, self._source_failed)
        interval_us = round(settings.sample_interval_s * _SECOND_US)
        self._throttle = ThrottleWatch(self._event, interval_us)
        self._phases = Phases(now, interval_us)
        self._runtimes = Runtimes(
            identity,
            boot,
            self._pending,
            self._sampler.read_oom_kills,
            self._phases,
            self._throttle.state_at,
            silence_us=round(settings.turn_silence_s * _SECOND_US),
            gpu_bytes=GpuMemory(sources),
        )
        self._inbox = Inbox(listener.channel, self._selector, self._runtimes)
        self._http = None if door is None else door(self._selector, self._runtimes)
        self._scraper = (
            None if scraper is None else scraper(self._selector, self._runtimes, self._event, now)
        )
        self._uplink = Uplink(
            settings,
            device=identity.device,
            agent_version=__version__,
            boot=boot,
            spool=self._spool,
            wake=self._wake.set,
            clock=clock.read,
        )
        self._uplink_at = 0
        self._aside = self._spool.set_aside
        self._removals = self._spool.removals
        self._device = DeviceWatch(
            board or boards.read(release=boards.kernel_release()),
            settings.state(),
            identity.kind,
            now,
        )
        self._ticks = Ticks(round(settings.sample_interval_s * _SECOND_US), now)
        self._steps = StepWatch()
        self._watchdog = _Watchdog()
        self._event("agent_started", self._started(identity))
        if identity.previous is not None:
            self._event(
                "identity_changed",
                {"previous": identity.previous, "identified_by": identity.kind},
            )

    def run(self) -> None:
        """Run until stopped; everything that was heard and read is then in the spool.

        Raises SettingsError where a password, certificate or key file cannot be used.
        """
        self.stop.install()
        try:
            self._commit(boot_us())
            self._uplink.start()
            notify("READY=1")
            log.info("agent runs", inbox=self._listener.path or "passed by systemd")
            while not self.stop.is_set():
                self._loop_once()
        finally:
            notify("STOPPING=1")
            self._shut_down()

    def _loop_once(self) -> None:
        for key, mask in self._selector.select(self._seconds_to_wait()):
            dispatch: Callable[[int], None] = key.data
            dispatch(mask)
        now = boot_us()
        if self._ticks.due(now):
            self._tick(now)
        elif self._runtimes.look_in_us(now) is not None:
            self._runtimes.look(now)
        # Once a round: turns that arrived together share one transaction.
        if self._pending.urgent:
            self._commit(now)
        if self._http is not None:
            self._http.tick()
        if self._scraper is not None:
            self._scraper.look(now)
        if self._wake.taken() or now >= self._uplink_at:
            self._uplink_at = boot_us() + round(self._uplink.tick() * _SECOND_US)

    def _seconds_to_wait(self) -> float:
        now = boot_us()
        waits = (
            self._ticks.next_us - now,
            self._uplink_at - now,
            self._pending.retry_in_us(now),
            self._runtimes.look_in_us(now),
            None if self._http is None else self._http.wait_us(),
            None if self._scraper is None else self._scraper.due_in_us(now),
        )
        return max(min(wait for wait in waits if wait is not None), 0) / _SECOND_US

    def _tick(self, now: int) -> None:
        self._read(now)
        self._runtimes.tick(now, self._sampler.oom_kills)
        self._phases.read(self._sampler.readings, now)
        for kind, data in self._device.look(now, self._sampler.readings):
            self._event(kind, data)
        step = self._steps.step_us()
        if step is not None:
            synchronised = self._clock.read().synchronised
            self._event("clock_stepped", {"step_us": step, "synchronised": synchronised})
            log.warning("wall clock stepped", step_s=step / _SECOND_US, synchronised=synchronised)
        busy = self._runtimes.busy(now) or (self._scraper is not None and self._scraper.busy)
        settings = self._settings
        interval_s = settings.report_interval_s if busy else settings.idle_interval_s
        # Half a tick early rather than half a tick late: ticks and intervals share no origin.
        slack_us = round(settings.sample_interval_s * _SECOND_US) // 2
        if now - self._sampler.since >= round(interval_s * _SECOND_US) - slack_us:
            self._close_system_sample(now)
            self._runtimes.close_interval(now)
            self._commit(now)
        elif self._pending.soon:
            self._commit(now)
        self._watchdog.tick()

    def _read(self, now: int) -> None:
        self._sampler.tick(now)
        self._sampler.conclude(self._throttle.see(self._sampler.readings, now))
        if self._scraper is not None:
            self._sampler.conclude(self._scraper.tick(now))

    def _close_system_sample(self, now: int, *, last: bool = False) -> None:
        sample = self._sampler.close(now)
        if sample is not None:
            self._pending.add(replace(sample, phases=self._phases.close(last=last)))

    def _commit(self, now: int, *, last: bool = False) -> None:
        dropped = self._pending.dropped
        try:
            for event in self._spool.evictions():
                self._pending.add(event)
        except SpoolError as error:
            log.error("evictions not read", every=60, reason=str(error))
        if self._pending.commit(now, last=last):
            self._uplink_at = 0
            if dropped:
                self._pending.dropped -= dropped
                self._event("records_dropped", {"records": dropped})
        if self._spool.removals != self._removals:
            self._removals = self._spool.removals
            self._event("spool_removed", {})
        if self._spool.set_aside != self._aside:
            self._aside = self._spool.set_aside
            self._event("spool_set_aside", {"name": _name(self._aside)})

    def _event(self, kind: str, data: dict[str, Scalar]) -> None:
        self._pending.add(Event(uuid7(), boot_us(), kind, data=data), urgent=True)

    def _source_failed(self, source: str, fault: str) -> None:
        self._event("source_failed", {"source": source, "fault": fault})

    def _started(self, identity: Identity) -> dict[str, Scalar]:
        return {
            "version": __version__,
            "previous_stream": self._spool.previous,
            "spool_set_aside": _name(self._aside),
            "identity_made": identity.made,
        }

    def _shut_down(self) -> None:
        """Nothing that was heard or read is lost: into the spool, and out where there is time."""
        self._inbox.close()
        if self._http is not None:
            self._http.close()
        if self._scraper is not None:
            self._scraper.close()
        now = boot_us()
        # What was decoded since the last tick is in the windows, and so is it in the phases.
        self._read(now)
        self._phases.read(self._sampler.readings, now)
        self._close_system_sample(now, last=True)
        self._runtimes.stop(now)
        self._commit(now, last=True)
        self._inbox.disconnect()
        if self._http is not None:
            self._http.disconnect()
        self._uplink.stop(_STOP_S)
        self._spool.close()
        self._sampler.stop()
        self._selector.close()
        self._wake.close()
        log.info("agent stopped")


def _name(path: Path | None) -> str | None:
    return None if path is None else path.name
