"""Measurements that several sources have: the same name means the same thing whoever read it.

A label is empty where a device has one of them; a rail, a zone or a second GPU is named by it.
"""

from typing import Final

from decodewatch.agent.sources.kit.base import Measurement

TEMP: Final = Measurement(
    "temp_celsius", "celsius", "gauge", "temperature of the sensor that the label names"
)
GPU_BUSY: Final = Measurement(
    "gpu_busy_share", "share", "gauge", "share of the time in which the GPU was busy"
)
GPU_CLOCK: Final = Measurement("gpu_hertz", "hertz", "gauge", "clock of the GPU; 0 is switched off")
GPU_MAX: Final = Measurement(
    "gpu_max_hertz", "hertz", "gauge", "highest GPU clock that power mode and cooling allow now"
)
DRAM_BUSY: Final = Measurement(
    "dram_busy_share",
    "share",
    "gauge",
    "share of what the memory can carry at its present clock (dram_hertz)",
)
DRAM_CLOCK: Final = Measurement(
    "dram_hertz", "hertz", "gauge", "clock of the memory; transfers are twice as many"
)
DRAM_MAX: Final = Measurement(
    "dram_max_hertz", "hertz", "gauge", "highest memory clock that the power mode allows now"
)
DRAM_HW_MAX: Final = Measurement(
    "dram_hw_max_hertz", "hertz", "gauge", "highest memory clock of the device"
)
POWER: Final = Measurement(
    "power_watts", "watts", "gauge", "power drawn from the rail that the label names"
)
TOTAL_POWER: Final = Measurement(
    "device_watts",
    "watts",
    "gauge",
    "power of the whole module or device; the label says which rail, or which sum, that is",
)
POWER_MODE: Final = Measurement(
    "power_mode", "word", "word", "the power mode or profile that is set"
)
