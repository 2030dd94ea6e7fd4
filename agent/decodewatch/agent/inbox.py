"""The socket server of the inbox: connections, lines, limits. `docs/inbox.md` is its protocol."""

import contextlib
import errno
import fcntl
import json
import os
import selectors
import socket
import stat
import struct
import sys
import termios
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from decodewatch.agent.errors import AgentError
from decodewatch.agent.messages import MAX_LINE, Message, Refusal, parse
from decodewatch.shared import logs
from decodewatch.shared.clock import boot_us

log = logs.get(__name__)

MAX_CONNECTIONS: Final = 64
MAX_OF_ONE_PROCESS: Final = 16
"""Connections of one pid: no process may keep the others out."""
DRAIN_S: Final = 1.0
"""How long what lies in the sockets is handled at most, of all that are to be closed together."""
MAX_UNSENT: Final = 64 * 1024
"""Bytes that wait for an application to read them; one that leaves more is disconnected."""
_RECEIVE: Final = 64 * 1024
_FIRST_PASSED_FD: Final = 3  # SD_LISTEN_FDS_START
_EVERY_S: Final = 60.0

Dispatch = Callable[[int], None]
"""What the main loop calls, with selectors' EVENT_ mask, for a file that is ready."""


class Handler(Protocol):
    """Who understands the messages."""

    def message(self, connection: "Connection", message: Message) -> None:
        """One valid message. Raises Refusal where it cannot be taken."""
        ...

    def closed(self, connection: "Connection") -> None:
        """The connection is gone, and all that came over it was handled."""
        ...


def inherited(environment: Mapping[str, str] = os.environ) -> socket.socket | None:
    """The listening socket that systemd passed, or None where it passed none.

    Raises AgentError where what it passed is not one listening Unix stream socket.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = environment.get("LISTEN_FDS", "")
    if count != "1":
        raise AgentError(f"$LISTEN_FDS: {count!r} sockets passed; accepted is 1, the inbox")
    try:
        passed = socket.socket(fileno=_FIRST_PASSED_FD)
        listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise AgentError(f"$LISTEN_FDS: descriptor {_FIRST_PASSED_FD}: {error.strerror}") from None
    if passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM or not listens:
        raise AgentError(
            f"$LISTEN_FDS: {passed.family.name} {passed.type.name}; "
            "accepted is a listening Unix stream socket (ListenStream= with a path)"
        )
    passed.setblocking(False)
    os.set_inheritable(_FIRST_PASSED_FD, False)
    return passed


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at `path` with this mode, in a folder that is made where it is missing.

    A socket that nobody listens on is replaced. Raises AgentError naming the path otherwise.
    """
    _make_folder(path.parent)
    if path.exists() or path.is_symlink():
        _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Bound with the mode from the start: nobody may slip in between bind and chmod.
        before = os.umask(0o777 & ~mode)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(MAX_CONNECTIONS)
    except OSError as error:
        made.close()
        raise AgentError(f"socket: {path}: cannot be made: {error.strerror}") from None
    made.setblocking(False)
    return made


