"""The KV and state of small models of many families, against what llama.cpp makes of the same file.

llama.cpp prints MiB with two decimals, so the models are run with as many cells or sequences as it
takes to make those exact enough to tell families apart.
"""

from pathlib import Path

import pytest
from support import gguf_families as families
from support.demo_model import demo_model
from support.gguf_writer import gguf
from support.llama_memory import Cache, memory_of

from decodewatch.shared.model import ModelSpec

pytestmark = pytest.mark.slow  # a process each

CELLS = 16_384
SEQUENCES = 64


def written(folder: Path, model: families.Model) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(gguf(*model))
    return path


def mib(size: float | None) -> str:
    assert size is not None
    return f"{size / (1 << 20):.2f}"


def check_kv(spec: ModelSpec, caches: list[Cache]) -> None:
    """The KV of as many tokens as fit must be what llama.cpp holds for them.

    Of layers held to a window llama.cpp keeps a few more tokens, so theirs is scaled down.
    """
    cells = max(cache.cells for cache in caches)
    window = spec.sliding_window
    free = spec.kv_bytes(cells)
    assert free is not None
    assert caches[0].cells == cells
    if len(caches) == 1:
        assert caches[0].size == mib(free * caches[0].streams)
        return
    assert window is not None
    held = spec.sliding_layers
    assert isinstance(held, tuple)
    assert spec.layers is not None
    assert [cache.layers for cache in caches] == [spec.layers - sum(held), sum(held)]
    growing, bounded = caches
    # What one more token adds once the windows are full is the KV of the free layers.
    more = spec.kv_bytes(cells + 1)
    short = spec.kv_bytes(window)
    assert more is not None
    assert short is not None
    of_free = more - free
    assert growing.size == mib(of_free * cells)
    assert bounded.size == mib((short - of_free * window) / window * bounded.cells)
    assert free == of_free * cells + (short - of_free * window)


@pytest.mark.parametrize(
    "kv_type", ["F16", "F32", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL"]
)
def test_the_demos_model_with_every_type_of_kv(kv_type: str) -> None:
    path = demo_model()
    spec = ModelSpec.from_gguf(path, kv_type=kv_type.lower())
    memory = memory_of(path, 4096, kv_type=kv_type)
    check_kv(spec, memory.kv)
    assert memory.kv[0].layers == 30
    assert not memory.state


def test_grouped_heads(tmp_path: Path) -> None:
    path = written(tmp_path, families.llama())
    check_kv(ModelSpec.from_gguf(path), memory_of(path, CELLS).kv)


def test_gemma_2_alternates(tmp_path: Path) -> None:
    path = written(tmp_path, families.gemma(2, 5, 1024))
    check_kv(ModelSpec.from_gguf(path), memory_of(path, CELLS).kv)


def test_gemma_2_has_a_window_that_the_file_need_not_name(tmp_path: Path) -> None:
    path = written(tmp_path, families.gemma(2, 4, None))
    spec = ModelSpec.from_gguf(path)
    assert spec.sliding_window == 4096
    check_kv(spec, memory_of(path, CELLS).kv)


def test_gemma_3_frees_every_sixth(tmp_path: Path) -> None:
    path = written(tmp_path, families.gemma(3, 8, 1024))
    check_kv(ModelSpec.from_gguf(path), memory_of(path, CELLS).kv)


@pytest.mark.parametrize("pattern", [None, [False, True, True, False, True]])
def test_cohere_2_frees_every_fourth_or_what_the_file_says(
    tmp_path: Path, pattern: list[bool] | None
) -> None:
    path = written(tmp_path, families.cohere2(5, 1024, pattern))
    check_kv(ModelSpec.from_gguf(path), memory_of(path, CELLS).kv)


def test_gpt_oss_alternates(tmp_path: Path) -> None:
    path = written(tmp_path, families.gpt_oss())
    check_kv(ModelSpec.from_gguf(path), memory_of(path, CELLS).kv)


@pytest.mark.parametrize("packed", [True, False])
def test_mla_keeps_one_vector_or_all_heads(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path, families.deepseek2(packed=packed))
    memory = memory_of(path, CELLS)
    check_kv(ModelSpec.from_gguf(path), memory.kv)
    assert (memory.kv[0].second == "0.00") == packed


def check_state(spec: ModelSpec, state: list[Cache]) -> None:
    (cache,) = state
    assert spec.state_values is not None
    convolution, recurrent = (4 * values * cache.cells for values in spec.state_values)
    assert (cache.first, cache.second) == (mib(convolution), mib(recurrent))
    assert cache.size == mib((spec.state_bytes() or 0) * cache.cells)


def test_mamba_keeps_state_alone(tmp_path: Path) -> None:
    path = written(tmp_path, families.mamba())
    memory = memory_of(path, CELLS, sequences=SEQUENCES)
    assert not memory.kv
    check_state(ModelSpec.from_gguf(path), memory.state)


def test_jamba_keeps_kv_in_the_layers_that_attend(tmp_path: Path) -> None:
    path = written(tmp_path, families.jamba([False, True, False, False]))
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS, sequences=SEQUENCES)
    check_state(spec, memory.state)
    check_kv(spec, memory.kv)


def test_falcon_h1_keeps_both_in_every_layer(tmp_path: Path) -> None:
    path = written(tmp_path, families.falcon_h1())
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS, sequences=SEQUENCES)
    check_state(spec, memory.state)
    check_kv(spec, memory.kv)


def test_lfm2_keeps_short_convolutions(tmp_path: Path) -> None:
    path = written(tmp_path, families.lfm2([False, True, False]))
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS, sequences=SEQUENCES)
    check_state(spec, memory.state)
    check_kv(spec, memory.kv)


@pytest.mark.parametrize("interval", [None, 2])
def test_qwen3_next_attends_in_every_fourth_layer_or_as_the_file_says(
    tmp_path: Path, interval: int | None
) -> None:
    path = written(tmp_path, families.qwen3next(interval=interval))
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS, sequences=SEQUENCES)
    check_state(spec, memory.state)
    check_kv(spec, memory.kv)


def test_gemma_3n_keeps_shared_kv_once(tmp_path: Path) -> None:
    path = written(tmp_path, families.gemma3n())
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS)
    # Layers 4, 9, 14 and 19 of the 20 that keep KV of their own are free of the window.
    assert [cache.layers for cache in memory.kv] == [4, 16]
    (free, held), token = memory.kv, 2 * (16 + 16) * 2
    assert free.size == mib(4 * free.cells * token)
    assert held.size == mib(16 * held.cells * token)
    assert spec.kv_bytes(CELLS) == (4 * CELLS + 16 * 1024) * token


def test_llama_4_has_its_chunks_in_three_of_four_layers(tmp_path: Path) -> None:
    path = written(tmp_path, families.llama4())
    spec = ModelSpec.from_gguf(path)
    memory = memory_of(path, CELLS)
    assert [cache.layers for cache in memory.kv] == [1, 4]
    assert (spec.sliding_window, spec.window_chunked) == (8192, True)
    assert spec.sliding_layers == (True, True, True, False, True)
