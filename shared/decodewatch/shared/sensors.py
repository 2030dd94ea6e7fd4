"""Which sensors say how hot the chip is: the agent, the collector and the dashboard must agree."""

import re
from collections.abc import Mapping
from typing import Final

from decodewatch.shared.records import Measured

TEMPERATURE: Final = "temp_celsius"
"""The measurement whose label, after a colon, names a sensor: a thermal zone, `cpu-thermal`, or a
chip and what it calls its sensor, `k10temp Tctl`."""

# Not the silicon that computes: constants (PMIC), limits (charger), boards, batteries, the skin,
# radios, storage, and the weighted mean that drives the fan.
_NOT_JUNCTION: Final = (
    "pmic", "charger", "max170", "board", "tdiode", "bat", "skin", "quiet", "usb", "wifi",
    "wlan", "ath10k", "ath11k", "mt76", "modem", "mmw", "nvme", "fan-est", "shell",
)  # fmt: skip
# Chips that are the processor, or sit in it; and words that say so of others' sensors.
_COMPUTING_CHIPS: Final = frozenset(
    {"coretemp", "k10temp", "k8temp", "zenpower", "amdgpu", "radeon", "nouveau", "i915", "xe"}
)
_COMPUTING_WORDS: Final = ("cpu", "gpu", "soc", "tj")
# Of those chips: the memory of a graphics card, and its power stages.
_BESIDE: Final = frozenset({"mem", "vram", "vr"})
# Boards' monitors. Their CPUTIN is a sensor under the socket, and often one that is not connected.
_BOARD_CHIPS: Final = ("nct", "it8", "w83", "f71", "sch5")
# Of Jetsons: the part that is always on, warmer than the rest of an idle chip and far from what
# computes; and what tegrastats calls the mean that drives the fan.
# Of phones: fuel gauges, and the chip for Wi-Fi.
_NOT_JUNCTION_EXACTLY: Final = frozenset({"ao", "thermal", "bms", "maxfg", "consys"})
_NOT_JUNCTION_STARTS: Final = (
    "ao-", "ao_", "pch", "pa-", "pa_", "xo-", "xo_", "cp_on_chip", "wcn", "ufs", "emmc",
    # MediaTek's: a thermistor beside the chip, and what has a chip of its own.
    "mtktsap", "mtktsbts", "mtktspa", "mtktspcb", "mtktswmt", "mtktsxtal", "mtktstdpa", "mtktsbuck",
)  # fmt: skip
_BESIDE_THE_CHIP: Final = re.compile(
    # Thermistors on the board of a phone, wherever they are: disp_therm, pa-therm2-sys3, ap_ntc.
    # Jetsons call what is on the chip CPU-therm and so on.
    r"(?!(?:[bm]?cpu|gpu|soc|aux|pll|mem|cv|tj)\d*[-_]therm)[^ ]*[-_]therm\d*(?:[-_ ].*)?"
    r"|[^ ]*[-_]ntc\d*(?:[-_].*)?"
    # The power supplies of Qualcomm's phones: pm8150b_tz, pmi8998-thermal, pmxr2230.
    r"|pm[a-z]{0,3}\d.*"
    # What a PC's firmware measures beside the processor: SEN1, TSKN, TMEM, NGFF.
    r"|sen\d|t(?:skn|mem|amb|chg)[a-z\d_]*|ngff|vir\d"
)


def is_junction(label: str) -> bool:
    """Whether the sensor may be the hottest of the device.

    False for constants, limits and sensors beside the chip, which say nothing about throttling: a
    PMIC that reports 100 C forever, a charger's limit, the board, the battery, the skin, a radio.
    Most thermal zones are of the chip that computes, most other chips are not: a zone may be the
    hottest sensor unless its name says otherwise, a chip's sensor only where a name says so.
    """
    lower = label.lower()
    if (
        lower in _NOT_JUNCTION_EXACTLY
        or lower.startswith(_NOT_JUNCTION_STARTS)
        or any(part in lower for part in _NOT_JUNCTION)
        or _BESIDE_THE_CHIP.fullmatch(lower)
    ):
        return False
    chip, space, sensor = lower.partition(" ")
    if not space:
        return True
    if chip.partition("#")[0] in _COMPUTING_CHIPS:
        return sensor.partition("#")[0] not in _BESIDE
    return not chip.startswith(_BOARD_CHIPS) and any(word in lower for word in _COMPUTING_WORDS)


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
