"""From a GGUF header to the fields of a model spec: which weights a token reads, what KV it keeps.

The families known here keep plain K and V vectors: dense and mixture-of-experts transformers with
MHA, GQA or MQA, with or without sliding windows. For anything else (MLA, recurrent and hybrid
models, encoder-decoders, layers that share their KV) the figure is None with a reason. A figure is
given only where the header's numbers and the shapes of the tensors agree.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from decodewatch.shared.errors import shown
from decodewatch.shared.ggml import FILE_TYPES, TENSOR_TYPES
from decodewatch.shared.gguf import GgufHeader, read_gguf
from decodewatch.shared.model import MAX_HEADS, MAX_LAYERS, MAX_TEXT, MAX_TOKENS, Experts

_Found = TypeVar("_Found")

_GUESSED = 1024  # this bit of general.file_type: the converter was not told

# Tables of which a token reads one row: a few KB, left out of what it reads.
_LOOKED_UP = frozenset(
    {"position_embd.weight", "token_types.weight", "per_layer_token_embd.weight"}
)
# Not run by a decode step: vision and audio towers, classifier heads, draft layers. Of the two
# tables of rope factors, which are of one size, one is used.
_NOT_RUN = ("v.", "a.", "mm.", "resampler.", "cls", "mtp.", "rope_factors_short")
_NOT_RUN_IN_BLOCK = ("nextn.", "vis_")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)", re.ASCII | re.DOTALL)
# All experts of a layer in one tensor, its last dimension the expert; or, in old files, one each.
_MERGED_EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_exps\.\w+", re.ASCII)
_SINGLE_EXPERT = re.compile(r"ffn_(gate|up|down)\.\d+\.\w+", re.ASCII)
_CHUNKED_EXPERTS = "_chexps."

_ENCODER_DECODER = "an encoder-decoder"
_RECURRENT = "a recurrent or hybrid model"
# What marks a family whose KV or state is not counted here: by a key's beginning, by a tensor's.
_FOREIGN_KEYS = (
    ("attention.kv_lora_rank", "MLA"),
    ("attention.key_length_mla", "MLA"),
    ("attention.indexer.", "sparse attention with an indexer"),
    ("attention.recurrent_layers", _RECURRENT),
    ("attention.shared_kv_layers", "layers that share their KV"),
    ("full_attention_interval", _RECURRENT),
    ("token_shift_count", _RECURRENT),
    ("kda.", _RECURRENT),
    ("shortconv.", _RECURRENT),
    ("ssm.", _RECURRENT),
    ("wkv.", _RECURRENT),
    ("decoder_start_token_id", _ENCODER_DECODER),
)
_FOREIGN_TENSORS = (
    ("attn_kv_a", "MLA"),
    ("attn_kv_b", "MLA"),
    ("attn_k_b.", "MLA"),
    ("indexer", "sparse attention with an indexer"),
    ("cross_attn", "cross-attention"),
    ("shortconv", _RECURRENT),
    ("ssm_", _RECURRENT),
    ("time_mix", _RECURRENT),
)
# Windows that the engine knows of and the file need not name: alternating ones, and chunks, which
# do not slide.
_WINDOW_BUILT_IN = frozenset({"gemma2"})
_CHUNKED_ATTENTION = frozenset({"llama4"})


class _Unknown(Exception):
    """Ends the search for a figure; its text is the reason."""


class _Weights(NamedTuple):
    per_token: int
    experts: Experts | None


class _Attention(NamedTuple):
    """Fields of ModelSpec by their names."""

    kv_heads: int | tuple[int, ...]
    head_dim_k: int
    head_dim_v: int
    sliding_window: int | None
    sliding_layers: bool | tuple[bool, ...] | None


def spec_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keyword arguments of ModelSpec that the file at `path` decides.

    Raises GgufError where it is not a sound model file. A header that is sound and says something
    that is not understood gives None for the figure that needed it, with the reason.
    """
    model = _Model(read_gguf(path))
    weights, weight_unknown = _or_reason(model.weights)
    attention, kv_unknown = _or_reason(model.attention)
    fields: dict[str, Any] = {
        "name": model.name(),
        "architecture": model.architecture,
        "quantisation": model.quantisation(),
        "weight_bytes_total": sum(tensor.bytes for tensor in model.header.tensors),
        "file_bytes": model.header.file_bytes,
        "layers": _or_reason(model.layers)[0],
        "context_trained": _or_reason(lambda: model.number("context_length", 1, MAX_TOKENS))[0],
        "tied_embeddings": model.tied,
        "header_hash": model.header.digest,
        "weight_unknown": weight_unknown,
        "kv_unknown": kv_unknown,
    }
    if weights is not None:
        fields["weight_bytes_per_token"] = weights.per_token
        fields["experts"] = weights.experts
    if attention is not None:
        fields.update(attention._asdict())
    return fields


