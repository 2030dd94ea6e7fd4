"""What jetson-stats (jtop) can read and this user cannot: its service runs as root.

jetson-stats is optional (the extra `jetson`, and the service jtop.service with the same version).
It is loaded in a helper of its own, `helpers/jtop_helper.py`, which says what its lines look like:
importing it changes how the process starts others, and starting it may wait forever. Its interface
is described at https://rnext.it/jetson_stats.

Of what it offers, the agent takes no temperatures and no fans, which anyone can read, and not the
share of the memory's bandwidth, which is always 0 on L4T 36 and later.
"""

import logging
from pathlib import Path
from typing import Any, ClassVar, Final

from decodewatch.agent.sources.kit import rails
from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    Value,
    all_unknown,
    read_as,
    unknown,
    word_of,
)
from decodewatch.agent.sources.kit.common import (
    DRAM_CLOCK,
    DRAM_MAX,
    GPU_BUSY,
    GPU_CLOCK,
    POWER,
    POWER_MODE,
    TOTAL_POWER,
)
from decodewatch.agent.sources.kit.device_tree import is_jetson
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.helper import Helper, document, number, part
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel, reason_of
from decodewatch.agent.sources.meminfo import NVMAP_USED

log = logging.getLogger(__name__)

MOST_RAILS: Final = 16
_LONGEST_NAME: Final = 32

_SOCKET: Final = "jtop.sock"

_KHZ: Final = (1_000, 20_000_000)
# On a Thor, jtop has the clock of the GPU in MHz at times; no GPU is as slow as 20 MHz, or as
# fast as 20 GHz.
_BELOW_IS_MHZ: Final = 20_000
_MOST_KIBIBYTES: Final = 1 << 40
_MOST_MILLIWATTS: Final = 2_000_000


def parse(line: bytes) -> list[Reading]:
    """The readings of a line of the helper; what it does not have is absent."""
    found = document(line)
    emc, gpu = part(found, "emc"), part(found, "gpu")
    shared = number(part(found, "shared"), 0, _MOST_KIBIBYTES)
    mode = part(found, "mode")
    return [
        _scaled(DRAM_CLOCK, number(part(emc, "cur"), *_KHZ), 1000),
        _scaled(DRAM_MAX, number(part(emc, "max"), *_KHZ), 1000),
        # jtop has 0 where the kernel does not say it.
        _scaled(NVMAP_USED, shared or "absent", 1024),
        _share(number(part(gpu, "load"), 0, 100)),
        _gpu_clock(number(part(gpu, "cur"), 0, _KHZ[1])),
        *_power(part(found, "rails")),
        word_of(POWER_MODE, mode if isinstance(mode, str) else None, "absent"),
    ]


def _scaled(row: Measurement, value: Value | Reason, factor: int) -> Reading:
    return unknown(row, value) if isinstance(value, str) else read_as(row, value * factor, "absent")


def _share(percent: Value | Reason) -> Reading:
    if isinstance(percent, str):
        return unknown(GPU_BUSY, percent)
    return read_as(GPU_BUSY, percent / 100, "absent")


def _gpu_clock(value: Value | Reason) -> Reading:
    if isinstance(value, str):
        return unknown(GPU_CLOCK, value)
    return _scaled(GPU_CLOCK, value, 1_000_000 if value < _BELOW_IS_MHZ else 1000)


def _power(found: Any) -> list[Reading]:
    watts: dict[str, float | Reason] = {}
    for name, milliwatts in (found if isinstance(found, dict) else {}).items():
        label = "".join(char if char.isprintable() else "?" for char in name[:_LONGEST_NAME])
        if label and label != rails.UNUSED and len(watts) < MOST_RAILS:
            value = number(milliwatts, 0, _MOST_MILLIWATTS)
            watts[label] = value if isinstance(value, str) else value / 1000
    readings = [
        unknown(POWER, value, label)
        if isinstance(value, str)
        else read_as(POWER, value, "absent", label)
        for label, value in watts.items()
    ]
    return [*(readings or [unknown(POWER, "absent")]), rails.total(watts)]


class Jtop:
    """Reads what the helper says, where this is a Jetson that has jetson-stats' service."""

    name = "jtop"
    reads: ClassVar = "jetson-stats, in a helper that is kept running"
    platform: ClassVar = "Jetson with jetson-stats"
    permission: ClassVar = "group jtop"
    measurements: ClassVar[tuple[Measurement, ...]] = (
        DRAM_CLOCK,
        DRAM_MAX,
        NVMAP_USED,
        GPU_BUSY,
        GPU_CLOCK,
        POWER,
        TOTAL_POWER,
        POWER_MODE,
    )

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._helper = Helper("jtop_helper.py", kernel)
        self._why_not: Reason | None = "absent"
        self._ask_at = float("-inf")
        self._said = False

    def read(self) -> list[Reading]:
        """All of `measurements`, a reading a rail."""
        if self._why_not is not None:
            self._look()
        if self._why_not is not None:
            return all_unknown(self.measurements, self._why_not)
        line = self._helper.read()
        if isinstance(line, str):
            return all_unknown(self.measurements, line)
        return parse(line)

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def _look(self) -> None:
        """Whether there is a service to ask; Python is not started to find that out."""
        now = self._kernel.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + REPROBE_S
        if not is_jetson(self._root, self._kernel):
            return
        try:
            there = _SOCKET in self._kernel.listdir(str(self._root / "run"))
        except OSError as error:
            self._why_not = reason_of(error)
        else:
            self._why_not = None if there else "absent"
        if not self._said and self._why_not is not None:
            self._said = True
            log.info("jtop.service not asked path=/run/%s reason=%s", _SOCKET, self._why_not)
