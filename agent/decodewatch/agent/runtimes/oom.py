"""Whether the kernel killed it: what a counter of OOM kills rose by, claimed once a kill."""

from typing import Final

WINDOW_US: Final = 5_000_000
"""A kill belongs to a death that is noticed at most so long after the counter rose: a process with
much memory needs a while to go."""


class KillCounter:
    """Follows one counter of OOM kills, of the device or of a cgroup."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._kills = 0
        self._at = 0

    @property
    def known(self) -> bool:
        """Whether the counter could be read the last time."""
        return self._last is not None

    def see(self, count: int | None, now_us: int) -> None:
        """Take in the counter as it is now; None where it cannot be read."""
        if count is not None and self._last is not None and count > self._last:
            self._kills = self.kills(now_us) + count - self._last
            self._at = now_us
        self._last = count

    def kills(self, now_us: int) -> int:
        """The kills of the last seconds that no death has claimed."""
        return self._kills if now_us - self._at <= WINDOW_US else 0

    def claim(self, now_us: int) -> bool:
        """Whether a death that is noticed now was such a kill; that kill is then used up."""
        self._kills = self.kills(now_us)
        if not self._kills:
            return False
        self._kills -= 1
        return True
