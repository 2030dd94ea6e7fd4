"""NVIDIA's GPUs as its management library (NVML) shows them: cards in PCs, and Jetsons from Thor.

The library is loaded by `nvidia-ml-py` (the extra `nvml`) in a helper of its own,
`helpers/nvml_helper.py`, which says what its lines look like: a call may hang when a GPU fell off
the bus. What the numbers mean is in NVIDIA's NVML API reference.

Jetsons up to Orin have an NVML that knows nothing of their GPU, whose name ends in `(nvgpu)`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    Value,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.common import GPU_BUSY, GPU_CLOCK, POWER, TEMP
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.helper import Helper, document, number, part
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.rapl import LIMIT as POWER_LIMIT
from decodewatch.agent.sources.thermal import PLAUSIBLE_ABOVE_C, PLAUSIBLE_BELOW_C

MEMORY_CLOCK = Measurement(
    "gpu_memory_hertz",
    "hertz",
    "gauge",
    "clock of the GPU's own memory; transfers are twice as many",
)
MEMORY_USED = Measurement(
    "gpu_memory_used_bytes", "bytes", "gauge", "the GPU's own memory that is in use"
)
MEMORY_TOTAL = Measurement("gpu_memory_total_bytes", "bytes", "gauge", "the GPU's own memory")
LIMITED = Measurement(
    "gpu_limited",
    "count",
    "gauge",
    "1 where the GPU's clock is held back now by what the label names, else 0",
)

MOST_GPUS: Final = 16
_MOST_PROCESSES: Final = 512

# The bits of nvmlClocksEventReasons.
_IDLE: Final = 0x1
_POWER: Final = 0x4 | 0x80  # the software's cap, and the power supply's brake
_THERMAL: Final = 0x20 | 0x40  # by the driver, and by the hardware
_BY_HARDWARE: Final = 0x8  # set along with the brake and with the hardware's heat; old GPUs: alone

_MHZ: Final = (0, 50_000)
_MILLIWATTS: Final = (0, 5_000_000)
_MOST_BYTES: Final = 1 << 50

# One of them is there where NVIDIA's driver is loaded, the last one in WSL.
_DRIVERS: Final = ("sys/module", "proc/driver", "usr/lib/wsl/lib")
_NAMES: Final = frozenset({"nvidia", "libnvidia-ml.so.1"})


class Gpu(NamedTuple):
    """What one GPU shows; `processes` is the memory in bytes of each process by its pid."""

    id: str
    busy: Value | Reason
    clock: Value | Reason
    memory_clock: Value | Reason
    memory_used: Value | Reason
    memory_total: Value | Reason
    temperature: Value | Reason
    power: Value | Reason
    power_limit: Value | Reason
    limits: Value | Reason
    processes: dict[int, int] | Reason


def parse(line: bytes) -> list[Gpu]:
    """The GPUs of a line of the helper, each once."""
    found = part(document(line), "gpus")
    gpus: dict[str, Gpu] = {}
    for shown in found[:MOST_GPUS] if isinstance(found, list) else ():
        name = part(shown, "id")
        if isinstance(name, str) and name not in gpus:
            gpus[name] = _gpu(name, shown)
    return list(gpus.values())


def _gpu(name: str, shown: dict[str, Any]) -> Gpu:
    memory = shown.get("memory")
    if isinstance(memory, dict):
        total = number(memory.get("total"), 1, _MOST_BYTES)
        used = number(memory.get("used"), 0, _MOST_BYTES if isinstance(total, str) else total)
    else:
        total = used = number(memory, 1, 0)
    return Gpu(
        id=name,
        busy=_times(number(shown.get("busy"), 0, 100), 1 / 100),
        clock=_times(number(shown.get("clock"), *_MHZ), 1_000_000),
        memory_clock=_times(number(shown.get("memory_clock"), *_MHZ), 1_000_000),
        memory_used=used,
        memory_total=total,
        temperature=number(shown.get("temperature"), PLAUSIBLE_ABOVE_C, PLAUSIBLE_BELOW_C),
        power=_times(number(shown.get("power"), *_MILLIWATTS), 1 / 1000),
        power_limit=_times(number(shown.get("power_limit"), *_MILLIWATTS), 1 / 1000),
        limits=number(shown.get("limits"), 0, (1 << 63) - 1),
        processes=_processes(shown.get("processes")),
    )


def _times(value: Value | Reason, factor: float) -> Value | Reason:
    return value if isinstance(value, str) else round(value * factor, 6)


def _processes(found: object) -> dict[int, int] | Reason:
    if not isinstance(found, dict):
        refused = number(found, 1, 0)
        return refused if isinstance(refused, str) else "implausible"
    processes: dict[int, int] = {}
    for pid, used in list(found.items())[:_MOST_PROCESSES]:
        size = number(used, 0, _MOST_BYTES)
        if pid.isascii() and pid.isdigit() and len(pid) <= 9 and isinstance(size, int):
            processes[int(pid)] = size
    return processes


def limited(limits: int) -> dict[str, bool]:
    """What holds the clock back by the bits that NVML has for it. Idle is no throttling."""
    by_hardware = _BY_HARDWARE if limits & (_POWER | _THERMAL) else 0
    return {
        "thermal": bool(limits & _THERMAL),
        "power": bool(limits & _POWER),
        "idle": bool(limits & _IDLE),
        "other": bool(limits & ~(_THERMAL | _POWER | _IDLE | by_hardware)),
    }


def readings(gpu: Gpu, place: int) -> list[Reading]:
    """The readings of the GPU that was seen first (place 0), second, and so on."""
    suffix = f"#{place + 1}" if place else ""
    named = f"gpu{suffix}"
    only = named if place else ""
    made = [
        _as_read(GPU_BUSY, gpu.busy, only),
        _as_read(GPU_CLOCK, gpu.clock, only),
        _as_read(MEMORY_CLOCK, gpu.memory_clock, only),
        _as_read(MEMORY_USED, gpu.memory_used, only),
        _as_read(MEMORY_TOTAL, gpu.memory_total, only),
        _as_read(TEMP, gpu.temperature, named),
        _as_read(POWER, gpu.power, named),
        _as_read(POWER_LIMIT, gpu.power_limit, named),
    ]
    if isinstance(gpu.limits, int):
        made += (
            read_as(LIMITED, int(holds), "absent", label + suffix)
            for label, holds in limited(gpu.limits).items()
        )
    else:
        reason: Reason = gpu.limits if isinstance(gpu.limits, str) else "implausible"
        made += (unknown(LIMITED, reason, label + suffix) for label in limited(0))
    return made


def _as_read(row: Measurement, value: Value | Reason, label: str) -> Reading:
    if isinstance(value, str):
        return unknown(row, value, label)
    return read_as(row, value, "absent", label)


def _unknown_gpu(name: str, reason: Reason) -> Gpu:
    return Gpu(name, *(reason,) * (len(Gpu._fields) - 1))


class Nvml:
    """Reads what the helper says, where NVIDIA's driver is loaded."""

    name = "nvml"
    reads: ClassVar = "NVML, in a helper that is kept running"
    platform: ClassVar = "NVIDIA GPU; Jetson from Thor"
    permission: ClassVar = "anyone"
    measurements: ClassVar[tuple[Measurement, ...]] = (
        GPU_BUSY,
        GPU_CLOCK,
        MEMORY_CLOCK,
        MEMORY_USED,
        MEMORY_TOTAL,
        TEMP,
        POWER,
        POWER_LIMIT,
        LIMITED,
    )

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        self._helper = Helper("nvml_helper.py", kernel)
        self._driver = False
        self._ask_at = float("-inf")
        self._places: list[str] = []
        self._processes: dict[int, int] = {}

    def read(self) -> list[Reading]:
        """All of `measurements` of each GPU, also of one that has gone: then without values.

        One without values where there has never been a GPU.
        """
        gpus, reason = self._ask()
        self._processes = _sum(gpus)
        shown = {gpu.id: gpu for gpu in gpus}
        self._places += (name for name in shown if name not in self._places)
        del self._places[MOST_GPUS:]
        return [
            reading
            for place, name in enumerate(self._places or [""])
            for reading in readings(shown.get(name) or _unknown_gpu(name, reason), place)
        ]

    def process_bytes(self, pid: int) -> int | None:
        """What a process had on all GPUs at the last read; None where that is not known.

        A process that is not listed may have none because it uses no GPU.
        """
        return self._processes.get(pid)

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def _ask(self) -> tuple[list[Gpu], Reason]:
        if not self._has_driver():
            return [], "absent"
        line = self._helper.read()
        return ([], line) if isinstance(line, str) else (parse(line), "absent")

    def _has_driver(self) -> bool:
        now = self._kernel.monotonic()
        if not self._driver and now >= self._ask_at:
            self._ask_at = now + REPROBE_S
            for folder in _DRIVERS:
                try:
                    names = self._kernel.listdir(str(self._root / folder))
                except OSError:
                    continue  # that is no sign of it
                self._driver = self._driver or not _NAMES.isdisjoint(names)
        return self._driver


def _sum(gpus: Iterable[Gpu]) -> dict[int, int]:
    """Over all GPUs; nothing where one of them does not say: a part is not the whole."""
    total: dict[int, int] = {}
    for gpu in gpus:
        if isinstance(gpu.processes, str):
            return {}
        for pid, used in gpu.processes.items():
            total[pid] = total.get(pid, 0) + used
    return total
