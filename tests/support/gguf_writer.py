"""Writes small GGUF files for tests, by the format's description and not by the reader's code."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

F32, F16, Q4_0, Q8_0, Q4_K, MXFP4 = 0, 1, 2, 8, 12, 39
UNKNOWN_TYPE = 250
# type -> (elements of a block, bytes of a block)
_BLOCKS = {
    F32: (1, 4),
    F16: (1, 2),
    Q4_0: (32, 18),
    Q8_0: (32, 34),
    Q4_K: (256, 144),
    MXFP4: (32, 17),
    UNKNOWN_TYPE: (32, 20),
}
_CODES = {4: "I", 5: "i", 6: "f", 7: "?", 10: "Q"}


class Tensor(NamedTuple):
    """One tensor to write; its data are zeros."""

    name: str
    dims: tuple[int, ...]
    type: int = F16

    @property
    def bytes(self) -> int:
        block, size = _BLOCKS[self.type]
        elements = 1
        for dim in self.dims:
            elements *= dim
        return elements // block * size


def gguf(
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor],
    *,
    big_endian: bool = False,
    version: int = 3,
    alignment: int = 32,
    data: bool = True,
) -> bytes:
    """A GGUF file. Whole numbers are written as u32, or u64 where they need it."""
    order = ">" if big_endian else "<"
    out = [b"GGUF", struct.pack(order + "IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out += [_text(order, key), _value(order, value)]
    offset = 0
    sizes = []
    for tensor in tensors:
        out.append(_text(order, tensor.name))
        count = len(tensor.dims)
        out.append(struct.pack(f"{order}I{count}QIQ", count, *tensor.dims, tensor.type, offset))
        padding = -tensor.bytes % alignment
        sizes.append((tensor.bytes, padding))
        offset += tensor.bytes + padding
    header = b"".join(out)
    if not data:
        return header
    body = b"".join(bytes(size + padding) for size, padding in sizes[:-1])
    last = bytes(sizes[-1][0]) if sizes else b""
    return header + bytes(-len(header) % alignment) + body + last


def write_sparse(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> Path:
    """A GGUF file whose data is a hole, for models too large to write."""
    header = gguf(metadata, tensors, data=False)
    data = sum(tensor.bytes + -tensor.bytes % 32 for tensor in tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + -len(header) % 32 + data)
    return path


def _text(order: str, text: str) -> bytes:
    raw = text.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return 7
    if isinstance(value, int):
        return 5 if value < 0 else 4 if value < 1 << 32 else 10
    return 6 if isinstance(value, float) else 8


def _value(order: str, value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack(order + "I", 8) + _text(order, value)
    if isinstance(value, (list, tuple)):
        kind = _kind(value[0]) if value else 4
        head = struct.pack(order + "IIQ", 9, kind, len(value))
        if kind == 8:
            return head + b"".join(_text(order, item) for item in value)
        return head + struct.pack(f"{order}{len(value)}{_CODES[kind]}", *value)
    kind = _kind(value)
    return struct.pack(f"{order}I{_CODES[kind]}", kind, value)


def model(
    *,
    architecture: str = "llama",
    layers: int = 2,
    embedding: int = 64,
    heads: int | Sequence[int] = 4,
    kv_heads: int | Sequence[int] = 2,
    head_dim: int | None = None,
    feed_forward: int = 128,
    vocabulary: int = 96,
    tied: bool = False,
    experts: tuple[int, int] | None = None,
    **keys: Any,
) -> tuple[dict[str, Any], list[Tensor]]:
    """The keys and tensors of a small transformer, for `gguf`.

    `experts` is (total, used); `keys` are further keys below the architecture's name, with two
    underscores for a dot.
    """
    each_heads = [heads] * layers if isinstance(heads, int) else list(heads)
    each_kv = [kv_heads] * layers if isinstance(kv_heads, int) else list(kv_heads)
    size = head_dim or embedding // each_heads[0]
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        "general.name": "Tiny",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": 4096,
        f"{architecture}.embedding_length": embedding,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        "general.file_type": 1,
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocabulary)],
    }
    if head_dim is not None:
        metadata[f"{architecture}.attention.key_length"] = head_dim
        metadata[f"{architecture}.attention.value_length"] = head_dim
    if experts is not None:
        metadata[f"{architecture}.expert_count"] = experts[0]
        metadata[f"{architecture}.expert_used_count"] = experts[1]
    for key, value in keys.items():
        metadata[f"{architecture}.{key.replace('__', '.')}"] = value
    tensors = [Tensor("token_embd.weight", (embedding, vocabulary))]
    for layer in range(layers):
        name = f"blk.{layer}."
        tensors.append(Tensor(name + "attn_norm.weight", (embedding,), F32))
        if each_kv[layer]:
            tensors += [
                Tensor(name + "attn_q.weight", (embedding, each_heads[layer] * size)),
                Tensor(name + "attn_k.weight", (embedding, each_kv[layer] * size)),
                Tensor(name + "attn_v.weight", (embedding, each_kv[layer] * size)),
                Tensor(name + "attn_output.weight", (each_heads[layer] * size, embedding)),
            ]
        if experts is None:
            tensors += [
                Tensor(name + "ffn_up.weight", (embedding, feed_forward)),
                Tensor(name + "ffn_down.weight", (feed_forward, embedding)),
            ]
        else:
            tensors += [
                Tensor(name + "ffn_gate_inp.weight", (embedding, experts[0]), F32),
                Tensor(name + "ffn_up_exps.weight", (embedding, feed_forward, experts[0])),
                Tensor(name + "ffn_down_exps.weight", (feed_forward, embedding, experts[0])),
            ]
    tensors.append(Tensor("output_norm.weight", (embedding,), F32))
    if not tied:
        tensors.append(Tensor("output.weight", (embedding, vocabulary)))
    return metadata, tensors