def _make_folder(folder: Path) -> None:
    """Applications of every user pass through a folder that root made; the socket's mode decides
    who connects. Anybody else's folder, perhaps below /tmp, is theirs alone."""
    uid = os.geteuid()
    try:
        folder.mkdir(mode=0o755 if uid == 0 else 0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        raise AgentError(f"socket: folder {folder}: cannot be made: {error.strerror}") from None
    if uid != 0 and owner not in (0, uid):
        raise AgentError(
            f"socket: folder {folder} belongs to uid {owner}, who could replace the socket; "
            f"accepted is a folder of uid {uid} or of root"
        )


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise AgentError(f"socket: {path}: not a socket; remove it or set another")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            code = probe.connect_ex(str(path))
        # EAGAIN: somebody listens whose queue is full.
        if code in (0, errno.EAGAIN, errno.EINPROGRESS):
            raise AgentError(f"socket: {path}: in use by another process that listens on it")
        if code not in (errno.ECONNREFUSED, errno.ENOENT):
            raise AgentError(f"socket: {path}: {os.strerror(code)}; remove it or set another")
        path.unlink(missing_ok=True)
    except OSError as error:
        raise AgentError(f"socket: {path}: cannot be replaced: {error.strerror}") from None


class Connection(ABC):
    """One application's connection. `pid` and `uid` are of the process that connected; a pid of 0
    is one that this agent does not see."""

    lasts = True
    """Whether it stays open for as long as its application has something to tell."""

    def __init__(self, pid: int, uid: int, handler: Handler) -> None:
        self.pid = pid
        self.uid = uid
        self.open = True
        self._handler = handler

    @abstractmethod
    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line, later where the application does not read now. Never raises."""

    @abstractmethod
    def drain(self, until: float) -> None:
        """Handle what the application has sent by now, but no longer than `until` on the monotonic
        clock; closes where it has closed.

        What it goes on to send is left: it could do so for ever.
        """

    @abstractmethod
    def close(self) -> None:
        """Close, and tell the handler."""

    def _handle(self, line: bytes) -> None:
        """Have a line handled; what is wrong with it is sent back."""
        if not line.strip():
            return
        kind: str | None = None
        try:
            message = parse(line, boot_us())
            kind = message.TYPE
            self._handler.message(self, message)
        except Refusal as refusal:
            self._refuse(str(refusal), kind or refusal.message, refusal.turn)
        except Exception as error:
            # A fault of ours. Going down with it would bring the same message back for ever: the
            # application sends it again to every new agent.
            log.error(
                "message not handled", every=_EVERY_S, pid=self.pid, trace=traceback.format_exc()
            )
            self._refuse(f"the agent failed: {type(error).__name__}", kind)

    def _refuse(self, reason: str, message: str | None = None, turn: str | None = None) -> None:
        # The field and not the value: an application may have put text of a prompt there.
        field = reason.partition(": ")[0][:80]
        log.warning("message refused", every=_EVERY_S, pid=self.pid, uid=self.uid, field=field)
        answer = {"type": "refused", "reason": reason, "message": message, "turn": turn}
        self.send({name: value for name, value in answer.items() if value is not None})


class SocketConnection(Connection):
    """One that came over the Unix socket: who it is, its credentials say."""

    def __init__(self, inbox: "Inbox", channel: socket.socket) -> None:
        credentials = channel.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        pid, uid, _ = struct.unpack("3i", credentials)
        super().__init__(pid, uid, inbox.handler)
        self._inbox = inbox
        self._channel = channel
        self._received = bytearray()
        self._unsent = bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        if not self.open:
            return
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush()

    def drain(self, until: float) -> None:
        waiting = _unread(self._channel)
        while self.open and time.monotonic() < until:
            received = self._receive()
            waiting -= received
            if not received or waiting < 0:
                return

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        self._inbox.forget(self, self._channel)
        self._channel.close()

    def ready(self, mask: int) -> None:
        """The socket can be read or written."""
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and self.open:
            self._receive()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._channel.send(self._unsent)
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            if len(self._unsent) > MAX_UNSENT:
                log.warning("application does not read, disconnected", every=_EVERY_S, pid=self.pid)
                self._unsent.clear()
                self.close()
                return
        except OSError:
            # The application has gone. What it sent before is still to be read: the selector
            # reports the end as readable.
            self._unsent.clear()
        self._inbox.watch(self, self._channel, writable=bool(self._unsent))

    def _receive(self) -> int:
        """Read once and handle the whole lines; how many bytes came."""
        try:
            chunk = self._channel.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            chunk = b""  # ECONNRESET: it closed with our answers unread
        if not chunk:
            self.close()
            return 0
        held = len(self._received)
        self._received += chunk
        if b"\n" in chunk or len(self._received) >= MAX_LINE:
            self._split(held)
        return len(chunk)

    def _split(self, held: int) -> None:
        """Handle the whole lines of what was received, of which `held` bytes have no newline."""
        start = 0
        end = self._received.find(b"\n", held)
        while self.open and end >= 0:
            if end - start >= MAX_LINE:
                self._too_long()
                return
            self._handle(bytes(self._received[start:end]))
            start = end + 1
            end = self._received.find(b"\n", start)
        del self._received[:start]
        if self.open and len(self._received) >= MAX_LINE:
            self._too_long()

    def _too_long(self) -> None:
        self._refuse(f"line of more than {MAX_LINE} bytes; accepted are {MAX_LINE}")
        self.close()


def _unread(channel: socket.socket) -> int:
    """Bytes that lie in a socket."""
    try:
        answer = fcntl.ioctl(channel, termios.FIONREAD, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder)


class Inbox:
    """Accepts connections and keeps at most `MAX_CONNECTIONS` of them."""

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, handler: Handler
    ) -> None:
        self.handler = handler
        self._listener = listener
        self._selector = selector
        self._connections: set[SocketConnection] = set()
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Stop accepting, handle what the applications have sent, and disconnect them."""
        self._selector.unregister(self._listener)
        self._listener.close()
        until = time.monotonic() + DRAIN_S
        for connection in list(self._connections):
            connection.drain(until)

    def disconnect(self) -> None:
        """Disconnect all applications."""
        for connection in list(self._connections):
            connection.close()

    def watch(
        self, connection: SocketConnection, channel: socket.socket, *, writable: bool
    ) -> None:
        """Have the main loop report when the connection can be read, and written where asked."""
        if connection.open:
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
            if self._selector.get_key(channel).events != mask:
                self._selector.modify(channel, mask, connection.ready)

    def forget(self, connection: SocketConnection, channel: socket.socket) -> None:
        """A connection closes."""
        self._selector.unregister(channel)
        self._connections.discard(connection)
        self.handler.closed(connection)

    def _accept(self, mask: int) -> None:
        try:
            channel, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors left
            log.error("connection not accepted", every=_EVERY_S, reason=error.strerror)
            return
        channel.setblocking(False)
        connection = SocketConnection(self, channel)
        reason = self._crowded(connection.pid)
        if reason is not None:
            log.warning("too many connections, one refused", every=_EVERY_S, reason=reason)
            with contextlib.suppress(OSError):  # it has gone already
                channel.send(json.dumps({"type": "refused", "reason": reason}).encode() + b"\n")
            channel.close()
            return
        self._connections.add(connection)
        self._selector.register(channel, selectors.EVENT_READ, connection.ready)

    def _crowded(self, pid: int) -> str | None:
        """Why another connection of this process is one too many; None where it is not."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return f"{MAX_CONNECTIONS} connections are open; accepted are no more"
        # Processes of other pid namespaces all show as 0, and cannot be told apart.
        its = sum(connection.pid == pid for connection in self._connections) if pid else 0
        if its >= MAX_OF_ONE_PROCESS:
            return f"{its} connections of process {pid} are open; accepted are no more"
        return None
