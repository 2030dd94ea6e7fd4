"""Small GGUF models that llama.cpp loads, one function a family, their weights all zero.

Each gives the keys and tensors for `support.gguf_writer`; the sizes are small and all different, so
that a figure made of the wrong ones does not come out right by chance.
"""

from collections.abc import Sequence
from typing import Any

from support.gguf_writer import F32, Tensor

Model = tuple[dict[str, Any], list[Tensor]]

WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 64, 4, 2, 16, 96, 32


def _keys(architecture: str, layers: int, **keys: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "block_count": layers,
        "context_length": 65_536,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD,
        "vocab_size": VOCABULARY,
    }
    given |= {key.replace("__", "."): value for key, value in keys.items()}
    metadata = {f"{architecture}.{key}": value for key, value in given.items()}
    return {
        "general.architecture": architecture,
        "general.name": architecture,
        "tokenizer.ggml.model": "no_vocab",
    } | metadata


def _ends(tied: bool = True, norm: str = "output_norm") -> list[Tensor]:
    tensors = [
        Tensor("token_embd.weight", (WIDTH, VOCABULARY)),
        Tensor(norm + ".weight", (WIDTH,), F32),
    ]
    return tensors if tied else [*tensors, Tensor("output.weight", (WIDTH, VOCABULARY))]


def _norms(layer: int, *names: str, size: int = WIDTH) -> list[Tensor]:
    return [Tensor(f"blk.{layer}.{name}.weight", (size,), F32) for name in names]


def _heads(layer: int, key: int = HEAD, value: int = HEAD, kv: int = KV_HEADS) -> list[Tensor]:
    name = f"blk.{layer}."
    return [
        Tensor(name + "attn_q.weight", (WIDTH, HEADS * key)),
        Tensor(name + "attn_k.weight", (WIDTH, kv * key)),
        Tensor(name + "attn_v.weight", (WIDTH, kv * value)),
        Tensor(name + "attn_output.weight", (HEADS * value, WIDTH)),
    ]


def _inner(layer: int, gate: bool = True) -> list[Tensor]:
    name = f"blk.{layer}.ffn_"
    gates = [Tensor(name + "gate.weight", (WIDTH, INNER))] if gate else []
    return [
        *gates,
        Tensor(name + "up.weight", (WIDTH, INNER)),
        Tensor(name + "down.weight", (INNER, WIDTH)),
    ]


def llama(layers: int = 3) -> Model:
    """Dense, grouped heads."""
    tensors = _ends()
    for layer in range(layers):
        tensors += _norms(layer, "attn_norm", "ffn_norm") + _heads(layer) + _inner(layer)
    return _keys("llama", layers), tensors


def gemma(version: int, layers: int, window: int | None) -> Model:
    """Gemma 2 or 3: windows in layers that the file does not name."""
    tensors = _ends()
    for layer in range(layers):
        names = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
        tensors += _norms(layer, *names) + _heads(layer) + _inner(layer)
        if version == 3:
            tensors += _norms(layer, "attn_q_norm", "attn_k_norm", size=HEAD)
    keys = {} if window is None else {"attention__sliding_window": window}
    return _keys(f"gemma{version}", layers, **keys), tensors


def cohere2(layers: int, window: int, pattern: Sequence[bool] | None = None) -> Model:
    """Windows in three of four layers, or where the file says."""
    tensors = _ends()
    for layer in range(layers):
        tensors += _norms(layer, "attn_norm") + _heads(layer) + _inner(layer)
    keys: dict[str, Any] = {"attention__sliding_window": window, "logit_scale": 1.0}
    keys["attention__layer_norm_epsilon"] = 1e-5
    if pattern is not None:
        keys["attention__sliding_window_pattern"] = list(pattern)
    return _keys("cohere2", layers, **keys), tensors


