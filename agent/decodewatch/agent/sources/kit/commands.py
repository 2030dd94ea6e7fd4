"""Programs that print what no file shows, such as `nvpmodel -q`: never waited for."""

import logging
from collections.abc import Sequence
from typing import Final

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, Spawned, errno_name, reason_of

log = logging.getLogger(__name__)

OUTPUT_LIMIT: Final = 64 * 1024
"""Bytes of a program's output; one that prints more is ended."""


class PolledCommand:
    """A program that is run every `every_s` seconds, and its last output.

    `read` starts it, or looks whether it has ended, and returns at once. One that is absent or
    denied, fails, or does not end within `deadline_s` is left alone for `REPROBE_S`, and said so
    once.
    """

    def __init__(
        self, command: Sequence[str], every_s: float, deadline_s: float, kernel: Kernel = KERNEL
    ) -> None:
        self._command = tuple(command)
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._kernel = kernel
        self._child: Spawned | None = None
        self._printed = b""
        self._started_at = 0.0
        self._due_at = float("-inf")
        self._last: bytes | Reason = "transient"
        self._said: str | None = None

    def read(self) -> bytes | Reason:
        """The last output, or why there is none; `transient` until it has run once."""
        now = self._kernel.monotonic()
        if self._child is None and now >= self._due_at:
            self._start(now)
        if self._child is not None:
            self._look(self._child, now)
        return self._last

    def close(self) -> None:
        """End the program where it runs; a later `read` starts it again."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._due_at = float("-inf")

    def _start(self, now: float) -> None:
        self._printed = b""
        self._started_at = now
        self._due_at = now + self._every_s
        try:
            self._child = self._kernel.spawn(self._command)
        except OSError as error:
            self._fail(now, reason_of(error), f"errno={errno_name(error)}")

    def _look(self, child: Spawned, now: float) -> None:
        # Before reading: all that one printed which has ended is there then. Its output need not be
        # closed, another program may hold it that it has started and left behind.
        status = child.status()
        while chunk := child.read():
            self._printed += chunk
            if len(self._printed) > OUTPUT_LIMIT:
                self._fail(now, "implausible", f"printed_more_than={OUTPUT_LIMIT}")
                return
        if status is None:
            if now - self._started_at > self._deadline_s:
                self._fail(now, "transient", f"not_ended_after_s={self._deadline_s:g}")
        else:
            child.kill()
            self._child = None
            if status == 0:
                self._last, self._said = self._printed, None
            else:
                self._fail(now, "unsupported", f"status={status}")

    def _fail(self, now: float, reason: Reason, why: str) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._last = reason
        self._due_at = now + REPROBE_S
        if why != self._said:
            self._said = why
            log.info(
                "command gives nothing command=%s %s reason=%s retry_s=%.0f",
                self._command[0],
                why,
                reason,
                REPROBE_S,
            )
