"""From the stamps of a turn's steps to its figures: counts, times, and sketches by depth. Pure."""

from array import array
from collections.abc import Iterable
from typing import Final

from decodewatch.shared.sketch import Sketch

Stamp = int | tuple[int, int]
"""When a step came, in nanoseconds of the monotonic clock, with its tokens where not one. 0 tokens:
no step; the gap between its neighbours is not one of decoding."""

Step = tuple[int | None, int]
"""The gap to the step before in microseconds, and how many tokens the step produced. The gap is
None where it is not one of decoding: the first step of a turn, a device that slept, a reader that
held the engine up."""

MOST_UNPLACED: Final = 32_768
"""Steps kept one by one (16 bytes each) while the number of prompt tokens is not known, because the
engine reports it at the end. More than that go where the depth is unknown."""


class Tally:
    """The figures of one turn so far. Times are nanoseconds of the monotonic clock."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.first_tokens = 0
        self.shared_tokens = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.held_up = False
        """Whether a gap was not one of decoding though the device was awake: what lies between the
        first and the last step is then no time of decoding either."""
        self._held = False  # the next gap is such a one
        self._itl: dict[int | None, Sketch] = {}
        self._gaps = array("Q")
        self._sizes = array("L")
        self._depth_given_up = False

    def add(
        self,
        stamps: Iterable[Stamp],
        prompt_tokens: int | None,
        awake_since: int = 0,
    ) -> list[Step]:
        """Count steps in the order in which they came, and return them.

        A gap that began before `awake_since` is not one of decoding: the device slept in it, or
        may have.
        """
        self._place(prompt_tokens)
        made: list[Step] = []
        for stamp in stamps:
            at, tokens = (stamp, 1) if isinstance(stamp, int) else stamp
            if not tokens:
                self._held = True
                continue
            before = self.last_ns
            gap: int | None = None
            held, self._held = self._held, False
            if before is None:
                self.first_ns = at
                self.first_tokens = tokens
            elif held:
                self.held_up = True
            elif before >= awake_since:
                # A gap of less than a microsecond is short, not zero.
                gap = max(1, round((at - before) / 1000)) if at > before else 0
            self._count(gap, tokens, prompt_tokens)
            self.last_ns = at
            self.steps += 1
            self.tokens += tokens
            made.append((gap, tokens))
        return made

    def itl(self, prompt_tokens: int | None) -> tuple[tuple[int | None, Sketch], ...]:
        """The gaps by depth octave, now that nothing more will be known of the prompt."""
        self._place(prompt_tokens)
        if prompt_tokens is None:
            self._give_up_depth()
        return tuple(sorted(self._itl.items(), key=lambda item: (item[0] is None, item[0] or 0)))

    def _count(self, gap: int | None, tokens: int, prompt_tokens: int | None) -> None:
        if gap is not None and tokens > 1:
            self.shared_tokens += tokens
        if prompt_tokens is not None:
            self._sketch(gap, tokens, prompt_tokens + self.tokens)
        elif self._depth_given_up:
            self._sketch(gap, tokens, None)
        else:
            self._gaps.append(gap or 0)  # 0: none to count
            self._sizes.append(tokens)
            if len(self._gaps) >= MOST_UNPLACED:
                self._give_up_depth()

    def _sketch(self, gap: int | None, tokens: int, depth: int | None) -> None:
        if gap is None:
            return
        octave = None if depth is None else max(depth, 1).bit_length() - 1
        sketch = self._itl.get(octave)
        if sketch is None:
            sketch = self._itl[octave] = Sketch()
        # A chunk of k tokens counts as k values of gap/k.
        sketch.add(gap if tokens == 1 or gap == 0 else max(1, round(gap / tokens)), tokens)

    def _place(self, prompt_tokens: int | None) -> None:
        """Put the steps kept one by one where they belong, if that is known now."""
        if prompt_tokens is None or not self._gaps:
            return
        depth = prompt_tokens
        for gap, tokens in zip(self._gaps, self._sizes, strict=True):
            self._sketch(gap or None, tokens, depth)
            depth += tokens
        self._forget()

    def _give_up_depth(self) -> None:
        for gap, tokens in zip(self._gaps, self._sizes, strict=True):
            self._sketch(gap or None, tokens, None)
        self._forget()
        self._depth_given_up = True

    def _forget(self) -> None:
        self._gaps = array("Q")
        self._sizes = array("L")
