"""Waiting for something to become true, with a deadline instead of a sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def until(probe: Callable[[], _T], seconds: float = 10, what: str = "") -> _T:
    """The first truthy answer of `probe`. Fails the test where none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or probe}; last answer {answer!r}")
        time.sleep(0.02)
