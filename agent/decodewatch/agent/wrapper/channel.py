"""One monitor's connection to the agent, and the turns that the agent has yet to store.

Everything here runs in the link's thread and never waits. `docs/inbox.md` is the protocol.
"""

import errno
import json
import os
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.course import Course
from decodewatch.agent.wrapper.paths import distrust
from decodewatch.shared.errors import shown
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

PROTOCOL: Final = 1
MAX_LINE: Final = 64 * 1024
"""Bytes of one line, its newline included."""
MAX_TURNS: Final = 256
"""Ended turns that a process keeps until the agent has stored them."""
MAX_BYTES: Final = 1 << 20
"""Bytes of all those turns."""

_FILL: Final = 64 * 1024  # turns are handed to the socket in pieces of this
_MAX_UNSENT: Final = 256 * 1024  # beginnings and progress are left out while more than this waits
_MAX_FORGOTTEN: Final = 4096
_RECEIVE: Final = 64 * 1024
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_REFUSED_PAUSE_S: Final = 60.0
_NEVER: Final = float("inf")
# An agent that is started again needs a few seconds, and should find even an idle application.
_IDLE_ATTEMPTS: Final = 20
_TELL_AFTER: Final = 5  # attempts, some 3 s: an agent may start a little later

_BYE: Final = {"type": "bye", "reason": "exit"}


class Backlog:
    """What all channels of a process keep, MAX_TURNS and MAX_BYTES at most: oldest go first."""

    def __init__(self) -> None:
        self._owners: dict[str, Channel] = {}
        self._bytes = 0

    def add(self, channel: "Channel", turn: str, line: bytes) -> None:
        """Keep a turn, and give up others where that is too much."""
        self._owners[turn] = channel
        self._bytes += len(line)
        channel.kept[turn] = line
        while len(self._owners) > MAX_TURNS or self._bytes > MAX_BYTES:
            oldest = next(iter(self._owners))
            owner = self._owners[oldest]
            self.remove(oldest)
            owner.give_up(oldest)
            owner.count_dropped(
                "no agent stored them in time; kept are %d turns or %d bytes", MAX_TURNS, MAX_BYTES
            )

    def remove(self, turn: str) -> bool:
        """Forget a turn; whether it was kept."""
        channel = self._owners.pop(turn, None)
        if channel is None:
            return False
        self._bytes -= len(channel.kept.pop(turn))
        return True


