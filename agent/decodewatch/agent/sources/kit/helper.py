"""Libraries that the agent does not load itself, each in a program of its own.

A helper is a file of `sources/helpers` that imports the library, and nothing of decodewatch, and
prints one JSON object a line about every second. One that cannot go on prints `{"failed": REASON,
"why": TEXT}` and ends. What the library does to its process, a hang or a gigabyte, costs the agent
nothing but its values.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.sources.kit.base import REASONS, Reason, Value
from decodewatch.agent.sources.kit.child import Child
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel

FOLDER: Final = Path(__file__).parents[1] / "helpers"

SILENCE_S: Final = 20.0
"""Until its first line, Python has to start and to import the library: seconds on a small board."""
STALE_S: Final = 3.0
"""A line counts for so long: one comes each second."""
REST_S: Final = 3600.0
"""A helper whose library is absent, denied or does not fit is left alone for so long."""

_FAILED: Final = b'{"failed"'
_LONGEST_WHY: Final = 160


def document(line: bytes) -> dict[str, Any]:
    """The object of a line; an empty one for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def part(whole: object, name: str) -> Any:
    """What an object of a document has by this name; None where it is no object or has no such."""
    return whole.get(name) if isinstance(whole, dict) else None


def number(found: object, low: float, high: float) -> Value | Reason:
    """A number of a document, or the reason that stands in its place; absent where it is None."""
    if found is None:
        return "absent"
    if isinstance(found, str):
        return _reason(found, otherwise="implausible")
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return "implausible"
    # Not NaN either. Compared only: JSON has integers that no float can hold.
    return found if low <= found <= high else "implausible"


class Helper:
    """The last line of a helper, which is started when it is asked for first."""

    def __init__(self, program: str, kernel: Kernel = KERNEL) -> None:
        self._kernel = kernel
        self._child = Child((sys.executable, str(FOLDER / program)), SILENCE_S, kernel)
        self._last = b""
        self._last_at = float("-inf")

    def read(self) -> bytes | Reason:
        """The last line where it is not older than `STALE_S`, or why there is none."""
        now = self._kernel.monotonic()
        lines = self._child.read()
        if isinstance(lines, str):
            reason: Reason = lines
        else:
            reason = "transient"
            for line in lines:
                if line.startswith(_FAILED):
                    self._last_at = float("-inf")
                    return self._failed(document(line))
                self._last, self._last_at = line, now
        return self._last if now - self._last_at <= STALE_S else reason

    def close(self) -> None:
        """End the helper."""
        self._child.close()
        self._last_at = float("-inf")

    def _failed(self, said: dict[str, Any]) -> Reason:
        reason = _reason(said.get("failed"), otherwise="transient")
        text = " ".join(str(said.get("why")).split())[:_LONGEST_WHY]
        why = "".join(char if char.isprintable() else "?" for char in text)
        self._child.fail(reason, f'said="{why}"', None if reason == "transient" else REST_S)
        return reason


def _reason(text: object, otherwise: Reason) -> Reason:
    return next((reason for reason in REASONS if reason == text), otherwise)
