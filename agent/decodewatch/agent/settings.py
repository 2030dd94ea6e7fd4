"""The settings of the agent. Each says what it bounds; see `decodewatch.shared.settings`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decodewatch.shared.broker import BrokerSettings
from decodewatch.shared.errors import SettingsError, shown
from decodewatch.shared.logs import FORMATS, LEVELS
from decodewatch.shared.settings import setting

_MEBIBYTE = 1 << 20
# What a socket's address holds on Linux, its final NUL included (sun_path).
_SOCKET_PATH_BYTES = 108


@dataclass(frozen=True)
class AgentSettings(BrokerSettings):
    """What `decodewatch agent run` does, beside where its broker is."""

    device: str | None = setting(
        None, "id of this device; where it is not set, one is made and kept in the state folder"
    )
    state_folder: Path | None = setting(
        None,
        "folder of the spool and the identity; where it is not set: $STATE_DIRECTORY, "
        "/var/lib/decodewatch for root, else decodewatch below $XDG_STATE_HOME or ~/.local/state",
    )
    socket: Path | None = setting(
        None,
        "inbox socket, at most 107 bytes; where it is not set: $DECODEWATCH_SOCKET, agent.sock "
        "below $RUNTIME_DIRECTORY, /run/decodewatch for root, $XDG_RUNTIME_DIR/decodewatch, else "
        "/tmp/decodewatch-<uid>. A socket passed by systemd is used instead of all of these",
    )
    socket_mode: str = setting(
        "0660",
        "who may connect to the inbox: user and group of the agent, or every process of the device",
        choices=("0660", "0666"),
    )
    sample_interval_s: float = setting(
        1.0, "seconds between two readings of every source", low=0.1, high=60
    )
    report_interval_s: float = setting(
        10.0,
        "seconds of one window, and of one sample while a runtime decodes; the spool is written so "
        "often then, and at once for turns and events",
        low=1,
        high=600,
    )
    idle_interval_s: float = setting(
        60.0,
        "seconds of one sample while nothing decodes; what keeps flash wear low",
        low=1,
        high=3600,
    )
    spool_limit_bytes: int = setting(
        64 * _MEBIBYTE,
        "the spool's file at most; what is oldest and least important goes when it is full",
        low=_MEBIBYTE,
        high=64 * 1024 * _MEBIBYTE,
    )
    pending_limit_bytes: int = setting(
        2 * _MEBIBYTE,
        "memory for records while the spool cannot be written; then the oldest samples are dropped",
        low=64 * 1024,
        high=256 * _MEBIBYTE,
    )
    turn_silence_s: float = setting(
        600.0,
        "seconds without a sign of life after which an open turn counts as lost (its process lives "
        "and is not connected) or is left out of the concurrency (it is connected)",
        low=10,
        high=86400,
    )
    log_level: str = setting("info", "least severe log lines to write", choices=LEVELS)
    log_format: str = setting("text", "form of a log line", choices=FORMATS)

    def state(self, environment: Mapping[str, str] = os.environ) -> Path:
        """The state folder, set or by the rules that its help states."""
        if self.state_folder is not None:
            return self.state_folder
        given = environment.get("STATE_DIRECTORY")
        if given:
            return Path(given.split(":")[0])
        if os.geteuid() == 0:
            return Path("/var/lib/decodewatch")
        below = environment.get("XDG_STATE_HOME")
        return (Path(below) if below else Path.home() / ".local/state") / "decodewatch"

    def socket_path(self, environment: Mapping[str, str] = os.environ) -> Path:
        """The inbox socket, set or by the rules that its help states.

        Raises SettingsError where it is longer than a socket's address can be.
        """
        path = self.socket or _default_socket(environment)
        if len(os.fsencode(path)) >= _SOCKET_PATH_BYTES:
            raise SettingsError(
                f"socket: {shown(str(path), 200)} has {len(os.fsencode(path))} bytes; "
                f"accepted are {_SOCKET_PATH_BYTES - 1}"
            )
        return path


def _default_socket(environment: Mapping[str, str]) -> Path:
    given = environment.get("DECODEWATCH_SOCKET")
    if given:
        return Path(given)
    folder = environment.get("RUNTIME_DIRECTORY")
    if folder:
        return Path(folder.split(":")[0]) / "agent.sock"
    if os.geteuid() == 0:
        return Path("/run/decodewatch/agent.sock")
    below = environment.get("XDG_RUNTIME_DIR")
    if below:
        return Path(below) / "decodewatch/agent.sock"
    return Path(f"/tmp/decodewatch-{os.geteuid()}/agent.sock")
