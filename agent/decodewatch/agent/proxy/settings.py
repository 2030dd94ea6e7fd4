"""The settings of the proxy. Each says what it bounds; see `decodewatch.shared.settings`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from decodewatch.shared import records
from decodewatch.shared.errors import RecordError, SettingsError, shown
from decodewatch.shared.logs import FORMATS, LEVELS
from decodewatch.shared.settings import setting

# A proxy that listens at any of these is reached at all of them, but for rare set-ups.
_OWN: Final = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})
_LISTEN: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:]+)):([0-9]{1,5})")


class Upstream(NamedTuple):
    """Where the server is."""

    scheme: str
    host: str
    port: int

    @property
    def label(self) -> str:
        """HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def authority(self) -> str:
        """What Host says of it: without a port that its scheme has anyway."""
        usual = {"http": 80, "https": 443}[self.scheme]
        return self.label.removesuffix(f":{usual}")

    @property
    def url(self) -> str:
        """As it was set, but for what is usual."""
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True)
class ProxySettings:
    """What `decodewatch agent proxy` does."""

    upstream: str | None = setting(
        None,
        "the inference server: http://HOST[:PORT], by default port 80, or https://HOST[:PORT], by "
        "default 443; must be set",
    )
    listen: str = setting(
        "127.0.0.1:8079",
        "HOST:PORT where clients connect instead; whoever can reach it can use the server",
    )
    name: str | None = setting(
        None,
        "what the dashboard calls the runtime, at most 64 characters; where it is not set, its "
        "engine (llama-server for llama.cpp), and HOST:PORT of the upstream while that is unknown",
    )
    engine: str | None = setting(
        None,
        "the server's engine, such as llama.cpp, at most 64 characters; where it is not set, the "
        "server is asked: GET /props, /api/version and /version, once a life of it",
    )
    socket: Path | None = setting(
        None, "inbox of the agent; where it is not set, the one that every application finds"
    )
    ca_file: Path | None = setting(
        None, "certificate authority of an https upstream; where it is not set, those of the system"
    )
    connections: int = setting(
        256, "clients at once; one more is disconnected at once", low=1, high=4096
    )
    connect_timeout_s: float = setting(
        10.0, "seconds for a connection to the upstream; then the client is disconnected", low=0.1,
        high=300,
    )  # fmt: skip
    log_level: str = setting("info", "least severe log lines to write", choices=LEVELS)
    log_format: str = setting("text", "form of a log line", choices=FORMATS)

    def check(self) -> None:
        """Raise SettingsError for what has the right type and is of no use."""
        upstream = self.upstream_address()
        here = self.listen_address()
        own = {upstream.host, here[0].lower()}
        if upstream.port == here[1] and (len(own) == 1 or own <= _OWN):
            raise SettingsError(
                f"upstream: {shown(self.upstream, 200)} is where the proxy listens; accepted is "
                "the server's own address"
            )
        for field in ("name", "engine"):
            value = getattr(self, field)
            try:
                records.optional(records.text(64))(value)
            except RecordError as error:
                raise SettingsError(f"{field}: {error}") from None
        if self.ca_file is not None and not self.ca_file.is_file():
            raise SettingsError(f"ca_file: {self.ca_file} is no file; accepted is one in PEM")

    def upstream_address(self) -> Upstream:
        """Where the server is. Raises SettingsError."""
        accepted = (
            "accepted is http://HOST[:PORT], by default port 80, or https://HOST[:PORT], by "
            "default 443, without a path"
        )
        if self.upstream is None:
            raise SettingsError(f"upstream: not set; {accepted}")
        refusal = SettingsError(f"upstream: {shown(self.upstream, 200)}; {accepted}")
        try:
            url = urlsplit(self.upstream)
            port = url.port
        except ValueError:
            raise refusal from None
        plain = url.path in ("", "/") and not url.query and not url.fragment
        if url.scheme not in ("http", "https") or not url.hostname or not plain:
            raise refusal
        if "@" in url.netloc or not re.fullmatch(r"[!-~]+", url.netloc) or port == 0:
            raise refusal
        if not _may_be_looked_up(url.hostname):
            raise refusal
        usual = 443 if url.scheme == "https" else 80
        return Upstream(url.scheme, url.hostname, usual if port is None else port)

    def listen_address(self) -> tuple[str, int]:
        """Where clients connect; port 0 is any free one. Raises SettingsError."""
        found = _LISTEN.fullmatch(self.listen)
        host = "" if found is None else found[1] or found[2]
        if found is None or int(found[3]) > 65535 or not _may_be_looked_up(host):
            raise SettingsError(f"listen: {shown(self.listen)}; accepted is HOST:PORT")
        return host, int(found[3])


def _may_be_looked_up(host: str) -> bool:
    """Whether the resolver takes it: it raises for a label that is empty or too long."""
    try:
        return len(host.encode("idna")) < 254
    except UnicodeError:
        return False
