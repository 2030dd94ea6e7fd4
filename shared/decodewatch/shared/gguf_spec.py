"""From a GGUF header to the fields of a model spec: which weights a token reads, what KV it keeps.

What a layer keeps is what llama.cpp makes of the file: it is the engine that reads these files, and
where a file leaves something to the engine (which layers a window holds, which are recurrent), the
tables below say what that engine does. They were read from src/models/ and src/llama-hparams.cpp of
llama.cpp as of August 2026 (commit 0c1e57098). For a family that is in none of them (an encoder-
decoder, sparse attention with an indexer, other hybrids) the figure is None with a reason. A figure
is given only where the header's numbers and the tensors' shapes agree.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from decodewatch.shared.errors import shown
from decodewatch.shared.ggml import FILE_TYPES, TENSOR_TYPES
from decodewatch.shared.gguf import GgufHeader, read_gguf
from decodewatch.shared.model import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TEXT,
    MAX_TOKENS,
    Experts,
    clean_text,
)
from decodewatch.shared.unknown import Unknown, or_reason

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
_RECURRENT = "a recurrent or hybrid model of a family that is not known"
# What marks a family whose KV or state is not counted here: by a key's beginning, by a tensor's.
_FOREIGN_KEYS = (
    ("attention.indexer.", "sparse attention with an indexer"),
    ("attention.compress_", "attention to compressed blocks"),
    ("attention.kv_lora_rank_swa", "MLA of two sizes"),
    ("decoder_start_token_id", _ENCODER_DECODER),
)
_FOREIGN_TENSORS = (
    ("indexer", "sparse attention with an indexer"),
    ("cross_attn", "cross-attention"),
)
# The same for models with state, of an architecture that _RECURS does not have.
_STATE_KEYS = (
    "attention.recurrent_layers",
    "full_attention_interval",
    "kda.",
    "shortconv.",
    "ssm.",
    "token_shift_count",
    "wkv.",
)
_STATE_TENSORS = ("shortconv", "ssm_", "time_mix")
# Architectures of which the block count does not say how often a step runs a layer, or which.
_OTHER_LAYERS = {
    "graniteswitch": "a layer that routes adapters",
    "nanbeige": "layers that run several times",
}

# Which layers keep state, by architecture: all of them; all of them beside their KV; those without
# KV heads; those without KV heads or a feed-forward part; or all but one of every so many.
_ALL, _BESIDE, _WITHOUT_HEADS, _WITHOUT_ANY, _BETWEEN = range(5)
_RECURS: Mapping[str, int] = {
    "arwkv7": _ALL,
    "mamba": _ALL,
    "mamba2": _ALL,
    "rwkv6": _ALL,
    "rwkv6qwen2": _ALL,
    "rwkv7": _ALL,
    "falcon-h1": _BESIDE,
    "granitehybrid": _WITHOUT_HEADS,
    "jamba": _WITHOUT_HEADS,
    "kimi-linear": _WITHOUT_HEADS,
    "lfm2": _WITHOUT_HEADS,
    "lfm2moe": _WITHOUT_HEADS,
    "plamo2": _WITHOUT_HEADS,
    "nemotron_h": _WITHOUT_ANY,
    "nemotron_h_moe": _WITHOUT_ANY,
    "qwen35": _BETWEEN,
    "qwen35moe": _BETWEEN,
    "qwen3next": _BETWEEN,
}


class _Window(NamedTuple):
    """Which layers an architecture holds to its window where the file does not say.

    Of every `every` layers one is free: the last, or the first. `unnamed` is the window in tokens
    of a file that names none (None: it has none), `named` the one that is taken in place of a name.
    """

    every: int
    first: bool = False
    unnamed: int | None = None
    named: int | None = None


_WINDOWS: Mapping[str, _Window] = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, first=True),
    "exaone-moe": _Window(4, unnamed=128),
    "exaone4": _Window(4, unnamed=4096),
    "gemma2": _Window(2, unnamed=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gpt-oss": _Window(2),
    "laguna": _Window(4, first=True),
    "llama4": _Window(4, unnamed=8192, named=8192),
    "mellum": _Window(4),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, first=True, named=4096),
}
_CHUNKED = frozenset({"llama4"})  # their windows do not slide
_WINDOW_NOT_USED = frozenset({"phi3"})  # the engine attends to everything, whatever the file says
_WINDOW_IN_ALL = frozenset({"lfm2"})  # in all layers that attend
# EXAONE 4 has models with and without a window, which the engine tells apart by their layers.
_EXAONE4_WITH_WINDOW = 64

# The last layers of these attend to the KV of earlier ones. Gemma 3n's engine knows the number.
_SHARE_KV = frozenset({"gemma3n", "gemma4"})
_GEMMA3N_OWN_KV = 20
_MLA_SIZES = ("key_length_mla", "value_length_mla")
_V_IS_K = frozenset({"gemma4"})  # some layers project once and keep both


class _Weights(NamedTuple):
    per_token: int
    experts: Experts | None


def spec_fields(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keyword arguments of ModelSpec that the file at `path` decides.

    Raises GgufError where it is not a sound model file. A header that is sound and says something
    that is not understood gives None for the figure that needed it, with the reason.
    """
    model = _Model(read_gguf(path))
    weights, weight_unknown = or_reason(model.weights)
    attention, kv_unknown = or_reason(model.attention)
    fields: dict[str, Any] = {
        "name": model.name(),
        "architecture": model.architecture,
        "quantisation": model.quantisation(),
        "weight_bytes_total": sum(tensor.bytes for tensor in model.header.tensors),
        "file_bytes": model.header.file_bytes,
        "layers": or_reason(model.layers)[0],
        "context_trained": or_reason(lambda: model.number("context_length", 1, MAX_TOKENS))[0],
        "tied_embeddings": model.tied,
        "header_hash": model.header.digest,
        "weight_unknown": weight_unknown,
        "kv_unknown": kv_unknown,
    }
    if weights is not None:
        fields["weight_bytes_per_token"] = weights.per_token
        fields["experts"] = weights.experts
    if attention is not None:
        fields.update(attention)
    return fields


