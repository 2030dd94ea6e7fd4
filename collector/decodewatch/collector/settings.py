"""The settings of the collector. Each says what it bounds; see `decodewatch.shared.settings`."""

from dataclasses import dataclass

from decodewatch.shared.broker import BrokerSettings
from decodewatch.shared.database import DatabaseSettings
from decodewatch.shared.logs import FORMATS, LEVELS
from decodewatch.shared.settings import setting

_MEBIBYTE = 1 << 20

DATABASE_ONLY = ("database", "state_folder", "log_level", "log_format")
"""The settings that a command needs which talks to no broker."""


@dataclass(frozen=True)
class CollectorSettings(BrokerSettings, DatabaseSettings):
    """What `decodewatch collector` does, beside where its broker and its database are."""

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
