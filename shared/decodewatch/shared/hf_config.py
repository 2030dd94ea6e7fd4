"""From a Hugging Face `config.json` to what each layer keeps of a token. Pure.

What the file leaves to the model's code (which layers a window holds, which are recurrent) is what
the classes of that `model_type` in Transformers do, as of version 5.24. A `model_type` that is not
known is taken for a plain transformer unless something in its file says otherwise; the widths that
come out are for the caller to compare with the shapes of the tensors. What is not understood raises
Unknown, with the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from decodewatch.shared.errors import shown
from decodewatch.shared.model import MAX_HEADS, MAX_LAYERS, MAX_TOKENS
from decodewatch.shared.unknown import Unknown

# Where the language model of a multimodal one is described.
_INNER = ("text_config", "llm_config", "language_config")
# dtype -> type of the KV cache
_COMPUTES_IN = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "half": "f16"}

_QUANTISED_KV = ("kv_cache_scheme", "kv_cache_quant_algo")

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_TRAINED = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_USED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
    "moe_k",
)
_DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")

# What marks a family that is not counted here, by a key's beginning.
_FOREIGN = (
    ("index_topk", "sparse attention with an indexer"),
    ("cross_attention_layers", "cross-attention"),
    ("swa_num_key_value_heads", "KV heads that differ between windowed and other layers"),
    ("num_loops", "layers that run several times"),
)
# The same for models with state, of a `model_type` that _RECURS does not have.
_STATE = (
    "attn_layer_indices",
    "block_types",
    "conv_L_cache",
    "hybrid_override_pattern",
    "linear_attn_config",
    "linear_conv_kernel",
    "linear_num_",
    "lru_width",
    "mamba_",
    "rescale_every",
    "ssm_",
    "state_size",
)
_RECURRENT = "a recurrent or hybrid model of a family that is not known"

# What a layer of each type does; of `layer_types` and its like.
_ATTENDS = frozenset({"full_attention", "attention", "global_attention"})
_SLIDES = frozenset({"sliding_attention"})
_CHUNKS = frozenset({"chunked_attention"})
_RECURS_BY_TYPE = frozenset({"linear_attention", "mamba", "mamba2", "conv"})
_NEITHER = frozenset({"mlp", "moe"})
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # of Nemotron-H

# model_type -> of so many layers the last is free of the window, where `layer_types` is not there.
_FREE_OF_EVERY = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "olmo3": 4,
}
_WINDOW_IN_ALL = frozenset({"ministral", "mistral", "mixtral", "phi3", "starcoder2"})
# Have a window only with `use_sliding_window`, and then from the layer `max_window_layers` on.
_WINDOW_FROM = frozenset({"qwen2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3"})


class State(NamedTuple):
    """The values that one recurrent layer keeps."""

    convolution: int
    state: int


@dataclass(frozen=True, slots=True)
class Attention:
    """What the layers keep: fields of ModelSpec, and what their projections should make of a token.

    `widths` has a (Q, K, V) for each layer, all 0 where a layer has none of its own; with `latent`
    its K is the width of MLA's compressing projection.
    """

    fields: Mapping[str, Any]
    widths: tuple[tuple[int, int, int], ...]
    latent: bool


class HfConfig:
    """Questions to one config.json. Those that may find no answer raise Unknown."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._outer = config
        self._inner = config
        for name in _INNER:
            if isinstance(config.get(name), dict):
                self._inner = config[name]
                break
        kind = self._inner.get("model_type") or config.get("model_type")
        self.model_type = kind if isinstance(kind, str) and kind else None

    def value(self, key: str) -> Any:
        """A value of the language model, or of the whole; None where it is in neither, or null."""
        found = self._inner.get(key)
        return self._outer.get(key) if found is None else found

    def number(self, keys: tuple[str, ...], low: int, high: int) -> int | None:
        """The whole number below the first of the keys that is there; None where none is."""
        for key in keys:
            value = self.value(key)
            if value is None:
                continue
            if type(value) is not int or not low <= value <= high:
                raise Unknown(
                    f"config.json's {key} is {shown(value)}; accepted is a whole number from "
                    f"{low} to {high}"
                )
            return value
        return None

    def needed(self, keys: tuple[str, ...] | str, low: int = 1, high: int = MAX_TOKENS) -> int:
        """The same, where it must be there."""
        keys = (keys,) if isinstance(keys, str) else keys
        value = self.number(keys, low, high)
        if value is None:
            raise Unknown(f"config.json has no {keys[0]}")
        return value

    # The model as a whole

    def layers(self) -> int:
        """The layers that a decode step runs."""
        return self.needed(_LAYERS, 1, MAX_LAYERS)

    def draft_layers(self) -> int:
        """Layers after those, which only draft tokens."""
        return self.number(_DRAFTS, 0, MAX_LAYERS) or 0

    def context_trained(self) -> int | None:
        """Tokens."""
        return self.number(_TRAINED, 1, MAX_TOKENS)

    def computes_in(self) -> str | None:
        """The type of the KV cache that engines take where they are told nothing.

        None where the file also describes a quantised KV cache, which some engines take instead.
        """
        given = self.value("quantization_config")
        if isinstance(given, dict) and any(given.get(key) for key in _QUANTISED_KV):
            return None
        for key in ("dtype", "torch_dtype"):
            value = self.value(key)
            if isinstance(value, str):
                return _COMPUTES_IN.get(value.removeprefix("torch."))
        return None

    def tied(self) -> bool | None:
        """Whether the input embedding is the output matrix; None where the file does not say."""
        for config in (self._outer, self._inner):
            value = config.get("tie_word_embeddings")
            if type(value) is bool:
                return value
        return None

    def quantisation(self) -> str | None:
        """The label of the method that the weights were quantised with."""
        given = self.value("quantization_config") or self.value("quantization")
        if not isinstance(given, dict):
            return None
        method, bits = given.get("quant_method"), given.get("bits")
        label = method if isinstance(method, str) else "quantised"
        return f"{label} {bits} bits" if type(bits) is int else label

    def experts(self) -> tuple[int, int] | None:
        """How many experts a layer has, and how many of them run for a token."""
        nested = self.value("ffn_config")
        where = HfConfig(nested) if isinstance(nested, dict) else self
        total = where.number(_EXPERTS, 0, MAX_HEADS)
        if not total:
            return None
        return total, where.needed(_EXPERTS_USED, 1, total)

    def is_encoder_decoder(self) -> bool:
        """Whether another model reads the prompt."""
        return self.value("is_encoder_decoder") is True

    # KV and state

    def attention(self, *, expanded_mla: bool = False) -> Attention:
        """What each layer keeps of a token, and what a sequence keeps whatever its depth."""
        self._refuse_foreign()
        types = self._types()
        count = len(types)
        fields: dict[str, Any] = {}
        recurrent = [kind in _RECURS_BY_TYPE for kind in types]
        attends = [kind not in _RECURS_BY_TYPE | _NEITHER for kind in types]
        rule = _RECURS.get(self.model_type or "")
        if rule is not None:
            beside, state_of_one = rule
            if beside:
                recurrent = [True] * count
            one = state_of_one(self) if any(recurrent) else State(0, 0)
            layers_with_state = sum(recurrent)
            fields["state_values"] = (
                layers_with_state * one.convolution,
                layers_with_state * one.state,
            )
        if not any(attends):
            return Attention(fields | {"kv_heads": 0}, ((0, 0, 0),) * count, latent=False)
        fields |= self._window(types, attends)
        shared = self.number(("num_kv_shared_layers",), 0, count - 1) or 0
        own = [attend and layer < count - shared for layer, attend in enumerate(attends)]
        if self.number(("kv_lora_rank",), 0, MAX_HEADS):
            return self._mla(fields, own, expanded_mla)
        return self._heads(fields, own, types)

    def _refuse_foreign(self) -> None:
        marks = list(_FOREIGN)
        if self.model_type not in _RECURS:
            marks += [(start, _RECURRENT) for start in _STATE]
        for key, value in {**self._outer, **self._inner}.items():
            if value in (None, 0, "") or value == []:
                continue
            for start, family in marks:
                if key.startswith(start):
                    raise Unknown(f"{family}: its KV and state are not counted")
        if self.is_encoder_decoder():
            raise Unknown("an encoder-decoder: its KV and state are not counted")

    def _types(self) -> tuple[str, ...]:
        """What each layer is, in the words of `layer_types`."""
        layers = self.layers()
        rule = _TYPES.get(self.model_type or "")
        given = self.value("layer_types") or self.value("layers_block_type")
        if given is None and rule is not None:
            given = rule(self, layers)
        if given is None:
            given = self._types_by_window(layers)
        if not isinstance(given, (list, tuple)) or len(given) < layers:
            raise Unknown(f"config.json's layer_types is {shown(given)}, for {layers} layers")
        known = _ATTENDS | _SLIDES | _CHUNKS | _RECURS_BY_TYPE | _NEITHER
        for kind in given[:layers]:
            if not isinstance(kind, str) or kind not in known:
                raise Unknown(f"a layer of the type {shown(kind)}: what it keeps is not known")
            if kind in _RECURS_BY_TYPE and self.model_type not in _RECURS:
                raise Unknown(f"{_RECURRENT}: its KV and state are not counted")
        return tuple(given[:layers])

    def _types_by_window(self, layers: int) -> list[str]:
        """The same for models whose file leaves it to their code, by their windows."""
        free, held = "full_attention", "sliding_attention"
        pattern = self.value("sliding_window_pattern")
        if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:  # of EXAONE 4
            return [held if pattern[i % len(pattern)] == "L" else free for i in range(layers)]
        if self.model_type == "llama4_text":
            return self._types_of_llama4(layers)
        every = _FREE_OF_EVERY.get(self.model_type or "")
        if every is not None and self._tokens_of_window() is not None:
            every = self.number(("sliding_window_pattern",), 1, MAX_LAYERS) or every
            return [free if (layer + 1) % every == 0 else held for layer in range(layers)]
        if self.model_type in _WINDOW_IN_ALL and self._tokens_of_window() is not None:
            return [held] * layers
        if self.model_type in _WINDOW_FROM and self.value("use_sliding_window") is True:
            first = self.needed("max_window_layers", 0)
            return [held if layer >= first else free for layer in range(layers)]
        return [free] * layers

    def _types_of_llama4(self, layers: int) -> list[str]:
        if not self.number(("attention_chunk_size",), 0, MAX_TOKENS):
            return ["full_attention"] * layers
        turned = self.value("no_rope_layers")
        if not turned:
            every = self.number(("no_rope_layer_interval",), 1, MAX_LAYERS) or 4
            turned = [(layer + 1) % every for layer in range(layers)]
        if not isinstance(turned, list) or len(turned) < layers:
            raise Unknown(f"config.json's no_rope_layers is {shown(turned)}, for {layers} layers")
        return ["chunked_attention" if one else "full_attention" for one in turned[:layers]]

    def _tokens_of_window(self) -> int | None:
        return self.number(("sliding_window",), 0, MAX_TOKENS) or None

    def _window(self, types: tuple[str, ...], attends: list[bool]) -> dict[str, Any]:
        """The fields of the window; without `sliding_layers` its layers are not known."""
        held = tuple(kind in _SLIDES | _CHUNKS for kind in types)
        if any(kind in _CHUNKS for kind in types):
            if any(kind in _SLIDES for kind in types):
                raise Unknown("layers that slide and layers that attend in chunks")
            return {
                "sliding_window": self.needed("attention_chunk_size"),
                "sliding_layers": True if all(held) else held,
                "window_chunked": True,
            }
        if any(held):
            return {
                "sliding_window": self.needed("sliding_window"),
                "sliding_layers": True if all(held) else held,
            }
        window = self._tokens_of_window()
        said = self.value("layer_types") is not None or self.value("use_sliding_window") is False
        known = self.model_type in _WINDOW_FROM and not self.value("use_sliding_window")
        if window is None or said or known or self.model_type in _TYPES:
            return {}
        return {"sliding_window": window}

    def _mla(self, fields: dict[str, Any], own: list[bool], expanded: bool) -> Attention:
        rank = self.needed("kv_lora_rank", 1, MAX_HEADS)
        turned = self.needed("qk_rope_head_dim", 1, MAX_HEADS)
        widths = tuple((0, rank + turned if one else 0, 0) for one in own)
        if not expanded:
            fields["kv_values"] = tuple((width, 0) for _, width, _ in widths)
            return Attention(fields, widths, latent=True)
        heads = self.needed(_HEADS, 1, MAX_HEADS)
        fields["kv_heads"] = heads if all(own) else tuple(heads if one else 0 for one in own)
        fields["head_dim_k"] = self.needed("qk_nope_head_dim", 1, MAX_HEADS) + turned
        fields["head_dim_v"] = self.needed("v_head_dim", 1, MAX_HEADS)
        return Attention(fields, widths, latent=True)

    def _heads(self, fields: dict[str, Any], own: list[bool], types: tuple[str, ...]) -> Attention:
        heads = self.needed(_HEADS, 1, MAX_HEADS)
        each = self._kv_heads(heads, len(types))
        size = self.number(("head_dim",), 1, MAX_HEADS)
        if size is None:
            width = self.needed(_WIDTH)
            if width % heads:
                raise Unknown(
                    f"config.json has no head_dim, and its hidden_size of {width} does not part "
                    f"into {heads} heads"
                )
            size = width // heads
        size_v = self.number(("v_head_dim",), 1, MAX_HEADS) or size
        sizes = [(count, size, size_v) for count in each]
        wide = self.number(("global_head_dim",), 1, MAX_HEADS)
        if wide is not None and wide != size:  # of Gemma 4: layers without a window
            free = [kind not in _SLIDES for kind in types]
            fewer = None
            if self.value("attention_k_eq_v") is True:
                fewer = self.number(("num_global_key_value_heads",), 1, MAX_HEADS)
            sizes = [
                (fewer or count, wide, wide) if free[layer] else (count, k, v)
                for layer, (count, k, v) in enumerate(sizes)
            ]
        sizes = [(count if own[i] else 0, k, v) for i, (count, k, v) in enumerate(sizes)]
        widths = tuple((heads * k if n else 0, n * k, n * v) for n, k, v in sizes)
        if len({(k, v) for _, k, v in sizes}) > 1:
            fields["kv_values"] = tuple((k, v) for _, k, v in widths)
        else:
            counts = tuple(count for count, _, _ in sizes)
            fields["kv_heads"] = counts[0] if len(set(counts)) == 1 else counts
            fields["head_dim_k"], fields["head_dim_v"] = sizes[0][1:]
        return Attention(fields, widths, latent=False)

    def _kv_heads(self, heads: int, layers: int) -> list[int]:
        for key in _KV_HEADS:
            value = self.value(key)
            if isinstance(value, list):
                if len(value) < layers or not all(
                    type(one) is int and 0 <= one <= MAX_HEADS for one in value
                ):
                    raise Unknown(f"config.json's {key} is {shown(value)}, for {layers} layers")
                return value[:layers]
        if self.value("multi_query") is True and self.value("new_decoder_architecture") is not True:
            return [1] * layers
        count = self.number(_KV_HEADS, 1, MAX_HEADS)
        return [heads if count is None else count] * layers


