"""Who tells of a turn: without them nobody can, whatever becomes of the process that decodes."""

import re
from pathlib import Path
from typing import Final

UNTOLD_US: Final = 15_000_000
"""A turn whose teller's connection closed counts as at work for so long; the wrapper connects again
within 5 s."""

_STAT: Final = re.compile(rb"^\d+ \(.*\) (\S) (?:\S+ ){18}(\d+) ", re.DOTALL)


class Teller:
    """One connection, and the process behind it."""

    def __init__(self, pid: int, root: Path = Path("/"), *, lasts: bool = True) -> None:
        """`pid` is of the process that connected, 0 where the agent does not see it. Where the
        connection does not `last` its end says nothing."""
        self.gone_us: int | None = None
        """When its connection closed; None where it has not."""
        self._file = root / "proc" / str(pid) / "stat"
        self._lasts = lasts
        self._started = _started(self._file) if pid else None

    def leave(self, now_us: int) -> None:
        """Its connection closed."""
        if self._lasts:
            self.gone_us = now_us

    def silent(self, heard_us: int, now_us: int) -> bool:
        """Whether a turn of which it told last at `heard_us` is told by nobody now: it may still
        come back."""
        return self.gone_us is not None and now_us - max(heard_us, self.gone_us) >= UNTOLD_US

    @property
    def ended(self) -> bool:
        """Whether it cannot come back: its process is gone, a zombie, or another one by now."""
        if self.gone_us is None or self._started is None:
            return False
        return _started(self._file) != self._started


def _started(stat: Path) -> int | None:
    """When a process started, in clock ticks since boot; None of one that is gone or not seen."""
    try:
        found = _STAT.match(stat.read_bytes())
    except OSError:
        return None
    return None if found is None or found[1] in b"ZXx" else int(found[2])
