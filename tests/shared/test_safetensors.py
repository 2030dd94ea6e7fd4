"""The reader of safetensors: files cut and damaged everywhere, hostile sizes, indexes, and cost."""

import contextlib
import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.safetensors_writer import header, write_file, write_model

from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.safetensors import (
    HEADER_MAX,
    INDEX,
    WHOLE,
    SafetensorsError,
    find_model,
    read_tensors,
)

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "torch_dtype": "float16",
}
TENSORS = {
    "model.embed_tokens.weight": ("F16", (4, 8)),
    "model.layers.0.self_attn.k_proj.weight": ("F16", (8, 8)),
    "model.layers.0.self_attn.v_proj.weight": ("F16", (8, 8)),
}


def refused(path: Path) -> str:
    """The error that reading the model ends with."""
    with pytest.raises(SafetensorsError) as caught:
        list(read_tensors(find_model(path)))
    return str(caught.value)


def with_header(folder: Path, entries: Any, data_bytes: int = 1000) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_file(folder / WHOLE, entries, data_bytes)
    return folder


def test_every_tensor_is_read_with_its_type_and_size(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS)
    found = {tensor.name: tensor for tensor in read_tensors(find_model(folder))}
    assert found.keys() == TENSORS.keys()
    assert found["model.embed_tokens.weight"][1:] == ("F16", (4, 8), 64)


def test_a_type_that_is_not_known_has_the_size_of_its_data(tmp_path: Path) -> None:
    entry = {"dtype": "F5_NEW", "shape": [3, 7], "data_offsets": [0, 14]}
    folder = with_header(tmp_path, {"x": entry})
    assert [tensor.bytes for tensor in read_tensors(find_model(folder))] == [14]


def test_four_bit_values_share_bytes(tmp_path: Path) -> None:
    entry = {"dtype": "F4", "shape": [3, 7], "data_offsets": [0, 11]}
    folder = with_header(tmp_path, {"x": entry})
    assert [tensor.bytes for tensor in read_tensors(find_model(folder))] == [11]


GOOD = {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ({"x": GOOD | {"dtype": 3}}, "tensor 'x': dtype is 3; accepted is a type's name"),
        ({"x": GOOD | {"dtype": None}}, "dtype is None"),
        (
            {"x": GOOD | {"dtype": "F32"}},
            "data_offsets is [0, 4]; accepted are 8 bytes for F32 [2]",
        ),
        ({"x": GOOD | {"shape": 2}}, "shape is 2"),
        ({"x": GOOD | {"shape": [2.0]}}, "shape is [2.0]"),
        ({"x": GOOD | {"shape": [True]}}, "shape is [True]"),
        ({"x": GOOD | {"shape": [-1]}}, "shape is [-1]"),
        ({"x": GOOD | {"shape": [1 << 63]}}, "shape is"),
        ({"x": GOOD | {"shape": [1 << 62, 1 << 62]}}, "accepted are"),
        ({"x": GOOD | {"shape": [1] * 9}}, "shape is a list of 9"),
        ({"x": GOOD | {"data_offsets": [4, 0]}}, "a range inside the file's 1000 bytes"),
        ({"x": GOOD | {"data_offsets": [0, 1001]}}, "a range inside the file's 1000 bytes"),
        ({"x": GOOD | {"data_offsets": [0]}}, "data_offsets is [0]; accepted is a pair"),
        ({"x": GOOD | {"data_offsets": {}}}, "data_offsets is {}"),
        ({"x": GOOD, "y": GOOD}, "begins at byte 0 of the data, inside the one before"),
        ({"x": [1]}, "its entry is [1]; accepted is an object"),
        ({"x" * 600: GOOD}, "at most 512 characters"),
        ([], "is []; accepted is an object"),
        (7, "is 7; accepted is an object"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_tensor_value_and_what_is_accepted(
    tmp_path: Path, entries: Any, found: str
) -> None:
    text = refused(with_header(tmp_path / "tiny", entries))
    assert found in text
    assert str(tmp_path / "tiny" / WHOLE) in text


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "has 0 bytes; accepted is a safetensors file"),
        (b"\1\0\0", "has 3 bytes"),
        (struct.pack("<Q", 1 << 63) + b"{}", "its header takes 9223372036854775808 bytes of 10"),
        (struct.pack("<Q", 3) + b"{}", "its header takes 3 bytes of 10"),
        (struct.pack("<Q", 2) + b"{x", "is not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "is not JSON"),
        (struct.pack("<Q", 4) + b"null", "is None; accepted is an object"),
        (struct.pack("<Q", 18) + b'{"x":[1],"x":[1]}\n', "has 'x' twice"),
        (struct.pack("<Q", 20_000) + b"[" * 20_000, "nested too deeply"),
        (struct.pack("<Q", 5000) + b"9" * 5000, "is not JSON"),
        (b"GGUF\3\0\0\0" + bytes(100), "its header takes"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / WHOLE).write_bytes(data)
    assert found in refused(tmp_path)


def test_a_model_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS)
    for name in (WHOLE, "config.json"):
        data = (folder / name).read_bytes()
        for cut in range(len(data)):
            (folder / name).write_bytes(data[:cut])
            assert str(folder / name) in refused(folder)
        (folder / name).write_bytes(data)
    assert ModelSpec.from_safetensors(folder).weight_bytes_per_token == 64 + 2 * 128


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "nowhere")
    assert "config.json: no such file" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert f"no file of safetensors and no {INDEX}" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "a file that ends in .safetensors" in refused(tmp_path / "pytorch_model.bin")
    os.mkfifo(tmp_path / WHOLE)
    assert "is not a regular file" in refused(tmp_path)
    with pytest.raises(SafetensorsError, match=r"model path 3"):
        find_model(3)  # type: ignore[arg-type]
    assert "is not a path" in refused(Path("a\0b"))


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError, match="holds no weights"):
        ModelSpec.from_safetensors(with_header(tmp_path, {}))


