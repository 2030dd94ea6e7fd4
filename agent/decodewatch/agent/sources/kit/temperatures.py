"""What sensors of temperature say that measure none. Pure."""

from typing import Final

_NOTHING_C: Final = frozenset({0.0, 0.05})
"""What a part that is off, or was never fitted, reads: 0, which is 0.05 C where firmware counts in
tenths of a kelvin (ACPI)."""
_NEAR_C: Final = 10.0


class Nothing:
    """Whether the 0 of a sensor is a temperature: only where it was near to that before.

    Nothing cools by tens of degrees from one reading to the next. A device that is switched on in
    a frost has no value while it is at 0 to the last digit.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: float | None = None

    def see(self, celsius: float) -> bool:
        """Take in a reading; True where nothing was measured."""
        if celsius in _NOTHING_C and (self._last is None or abs(self._last) > _NEAR_C):
            return True
        self._last = celsius
        return False
