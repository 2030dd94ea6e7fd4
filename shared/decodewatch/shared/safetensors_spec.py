"""From a model in Hugging Face's form to the fields of a model spec.

The bytes are what the files hold, tensor by tensor, so quantised weights count with their scales
and zero points whatever the method. Which of them a step reads is told by their names: config.json
says how many layers and experts there are, and names that do not fit that make the figure None with
a reason. What layers keep of a token comes from config.json, and is given only where the shapes of
the projections agree.
"""

import os
import re
from pathlib import Path
from typing import Any

from decodewatch.shared.errors import shown
from decodewatch.shared.hf_config import Attention, HfConfig
from decodewatch.shared.model import MAX_LAYERS, Experts, clean_text
from decodewatch.shared.safetensors import ModelFiles, Tensor, error, find_model, read_tensors
from decodewatch.shared.unknown import Unknown, or_reason

_LAYER = re.compile(
    r"((?:.*?\.)??(?:layers|h|blocks|layer))\.(\d{1,5})\.(.+)", re.ASCII | re.DOTALL
)
# Parts of a name that make the tensor one of a tower, of a projector or of layers that only draft.
_NOT_RUN = frozenset(
    {
        "aligner",
        "audio_encoder",
        "audio_model",
        "audio_projector",
        "audio_tower",
        "connector",
        "embed_audio",
        "embed_vision",
        "img_processor",
        "mm_projector",
        "mtp",
        "multi_modal_projector",
        "vision_embed_tokens",
        "vision_encoder",
        "vision_model",
        "vision_tower",
        "visual",
    }
)
# The last part of the module's name, of tensors outside the layers.
_INPUT = frozenset(
    {"embed_in", "embed_tokens", "embeddings", "tok_embeddings", "word_embeddings", "wte"}
)
_OUTPUT = frozenset({"embed_out", "lm_head", "output", "output_layer"})
_LOOKED_UP = frozenset({"embed_positions", "embed_tokens_per_layer", "position_embeddings", "wpe"})
_HEADS_OF_OTHER_USE = frozenset({"classifier", "score", "v_head"})

_SINGLE_EXPERT = re.compile(r"(?:.*\.)?experts\.(\d{1,5})\..+", re.ASCII | re.DOTALL)
_MERGED_EXPERTS = re.compile(
    r"(?:.*\.)?(?:experts|switch_mlp)\..+|block_sparse_moe\.(?:input|output)_linear\..+",
    re.ASCII | re.DOTALL,
)
_ATTENTION = r"(?:self_attn|self_attention|attn|attention|mixer)\."
# Projections that make K, V, all of Q, K and V, or MLA's vector. GPT-2's are written the other way.
_PROJECTION = re.compile(
    rf"(?:.*\.)?{_ATTENTION}"
    r"(k_proj|wk|v_proj|wv|qkv_proj|query_key_value|Wqkv|qkv|c_attn|kv_a_proj_with_mqa)"
    r"\.(weight|qweight|weight_packed)",
    re.ASCII,
)
_PARTS = {
    "k_proj": "k",
    "wk": "k",
    "v_proj": "v",
    "wv": "v",
    "kv_a_proj_with_mqa": "latent",
}
_CROSS = "cross_attn"
# A hostile file may have any number of either.
_TYPES_KEPT = 32
_STACKS_KEPT = 3


def spec_fields(path: str | os.PathLike[str], *, expanded_mla: bool = False) -> dict[str, Any]:
    """The keyword arguments of ModelSpec that the model at `path` decides, and `computes_in`.

    Raises SafetensorsError where it is not a sound model. Files that are sound and say something
    that is not understood give None for the figure that needed it, with the reason.
    """
    files = find_model(path)
    config = HfConfig(files.config)
    weights = _Weights(config)
    for tensor in read_tensors(files):
        weights.add(tensor)
    if not weights.total:
        raise error(files.folder, "holds no weights; accepted is a model with its tensors")
    per_token, weight_unknown = or_reason(weights.per_token)
    attention, kv_unknown = or_reason(lambda: weights.borne_out(config, expanded_mla))
    fields: dict[str, Any] = {
        "name": _name(files),
        "architecture": clean_text(config.model_type or "") or None,
        "quantisation": clean_text(config.quantisation() or weights.commonest()) or None,
        "weight_bytes_total": weights.total,
        "file_bytes": sum(_size(files.folder / name) for name in files.files),
        "layers": or_reason(config.layers)[0],
        "context_trained": or_reason(config.context_trained)[0],
        "tied_embeddings": weights.tied(),
        "header_hash": files.digest.hexdigest(),
        "weight_unknown": weight_unknown,
        "kv_unknown": kv_unknown,
        "computes_in": config.computes_in(),
    }
    if per_token is not None:
        fields["weight_bytes_per_token"], fields["experts"] = per_token
    if attention is not None:
        fields.update(attention.fields)
    return fields


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as cause:
        raise error(path, f"cannot be read: {cause.strerror}") from None


def _name(files: ModelFiles) -> str:
    """The folder's name; in Hugging Face's cache, whose folders are hashes, the repository's."""
    folder = files.folder.absolute()
    cached = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cached.startswith("models--"):
        return clean_text(cached.removeprefix("models--").replace("--", "/")) or "unnamed"
    return clean_text(folder.name) or "unnamed"


