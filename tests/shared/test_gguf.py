"""The GGUF header reader: what it reads, and that nothing in a file can do worse than GgufError."""

import contextlib
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.gguf_writer import F16, F32, MXFP4, Q4_0, Q4_K, Q8_0, UNKNOWN_TYPE, Tensor, gguf, model

from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.gguf import HEADER_MAX, GgufError, Skipped, read_gguf
from decodewatch.shared.model import ModelSpec

SMALL = gguf({"general.architecture": "llama", "a.b": [1, 2]}, [Tensor("x", (4, 2), F32)])


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refused(path: Any) -> str:
    with pytest.raises(GgufError) as caught:
        read_gguf(path)
    return str(caught.value)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_kind_are_read_in_both_byte_orders(
    tmp_path: Path, big_endian: bool, version: int
) -> None:
    metadata = {
        "general.architecture": "llama",
        "whole": 7,
        "negative": -7,
        "long": 1 << 40,
        "real": 0.5,
        "yes": True,
        "text": "Grüße",
        "numbers": [3, 1, 2],
        "truths": [True, False],
        "empty": [],
        "words": ["a", "b"],
    }
    tensors = [Tensor("one", (8, 3), F16), Tensor("two", (32, 2), Q8_0)]
    data = gguf(metadata, tensors, big_endian=big_endian, version=version)
    header = read_gguf(write(tmp_path, data))

    expected = metadata | {
        "numbers": (3, 1, 2),
        "truths": (True, False),
        "empty": (),
        "words": Skipped("array", 2),
    }
    assert header.metadata == expected
    assert (header.version, header.big_endian) == (version, big_endian)
    assert [(tensor.name, tensor.dims) for tensor in header.tensors] == [
        ("one", (8, 3)),
        ("two", (32, 2)),
    ]
    assert header.file_bytes == len(data)


def test_long_arrays_and_texts_are_counted_and_not_kept(tmp_path: Path) -> None:
    metadata = {"numbers": [1] * 5000, "reals": [0.5] * 5000, "text": "x" * 5000, "last": 1}
    header = read_gguf(write(tmp_path, gguf(metadata, [Tensor("x", (4,), F32)])))
    assert header.metadata == {
        "numbers": Skipped("array", 5000),
        "reals": Skipped("array", 5000),
        "text": Skipped("text", 5000),
        "last": 1,
    }


def test_a_string_longer_than_the_read_buffer_is_passed_over(tmp_path: Path) -> None:
    words = ["a" * 300_000, "b", "c" * 700_000]
    data = gguf({"words": words, "last": 1}, [Tensor("x", (4,), F32)])
    header = read_gguf(write(tmp_path, data))
    assert header.metadata == {"words": Skipped("array", 3), "last": 1}


def test_tensor_bytes_follow_blocks_and_unknown_types_the_next_offset(tmp_path: Path) -> None:
    tensors = [
        Tensor("f32", (5, 3), F32),
        Tensor("q4_0", (64, 3), Q4_0),
        Tensor("q4_k", (512, 2), Q4_K),
        Tensor("mxfp4", (32, 4, 2), MXFP4),
        Tensor("unknown", (64, 4), UNKNOWN_TYPE),
        Tensor("scalar", (), F32),
        Tensor("last", (32, 3), UNKNOWN_TYPE),
    ]
    header = read_gguf(write(tmp_path, gguf({}, tensors)))
    assert {tensor.name: tensor.bytes for tensor in header.tensors} == {
        "f32": 60,
        "q4_0": 108,
        "q4_k": 576,
        "mxfp4": 136,
        "unknown": 160,
        "scalar": 4,
        "last": 60,
    }


def test_another_alignment_is_honoured(tmp_path: Path) -> None:
    tensors = [Tensor("a", (3,), F32), Tensor("b", (3,), F32)]
    data = gguf({"general.alignment": 256}, tensors, alignment=256)
    header = read_gguf(write(tmp_path, data))
    assert [tensor.offset for tensor in header.tensors] == [0, 256]


def test_the_digest_tells_header_and_size_and_not_the_place(tmp_path: Path) -> None:
    first = read_gguf(write(tmp_path, SMALL, "a.gguf")).digest
    assert read_gguf(write(tmp_path, SMALL, "b.gguf")).digest == first
    assert read_gguf(write(tmp_path, SMALL + b"\0", "c.gguf")).digest != first
    other = SMALL.replace(b"llama", b"llamb")
    assert read_gguf(write(tmp_path, other, "d.gguf")).digest != first


# What is no model file


def test_every_truncation_of_a_small_file_is_refused_with_its_size(tmp_path: Path) -> None:
    for length in range(len(SMALL)):
        message = refused(write(tmp_path, SMALL[:length]))
        assert "model.gguf" in message
        if length:
            assert str(length) in message
    assert read_gguf(write(tmp_path, SMALL)).tensors