def _or_reason(search: Callable[[], _Found]) -> tuple[_Found | None, str | None]:
    """What `search` finds, or None and why it found nothing."""
    try:
        return search(), None
    except _Unknown as reason:
        return None, str(reason)


class _Model:
    """Questions to one header. Those that may find no answer raise _Unknown."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.tensors = {tensor.name: tensor for tensor in header.tensors}
        kind = header.metadata.get("general.type", "model")
        if kind != "model":
            raise header.error(f"general.type is {shown(kind)}; accepted is 'model'")
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not 0 < len(_clean(architecture)) <= MAX_TEXT:
            raise header.error(f"general.architecture is {shown(architecture)}; accepted is a name")
        if not any(tensor.bytes for tensor in header.tensors):
            raise header.error("holds no weights; accepted is a model with its tensors")
        self.architecture = _clean(architecture)
        self._prefix = architecture + "."
        self.tied = "token_embd.weight" in self.tensors and "output.weight" not in self.tensors

    def name(self) -> str:
        given = self.header.metadata.get("general.name")
        return (
            (_clean(given) if isinstance(given, str) else "")
            or _clean(Path(self.header.path).stem)
            or "unnamed"
        )

    def quantisation(self) -> str:
        """The file's label, or the type that most of the bytes have."""
        file_type = self.header.metadata.get("general.file_type")
        if type(file_type) is int and (file_type & ~_GUESSED) in FILE_TYPES:
            return FILE_TYPES[file_type & ~_GUESSED]
        sizes: dict[int, int] = {}
        for tensor in self.header.tensors:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
        most = max(sizes, key=lambda kind: sizes[kind])
        return TENSOR_TYPES[most][0] if most in TENSOR_TYPES else f"type {most}"

    # Keys below the architecture's name

    def number(self, key: str, low: int, high: int) -> int | None:
        """A whole number, None where the key is absent."""
        value = self.header.metadata.get(self._prefix + key)
        if value is None:
            return None
        return self._in_range(key, value, low, high)

    def _in_range(self, key: str, value: object, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _Unknown(
                f"the header's {key} is {shown(value)}; accepted is a whole number "
                f"from {low} to {high}"
            )
        return value

    def _needed(self, key: str, low: int, high: int) -> int:
        value = self.number(key, low, high)
        if value is None:
            raise _Unknown(f"the header has no {key}")
        return value

    def _blocks(self) -> int:
        """All blocks of the file, those that only draft tokens included."""
        return self._needed("block_count", 1, MAX_LAYERS)

    def layers(self) -> int:
        """The blocks that a decode step runs."""
        blocks = self._blocks()
        return blocks - (self.number("nextn_predict_layers", 0, blocks - 1) or 0)

    def _each_layer(self, key: str, high: int) -> tuple[int, ...] | None:
        """A number for each layer that is run, from one for all or one for each block."""
        value = self.header.metadata.get(self._prefix + key)
        if value is None:
            return None
        blocks = self._blocks()
        values = value if type(value) is tuple else (value,) * blocks
        if len(values) != blocks:
            raise _Unknown(f"the header's {key} has {len(values)} values for {blocks} blocks")
        return tuple(self._in_range(key, item, 0, high) for item in values[: self.layers()])

    # Weights

    def weights(self) -> _Weights:
        """The bytes that one token reads, by its tensors."""
        if any(name.startswith("enc.") for name in self.tensors):
            raise _Unknown(f"{_ENCODER_DECODER}: what a step reads of it is not counted")
        layers = self.layers() if self.number("nextn_predict_layers", 0, MAX_LAYERS) else None
        always, merged, single = 0, 0, 0
        for name, tensor in self.tensors.items():
            block = _BLOCK.fullmatch(name)
            if not self._is_run(name, block, layers):
                continue
            part = block[2] if block else ""
            if _CHUNKED_EXPERTS in part:
                raise _Unknown("experts in chunks: how much of them a step reads is not counted")
            if _MERGED_EXPERTS.fullmatch(part):
                if not tensor.dims or tensor.dims[-1] != self._expert_count():
                    raise _Unknown(
                        f"{shown(name)} is of {shown(tensor.dims)}, which does not end in the "
                        f"{self._expert_count()} experts of the header"
                    )
                merged += tensor.bytes
            elif _SINGLE_EXPERT.fullmatch(part):
                single += tensor.bytes
            else:
                always += tensor.bytes
        if not merged + single:
            return _Weights(self._some(always), None)
        total = self._expert_count()
        used = self._needed("expert_used_count", 1, total)
        experts = Experts(total=total, used=used, bytes=merged + single)
        return _Weights(self._some(always + experts.bytes_per_token), experts)

    def _expert_count(self) -> int:
        return self._needed("expert_count", 1, MAX_HEADS)

    def _is_run(self, name: str, block: re.Match[str] | None, layers: int | None) -> bool:
        """Whether a decode step reads this tensor, whole or by experts."""
        if block is not None:
            if layers is not None and int(block[1]) >= layers:
                return False
            return not block[2].startswith(_NOT_RUN_IN_BLOCK)
        if name == "token_embd.weight":
            return self.tied
        return name not in _LOOKED_UP and not name.startswith(_NOT_RUN)

    def _some(self, total: int) -> int:
        if total < 1:
            raise _Unknown("none of the tensors is one that a decode step is known to read")
        return total

    # KV

    def attention(self) -> _Attention:
        """The KV heads, their sizes and their windows, where the tensors bear them out."""
        self._refuse_foreign()
        layers = self.layers()
        heads = self._each_layer("attention.head_count", MAX_HEADS)
        if heads is None:
            raise _Unknown("the header has no attention.head_count")
        kv_heads = self._each_layer("attention.head_count_kv", MAX_HEADS)
        kv_heads = heads if kv_heads is None else kv_heads
        key, value = self._head_dim("key", heads[0]), self._head_dim("value", heads[0])
        for layer in range(layers):
            self._check_shapes(layer, heads[layer], kv_heads[layer], key, value)
        even = len(set(kv_heads)) == 1
        window, held = self._window(even)
        return _Attention(kv_heads[0] if even else kv_heads, key, value, window, held)

    def _refuse_foreign(self) -> None:
        marks = []
        for key in self.header.metadata:
            if key.startswith(self._prefix) and self.header.metadata[key] not in (0, ()):
                rest = key[len(self._prefix) :]
                marks += [family for start, family in _FOREIGN_KEYS if rest.startswith(start)]
        for name in self.tensors:
            block = _BLOCK.fullmatch(name)
            if block is not None:
                marks += [
                    family for start, family in _FOREIGN_TENSORS if block[2].startswith(start)
                ]
            elif name.startswith("enc."):
                marks.append(_ENCODER_DECODER)
        if self.header.metadata.get(self._prefix + "attention.causal") is False:
            marks.append("attention in both directions, not decoding")
        if (
            self.architecture in _CHUNKED_ATTENTION
            and self.number("attention.sliding_window", 0, MAX_TOKENS) != 0
        ):
            marks.append("attention in chunks")
        if marks:
            raise _Unknown(f"{marks[0]}: its KV and state are not counted")

    def _head_dim(self, which: str, heads: int) -> int:
        """The size of one head's K or V vector."""
        given = self.number(f"attention.{which}_length", 1, MAX_HEADS)
        windowed = self.number(f"attention.{which}_length_swa", 1, MAX_HEADS)
        if windowed is not None and windowed != given:
            raise _Unknown("head sizes that differ between windowed and other layers")
        if given is not None:
            return given
        embedding = self._needed("embedding_length", 1, MAX_TOKENS)
        if not heads or embedding % heads or embedding // heads > MAX_HEADS:
            raise _Unknown(
                f"the header has no attention.{which}_length, and its embedding of {embedding} "
                f"does not part into {heads} heads"
            )
        return embedding // heads

    def _check_shapes(self, layer: int, heads: int, kv_heads: int, key: int, value: int) -> None:
        """Raise _Unknown unless the layer's tensors make the K and V that the header says."""
        expected = {"attn_k": kv_heads * key, "attn_v": kv_heads * value}
        if f"blk.{layer}.attn_qkv.weight" in self.tensors:
            expected = {"attn_qkv": heads * key + kv_heads * (key + value)}
        for part, width in expected.items():
            tensor = self.tensors.get(f"blk.{layer}.{part}.weight")
            found = tensor.dims[-1] if tensor is not None and tensor.dims else 0
            if found != width:
                raise _Unknown(
                    f"blk.{layer}.{part} makes {found} values a token, the header's heads {width}"
                )

    def _window(self, even: bool) -> tuple[int | None, bool | tuple[bool, ...] | None]:
        """The sliding window and the layers that it holds, (window, None) where they are unknown.

        A single number p as the pattern means that every p-th layer is free. Engines differ in
        which of the p it is, so it tells the layers only where that makes no difference.
        """
        window = self.number("attention.sliding_window", 0, MAX_TOKENS)
        if window is None and self.architecture in _WINDOW_BUILT_IN:
            raise _Unknown("a sliding window that the engine knows of and the header does not name")
        if not window:
            return None, None
        pattern = self.header.metadata.get(self._prefix + "attention.sliding_window_pattern")
        layers = self.layers()
        if type(pattern) is tuple and len(pattern) == self._blocks():
            held = tuple(bool(item) for item in pattern[:layers])
            return (window, held) if any(held) else (None, None)
        if pattern == 0 and type(pattern) is int:
            return window, True
        if pattern == 1 and type(pattern) is int:
            return None, None
        if type(pattern) is int and 0 < pattern <= layers and layers % pattern == 0 and even:
            return window, tuple((layer + 1) % pattern != 0 for layer in range(layers))
        return window, None


def _clean(text: str) -> str:
    """Text from a file as a field of a record holds it: printable, and not too long."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MAX_TEXT]
