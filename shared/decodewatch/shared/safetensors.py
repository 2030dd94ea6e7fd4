"""Reads the headers of safetensors files and of their index, never the weights.

A file is eight bytes of length, a JSON object {name: {dtype, shape, data_offsets}} of that length,
and the data. Nothing in it is believed before it was compared with the file's size, and JSON is
weighed before it is parsed, so a damaged or hostile file costs an error and little else: every
failure raises SafetensorsError, which names the file, what was found and what is accepted.

The format: https://github.com/huggingface/safetensors#format
"""

import hashlib
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from decodewatch.shared.errors import DecodewatchError, shown

HEADER_MAX = 16 << 20  # bytes of one file's header; real ones have some 100 a tensor
INDEX_MAX = 32 << 20
CONFIG_MAX = 4 << 20
CONFIG_ITEMS_MAX = 1 << 17
TENSORS_MAX = 1 << 18  # of all files together; the largest models of today have 150,000
TENSORS_OF_FILE_MAX = 1 << 16
FILES_MAX = 4096
NAME_MAX = 512  # characters of a tensor's or a file's name
DIMS_MAX = 8
_ITEMS_OF_TENSOR = 16  # commas and brackets of one entry, generously

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
_CONFIG = "config.json"
_SUFFIX = ".safetensors"

# dtype -> bits of one value
DTYPES: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class SafetensorsError(DecodewatchError):
    """A folder that is not a whole, sound model in Hugging Face's form, or cannot be read."""


class Tensor(NamedTuple):
    """One tensor; `bytes` is what it takes in the file, whatever its type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's parts are: nothing but `config.json` and the index has been read."""

    folder: Path
    config: Mapping[str, Any]
    files: tuple[str, ...]  # names inside the folder
    index: Mapping[str, str] | None  # tensor -> file; None where there is one file
    digest: "hashlib.blake2b"  # of what has been read so far


def error(path: os.PathLike[str] | str, text: str) -> SafetensorsError:
    """An error that names the file."""
    name = os.fsdecode(path)
    return SafetensorsError(f"{name if name.isprintable() else repr(name)}: {text}")


def find_model(path: str | os.PathLike[str]) -> ModelFiles:
    """The parts of the model at `path`: its folder, its index, or one of its safetensors files.

    Raises SafetensorsError.
    """
    try:
        where = Path(os.fsdecode(path))
        mode = _stat(where).st_mode
    except TypeError:
        raise SafetensorsError(f"model path {shown(path)}: accepted is a folder's path") from None
    digest = hashlib.blake2b(digest_size=16)
    folder, named = (where, None) if stat.S_ISDIR(mode) else (where.parent, where.name)
    if named == _CONFIG:
        named = None
    config = _json(folder / _CONFIG, CONFIG_MAX, CONFIG_ITEMS_MAX, digest)
    index_name = INDEX
    if named is not None and named.endswith(".json"):
        index_name, named = named, None
    has_index = (folder / index_name).exists() or index_name != INDEX
    if named is not None and not named.endswith(_SUFFIX):
        raise error(where, f"accepted is a folder, an index or a file that ends in {_SUFFIX}")
    if has_index:
        index = _index(folder / index_name, digest)
        if named is None or named in index.values():
            return ModelFiles(folder, config, tuple(sorted(set(index.values()))), index, digest)
    return ModelFiles(folder, config, (named or _only_file(folder),), None, digest)


def read_tensors(model: ModelFiles) -> Iterator[Tensor]:
    """The tensors of all files, file by file, so that few are held at a time.

    With an index, those that it names; all of them must be there. Updates the model's digest.

    Raises SafetensorsError.
    """
    found = 0
    expected: dict[str, int] = {}
    for name in (model.index or {}).values():
        expected[name] = expected.get(name, 0) + 1
    for name in model.files:
        path = model.folder / name
        here = 0
        for tensor in _file(path, model.digest):
            if model.index is not None and model.index.get(tensor.name) != name:
                continue
            here += 1
            yield tensor
        found += here
        if found > TENSORS_MAX:
            raise error(path, f"makes {found} tensors; accepted are at most {TENSORS_MAX}")
        if model.index is not None and here != expected[name]:
            raise error(
                path, f"holds {here} of the {expected[name]} tensors that the index says it holds"
            )


