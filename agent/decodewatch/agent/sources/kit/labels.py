"""Labels of sensors: text that can be printed, of bounded length, and each once. Pure."""

from binascii import crc32
from collections.abc import Iterable


def printable(content: bytes) -> str:
    """What a file such as `type` or `temp1_label` says, `?` for what cannot be printed."""
    text = content.strip(b"\0 \t\r\n").decode("ascii", "replace")
    return "".join(char if char.isprintable() and char.isascii() else "?" for char in text)


def whole(content: bytes) -> str:
    """The same, '' where the newline is missing: half a name may be another one's."""
    return printable(content) if content.rstrip(b"\0").endswith(b"\n") else ""


def fitting(label: str, room: int) -> str:
    """The label where it can be printed and has at most so many characters, else what is left of it
    and a checksum of the whole, which tells it from others of which the same is left."""
    if len(label) <= room and label.isprintable():
        return label
    mark = f"~{crc32(label.encode('utf-8', 'surrogatepass')):08x}"
    shown = "".join(char if char.isprintable() else "?" for char in label[: room - len(mark)])
    return shown + mark


def untaken(name: str, taken: Iterable[str]) -> str:
    """The name, or `name#2`, `name#3` where others have it: the first that is not taken."""
    labels = set(taken)
    label, number = name, 1
    while label in labels:
        number += 1
        label = f"{name}#{number}"
    return label
