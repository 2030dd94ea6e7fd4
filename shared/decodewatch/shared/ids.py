"""Identifiers: who may be called what, and how new names are made."""

import os
import time

from decodewatch.shared.errors import SettingsError, shown

DEVICE_ID_ACCEPTED = "1 to 64 of the characters A-Z a-z 0-9 . _ -, the first a letter or a digit"
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_DEVICE_CHARACTERS = _ALPHANUMERIC | frozenset("._-")


def is_device_id(text: object) -> bool:
    """Whether `text` may name a device: it becomes one level of an MQTT topic."""
    if not isinstance(text, str) or not 0 < len(text) <= 64:
        return False
    return text[0] in _ALPHANUMERIC and _DEVICE_CHARACTERS.issuperset(text)


def check_device_id(text: str, setting: str = "device") -> str:
    """`text` itself. Raises SettingsError where it cannot name a device."""
    if not is_device_id(text):
        raise SettingsError(f"{setting}: {shown(text)} is not a device id; {DEVICE_ID_ACCEPTED}")
    return text


def uuid7() -> str:
    """A new UUIDv7 (RFC 9562) as 32 hexadecimal digits: unique anywhere, sorted by wall time.

    Python has none before 3.14. The wall clock only orders the ids; a clock that is wrong or
    steps back leaves them unique, since 74 bits are random.
    """
    milliseconds = time.time_ns() // 1_000_000 & (1 << 48) - 1
    noise = int.from_bytes(os.urandom(10), "big")
    value = (
        milliseconds << 80
        | 0x7 << 76
        | (noise >> 62 & 0xFFF) << 64
        | 0x2 << 62
        | noise & (1 << 62) - 1
    )
    return f"{value:032x}"
