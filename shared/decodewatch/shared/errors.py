"""The errors of decodewatch, one tree.

    DecodewatchError
    |-- SettingsError      a setting, a file or an argument is wrong      (exit status 2)
    |-- WireError          bytes from the network are not what they claim
    |   `-- RecordError    one record inside a batch is not valid
    `-- (each package adds its own below DecodewatchError)             (exit status 1)

Every message names the thing (file, setting, field), the value found and what is accepted.
"""


class DecodewatchError(Exception):
    """Anything that decodewatch itself refuses or cannot do; its text is for people."""


class SettingsError(DecodewatchError):
    """A setting is unknown, of the wrong type or out of range; the command exits with status 2."""


class WireError(DecodewatchError):
    """A payload is malformed, too large, or of a version that this program does not read."""


class RecordError(WireError):
    """One record of a batch is not valid; the rest of the batch still is."""


def shown(value: object, limit: int = 60) -> str:
    """How an error message quotes a value that somebody else chose: escaped and short."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