def gpt_oss(layers: int = 4, window: int = 128, experts: tuple[int, int] = (8, 2)) -> Model:
    """Experts with biases; every other layer windowed."""
    count, used = experts
    tensors = _ends(tied=False)
    for layer in range(layers):
        name = f"blk.{layer}."
        tensors += _norms(layer, "attn_norm", "post_attention_norm") + _heads(layer)
        tensors += [
            Tensor(name + "attn_q.bias", (HEADS * HEAD,), F32),
            Tensor(name + "attn_k.bias", (KV_HEADS * HEAD,), F32),
            Tensor(name + "attn_v.bias", (KV_HEADS * HEAD,), F32),
            Tensor(name + "attn_output.bias", (WIDTH,), F32),
            Tensor(name + "attn_sinks.weight", (HEADS,), F32),
            Tensor(name + "ffn_gate_inp.weight", (WIDTH, count), F32),
            Tensor(name + "ffn_gate_inp.bias", (count,), F32),
        ]
        for part, rows, columns in (("gate", WIDTH, INNER), ("up", WIDTH, INNER)):
            tensors.append(Tensor(f"{name}ffn_{part}_exps.weight", (rows, columns, count)))
            tensors.append(Tensor(f"{name}ffn_{part}_exps.bias", (columns, count), F32))
        tensors.append(Tensor(name + "ffn_down_exps.weight", (INNER, WIDTH, count)))
        tensors.append(Tensor(name + "ffn_down_exps.bias", (WIDTH, count), F32))
    keys = {
        "attention__sliding_window": window,
        "expert_count": count,
        "expert_used_count": used,
        "expert_feed_forward_length": INNER,
    }
    return _keys("gpt-oss", layers, **keys), tensors


RANK, TURNED, PLAIN, VALUE = 48, 8, 24, 20
"""Of MLA: the compressed vector, what is turned by position, and the heads' sizes unpacked."""


def deepseek2(layers: int = 3, *, packed: bool) -> Model:
    """MLA, kept as one vector (`packed`) or, in older files, as K and V of every head.

    One dense layer, then 8 experts of which 2 run, and a shared one.
    """
    keys: dict[str, Any] = {
        "attention__kv_lora_rank": RANK,
        "attention__head_count_kv": HEADS,
        "attention__key_length": PLAIN + TURNED,
        "attention__value_length": VALUE,
        "attention__q_lora_rank": 40,
        "rope__dimension_count": TURNED,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": INNER,
        "expert_weights_scale": 1.0,
    }
    if packed:
        keys |= {
            "attention__head_count_kv": 1,
            "attention__key_length": RANK + TURNED,
            "attention__value_length": RANK,
            "attention__key_length_mla": PLAIN + TURNED,
            "attention__value_length_mla": VALUE,
        }
    tensors = _ends(tied=False)
    for layer in range(layers):
        name = f"blk.{layer}."
        tensors += _norms(layer, "attn_norm", "ffn_norm")
        tensors += _norms(layer, "attn_q_a_norm", size=40) + _norms(
            layer, "attn_kv_a_norm", size=RANK
        )
        tensors += [
            Tensor(name + "attn_q_a.weight", (WIDTH, 40)),
            Tensor(name + "attn_q_b.weight", (40, HEADS * (PLAIN + TURNED))),
            Tensor(name + "attn_kv_a_mqa.weight", (WIDTH, RANK + TURNED)),
            Tensor(name + "attn_output.weight", (HEADS * VALUE, WIDTH)),
        ]
        if packed:
            tensors.append(Tensor(name + "attn_k_b.weight", (PLAIN, RANK, HEADS)))
            tensors.append(Tensor(name + "attn_v_b.weight", (RANK, VALUE, HEADS)))
        else:
            tensors.append(Tensor(name + "attn_kv_b.weight", (RANK, HEADS * (PLAIN + VALUE))))
        if layer == 0:
            tensors += _inner(layer)
            continue
        tensors.append(Tensor(name + "ffn_gate_inp.weight", (WIDTH, 8), F32))
        for part, rows, columns in (
            ("gate", WIDTH, INNER),
            ("up", WIDTH, INNER),
            ("down", INNER, WIDTH),
        ):
            tensors.append(Tensor(f"{name}ffn_{part}_exps.weight", (rows, columns, 8)))
            tensors.append(Tensor(f"{name}ffn_{part}_shexp.weight", (rows, columns)))
    return _keys("deepseek2", layers, **keys), tensors


STATE, TAPS, STEP = 24, 4, 5
MAMBA = {
    "ssm__conv_kernel": TAPS,
    "ssm__inner_size": 2 * WIDTH,
    "ssm__state_size": STATE,
    "ssm__time_step_rank": STEP,
}


def _mamba(layer: int, norms: bool = False) -> list[Tensor]:
    name, inner = f"blk.{layer}.ssm_", 2 * WIDTH
    tensors = [
        Tensor(name + "in.weight", (WIDTH, 2 * inner)),
        Tensor(name + "conv1d.weight", (TAPS, inner), F32),
        Tensor(name + "conv1d.bias", (inner,), F32),
        Tensor(name + "x.weight", (inner, STEP + 2 * STATE)),
        Tensor(name + "dt.weight", (STEP, inner)),
        Tensor(name + "dt.bias", (inner,), F32),
        Tensor(name + "a", (STATE, inner), F32),
        Tensor(name + "d", (inner,), F32),
        Tensor(name + "out.weight", (inner, WIDTH)),
    ]
    if norms:
        for part, size in (("dt_norm", STEP), ("b_norm", STATE), ("c_norm", STATE)):
            tensors.append(Tensor(f"{name}{part}.weight", (size,), F32))
    return tensors


