"""The model spec: worked cases of the arithmetic, ranges, strict reading."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodewatch.shared.model import ALLOCATIONS, OVERFLOWS, Experts, ModelError, ModelSpec

MIB = 1 << 20
GIB = 1 << 30


def plain(**fields: Any) -> ModelSpec:
    """A 7B-like model: 32 layers of 8 KV heads of 128, KV in f16."""
    base: dict[str, Any] = {
        "name": "7B",
        "weight_bytes_per_token": 3_500_000_000,
        "layers": 32,
        "kv_heads": 8,
        "head_dim_k": 128,
        "head_dim_v": 128,
        "kv_types": ("f16", "f16"),
    }
    return ModelSpec(**(base | fields))


# Worked cases


def test_kv_of_32_layers_8_heads_of_128_in_f16() -> None:
    spec = plain()
    assert spec.kv_bytes_per_token() == 131_072
    assert spec.kv_bytes(0) == 0
    assert spec.kv_bytes(2048) == 256 * MIB
    assert spec.kv_bytes(8192) == GIB


def test_kv_of_llama_2_7b_at_512_tokens() -> None:
    spec = plain(kv_heads=32)
    assert spec.kv_bytes(512) == 268_435_456
    one_layer = plain(kv_heads=32, layers=1)
    assert one_layer.kv_bytes(512) == 8_388_608


def test_theory_of_a_7b_at_51_gb_a_second_and_1024_tokens() -> None:
    int4 = plain().bytes_per_step(1024)
    f16 = plain(weight_bytes_per_token=14_000_000_000).bytes_per_step(1024)
    assert int4 == 3_634_217_728
    assert f16 is not None
    assert 51.2e9 / int4 == pytest.approx(14, abs=0.1)
    assert 51.2e9 / f16 == pytest.approx(3.6, abs=0.05)


@pytest.mark.parametrize(
    ("kv_types", "bits"),
    [
        (("f32", "f32"), 32),
        (("bf16", "bf16"), 16),
        (("q8_0", "q8_0"), 8.5),
        (("q5_1", "q5_1"), 6),
        (("q5_0", "q5_0"), 5.5),
        (("q4_1", "q4_1"), 5),
        (("q4_0", "q4_0"), 4.5),
        (("iq4_nl", "iq4_nl"), 4.5),
        (("fp8", "fp8"), 8),
        (("q8_0", "q4_0"), 6.5),
    ],
)
def test_kv_types_count_their_scales(kv_types: tuple[str, str], bits: float) -> None:
    spec = plain(kv_types=kv_types)
    assert spec.kv_bytes(8) == 8 * 32 * 8 * 256 * bits / 8


def test_k_and_v_may_differ_in_size_and_type() -> None:
    spec = plain(head_dim_k=192, head_dim_v=128, kv_types=None, kv_bytes_per_value=(1, 2))
    assert spec.kv_bytes_per_token() == 32 * 8 * (192 * 1 + 128 * 2)


def test_heads_may_differ_by_layer() -> None:
    spec = plain(layers=3, kv_heads=(8, 0, 2))
    assert spec.kv_bytes(10) == 10 * (8 + 2) * 256 * 2


def test_windowed_layers_stop_growing_at_the_window() -> None:
    spec = plain(layers=4, sliding_window=100, sliding_layers=(True, True, True, False))
    layer = 8 * 256 * 2
    assert spec.kv_bytes(60) == 4 * 60 * layer
    assert spec.kv_bytes(100) == 4 * 100 * layer
    assert spec.kv_bytes(1000) == (3 * 100 + 1000) * layer
    everywhere = plain(layers=4, sliding_window=100, sliding_layers=True)
    assert everywhere.kv_bytes(1000) == 4 * 100 * layer


def test_a_window_of_unknown_layers_is_known_only_up_to_its_length() -> None:
    spec = plain(sliding_window=100)
    assert spec.kv_bytes(100) == 100 * 131_072
    assert spec.why_unknown(100) is None
    assert spec.kv_bytes(101) is None
    assert spec.bytes_per_step(101) is None
    assert "sliding window of 100" in (spec.why_unknown(101) or "")


def test_chunks_begin_anew_where_windows_slide() -> None:
    spec = plain(layers=2, sliding_window=100, sliding_layers=(True, False), window_chunked=True)
    layer = 8 * 256 * 2
    assert spec.kv_bytes(0) == 0
    assert spec.kv_bytes(100) == 2 * 100 * layer
    assert spec.kv_bytes(101) == (1 + 101) * layer
    assert spec.kv_bytes(250) == (50 + 250) * layer


def test_layers_may_say_their_values_one_by_one() -> None:
    spec = plain(
        layers=3,
        kv_heads=None,
        head_dim_k=None,
        head_dim_v=None,
        kv_types=("q8_0", "f16"),
        kv_values=((576, 0), (64, 32), (0, 0)),
        sliding_window=10,
        sliding_layers=(False, True, False),
    )
    assert spec.kv_bytes(100) == (100 * 576 + 10 * 64) * 34 // 32 + 10 * 32 * 2
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_state_is_read_and_written_at_any_depth() -> None:
    spec = plain(layers=1, state_values=(300, 1000), state_types=("f16", "f32"))
    assert spec.state_bytes() == 300 * 2 + 1000 * 4
    assert spec.kv_bytes(0) == 0
    assert spec.sequence_bytes(10) == 10 * 8 * 256 * 2 + 4600
    assert spec.bytes_per_step(10, batch=2) == 3_500_000_000 + 2 * (10 * 4096 + 2 * 4600)
    assert plain().state_bytes() == 0


def test_a_model_of_state_alone_needs_no_heads_and_no_type() -> None:
    spec = ModelSpec(
        name="m",
        weight_bytes_per_token=10,
        layers=2,
        kv_heads=0,
        state_values=(0, 8),
        state_types=("f32", "f32"),
    )
    assert spec.kv_bytes(1000) == 0
    assert spec.bytes_per_step(1000) == 10 + 2 * 8 * 4
    assert spec.why_unknown(1000) is None


def test_a_batch_reads_the_weights_once_and_each_ones_kv() -> None:
    spec = plain()
    assert spec.bytes_per_step(1024, batch=4) == 3_500_000_000 + 4 * 1024 * 131_072


def test_a_batch_chooses_more_experts() -> None:
    spec = plain(
        weight_bytes_per_token=1_000 + 4_000 * 2 // 8, experts=Experts(total=8, used=2, bytes=4_000)
    )
    assert spec.weight_bytes(1) == 2_000
    assert spec.weight_bytes(2) == 1_000 + 4_000 * (1 - 0.75**2)
    assert spec.weight_bytes(1000) == 5_000


@settings(deadline=None)
@given(st.integers(0, 1 << 20), st.integers(0, 1 << 10))
def test_kv_never_shrinks_with_depth(depth: int, more: int) -> None:
    spec = plain(
        layers=3,
        kv_heads=(1, 2, 3),
        kv_types=("q4_0", "q8_0"),
        sliding_window=512,
        sliding_layers=(True, False, True),
    )
    shallow, deep = spec.kv_bytes(depth), spec.kv_bytes(depth + more)
    assert shallow is not None
    assert deep is not None
    assert shallow <= deep


# The unknown


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim_k", "head_dim_v", "kv_types"])
def test_what_is_not_given_makes_kv_unknown_and_says_so(field: str) -> None:
    spec = plain(**{field: None})
    assert spec.kv_bytes_per_token() is None
    assert spec.bytes_per_step(10) is None
    assert spec.why_unknown() == (
        "the engine does not say how many bytes each value of K and V takes"
        if field == "kv_types"
        else f"{field} is not given"
    )


def test_state_of_unknown_size_leaves_kv_known() -> None:
    for types, reason in ((None, "state_types is not given"), (("f16", "odd"), "'odd'")):
        spec = plain(state_values=(300, 1000), state_types=types)
        assert spec.state_bytes() is None
        assert spec.sequence_bytes(5) is None
        assert spec.bytes_per_step(5) is None
        assert spec.kv_bytes(1) == 131_072
        assert reason in (spec.why_unknown() or "")


def test_unknown_kv_makes_state_unknown_too() -> None:
    assert plain(kv_unknown="of a family that is not known").state_bytes() is None
    assert ModelSpec(name="mystery").state_bytes() is None


def test_unknown_weights_leave_kv_known() -> None:
    spec = plain(weight_bytes_per_token=None, weight_unknown="not counted")
    assert spec.weight_bytes() is None
    assert spec.bytes_per_step(10) is None
    assert spec.why_unknown() == "not counted"
    assert spec.kv_bytes(1) == 131_072


def test_a_kv_type_of_unknown_size_makes_kv_unknown() -> None:
    assert plain(kv_types=("turbo3", "f16")).kv_bytes(1) is None


# Fields and their ranges


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("name", "", "text of 1 to 128 characters"),
        ("name", None, "text of 1 to 128 characters"),
        ("name", "a\0b", "text of 1 to 128 characters"),
        ("name", "\ud800", "text of 1 to 128 characters"),
        ("name", "x" * 129, "text of 1 to 128 characters"),
        ("layers", 0, "a whole number from 1 to 1024"),
        ("layers", True, "a whole number from 1 to 1024"),
        ("layers", 32.0, "a whole number from 1 to 1024"),
        ("layers", "32", "a whole number from 1 to 1024"),
        ("kv_heads", -1, "a whole number from 0 to 65536"),
        ("kv_heads", (), "a list of 1 to 1024"),
        ("kv_heads", (8,) * 2000, "a list of 1 to 1024"),
        ("kv_heads", (8, 8), "one for each of the 32 layers"),
        ("kv_bytes_per_value", 2, "a pair, for K and for V"),
        ("kv_bytes_per_value", (2, math.nan), "a number of bytes above 0, at most 16"),
        ("kv_bytes_per_value", (math.inf, 2), "a number of bytes above 0, at most 16"),
        ("kv_bytes_per_value", (0, 2), "a number of bytes above 0, at most 16"),
        ("kv_types", "f16", "a pair, for K and for V"),
        ("allocation", "lazily", "one of at_once, growing, paged"),
        ("overflow", "panic", "one of refuse, truncate, shift, summarise"),
        ("context_limit", 1 << 50, "a whole number from 1 to 1099511627776"),
        ("weight_bytes_per_token", 1 << 60, "a whole number from 1 to 9007199254740991"),
        ("weight_bytes_total", 5, "at most weight_bytes_total, 5"),
        ("sliding_layers", (True,) * 32, "None without a sliding_window"),
        ("window_chunked", True, "None without a sliding_window"),
        ("kv_values", ((1, 2),) * 32, "None beside kv_values"),
        ("kv_values", ((1, 2),), "one for each of the 32 layers"),
        ("kv_values", (576, 0), "a pair, for K and for V"),
        ("kv_values", ((-1, 0),) * 32, "a whole number from 0"),
        ("state_values", (1,), "a pair"),
        ("state_types", ("f32", "f32"), "None without state_values"),
        ("experts", 8, "an object with total, used and bytes"),
        ("experts", {"total": 8}, "a whole number from 1 to 8"),
        ("experts", {"total": 8, "used": 9, "bytes": 1}, "a whole number from 1 to 8"),
        ("experts", {"total": 8, "used": 8, "bytes": 1 << 40}, "at least what its experts read"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_what_is_accepted(
    field: str, value: Any, accepted: str
) -> None:
    with pytest.raises(ModelError) as caught:
        plain(**{field: value})
    assert accepted in str(caught.value)
    said = str(caught.value)
    assert field in said or "weight_bytes" in said or field == "kv_values"


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: plain().kv_bytes(-1), "depth: -1"),
        (lambda: plain().bytes_per_step(1, batch=0), "batch: 0"),
        (lambda: plain().kv_bytes(True), "depth: True"),
    ],
)
def test_a_wrong_argument_is_refused(call: Any, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        call()


# On the wire


def test_a_spec_survives_json_whole() -> None:
    spec = plain(
        layers=3,
        kv_heads=[8, 0, 2],
        architecture="x",
        quantisation="Q4_0",
        weight_bytes_total=3_600_000_000,
        file_bytes=3_700_000_000,
        allocation="paged",
        overflow="shift",
        context_limit=4096,
        context_trained=8192,
        sliding_window=128,
        sliding_layers=[True, False, True],
        window_chunked=True,
        state_values=(10, 20),
        state_types=("f16", "f32"),
        experts=Experts(total=8, used=2, bytes=1_000_000),
        tied_embeddings=False,
        header_hash="ab" * 16,
    )
    text = json.dumps(spec.to_json())
    assert ModelSpec.from_json(json.loads(text)) == spec
    assert len(text) < 900


def test_a_spec_of_a_name_alone_is_small_and_survives() -> None:
    spec = ModelSpec(name="mystery")
    assert spec.to_json() == {"name": "mystery"}
    assert ModelSpec.from_json({"name": "mystery"}) == spec


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert ModelSpec.from_json({"name": "a", "kv_lora_rank": 512, "experts": None}) == ModelSpec(
        name="a"
    )


# The fields that the first version of the JSON form knows.
FIRST_FIELDS = frozenset(
    {
        *("name", "architecture", "quantisation", "weight_bytes_per_token", "weight_bytes_total"),
        *("file_bytes", "layers", "kv_heads", "head_dim_k", "head_dim_v", "kv_types"),
        *("kv_bytes_per_value", "allocation", "overflow", "context_limit", "context_trained"),
        *("sliding_window", "sliding_layers", "experts", "tied_embeddings", "weight_unknown"),
        *("kv_unknown", "header_hash"),
    }
)


def test_a_reader_of_the_first_version_says_unknown_where_it_cannot_count() -> None:
    mla = plain(
        kv_heads=None, head_dim_k=None, head_dim_v=None, kv_values=((576, 0),) * 32
    ).to_json()
    seen = ModelSpec.from_json({key: mla[key] for key in FIRST_FIELDS & mla.keys()})
    assert seen.kv_bytes(1) is None
    assert seen.weight_bytes() == 3_500_000_000
    assert mla.keys() - FIRST_FIELDS == {"kv_values"}


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"name": 3}, {"name": "a", "layers": []}])
def test_what_is_no_spec_is_refused(value: Any) -> None:
    with pytest.raises(ModelError):
        ModelSpec.from_json(value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["name", "kv_heads", "experts", "sliding_layers", "layers", "kv_types"]),
        JSON,
    )
)
def test_any_json_is_a_spec_or_refused(value: Any) -> None:
    try:
        spec = ModelSpec.from_json({"name": "x", **value})
    except ModelError:
        return
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


SPECS = st.builds(
    ModelSpec,
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    weight_bytes_per_token=st.none() | st.integers(1, (1 << 53) - 1),
    layers=st.just(2),
    kv_heads=st.integers(0, 65_536) | st.tuples(st.integers(0, 64), st.integers(0, 64)),
    head_dim_k=st.none() | st.integers(1, 65_536),
    head_dim_v=st.integers(1, 65_536),
    kv_bytes_per_value=st.tuples(
        st.floats(0, 16, exclude_min=True), st.floats(0, 16, exclude_min=True)
    ),
    allocation=st.none() | st.sampled_from(ALLOCATIONS),
    overflow=st.none() | st.sampled_from(OVERFLOWS),
    context_limit=st.none() | st.integers(1, 1 << 40),
)


@settings(deadline=None)
@given(SPECS, st.integers(0, 1 << 30))
def test_every_spec_survives_json_and_says_what_it_does_not_know(
    spec: ModelSpec, depth: int
) -> None:
    again = ModelSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.bytes_per_step(depth) == spec.bytes_per_step(depth)
    assert (spec.bytes_per_step(depth) is None) == (spec.why_unknown(depth) is not None)
