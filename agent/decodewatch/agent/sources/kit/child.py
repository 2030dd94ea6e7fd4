"""A program that runs on and prints a line about every second: supervised, never waited for."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from decodewatch.agent.sources.kit.base import Reason
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, Spawned, errno_name, reason_of

log = logging.getLogger(__name__)

LINE_LIMIT: Final = 64 * 1024
"""Bytes of a line; a program that prints a longer one is ended."""
MOST_LINES: Final = 16
"""Lines of one `read`; of more than these the last are kept."""
_READ_LIMIT: Final = 256 * 1024
"""Bytes taken at one `read`; a program that prints more is held up by its full pipe."""

FIRST_BACK_OFF_S: Final = 5.0
LONGEST_BACK_OFF_S: Final = 3600.0
STEADY_S: Final = 60.0
"""A program that has printed lines for so long is well again: its next failure is a first one."""


class Child:
    """A program of which each line is news, started again when it fails.

    `read` returns at once. A program that prints no whole line for `silence_s` is ended, as is one
    that ends itself; each time in a row it is left alone for twice as long, from `FIRST_BACK_OFF_S`
    to `LONGEST_BACK_OFF_S`. One that is absent or denied is tried again after `REPROBE_S`. Each
    failure is logged, but not over and over while it is the same.
    """

    def __init__(
        self,
        command: Sequence[str],
        silence_s: float,
        kernel: Kernel = KERNEL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = tuple(command)
        self._silence_s = silence_s
        self._kernel = kernel
        self._environment = dict(environment or {})
        self._child: Spawned | None = None
        self._half = b""
        self._steady_at = 0.0
        self._heard_at = 0.0
        self._due_at = float("-inf")
        self._back_off_s = FIRST_BACK_OFF_S
        self._reason: Reason = "transient"
        self._said: str | None = None

    def read(self) -> list[bytes] | Reason:
        """The whole lines since the last call, without their newlines, or why none can come.

        Empty while the next line is to come.
        """
        now = self._kernel.monotonic()
        if self._child is None and now >= self._due_at:
            self._start(now)
        child = self._child
        if child is None:
            return self._reason
        ended = child.status() is not None  # before reading: all its lines are there then
        lines, open_ = self._take(child)
        if lines:
            self._heard_at = now
            if now >= self._steady_at:
                self._back_off_s, self._said = FIRST_BACK_OFF_S, None
        if len(self._half) > LINE_LIMIT:
            self.fail("implausible", f"printed_a_line_longer_than={LINE_LIMIT}")
        elif (ended or not open_) and not lines:  # its last lines count; the next call sees the end
            status = child.status()
            self.fail("transient", "closed_its_output" if status is None else f"status={status}")
        elif now - self._heard_at > self._silence_s:
            self.fail("transient", f"printed_nothing_for_s={self._silence_s:g}")
        return lines if self._child is not None else self._reason

    def fail(self, reason: Reason, why: str, rest_s: float | None = None) -> None:
        """End the program; until it is started again, `read` has this reason.

        That is after `rest_s`, or where it is None after the usual time.
        """
        self._end()
        if rest_s is None:
            rest_s = self._back_off_s
            self._back_off_s = min(2 * rest_s, LONGEST_BACK_OFF_S)
        self._reason = reason
        self._due_at = self._kernel.monotonic() + rest_s
        if why != self._said:
            self._said = why
            # That a device has no such program is no fault of it.
            level = logging.INFO if reason == "absent" else logging.WARNING
            command = " ".join(self._command)
            log.log(
                level,
                "child gives nothing command=%s %s reason=%s retry_s=%.0f",
                command,
                why,
                reason,
                rest_s,
            )

    def close(self) -> None:
        """End the program where it runs; a later `read` starts it again."""
        self._end()
        self._due_at = float("-inf")

    def _start(self, now: float) -> None:
        self._heard_at = now
        self._steady_at = now + STEADY_S
        try:
            self._child = self._kernel.spawn(self._command, self._environment)
        except OSError as error:
            self.fail(reason_of(error), f"errno={errno_name(error)}", REPROBE_S)

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._half = b""

    def _take(self, child: Spawned) -> tuple[list[bytes], bool]:
        """The last of the whole lines that have come, and whether more can come."""
        kept: list[bytes] = []
        taken = 0
        chunk: bytes | None = b""
        while taken < _READ_LIMIT and len(self._half) <= LINE_LIMIT and (chunk := child.read()):
            taken += len(chunk)
            *lines, self._half = (self._half + chunk).split(b"\n")
            kept = (kept + lines)[-MOST_LINES:]
        return kept, chunk is not None