def mamba(layers: int = 3) -> Model:
    """Nothing but state."""
    tensors = _ends()
    for layer in range(layers):
        tensors += _norms(layer, "attn_norm") + _mamba(layer)
    keys: dict[str, Any] = {"attention__head_count": 0, "feed_forward_length": 0}
    metadata = _keys("mamba", layers, **MAMBA, **keys)
    for key in ("head_count_kv", "key_length", "value_length"):
        del metadata[f"mamba.attention.{key}"]
    return metadata, tensors


def jamba(attends: Sequence[bool]) -> Model:
    """Layers that attend among layers with state."""
    tensors = _ends()
    for layer, one in enumerate(attends):
        tensors += _norms(layer, "attn_norm", "ffn_norm") + _inner(layer)
        tensors += _heads(layer) if one else _mamba(layer, norms=True)
    kv = [KV_HEADS if one else 0 for one in attends]
    return _keys("jamba", len(attends), **MAMBA, attention__head_count_kv=kv), tensors


def falcon_h1(layers: int = 2) -> Model:
    """KV and state in every layer."""
    groups, heads = 1, 8
    inner = 2 * WIDTH
    tensors = _ends()
    for layer in range(layers):
        name = f"blk.{layer}.ssm_"
        tensors += _norms(layer, "attn_norm") + _heads(layer) + _inner(layer)
        tensors.append(Tensor(f"blk.{layer}.ffn_norm", (WIDTH,), F32))  # it has no ending
        mixed = inner + 2 * groups * STATE
        tensors += [
            Tensor(name + "in.weight", (WIDTH, inner + mixed + heads)),
            Tensor(name + "conv1d.weight", (TAPS, mixed), F32),
            Tensor(name + "conv1d.bias", (mixed,), F32),
            Tensor(name + "norm.weight", (inner // groups, groups), F32),
            Tensor(name + "dt.bias", (heads,), F32),
            Tensor(name + "a", (1, heads), F32),
            Tensor(name + "d", (1, heads), F32),
            Tensor(name + "out.weight", (inner, WIDTH)),
        ]
    keys = MAMBA | {"ssm__time_step_rank": heads, "ssm__group_count": groups}
    return _keys("falcon-h1", layers, **keys), tensors


def lfm2(attends: Sequence[bool], taps: int = 3) -> Model:
    """Short convolutions among layers that attend."""
    tensors = _ends(norm="token_embd_norm")
    for layer, one in enumerate(attends):
        name = f"blk.{layer}."
        tensors += _norms(layer, "attn_norm", "ffn_norm") + _inner(layer)
        if one:
            tensors += _heads(layer) + _norms(layer, "attn_q_norm", "attn_k_norm", size=HEAD)
            continue
        tensors += [
            Tensor(name + "shortconv.conv.weight", (taps, WIDTH), F32),
            Tensor(name + "shortconv.in_proj.weight", (WIDTH, 3 * WIDTH)),
            Tensor(name + "shortconv.out_proj.weight", (WIDTH, WIDTH)),
        ]
    kv = [KV_HEADS if one else 0 for one in attends]
    keys: dict[str, Any] = {"attention__head_count_kv": kv, "shortconv__l_cache": taps}
    return _keys("lfm2", len(attends), **keys), tensors


def qwen3next(layers: int = 4, interval: int | None = None) -> Model:
    """Linear attention but in every fourth layer, or every `interval`-th; experts."""
    groups, heads = 2, 4
    inner = heads * STATE
    tensors = _ends()
    for layer in range(layers):
        name = f"blk.{layer}."
        tensors += _norms(layer, "attn_norm", "post_attention_norm")
        if (layer + 1) % (interval or 4) == 0:
            tensors += _heads(layer)[1:] + _norms(layer, "attn_q_norm", "attn_k_norm", size=HEAD)
            tensors.append(Tensor(name + "attn_q.weight", (WIDTH, 2 * HEADS * HEAD)))
        else:
            mixed = inner + 2 * groups * STATE
            tensors += [
                Tensor(name + "attn_qkv.weight", (WIDTH, mixed)),
                Tensor(name + "attn_gate.weight", (WIDTH, inner)),
                Tensor(name + "ssm_conv1d.weight", (TAPS, mixed), F32),
                Tensor(name + "ssm_dt.bias", (heads,), F32),
                Tensor(name + "ssm_a", (heads,), F32),
                Tensor(name + "ssm_ba.weight", (WIDTH, 2 * heads)),
                Tensor(name + "ssm_norm.weight", (STATE,), F32),
                Tensor(name + "ssm_out.weight", (inner, WIDTH)),
            ]
        tensors.append(Tensor(name + "ffn_gate_inp.weight", (WIDTH, 4), F32))
        tensors.append(Tensor(name + "ffn_gate_inp_shexp.weight", (WIDTH,), F32))
        for part, rows, columns in (
            ("gate", WIDTH, INNER),
            ("up", WIDTH, INNER),
            ("down", INNER, WIDTH),
        ):
            tensors.append(Tensor(f"{name}ffn_{part}_exps.weight", (rows, columns, 4)))
            tensors.append(Tensor(f"{name}ffn_{part}_shexp.weight", (rows, columns)))
    keys: dict[str, Any] = {
        "ssm__conv_kernel": TAPS,
        "ssm__inner_size": inner,
        "ssm__state_size": STATE,
        "ssm__time_step_rank": heads,
        "ssm__group_count": groups,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": INNER,
        "expert_shared_feed_forward_length": INNER,
    }
    if interval is not None:
        keys["full_attention_interval"] = interval
    return _keys("qwen3next", layers, **keys), tensors


def llama4(layers: int = 5) -> Model:
    """Attention in chunks of 8192 tokens but in every fourth layer; experts and a shared one."""
    tensors = _ends()
    for layer in range(layers):
        name = f"blk.{layer}."
        tensors += _norms(layer, "attn_norm", "ffn_norm") + _heads(layer)
        tensors.append(Tensor(name + "ffn_gate_inp.weight", (WIDTH, 4), F32))
        for part, rows, columns in (
            ("gate", WIDTH, INNER),
            ("up", WIDTH, INNER),
            ("down", INNER, WIDTH),
        ):
            tensors.append(Tensor(f"{name}ffn_{part}_exps.weight", (rows, columns, 4)))
            tensors.append(Tensor(f"{name}ffn_{part}_shexp.weight", (rows, columns)))
    keys = {
        "interleave_moe_layer_step": 1,
        "expert_count": 4,
        "expert_used_count": 1,
        "expert_feed_forward_length": INNER,
    }
    return _keys("llama4", layers, **keys), tensors


def gemma3n(layers: int = 22, shared: int | None = 2, window: int = 1024) -> Model:
    """The last layers attend to the KV of earlier ones; every fifth is free of the window."""
    inputs, rank, per_layer = 4, 64, 256  # which the engine takes as given
    tensors = [
        *_ends(),
        Tensor("altup_proj.weight", (WIDTH, WIDTH, inputs - 1)),
        Tensor("altup_unembd_proj.weight", (WIDTH, WIDTH, inputs - 1)),
        Tensor("per_layer_token_embd.weight", (per_layer * layers, VOCABULARY)),
        Tensor("per_layer_model_proj.weight", (WIDTH, per_layer * layers)),
        Tensor("per_layer_proj_norm.weight", (per_layer,), F32),
    ]
    for layer in range(layers):
        name = f"blk.{layer}."
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        tensors += _norms(layer, *norms, "laurel_post_norm", "altup_correct_scale")
        tensors += _norms(layer, "altup_router_norm")
        tensors += _norms(layer, "attn_q_norm", "attn_k_norm", size=HEAD)
        tensors += _heads(layer) + _inner(layer)
        tensors += [
            Tensor(name + "inp_gate.weight", (WIDTH, per_layer)),
            Tensor(name + "proj.weight", (per_layer, WIDTH)),
            Tensor(name + "altup_correct_coef.weight", (inputs, inputs), F32),
            Tensor(name + "altup_predict_coef.weight", (inputs, inputs * inputs), F32),
            Tensor(name + "altup_router.weight", (WIDTH, inputs)),
            Tensor(name + "laurel_l.weight", (WIDTH, rank)),
            Tensor(name + "laurel_r.weight", (rank, WIDTH)),
        ]
    keys = {"attention__sliding_window": window}
    if shared is not None:
        keys["attention__shared_kv_layers"] = shared
    return _keys("gemma3n", layers, **keys), tensors
