"""The adapter of ONNX Runtime GenAI, on a graph of one layer that is made here.

Its next token is looked up in a table by the last one, and its layer keeps keys and values.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.engines import onnxruntime_genai as adapter
from decodewatch.agent.wrapper.link import Link

pytest.importorskip("onnx")
genai = pytest.importorskip("onnxruntime_genai")

VOCABULARY, HEADS, SIZE = 32, 2, 4
LIMIT = 20
END = 2


def make(folder: Path) -> Path:
    """A model: token n is followed by n + 1, and the last one by the end."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = np.zeros((VOCABULARY, VOCABULARY), np.float32)
    for token in range(VOCABULARY):
        table[token, token + 1 if token + 1 < VOCABULARY else END] = 1
    weights = {
        "table": table,
        "kv": np.ones((VOCABULARY, HEADS * SIZE), np.float32),
        "shape": np.array([0, 0, HEADS, SIZE], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
        helper.make_node("Gather", ["kv", "input_ids"], ["fresh"]),
        helper.make_node("Reshape", ["fresh", "shape"], ["split"]),
        helper.make_node("Transpose", ["split"], ["turned"], perm=[0, 2, 1, 3]),
    ]

    def value(name: str, kind: int, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    ids, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [value("input_ids", ids, ["b", "s"]), value("attention_mask", ids, ["b", "t"])]
    outputs = [value("logits", real, ["b", "s", VOCABULARY])]
    for one in ("key", "value"):
        past, present = f"past_key_values.0.{one}", f"present.0.{one}"
        inputs.append(value(past, real, ["b", HEADS, "p", SIZE]))
        outputs.append(value(present, real, ["b", HEADS, "t", SIZE]))
        nodes.append(helper.make_node("Concat", [past, "turned"], [present], axis=2))
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "successor", inputs, outputs, held)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=8), str(folder / "model.onnx")
    )
    decoder = {
        "filename": "model.onnx",
        "head_size": SIZE,
        "hidden_size": HEADS * SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 1,
        "session_options": {"provider_options": []},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    config = {
        "model": {
            "type": "llama",
            "vocab_size": VOCABULARY,
            "context_length": 64,
            "bos_token_id": 1,
            "eos_token_id": END,
            "pad_token_id": 0,
            "decoder": decoder,
        },
        "search": {"max_length": LIMIT, "past_present_share_buffer": False, "do_sample": False},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("successor"))


@pytest.fixture
def generator(folder: Path) -> Any:
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=LIMIT)
    return genai.Generator(model, parameters)


@pytest.fixture
def heard(folder: Path, link: Link, listening: Callable[[DecodeMonitor], Any]) -> Any:
    return listening(adapter.monitor("chat", folder, kv_type="f32", link=link))


def test_every_token_to_the_end_is_a_step(generator: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        found = list(adapter.tokens(generator, turn, [5, 6, 27]))
    assert found == [28, 29, 30, 31, END]
    record = heard.turn()
    assert (record["prompt_tokens"], record["cached_tokens"]) == (3, 0)
    assert (record["output_tokens"], record["steps"], record["ending"]) == (5, 5, "complete")
    assert heard.events("context_limit") == []


def test_time_to_the_first_token_holds_the_prefill(generator: Any, heard: Any) -> None:
    import time

    class Slow:
        """The same generator, with a prompt that takes its time."""

        def __getattr__(self, name: str) -> Any:
            return getattr(generator, name)

        def append_tokens(self, ids: Any) -> None:
            time.sleep(0.08)
            generator.append_tokens(ids)

    with heard.monitor.turn() as turn:
        list(adapter.tokens(Slow(), turn, [29]))
    record = heard.turn()
    assert record["ttft_us"] >= 80_000 > record["decode_us"]


def test_what_is_left_after_a_rewind_is_cached(generator: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        list(adapter.tokens(generator, turn, [3, 4, 29]))
    generator.rewind_to(2)
    with heard.monitor.turn() as turn:
        assert list(adapter.tokens(generator, turn, [30])) == [31, END]
    record = heard.turns()[1]
    assert (record["prompt_tokens"], record["cached_tokens"]) == (3, 2)


def test_a_loop_that_is_left_is_cancelled_and_the_generator_can_go_on(
    generator: Any, heard: Any
) -> None:
    with heard.monitor.turn() as turn:
        for token in adapter.tokens(generator, turn, [3]):
            if token == 6:
                break
    record = heard.turn()
    assert (record["ending"], record["output_tokens"]) == ("cancelled", 3)
    assert generator.token_count() == 4 and not generator.is_done()


def test_a_full_context_cuts_the_answer_off(generator: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        assert len(list(adapter.tokens(generator, turn, [3, 4, 5]))) == LIMIT - 3
    assert heard.turn()["ending"] == "complete"
    assert heard.events("context_limit") == [
        {"policy": "truncate", "depth": LIMIT, "limit": LIMIT, "times": 1}
    ]


def test_a_prompt_that_does_not_fit_is_refused(generator: Any, heard: Any) -> None:
    with pytest.raises(RuntimeError), heard.monitor.turn() as turn:
        list(adapter.tokens(generator, turn, [3] * (LIMIT + 5)))
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "RuntimeError")
    assert record["output_tokens"] == 0 and "ttft_us" not in record
    assert heard.events("context_limit") == [
        {"policy": "refuse", "depth": LIMIT + 5, "limit": LIMIT, "times": 1}
    ]


def test_the_spec_is_that_of_the_configuration(folder: Path) -> None:
    spec = adapter.spec(folder, kv_type="f32")
    assert spec is not None
    assert (spec.layers, spec.kv_heads, spec.head_dim_k) == (1, HEADS, SIZE)
    assert spec.kv_bytes_per_token() == 2 * HEADS * SIZE * 4
    assert (spec.context_limit, spec.context_trained) == (LIMIT, 64)
    assert spec.allocation == "growing" and spec.weight_bytes_per_token is None
    assert spec.weight_bytes_total == (folder / "model.onnx").stat().st_size
    longer = adapter.spec(folder, max_length=40)
    assert longer is not None and longer.context_limit == 40


def test_one_slow_token_at_a_boundary_is_one_gap_and_no_more(told: Any) -> None:
    """As a cache that is allocated anew makes it (the engine's own is too quick here)."""
    gaps = [900] * 99 + [11_300] + [900] * 99
    with told.monitor.turn(prompt_tokens=4000) as turn:
        at = turn._course.accepted_ns + 1_000
        turn.step_at(at)
        for gap in gaps:
            at += gap * 1_000
            turn.step_at(at)
        import time

        # A step must lie in the past when its turn ends.
        time.sleep(max(0.0, (at - time.monotonic_ns()) / 1e9) + 0.01)
    steps = told.steps()
    assert [gap for gap, _ in steps[1:]] == gaps
    assert [place for place, (gap, _) in enumerate(steps) if gap and gap > 2_000] == [100]
    from decodewatch.shared.sketch import Sketch

    whole = Sketch()
    for _, sketch in told.turn()["itl"]:
        whole.merge(Sketch.from_json(sketch))
    assert whole.quantile(0.5) == pytest.approx(900, rel=0.011)
    assert told.events("context_limit") == []
