"""How often something that anybody can cause may be told."""


class Allowance:
    """`most` at once, and one more every `every_us`; counts what had to be left out."""

    def __init__(self, most: int, every_us: int, now_us: int) -> None:
        self._most = most
        self._every = every_us
        self._left = most
        self._since = now_us
        self.untold = 0
        """Left out since the last one that was told; whoever tells the next sets it back."""

    def take(self, now_us: int) -> bool:
        """Whether one may be told now."""
        earned = (now_us - self._since) // self._every
        self._since += earned * self._every
        self._left = min(self._most, self._left + earned)
        if self._left:
            self._left -= 1
            return True
        self.untold += 1
        return False
