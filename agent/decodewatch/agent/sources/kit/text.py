"""Numbers out of the text of /proc and /sys. Pure.

A number is taken only where it is whole: what is not followed by the newline that the kernel writes
may have been cut in its middle, and half a number looks like a number.
"""

from typing import Final

_MOST_DIGITS: Final = 20  # of an unsigned 64-bit number


def whole_number(token: bytes) -> int | None:
    """The number that a kernel wrote in decimal, or None for anything else."""
    digits = token[1:] if token.startswith(b"-") else token
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return int(token)


def only_number(content: bytes) -> int | None:
    """The number of a file that holds one number and a newline.

    None for anything else, also where the newline is missing: the number may have been cut.
    """
    content = content.rstrip(b"\0")
    if not content.endswith(b"\n"):
        return None
    return whole_number(content.strip())


def after(content: bytes, start: bytes) -> bytes | None:
    """The rest of the first line that begins with `start`.

    None where no line does, and where it does not end in a newline: it may have been cut.
    """
    if content.startswith(start):
        begin = len(start)
    else:
        found = content.find(b"\n" + start)
        if found < 0:
            return None
        begin = found + 1 + len(start)
    end = content.find(b"\n", begin)
    return content[begin:end] if end >= 0 else None


def kibibytes(content: bytes, name: bytes) -> int | None:
    """The bytes of a line such as `MemFree:   412 kB`, also without the spaces; None without it."""
    rest = after(content, name + b":")
    if rest is None:
        return None
    rest = rest.strip()
    if not rest.endswith(b"kB"):
        return None
    number = whole_number(rest[:-2].rstrip())
    return number * 1024 if number is not None and number >= 0 else None
