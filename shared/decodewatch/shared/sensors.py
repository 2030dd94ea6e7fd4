"""Which sensors say how hot the chip is: the agent, the collector and the dashboard must agree."""

from collections.abc import Mapping
from typing import Final

from decodewatch.shared.records import Measured

TEMPERATURE: Final = "temp_celsius"
"""The measurement whose label, after a colon, names a thermal zone."""

# Not the silicon that computes: constants (PMIC), limits (charger), boards, batteries, the skin,
# radios, storage, and the weighted mean that drives the fan.
_NOT_JUNCTION: Final = (
    "pmic", "charger", "max170", "board", "tdiode", "battery", "skin", "quiet", "usb", "wifi",
    "wlan", "ath10k", "ath11k", "mt76", "modem", "mmw", "nvme", "fan-est",
)  # fmt: skip
_NOT_JUNCTION_STARTS: Final = ("pch", "pm6", "pm7", "pm8", "pmk", "pmr", "pa-", "pa_", "xo-", "xo_")


def is_junction(label: str) -> bool:
    """Whether the zone may be the hottest sensor of the device.

    False for constants, limits and sensors beside the chip, which say nothing about throttling: a
    PMIC that reports 100 C forever, a charger's limit, the board, the battery, the skin, a radio.
    """
    lower = label.lower()
    return not (
        lower.startswith(_NOT_JUNCTION_STARTS) or any(part in lower for part in _NOT_JUNCTION)
    )


def hottest(values: Mapping[str, Measured]) -> tuple[str, float] | None:
    """Label and mean, in degrees Celsius, of the hottest junction of a sample; None without one."""
    found: tuple[str, float] | None = None
    for key, value in values.items():
        name, colon, label = key.partition(":")
        if name == TEMPERATURE and colon and is_junction(label):
            mean = float(value[0] if isinstance(value, (tuple, list)) else value)
            if found is None or mean > found[1]:
                found = label, mean
    return found
