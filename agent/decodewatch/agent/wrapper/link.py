"""The thread that carries turns from all monitors of a process to the agent.

The application's threads only put work into a queue and wake it. It is born at the first turn. Once
a second while turns are open it reads their stamps; while there is nothing to do it sleeps until
something happens. A child process starts without it, and without its parent's turns.
"""

import atexit
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.channel import Backlog, Channel
from decodewatch.agent.wrapper.course import Course
from decodewatch.agent.wrapper.paths import socket_path
from decodewatch.agent.wrapper.vitals import Moment, memory_bytes, moment

MOST_WORK: Final = 4096
"""Beginnings and ends of turns that may wait for the thread; more means that it does not run."""
EXIT_S: Final = 1.0
"""How long the end of the process waits for the agent's acknowledgements."""
SOON_S: Final = 1.0
"""No later than this is the next attempt to connect after a turn ended, or while flush waits."""

Work = Callable[[], None]


class Link:
    """The connections of a process to the agent. The program uses the one called LINK."""

    def __init__(
        self,
        *,
        tick_s: float = 1.0,
        moment: Callable[[], Moment] = moment,
        socket_path: Callable[[], Path] = socket_path,
    ) -> None:
        """`tick_s` is the time between two looks at the open turns; the rest is for tests."""
        self.moment = moment
        self._socket_path = socket_path
        self.epoch = 0
        self._tick_s = tick_s
        self._known: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._exit_registered = False
        self._reset()
        _links.add(self)

    def _reset(self) -> None:
        self._broken = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._work: deque[Work] = deque()
        # Both ends are made with the thread; the application writes a byte to wake it.
        self._waker: socket.socket | None = None
        self._sleeper: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        # From here on the thread's own.
        self._channels: dict[Channel, None] = {}
        self._registered: dict[Channel, tuple[socket.socket, int]] = {}
        self._backlog = Backlog()
        self._outlived: list[Course] = []  # ended, and their iterators still run
        self._next_tick = 0.0
        self._waiting: list[tuple[Channel | None, threading.Event]] = []

    # What the application's threads call.

    def begin(self, channel: Channel, course: Course) -> None:
        """A turn was accepted. Starts the thread where there is none. Never raises."""
        self._known.add(channel)
        self._put(channel, partial(self._begin, channel, course))
        if self._thread is None:
            self._start()

    def end(self, channel: Channel, course: Course) -> None:
        """A turn ended; a parent's turn is none of a child's business. Never raises."""
        if course.epoch == self.epoch:
            self._put(channel, partial(self._end, channel, course), is_turn=True)

    def discard(self, channel: Channel, course: Course) -> None:
        """A turn that began was none. Never raises."""
        if course.epoch == self.epoch:
            self._put(channel, partial(self._discard, channel, course))

    def event(self, channel: Channel, message: Mapping[str, Any]) -> None:
        """Something happened that the agent should know. Never raises."""
        self._put(channel, partial(channel.tell_event, message))

    def leave(self, channel: Channel) -> None:
        """A monitor is gone. Never raises."""
        if self._thread is not None:
            self._put(channel, partial(self._leave, channel))

    def flush(self, channel: Channel, timeout: float) -> bool:
        """Wait until every turn of a channel that ended is stored; whether all of them are."""
        if self._thread is None:
            return not self._work
        dropped = channel.dropped
        stored = threading.Event()
        waiter = (channel, stored)
        self._put(channel, partial(self._wait, waiter))
        if not self._broken and stored.wait(timeout):
            return channel.dropped == dropped
        self._put(channel, partial(self._stop_waiting, waiter))
        return False

    def _put(self, channel: Channel, work: Work, *, is_turn: bool = False) -> None:
        if self._broken or len(self._work) >= MOST_WORK:
            if is_turn:
                channel.count_dropped("the thread that carries them does not run")
            return
        self._work.append(work)
        self._wake()

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            try:
                waker.send(b"\0")
            except OSError:
                # Full: it has been woken more than enough. Closed: the thread has ended.
                return

    def _start(self) -> None:
        try:
            with self._starting:
                if self._thread is not None or self._broken:
                    return
                self._waker, self._sleeper = socket.socketpair()
                self._waker.setblocking(False)
                self._sleeper.setblocking(False)
                self._selector = selectors.DefaultSelector()
                self._selector.register(self._sleeper, selectors.EVENT_READ)
                # Known before it starts: an interrupt of the application may come in between.
                self._thread = threading.Thread(
                    target=self._run, name="decodewatch-link", daemon=True
                )
                self._thread.start()
                if not self._exit_registered:
                    self._exit_registered = True
                    atexit.register(self._at_exit)
        except (OSError, RuntimeError):
            # No descriptors, no threads, or the interpreter is ending. The next turn tries again.
            complain.once("start", "decodewatch: the link's thread cannot start", trace=True)
            self._thread = None
            self._close_files()

    def _at_exit(self) -> None:
        if self._thread is None or self._broken:
            return
        done = threading.Event()
        self._work.append(partial(self._wait_for_all, done))
        self._wake()
        done.wait(EXIT_S)

    def after_fork_in_child(self) -> None:
        """Forget the parent's thread, connections and turns."""
        self.epoch += 1
        self._close_files()
        for channel in list(self._known):
            if channel.socket is not None:
                channel.socket.close()
            channel.reset()
        self._reset()

    def _close_files(self) -> None:
        # The selector's own descriptor may be shared with a parent: closing it takes nothing out.
        for file in (self._selector, self._waker, self._sleeper):
            if file is not None:
                file.close()
        self._selector = self._waker = self._sleeper = None

    # The thread.

    def _run(self) -> None:
        try:
            while True:
                self._turn_around()
        except BaseException:
            # A bug of ours. The application goes on, unwatched.
            complain.once("broken", "decodewatch: the link's thread has ended", trace=True)
            self._broken = True
            self._work.clear()
            for channel in self._channels:
                channel.disconnect(time.monotonic())
            self._close_files()

    def _turn_around(self) -> None:
        assert self._selector is not None and self._sleeper is not None
        for _ in range(len(self._work)):
            self._guarded(self._work.popleft())
        now = time.monotonic()
        if self._ticking and now >= self._next_tick:
            self._next_tick = now + self._tick_s
            self._tick()
        for channel in list(self._channels):
            self._serve(channel, now)
        self._release()
        if self._work:
            return
        for key, _ in self._selector.select(self._pause(now)):
            if key.fileobj is self._sleeper:
                self._drain()
            else:
                key.data.read(self._backlog, time.monotonic())
                # At once: the next connection may get the number of one that was closed here.
                self._register(key.data)

    @property
    def _ticking(self) -> bool:
        return bool(self._outlived) or any(channel.open for channel in self._channels)

    def _pause(self, now: float) -> float | None:
        """How long there is nothing to do; None: until something happens."""
        times = [channel.due() for channel in self._channels]
        if self._ticking:
            times.append(self._next_tick)
        return min((max(0.0, time - now) for time in times if time is not None), default=None)

    def _drain(self) -> None:
        assert self._sleeper is not None
        try:
            while self._sleeper.recv(4096):
                pass
        except BlockingIOError:
            return

    def _guarded(self, work: Work) -> None:
        """One bad turn must not cost the others."""
        try:
            work()
        except Exception:
            complain.once("work", "decodewatch: a turn was lost to a fault", trace=True)

    def _begin(self, channel: Channel, course: Course) -> None:
        if not self._ticking:
            self._next_tick = time.monotonic() + self._tick_s
        self._channels[channel] = None
        channel.begin(course)
        courses = [one for other in self._channels for one in other.open.values()]
        for one in courses:
            one.concurrency = max(one.concurrency, len(courses))

    def _end(self, channel: Channel, course: Course) -> None:
        if course.concluded:
            return
        course.concluded = True
        self._channels[channel] = None
        if course.iterating:
            self._outlived.append(course)
        try:
            channel.end(course, self._backlog)
            channel.hurry(time.monotonic() + SOON_S)
        except Exception:
            complain.once("end", "decodewatch: a turn cannot be told", trace=True)
            channel.give_up(course.id)
            channel.count_dropped("they could not be told, which is a fault of decodewatch")

    def _discard(self, channel: Channel, course: Course) -> None:
        course.concluded = True
        channel.open.pop(course.id, None)
        channel.give_up(course.id)

    def _leave(self, channel: Channel) -> None:
        channel.left = True

    def _wait(self, waiter: tuple[Channel, threading.Event]) -> None:
        waiter[0].hurry(time.monotonic())
        self._waiting.append(waiter)

    def _wait_for_all(self, done: threading.Event) -> None:
        """The process ends: one more look for an agent, however lately there was none."""
        for channel in self._channels:
            channel.hurry(time.monotonic())
            channel.say_bye()
        self._waiting.append((None, done))

    def _stop_waiting(self, waiter: tuple[Channel | None, threading.Event]) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def _tick(self) -> None:
        now = self.moment()
        memory = memory_bytes()
        for channel in self._channels:
            for course in channel.open.values():
                self._guarded(partial(course.advance, now, memory, channel.tell))
        # Nobody takes the stamps of a turn that has ended, however long its iterator goes on.
        for course in self._outlived:
            course.stamps.clear()
        self._outlived = [course for course in self._outlived if course.iterating]

    def _serve(self, channel: Channel, now: float) -> None:
        due = channel.due()
        if due is not None and due <= now:
            channel.connect(self._socket_path(), now)
        if any(waited_for is channel for waited_for, _ in self._waiting):
            channel.hurry(now + SOON_S)
        channel.write(now)
        if channel.left and channel.settled and not channel.open and not self._is_last(channel):
            channel.disconnect(now)
            del self._channels[channel]
        self._register(channel)

    def _is_last(self, channel: Channel) -> bool:
        """Whether this is the process's only connection. That one outlives its monitor: the bye at
        the end of the process has to come over it, and any earlier bye would be untrue."""
        return channel.socket is not None and not any(
            other.socket is not None for other in self._channels if other is not channel
        )

    def _register(self, channel: Channel) -> None:
        """Have the selector watch the channel's socket, for writing where it was full."""
        assert self._selector is not None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
        wanted = None if channel.socket is None else (channel.socket, events)
        present = self._registered.get(channel)
        if wanted == present:
            return
        if present is not None:
            self._selector.unregister(present[0])
            del self._registered[channel]
        if wanted is not None:
            self._selector.register(wanted[0], events, channel)
            self._registered[channel] = wanted

    def _release(self) -> None:
        """Tell those who wait for what has come true."""
        for waiter in list(self._waiting):
            channel, done = waiter
            if channel is None:
                if not self._settled_where_connected():
                    continue
            elif not channel.settled:
                continue
            self._waiting.remove(waiter)
            done.set()

    def _settled_where_connected(self) -> bool:
        return all(one.socket is None or (one.settled and not one.unsent) for one in self._channels)


_links: "weakref.WeakSet[Link]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

LINK: Final = Link()
"""The one that all monitors of a process share."""
