"""The settings of the collector. Each says what it bounds; see `decodewatch.shared.settings`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decodewatch.shared.broker import BrokerSettings
from decodewatch.shared.logs import FORMATS, LEVELS
from decodewatch.shared.settings import setting

_MEBIBYTE = 1 << 20


def state_folder(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The server's state folder: as given, or by the rules that the settings' help states."""
    if given is not None:
        return given
    by_systemd = environment.get("STATE_DIRECTORY")
    if by_systemd:
        return Path(by_systemd.split(":")[0])
    below = environment.get("XDG_DATA_HOME")
    return (Path(below) if below else Path.home() / ".local/share") / "decodewatch"


def default_database(folder: Path) -> str:
    """The URL of the SQLite file of a state folder."""
    return f"sqlite:///{folder.absolute() / 'decodewatch.db'}"


@dataclass(frozen=True)
class CollectorSettings(BrokerSettings):
    """What `decodewatch collector` does, beside where its broker is."""

    database: str | None = setting(
        None,
        "URL of the database, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; where it is "
        "not set: decodewatch.db in the state folder",
    )
    state_folder: Path | None = setting(
        None,
        "folder of the database; where it is not set: $STATE_DIRECTORY, else decodewatch below "
        "$XDG_DATA_HOME or ~/.local/share",
    )
    queue_messages: int = setting(
        512,
        "messages read and not yet stored at most; when they are so many, nothing more is read",
        low=1,
        high=100_000,
    )
    group_messages: int = setting(
        64, "messages stored in one transaction at most", low=1, high=1000
    )
    group_wait_ms: int = setting(
        50, "how long a message waits for others to share its transaction", low=0, high=1000
    )
    dead_letter_rows: int = setting(
        10_000, "dead letters kept, the newest ones", low=0, high=1_000_000
    )
    dead_letter_bytes: int = setting(
        4096, "bytes kept of the payload of a dead letter", low=0, high=_MEBIBYTE
    )
    health_port: int = setting(
        9464, "port of /healthz and /readyz on the loopback; 0 for none", low=0, high=65535
    )
    log_level: str = setting("info", "least severe log lines to write", choices=LEVELS)
    log_format: str = setting("text", "form of a log line", choices=FORMATS)

    def database_url(self, environment: Mapping[str, str] = os.environ) -> str:
        """The URL of the database, set or by the rules that its help states."""
        if self.database is not None:
            return self.database
        return default_database(state_folder(self.state_folder, environment))
