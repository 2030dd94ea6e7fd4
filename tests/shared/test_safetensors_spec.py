"""The model spec of public models in Hugging Face's form, family by family.

Sums of bytes are compared with the parameter counts that the models' pages give, and KV bytes with
arithmetic from their configurations, done here by hand.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import hf_models
from support.safetensors_writer import header, write_file, write_model

from decodewatch.shared.model import Experts, ModelError, ModelSpec
from decodewatch.shared.safetensors import SafetensorsError

Shapes = dict[str, tuple[str, tuple[int, ...]]]
Model = tuple[dict[str, Any], Shapes]


def spec_of(folder: Path, model: Model, **arguments: Any) -> ModelSpec:
    config, tensors = model
    return ModelSpec.from_safetensors(write_model(folder / "model", config, tensors), **arguments)


# Public models


def test_llama_3_2_1b_is_tied_and_grouped(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.llama_3_2_1b())
    assert spec.weight_bytes_per_token == 2 * 1_235_814_400
    assert spec.weight_bytes_total == 2 * 1_235_814_400
    assert (spec.layers, spec.kv_heads, spec.head_dim_k, spec.head_dim_v) == (16, 8, 64, 64)
    assert spec.tied_embeddings is True
    assert spec.kv_types == ("bf16", "bf16")
    assert spec.kv_bytes(8192) == 8192 * 16 * 8 * (64 + 64) * 2
    assert (spec.name, spec.architecture, spec.quantisation) == ("model", "llama", "BF16")
    assert spec.context_trained == 131_072
    assert spec.state_bytes() == 0


def test_qwen_2_5_has_a_window_that_it_does_not_use(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.qwen_2_5_0_5b(), kv_type="q8_0")
    assert spec.weight_bytes_per_token == 2 * 494_032_768
    assert spec.sliding_window is None
    assert spec.kv_bytes(100_000) == 100_000 * 24 * 2 * 128 * 34 // 32


def test_qwen_windows_begin_at_a_layer_where_they_are_used(tmp_path: Path) -> None:
    config, tensors = hf_models.qwen_2_5_0_5b()
    config |= {"use_sliding_window": True, "max_window_layers": 20, "sliding_window": 4096}
    spec = spec_of(tmp_path, (config, tensors))
    layer = 2 * 128 * 2
    assert spec.kv_bytes(10_000) == (20 * 10_000 + 4 * 4096) * layer


def test_gemma_2_holds_every_other_layer_to_its_window(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.gemma_2_2b())
    assert spec.weight_bytes_per_token == 2 * 2_614_341_888
    assert spec.tied_embeddings is True
    layer = 4 * 512 * 2
    assert spec.kv_bytes(4096) == 26 * 4096 * layer
    assert spec.kv_bytes(8192) == 13 * (4096 + 8192) * layer


def test_gemma_3_frees_every_sixth_layer_and_its_tower_is_left_out(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.gemma_3_4b())
    assert spec.weight_bytes_per_token == 2 * 3_880_263_168
    assert spec.weight_bytes_total == 2 * (3_880_263_168 + 1152 * 1152 + 1152)
    assert spec.architecture == "gemma3_text"
    layer = 4 * 512 * 2
    assert spec.kv_bytes(32_768) == (29 * 1024 + 5 * 32_768) * layer


def test_mixtral_reads_two_of_eight_experts(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.mixtral_8x7b())
    assert spec.weight_bytes_total == 2 * 46_702_792_704
    # 12,879,925,248 parameters are active, and of the input table one row is read.
    assert spec.weight_bytes_per_token == 2 * (12_879_925_248 - 32_000 * 4096)
    assert spec.experts == Experts(total=8, used=2, bytes=2 * 32 * 8 * 3 * 4096 * 14_336)
    assert spec.kv_bytes_per_token() == 32 * 8 * 256 * 2


def test_deepseek_v2_lite_keeps_one_vector_a_layer(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.deepseek_v2_lite())
    assert spec.weight_bytes_total == 2 * 15_706_484_224
    idle = 26 * 58 * 3 * 2048 * 1408  # of 64 experts in 26 layers 58 are not used
    assert spec.weight_bytes_per_token == 2 * (15_706_484_224 - idle - 102_400 * 2048)
    assert spec.kv_bytes(4096) == 4096 * 27 * (512 + 64) * 2


def test_transformers_keeps_k_and_v_of_every_head_instead(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.deepseek_v2_lite(), expanded_mla=True)
    assert spec.kv_bytes(4096) == 4096 * 27 * 16 * (192 + 128) * 2


def test_mamba_keeps_state_and_no_kv(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.mamba_130m(), state_type=("bf16", "f32"))
    assert spec.weight_bytes_per_token == 4 * 129_135_360
    assert spec.kv_bytes(0) == spec.kv_bytes(1_000_000) == 0
    state = 24 * 1536 * (3 * 2 + 16 * 4)
    assert spec.state_bytes() == spec.sequence_bytes(777) == state
    assert spec.bytes_per_step(5, batch=3) == 4 * 129_135_360 + 3 * 2 * state


def test_the_type_of_a_state_is_not_guessed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.mamba_130m())
    assert spec.state_bytes() is None
    assert spec.bytes_per_step(5) is None
    assert spec.why_unknown() == "state_types is not given"


def test_gpt_oss_counts_four_bit_experts_with_their_scales(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, hf_models.gpt_oss_20b())
    rows = 5760 + 2880
    experts = 24 * 32 * rows * (90 * 16 + 90 + 2)
    assert spec.experts == Experts(total=32, used=4, bytes=experts)
    attention = 2880 * 64 * (64 + 8 + 8 + 64) + 64 * (64 + 8 + 8) + 2880 + 64
    router = 32 * 2880 + 32
    always = 24 * (attention + router + 2 * 2880) + 2880 + 201_088 * 2880
    assert spec.weight_bytes_per_token == 2 * always + experts * 4 // 32
    assert spec.quantisation == "mxfp4"
    layer = 8 * 128 * 2
    assert spec.kv_bytes(10_000) == 12 * (128 + 10_000) * layer


# Small models of other families

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}
LAYER = 2 * (16 + 16) * 2  # KV bytes of one layer and token


def small(without: tuple[int, ...] = (), **config: Any) -> Model:
    """A small model; the layers `without` attention have another tensor instead."""
    whole = SMALL | config
    tensors = hf_models.dense(whole)
    for layer in without:
        name = f"model.layers.{layer}."
        for tensor in [one for one in tensors if one.startswith(name + "self_attn.")]:
            del tensors[tensor]
        tensors[name + "mamba.in_proj.weight"] = ("BF16", (64, 64))
    return whole, tensors


def test_jamba_attends_once_in_a_period(tmp_path: Path) -> None:
    model = small(
        without=(0, 1, 3),
        model_type="jamba",
        attn_layer_period=4,
        attn_layer_offset=2,
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_expand=2,
    )
    spec = spec_of(tmp_path, model, state_type="f16")
    assert spec.kv_heads == (0, 0, 2, 0)
    assert spec.kv_bytes(100) == 100 * LAYER
    assert spec.state_bytes() == 3 * 128 * (3 + 16) * 2


def test_falcon_h1_keeps_both_in_every_layer(tmp_path: Path) -> None:
    model = small(
        model_type="falcon_h1",
        mamba_d_ssm=96,
        mamba_n_heads=6,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=32,
        mamba_d_conv=4,
    )
    spec = spec_of(tmp_path, model, state_type="f32")
    assert spec.kv_bytes(100) == 100 * 4 * LAYER
    assert spec.state_bytes() == 4 * (3 * (96 + 2 * 32) + 96 * 32) * 4


def test_granite_hybrid_says_what_each_layer_is(tmp_path: Path) -> None:
    model = small(
        without=(0, 2),
        model_type="granitemoehybrid",
        layer_types=["mamba", "attention", "mamba", "attention"],
        mamba_expand=2,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_d_conv=4,
        num_local_experts=0,
    )
    spec = spec_of(tmp_path, model, state_type="f32")
    assert spec.kv_bytes(10) == 10 * 2 * LAYER
    assert spec.state_bytes() == 2 * (3 * (128 + 2 * 2 * 16) + 128 * 16) * 4


def test_nemotron_h_has_layers_that_keep_nothing(tmp_path: Path) -> None:
    model = small(
        without=(0, 1, 3),
        model_type="nemotron_h",
        hybrid_override_pattern="M-*M",
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=16,
        conv_kernel=4,
    )
    spec = spec_of(tmp_path, model, state_type="f32")
    assert spec.kv_heads == (0, 0, 2, 0)
    assert spec.state_bytes() == 2 * (3 * (128 + 2 * 16) + 128 * 16) * 4


def test_qwen3_next_attends_in_every_fourth_layer(tmp_path: Path) -> None:
    model = small(
        without=(0, 1, 2),
        model_type="qwen3_next",
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_num_value_heads=4,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=4,
    )
    spec = spec_of(tmp_path, model, state_type="f32")
    assert spec.kv_bytes(10) == 10 * LAYER
    assert spec.state_bytes() == 3 * (3 * (32 + 2 * 2 * 8) + 32 * 8) * 4


def test_lfm2_keeps_the_last_inputs_of_its_convolutions(tmp_path: Path) -> None:
    model = small(without=(0, 1, 3), model_type="lfm2", full_attn_idxs=[2], conv_L_cache=3)
    spec = spec_of(tmp_path, model, state_type="f16")
    assert spec.kv_bytes(10) == 10 * LAYER
    assert spec.state_bytes() == 3 * 2 * 64 * 2


def test_gemma_3n_counts_kv_that_layers_share_once(tmp_path: Path) -> None:
    model = small(
        model_type="gemma3n_text",
        num_kv_shared_layers=1,
        sliding_window=32,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
    )
    spec = spec_of(tmp_path, model)
    assert spec.kv_heads == (2, 2, 2, 0)
    assert spec.kv_bytes(100) == (2 * 32 + 100) * LAYER


def test_gemma_4_has_wider_heads_where_no_window_holds(tmp_path: Path) -> None:
    config, tensors = small(
        model_type="gemma4_text",
        head_dim=16,
        global_head_dim=32,
        attention_k_eq_v=True,
        num_global_key_value_heads=3,
        sliding_window=32,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )
    tensors["model.layers.3.self_attn.k_proj.weight"] = ("BF16", (96, 64))
    del tensors["model.layers.3.self_attn.v_proj.weight"]
    spec = spec_of(tmp_path, (config, tensors))
    assert spec.kv_values == ((32, 32), (32, 32), (32, 32), (96, 96))
    assert spec.kv_bytes(100) == (3 * 32 + 3 * 100) * LAYER


def test_llama_4_attends_in_chunks_in_three_of_four_layers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, small(model_type="llama4_text", attention_chunk_size=32))
    assert spec.kv_bytes(32) == 4 * 32 * LAYER
    assert spec.kv_bytes(33) == (3 * 1 + 33) * LAYER
    assert spec.kv_bytes(100) == (3 * 4 + 100) * LAYER


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, 4 * 32),
        ({"model_type": "mistral", "sliding_window": None}, 4 * 100),
        ({"model_type": "cohere2", "sliding_window": 32}, 3 * 32 + 100),
        ({"model_type": "gemma3_text", "sliding_window": 32, "sliding_window_pattern": 2}, 264),
        ({"model_type": "exaone4", "sliding_window": 32, "sliding_window_pattern": "LG"}, 264),
        ({"model_type": "gpt_oss", "sliding_window": 32}, 264),
        ({"model_type": "someone", "sliding_window": 32}, None),
        ({"model_type": "someone", "sliding_window": 32, "use_sliding_window": False}, 400),
    ],
)
def test_which_layers_a_window_holds(
    tmp_path: Path, config: dict[str, Any], tokens: int | None
) -> None:
    spec = spec_of(tmp_path, small(**config))
    assert spec.kv_bytes(20) == 4 * 20 * LAYER
    assert spec.kv_bytes(100) == (None if tokens is None else tokens * LAYER)
    assert (spec.why_unknown(100) is None) == (tokens is not None)


def test_one_head_for_all(tmp_path: Path) -> None:
    config, tensors = small(num_key_value_heads=1)
    del config["num_key_value_heads"]
    spec = spec_of(tmp_path, (config | {"multi_query": True}, tensors))
    assert spec.kv_heads == 1


def test_fused_projections_are_understood(tmp_path: Path) -> None:
    config, tensors = small()
    for layer in range(4):
        name = f"model.layers.{layer}.self_attn."
        for part in "qkv":
            del tensors[f"{name}{part}_proj.weight"]
        tensors[name + "qkv_proj.weight"] = ("BF16", (64 + 32 + 32, 64))
    assert spec_of(tmp_path, (config, tensors)).kv_bytes(10) == 10 * 4 * LAYER


def test_draft_layers_and_towers_are_not_read(tmp_path: Path) -> None:
    config, tensors = small()
    before = spec_of(tmp_path, (config, tensors)).weight_bytes_per_token
    more = {
        "model.layers.4.self_attn.k_proj.weight": ("BF16", (32, 64)),
        "mtp.layers.0.mlp.up_proj.weight": ("BF16", (64, 64)),
        "visual.blocks.0.attn.qkv.weight": ("BF16", (64, 64)),
        "score.weight": ("BF16", (2, 64)),
    }
    model = config | {"num_nextn_predict_layers": 1}, tensors | more
    assert spec_of(tmp_path, model).weight_bytes_per_token == before


def test_an_output_matrix_of_its_own_is_read_instead_of_the_table(tmp_path: Path) -> None:
    config, tensors = small(tie_word_embeddings=False)
    tied = spec_of(tmp_path, small())
    tensors["lm_head.weight"] = ("BF16", (96, 64))
    untied = spec_of(tmp_path, (config, tensors))
    assert untied.weight_bytes_per_token == tied.weight_bytes_per_token
    assert untied.weight_bytes_total == (tied.weight_bytes_total or 0) + 96 * 64 * 2
    assert (tied.tied_embeddings, untied.tied_embeddings) == (True, False)


def test_packed_weights_count_as_the_files_hold_them(tmp_path: Path) -> None:
    config, tensors = small(
        quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32}
    )
    packed: Shapes = {}
    for name, (dtype, shape) in tensors.items():
        if "_proj." not in name:
            packed[name] = (dtype, shape)
            continue
        rows, columns = shape
        module = name.removesuffix("weight")
        packed[module + "qweight"] = ("I32", (columns // 8, rows))
        packed[module + "qzeros"] = ("I32", (columns // 32, rows // 8))
        packed[module + "scales"] = ("F16", (columns // 32, rows))
    spec = spec_of(tmp_path, (config, packed))
    values = 4 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 128)
    quantised = values // 2 + values // 32 * 2 + values // 64
    assert spec.weight_bytes_per_token == quantised + (96 * 64 + 9 * 64) * 2
    assert spec.quantisation == "gptq 4 bits"
    assert spec.kv_bytes(10) == 10 * 4 * LAYER


def test_eight_bit_weights_count_with_their_scales(tmp_path: Path) -> None:
    config, tensors = small(quantization_config={"quant_method": "fp8"})
    name = "model.layers.0.mlp.up_proj.weight"
    before = spec_of(tmp_path, (config, tensors)).weight_bytes_per_token
    tensors[name] = ("F8_E4M3", (128, 64))
    tensors[name + "_scale_inv"] = ("F32", (1, 1))
    spec = spec_of(tmp_path, (config, tensors))
    assert spec.weight_bytes_per_token == (before or 0) - 128 * 64 + 4


def test_experts_in_one_tensor_of_a_layer(tmp_path: Path) -> None:
    config, tensors = small(num_experts=8, num_experts_per_tok=2)
    tensors["model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", (8, 64, 32))
    tensors["model.layers.1.mlp.shared_expert.up_proj.weight"] = ("BF16", (32, 64))
    spec = spec_of(tmp_path, (config, tensors))
    assert spec.experts == Experts(total=8, used=2, bytes=8 * 64 * 32 * 2)
    plain = spec_of(tmp_path, small()).weight_bytes_per_token or 0
    assert spec.weight_bytes_per_token == plain + 2 * 64 * 32 * 2 + 32 * 64 * 2


# What is not known


@pytest.mark.parametrize(
    ("config", "tensor", "reason"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 2}, None, "none is known among the tensors"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, None, "num_experts_per_tok is 5"),
        ({}, "model.layers.0.mlp.experts.0.w1.weight", "config.json has none"),
        (
            {"num_experts": 4, "num_experts_per_tok": 2},
            "model.layers.0.mlp.experts.0.w1.weight",
            "1 experts have tensors, and config.json says 4",
        ),
        ({}, "model.layers.0.mlp.experts.up_proj", "does not begin with the 0 experts"),
        ({"num_hidden_layers": 5}, None, "4 of the 5 layers"),
        ({}, "model.layers.7.mlp.up_proj.weight", "8 layers have tensors"),
        ({}, "other.layers.0.mlp.up_proj.weight", "layers below"),
        ({"num_hidden_layers": "4"}, None, "num_hidden_layers is '4'"),
        ({"tie_word_embeddings": False}, None, "output matrix"),
        ({"is_encoder_decoder": True}, None, "an encoder-decoder"),
    ],
)
def test_weights_that_are_not_understood_are_unknown_with_a_reason(
    tmp_path: Path, config: dict[str, Any], tensor: str | None, reason: str
) -> None:
    whole, tensors = small()
    if tensor is not None:
        tensors[tensor] = ("BF16", (6, 64))
    spec = spec_of(tmp_path, (whole | config, tensors))
    assert spec.weight_bytes_per_token is None
    assert reason in (spec.weight_unknown or "")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"index_topk": 2048}, "indexer"),
        ({"cross_attention_layers": [1]}, "cross-attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"ssm_state_size": 16}, "recurrent or hybrid"),
        ({"layer_types": ["linear_attention"] * 4}, "recurrent or hybrid"),
        ({"layer_types": ["odd"] * 4}, "a layer of the type 'odd'"),
        ({"layer_types": ["full_attention"]}, "for 4 layers"),
        ({"layer_types": "full_attention"}, "for 4 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "no sliding_window"),
        ({"num_key_value_heads": 4}, "k projection makes 32 values a token, the heads"),
        ({"num_key_value_heads": [2, 2]}, "for 4 layers"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2'"),
        ({"num_attention_heads": None}, "no num_attention_heads"),
        ({"hidden_size": 63}, "does not part into 4 heads"),
        ({"kv_lora_rank": 16, "qk_rope_head_dim": 8}, "no latent projection"),
        ({"model_type": "jamba"}, "no attn_layer_period"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "X"}, "hybrid_override_pattern"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M"}, "for 4 layers"),
        ({"model_type": "lfm2"}, "neither layer_types nor full_attn_idxs"),
    ],
)
def test_kv_that_is_not_understood_is_unknown_with_a_reason(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    whole, tensors = small()
    spec = spec_of(tmp_path, (whole | config, tensors))
    assert spec.kv_bytes(1) is None
    assert spec.state_bytes() is None
    assert reason in (spec.kv_unknown or "")


def test_a_type_that_is_nowhere_makes_the_kv_unknown(tmp_path: Path) -> None:
    config, tensors = small()
    del config["torch_dtype"]
    assert spec_of(tmp_path, (config, tensors)).kv_bytes(1) is None
    assert spec_of(tmp_path, (config, tensors), kv_type="f16").kv_bytes(1) == 4 * LAYER


def test_a_quantised_kv_cache_that_only_some_engines_take_is_not_guessed(tmp_path: Path) -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}
    model = small(quantization_config=scheme)
    assert spec_of(tmp_path, model).kv_bytes(1) is None
    assert spec_of(tmp_path, model, kv_type="fp8").kv_bytes(1) == 4 * LAYER // 2


# Where the model is


def test_the_folder_its_index_and_any_of_its_files_give_the_same(tmp_path: Path) -> None:
    config, tensors = small()
    folder = write_model(tmp_path / "tiny", config, tensors, files=3)
    whole = ModelSpec.from_safetensors(folder)
    names = (
        "config.json",
        "model.safetensors.index.json",
        "model-00002-of-00003.safetensors",
    )
    for name in names:
        assert ModelSpec.from_safetensors(folder / name) == whole
    alone = ModelSpec.from_safetensors(write_model(tmp_path / "one" / "tiny", config, tensors))
    assert alone.weight_bytes_per_token == whole.weight_bytes_per_token
    assert alone.header_hash != whole.header_hash
    parts = folder.glob("*.safetensors")
    assert whole.file_bytes == sum(part.stat().st_size for part in parts)


def test_a_model_in_hugging_faces_cache_has_its_repositorys_name(tmp_path: Path) -> None:
    folder = tmp_path / "models--owner--Tiny-1B" / "snapshots" / "0123abcd"
    assert ModelSpec.from_safetensors(write_model(folder, *small())).name == "owner/Tiny-1B"
    assert ModelSpec.from_safetensors(folder, name="mine").name == "mine"


def test_a_file_of_another_name_is_found_where_it_is_the_only_one(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", *small())
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert ModelSpec.from_safetensors(folder).weight_bytes_per_token is not None
    write_file(folder / "more.safetensors", *header({}))
    with pytest.raises(SafetensorsError, match=r"several files .* accepted is model\.safetensors"):
        ModelSpec.from_safetensors(folder)


def test_how_the_runtime_runs_it_comes_from_the_arguments(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", *small())
    spec = ModelSpec.from_safetensors(
        folder, kv_type=("fp8", "auto"), context_limit=512, allocation="paged", overflow="refuse"
    )
    assert spec.kv_types == ("fp8", "f16")
    assert (spec.context_limit, spec.allocation, spec.overflow) == (512, "paged", "refuse")
    wrong: list[tuple[Callable[[], ModelSpec], str]] = [
        (lambda: ModelSpec.from_safetensors(folder, kv_type="f12"), "kv_type: 'f12'"),
        (lambda: ModelSpec.from_safetensors(folder, state_type="x"), "state_type: 'x'"),
        (lambda: ModelSpec.from_safetensors(folder, expanded_mla=1), "expanded_mla: 1"),  # type: ignore[arg-type]
    ]
    for call, found in wrong:
        with pytest.raises(ModelError, match=found):
            call()


def test_the_spec_survives_json(tmp_path: Path) -> None:
    for number, model in enumerate((hf_models.deepseek_v2_lite(), hf_models.mamba_130m())):
        spec = spec_of(tmp_path / str(number), model, state_type="f32")
        again = ModelSpec.from_json(json.loads(json.dumps(spec.to_json())))
        assert again == spec
        assert again.bytes_per_step(1000, batch=2) == spec.bytes_per_step(1000, batch=2)