# Families with state: which of their layers are recurrent, and what one of those keeps.


def _all_recurrent(config: HfConfig, layers: int) -> list[str]:
    return ["mamba"] * layers


def _types_of_jamba(config: HfConfig, layers: int) -> list[str]:
    every = config.needed("attn_layer_period", 1, MAX_LAYERS)
    first = config.needed("attn_layer_offset", 0, MAX_LAYERS)
    return ["attention" if layer % every == first else "mamba" for layer in range(layers)]


def _types_of_bamba(config: HfConfig, layers: int) -> list[str]:
    which = config.value("attn_layer_indices") or []
    if not isinstance(which, list):
        raise Unknown(f"config.json's attn_layer_indices is {shown(which)}; accepted is a list")
    return ["attention" if layer in which else "mamba" for layer in range(layers)]


def _types_of_nemotron(config: HfConfig, layers: int) -> list[str]:
    pattern = config.value("hybrid_override_pattern")
    if not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS):
        raise Unknown(
            f"config.json's hybrid_override_pattern is {shown(pattern)}; accepted are letters of "
            f"{''.join(_LETTERS)}"
        )
    return [_LETTERS[letter] for letter in pattern]


def _types_of_qwen(config: HfConfig, layers: int) -> list[str]:
    every = config.number(("full_attention_interval",), 1, MAX_LAYERS) or 4
    free, rest = "full_attention", "linear_attention"
    return [free if (layer + 1) % every == 0 else rest for layer in range(layers)]