class _Model:
    """Questions to one header. Those that may find no answer raise Unknown."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.tensors = {tensor.name: tensor for tensor in header.tensors}
        kind = header.metadata.get("general.type", "model")
        if kind != "model":
            raise header.error(f"general.type is {shown(kind)}; accepted is 'model'")
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or not 0 < len(clean_text(architecture)) <= MAX_TEXT:
            raise header.error(f"general.architecture is {shown(architecture)}; accepted is a name")
        if not any(tensor.bytes for tensor in header.tensors):
            raise header.error("holds no weights; accepted is a model with its tensors")
        self.architecture = clean_text(architecture)
        self._prefix = architecture + "."
        self.tied = "token_embd.weight" in self.tensors and "output.weight" not in self.tensors
        # MLA as it is meant: one compressed vector a token, K and V unpacked inside the attention.
        # Files without the unpacked sizes are run with the K and V of every head.
        lengths = [header.metadata.get(f"{self._prefix}attention.{which}") for which in _MLA_SIZES]
        self._latent = all(type(length) is int and length > 0 for length in lengths)

    def name(self) -> str:
        given = self.header.metadata.get("general.name")
        return (
            (clean_text(given) if isinstance(given, str) else "")
            or clean_text(Path(self.header.path).stem)
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
            raise Unknown(
                f"the header's {key} is {shown(value)}; accepted is a whole number "
                f"from {low} to {high}"
            )
        return value

    def _needed(self, key: str, low: int, high: int) -> int:
        value = self.number(key, low, high)
        if value is None:
            raise Unknown(f"the header has no {key}")
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
            raise Unknown(f"the header's {key} has {len(values)} values for {blocks} blocks")
        return tuple(self._in_range(key, item, 0, high) for item in values[: self.layers()])

    # Weights

    def weights(self) -> _Weights:
        """The bytes that one token reads, by its tensors."""
        if self.architecture in _OTHER_LAYERS:
            raise Unknown(_OTHER_LAYERS[self.architecture])
        if any(name.startswith("enc.") for name in self.tensors):
            raise Unknown(f"{_ENCODER_DECODER}: what a step reads of it is not counted")
        layers = self.layers() if self.number("nextn_predict_layers", 0, MAX_LAYERS) else None
        always, merged, single = 0, 0, 0
        routed: set[int] = set()
        for name, tensor in self.tensors.items():
            block = _BLOCK.fullmatch(name)
            if not self._is_run(name, block, layers):
                continue
            part = block[2] if block else ""
            if _CHUNKED_EXPERTS in part:
                raise Unknown("experts in chunks: how much of them a step reads is not counted")
            if _MERGED_EXPERTS.fullmatch(part):
                if not tensor.dims or tensor.dims[-1] != self._expert_count():
                    raise Unknown(
                        f"{shown(name)} is of {shown(tensor.dims)}, which does not end in the "
                        f"{self._expert_count()} experts of the header"
                    )
                merged += tensor.bytes
                routed.add(int(block[1]) if block else 0)
            elif _SINGLE_EXPERT.fullmatch(part):
                single += tensor.bytes
                routed.add(int(block[1]) if block else 0)
            else:
                always += tensor.bytes
        if not merged + single:
            return _Weights(self._some(always), None)
        total = self._expert_count()
        used = self._experts_used(routed, total)
        experts = Experts(total=total, used=used, bytes=merged + single)
        return _Weights(self._some(always + experts.bytes_per_token), experts)

    def _expert_count(self) -> int:
        return self._needed("expert_count", 1, MAX_HEADS)

    def _experts_used(self, routed: set[int], total: int) -> int:
        """How many of the experts run for a token in each of the layers that have any."""
        given = self.header.metadata.get(self._prefix + "expert_used_count")
        if type(given) is not tuple:
            return self._needed("expert_used_count", 1, total)
        each = self._each_layer("expert_used_count", total) or ()
        counts = {each[layer] for layer in routed if layer < len(each)}
        if len(counts) != 1 or 0 in counts:
            raise Unknown(f"the header's expert_used_count differs by layer: {shown(given)}")
        return counts.pop()

    def _is_run(self, name: str, block: re.Match[str] | None, layers: int | None) -> bool:
        """Whether a decode step reads this tensor, whole or by experts."""
        if block is not None:
            if layers is not None and int(block[1]) >= layers:
                return False
            if self._latent and block[2].startswith("attn_kv_b."):
                return False  # its parts attn_k_b and attn_v_b are used instead
            return not block[2].startswith(_NOT_RUN_IN_BLOCK)
        if name == "token_embd.weight":
            return self.tied
        return name not in _LOOKED_UP and not name.startswith(_NOT_RUN)

    def _some(self, total: int) -> int:
        if total < 1:
            raise Unknown("none of the tensors is one that a decode step is known to read")
        return total

    # KV and state

    def attention(self) -> dict[str, Any]:
        """What each layer keeps of a token, and what a sequence keeps whatever its depth.

        Fields of ModelSpec by their names, where the tensors bear them out.
        """
        self._refuse_foreign()
        layers = self.layers()
        recurrent, state = self._state()
        fields: dict[str, Any] = {"state_values": state}
        kind = _RECURS.get(self.architecture)
        if kind == _ALL:
            return fields | {"kv_heads": 0}
        heads = self._each_layer("attention.head_count", MAX_HEADS)
        if heads is None:
            raise Unknown("the header has no attention.head_count")
        kv_heads = self._each_layer("attention.head_count_kv", MAX_HEADS)
        kv_heads = heads if kv_heads is None else kv_heads
        own = self._layers_with_own_kv(layers)
        kv_heads = tuple(
            0 if layer >= own or (kind == _BETWEEN and recurrent[layer]) else kv_heads[layer]
            for layer in range(layers)
        )
        key, value = self._head_dim("key", heads), self._head_dim("value", heads)
        window = self._window(kv_heads)
        sizes = self._sizes_of_windowed(key, value, window.get("sliding_layers"), layers)
        for layer in range(layers):
            if kv_heads[layer]:
                self._check_shapes(layer, heads[layer], kv_heads[layer], *sizes[layer])
            elif layer < own and f"blk.{layer}.attn_k.weight" in self.tensors:
                raise Unknown(f"blk.{layer} has K weights, and no KV heads by the header")
        fields |= window
        if self._latent:
            return fields | {"kv_values": tuple((count * key, 0) for count in kv_heads)}
        if len(set(sizes)) > 1:
            each = zip(kv_heads, sizes, strict=True)
            return fields | {"kv_values": tuple((n * k, n * v) for n, (k, v) in each)}
        even = len(set(kv_heads)) == 1
        return fields | {
            "kv_heads": kv_heads[0] if even else kv_heads,
            "head_dim_k": sizes[0][0],
            "head_dim_v": sizes[0][1],
        }

    def _refuse_foreign(self) -> None:
        keys, tensors = list(_FOREIGN_KEYS), list(_FOREIGN_TENSORS)
        if self.architecture not in _RECURS:
            keys += [(start, _RECURRENT) for start in _STATE_KEYS]
            tensors += [(start, _RECURRENT) for start in _STATE_TENSORS]
        if self.architecture not in _SHARE_KV:
            keys.append(("attention.shared_kv_layers", "layers that share their KV"))
        marks = []
        for key in self.header.metadata:
            if key.startswith(self._prefix) and self.header.metadata[key] not in (0, ()):
                rest = key[len(self._prefix) :]
                marks += [family for start, family in keys if rest.startswith(start)]
        for name in self.tensors:
            block = _BLOCK.fullmatch(name)
            if block is not None:
                marks += [family for start, family in tensors if block[2].startswith(start)]
            elif name.startswith("enc."):
                marks.append(_ENCODER_DECODER)
        if self.header.metadata.get(self._prefix + "attention.causal") is False:
            marks.append("attention in both directions, not decoding")
        if self.architecture in _OTHER_LAYERS:
            marks.append(_OTHER_LAYERS[self.architecture])
        if marks:
            raise Unknown(f"{marks[0]}: its KV and state are not counted")

    def _layers_with_own_kv(self, layers: int) -> int:
        """The first layer from which on layers attend to the KV of earlier ones."""
        if self.architecture not in _SHARE_KV:
            return layers
        shared = self.number("attention.shared_kv_layers", 0, layers - 1)
        if shared is None:
            return min(layers, _GEMMA3N_OWN_KV) if self.architecture == "gemma3n" else layers
        return layers - shared

    def _state(self) -> tuple[tuple[bool, ...], tuple[int, int] | None]:
        """Which layers keep state, and the values of all of them: of convolutions, of states."""
        kind = _RECURS.get(self.architecture)
        layers = self.layers()
        if kind is None:
            return (False,) * layers, None
        if kind in (_ALL, _BESIDE):
            recurrent: tuple[bool, ...] = (True,) * layers
        elif kind == _BETWEEN:
            recurrent = self._between(layers)
        else:
            heads = self._each_layer("attention.head_count_kv", MAX_HEADS)
            if heads is None:
                raise Unknown("the header has no attention.head_count_kv")
            wide = (0,) * layers
            if kind == _WITHOUT_ANY:
                wide = self._each_layer("feed_forward_length", MAX_TOKENS) or wide
            recurrent = tuple(not heads[layer] and not wide[layer] for layer in range(layers))
        convolution, state = self._state_of_one()
        count = sum(recurrent)
        return recurrent, (count * convolution, count * state)

    def _between(self, layers: int) -> tuple[bool, ...]:
        """Whether each layer is recurrent, by its mark or by the interval of those that are not."""
        marks = self.header.metadata.get(self._prefix + "attention.recurrent_layers")
        if marks is not None:
            if type(marks) is not tuple or len(marks) != self._blocks():
                raise Unknown(
                    f"the header's attention.recurrent_layers is {shown(marks)}; accepted is one "
                    f"for each of {self._blocks()} blocks"
                )
            return tuple(bool(mark) for mark in marks[:layers])
        interval = self.number("full_attention_interval", 1, MAX_LAYERS) or 4
        return tuple((layer + 1) % interval != 0 for layer in range(layers))

    def _state_of_one(self) -> tuple[int, int]:
        """The values that one recurrent layer keeps: of its convolution, of its state."""
        size = self.number("wkv.head_size", 1, MAX_HEADS)
        if size is not None:
            width = self._needed("embedding_length", 1, MAX_TOKENS)
            shifts = self.number("token_shift_count", 0, MAX_HEADS)
            return (2 if shifts is None else shifts) * width, size * width
        taps = self.number("shortconv.l_cache", 1, MAX_HEADS)
        if taps is not None:
            return (taps - 1) * self._needed("embedding_length", 1, MAX_TOKENS), 0
        taps = self._needed("ssm.conv_kernel", 1, MAX_HEADS)
        size = self.number("kda.head_dim", 1, MAX_HEADS)
        if size is not None:
            heads = (self._each_layer("attention.head_count", MAX_HEADS) or (0,))[0]
            return 3 * (taps - 1) * heads * size, heads * size * size
        inner = self._needed("ssm.inner_size", 1, MAX_TOKENS)
        state = self._needed("ssm.state_size", 1, MAX_HEADS)
        groups = self.number("ssm.group_count", 0, MAX_HEADS) or 0
        return (taps - 1) * (inner + 2 * groups * state), inner * state

    def _head_dim(self, which: str, heads: tuple[int, ...]) -> int:
        """The size of one head's K or V vector; with MLA, of the compressed vector."""
        given = self.number(f"attention.{which}_length", 1, MAX_HEADS)
        if given is not None:
            return given
        embedding = self._needed("embedding_length", 1, MAX_TOKENS)
        if not heads[0] or embedding % heads[0] or embedding // heads[0] > MAX_HEADS:
            raise Unknown(
                f"the header has no attention.{which}_length, and its embedding of {embedding} "
                f"does not part into {heads[0]} heads"
            )
        return embedding // heads[0]

    def _sizes_of_windowed(
        self, key: int, value: int, windowed: bool | tuple[bool, ...] | None, layers: int
    ) -> list[tuple[int, int]]:
        """The (K, V) sizes of each layer's heads, those held to the window having their own."""
        free = (key, value)
        held = (
            self.number("attention.key_length_swa", 1, MAX_HEADS) or key,
            self.number("attention.value_length_swa", 1, MAX_HEADS) or value,
        )
        if held == free:
            return [free] * layers
        if windowed is None:
            raise Unknown("head sizes that differ between windowed and other layers")
        each = windowed if isinstance(windowed, tuple) else (windowed,) * layers
        return [held if layer else free for layer in each]

    def _check_shapes(self, layer: int, heads: int, kv_heads: int, key: int, value: int) -> None:
        """Raise Unknown unless the layer's tensors make the K and V that the header says."""
        expected = {"attn_k": kv_heads * key, "attn_v": kv_heads * value}
        if self._latent:
            expected = {"attn_kv_a_mqa": kv_heads * key}
        elif f"blk.{layer}.attn_kv_a_mqa.weight" in self.tensors:
            turned = self._needed("rope.dimension_count", 1, key)
            expected = {
                "attn_kv_a_mqa": self._needed("attention.kv_lora_rank", 1, MAX_HEADS) + turned,
                "attn_kv_b": kv_heads * (key - turned + value),
            }
        elif f"blk.{layer}.attn_qkv.weight" in self.tensors:
            expected = {"attn_qkv": heads * key + kv_heads * (key + value)}
        elif self.architecture in _V_IS_K and f"blk.{layer}.attn_v.weight" not in self.tensors:
            del expected["attn_v"]
        for part, width in expected.items():
            tensor = self.tensors.get(f"blk.{layer}.{part}.weight")
            found = tensor.dims[-1] if tensor is not None and tensor.dims else 0
            if found != width:
                raise Unknown(
                    f"blk.{layer}.{part} makes {found} values a token, the header's heads {width}"
                )

    def _window(self, kv_heads: tuple[int, ...]) -> dict[str, Any]:
        """The fields of the sliding window; without `sliding_layers` its layers are not known."""
        window = self.number("attention.sliding_window", 0, MAX_TOKENS)
        layers = self.layers()
        rule = _WINDOWS.get(self.architecture)
        if self.architecture == "exaone4" and layers != _EXAONE4_WITH_WINDOW:
            return {}
        if rule is not None and window is None:
            window = rule.unnamed
        elif rule is not None and window:
            window = rule.named or window
        if not window or self.architecture in _WINDOW_NOT_USED:
            return {}
        if self.architecture in _WINDOW_IN_ALL:
            return {"sliding_window": window, "sliding_layers": tuple(map(bool, kv_heads))}
        held = self._windowed(layers, rule, kv_heads)
        if held is not None and not any(held):
            return {}
        fields: dict[str, Any] = {"sliding_window": window}
        if held is not None:
            fields["sliding_layers"] = True if all(held) else held
        if self.architecture in _CHUNKED:
            fields["window_chunked"] = True
        return fields

    def _windowed(
        self, layers: int, rule: _Window | None, kv_heads: tuple[int, ...]
    ) -> tuple[bool, ...] | None:
        """Whether the window holds each layer; None where that is not known.

        A single number p as the pattern means that every p-th layer is free. Engines differ in
        which of the p it is, so without a rule for the architecture it tells the layers only where
        that makes no difference.
        """
        pattern = self.header.metadata.get(self._prefix + "attention.sliding_window_pattern")
        if type(pattern) is tuple:
            if len(pattern) != self._blocks():
                return None
            return tuple(bool(item) for item in pattern[:layers])
        if pattern is not None and (type(pattern) is not int or pattern < 0):
            return None
        if rule is not None:
            every = rule.every if pattern is None else pattern
        elif pattern is None:
            return None
        elif pattern < 2 or (layers % pattern == 0 and len(set(kv_heads)) == 1):
            every = pattern
        else:
            return None
        if every == 0:
            return (True,) * layers
        free = 0 if rule is not None and rule.first else every - 1
        return tuple(layer % every != free for layer in range(layers))