def _only_file(folder: Path) -> str:
    if (folder / WHOLE).exists():
        return WHOLE
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    names.append(entry.name)
                if len(names) > 1:
                    break
    except OSError as cause:
        raise error(folder, f"cannot be read: {cause.strerror}") from None
    if len(names) != 1:
        number = "no file" if not names else "several files"
        raise error(
            folder, f"has {number} of safetensors and no {INDEX}; accepted is {WHOLE} or an index"
        )
    return names[0]


def _index(path: Path, digest: "hashlib.blake2b") -> dict[str, str]:
    """The map from a tensor's name to its file's."""
    found = _json(path, INDEX_MAX, 2 * TENSORS_MAX, digest).get("weight_map")
    if not isinstance(found, dict) or not 0 < len(found) <= TENSORS_MAX:
        raise error(
            path,
            f"weight_map is {_brief(found)}; accepted is an object of 1 to {TENSORS_MAX} names",
        )
    for name, file in found.items():
        plain = isinstance(file, str) and file.endswith(_SUFFIX) and len(file) <= NAME_MAX
        if not plain or os.path.basename(file) != file or "\0" in file:  # noqa: PTH119  a name, no path
            raise error(
                path,
                f"weight_map's {shown(name)} is in {_brief(file)}; accepted is the name of a "
                f"{_SUFFIX} file in the same folder",
            )
    files = len(set(found.values()))
    if files > FILES_MAX:
        raise error(path, f"weight_map names {files} files; accepted are at most {FILES_MAX}")
    return found


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise error(path, "no such file; accepted is a model's folder or file") from None
    except OSError as cause:
        raise error(path, f"cannot be read: {cause.strerror}") from None
    except ValueError as cause:  # a NUL or a lone surrogate
        raise error(path, f"is not a path: {cause}") from None


def _open(path: Path) -> tuple[Any, int]:
    """The file and its size; only regular files, since opening a pipe would wait for ever."""
    if not stat.S_ISREG(_stat(path).st_mode):
        raise error(path, "is not a regular file")
    file = path.open("rb", buffering=0)
    return file, os.fstat(file.fileno()).st_size


def _json(path: Path, limit: int, items: int, digest: "hashlib.blake2b") -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes and about `items` items."""
    try:
        file, size = _open(path)
        with file:
            if size > limit:
                raise error(path, f"has {size} bytes; accepted are at most {limit}")
            data = _exactly(file, size, path)
    except OSError as cause:
        raise error(path, f"cannot be read: {cause.strerror}") from None
    digest.update(data)
    return _parsed(data, path, items)


def _exactly(file: Any, size: int, path: Path) -> bytes:
    parts = []
    left = size
    while left:
        part = file.read(left)
        if not part:
            raise error(path, f"ends {left} bytes before its size of {size}: it has shrunk")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _parsed(data: bytes, path: Path, items: int) -> dict[str, Any]:
    """Parse a JSON object in which no name is twice, having weighed what that will cost."""
    # Each container and each item costs up to some 100 bytes whatever its text: a few MB of "[]"
    # would take a GB.
    weight = data.count(b",") + data.count(b"{") + data.count(b"[")
    if weight > items:
        raise error(path, f"has {weight} items of JSON; accepted are at most {items}")
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once)
    except _TwiceError as cause:
        raise error(path, f"has {cause} twice; accepted is once") from None
    except RecursionError:
        raise error(path, "is nested too deeply; accepted is an object") from None
    except ValueError as cause:  # no JSON, no UTF-8, or a number of too many digits
        what = cause.reason if isinstance(cause, UnicodeDecodeError) else cause
        raise error(path, f"is not JSON: {shown(str(what), 200)}") from None
    if not isinstance(found, dict):
        raise error(path, f"is {_brief(found)}; accepted is an object")
    return found


class _TwiceError(Exception):
    """A name that an object has twice: two readers would take different values."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _TwiceError(shown(name))
            seen.add(name)
    return found


