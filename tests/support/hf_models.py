"""Public models in Hugging Face's form: their config.json and the shapes of their tensors.

Written from the models' public configurations, one function a family, for tests that compare sums
with the parameter counts that are published.
"""

from typing import Any

Model = tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]


class _Shapes(dict[str, tuple[str, tuple[int, ...]]]):
    """name -> (dtype, shape), all of one dtype unless said."""

    def add(self, name: str, *shape: int, dtype: str = "BF16") -> None:
        self[name + ".weight"] = (dtype, shape)


def _attention(shapes: _Shapes, name: str, config: dict[str, Any], bias: bool = False) -> None:
    width, heads, kv = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    size = config.get("head_dim") or width // heads
    shapes.add(name + "q_proj", heads * size, width)
    shapes.add(name + "k_proj", kv * size, width)
    shapes.add(name + "v_proj", kv * size, width)
    shapes.add(name + "o_proj", width, heads * size)
    if bias:
        for part, rows in (("q", heads), ("k", kv), ("v", kv)):
            shapes[f"{name}{part}_proj.bias"] = ("BF16", (rows * size,))


def _feed_forward(shapes: _Shapes, name: str, width: int, inner: int) -> None:
    shapes.add(name + "gate_proj", inner, width)
    shapes.add(name + "up_proj", inner, width)
    shapes.add(name + "down_proj", width, inner)


