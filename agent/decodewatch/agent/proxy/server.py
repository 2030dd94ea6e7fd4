"""Who the server behind the proxy is: its process, where it is on this device, and its engine."""

import asyncio
import ipaddress
import json
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from decodewatch.agent.proxy.ask import ask
from decodewatch.agent.proxy.settings import Upstream
from decodewatch.agent.runtimes import listening
from decodewatch.agent.wrapper.link import Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.shared import logs

log = logs.get(__name__)

LLAMA: Final = "llama.cpp"
UNKNOWN: Final = "unknown"
_NAMES: Final = {LLAMA: "llama-server"}
"""What scraping calls the runtime, so that one that is both scraped and proxied keeps its name."""
_LONGEST_NAME: Final = 64
READY_S: Final = 2.0
"""The records of turns wait so long at most until it is known whose they are."""
AGAIN_S: Final = 5.0
"""What is not known is looked for again, at a turn's beginning, no sooner than this."""
ANEW_S: Final = 60.0
"""So is what is known: another process may listen there by now."""


class ServerWatch:
    """Knows the server's life that is running now (`turns.Server`)."""

    def __init__(
        self,
        upstream: Upstream,
        tls: ssl.SSLContext | None,
        *,
        name: str | None,
        engine: str | None,
        link: Link,
        known: Callable[[], None],
    ) -> None:
        """`known` is called each time that a look has ended. Without a `name` the runtime has its
        engine's, or the upstream's address."""
        self._upstream = upstream
        self._tls = tls
        self._name = name
        self._set_engine = engine
        self._link = link
        self._known = known
        self._process: listening.Process | None = None
        self.engine = engine or UNKNOWN
        self._version: str | None = None
        self._monitor: DecodeMonitor | None = None
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether no look is under way."""
        return self._look is None

    @property
    def found(self) -> bool:
        """Whether the process that listens there is known."""
        return self._process is not None

    @property
    def name(self) -> str:
        """What the runtime is called."""
        if self._name is not None:
            return self._name
        if self.engine != UNKNOWN:
            return _NAMES.get(self.engine, self.engine)
        return self._upstream.label[:_LONGEST_NAME]

    def check(self) -> None:
        """Look again, where the process has ended, something is not known, or it is long ago."""
        if self._look is not None:
            return
        ended = self._process is not None and not listening.lives(self._process)
        lacking = self.engine == UNKNOWN or self._process is None
        age = time.monotonic() - self._looked_at
        if ended or age >= (AGAIN_S if lacking else ANEW_S):
            self.look()

    def look(self) -> None:
        """Find out who it is, beside everything else."""
        self._looked_at = time.monotonic()
        self._look = asyncio.get_running_loop().create_task(self._looked())

    async def looked(self) -> None:
        """Wait until no look is under way."""
        if self._look is not None:
            await asyncio.wait((self._look,))

    def see(self, server: str) -> None:
        """What an answer's header Server says."""
        if self.engine == UNKNOWN and server.startswith(LLAMA):
            self.engine = LLAMA
            self._monitor = None

    def monitor(self) -> DecodeMonitor:
        """The monitor of this life of the server."""
        if self._monitor is None:
            self._monitor = DecodeMonitor(
                self.name,
                engine=self.engine,
                engine_version=self._version,
                settings={"upstream": self._upstream.url[:256]},
                of_pid=0 if self._process is None else self._process.pid,
                link=self._link,
            )
        return self._monitor

    async def _looked(self) -> None:
        try:
            await asyncio.wait_for(self._find(), READY_S)
        except asyncio.TimeoutError:
            log.warning("server does not say who it is", every=ANEW_S, seconds=READY_S)
        except OSError as error:
            log.warning("server not found", every=ANEW_S, reason=error.strerror)
        finally:
            self._look = None
            self._known()

    async def _find(self) -> None:
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(None, self._find_process)
        if process != self._process:
            self._process = process
            self._monitor = None
            if self._set_engine is None:
                self.engine, self._version = UNKNOWN, None
            log.info("server found", pid=process.pid if process else None)
        if self.engine == UNKNOWN:
            engine, version = await self._ask()
            if engine != UNKNOWN:
                self.engine, self._version = engine, version
                self._monitor = None

    def _find_process(self) -> listening.Process | None:
        host = self._upstream.host
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host != "localhost":
                return None  # a name is somebody else's to resolve, and another machine's mostly
            address = ipaddress.ip_address("127.0.0.1")
        found = listening.find(address, self._upstream.port)
        if found is None and host == "localhost":
            found = listening.find(ipaddress.ip_address("::1"), self._upstream.port)
        return found

    async def _ask(self) -> tuple[str, str | None]:
        """Engine and version, by what each alone answers."""
        for path, engine, field in (
            ("/props", LLAMA, "build_info"),
            ("/api/version", "ollama", "version"),
            ("/version", "vllm", "version"),
        ):
            reply = await ask(self._upstream, self._tls, path, READY_S)
            if reply is None:
                return UNKNOWN, None  # it does not answer: neither does it to the next question
            said = _object(reply.content) if reply.status == 200 else {}
            if field in said:
                version = said[field]
                usable = isinstance(version, str) and 0 < len(version) <= 64
                return engine, version if usable and version.isprintable() else None
            if reply.server.startswith(LLAMA):
                return LLAMA, None
        return UNKNOWN, None


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