def _types_of_lfm2(config: HfConfig, layers: int) -> list[str]:
    which = config.value("full_attn_idxs")
    if not isinstance(which, list):
        raise Unknown("config.json has neither layer_types nor full_attn_idxs")
    return ["full_attention" if layer in which else "conv" for layer in range(layers)]


def _types_of_falcon_h1(config: HfConfig, layers: int) -> list[str]:
    return ["full_attention"] * layers


def _mamba(config: HfConfig) -> State:
    inner = config.number(("intermediate_size",), 1, MAX_TOKENS)
    if inner is None:
        inner = config.needed("expand", 1, MAX_HEADS) * config.needed(_WIDTH)
    taps = config.needed("conv_kernel", 1, MAX_HEADS)
    return State((taps - 1) * inner, inner * config.needed("state_size", 1, MAX_HEADS))


def _jamba(config: HfConfig) -> State:
    inner = config.needed("mamba_expand", 1, MAX_HEADS) * config.needed(_WIDTH)
    taps = config.needed("mamba_d_conv", 1, MAX_HEADS)
    return State((taps - 1) * inner, inner * config.needed("mamba_d_state", 1, MAX_HEADS))


def _with_groups(inner: int, groups: int, size: int, taps: int) -> State:
    """Mamba 2: the inputs of its groups pass through the convolution too."""
    return State((taps - 1) * (inner + 2 * groups * size), inner * size)


