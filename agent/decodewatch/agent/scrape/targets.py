"""The setting `scrape`: which servers are asked, and with which key."""

import ipaddress
import re
from pathlib import Path
from typing import Final, NamedTuple

from decodewatch.shared.errors import SettingsError, shown

MAX_TARGETS: Final = 8
KINDS: Final = ("llama-server", "vllm")
ACCEPTED: Final = (
    f"1 to {MAX_TARGETS} of [KIND=]http://ADDRESS:PORT[/PREFIX], separated by commas, where KIND "
    f"is {' or '.join(KINDS)}, ADDRESS an IP address or localhost, and /PREFIX what comes before "
    "/metrics"
)
_TARGET: Final = re.compile(
    r"(?:(?P<kind>[\w-]+)=)?http://(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+))"
    r"(?::(?P<port>\d{1,5}))?(?P<prefix>(?:/[\w.~-]+)*)/?",
    re.ASCII,
)
_LONGEST_KEY: Final = 1024


class Target(NamedTuple):
    """One server: its IP address, its port, and what comes before `/metrics` in its paths."""

    address: str
    port: int
    prefix: str = ""
    kind: str | None = None
    """One of KINDS; None where it has to be found out."""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """Its address."""
        return ipaddress.ip_address(self.address)

    @property
    def label(self) -> str:
        """Address and port, as they stand in labels, logs and the header Host."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def targets(text: str) -> tuple[Target, ...]:
    """The servers that the setting names. Raises SettingsError.

    Names other than localhost are not accepted: asking a name server would hold up the agent, and
    what is scraped is on this device.
    """
    found = tuple(_target(part.strip()) for part in text.split(",") if part.strip())
    if not 0 < len(found) <= MAX_TARGETS:
        raise SettingsError(f"scrape: {len(found)} servers; accepted are {ACCEPTED}")
    for target in found:
        if sum((target.address, target.port) == (one.address, one.port) for one in found) > 1:
            raise SettingsError(f"scrape: {target.label} is named twice; accepted is once")
    return found


def _target(text: str) -> Target:
    match = _TARGET.fullmatch(text)
    refusal = SettingsError(f"scrape: {shown(text, 200)}; accepted are {ACCEPTED}")
    if match is None or match["kind"] not in (None, *KINDS):
        raise refusal
    if match["prefix"].endswith("/metrics"):
        raise SettingsError(
            f"scrape: {shown(text, 200)}: the agent adds /metrics itself; accepted are {ACCEPTED}"
        )
    host = match["six"] or match["host"]
    port = int(match["port"] or 80)
    try:
        address = ipaddress.ip_address("127.0.0.1" if host.lower() == "localhost" else host)
    except ValueError:
        raise refusal from None
    if not 0 < port < 65536 or address.is_unspecified or address.is_multicast:
        raise refusal
    return Target(str(address), port, match["prefix"], match["kind"])


def read_key(path: Path | None) -> str | None:
    """The key in a file of one line. Raises SettingsError."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            key = file.read(_LONGEST_KEY + 1).strip()
    except OSError as error:
        raise SettingsError(f"scrape_key_file: {path}: {error.strerror}") from None
    if not 0 < len(key) <= _LONGEST_KEY or not all(32 < byte < 127 for byte in key):
        raise SettingsError(
            f"scrape_key_file: {path}: not a key; accepted is one line of 1 to {_LONGEST_KEY} "
            "printable ASCII characters without spaces"
        )
    return key.decode()