# The index


def indexed(folder: Path, weight_map: Any) -> Path:
    write_model(folder, CONFIG, TENSORS, files=2)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    ("weight_map", "found"),
    [
        (None, "weight_map is None"),
        ({}, "weight_map is {}; accepted is an object of 1 to"),
        (["x"], "weight_map is ['x']"),
        ({"x": 3}, "weight_map's 'x' is in 3; accepted is the name of a .safetensors file"),
        ({"x": "../up.safetensors"}, "is in '../up.safetensors'"),
        ({"x": "/etc/passwd"}, "is in '/etc/passwd'"),
        ({"x": INDEX}, f"is in '{INDEX}'"),  # it would name itself
        ({"x": "nowhere.safetensors"}, "nowhere.safetensors: no such file"),
        ({"x": "a" * 600 + ".safetensors"}, "the name of a .safetensors file"),
        ({str(n): f"{n}.safetensors" for n in range(5000)}, "names 5000 files"),
        (
            {"x": "model-00001-of-00002.safetensors"},
            "holds 0 of the 1 tensors that the index says it holds",
        ),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, weight_map: Any, found: str) -> None:
    assert found in refused(indexed(tmp_path / "tiny", weight_map))


def test_an_index_that_is_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS, files=2)
    (folder / INDEX).unlink()
    (folder / INDEX).symlink_to(INDEX)
    assert "cannot be read" in refused(folder / INDEX)


def test_a_tensor_that_the_index_does_not_name_does_not_count(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS, files=2)
    entries, size = header({"model.embed_tokens.weight": ("F16", (400, 8))})
    path = folder / "model-00002-of-00002.safetensors"
    held = [name for number, name in enumerate(TENSORS) if number % 2 == 1]
    more, more_bytes = header({name: TENSORS[name] for name in held})
    for entry in (more[name] for name in held):
        entry["data_offsets"] = [offset + size for offset in entry["data_offsets"]]
    write_file(path, entries | more, size + more_bytes)
    found = [tensor.name for tensor in read_tensors(find_model(folder))]
    assert sorted(found) == sorted(TENSORS)


# Cost


def peak_of(path: Path) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(SafetensorsError):
            list(read_tensors(find_model(path)))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("item", [b"[],", b"{},", b'"",', b"1,"])
def test_a_hostile_header_is_refused_before_it_is_parsed(tmp_path: Path, item: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    body = b'{"x":[' + item * ((HEADER_MAX - 20) // len(item)) + b"1]}"
    (tmp_path / WHOLE).write_bytes(struct.pack("<Q", len(body)) + body)
    assert "items of JSON; accepted are at most" in refused(tmp_path)
    assert peak_of(tmp_path) < 3 * HEADER_MAX


def test_a_huge_index_or_config_is_refused_unread(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS, files=2)
    for name in (INDEX, "config.json"):
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 33)
        assert "has 8589934592 bytes; accepted are at most" in refused(folder)
        assert peak_of(folder) < 1 << 20


def test_many_tensors_cost_little_memory_beyond_their_names(tmp_path: Path) -> None:
    tensors = {
        f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight": ("F16", (1, 8))
        for expert in range(4000)
        for part in ("up", "gate", "down")
    }
    folder = write_model(tmp_path / "many", CONFIG, TENSORS | tensors, files=4)
    tracemalloc.start()
    try:
        ModelSpec.from_safetensors(folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


# Damage

_PATTERNS = st.one_of(
    st.binary(min_size=1, max_size=3),
    st.sampled_from([b"-1", b"1e9", b"null", b"[", b"{", b'"', b"9" * 30, b"\\ud800", b"true"]),
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from([WHOLE, "config.json"]),
    changes=st.lists(st.tuples(st.integers(0, 700), _PATTERNS), max_size=4),
)
@example(name=WHOLE, changes=[])
def test_no_damage_does_worse_than_the_projects_own_error(
    tmp_path: Path, name: str, changes: list[tuple[int, bytes]]
) -> None:
    folder = write_model(tmp_path / "tiny", CONFIG, TENSORS)
    data = bytearray((folder / name).read_bytes())
    for position, value in changes:
        data[position : position + len(value)] = value
    (folder / name).write_bytes(data)
    try:
        spec = ModelSpec.from_safetensors(folder)
    except DecodewatchError:
        return
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert (spec.bytes_per_step(100) is None) == (spec.why_unknown(100) is not None)