def _mamba2(config: HfConfig) -> State:
    heads = config.needed("num_heads", 1, MAX_HEADS)
    return _with_groups(
        heads * config.needed("head_dim", 1, MAX_HEADS),
        config.needed("n_groups", 1, MAX_HEADS),
        config.needed("state_size", 1, MAX_HEADS),
        config.needed("conv_kernel", 1, MAX_HEADS),
    )


def _bamba(config: HfConfig) -> State:
    inner = config.number(("mamba_d_ssm",), 1, MAX_TOKENS)
    if inner is None:
        inner = config.needed("mamba_expand", 1, MAX_HEADS) * config.needed(_WIDTH)
    return _with_groups(
        inner,
        config.needed("mamba_n_groups", 1, MAX_HEADS),
        config.needed("mamba_d_state", 1, MAX_HEADS),
        config.needed("mamba_d_conv", 1, MAX_HEADS),
    )


def _nemotron(config: HfConfig) -> State:
    heads = config.needed("mamba_num_heads", 1, MAX_HEADS)
    return _with_groups(
        heads * config.needed("mamba_head_dim", 1, MAX_HEADS),
        config.needed("n_groups", 1, MAX_HEADS),
        config.needed("ssm_state_size", 1, MAX_HEADS),
        config.needed("conv_kernel", 1, MAX_HEADS),
    )


