"""Values out of JSON that a server answered with: checked, because anybody may have written it."""

import json
from collections.abc import Iterable
from typing import Any


def total(values: Iterable[int | None]) -> int | None:
    """Their sum; None where one is."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found


def load_json(body: bytes) -> Any:
    """What a JSON document says; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def whole(value: Any) -> int | None:
    """A whole number that is not negative and fits into a record; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def words(value: Any, limit: int) -> str | None:
    """Text that a record can hold, cut to `limit` characters; None for anything else."""
    if not isinstance(value, str):
        return None
    return "".join(char if char.isprintable() else "?" for char in value)[:limit] or None
