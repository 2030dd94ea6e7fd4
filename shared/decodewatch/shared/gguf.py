"""Reads the header of a GGUF model file: its metadata and its table of tensors, never its weights.

Small and quick on purpose: it runs inside users' applications. Long arrays (a vocabulary) are
walked and only counted, so a header of 150,000 tokens costs a fraction of a second and almost no
memory. Nothing is mapped: a file that shrinks while it is read is an error, not a SIGBUS.

No length found in the file is believed before it was compared with the file's size, so a damaged
file costs an error and nothing else: every failure raises GgufError, which names the path, what
was found and what is accepted.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import hashlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from decodewatch.shared.errors import DecodewatchError, shown
from decodewatch.shared.ggml import TENSOR_TYPES

HEADER_MAX = 256 << 20  # bytes; the largest vocabularies make headers of some 20 MiB
KEYS_MAX = 4096
TENSORS_MAX = 65_536
NAME_MAX = 1024  # bytes of one key or tensor name
DIMS_MAX = 8
ARRAY_KEPT = 1024  # a longer array is counted, not kept
TEXT_KEPT = 4096  # bytes; longer text (a chat template) is counted, not kept
_CHUNK = 256 << 10
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

_STRING, _ARRAY = 8, 9
_NUMBERS = {  # value type -> (struct code, bytes)
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}


class GgufError(DecodewatchError):
    """A file that is not a whole, sound GGUF model file, or cannot be read at all."""


class Skipped(NamedTuple):
    """Stands for a value too long to keep: an array's number of items, or a text's of bytes."""

    kind: str  # "array" or "text"
    length: int


Number = int | float | bool
Value = Number | str | tuple[Number, ...] | Skipped


class Tensor(NamedTuple):
    """One tensor of the table.

    `bytes` is exact for the types of TENSOR_TYPES. For a type that this version does not know it
    is the distance to the next tensor, so it may hold up to alignment - 1 bytes of padding.
    """

    name: str
    dims: tuple[int, ...]  # the first varies fastest
    type: int
    offset: int  # from the start of its file's data section
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model's header says; a split model's parts taken together."""

    path: str
    version: int
    big_endian: bool
    metadata: Mapping[str, Value]  # of the first part
    tensors: tuple[Tensor, ...]
    file_bytes: int
    parts: int
    digest: str  # of the headers and sizes of all parts: 32 hexadecimal digits

    def error(self, text: str) -> GgufError:
        """An error that names the file."""
        return _error(self.path, text)


def read_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """The header of the model at `path`, and of its other parts where the model is split.

    Any part of a split model may be named; the others are looked for beside it.

    Raises GgufError.
    """
    try:
        where = os.fsdecode(path)
    except TypeError:
        where = ""
    if not where:
        raise GgufError(f"model path {shown(path)}: accepted is the path of a GGUF file")
    named = _read_file(where)
    count = _whole(named, "split.count", 0)
    if count <= 1:
        return _joined([named])
    match = _SPLIT_NAME.fullmatch(where)
    if match is None or int(match["count"]) != count:
        raise named.error(
            f"is one of {count} parts by its split.count, and its name does not say which; "
            f"accepted is a name that ends in -00001-of-{count:05}.gguf"
        )
    parts = []
    for number in range(1, count + 1):
        sibling = f"{match['stem']}-{number:05}-of-{count:05}.gguf"
        part = named if sibling == where else _read_file(sibling)
        found = (_whole(part, "split.no", -1) + 1, _whole(part, "split.count", 0))
        if found != (number, count):
            raise part.error(
                f"says that it is part {found[0]} of {found[1]}; accepted is part {number} of "
                f"{count}, as its name says"
            )
        parts.append(part)
    header = _joined(parts)
    expected = _whole(header, "split.tensors.count", len(header.tensors))
    if expected != len(header.tensors):
        raise header.error(
            f"its {count} parts hold {len(header.tensors)} tensors; accepted is {expected}, as "
            "split.tensors.count says"
        )
    return header


