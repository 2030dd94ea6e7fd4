"""What the wrapper has to say to the application's log: each thing once, and never by raising."""

import logging
from typing import Final

_log = logging.getLogger("decodewatch.agent")
_MOST: Final = 256
_said: set[str] = set()


def once(key: str, message: str, *details: object, trace: bool = False) -> None:
    """Log a warning, unless one with this key was logged before. `trace` adds the exception."""
    if key in _said or len(_said) >= _MOST:
        return
    _said.add(key)
    try:
        _log.warning(message, *details, exc_info=trace)
    except Exception:
        # The application's own handler failed. There is nobody left to tell, and the decode loop
        # must not pay for it.
        return
