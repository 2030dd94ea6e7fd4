"""Where the server's database is: the settings that its collector and its dashboard share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from decodewatch.shared.settings import setting


@dataclass(frozen=True)
class DatabaseSettings:
    """Where the database is; the base of the collector's and the dashboard's settings."""

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

    def database_url(self, environment: Mapping[str, str] = os.environ) -> str:
        """The URL of the database, set or by the rules that its help states."""
        if self.database is not None:
            return self.database
        return default_database(state_folder(self.state_folder, environment))


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
    # A folder may be called `a?b` or `100%`: in a URL these mean something else.
    return f"sqlite:///{quote(str(folder.absolute() / 'decodewatch.db'))}"