def _joined(parts: list[GgufHeader]) -> GgufHeader:
    """The parts of one model as one header."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names: set[str] = set()
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in names:
                raise part.error(
                    f"tensor {shown(tensor.name)} is in an earlier part too; accepted is once"
                )
            names.add(tensor.name)
    return GgufHeader(
        path=first.path,
        version=first.version,
        big_endian=first.big_endian,
        metadata=first.metadata,
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        file_bytes=sum(part.file_bytes for part in parts),
        parts=len(parts),
        digest=_digest("".join(part.digest for part in parts).encode()).hexdigest(),
    )


def _whole(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int:
        raise header.error(f"{key} is {shown(value)}; accepted is a whole number")
    return value


def _error(path: str, text: str) -> GgufError:
    return GgufError(f"{path if path.isprintable() else repr(path)}: {text}")


def _digest(data: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(data, digest_size=16)


def _read_file(path: str) -> GgufHeader:
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        raise _error(path, "no such file; accepted is the path of a GGUF file") from None
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL or a lone surrogate
        raise _error(path, f"is not a path: {error}") from None
    if stat.S_ISDIR(mode):
        raise _error(path, "is a directory; accepted is a GGUF file")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise _error(path, "is not a regular file; accepted is a GGUF file")
    try:
        with Path(path).open("rb", buffering=0) as file:
            return _Reader(file, path, os.fstat(file.fileno()).st_size).header()
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from None


class _Reader:
    """Walks one file from its start, holding a chunk of it and hashing what it has passed."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._buffer = b""
        self._base = 0  # where the buffer lies in the file
        self._at = 0  # how much of the buffer has been passed
        self._hash = _digest()
        self._order = "<"
        self._u32 = struct.Struct("<I")
        self._u64 = struct.Struct("<Q")

    def header(self) -> GgufHeader:
        """The whole header. Raises GgufError."""
        version, big_endian = self._preamble()
        tensor_count = self._count("tensors", TENSORS_MAX, 24)
        key_count = self._count("keys", KEYS_MAX, 13)
        metadata = self._metadata(key_count)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0 or alignment & alignment - 1:
            raise self._error(
                f"general.alignment is {shown(alignment)}; accepted is a power of two"
            )
        entries = [self._entry(number) for number in range(tensor_count)]
        end = self._base + self._at
        data = -(-end // alignment) * alignment
        tensors = self._sized(entries, data, alignment)
        self._hash.update(self._buffer[: self._at])
        self._hash.update(b"size %d" % self._size)
        return GgufHeader(
            path=self._path,
            version=version,
            big_endian=big_endian,
            metadata=metadata,
            tensors=tensors,
            file_bytes=self._size,
            parts=1,
            digest=self._hash.hexdigest(),
        )

    def _error(self, text: str) -> GgufError:
        return _error(self._path, text)

    # Moving through the file

    def _check(self, count: int, what: str) -> None:
        """Refuse to go `count` bytes on where the file or the bound on headers ends before."""
        start = self._base + self._at
        if start + count > self._size:
            raise self._error(
                f"{what} takes {count} bytes from byte {start} on, and the file ends at byte "
                f"{self._size}: it is truncated or damaged"
            )
        if start + count > HEADER_MAX:
            raise self._error(
                f"{what} takes {count} bytes from byte {start} on; accepted is a header of at "
                f"most {HEADER_MAX} bytes"
            )

    def _fill(self, count: int, what: str) -> None:
        """Have the next `count` bytes, which should be few, in the buffer."""
        if self._at + count <= len(self._buffer):
            return
        self._check(count, what)
        self._hash.update(self._buffer[: self._at])
        self._base += self._at
        self._buffer = self._buffer[self._at :]
        self._at = 0
        while len(self._buffer) < count:
            more = self._file.read(max(_CHUNK, count))
            if not more:  # it has shrunk since its size was asked
                self._size = self._base + len(self._buffer)
                self._check(count, what)
            self._buffer += more

    def _take(self, count: int, what: str) -> int:
        """Pass the next `count` bytes; returns where they lie in the buffer."""
        self._fill(count, what)
        start = self._at
        self._at = start + count
        return start

    def _skip(self, count: int, what: str) -> None:
        """Pass any number of bytes without keeping them."""
        self._check(count, what)
        while count > 0:
            self._fill(1, what)
            step = min(count, len(self._buffer) - self._at)
            self._at += step
            count -= step

    def _read_u32(self, what: str) -> int:
        start = self._take(4, what)
        value: int = self._u32.unpack_from(self._buffer, start)[0]
        return value

    def _read_u64(self, what: str) -> int:
        start = self._take(8, what)
        value: int = self._u64.unpack_from(self._buffer, start)[0]
        return value

    def _read_text(self, count: int, what: str) -> str:
        start = self._take(count, what)
        return self._buffer[start : start + count].decode("utf-8", "replace")

    def _read_name(self, what: str) -> str:
        length = self._read_u64(f"the length of {what}")
        if not 0 < length <= NAME_MAX:
            raise self._error(f"{what} has {length} bytes; accepted is 1 to {NAME_MAX}")
        return self._read_text(length, what)

    def _skip_strings(self, count: int, what: str) -> None:
        """Pass `count` strings: the loop that a large vocabulary spends its time in."""
        self._check(8 * count, what)
        unpack = self._u64.unpack_from
        while count:
            self._fill(8, what)
            buffer, at, last = self._buffer, self._at, len(self._buffer) - 8
            while count and at <= last:
                at += 8 + unpack(buffer, at)[0]
                count -= 1
            if at <= len(buffer):
                self._at = at
            else:  # the last string reaches beyond the buffer
                self._at = len(buffer)
                self._skip(at - len(buffer), what)

    # The parts of a header, in their order

    def _preamble(self) -> tuple[int, bool]:
        """The magic and the version; sets the byte order."""
        if not self._size:
            raise self._error("is empty; accepted is a GGUF file")
        self._fill(1, "the magic")
        if not b"GGUF".startswith(self._buffer[:4]):
            raise self._error(
                f"is not a GGUF file: it begins with {self._buffer[:16]!r}; accepted is b'GGUF'"
            )
        self._take(4, "the magic")
        version = self._read_u32("the version")
        big_endian = not version & 0xFFFF
        if big_endian:
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
            self._order = ">"
            self._u32 = struct.Struct(">I")
            self._u64 = struct.Struct(">Q")
        if version not in (2, 3):
            raise self._error(f"is of GGUF version {version}; accepted are 2 and 3")
        return version, big_endian

    def _count(self, what: str, limit: int, least: int) -> int:
        """A number of things that follow, each of at least `least` bytes."""
        value = self._read_u64(f"the number of {what}")
        if value > limit:
            raise self._error(f"says that it has {value} {what}; accepted is at most {limit}")
        self._check(value * least, f"the table of {value} {what}")
        return value

    def _metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for number in range(count):
            key = self._read_name(f"key {number}")
            if key in found:
                raise self._error(f"key {shown(key)} is there twice; accepted is once")
            what = f"the value of {shown(key)}"
            found[key] = self._value(self._read_u32(f"the type of {shown(key)}"), what)
        return found

    def _value(self, kind: int, what: str) -> Value:
        if kind == _STRING:
            length = self._read_u64(what)
            if length > TEXT_KEPT:
                self._skip(length, what)
                return Skipped("text", length)
            return self._read_text(length, what)
        if kind == _ARRAY:
            return self._array(self._read_u32(what), self._read_u64(what), what)
        return self._numbers(kind, 1, what)[0]

    def _array(self, kind: int, length: int, what: str) -> Value:
        if kind == _STRING:
            self._skip_strings(length, what)
            return Skipped("array", length)
        if length <= ARRAY_KEPT:
            return self._numbers(kind, length, what)
        self._skip(length * self._width(kind, what), what)
        return Skipped("array", length)

    def _width(self, kind: int, what: str) -> int:
        if kind not in _NUMBERS:
            accepted = "0 to 12" if kind != _ARRAY else "a number or text inside an array"
            raise self._error(f"{what} is of type {kind}; accepted is {accepted}")
        return _NUMBERS[kind][1]

    def _numbers(self, kind: int, count: int, what: str) -> tuple[Number, ...]:
        width = self._width(kind, what)
        start = self._take(count * width, what)
        code = _NUMBERS[kind][0]
        return struct.unpack_from(f"{self._order}{count}{code}", self._buffer, start)

    def _entry(self, number: int) -> Tensor:
        """One line of the table of tensors, its size not yet known."""
        what = f"tensor {number}"
        name = self._read_name(f"the name of {what}")
        what = f"tensor {shown(name)}"
        dim_count = self._read_u32(what)
        if dim_count > DIMS_MAX:
            raise self._error(f"{what} has {dim_count} dimensions; accepted is at most {DIMS_MAX}")
        dims = tuple(self._read_u64(what) for _ in range(dim_count))
        return Tensor(name, dims, self._read_u32(what), self._read_u64(what), -1)

    def _sized(self, entries: list[Tensor], data: int, alignment: int) -> tuple[Tensor, ...]:
        """The tensors in the order of the file, with their sizes, all inside the file."""
        if len({entry.name for entry in entries}) != len(entries):
            raise self._error("a tensor's name is there twice; accepted is once")
        entries.sort(key=lambda entry: entry.offset)
        sized = []
        needed = 0
        for number, entry in enumerate(entries):
            following = entries[number + 1].offset if number + 1 < len(entries) else None
            if entry.offset % alignment:
                raise self._error(
                    f"tensor {shown(entry.name)} begins at {entry.offset} of the data; accepted "
                    f"is a multiple of {alignment}"
                )
            size = self._known_size(entry)
            if size is None:
                end = self._size - data if following is None else following
                size = end - entry.offset
                if not size and all(entry.dims):
                    raise self._error(
                        f"tensor {shown(entry.name)} has no room before the next; accepted are "
                        "tensors that do not overlap"
                    )
            elif following is not None and entry.offset + size > following:
                raise self._error(
                    f"tensor {shown(entry.name)} needs {size} bytes and the next begins after "
                    f"{following - entry.offset}; accepted are tensors that do not overlap"
                )
            needed = max(needed, data + entry.offset + max(size, 0))
            sized.append(entry._replace(bytes=size))
        if needed > self._size:
            raise self._error(
                f"the file is {self._size} bytes, its tensors need {needed}: it is truncated"
            )
        return tuple(sized)

    def _known_size(self, entry: Tensor) -> int | None:
        """The bytes of a tensor by its type and dimensions, None for an unknown type."""
        if entry.type not in TENSOR_TYPES:
            return None
        name, block, block_bytes = TENSOR_TYPES[entry.type]
        elements = 1
        for dim in entry.dims:
            elements *= dim
        row = entry.dims[0] if entry.dims else 1
        if row % block:
            raise self._error(
                f"tensor {shown(entry.name)} of type {name} has rows of {row} elements; "
                f"accepted is a multiple of {block}"
            )
        return elements // block * block_bytes