class Channel:
    """The connection of one monitor, which comes and goes with the agent."""

    def __init__(self, hello: Mapping[str, Any]) -> None:
        """`hello` as `hello_message` makes it."""
        self._hello = hello
        self.dropped = 0
        self.reset()

    def reset(self) -> None:
        """Start anew with nothing kept, nothing open and no connection: a child process does."""
        self.open: dict[str, Course] = {}
        self.kept: dict[str, bytes] = {}  # ended turns, oldest first; filled by Backlog
        self.left = False  # its monitor is gone
        self.welcomed = False
        self.socket: socket.socket | None = None
        self._queue: deque[str] = deque()  # of kept turns, those not sent on this connection
        self._begun: set[str] = set()  # turns, open or kept, whose beginning the agent was told
        self._forgotten: deque[str] = deque(maxlen=_MAX_FORGOTTEN)  # given up, and not said yet
        self._out = bytearray()
        self._in = bytearray()
        self._attempts = 0
        self._next_attempt = 0.0
        self._hurried = _NEVER  # an attempt besides those, because somebody wants it
        self._barred_until = 0.0  # whoever listened sent us away
        self._connected_at = 0.0
        self._was_welcomed = False
        self._says_bye = False

    @property
    def settled(self) -> bool:
        """Whether the agent owes and is owed nothing about turns that ended."""
        return not self.kept

    @property
    def unsent(self) -> bool:
        """Whether the socket did not take everything yet."""
        return bool(self._out or self._queue or self._forgotten)

    def count_dropped(self, why: str, *details: object) -> None:
        """One turn less. Says so at the first one, the second, the fourth and so on."""
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:
            complain.once(
                f"dropped {id(self)} {self.dropped}",
                f"decodewatch: %d turns given up: {why}",
                self.dropped,
                *details,
            )

    # What the link has to say.

    def begin(self, course: Course) -> None:
        """A turn was accepted. Left out, like its progress, where nobody reads it: the turn's
        record has it all."""
        self.open[course.id] = course
        if self.socket is not None and len(self._out) < _MAX_UNSENT:
            # What ended before this one began is told before, or the two would seem to overlap.
            self._fill()
            self._announce(course)

    def _announce(self, course: Course) -> None:
        self._begun.add(course.id)
        self._out += _line(course.begin_message())

    def tell(self, message: Mapping[str, Any]) -> None:
        """Progress of a turn."""
        heard = self.socket is not None and message["turn"] in self._begun
        if heard and len(self._out) < _MAX_UNSENT:
            self._out += _line(message)

    def tell_event(self, message: Mapping[str, Any]) -> None:
        """Something that happened; nobody hears it where there is no agent now."""
        if self.socket is not None and len(self._out) < _MAX_UNSENT:
            self._out += _line(message)

    def give_up(self, turn: str) -> None:
        """A turn's record is not kept any more; an agent that heard it begin must not wait."""
        if turn in self._begun:
            self._begun.discard(turn)
            self._forgotten.append(turn)

    def end(self, course: Course, backlog: Backlog) -> None:
        """A turn ended, and is kept until the agent has stored it."""
        self.open.pop(course.id, None)
        course.conclude(self.tell)
        line = _line(course.turn_message())
        if len(line) > MAX_LINE:
            line = _line(course.turn_message(by_depth=False))
        backlog.add(self, course.id, line)
        if self.socket is not None:
            self._queue.append(course.id)

    def say_bye(self) -> None:
        """The process is about to end in good order. Said on the next connection too."""
        self._says_bye = True
        if self.socket is not None:
            self._out += _line(_BYE)

    # The connection.

    def due(self) -> float | None:
        """When to connect next, on time.monotonic(); None where there is no need to."""
        if self.socket is not None:
            return None
        if self.open or self.kept:
            return min(self._next_attempt, self._hurried)
        if self._was_welcomed and not self.left and self._attempts < _IDLE_ATTEMPTS:
            return self._next_attempt
        return None

    def hurry(self, at: float) -> None:
        """Have what is kept wait for the next attempt until `at` at most, however long the pauses
        have become. They stay as they are; and whoever sent us away is left alone."""
        if self.kept and self.socket is None:
            self._hurried = min(self._hurried, max(at, self._barred_until))

    def connect(self, path: Path, now: float) -> None:
        """Try once to reach the agent at `path`."""
        self._hurried = _NEVER
        if now >= self._next_attempt:
            self._attempts += 1
            self._next_attempt = now + _pause_s(self._attempts)
        problem = distrust(path)
        distrusted = problem is not None
        if not distrusted:
            try:
                self.socket = _dial(path)
            except (OSError, AttributeError) as error:  # AttributeError: a system without them
                problem = str(error)
            else:
                self._greet(now)
                return
        if self._attempts == _TELL_AFTER or distrusted:
            complain.once(
                f"absent {path}",
                "decodewatch: no agent at %s (%s); up to %d turns are kept until there is one",
                path,
                problem,
                MAX_TURNS,
            )

    def _greet(self, now: float) -> None:
        self._connected_at = now
        # The pid is for an agent in another pid namespace: it sees none in the credentials.
        self._out += _line({**self._hello, "pid": os.getpid()})
        for course in self.open.values():
            self._announce(course)
        if self._says_bye:
            self._out += _line(_BYE)
        self._queue.extend(self.kept)

    def disconnect(self, now: float) -> None:
        """Close; what is kept will be sent again on the next connection."""
        if self.socket is None:
            return
        self.socket.close()
        self.socket = None
        self.welcomed = False
        self._out.clear()
        self._in.clear()
        self._queue.clear()
        # An agent that hangs up at once is met with longer and longer pauses.
        if now - self._connected_at > _LONGEST_PAUSE_S:
            self._attempts = 0

    def write(self, now: float) -> None:
        """Hand to the socket what it takes."""
        while self.socket is not None and self.unsent:
            while self._forgotten and len(self._out) < _FILL:
                self._out += _line({"type": "forget", "turn": self._forgotten.popleft()})
            self._fill()
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.disconnect(now)
                return
            del self._out[:sent]

    def _fill(self) -> None:
        while self._queue and len(self._out) < _FILL:
            self._out += self.kept.get(self._queue.popleft(), b"")

    def read(self, backlog: Backlog, now: float) -> None:
        """Take in what the agent says."""
        while self.socket is not None:
            try:
                received = self.socket.recv(_RECEIVE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno != errno.ECONNRESET:
                    complain.once("read", "decodewatch: the agent's socket: %s", error)
                received = b""
            if not received:
                self.disconnect(now)
                return
            self._in += received
            *lines, rest = bytes(self._in).split(b"\n")
            self._in = bytearray(rest)
            for line in lines:
                self._handle(line, backlog, now)
            if len(self._in) > MAX_LINE:
                self._handle(bytes(self._in), backlog, now)

    def _handle(self, line: bytes, backlog: Backlog, now: float) -> None:
        try:
            answer = json.loads(line)
            kind = answer.get("type")
            turn = answer.get("turn")
        except (ValueError, RecursionError, AttributeError):
            complain.once("foreign", "decodewatch: not an agent that answered %s", shown(line[:80]))
            self._give_up_for(now, _REFUSED_PAUSE_S)
            return
        if kind == "welcome":
            self.welcomed = self._was_welcomed = True
        elif kind == "stored":
            if isinstance(turn, str):
                self._begun.discard(turn)
                backlog.remove(turn)
        elif kind == "refused":
            # An agent that does not say which of a turn's messages it refused means its record.
            record = answer.get("message", "turn") == "turn"
            reason = shown(answer.get("reason"), 300)
            self._refused(turn if record else None, reason, backlog, now)
        # Anything else is of a newer agent, and asks for nothing that this wrapper could do.

    def _refused(self, turn: object, reason: str, backlog: Backlog, now: float) -> None:
        if isinstance(turn, str):
            # Of an open turn it is one message that was refused; its record is still to come.
            if backlog.remove(turn):
                self.give_up(turn)
                self.count_dropped("the agent refused them: %s", reason)
        elif self.welcomed:
            complain.once("message", "decodewatch: the agent refused a message: %s", reason)
        else:
            complain.once(f"hello {reason}", "decodewatch: the agent refused hello: %s", reason)
            self._give_up_for(now, _REFUSED_PAUSE_S)

    def _give_up_for(self, now: float, seconds: float) -> None:
        self.disconnect(now)
        self._next_attempt = self._barred_until = now + seconds


def hello_message(
    name: str,
    engine: str,
    engine_version: str | None,
    model: ModelSpec | None,
    settings: Mapping[str, Scalar] | None,
    of_pid: int | None = None,
) -> dict[str, Any]:
    """What a monitor says first on every connection."""
    message = {
        "type": "hello",
        "v": PROTOCOL,
        "name": name,
        "engine": engine,
        "engine_version": engine_version,
        "model": None if model is None else model.to_json(),
        "settings": None if settings is None else dict(settings),
        "of_pid": of_pid,
    }
    return {key: value for key, value in message.items() if value is not None}


def _dial(path: Path) -> socket.socket:
    """A connected socket that never blocks. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _pause_s(attempts: int) -> float:
    """Twice as long after every attempt, and by chance half of that: agents that start again must
    not be met by everybody at once."""
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 10))
    return longest * (0.5 + os.urandom(1)[0] / 510)