def _file(path: Path, digest: "hashlib.blake2b") -> list[Tensor]:
    """The tensors of one file."""
    try:
        file, size = _open(path)
        with file:
            if size < 8:
                raise error(path, f"has {size} bytes; accepted is a safetensors file")
            start = _exactly(file, 8, path)
            length = int.from_bytes(start, "little")
            if length > min(HEADER_MAX, size - 8):
                raise error(
                    path,
                    f"its header takes {length} bytes of {size}; accepted are at most {HEADER_MAX} "
                    "inside the file: it is truncated or no safetensors file",
                )
            data = _exactly(file, length, path)
    except OSError as cause:
        raise error(path, f"cannot be read: {cause.strerror}") from None
    digest.update(start)
    digest.update(data)
    digest.update(b"size %d" % size)
    header = _parsed(data, path, _ITEMS_OF_TENSOR * TENSORS_OF_FILE_MAX)
    header.pop("__metadata__", None)
    if len(header) > TENSORS_OF_FILE_MAX:
        raise error(path, f"has {len(header)} tensors; accepted are at most {TENSORS_OF_FILE_MAX}")
    spans = []
    tensors = []
    for name, entry in header.items():
        tensor, span = _tensor(path, name, entry, size - 8 - length)
        tensors.append(tensor)
        spans.append(span)
    spans.sort()
    for (_, before), (begin, _) in itertools.pairwise(spans):
        if begin < before:
            raise error(
                path,
                f"a tensor begins at byte {begin} of the data, inside the one before, which ends "
                f"at {before}; accepted are tensors that do not overlap",
            )
    return tensors


def _tensor(path: Path, name: str, entry: Any, data_bytes: int) -> tuple[Tensor, tuple[int, int]]:
    """One entry of a header, and where its data are."""

    def refuse(field: str, value: object, accepted: str) -> SafetensorsError:
        return error(path, f"tensor {shown(name)}: {field} is {_brief(value)}; accepted {accepted}")

    if len(name) > NAME_MAX:
        raise refuse("its name", name, f"are at most {NAME_MAX} characters")
    if not isinstance(entry, dict):
        raise refuse("its entry", entry, "is an object")
    dtype, shape, span = (entry.get(field) for field in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not 0 < len(dtype) <= 32:
        raise refuse("dtype", dtype, "is a type's name, such as BF16")
    if not isinstance(shape, list) or len(shape) > DIMS_MAX or not all(map(_is_size, shape)):
        raise refuse("shape", shape, f"is a list of at most {DIMS_MAX} whole numbers")
    if not isinstance(span, list) or len(span) != 2 or not all(map(_is_size, span)):
        raise refuse("data_offsets", span, "is a pair of whole numbers")
    begin, end = span
    if not begin <= end <= data_bytes:
        raise refuse("data_offsets", span, f"is a range inside the file's {data_bytes} bytes")
    bits = DTYPES.get(dtype)
    if bits is not None:
        for size in shape:
            bits *= size
        if (bits + 7) // 8 != end - begin:
            raise refuse("data_offsets", span, f"are {(bits + 7) // 8} bytes for {dtype} {shape}")
    return Tensor(name, dtype, tuple(shape), end - begin), (begin, end)


def _brief(value: object) -> str:
    """A value for a message; a container, which may be large, by its kind and length."""
    if isinstance(value, (dict, list)) and len(value) > DIMS_MAX:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return shown(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
