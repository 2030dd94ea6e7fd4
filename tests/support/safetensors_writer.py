"""Writes models in Hugging Face's form for tests: headers by hand, their data holes in files."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "U8": 1, "F8_E4M3": 1}
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (dtype, shape)"""


def size(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of one tensor."""
    total = _BYTES[dtype]
    for dim in shape:
        total *= dim
    return total


def header(tensors: Shapes) -> tuple[dict[str, Any], int]:
    """The JSON object of a file, and the bytes of its data."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + size(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return entries, offset


def write_file(path: Path, entries: Mapping[str, Any], data_bytes: int) -> Path:
    """One safetensors file; its data is a hole."""
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + data_bytes)
    return path


def write_model(
    folder: Path, config: Mapping[str, Any], tensors: Shapes, *, files: int = 1
) -> Path:
    """A model's folder: `config.json`, and one safetensors file or several with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        write_file(folder / "model.safetensors", *header(tensors))
        return folder
    weight_map: dict[str, str] = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(list(tensors.items())[number::files])
        write_file(folder / name, *header(part))
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
