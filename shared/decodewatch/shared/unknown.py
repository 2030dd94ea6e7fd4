"""A figure that cannot be found, and why: for readers that give a reason in place of a figure."""

from collections.abc import Callable
from typing import TypeVar

from decodewatch.shared.model import MAX_REASON

_Found = TypeVar("_Found")


class Unknown(Exception):
    """Ends the search for a figure; its text is the reason."""


def or_reason(search: Callable[[], _Found]) -> tuple[_Found | None, str | None]:
    """What `search` finds, or None and why it found nothing."""
    try:
        return search(), None
    except Unknown as reason:
        return None, str(reason)[:MAX_REASON]
