"""The settings of the agent. Each says what it bounds; see `decodewatch.shared.settings`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decodewatch.agent.android import is_android, user_folder
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
        None,
        "id of this device; where it is not set, one is made from a hash of a serial number of the "
        "hardware, or at random where it has none, and kept in the state folder",
    )
    identity_salt: str = setting(
        "",
        "a secret of the fleet that goes into that hash, so that nobody else can try out serial "
        "numbers; a device that has an id keeps it",
    )
    state_folder: Path | None = setting(
        None,
        "folder of the spool and the identity; where it is not set: $STATE_DIRECTORY, "
        "/var/lib/decodewatch for root (not on Android), else decodewatch below $XDG_STATE_HOME or "
        "~/.local/state",
    )
    socket: Path | None = setting(
        None,
        "inbox socket, at most 107 bytes; where it is not set: $DECODEWATCH_SOCKET, agent.sock "
        "below $RUNTIME_DIRECTORY, /run/decodewatch for root, $XDG_RUNTIME_DIR/decodewatch, else "
        "/tmp/decodewatch-<uid>; on Android that below $TMPDIR, also for root. A socket passed by "
        "systemd is used instead of all of these",
    )
    socket_mode: str = setting(
        "0660",
        "who may connect to the inbox: user and group of the agent, or every process of the device",
        choices=("0660", "0666"),
    )
    inbox_http_port: int = setting(
        0,
        "port of 127.0.0.1 on which the inbox is reached over HTTP as well, for applications that "
        "cannot reach its socket; 0 is off; needs inbox_http_token_file",
        low=0,
        high=65535,
    )
    inbox_http_token_file: Path | None = setting(
        None,
        "file that holds the token of such requests, one line of 16 to 512 characters without "
        "spaces",
    )
    scrape: str = setting(
        "",
        "servers on this device that are asked how they are (/metrics, /slots): up to 8 of "
        "[KIND=]http://ADDRESS:PORT, separated by commas; ADDRESS is an IP address or localhost, "
        "KIND llama-server or vllm, found out where it is not set",
    )
    scrape_interval_s: float = setting(
        10.0,
        "seconds between two rounds of questions to each of them; a llama-server answers between "
        "two batches, so that every round holds it up a little",
        low=1,
        high=3600,
    )
    scrape_timeout_s: float = setting(
        2.0,
        "seconds within which such an answer has to be whole; more where a batch takes longer",
        low=0.1,
        high=60,
    )
    scrape_key_file: Path | None = setting(
        None, "file that holds the API key of these servers, one line, where they want one"
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
    tegrastats: str = setting(
        "auto",
        "whether tegrastats is kept running on a Jetson where it shows how busy the memory is: as "
        "root",
        choices=("auto", "off"),
    )
    jtop: str = setting(
        "auto",
        "whether jetson-stats is asked, where its service runs and the extra `jetson` is installed",
        choices=("auto", "off"),
    )
    nvml: str = setting(
        "auto",
        "whether NVIDIA's driver is asked, where it is loaded and the extra `nvml` is installed; "
        "asking keeps the GPU of a laptop from sleeping",
        choices=("auto", "off"),
    )
    log_level: str = setting("info", "least severe log lines to write", choices=LEVELS)
    log_format: str = setting("text", "form of a log line", choices=FORMATS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inbox_http_port and self.inbox_http_token_file is None:
            raise SettingsError(
                f"inbox_http_port: {self.inbox_http_port} needs inbox_http_token_file, which is "
                "not set"
            )
        if self.inbox_http_token_file is not None and not self.inbox_http_port:
            raise SettingsError(
                f"inbox_http_token_file: {self.inbox_http_token_file} needs inbox_http_port, which "
                "is not set"
            )

    def sources_off(self) -> frozenset[str]:
        """The sources that are set to off."""
        choices = {"tegrastats": self.tegrastats, "jtop": self.jtop, "nvml": self.nvml}
        return frozenset(name for name, choice in choices.items() if choice == "off")

    def state(self, environment: Mapping[str, str] = os.environ) -> Path:
        """The state folder, set or by the rules that its help states."""
        if self.state_folder is not None:
            return self.state_folder
        given = environment.get("STATE_DIRECTORY")
        if given:
            return Path(given.split(":")[0])
        if os.geteuid() == 0 and not is_android():
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
    if os.geteuid() == 0 and not is_android():
        return Path("/run/decodewatch/agent.sock")
    below = environment.get("XDG_RUNTIME_DIR")
    if below:
        return Path(below) / "decodewatch/agent.sock"
    return user_folder(environment) / "agent.sock"
