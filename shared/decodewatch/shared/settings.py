"""Settings: one dataclass a component, filled from defaults, a file, the environment and flags.

A component declares a frozen dataclass whose fields are made with `setting`; each gives its
default, its help and what it accepts. `load` fills it; later sources win:

1. the default;
2. the component's table in the TOML file, e.g. `[agent]` with `broker_port = 8883`;
3. the environment, e.g. `DECODEWATCH_AGENT_BROKER_PORT=8883`;
4. the command's flags, e.g. `--broker-port 8883`.

Every refusal is a SettingsError that names the source, the setting, the value and what is accepted.
"""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from decodewatch.shared.errors import SettingsError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_FILE = Path("/etc/decodewatch/settings.toml")
TABLES = {
    "agent": "decodewatch agent run",
    "proxy": "decodewatch agent proxy",
    "collector": "decodewatch collector",
    "dashboard": "decodewatch dashboard run",
    "broker": "decodewatch broker run",
    "up": "decodewatch up",
}
"""The tables that a settings file may have, and the command that each is for."""
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a setting means and accepts. `low` and `high` bound numbers, `choices` text."""

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field of a settings dataclass, annotated str, int, float, bool, Path or X | None."""
    return dataclasses.field(
        default=default, metadata={"accepts": Accepts(help, low, high, choices)}
    )


@dataclass(frozen=True, slots=True)
class Description:
    """One setting as documentation and flags need it."""

    name: str
    type: type
    default: Any
    accepts: Accepts

    @property
    def accepted(self) -> str:
        """What the setting accepts, in words."""
        if self.accepts.choices:
            return " or ".join(self.accepts.choices)
        words = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
        word = words.get(self.type, "text")
        low, high = self.accepts.low, self.accepts.high
        if low is not None and high is not None:
            return f"{word} from {_plain(low)} to {_plain(high)}"
        return word if low is None else f"{word}, at least {_plain(low)}"

    @property
    def metavar(self) -> str:
        """What stands for a value in the flag's help."""
        if self.accepts.choices:
            return "{" + ",".join(self.accepts.choices) + "}"
        words = {bool: "{true,false}", int: "NUMBER", float: "NUMBER", Path: "PATH"}
        return words.get(self.type, "TEXT")


def _plain(bound: float) -> str:
    """A bound with all its digits, as one would write it into the file."""
    return str(int(bound)) if bound == int(bound) else repr(bound)


def describe(kind: type) -> list[Description]:
    """All settings of a component, in the order of their declaration."""
    hints = typing.get_type_hints(kind)
    found = []
    for item in dataclasses.fields(kind):
        options = [one for one in typing.get_args(hints[item.name]) if one is not type(None)]
        plain = options[0] if options else hints[item.name]
        found.append(Description(item.name, plain, item.default, item.metadata["accepts"]))
    return found


def add_flags(
    parser: argparse.ArgumentParser, kind: type, only: Collection[str] | None = None
) -> None:
    """Give a command one flag a setting, or those in `only`, and --settings for the file."""
    parser.add_argument(
        "--settings",
        metavar="FILE",
        help=f"TOML file (default: $DECODEWATCH_SETTINGS, or {DEFAULT_FILE} where it exists)",
    )
    for item in describe(kind):
        if only is not None and item.name not in only:
            continue
        default = "" if item.default in (None, "") else f" (default: {item.default})"
        # What is no number is told by its metavar.
        accepted = f"; {item.accepted}" if item.type in (int, float) else ""
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            metavar=item.metavar,
            help=f"{item.accepts.help}{accepted}{default}".replace("%", "%%"),
        )


def load(
    kind: type[_T],
    section: str,
    flags: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> _T:
    """Fill a component's settings. `section` is one of TABLES, `flags` its command's arguments.

    Raises SettingsError where a source names an unknown setting or gives a value of the wrong type
    or out of range, or where the file cannot be read or has something in it that is for nobody.
    """
    known = {item.name: item for item in describe(kind)}
    values: dict[str, Any] = {}
    file, asked_for = _file(flags, environment)
    for name, value in _table(file, section, asked_for).items():
        where = f"{file}: [{section}] {name}"
        if name not in known:
            raise SettingsError(f"{where}: no such setting; known are {', '.join(sorted(known))}")
        values[name] = _convert(known[name], value, where, from_text=False)
    prefix = f"DECODEWATCH_{section.upper()}_"
    for variable, value in environment.items():
        if variable.startswith(prefix):
            name = variable[len(prefix) :].lower()
            if name not in known:
                raise SettingsError(
                    f"${variable}: no such setting; known are {', '.join(sorted(known))}"
                )
            values[name] = _convert(known[name], value, f"${variable}", from_text=True)
    for name, item in known.items():
        if flags.get(name) is not None:
            flag = "--" + name.replace("_", "-")
            values[name] = _convert(item, flags[name], flag, from_text=True)
    return kind(**values)


def _file(flags: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Path, bool]:
    """The settings file, and whether somebody asked for it (then it must exist)."""
    named = flags.get("settings") or environment.get("DECODEWATCH_SETTINGS")
    return (Path(named), True) if named else (DEFAULT_FILE, False)


def _table(file: Path, section: str, asked_for: bool) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        if asked_for:
            raise SettingsError(f"{file}: no such settings file") from None
        return {}
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{file}: byte {error.start} is not UTF-8; accepted is a TOML file in UTF-8"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from None
    # Those of other components too: the file may be shared, and a wrong name belongs to nobody.
    for name, value in document.items():
        if name not in TABLES:
            known = ", ".join(f"[{table}]" for table in TABLES)
            raise SettingsError(f"{file}: {shown(name)}: no such table; known are {known}")
        if not isinstance(value, dict):
            raise SettingsError(f"{file}: {name}: {shown(value)}; accepted is a table [{name}]")
    table: dict[str, Any] = document.get(section, {})
    return table


def _convert(item: Description, value: Any, where: str, *, from_text: bool) -> Any:
    refusal = SettingsError(f"{where}: {shown(value)}; accepted is {item.accepted}")
    if from_text:
        value = _parse(item.type, value, refusal)
    if isinstance(value, str) and not _is_line(value):
        raise refusal
    try:
        if item.type is float and type(value) is int:
            value = float(value)
        if item.type is Path and isinstance(value, str) and value:
            value = Path(value).expanduser()
    except (OverflowError, RuntimeError):  # too large for a float; ~ of nobody
        raise refusal from None
    if not isinstance(value, item.type) or (item.type is not bool and type(value) is bool):
        raise refusal
    accepts = item.accepts
    if accepts.choices and value not in accepts.choices:
        raise refusal
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value:
            raise refusal
        if (accepts.low is not None and value < accepts.low) or (
            accepts.high is not None and value > accepts.high
        ):
            raise refusal
    return value


def _is_line(text: str) -> bool:
    """Whether text can be a path, a name or a host: one line, and what UTF-8 can hold."""
    # A byte of the command line that is not UTF-8 arrives as a lone surrogate.
    return not any(letter in "\0\n\r" or "\ud800" <= letter <= "\udfff" for letter in text)


def _parse(kind: type, text: str, refusal: SettingsError) -> Any:
    if kind is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise refusal
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise refusal from None
    return text
