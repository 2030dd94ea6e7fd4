"""The model spec of GGUF files, family by family, against arithmetic done by hand.

`tests/shared/test_gguf_llama_cpp.py` holds the same small models against llama.cpp; here are also
the sizes of public models, whose files are nothing but a header and a hole.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import gguf_families as families
from support.gguf_families import HEAD, KV_HEADS, RANK, STATE, TAPS, TURNED, WIDTH
from support.gguf_writer import F32, Q4_0, Tensor, gguf, model, write_sparse

from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.gguf import GgufError
from decodewatch.shared.model import Experts, ModelSpec

LAYER = KV_HEADS * (HEAD + HEAD) * 2
"""KV bytes of one layer and token of the small models, in f16."""
INNER = 2 * WIDTH
MAMBA_STATE = (TAPS - 1) * INNER + STATE * INNER


def spec_of(folder: Path, made: families.Model, **arguments: Any) -> ModelSpec:
    return ModelSpec.from_gguf(write_sparse(folder / "model.gguf", *made), **arguments)


def weights(made: families.Model) -> int:
    return sum(tensor.bytes for tensor in made[1])


def test_a_hole_reads_as_zeros_do(tmp_path: Path) -> None:
    made = families.llama()
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(*made))
    zeros = ModelSpec.from_gguf(path).to_json()
    hole = spec_of(tmp_path, made).to_json()
    for spec in (zeros, hole):
        del spec["file_bytes"], spec["header_hash"]
    assert zeros == hole


# MLA


def test_mla_is_one_vector_a_layer(tmp_path: Path) -> None:
    made = families.deepseek2(packed=True)
    spec = spec_of(tmp_path, made, kv_type="q8_0")
    assert spec.kv_values == ((RANK + TURNED, 0),) * 3
    assert spec.kv_bytes(1000) == 1000 * 3 * (48 + 8) * 34 // 32
    idle = 2 * 3 * 6 * 64 * 96 * 2  # two layers, three matrices, six of eight experts
    assert spec.weight_bytes_per_token == weights(made) - idle - 64 * 32 * 2
    assert spec.experts == Experts(total=8, used=2, bytes=idle * 8 // 6)


def test_mla_of_older_files_is_k_and_v_of_every_head(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, families.deepseek2(packed=False))
    assert (spec.kv_heads, spec.head_dim_k, spec.head_dim_v) == (4, 32, 20)
    assert spec.kv_bytes(1000) == 1000 * 3 * 4 * (32 + 20) * 2


def test_a_file_with_both_forms_of_mla_reads_one(tmp_path: Path) -> None:
    metadata, tensors = families.deepseek2(packed=True)
    before = spec_of(tmp_path, (metadata, tensors)).weight_bytes_per_token
    more = [Tensor(f"blk.{layer}.attn_kv_b.weight", (48, 4 * 44)) for layer in range(3)]
    assert spec_of(tmp_path, (metadata, tensors + more)).weight_bytes_per_token == before


@pytest.mark.parametrize(
    ("packed", "key", "value", "reason"),
    [
        (True, "attention.key_length", 40, "attn_kv_a_mqa makes 56 values"),
        (False, "rope.dimension_count", 4, "attn_kv_a_mqa makes 56 values"),
        (False, "attention.value_length", 24, "attn_kv_b makes 176 values"),
        (False, "attention.kv_lora_rank", 0, "kv_lora_rank is 0"),
    ],
)
def test_mla_at_odds_with_its_tensors_is_unknown(
    tmp_path: Path, packed: bool, key: str, value: int, reason: str
) -> None:
    metadata, tensors = families.deepseek2(packed=packed)
    spec = spec_of(tmp_path, (metadata | {f"deepseek2.{key}": value}, tensors))
    assert spec.kv_bytes(1) is None
    assert reason in (spec.kv_unknown or "")


def test_deepseek_v2_lite_in_gguf(tmp_path: Path) -> None:
    keys = {
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.head_count": 16,
        "attention.head_count_kv": 1,
        "embedding_length": 2048,
        "block_count": 27,
    }
    metadata: dict[str, Any] = {"general.architecture": "deepseek2"}
    metadata |= {f"deepseek2.{key}": value for key, value in keys.items()}
    tensors = [Tensor("token_embd.weight", (2048, 102_400))]
    tensors += [Tensor(f"blk.{layer}.attn_kv_a_mqa.weight", (2048, 576)) for layer in range(27)]
    spec = spec_of(tmp_path, (metadata, tensors))
    assert spec.kv_bytes(32_768) == 32_768 * 27 * 576 * 2


# State


def test_mamba_keeps_state_alone(tmp_path: Path) -> None:
    made = families.mamba()
    spec = spec_of(tmp_path, made)
    assert spec.kv_bytes(0) == spec.kv_bytes(100_000) == 0
    assert spec.state_bytes() == 3 * MAMBA_STATE * 4
    assert spec.weight_bytes_per_token == weights(made)
    step = weights(made) + 2 * 2 * 3 * MAMBA_STATE * 4
    assert spec.bytes_per_step(1, batch=2) == spec.bytes_per_step(9_999, batch=2) == step


def test_jamba_keeps_kv_in_layers_that_attend_and_state_in_others(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, families.jamba([False, True, False, False]))
    assert spec.kv_heads == (0, 2, 0, 0)
    assert spec.kv_bytes(100) == 100 * LAYER
    assert spec.state_bytes() == 3 * MAMBA_STATE * 4
    assert spec.sequence_bytes(100) == 100 * LAYER + 3 * MAMBA_STATE * 4


def test_falcon_h1_keeps_both_in_every_layer(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, families.falcon_h1(), state_type=("f16", "f32"))
    assert spec.kv_bytes(100) == 100 * 2 * LAYER
    assert spec.state_values == (2 * 3 * (INNER + 2 * STATE), 2 * STATE * INNER)
    assert spec.state_bytes() == 2 * (3 * (128 + 48) * 2 + 24 * 128 * 4)


def test_lfm2_keeps_short_convolutions(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, families.lfm2([False, True, False], taps=3))
    assert spec.kv_bytes(100) == 100 * LAYER
    assert spec.state_values == (2 * 2 * 64, 0)
    windowed = families.lfm2([False, True, False])
    windowed[0]["lfm2.attention.sliding_window"] = 32
    assert spec_of(tmp_path, windowed).kv_bytes(100) == 32 * LAYER


def test_qwen3_next_attends_in_every_fourth_layer(tmp_path: Path) -> None:
    made = families.qwen3next(5)
    spec = spec_of(tmp_path, made)
    assert spec.kv_heads == (0, 0, 0, 2, 0)
    inner = 4 * STATE
    assert spec.state_bytes() == 4 * (3 * (inner + 2 * 2 * STATE) + STATE * inner) * 4
    made[0]["qwen3next.attention.recurrent_layers"] = [True, True, True, False, True]
    assert spec_of(tmp_path, made).kv_heads == spec.kv_heads
    made[0]["qwen3next.attention.recurrent_layers"] = [True, True]
    assert "for each of 5 blocks" in (spec_of(tmp_path, made).kv_unknown or "")


def test_nemotron_h_has_layers_that_keep_nothing(tmp_path: Path) -> None:
    metadata, tensors = families.jamba([False, True, False])
    renamed = {key.replace("jamba.", "nemotron_h."): value for key, value in metadata.items()}
    renamed |= {
        "general.architecture": "nemotron_h",
        "nemotron_h.feed_forward_length": [0, 0, 96],
    }
    spec = spec_of(tmp_path, (renamed, tensors))
    assert spec.kv_heads == (0, 2, 0)
    assert spec.state_bytes() == MAMBA_STATE * 4


def test_rwkv_keeps_a_matrix_a_head_and_two_shifts(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "rwkv6",
        "rwkv6.block_count": 3,
        "rwkv6.embedding_length": 128,
        "rwkv6.attention.head_count": 0,
        "rwkv6.wkv.head_size": 32,
    }
    tensors = [Tensor("output.weight", (128, 96)), Tensor("blk.0.time_mix_r.weight", (128, 128))]
    spec = spec_of(tmp_path, (metadata, tensors))
    assert spec.state_values == (3 * 2 * 128, 3 * 32 * 128)
    assert spec.kv_bytes(50) == 0
    one = spec_of(tmp_path, (metadata | {"rwkv6.token_shift_count": 1}, tensors))
    assert one.state_values == (3 * 128, 3 * 32 * 128)


def test_kimi_linear_keeps_a_matrix_a_head_and_mla_vectors(tmp_path: Path) -> None:
    keys = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 1],
        "attention.kv_lora_rank": 48,
        "attention.key_length": 56,
        "attention.value_length": 48,
        "attention.key_length_mla": 32,
        "attention.value_length_mla": 20,
        "ssm.conv_kernel": 4,
        "kda.head_dim": 16,
    }
    metadata: dict[str, Any] = {"general.architecture": "kimi-linear"}
    metadata |= {f"kimi-linear.{key}": value for key, value in keys.items()}
    tensors = [
        Tensor("output.weight", (64, 96)),
        Tensor("blk.0.ssm_conv1d_q.weight", (4, 64), F32),
        Tensor("blk.1.attn_kv_a_mqa.weight", (64, 56)),
    ]
    spec = spec_of(tmp_path, (metadata, tensors))
    assert spec.kv_bytes(100) == 100 * 56 * 2
    assert spec.state_values == (3 * 3 * 4 * 16, 4 * 16 * 16)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ssm.state_size", 0, "ssm.state_size is 0"),
        ("ssm.inner_size", None, "no ssm.inner_size"),
        ("ssm.conv_kernel", "4", "ssm.conv_kernel is '4'"),
        ("attention.head_count_kv", None, "no attention.head_count_kv"),
        ("attention.head_count_kv", [0, 0], "blk.1 has K weights"),
    ],
)
def test_state_that_the_header_does_not_size_is_unknown(
    tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    metadata, tensors = families.jamba([False, True])
    del metadata[f"jamba.{key}"]
    if value is not None:
        metadata[f"jamba.{key}"] = value
    spec = spec_of(tmp_path, (metadata, tensors))
    assert (spec.kv_bytes(1), spec.state_bytes(), spec.bytes_per_step(1)) == (None, None, None)
    assert reason in (spec.kv_unknown or "")
    assert spec.weight_bytes_per_token is not None


# Windows


@pytest.mark.parametrize(
    ("architecture", "layers", "window", "held", "tokens"),
    [
        ("gemma2", 4, 128, "1010", 128),
        ("gemma2", 3, None, "101", 4096),
        ("gemma3", 7, 128, "1111101", 128),
        ("gemma3", 7, None, "0000000", None),
        ("gemma3n", 6, 128, "111101", 128),
        ("cohere2", 6, 128, "111011", 128),
        ("cohere2moe", 6, 128, "011101", 128),
        ("gpt-oss", 4, 128, "1010", 128),
        ("exaone4", 64, None, "1110" * 16, 4096),
        ("exaone4", 30, 128, "0" * 30, None),
        ("exaone-moe", 4, None, "1110", 128),
        ("olmo2", 5, 128, "11101", 128),
        ("plamo3", 9, 128, "111111101", 128),
        ("smallthinker", 5, 128, "01110", 4096),
        ("smallthinker", 5, None, "00000", None),
        ("llama4", 5, None, "11101", 8192),
        ("llama4", 5, 128, "11101", 8192),
        ("llama4", 5, 0, "00000", None),
        ("phi3", 4, 128, "0000", None),
    ],
)
def test_windows_that_the_engine_knows_of(
    tmp_path: Path,
    architecture: str,
    layers: int,
    window: int | None,
    held: str,
    tokens: int | None,
) -> None:
    keys: dict[str, Any] = {} if window is None else {"attention__sliding_window": window}
    spec = spec_of(tmp_path, model(architecture=architecture, layers=layers, **keys))
    assert spec.sliding_window == tokens
    depth = 20_000
    count = held.count("1")
    inside = depth if tokens is None else tokens
    if architecture == "llama4" and tokens is not None:
        inside = (depth - 1) % tokens + 1
    layer = 2 * 32 * 2
    assert spec.kv_bytes(depth) == (count * inside + (layers - count) * depth) * layer
    if tokens is not None:
        assert spec.sliding_layers == tuple(letter == "1" for letter in held)


def test_a_number_as_the_pattern_wins_over_the_engines(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "attention__sliding_window": 128,
        "attention__sliding_window_pattern": 3,
    }
    spec = spec_of(tmp_path, model(architecture="gemma3", layers=4, **keys))
    assert spec.sliding_layers == (True, True, False, True)


def test_layers_that_share_kv_count_it_once(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, families.gemma3n(22, shared=2, window=100))
    # Of the 20 that keep their own, four are free of the window.
    assert spec.kv_bytes(1000) == (16 * 100 + 4 * 1000) * LAYER
    assert spec_of(tmp_path, families.gemma3n(22, shared=None)).kv_heads == spec.kv_heads


def test_gemma_4_has_wider_heads_in_free_layers(tmp_path: Path) -> None:
    metadata, tensors = model(
        architecture="gemma4",
        layers=3,
        head_dim=32,
        attention__key_length_swa=16,
        attention__value_length_swa=16,
        attention__sliding_window=128,
        attention__sliding_window_pattern=[True, False, True],
        attention__shared_kv_layers=1,
    )
    sized = []
    for tensor in tensors:
        if tensor.name == "blk.1.attn_v.weight":
            continue  # K is V, and both are kept
        if tensor.name.startswith("blk.0.attn_") and len(tensor.dims) == 2:
            sized.append(Tensor(tensor.name, (64, tensor.dims[1] // 2)))
        else:
            sized.append(tensor)
    spec = spec_of(tmp_path, (metadata, sized))
    assert spec.kv_values == ((32, 32), (64, 64), (0, 0))
    assert spec.kv_bytes(1000) == (128 * 64 + 1000 * 128) * 2


def test_gemma_3_4b_in_gguf(tmp_path: Path) -> None:
    made = model(
        architecture="gemma3",
        layers=34,
        embedding=2560,
        heads=8,
        kv_heads=4,
        head_dim=256,
        feed_forward=10_240,
        vocabulary=64,
        tied=True,
        attention__sliding_window=1024,
    )
    spec = spec_of(tmp_path, made)
    assert spec.kv_bytes(32_768) == (29 * 1024 + 5 * 32_768) * 4 * 512 * 2


# Experts


def test_gpt_oss_reads_the_biases_of_its_experts_by_their_share(tmp_path: Path) -> None:
    made = families.gpt_oss(layers=2)
    spec = spec_of(tmp_path, made)
    one = 2 * (3 * 64 * 96 * 2 + (2 * 96 + 64) * 4)
    assert spec.experts == Experts(total=8, used=2, bytes=8 * one)
    assert spec.weight_bytes_per_token == weights(made) - 64 * 32 * 2 - 6 * one


def test_mixtral_8x7b_in_gguf_reads_two_of_eight(tmp_path: Path) -> None:
    made = model(
        layers=32,
        embedding=4096,
        heads=32,
        kv_heads=8,
        feed_forward=14_336,
        vocabulary=32_000,
        experts=(8, 2),
    )
    metadata, tensors = made
    tensors += [
        Tensor(f"blk.{layer}.ffn_gate_exps.weight", (4096, 14_336, 8)) for layer in range(32)
    ]
    quantised = [
        tensor._replace(type=Q4_0) if len(tensor.dims) > 1 and tensor.type != F32 else tensor
        for tensor in tensors
    ]
    spec = spec_of(tmp_path, (metadata, quantised))
    expert = 32 * 3 * 4096 * 14_336 * 18 // 32
    attention = 32 * 2 * 4096 * (4096 + 1024) * 18 // 32
    router_and_norms = (32 * 4096 * 8 + 33 * 4096) * 4
    table = 32_000 * 4096 * 18 // 32
    assert spec.experts == Experts(total=8, used=2, bytes=8 * expert)
    assert spec.weight_bytes_per_token == attention + router_and_norms + table + 2 * expert
    assert spec.kv_bytes_per_token() == 32 * 8 * 256 * 2


def test_how_many_experts_run_may_be_said_by_layer(tmp_path: Path) -> None:
    metadata, tensors = model(experts=(8, 2))
    before = spec_of(tmp_path, (metadata, tensors))
    metadata["llama.expert_used_count"] = [2, 2]
    assert spec_of(tmp_path, (metadata, tensors)).experts == before.experts
    metadata["llama.expert_used_count"] = [2, 3]
    spec = spec_of(tmp_path, (metadata, tensors))
    assert spec.weight_bytes_per_token is None
    assert "differs by layer" in (spec.weight_unknown or "")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("nanbeige", "several times"), ("graniteswitch", "routes adapters")],
)
def test_layers_that_the_block_count_does_not_count_make_both_unknown(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    spec = spec_of(tmp_path, model(architecture=architecture))
    assert spec.weight_bytes_per_token is None
    assert spec.kv_bytes(1) is None
    assert reason in (spec.weight_unknown or "")
    assert reason in (spec.kv_unknown or "")


# Damage

FAMILIES = (
    families.llama(),
    families.gemma(3, 3, 64),
    families.gpt_oss(2),
    families.deepseek2(2, packed=True),
    families.deepseek2(2, packed=False),
    families.mamba(2),
    families.jamba([False, True]),
    families.falcon_h1(),
    families.lfm2([False, True]),
    families.qwen3next(2, interval=2),
    families.llama4(4),
    families.gemma3n(21, shared=None),
)


def test_a_file_cut_at_any_byte_of_its_header_is_refused(tmp_path: Path) -> None:
    made = families.jamba([False, True])
    path = write_sparse(tmp_path / "model.gguf", *made)
    for cut in reversed(range(len(gguf(*made, data=False)))):
        os.truncate(path, cut)
        with pytest.raises(GgufError, match=r"model\.gguf: "):
            ModelSpec.from_gguf(path)


_ODD = st.one_of(
    st.sampled_from([0, 1, 2, 3, 255, 1 << 16, (1 << 32) - 1, 1 << 62]),
    st.sampled_from([True, False, 0.5, "", "x", [], [0], [1, 2], [True, False], [0] * 30]),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=st.sampled_from(FAMILIES), data=st.data())
def test_no_value_of_a_header_does_worse_than_an_error_or_a_reason(
    tmp_path: Path, made: families.Model, data: st.DataObject
) -> None:
    metadata, tensors = made
    keys = st.sampled_from(sorted(metadata))
    changed = metadata | data.draw(st.dictionaries(keys, _ODD, min_size=1, max_size=3))
    for key in data.draw(st.lists(keys, max_size=2)):
        changed.pop(key, None)
    lost = data.draw(st.integers(0, len(tensors)))
    left = [tensor for number, tensor in enumerate(tensors) if number != lost]
    try:
        spec = spec_of(tmp_path, (changed, left))
    except DecodewatchError as error:
        assert "accepted" in str(error)
        return
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    for depth in (0, 1, 100_000):
        known = spec.bytes_per_step(depth) is not None
        assert known == (spec.why_unknown(depth) is None)
