"""Text that makers and vendors left in firmware: made printable, and told from placeholders. Pure.

Firmware comes with texts such as `To be filled by O.E.M.` that nobody has filled in. They look like
the name or the serial number of a device, and thousands of devices share them.
"""

from typing import Final

_LONGEST: Final = 128
_LEAST_CHARACTERS: Final = 6
_LEAST_DISTINCT: Final = 3
_PLACEHOLDERS: Final = (
    *("to be filled", "default", "system serial", "system product", "system manufacturer"),
    *("system name", "chassis serial", "board serial", "base board", "serial number", "not spec"),
    *("not avail", "not appl", "not set", "none", "n/a", "unknown", "invalid", "empty", "oem"),
    *("o.e.m", "undefined", "example", "sample", "test", "xxxx"),
)
# What a counting finger types; a serial number that is a piece of one of these is none.
_RUNS: Final = ("0123456789" * 4, "1234567890" * 4, "0123456789abcdef" * 4, "9876543210" * 4)
# UUIDs that the makers of firmware put into their samples, and that boards were sold with.
_SAMPLE_UUIDS: Final = frozenset(
    {
        "03000200040005000006000700080009",
        "00020003000400050006000700080009",
        "12345678123456789abcdeffedcba987",
        "123456781234567890abcddeefaabbcc",
        "fefefefefefefefefefefefefefefefe",
    }
)


def printable(content: bytes) -> str | None:
    """Text up to its first NUL or newline, cut to a length; None where nothing is left.

    What cannot be printed is shown as `?`: it comes from files that anybody may have written.
    """
    line = content.split(b"\0", 1)[0].strip().split(b"\n", 1)[0]
    text = line[: 4 * _LONGEST].decode("utf-8", "replace").strip()
    return shortened(text) or None


def shortened(text: str) -> str:
    """Text of bounded length, with `?` for what cannot be printed."""
    return "".join(
        char if char.isprintable() and char != "\ufffd" else "?" for char in text[:_LONGEST]
    )


def name(content: bytes) -> str | None:
    """What a maker calls something; None for a placeholder."""
    text = printable(content)
    return None if text is None or _is_placeholder(text.casefold()) else text


def serial(content: bytes) -> str | None:
    """A serial number in lower case, None where it cannot tell two devices apart."""
    text = (printable(content) or "").casefold()
    bare = "".join(char for char in text if char.isascii() and char.isalnum())
    digits = bare.strip("0")  # many are padded
    if len(digits) < _LEAST_CHARACTERS or len(set(digits)) < _LEAST_DISTINCT:
        return None
    if bare in _SAMPLE_UUIDS or any(bare in run or digits in run for run in _RUNS):
        return None
    return None if _is_placeholder(text) else text


def _is_placeholder(text: str) -> bool:
    return text.startswith(_PLACEHOLDERS)
