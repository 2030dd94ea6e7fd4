"""How agent and collector reach the MQTT broker: their common settings, and their client."""

import math
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decodewatch.shared import logs
from decodewatch.shared.errors import SettingsError
from decodewatch.shared.settings import setting

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.reasoncodes import ReasonCode

# What it warns of is a setting, and not only the broker's.
_log = logs.get("decodewatch.shared.settings")

UNANSWERED = (
    "closed by the broker before it answered: user or password not accepted, or it wants TLS, no "
    "TLS, or another MQTT version?"
)
# A setting that means nothing without the other one.
_NEEDS = (
    ("broker_password_file", "broker_user"),
    ("broker_certificate_file", "broker_ca_file"),
    ("broker_key_file", "broker_certificate_file"),
)


@dataclass(frozen=True)
class BrokerSettings:
    """Where the broker is and how to be let in; agent and collector add their own settings."""

    broker_host: str = setting("127.0.0.1", "host name or address of the MQTT broker")
    broker_port: int = setting(1883, "port of the MQTT broker", low=1, high=65535)
    broker_protocol: str = setting("5", "MQTT version", choices=("5", "3.1.1"))
    broker_user: str | None = setting(None, "user name at the broker")
    broker_password_file: Path | None = setting(None, "file that holds the password, one line")
    broker_ca_file: Path | None = setting(None, "certificate authority of the broker; turns TLS on")
    broker_certificate_file: Path | None = setting(None, "this client's certificate, for TLS")
    broker_key_file: Path | None = setting(None, "this client's private key, for TLS")
    broker_keepalive_s: int = setting(30, "seconds between signs of life", low=5, high=3600)

    def __post_init__(self) -> None:
        """Raises SettingsError where a setting would be silently ignored."""
        for name, other in _NEEDS:
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise SettingsError(
                    f"{name}: {getattr(self, name)} needs {other}, which is not set"
                )


def make_client(settings: BrokerSettings, client_id: str) -> "Client":
    """A client that is not connected yet, with a clean session, credentials and TLS as set.

    Raises SettingsError where a password, certificate or key file cannot be used.
    """
    # Not at the top: importing paho costs 5 MiB, which what only reads settings need not pay.
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

    version5 = settings.broker_protocol == "5"
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if version5 else True,
        protocol=MQTTProtocolVersion.MQTTv5 if version5 else MQTTProtocolVersion.MQTTv311,
    )
    if settings.broker_user is not None:
        client.username_pw_set(settings.broker_user, _password(settings.broker_password_file))
    if settings.broker_ca_file is not None:
        client.tls_set_context(_tls(settings))
    return client


def why_ended(code: "ReasonCode", *, answered: bool) -> str:
    """Why a connection ended, from the reason that paho gives to `on_disconnect`.

    `answered` is whether the broker had answered to the connection before.
    """
    if not answered:
        return UNANSWERED
    # paho has no better word where the broker died, or the network did.
    return "connection closed" if str(code) == "Unspecified error" else str(code)


def warn_of_readers(setting_name: str, file: Path) -> None:
    """Warn, once a process, where every user of this machine may read a secret."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return  # whoever opens it says so
    if mode & stat.S_IROTH:
        event = f"{setting_name} can be read by every user of this machine"
        _log.warning(event, every=math.inf, file=file, mode=f"{mode:04o}", accepted="0600 or 0640")


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    warn_of_readers("broker_password_file", file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"broker_password_file: {file}: cannot be read: {error}") from None
    if len(lines) != 1:
        raise SettingsError(f"broker_password_file: {file}: {len(lines)} lines; accepted is one")
    return lines[0]


def _tls(settings: BrokerSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(settings.broker_ca_file))
        if settings.broker_certificate_file is not None:
            key = settings.broker_key_file or settings.broker_certificate_file
            warn_of_readers("broker_key_file", key)
            context.load_cert_chain(settings.broker_certificate_file, settings.broker_key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"broker_ca_file, broker_certificate_file or broker_key_file: {error}"
        ) from None
    return context