def test_a_truncation_says_at_which_byte_and_what_is_missing(tmp_path: Path) -> None:
    message = refused(write(tmp_path, SMALL[:30]))
    assert "from byte 16 on" in message
    assert "ends at byte 30" in message
    message = refused(write(tmp_path, SMALL[:-1]))
    assert f"the file is {len(SMALL) - 1} bytes, its tensors need {len(SMALL)}" in message


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no such file" in refused(tmp_path / "absent.gguf")
    assert "is a directory" in refused(tmp_path)
    assert "not a regular file" in refused(tmp_path / "pipe")
    assert "not a path" in refused("a\0b")
    assert "cannot be read" in refused(tmp_path / ("x" * 300))
    assert "cannot be read" in refused(write(tmp_path, SMALL) / "inside")
    for value in (None, 3, ""):
        assert "accepted is the path" in refused(value)


@pytest.mark.parametrize(
    "data", [b"version https://git-lfs.github.com/spec/v1\n", b"PK\3\4rest", b"\0" * 64, b"GGUG"]
)
def test_another_kind_of_file_is_refused_with_its_first_bytes(tmp_path: Path, data: bytes) -> None:
    message = refused(write(tmp_path, data))
    assert "is not a GGUF file" in message
    assert repr(data[:16]) in message


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    assert "is empty" in refused(write(tmp_path, b""))


@pytest.mark.parametrize("version", [0, 1, 4, 0x10000, 0xFFFFFFFF])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    message = refused(write(tmp_path, b"GGUF" + struct.pack("<I", version) + SMALL[8:]))
    assert "accepted are 2 and 3" in message


