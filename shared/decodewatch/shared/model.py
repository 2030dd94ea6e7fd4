"""The model spec: what the arithmetic of decoding needs, and that arithmetic.

A decode step reads the weights once and the KV cache of every sequence in the batch once; the state
of layers that keep one instead of a cache (recurrent ones, short convolutions) is read and written:

    bytes a step = weights read + batch x (KV bytes at that depth + 2 x state bytes)

and the bytes over the ceiling (bytes a second) are the theory. All figures are exact integers of
bytes. What is not known is None, and `why_unknown` says why; it is never guessed. The page
docs/model-spec.md says what each family keeps.

    spec = ModelSpec.from_gguf("model.gguf", kv_type="q8_0", context_limit=4096)
    spec = ModelSpec.from_safetensors("Qwen2.5-7B-Instruct/", allocation="paged")
    spec = ModelSpec(
        name="7B int4", weight_bytes_per_token=3_500_000_000, layers=32, kv_heads=8,
        head_dim_k=128, head_dim_v=128, kv_types=("f16", "f16"),
    )
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from decodewatch.shared.errors import DecodewatchError, shown

ALLOCATIONS = ("at_once", "growing", "paged")
# What the engine does when the context is full.
OVERFLOWS = ("refuse", "truncate", "shift", "summarise")
# Bytes of one value in the KV cache, with the scales of its block where the type has blocks. One
# scale for a whole layer or head (fp8, int8) is nothing.
KV_TYPES: Mapping[str, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}

MAX_BYTES = (1 << 53) - 1  # exact in every JSON reader
MAX_LAYERS = 1024
MAX_HEADS = 1 << 16
MAX_VALUES = 1 << 48  # of a token or of a state
MAX_TOKENS = 1 << 40
MAX_TEXT = 128
MAX_REASON = 256
MAX_BATCH = 1 << 20

_Check = Callable[[str, Any], Any]


class ModelError(DecodewatchError):
    """A model spec that cannot be: the text names the field, the value and what is accepted."""


def _refuse(field: str, value: object, accepted: str) -> ModelError:
    return ModelError(f"model {field}: {shown(value)}; accepted is {accepted}")


def _whole(low: int, high: int) -> _Check:
    def check(field: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _refuse(field, value, f"a whole number from {low} to {high}")
        return value

    return check


def _text(limit: int) -> _Check:
    def check(field: str, value: Any) -> str:
        fits = isinstance(value, str) and 0 < len(value) <= limit and "\0" not in value
        if not fits or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _refuse(field, value, f"text of 1 to {limit} characters")
        return str(value)

    return check


def _word(accepted: tuple[str, ...]) -> _Check:
    def check(field: str, value: Any) -> str:
        if not isinstance(value, str) or value not in accepted:
            raise _refuse(field, value, "one of " + ", ".join(accepted))
        return value

    return check


def _truth(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(field, value, "true or false")
    return value


def _pair(check: _Check) -> _Check:
    """The same thing for K and for V."""

    def pair(field: str, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise _refuse(field, value, "a pair, for K and for V")
        return check(field, value[0]), check(field, value[1])

    return pair


def _each_layer(check: _Check) -> _Check:
    """One value for all layers, or a list with one for each."""

    def each(field: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return check(field, value)
        if not 0 < len(value) <= MAX_LAYERS:
            raise _refuse(field, value, f"a list of 1 to {MAX_LAYERS}")
        return tuple(check(field, item) for item in value)

    return each


def _value_bytes(field: str, value: Any) -> float:
    # A NaN fails the comparison too.
    if type(value) not in (int, float) or not 0 < value <= 16:
        raise _refuse(field, value, "a number of bytes above 0, at most 16")
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: of `total` in each layer, `used` run for a token.

    `bytes` is the weight of all of them over all layers; experts that always run (shared ones)
    are not among them.
    """

    total: int
    used: int
    bytes: int

    def __post_init__(self) -> None:
        _whole(1, MAX_HEADS)("experts.total", self.total)
        _whole(1, self.total)("experts.used", self.used)
        _whole(0, MAX_BYTES)("experts.bytes", self.bytes)

    @property
    def bytes_per_token(self) -> int:
        """What one token reads of them."""
        return self.bytes * self.used // self.total

    def expected_bytes(self, batch: int) -> int:
        """What one step reads for `batch` tokens that choose independently and evenly."""
        if batch == 1:
            return self.bytes_per_token
        return round(self.bytes * (1 - (1 - self.used / self.total) ** batch))


