"""The settings of the dashboard; see `decodewatch.shared.settings`."""

from dataclasses import dataclass

from decodewatch.shared.database import DatabaseSettings
from decodewatch.shared.logs import FORMATS, LEVELS
from decodewatch.shared.settings import load, setting


@dataclass(frozen=True)
class DashboardSettings(DatabaseSettings):
    """What `decodewatch dashboard` does."""

    listen_host: str = setting("127.0.0.1", "address to listen on: the loopback, in this version")
    listen_port: int = setting(8501, "port to listen on", low=1, high=65535)
    refresh_s: int = setting(
        5, "seconds between two refreshes of an open page; long periods refresh more rarely",
        low=1, high=3600,
    )  # fmt: skip
    log_level: str = setting("info", "least severe log lines to write", choices=LEVELS)
    log_format: str = setting("text", "form of a log line", choices=FORMATS)


_active: DashboardSettings | None = None


def activate(settings: DashboardSettings | None) -> None:
    """Make these the settings of every page: Streamlit passes them no arguments."""
    global _active
    _active = settings


def active() -> DashboardSettings:
    """The settings of the pages: the command's, or in `streamlit run app.py` those of file and
    environment. Raises SettingsError where the latter are wrong."""
    return _active if _active is not None else load(DashboardSettings, "dashboard", {})