class _Weights:
    """Adds up tensors by what a step does with them; keeps sums and a few shapes, no names."""

    def __init__(self, config: HfConfig) -> None:
        self.total = 0
        self._config = config
        self._layers = or_reason(config.layers)[0] or MAX_LAYERS
        self._experts, self._experts_unknown = or_reason(config.experts)
        self._always = 0
        self._inputs = 0
        self._outputs = 0
        self._routed = 0
        self._numbers: set[int] = set()  # of experts in tensors of their own
        self._types: dict[str, int] = {}
        self._stacks: set[str] = set()  # what the names of the layers begin with
        self._found: set[int] = set()
        self._beyond = 0  # the number after the last layer found
        self._shapes: dict[tuple[int, str], tuple[int, ...]] = {}
        self._reason: str | None = None

    def add(self, tensor: Tensor) -> None:
        """Count one tensor."""
        self.total += tensor.bytes
        if tensor.dtype in self._types or len(self._types) < _TYPES_KEPT:
            self._types[tensor.dtype] = self._types.get(tensor.dtype, 0) + tensor.bytes
        if not _NOT_RUN.isdisjoint(tensor.name.split(".")):
            return
        layer = _LAYER.fullmatch(tensor.name)
        if layer is None:
            self._outside(tensor)
            return
        number = int(layer[2])
        self._beyond = max(self._beyond, number + 1)
        if len(self._stacks) < _STACKS_KEPT:
            self._stacks.add(layer[1])
        if number >= self._layers:
            return
        self._found.add(number)
        self._inside(tensor, number, layer[3])

    def _outside(self, tensor: Tensor) -> None:
        """Count a tensor that is in no layer."""
        module = tensor.name.split(".")[-2] if "." in tensor.name else ""
        if module in _INPUT:
            self._inputs += tensor.bytes
        elif module in _OUTPUT:
            self._outputs += tensor.bytes
        elif module not in _LOOKED_UP | _HEADS_OF_OTHER_USE:
            self._always += tensor.bytes

    def _inside(self, tensor: Tensor, layer: int, part: str) -> None:
        """Count a tensor of a layer that a step runs."""
        projection = _PROJECTION.fullmatch(part)
        if projection is not None:
            # A packed weight's shape is that of its words, which only its rows may share.
            plain = projection[2] == "weight" and len(tensor.shape) == 2 and tensor.shape[1] > 1
            shape = tensor.shape if plain else ()
            if projection[1] == "c_attn":
                shape = shape[::-1]
            self._shapes[layer, _PARTS.get(projection[1], "qkv")] = shape
        elif _CROSS in part:
            self._shapes[layer, _CROSS] = ()
        single = _SINGLE_EXPERT.fullmatch(part)
        if single is not None:
            self._numbers.add(int(single[1]))
            self._routed += tensor.bytes
        elif _MERGED_EXPERTS.fullmatch(part) and tensor.shape:
            total = self._experts[0] if self._experts else 0
            if not total or tensor.shape[0] % total or not tensor.shape[0]:
                self._reason = (
                    f"{shown(tensor.name)} is of {shown(tensor.shape)}, which does not begin with "
                    f"the {total} experts of config.json"
                )
            self._routed += tensor.bytes
        else:
            self._always += tensor.bytes

    def commonest(self) -> str:
        """The type that most of the bytes have."""
        return max(self._types, key=lambda kind: self._types[kind])

    def tied(self) -> bool:
        """Whether the input embedding is the output matrix."""
        said = self._config.tied()
        return not self._outputs if said is None else said

    def _output_matrix(self) -> int:
        """Its bytes. A tied one may be in the files once, under either name, or twice."""
        found = (self._inputs or self._outputs) if self.tied() else self._outputs
        if not found:
            raise Unknown("the output matrix is not among the tensors")
        return found

    def per_token(self) -> tuple[int, Experts | None]:
        """What one token reads, and the experts among it."""
        if self._config.is_encoder_decoder():
            raise Unknown("an encoder-decoder: what a step reads of it is not counted")
        layers = self._config.layers()
        reason = self._reason or self._experts_unknown
        if reason is not None:
            raise Unknown(reason)
        if len(self._stacks) > 1:
            names = ", ".join(sorted(self._stacks))
            raise Unknown(f"layers below {shown(names)}: which of them a step runs is not known")
        if len(self._found) != layers:
            raise Unknown(f"{len(self._found)} of the {layers} layers of config.json have tensors")
        if self._beyond > layers + self._config.draft_layers():
            raise Unknown(f"{self._beyond} layers have tensors, and config.json says {layers}")
        always = self._always + self._output_matrix()
        if not self._routed:
            if self._experts is not None:
                raise Unknown("config.json has experts, and none is known among the tensors")
            return always, None
        if self._experts is None:
            raise Unknown("there are experts among the tensors, and config.json has none")
        total, used = self._experts
        if self._numbers and self._numbers != set(range(total)):
            raise Unknown(
                f"{len(self._numbers)} experts have tensors, and config.json says {total}"
            )
        experts = Experts(total=total, used=used, bytes=self._routed)
        return always + experts.bytes_per_token, experts

    def borne_out(self, config: HfConfig, expanded_mla: bool) -> Attention:
        """What the layers keep, where the shapes of the projections agree."""
        attention = config.attention(expanded_mla=expanded_mla)
        if any(part == _CROSS for _, part in self._shapes):
            raise Unknown("cross-attention: its KV and state are not counted")
        for layer, (q, k, v) in enumerate(attention.widths):
            expected = {"latent": k} if attention.latent else {"k": k, "v": v}
            if (layer, "qkv") in self._shapes:
                expected = {"qkv": q + k + v}
            if not k:
                continue
            for part, width in expected.items():
                shape = self._shapes.get((layer, part))
                if shape is None and part == "v" and config.value("attention_k_eq_v") is True:
                    continue
                if shape is None:
                    raise Unknown(f"layer {layer} has no {part} projection among its tensors")
                if shape and shape[0] != width:
                    raise Unknown(
                        f"layer {layer}'s {part} projection makes {shape[0]} values a token, the "
                        f"heads of config.json {width}"
                    )
        return attention