def dense(
    config: dict[str, Any],
    *,
    bias: bool = False,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    head_norms: bool = False,
    prefix: str = "model.",
) -> _Shapes:
    """The tensors of a dense transformer."""
    shapes = _Shapes()
    width = config["hidden_size"]
    shapes.add(prefix + "embed_tokens", config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        name = f"{prefix}layers.{layer}."
        _attention(shapes, name + "self_attn.", config, bias)
        if head_norms:
            shapes.add(name + "self_attn.q_norm", config["head_dim"])
            shapes.add(name + "self_attn.k_norm", config["head_dim"])
        _feed_forward(shapes, name + "mlp.", width, config["intermediate_size"])
        for norm in norms:
            shapes.add(name + norm, width)
    shapes.add(prefix + "norm", width)
    return shapes


def llama_3_2_1b() -> Model:
    """1,235,814,400 parameters, tied."""
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    return config, dense(config)


def qwen_2_5_0_5b() -> Model:
    """494,032,768 parameters, tied; a window that is not used."""
    config = {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "max_window_layers": 24,
        "sliding_window": 32_768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    return config, dense(config, bias=True)


_GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def gemma_2_2b() -> Model:
    """2,614,341,888 parameters, tied without a word in the file; every other layer windowed."""
    config = {
        "model_type": "gemma2",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "torch_dtype": "bfloat16",
    }
    return config, dense(config, norms=_GEMMA_NORMS)


def gemma_3_4b() -> Model:
    """3,880,263,168 parameters of text; beside them a tower, here of one tensor."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window": 1024,
        "max_position_embeddings": 131_072,
    }
    config = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
        "torch_dtype": "bfloat16",
    }
    shapes = dense(text, norms=_GEMMA_NORMS, head_norms=True, prefix="language_model.model.")
    shapes.add("vision_tower.vision_model.encoder.layers.0.self_attn.k_proj", 1152, 1152)
    shapes.add("multi_modal_projector.mm_soft_emb_norm", 1152)
    return config, shapes


def mixtral_8x7b() -> Model:
    """46,702,792,704 parameters, of which 12,879,925,248 are used for a token."""
    config = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    shapes = _Shapes()
    shapes.add("model.embed_tokens", 32_000, 4096)
    for layer in range(32):
        name = f"model.layers.{layer}."
        _attention(shapes, name + "self_attn.", config)
        shapes.add(name + "block_sparse_moe.gate", 8, 4096)
        for expert in range(8):
            one = f"{name}block_sparse_moe.experts.{expert}."
            shapes.add(one + "w1", 14_336, 4096)
            shapes.add(one + "w2", 4096, 14_336)
            shapes.add(one + "w3", 14_336, 4096)
        shapes.add(name + "input_layernorm", 4096)
        shapes.add(name + "post_attention_layernorm", 4096)
    shapes.add("model.norm", 4096)
    shapes.add("lm_head", 32_000, 4096)
    return config, shapes


def deepseek_v2_lite() -> Model:
    """15,706,484,224 parameters: MLA, a dense first layer, 64 experts and 2 shared ones."""
    config = {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "vocab_size": 102_400,
        "max_position_embeddings": 163_840,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    shapes = _Shapes()
    shapes.add("model.embed_tokens", 102_400, 2048)
    for layer in range(27):
        name = f"model.layers.{layer}."
        shapes.add(name + "self_attn.q_proj", 16 * 192, 2048)
        shapes.add(name + "self_attn.kv_a_proj_with_mqa", 512 + 64, 2048)
        shapes.add(name + "self_attn.kv_a_layernorm", 512)
        shapes.add(name + "self_attn.kv_b_proj", 16 * 256, 512)
        shapes.add(name + "self_attn.o_proj", 2048, 16 * 128)
        if layer == 0:
            _feed_forward(shapes, name + "mlp.", 2048, 10_944)
        else:
            shapes.add(name + "mlp.gate", 64, 2048)
            _feed_forward(shapes, name + "mlp.shared_experts.", 2048, 2 * 1408)
            for expert in range(64):
                _feed_forward(shapes, f"{name}mlp.experts.{expert}.", 2048, 1408)
        shapes.add(name + "input_layernorm", 2048)
        shapes.add(name + "post_attention_layernorm", 2048)
    shapes.add("model.norm", 2048)
    shapes.add("lm_head", 102_400, 2048)
    return config, shapes


def mamba_130m() -> Model:
    """129,135,360 parameters, tied; nothing but state."""
    config = {
        "model_type": "mamba",
        "hidden_size": 768,
        "intermediate_size": 1536,
        "expand": 2,
        "state_size": 16,
        "conv_kernel": 4,
        "time_step_rank": 48,
        "num_hidden_layers": 24,
        "vocab_size": 50_280,
        "torch_dtype": "float32",
    }
    shapes = _Shapes()
    shapes.add("backbone.embeddings", 50_280, 768, dtype="F32")
    for layer in range(24):
        name = f"backbone.layers.{layer}."
        shapes.add(name + "norm", 768, dtype="F32")
        mixer = name + "mixer."
        shapes[mixer + "A_log"] = ("F32", (1536, 16))
        shapes[mixer + "D"] = ("F32", (1536,))
        shapes.add(mixer + "conv1d", 1536, 1, 4, dtype="F32")
        shapes[mixer + "conv1d.bias"] = ("F32", (1536,))
        shapes.add(mixer + "in_proj", 3072, 768, dtype="F32")
        shapes.add(mixer + "x_proj", 48 + 32, 1536, dtype="F32")
        shapes.add(mixer + "dt_proj", 1536, 48, dtype="F32")
        shapes[mixer + "dt_proj.bias"] = ("F32", (1536,))
        shapes.add(mixer + "out_proj", 768, 1536, dtype="F32")
    shapes.add("backbone.norm_f", 768, dtype="F32")
    return config, shapes


def gpt_oss_20b() -> Model:
    """20,914,757,184 parameters, the experts' in blocks of 32 four-bit values and a scale."""
    config = {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201_088,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
        "torch_dtype": "bfloat16",
    }
    shapes = _Shapes()
    shapes.add("model.embed_tokens", 201_088, 2880)
    for layer in range(24):
        name = f"model.layers.{layer}."
        _attention(shapes, name + "self_attn.", config, bias=True)
        shapes[name + "self_attn.o_proj.bias"] = ("BF16", (2880,))
        shapes[name + "self_attn.sinks"] = ("BF16", (64,))
        shapes.add(name + "mlp.router", 32, 2880)
        shapes[name + "mlp.router.bias"] = ("BF16", (32,))
        for part, rows in (("gate_up_proj", 5760), ("down_proj", 2880)):
            experts = f"{name}mlp.experts.{part}"
            shapes[experts + "_blocks"] = ("U8", (32, rows, 90, 16))
            shapes[experts + "_scales"] = ("U8", (32, rows, 90))
            shapes[experts + "_bias"] = ("BF16", (32, rows))
        shapes.add(name + "input_layernorm", 2880)
        shapes.add(name + "post_attention_layernorm", 2880)
    shapes.add("model.norm", 2880)
    shapes.add("lm_head", 201_088, 2880)
    return config, shapes