def _qwen(config: HfConfig) -> State:
    key = config.needed("linear_key_head_dim", 1, MAX_HEADS)
    values = config.needed("linear_num_value_heads", 1, MAX_HEADS)
    values *= config.needed("linear_value_head_dim", 1, MAX_HEADS)
    return _with_groups(
        values,
        config.needed("linear_num_key_heads", 1, MAX_HEADS),
        key,
        config.needed("linear_conv_kernel_dim", 1, MAX_HEADS),
    )


def _lfm2(config: HfConfig) -> State:
    taps = config.needed("conv_L_cache", 1, MAX_HEADS)
    return State((taps - 1) * config.needed(_WIDTH), 0)


# model_type -> (every layer keeps state beside its KV, what one recurrent layer keeps)
_RECURS: Mapping[str, tuple[bool, Callable[[HfConfig], State]]] = {
    "bamba": (False, _bamba),
    "falcon_h1": (True, _bamba),
    "falcon_mamba": (False, _mamba),
    "granitemoehybrid": (False, _bamba),
    "jamba": (False, _jamba),
    "lfm2": (False, _lfm2),
    "lfm2_moe": (False, _lfm2),
    "mamba": (False, _mamba),
    "mamba2": (False, _mamba2),
    "nemotron_h": (False, _nemotron),
    "qwen3_5_moe_text": (False, _qwen),
    "qwen3_5_text": (False, _qwen),
    "qwen3_next": (False, _qwen),
}
# model_type -> what each layer is where `layer_types` is not there
_TYPES: Mapping[str, Callable[[HfConfig, int], list[str]]] = {
    "bamba": _types_of_bamba,
    "falcon_h1": _types_of_falcon_h1,
    "falcon_mamba": _all_recurrent,
    "jamba": _types_of_jamba,
    "lfm2": _types_of_lfm2,
    "lfm2_moe": _types_of_lfm2,
    "mamba": _all_recurrent,
    "mamba2": _all_recurrent,
    "nemotron_h": _types_of_nemotron,
    "qwen3_5_moe_text": _types_of_qwen,
    "qwen3_5_text": _types_of_qwen,
    "qwen3_next": _types_of_qwen,
}
