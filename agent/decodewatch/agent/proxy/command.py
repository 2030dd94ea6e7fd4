"""`decodewatch agent proxy`: the process that the proxy is."""

import asyncio
import gc
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Final

from decodewatch.agent.errors import AgentError
from decodewatch.agent.proxy.orphans import Orphans
from decodewatch.agent.proxy.server import LLAMA, ServerWatch
from decodewatch.agent.proxy.settings import ProxySettings, Upstream
from decodewatch.agent.proxy.tunnel import ClientSide, Tunnel
from decodewatch.agent.proxy.turns import Turns
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.paths import distrust, socket_path
from decodewatch.shared import logs
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.lifecycle import notify

log = logs.get(__name__)

PATIENCE_S: Final = 3.0
"""What is open when the proxy stops may go on so long; of the 5 s within which it stops."""
_FLUSH_S: Final = 1.0
_WORK_OFF_S: Final = 0.4
_SWITCH_S: Final = 0.0005
_BACKLOG: Final = 512
_EVERY_S: Final = 60.0


class Proxy:
    """The listening socket, the connections, and what they share (`tunnel.Owner`)."""

    def __init__(self, settings: ProxySettings) -> None:
        """Raises SettingsError. Nothing runs before `run`."""
        settings.check()
        self._settings = settings
        self._upstream = settings.upstream_address()
        self._tls = _context(settings, self._upstream)
        self.host = self._upstream.authority.encode("ascii")
        self.stopping = False
        self._tunnels: set[Tunnel] = set()
        self._none_left = asyncio.Event()
        loop = asyncio.get_running_loop()
        path = settings.socket
        link = LINK if path is None else Link(socket_path=lambda: path)
        self._server = ServerWatch(
            self._upstream,
            self._tls,
            name=settings.name,
            engine=settings.engine,
            link=link,
            known=lambda: self.turns.wake(),
        )
        self.turns = Turns(self._server, loop, self._cancelled)
        self._orphans = Orphans(self._upstream, self._tls, lambda: self.turns.open)

    def has_room(self) -> bool:
        """Whether one more client may come."""
        if not self.stopping and len(self._tunnels) < self._settings.connections:
            return True
        if not self.stopping:
            log.warning(
                "too many connections, one refused",
                every=_EVERY_S,
                accepted=self._settings.connections,
            )
        return False

    def enter(self, tunnel: Tunnel) -> None:
        """A connection is there."""
        self._tunnels.add(tunnel)

    def leave(self, tunnel: Tunnel) -> None:
        """A connection is gone."""
        self._tunnels.discard(tunnel)
        if not self._tunnels:
            self._none_left.set()

    async def connect(self, side: asyncio.Protocol) -> asyncio.Transport:
        """Connect to the server. Raises OSError and asyncio.TimeoutError."""
        loop = asyncio.get_running_loop()
        transport, _ = await asyncio.wait_for(
            loop.create_connection(
                lambda: side,
                self._upstream.host,
                self._upstream.port,
                ssl=self._tls,
                server_hostname=self._upstream.host if self._tls else None,
            ),
            self._settings.connect_timeout_s,
        )
        return transport

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises AgentError where it cannot listen."""
        host, port = self._settings.listen_address()
        loop = asyncio.get_running_loop()
        self._server.look()
        await self._server.looked()
        try:
            listener = await loop.create_server(
                lambda: ClientSide(self), host, port, backlog=_BACKLOG
            )
        except OSError as error:
            raise AgentError(
                f"listen: {self._settings.listen} cannot be used: {error.strerror}"
            ) from None
        bound = listener.sockets[0].getsockname()
        log.info("proxy runs", listen=f"{bound[0]}:{bound[1]}", upstream=self._upstream.url)
        notify("READY=1")
        self._look_for_agent()
        looking = loop.create_task(self._look_for_upstream())
        await stop.wait()
        notify("STOPPING=1")
        looking.cancel()
        listener.close()
        await self._shut_down()

    def _look_for_agent(self) -> None:
        path = self._settings.socket or socket_path()
        reason = distrust(path) or _not_listening(path)
        if reason is not None:
            log.warning(f"no agent at {path} yet", reason=reason)

    async def _look_for_upstream(self) -> None:
        if self._server.found:
            return  # its socket was seen: a connection more would tell nothing
        try:
            transport = await self.connect(asyncio.Protocol())
        except (OSError, asyncio.TimeoutError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            log.warning("upstream not reached yet", upstream=self._upstream.url, reason=reason)
        else:
            transport.abort()

    async def _shut_down(self) -> None:
        self.stopping = True
        self._orphans.stop()
        for tunnel in list(self._tunnels):
            if tunnel.idle:
                tunnel.close()
        for patience, end in ((PATIENCE_S, Tunnel.abort), (_FLUSH_S / 2, None)):
            self._none_left.clear()
            if self._tunnels:
                try:
                    await asyncio.wait_for(self._none_left.wait(), patience)
                except asyncio.TimeoutError:
                    log.info("connections ended", open=len(self._tunnels))
            for tunnel in list(self._tunnels):
                if end is not None:
                    end(tunnel)
        self.turns.finish(_WORK_OFF_S)
        loop = asyncio.get_running_loop()
        monitor = self._server.monitor()
        whole = await loop.run_in_executor(None, monitor.flush, _FLUSH_S)
        log.info("proxy stopped", all_turns_stored=whole, not_understood=self.turns.plain)

    def _cancelled(self, monitor: DecodeMonitor, turn: str) -> None:
        if self._server.engine == LLAMA and not self.stopping:
            self._orphans.watch(monitor, turn)


def run(settings: ProxySettings) -> int:
    """Run the proxy until SIGTERM or SIGINT; the exit status. Raises DecodewatchError."""
    settings.check()
    # The thread that talks to the agent must not make a read wait for its turn at the interpreter.
    sys.setswitchinterval(_SWITCH_S)
    asyncio.run(_serve(settings))
    return 0


async def _serve(settings: ProxySettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    proxy = Proxy(settings)
    # What is here now stays: a collection that looks at all of it would cost a read milliseconds.
    gc.collect()
    gc.freeze()
    await proxy.run(stop)


def _not_listening(path: Path) -> str | None:
    """Why nobody can be told anything at `path` now; None where somebody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.connect(str(path))
        except BlockingIOError:
            return None  # who listens is busy
        except OSError as error:
            return error.strerror or str(error)
    return None


def _context(settings: ProxySettings, upstream: Upstream) -> ssl.SSLContext | None:
    if upstream.scheme == "http":
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"ca_file: {settings.ca_file}: {error.strerror or type(error).__name__}; "
            "accepted is a file of certificates in PEM"
        ) from None
