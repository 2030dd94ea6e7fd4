"""What the device is and how it is set: told at the start, and when it changes. Pure but for files.

`device_described` carries all that is known; `<measurement>_changed`, such as
`power_mode_changed`, tells one word that a source reads. Each is told once a minute at most: what
went back in the meantime is not told.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from decodewatch.agent.hardware import ceiling, measurements
from decodewatch.agent.hardware.board import Board
from decodewatch.agent.hardware.ceiling import Clocks
from decodewatch.agent.sources.kit.base import Reading
from decodewatch.agent.sources.kit.common import DRAM_HW_MAX, DRAM_MAX, POWER_MODE
from decodewatch.shared.devices import DESCRIBED
from decodewatch.shared.records import Scalar

Told = tuple[str, dict[str, Scalar]]

_EMC_CAP: Final = "power_cap_hertz:emc"
_SETTINGS: Final = frozenset({POWER_MODE.name, DRAM_MAX.name, DRAM_HW_MAX.name, _EMC_CAP})
_NAMES: Final = frozenset(key.partition(":")[0] for key in _SETTINGS)
_SECOND_US: Final = 1_000_000
_EVERY_US: Final = 60 * _SECOND_US
_LOOK_US: Final = 10 * _SECOND_US
"""So often the file of measurements is looked at."""
_PATIENCE_US: Final = 5 * _SECOND_US
"""So long the first description waits for what takes its time, such as a program's output."""
_MOST_WORDS: Final = 64


class DeviceWatch:
    """Sees the readings of each tick, and says which events they make."""

    def __init__(self, board: Board, folder: Path, identified_by: str | None, now_us: int) -> None:
        """`folder` is the state folder, `identified_by` what the device's id was made from."""
        self._board = board
        self._folder = folder
        self._identified_by = identified_by
        self._began = now_us
        self._described: dict[str, Scalar] | None = None
        self._described_at = now_us - _EVERY_US
        self._measured: Sequence[measurements.Measurement] = ()
        self._stamp: tuple[int, int] | None = None
        self._look_at = now_us
        self._words: dict[str, tuple[str, int]] = {}
        self._settings: dict[str, Reading] = {}

    def look(self, now_us: int, readings: Iterable[Reading]) -> list[Told]:
        """The events that are due."""
        found = list(readings)
        for reading in found:
            if reading.measurement.name not in _NAMES or reading.key not in _SETTINGS:
                continue
            # A setting that cannot be read for once is as it was.
            if reading.reason != "transient" or reading.key not in self._settings:
                self._settings[reading.key] = reading
        if now_us >= self._look_at:
            self._look_at = now_us + _LOOK_US
            self._load()
        return self._words_changed(now_us, found) + self._description(now_us)

    def _load(self) -> None:
        try:
            stat = (self._folder / measurements.FILE).stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            stamp = None
        if stamp != self._stamp:
            self._stamp = stamp
            self._measured = [
                one
                for one in measurements.load(self._folder)
                if one.is_of(self._board.model, self._board.memory_bytes)
            ]

    def _words_changed(self, now_us: int, readings: Iterable[Reading]) -> list[Told]:
        told: list[Told] = []
        for reading in readings:
            word = reading.word
            if word is None:
                continue  # not known now is no change
            key = reading.key
            if key not in self._words:
                if len(self._words) < _MOST_WORDS:
                    self._words[key] = word, now_us - _EVERY_US
                continue
            last, at = self._words[key]
            if word == last or now_us - at < _EVERY_US:
                continue
            self._words[key] = word, now_us
            data: dict[str, Scalar] = {"from": last, "to": word}
            if reading.label:
                data["label"] = reading.label
            told.append((f"{reading.measurement.name}_changed", data))
        return told

    def _description(self, now_us: int) -> list[Told]:
        if self._described is None:
            waits = any(one.reason == "transient" for one in self._settings.values())
            if waits and now_us - self._began < _PATIENCE_US:
                return []
        elif now_us - self._described_at < _EVERY_US:
            return []
        data = describe(self._board, self._settings.get, self._measured, self._identified_by)
        if data == self._described:
            return []
        self._described, self._described_at = data, now_us
        return [(DESCRIBED, data)]


def clocks(read: "Callable[[str], Reading | None]") -> Clocks:
    """The limits of the memory clock among the readings."""

    def value(key: str) -> float | None:
        reading = read(key)
        return None if reading is None else reading.value

    allowed = [found for key in (DRAM_MAX.name, _EMC_CAP) if (found := value(key))]
    return Clocks(min(allowed, default=None), value(DRAM_HW_MAX.name))


def power_mode(read: "Callable[[str], Reading | None]") -> str | None:
    """The power mode among the readings."""
    reading = read(POWER_MODE.name)
    return None if reading is None else reading.word


def describe(
    board: Board,
    read: "Callable[[str], Reading | None]",
    measured: Sequence[measurements.Measurement],
    identified_by: str | None,
) -> dict[str, Scalar]:
    """All that is known of the device, without what is not."""
    limits, mode = clocks(read), power_mode(read)
    found = ceiling.ceiling(board.row, limits, mode, measured)
    row, spec, newest = board.row, found.specification, found.measured
    data: dict[str, Scalar] = {
        "model": board.model,
        "soc": board.soc,
        "cpu": board.cpu,
        "compatible": board.compatible[0] if board.compatible else None,
        "memory_bytes": board.memory_bytes,
        "page_bytes": board.page_bytes,
        "kernel": board.kernel,
        "l4t": board.l4t,
        "jetpack": board.jetpack,
        "gpu_stack": board.gpu_stack,
        "android": board.android,
        "identified_by": identified_by,
        "power_mode": mode,
        "dram_max_hertz": limits.allowed,
        "ceiling_bytes_per_second": _whole(found.bytes_per_second),
        "ceiling_from": found.origin,
        "spec_device": None if row is None else row.name,
        "spec_bytes_per_second": _whole(spec.bytes_per_second),
        "spec_note": spec.note,
    }
    if row is not None:
        data |= {"spec_source": row.source, "spec_confidence": row.confidence}
        data["loaded_by"] = row.loaded_by
    if newest is not None:
        data |= {
            "measured_read_bytes_per_second": _whole(newest.read_bytes_per_second),
            "measured_copy_bytes_per_second": _whole(newest.copy_bytes_per_second),
            "measured_threads": newest.threads,
            "measured_at": newest.at,
            "measured_power_mode": newest.power_mode,
        }
    return {name: value for name, value in data.items() if value is not None}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