def _experts(field: str, value: Any) -> Experts:
    if isinstance(value, Experts):
        return value
    if not isinstance(value, Mapping):
        raise _refuse(field, value, "an object with total, used and bytes")
    return Experts(
        total=value.get("total"),  # type: ignore[arg-type]  # Experts checks all three
        used=value.get("used"),  # type: ignore[arg-type]
        bytes=value.get("bytes"),  # type: ignore[arg-type]
    )


_BYTES = _whole(0, MAX_BYTES)
_CHECKS: Mapping[str, _Check] = {
    "name": _text(MAX_TEXT),
    "architecture": _text(MAX_TEXT),
    "quantisation": _text(MAX_TEXT),
    "weight_bytes_per_token": _whole(1, MAX_BYTES),
    "weight_bytes_total": _whole(1, MAX_BYTES),
    "file_bytes": _whole(1, MAX_BYTES),
    "layers": _whole(1, MAX_LAYERS),
    "kv_heads": _each_layer(_whole(0, MAX_HEADS)),
    "head_dim_k": _whole(1, MAX_HEADS),
    "head_dim_v": _whole(1, MAX_HEADS),
    "kv_values": _each_layer(_pair(_whole(0, MAX_VALUES))),
    "kv_types": _pair(_text(16)),
    "kv_bytes_per_value": _pair(_value_bytes),
    "allocation": _word(ALLOCATIONS),
    "overflow": _word(OVERFLOWS),
    "context_limit": _whole(1, MAX_TOKENS),
    "context_trained": _whole(1, MAX_TOKENS),
    "sliding_window": _whole(1, MAX_TOKENS),
    "sliding_layers": _each_layer(_truth),
    "window_chunked": _truth,
    "state_values": _pair(_whole(0, MAX_VALUES)),
    "state_types": _pair(_text(16)),
    "experts": _experts,
    "tied_embeddings": _truth,
    "weight_unknown": _text(MAX_REASON),
    "kv_unknown": _text(MAX_REASON),
    "header_hash": _text(64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model as one runtime runs it. Every field but the name may be None: not known.

    Raises ModelError for a value out of its range or at odds with another.
    """

    name: str
    architecture: str | None = None
    quantisation: str | None = None  # a label ("Q4_K_M"); sizes are in the byte fields
    # What one token at batch 1 reads: an input embedding that is only looked up (one row of a few
    # KB) is left out, a tied one is read whole as the output matrix, experts count as used/total.
    weight_bytes_per_token: int | None = None
    weight_bytes_total: int | None = None
    file_bytes: int | None = None  # all parts of a split model
    layers: int | None = None
    kv_heads: int | tuple[int, ...] | None = None  # one for all layers, or each layer's; 0: none
    head_dim_k: int | None = None
    head_dim_v: int | None = None
    # (K, V) values that each layer keeps of a token, in place of the three fields above where those
    # cannot say it: MLA's one compressed vector, heads of two sizes.
    kv_values: tuple[tuple[int, int], ...] | None = None
    kv_types: tuple[str, str] | None = None  # K, V: names, of KV_TYPES or others
    kv_bytes_per_value: tuple[float, float] | None = None  # from kv_types where KV_TYPES has them
    allocation: str | None = None  # one of ALLOCATIONS
    overflow: str | None = None  # one of OVERFLOWS
    context_limit: int | None = None  # tokens that the runtime was set to, not the model's training
    context_trained: int | None = None
    sliding_window: int | None = None  # tokens; None: every layer attends to all of the context
    sliding_layers: bool | tuple[bool, ...] | None = None  # which layers are held to the window
    window_chunked: bool | None = None  # the window does not slide: it begins anew when it is full
    # What a sequence keeps whatever its depth, in all layers together: values of convolutions, and
    # of recurrent states. None: no layer keeps any.
    state_values: tuple[int, int] | None = None
    state_types: tuple[str, str] | None = None  # of both: names, of KV_TYPES or others
    experts: Experts | None = None
    tied_embeddings: bool | None = None
    weight_unknown: str | None = None  # why weight_bytes_per_token is None
    kv_unknown: str | None = None  # why KV and state are None although fields are there
    header_hash: str | None = None  # of the file's header and size: another file, another hash

    def __post_init__(self) -> None:
        for field, check in _CHECKS.items():
            value = getattr(self, field)
            if value is not None or field == "name":
                object.__setattr__(self, field, check(field, value))
        if self.kv_bytes_per_value is None and self.kv_types is not None:
            object.__setattr__(self, "kv_bytes_per_value", _bytes_of(self.kv_types))
        self._check_together()

    def _check_together(self) -> None:
        for field in ("kv_heads", "kv_values", "sliding_layers"):
            value = getattr(self, field)
            if isinstance(value, tuple) and len(value) != self.layers:
                raise _refuse(field, value, f"one for each of the {self.layers} layers")
        if self.kv_values is not None:
            for field in ("kv_heads", "head_dim_k", "head_dim_v"):
                if getattr(self, field) is not None:
                    raise _refuse(field, getattr(self, field), "None beside kv_values")
        for field in ("sliding_layers", "window_chunked"):
            if getattr(self, field) is not None and self.sliding_window is None:
                raise _refuse(field, getattr(self, field), "None without a sliding_window")
        if self.state_types is not None and self.state_values is None:
            raise _refuse("state_types", self.state_types, "None without state_values")
        read, total = self.weight_bytes_per_token, self.weight_bytes_total
        if read is not None and total is not None and read > total:
            raise _refuse("weight_bytes_per_token", read, f"at most weight_bytes_total, {total}")
        if read is not None and self.experts is not None and self.experts.bytes_per_token > read:
            raise _refuse(
                "weight_bytes_per_token",
                read,
                f"at least what its experts read, {self.experts.bytes_per_token}",
            )

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        *,
        kv_type: str | tuple[str, str] | None = "f16",
        state_type: str | tuple[str, str] | None = "f32",
        context_limit: int | None = None,
        allocation: str | None = None,
        overflow: str | None = None,
        name: str | None = None,
    ) -> "ModelSpec":
        """The spec of a GGUF file, from its header alone; the rest is how the runtime runs it.

        `kv_type` is one of KV_TYPES, or a pair for K and V; None where it is not known.
        `state_type` is the same for the state of recurrent layers (a pair: convolutions, states),
        which llama.cpp keeps in f32. Any part of a split model may be named. Raises GgufError for
        the file, ModelError for an argument.
        """
        # The agent and the servers get specs over the wire; only who reads a file pays for this.
        from decodewatch.shared.gguf_spec import spec_fields

        return cls._of_file(
            lambda: spec_fields(path),
            kv_type=kv_type,
            state_type=state_type,
            name=name,
            context_limit=context_limit,
            allocation=allocation,
            overflow=overflow,
        )

    @classmethod
    def from_safetensors(
        cls,
        path: str | os.PathLike[str],
        *,
        kv_type: str | tuple[str, str] | None = "auto",
        state_type: str | tuple[str, str] | None = None,
        expanded_mla: bool = False,
        context_limit: int | None = None,
        allocation: str | None = None,
        overflow: str | None = None,
        name: str | None = None,
    ) -> "ModelSpec":
        """The spec of a model in Hugging Face's form: `config.json` and the safetensors' headers.

        `path` is the folder, its index or one of its safetensors files. `kv_type` and `state_type`
        are as with `from_gguf`; "auto" is the type that config.json says the model computes in,
        which Transformers and vLLM take for the KV cache. The type of states differs between
        engines and has no default. `expanded_mla` says that the engine keeps MLA's K and V of every
        head, as Transformers does, and not the compressed vector, as vLLM does. Raises
        SafetensorsError for the files, ModelError for an argument.
        """
        from decodewatch.shared.safetensors_spec import spec_fields

        _truth("expanded_mla", expanded_mla)
        return cls._of_file(
            lambda: spec_fields(path, expanded_mla=expanded_mla),
            kv_type=kv_type,
            state_type=state_type,
            auto=True,
            name=name,
            context_limit=context_limit,
            allocation=allocation,
            overflow=overflow,
        )

    @classmethod
    def _of_file(
        cls,
        read: Callable[[], dict[str, Any]],
        *,
        kv_type: str | tuple[str, str] | None,
        state_type: str | tuple[str, str] | None,
        name: str | None,
        auto: bool = False,
        **how: Any,
    ) -> "ModelSpec":
        """What `read` finds in a file and how the runtime runs it, as one spec.

        `read` may name the type that "auto" stands for as `computes_in`.
        """
        accepted = (*KV_TYPES, "auto") if auto else tuple(KV_TYPES)
        kv_types = _types("kv_type", kv_type, accepted)
        state_types = _types("state_type", state_type, accepted)
        found = read()
        computes_in = found.pop("computes_in", None)
        if name is not None:
            found["name"] = name
        if found.get("state_values") is None:
            state_types = None
        return cls(
            **found,
            kv_types=_instead_of_auto(kv_types, computes_in),
            state_types=_instead_of_auto(state_types, computes_in),
            **how,
        )

    def weight_bytes(self, batch: int = 1) -> int | None:
        """The weight bytes that one step reads for `batch` sequences.

        More sequences choose more experts: with a batch above 1 this is what is expected of even
        and independent choices. Raises ModelError for a batch below 1.
        """
        _whole(1, MAX_BATCH)("batch", batch)
        if self.weight_bytes_per_token is None or self.experts is None:
            return self.weight_bytes_per_token
        always = self.weight_bytes_per_token - self.experts.bytes_per_token
        return always + self.experts.expected_bytes(batch)

    def kv_bytes_per_token(self) -> int | None:
        """What one more token adds to the KV cache while it is shorter than any window."""
        return self.kv_bytes(1)

    def kv_bytes(self, depth: int) -> int | None:
        """The KV bytes of one sequence of `depth` tokens: what it holds, and what a step reads.

        A layer held to a sliding window counts as many tokens as the window at most; one held to
        chunks, the tokens since its chunk began. Layers that attend to the KV of another count
        nothing of their own. State is apart: see `state_bytes`. What an engine allocates is another
        matter: see `allocation` and `context_limit`. Raises ModelError for a depth below 0.
        """
        _whole(0, MAX_TOKENS)("depth", depth)
        if self._kv_reason(depth) is not None:
            return None
        within = depth
        if self.sliding_window is not None:
            within = min(depth, self.sliding_window)
            if self.window_chunked and depth:
                within = (depth - 1) % self.sliding_window + 1
        held = _for_each(self.sliding_layers or False, self.layers)
        k_values, v_values = 0, 0
        for (k, v), windowed in zip(self._kv_each_layer(), held, strict=True):
            tokens = within if windowed else depth
            k_values += k * tokens
            v_values += v * tokens
        k_bytes, v_bytes = self.kv_bytes_per_value or (0.0, 0.0)
        return round(k_values * k_bytes + v_values * v_bytes)

    def state_bytes(self) -> int | None:
        """What one sequence holds whatever its depth; a step reads it and writes it."""
        if self._state_reason() is not None:
            return None
        if self.state_values is None or self.state_types is None:
            return 0
        kinds = zip(self.state_values, self.state_types, strict=True)
        return round(sum(values * KV_TYPES[kind] for values, kind in kinds))

    def sequence_bytes(self, depth: int) -> int | None:
        """What one sequence of `depth` tokens holds: its KV and its state."""
        kv, state = self.kv_bytes(depth), self.state_bytes()
        return None if kv is None or state is None else kv + state

    def bytes_per_step(self, depth: int, batch: int = 1) -> int | None:
        """What one decode step reads for `batch` sequences, each of `depth` tokens.

        State counts twice, since a step writes all of it too; of the KV cache it writes one token.
        """
        weights, kv, state = self.weight_bytes(batch), self.kv_bytes(depth), self.state_bytes()
        if weights is None or kv is None or state is None:
            return None
        return weights + batch * (kv + 2 * state)

    def why_unknown(self, depth: int = 1) -> str | None:
        """Why `bytes_per_step(depth)` is None; None where it is not."""
        if self.weight_bytes_per_token is None:
            return self.weight_unknown or "weight_bytes_per_token is not given"
        return self._kv_reason(depth) or self._state_reason()

    def _kv_each_layer(self) -> tuple[tuple[int, int], ...]:
        """(K, V) values that each layer keeps of a token; the fields that say so are there."""
        if self.kv_values is not None:
            return self.kv_values
        k, v = self.head_dim_k or 0, self.head_dim_v or 0
        return tuple((heads * k, heads * v) for heads in _for_each(self.kv_heads, self.layers))

    def _kv_reason(self, depth: int) -> str | None:
        if self.kv_unknown is not None:
            return self.kv_unknown
        needed = ["layers"]
        if self.kv_values is None:
            needed.append("kv_heads")
            if self.kv_heads is None or self._keeps_kv():
                needed += ["head_dim_k", "head_dim_v"]
        if self._keeps_kv():
            needed.append("kv_bytes_per_value")
        for field in needed:
            if getattr(self, field) is not None:
                continue
            if field == "kv_bytes_per_value":
                return "the engine does not say how many bytes each value of K and V takes"
            return f"{field} is not given"
        window = self.sliding_window
        if window is not None and self.sliding_layers is None and depth > window:
            return f"which layers the sliding window of {window} tokens holds is not known"
        return None

    def _keeps_kv(self) -> bool:
        """Whether any layer is known to keep K or V of a token."""
        if self.kv_values is not None:
            return any(k or v for k, v in self.kv_values)
        return any(_for_each(self.kv_heads, 1)) if self.kv_heads is not None else False

    def _state_reason(self) -> str | None:
        if self.state_values is None:
            # Of a model of which nothing is known, neither is this.
            return self.kv_unknown or (None if self.layers is not None else "layers is not given")
        if not any(self.state_values):
            return None
        if self.state_types is None:
            return "state_types is not given"
        for kind in self.state_types:
            if kind not in KV_TYPES:
                return f"how many bytes state_types' {shown(kind)} takes is not known"
        return None

    def to_json(self) -> dict[str, Any]:
        """The spec as a JSON object, fields that are None left out."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Experts):
                value = {"total": value.total, "used": value.used, "bytes": value.bytes}
            elif isinstance(value, tuple):
                value = [list(item) if isinstance(item, tuple) else item for item in value]
            if value is not None:
                out[field.name] = value
        return out

    @classmethod
    def from_json(cls, value: object) -> "ModelSpec":
        """The spec that `to_json` wrote. Fields that this version does not know are ignored.

        Raises ModelError for a field that is missing, mistyped or out of range.
        """
        if not isinstance(value, Mapping):
            raise _refuse("spec", value, "an object")
        return cls(**{"name": None, **{key: value[key] for key in _CHECKS if key in value}})


def clean_text(text: str) -> str:
    """Text from a file as a field of a spec holds it: printable, and not too long."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:MAX_TEXT]


def _types(argument: str, value: Any, accepted: tuple[str, ...]) -> tuple[str, str] | None:
    """A pair of accepted types, from one for both or a pair."""
    if value is None:
        return None
    pair: tuple[str, str] = _pair(_text(16))(
        argument, (value, value) if isinstance(value, str) else value
    )
    for one in pair:
        _word(accepted)(argument, one)
    return pair


def _instead_of_auto(
    types: tuple[str, str] | None, computes_in: str | None
) -> tuple[str, str] | None:
    if types is None or "auto" not in types:
        return types
    if computes_in is None:
        return None
    first, second = (computes_in if one == "auto" else one for one in types)
    return first, second


def _bytes_of(types: tuple[str, str]) -> tuple[float, float] | None:
    if types[0] not in KV_TYPES or types[1] not in KV_TYPES:
        return None
    return KV_TYPES[types[0]], KV_TYPES[types[1]]


def _for_each(value: Any, layers: int | None) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,) * (layers or 0)
