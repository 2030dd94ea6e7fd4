"""From the steps that applications report to windows: what one runtime decoded in one interval."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from decodewatch.shared.records import Stratum, Window
from decodewatch.shared.sketch import Sketch

Step = tuple[int | None, int]
"""The gap to the step before in microseconds, None where it is not a gap of decoding (the first
step of a turn, a device that slept), and how many tokens the step produced."""

MOST_STRATA: Final = 256
MOST_BUCKETS: Final = 8192
"""What one window record holds, and what fits into one batch with room to spare (some 4 bytes a
bucket); a window with as many is closed early."""


class Gap(NamedTuple):
    """One gap as the percentiles count it: `us` a token, once for each of `tokens`."""

    octave: int | None
    us: int
    tokens: int


def octave(depth: int | None) -> int | None:
    """floor(log2(depth)); None where the depth is not known, 0 for a depth of 0."""
    return None if depth is None else max(depth, 1).bit_length() - 1


def gaps(steps: Iterable[Step], depth: int | None) -> Iterator[Gap]:
    """The gaps of successive steps, of which the last left the context at `depth` tokens.

    A step of k tokens counts k times as gap/k, at the depth that it attended to: that before it.
    """
    known = list(steps)
    at = None if depth is None else depth - sum(tokens for _, tokens in known)
    for us, tokens in known:
        if us is not None and tokens > 0:
            yield Gap(
                octave(at), us if tokens == 1 or us == 0 else max(1, round(us / tokens)), tokens
            )
        if at is not None:
            at = max(at, 0) + tokens


def stretches(
    steps: Sequence[Step], depth: int | None, last_us: int, throttle_at: Callable[[int], str]
) -> list[tuple[Sequence[Step], int | None, str]]:
    """Successive steps, cut where the throttle state changed: those of each state, the depth at
    which the last of them left the context, and the state.

    `depth` is that after the last step, which was made at `last_us`. The steps before one that is
    no gap were made before it, nobody knows when: they count as made with it.
    """
    found: list[tuple[Sequence[Step], int | None, str]] = []
    at, behind = last_us, depth
    end = len(steps)
    state = throttle_at(at)
    for place in range(len(steps) - 1, -1, -1):
        now = throttle_at(at)
        if now != state:
            part = steps[place + 1 : end]
            found.append((part, behind, state))
            if behind is not None:
                behind -= sum(tokens for _, tokens in part)
            state, end = now, place + 1
        at -= steps[place][0] or 0
    found.append((steps[:end], behind, state))
    found.reverse()
    return found


class WindowBuilder:
    """The window of one runtime that is being filled."""

    def __init__(self, runtime: str, now_us: int) -> None:
        self._runtime = runtime
        self._start(now_us)

    def _start(self, now_us: int) -> None:
        self._since = now_us
        self._tokens = self._steps = 0
        self._strata: dict[tuple[int | None, int, str], Sketch] = {}

    @property
    def full(self) -> bool:
        """Whether it has to be closed before more steps are added."""
        # One progress message has steps of 64 octaves of depth at most.
        return (
            len(self._strata) > MOST_STRATA - 64
            or sum(len(sketch.counts) for sketch in self._strata.values()) > MOST_BUCKETS
        )

    def add(
        self, steps: Iterable[Step], depth: int | None, concurrency: int, throttle: str
    ) -> None:
        """Count steps that were made with so many turns open in this throttle state."""
        known = list(steps)
        self._steps += len(known)
        self._tokens += sum(tokens for _, tokens in known)
        for gap in gaps(known, depth):
            stratum = (gap.octave, concurrency, throttle)
            sketch = self._strata.get(stratum)
            if sketch is None:
                sketch = self._strata[stratum] = Sketch()
            sketch.add(gap.us, gap.tokens)

    def close(self, now_us: int) -> Window | None:
        """The window up to now, or None where nothing was decoded; the next one begins."""
        made = None
        if self._steps:
            made = Window(
                runtime=self._runtime,
                t=now_us,
                duration_us=max(now_us - self._since, 1),
                tokens=self._tokens,
                steps=self._steps,
                strata=tuple(
                    Stratum(*key, sketch)
                    for key, sketch in sorted(
                        self._strata.items(),
                        key=lambda item: (item[0][0] is None, item[0][0] or 0, *item[0][1:]),
                    )
                ),
            )
        self._start(now_us)
        return made
