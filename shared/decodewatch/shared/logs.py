"""Logging: one line an event on stderr, as key=value or as JSON.

`log = logs.get(__name__)`, then `log.info("batch stored", device=device, records=40)`.
"""

import json
import logging
import sys
import time
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class Log:
    """A named logger whose events carry fields.

    `every` on a call limits it to one line in so many seconds for this event, with the number of
    lines left out in between as `more`: a network that is gone for a week must not fill a disk.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._last: dict[str, tuple[float, int]] = {}

    def debug(self, event: str, **fields: Any) -> None:
        """Something only a developer looks for."""
        self._write(logging.DEBUG, event, 0, fields)

    def info(self, event: str, every: float = 0, **fields: Any) -> None:
        """Something that went as it should and that an operator may want to see."""
        self._write(logging.INFO, event, every, fields)

    def warning(self, event: str, every: float = 0, **fields: Any) -> None:
        """Something that decodewatch copes with."""
        self._write(logging.WARNING, event, every, fields)

    def error(self, event: str, every: float = 0, **fields: Any) -> None:
        """Something that a person should see to."""
        self._write(logging.ERROR, event, every, fields)

    def _write(self, level: int, event: str, every: float, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if every:
            now = time.monotonic()
            last, more = self._last.get(event, (-every, 0))
            if now - last < every:
                self._last[event] = last, more + 1
                return
            self._last[event] = now, 0
            if more:
                fields["more"] = more
        self._logger.log(level, event, extra={"fields": fields})


def get(name: str) -> Log:
    """The logger of one module: the last part of its dotted name is what a line shows."""
    return Log(name)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        where = record.name.rpartition(".")[2]
        line = f"{stamp}Z {record.levelname.lower()} {where}: {record.getMessage()}"
        for name, value in getattr(record, "fields", {}).items():
            line += f" {name}={_quoted(value)}"
        return f"{line} {_trace(record)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{name: _plain(value) for name, value in getattr(record, "fields", {}).items()},
        }
        if record.exc_info:
            line["trace"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(line)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _quoted(value: Any) -> str:
    text = str(value)
    plain = text.isprintable() and text and not any(mark in text for mark in ' "=')
    return text if plain else json.dumps(text)


def _trace(record: logging.LogRecord) -> str:
    assert record.exc_info
    return "trace=" + json.dumps(logging.Formatter().formatException(record.exc_info))


def setup(level: str = "info", form: str = "text") -> None:
    """Send all logging of this process to stderr in one form. Call once, from a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