HUGE = struct.pack("<Q", 1 << 62)
COUNTS = struct.pack("<QQ", 1, 1)
HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"
TENSOR = HEAD + struct.pack("<QQ", 1, 0) + struct.pack("<Q", 1) + b"t"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (HEAD + HUGE + struct.pack("<Q", 0), "4611686018427387904 tensors"),
        (HEAD + struct.pack("<Q", 0) + HUGE, "4611686018427387904 keys"),
        (HEAD + struct.pack("<QQ", 60_000, 0), "60000 tensors"),
        (HEAD + COUNTS + HUGE, "key 0 has 4611686018427387904 bytes"),
        (HEAD + COUNTS + struct.pack("<Q", 0), "key 0 has 0 bytes"),
        (HEAD + COUNTS + KEY + struct.pack("<I", 8) + HUGE, "takes 4611686018427387904 bytes"),
        (HEAD + COUNTS + KEY + struct.pack("<II", 9, 8) + HUGE, "the value of 'k'"),
        (HEAD + COUNTS + KEY + struct.pack("<II", 9, 4) + HUGE, "the value of 'k'"),
        (HEAD + COUNTS + KEY + struct.pack("<IIQ", 9, 9, 1), "inside an array"),
        (HEAD + COUNTS + KEY + struct.pack("<I", 13), "of type 13"),
        (TENSOR + struct.pack("<I", 9), "9 dimensions"),
        (TENSOR + struct.pack("<I", 1 << 31), "2147483648 dimensions"),
        (TENSOR + struct.pack("<IQIQ", 1, 1 << 63, 0, 0), "its tensors need"),
        (TENSOR + struct.pack("<IQIQ", 1, 4, 0, 1 << 62), "its tensors need"),
        (TENSOR + struct.pack("<IQIQ", 1, 4, 250, 1 << 62), "its tensors need"),
        (TENSOR + struct.pack("<IQIQ", 1, 4, 0, 3), "a multiple of 32"),
        (TENSOR + struct.pack("<IQIQ", 1, 33, 2, 0), "rows of 33 elements"),
    ],
)
def test_absurd_numbers_are_refused_and_allocate_nothing(
    tmp_path: Path, data: bytes, found: str
) -> None:
    path = write(tmp_path, data + bytes(64))
    tracemalloc.start()
    try:
        message = refused(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found in message
    assert "model.gguf" in message
    assert peak < 4 << 20


def test_a_header_is_bounded_even_where_the_file_is_long(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + COUNTS + KEY + struct.pack("<IQ", 8, HEADER_MAX))
    os.truncate(path, 2 * HEADER_MAX)  # sparse
    assert f"at most {HEADER_MAX} bytes" in refused(path)


@pytest.mark.parametrize(
    ("metadata", "tensors", "found"),
    [
        ({"general.alignment": 0}, [], "a power of two"),
        ({"general.alignment": 48}, [], "a power of two"),
        ({"general.alignment": "x"}, [], "a power of two"),
        ({}, [Tensor("x", (4,), F32), Tensor("x", (4,), F32)], "there twice"),
    ],
)
def test_a_header_at_odds_with_itself_is_refused(
    tmp_path: Path, metadata: dict[str, Any], tensors: list[Tensor], found: str
) -> None:
    assert found in refused(write(tmp_path, gguf(metadata, tensors)))


def test_a_key_twice_and_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    twice = gguf({"ab": 1, "ac": 2}, [Tensor("x", (4,), F32)]).replace(b"ac", b"ab")
    assert "there twice" in refused(write(tmp_path, twice))
    for kind in (F32, UNKNOWN_TYPE):
        pair = gguf({}, [Tensor("x", (32,), kind), Tensor("y", (32,), kind)])
        table = pair.index(b"y") + 1 + 4 + 8 + 4
        moved = pair[:table] + struct.pack("<Q", 0) + pair[table + 8 :]
        assert "do not overlap" in refused(write(tmp_path, moved))


# Split models


def split(folder: Path, count: int = 2, changed: dict[str, Any] | None = None) -> list[Path]:
    metadata, tensors = model()
    share = -(-len(tensors) // count)
    paths = []
    for number in range(count):
        keys = dict(metadata) if number == 0 else {}
        keys |= {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        keys |= changed or {}
        data = gguf(keys, tensors[number * share : (number + 1) * share])
        paths.append(write(folder, data, f"tiny-{number + 1:05}-of-{count:05}.gguf"))
    return paths


def test_a_split_model_is_the_sum_of_its_parts_whichever_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    _, tensors = model()
    headers = [read_gguf(path) for path in paths]
    assert headers[0] == headers[1] == headers[2]
    assert headers[0].parts == 3
    assert sum(tensor.bytes for tensor in headers[0].tensors) == sum(t.bytes for t in tensors)
    assert headers[0].file_bytes == sum(path.stat().st_size for path in paths)
    assert headers[0].metadata["general.architecture"] == "llama"


def test_a_changed_part_changes_the_digest(tmp_path: Path) -> None:
    paths = split(tmp_path)
    before = read_gguf(paths[0]).digest
    paths[1].write_bytes(paths[1].read_bytes() + bytes(32))
    assert read_gguf(paths[0]).digest != before


def test_a_split_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    data = paths[1].read_bytes()
    paths[1].unlink()
    assert "tiny-00002-of-00002.gguf: no such file" in refused(paths[0])
    paths[1].write_bytes(paths[0].read_bytes())
    assert "part 1 of 2; accepted is part 2 of 2" in refused(paths[0])
    paths[1].write_bytes(data[:-1])
    assert "truncated" in refused(paths[0])
    renamed = paths[0].rename(tmp_path / "model.gguf")
    assert "accepted is a name that ends in -00001-of-00002.gguf" in refused(renamed)


def test_a_split_model_with_the_wrong_tensors_is_refused(tmp_path: Path) -> None:
    assert "accepted is 99" in refused(split(tmp_path, changed={"split.tensors.count": 99})[0])
    assert "a whole number" in refused(split(tmp_path, changed={"split.count": "two"})[0])
    first, second = split(tmp_path)
    keys = {"split.no": 1, "split.count": 2}
    second.write_bytes(gguf(keys, [Tensor("token_embd.weight", (4,))]))
    assert "in an earlier part too" in refused(first)


# Damage

_METADATA, _TENSORS = model(layers=1, vocabulary=4, experts=(4, 2))
WHOLE = gguf(_METADATA, _TENSORS)
_HEADER = len(gguf(_METADATA, _TENSORS, data=False))
_NUMBERS = st.one_of(
    st.integers(0, 255).map(lambda value: bytes([value])),
    st.sampled_from([0, 1, 2, 9, 255, 1 << 16, 1 << 31, (1 << 32) - 1]).map(
        lambda value: struct.pack("<I", value)
    ),
    st.sampled_from([0, 1, 31, 1 << 20, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1]).map(
        lambda value: struct.pack("<Q", value)
    ),
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(st.tuples(st.integers(0, _HEADER), _NUMBERS), max_size=4),
    cut=st.none() | st.integers(0, len(WHOLE)),
)
@example(changes=[], cut=None)
def test_no_damage_does_worse_than_the_projects_own_error(
    tmp_path: Path, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(WHOLE)
    for position, value in changes:
        data[position : position + len(value)] = value
    path = write(tmp_path, bytes(data[:cut]))
    with contextlib.suppress(GgufError):
        read_gguf(path)
    try:
        spec = ModelSpec.from_gguf(path)
    except DecodewatchError:
        return
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert (spec.bytes_per_step(100) is None) == (spec.why_unknown(100) is not None)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_no_bytes_after_the_magic_do_worse_than_the_projects_own_error(
    tmp_path: Path, data: bytes
) -> None:
    with contextlib.suppress(GgufError):
        read_gguf(write(tmp_path, b"GGUF\3\0\0\0" + data))


# Cost


def test_a_large_vocabulary_costs_little_time_and_memory(tmp_path: Path) -> None:
    metadata, tensors = model()
    metadata |= {
        "tokenizer.ggml.tokens": [f"token number {number}" for number in range(150_000)],
        "tokenizer.ggml.merges": [f"merge {number}" for number in range(150_000)],
        "tokenizer.ggml.token_type": [1] * 150_000,
    }
    data = gguf(metadata, tensors)
    path = write(tmp_path, data)

    def best(action: Any) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
        return min(times)

    # Some 0.06 s against 0.05 s for one look at each byte, where this was written.
    once = best(lambda: sum(path.read_bytes()))
    reading = best(lambda: read_gguf(path))
    assert reading < 6 * once
    tracemalloc.start()
    try:
        read_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20
