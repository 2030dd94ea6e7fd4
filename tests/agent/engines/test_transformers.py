"""The adapter of Transformers, on a random Llama of a few kilobytes that is made here."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.waiting import until

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.wrapper.link import Link

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    StaticCache,
)

from decodewatch.agent.engines import transformers as adapter

PROMPT = 6
LAYERS, KV_HEADS, HEAD = 2, 2, 8


def config(**changes: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        **changes,
    )


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    return LlamaForCausalLM(config()).eval()


@pytest.fixture
def heard(model: Any, link: Link, listening: Callable[[DecodeMonitor], Any]) -> Any:
    return listening(adapter.monitor("chat", model, link=link))


def ids(length: int = PROMPT) -> Any:
    return torch.arange(length).reshape(1, -1)


class Ids:
    """An application's own streamer: keeps what it was shown, and a queue for another thread."""

    def __init__(self) -> None:
        self.shown: list[int] = []
        self.queue: queue.Queue[int | None] = queue.Queue()

    def put(self, value: Any) -> None:
        for one in value.flatten().tolist():
            self.shown.append(one)
            self.queue.put(one)

    def end(self) -> None:
        self.queue.put(None)


def test_a_turn_has_the_prompt_every_token_and_its_end(model: Any, heard: Any) -> None:
    shown = Ids()
    with adapter.watch(model, heard.monitor.turn()) as generation:
        output = generation.generate(ids(), max_new_tokens=9, do_sample=False, streamer=shown)
    assert output.shape == (1, PROMPT + 9) and shown.shown == output[0].tolist()
    record = heard.turn()
    assert (record["prompt_tokens"], record["cached_tokens"]) == (PROMPT, 0)
    assert (record["output_tokens"], record["steps"], record["ending"]) == (9, 9, "complete")
    assert record["token_source"] == "counted" and 0 < record["ttft_us"] < record["duration_us"]


def test_time_to_the_first_token_holds_the_prefill(model: Any, heard: Any) -> None:
    slept = threading.Event()

    def slow(module: Any, arguments: Any) -> None:
        if not slept.is_set():
            slept.set()
            threading.Event().wait(0.08)

    hook = model.register_forward_pre_hook(slow)
    try:
        with adapter.watch(model, heard.monitor.turn()) as generation:
            generation.generate(ids(), max_new_tokens=3)
    finally:
        hook.remove()
    assert heard.turn()["ttft_us"] >= 80_000


def test_cached_prompt_tokens_are_those_of_the_cache_before(model: Any, heard: Any) -> None:
    cache = DynamicCache(config=model.config)
    sequence = ids()
    for _ in range(2):
        with adapter.watch(model, heard.monitor.turn()) as generation:
            sequence = generation.generate(sequence, past_key_values=cache, max_new_tokens=7)
    first, second = heard.turns()
    assert (first["prompt_tokens"], first["cached_tokens"]) == (6, 0)
    # The last token was sampled and never evaluated.
    assert (second["prompt_tokens"], second["cached_tokens"]) == (13, 12)
    kv = heard.events("kv_cache")
    assert [event["tokens"] for event in kv] == [12, 19]
    assert [event["stale_tokens"] for event in kv] == [0, 0]
    token = 2 * LAYERS * KV_HEADS * HEAD * 4
    assert [event["bytes"] for event in kv] == [12 * token, 19 * token]
    assert {event["allocation"] for event in kv} == {"growing"}
    assert heard.monitor.model.kv_bytes(19) == 19 * token


def test_a_cache_that_holds_more_than_its_prompts_is_told(heard: Any) -> None:
    class Accumulating:
        """An engine around Transformers that feeds every prompt into one cache for ever."""

        def generate(self, prompt: Any, streamer: Any, past_key_values: Any) -> None:
            streamer.put(prompt)
            for _ in range(7):
                streamer.put(torch.zeros(1, dtype=torch.long))
            grow(past_key_values, 13)
            streamer.end()

    def grow(cache: Any, tokens: int) -> None:
        for layer in range(LAYERS):
            one = torch.zeros(1, KV_HEADS, tokens, HEAD)
            cache.update(one, one, layer)

    cache = DynamicCache()
    grow(cache, 6)
    for _ in range(3):
        with adapter.watch(Accumulating(), heard.monitor.turn()) as generation:
            generation.generate(ids(6), past_key_values=cache)
    kv = heard.events("kv_cache")
    assert [event["tokens"] for event in kv] == [19, 32, 45]
    assert [event["stale_tokens"] for event in kv] == [0, 13, 26]


def test_growing_by_copies_has_a_peak_above_what_is_held() -> None:
    cache = DynamicCache()
    for layer in range(2):
        one = torch.zeros(1, 8, 100, 64, dtype=torch.float16)
        cache.update(one, one.clone(), layer)
    held = adapter.held(cache)
    assert held.bytes == 409_600
    assert held.peak_bytes is not None and 512_000 <= held.peak_bytes <= 819_200


def test_a_cache_of_a_fixed_size_is_all_there_at_once(model: Any, heard: Any) -> None:
    cache = StaticCache(config=model.config, max_cache_len=32)
    with adapter.watch(model, heard.monitor.turn()) as generation:
        generation.generate(ids(), past_key_values=cache, max_new_tokens=3)
    (kv,) = heard.events("kv_cache")
    assert kv == {
        "allocation": "at_once",
        "bytes": 32 * 2 * LAYERS * KV_HEADS * HEAD * 4,
        "stale_tokens": 0,
    }


def test_a_cache_that_is_full_refuses_and_the_turn_says_so(model: Any, heard: Any) -> None:
    cache = StaticCache(config=model.config, max_cache_len=16)
    with (
        pytest.raises(IndexError),
        adapter.watch(model, heard.monitor.turn()) as generation,
    ):
        generation.generate(ids(), past_key_values=cache, max_new_tokens=30)
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "IndexError")
    assert (
        record["output_tokens"] == 11
    )  # 16 places: 6 of the prompt, and the last one's is missing
    assert heard.events("context_limit") == [
        {"policy": "refuse", "depth": 17, "limit": 16, "times": 1}
    ]


def test_the_bytes_of_a_cache_are_known_without_a_look_at_its_device(model: Any) -> None:
    cache = StaticCache(config=model.config, max_cache_len=16)
    one = torch.zeros(1, KV_HEADS, 3, HEAD)
    cache.update(one, one, 0)

    class Unreadable(torch.Tensor):  # type: ignore[misc]  # Any, where it is not installed
        """As a tensor of a GPU that must not be waited for."""

        def __int__(self) -> int:
            raise AssertionError("read")

        item = tolist = __bool__ = __int__

    layer = cache.layers[0]
    for name in ("keys", "values", "cumulative_length"):
        setattr(layer, name, getattr(layer, name).as_subclass(Unreadable))
    assert adapter.held(cache) == (2 * KV_HEADS * 16 * HEAD * 4, KV_HEADS * 16 * HEAD * 4, 16)


def test_an_assisted_step_of_several_ids_is_one_step(model: Any, heard: Any) -> None:
    sizes = []

    class Shapes(Ids):
        def put(self, value: Any) -> None:
            sizes.append(tuple(value.shape))
            super().put(value)

    with adapter.watch(model, heard.monitor.turn()) as generation:
        # The model assists itself: all it drafts is accepted.
        generation.generate(
            ids(), assistant_model=model, max_new_tokens=12, do_sample=False, streamer=Shapes()
        )
    steps = [shape[1] for shape in sizes[1:]]
    assert max(steps) > 1
    record = heard.turn()
    assert (record["output_tokens"], record["steps"]) == (12, len(steps))
    assert record["first_tokens"] == steps[0]
    assert record["shared_tokens"] == sum(size for size in steps[1:] if size > 1)
    assert [tokens for _, tokens in heard.steps()] == steps


def test_an_exception_of_the_engine_passes_and_only_its_class_is_told(
    model: Any, heard: Any
) -> None:
    def fail(input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] >= PROMPT + 2:
            raise MemoryError("secret text of the prompt")
        return scores

    with (
        pytest.raises(MemoryError),
        adapter.watch(model, heard.monitor.turn()) as generation,
    ):
        generation.generate(ids(), max_new_tokens=9, logits_processor=[fail])
    record = heard.turn()
    assert (record["ending"], record["error"], record["output_tokens"]) == (
        "error",
        "MemoryError",
        2,
    )
    assert "secret" not in str(heard.inbox.messages)


class InThread:
    """`generate` in a thread of its own, as applications with an iterator streamer have it."""

    def __init__(self, generation: Any, **options: Any) -> None:
        self.error: BaseException | None = None
        self.output: Any = None
        self._work = (generation, options)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        generation, options = self._work
        try:
            self.output = generation.generate(ids(), **options)
        except BaseException as error:
            self.error = error


def follow(shown: Ids, timeout: float, count: int | None = None) -> None:
    """What a loop over an iterator streamer does."""
    seen = 0
    while (one := shown.queue.get(timeout=timeout)) is not None:
        seen += one is not None
        if count is not None and seen >= PROMPT + count:
            return


def test_a_loop_that_is_left_ends_generate_in_its_thread(model: Any, heard: Any) -> None:
    shown = Ids()
    with adapter.watch(model, heard.monitor.turn()) as generation:
        running = InThread(generation, max_new_tokens=100, streamer=shown, do_sample=False)
        follow(shown, timeout=30, count=3)
    until(lambda: not running.thread.is_alive(), 30)
    assert running.error is None
    assert running.output.shape[1] < PROMPT + 100
    record = heard.turn()
    assert record["ending"] == "cancelled" and record["output_tokens"] >= 3


def test_cancel_ends_generate_after_a_step(model: Any, heard: Any) -> None:
    shown = Ids()
    with adapter.watch(model, heard.monitor.turn()) as generation:
        running = InThread(generation, max_new_tokens=100, streamer=shown, do_sample=False)
        follow(shown, timeout=30, count=2)
        generation.cancel()
        follow(shown, timeout=30)  # the streamer is ended, so this loop ends too
    until(lambda: not running.thread.is_alive(), 30)
    assert heard.turn()["ending"] == "cancelled"


def test_a_streamer_that_comes_to_no_end_is_truncated_after_its_timeout(
    model: Any, heard: Any
) -> None:
    shown, goes_on = Ids(), threading.Event()

    def hang(input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] >= PROMPT + 2:
            goes_on.wait(30)
        return scores

    with (
        pytest.raises(queue.Empty),
        adapter.watch(model, heard.monitor.turn()) as generation,
    ):
        running = InThread(generation, max_new_tokens=9, streamer=shown, logits_processor=[hang])
        follow(shown, timeout=30, count=2)
        follow(shown, timeout=0.2)
    record = heard.turn()
    assert (record["ending"], record["output_tokens"]) == ("truncated", 2)
    goes_on.set()
    until(lambda: not running.thread.is_alive(), 30)


def test_an_exception_in_the_thread_is_the_end_that_its_reader_sees(model: Any, heard: Any) -> None:
    shown = Ids()

    def fail(input_ids: Any, scores: Any) -> Any:
        raise OverflowError

    with (
        pytest.raises(queue.Empty),
        adapter.watch(model, heard.monitor.turn()) as generation,
    ):
        running = InThread(generation, max_new_tokens=9, streamer=shown, logits_processor=[fail])
        until(lambda: not running.thread.is_alive(), 30)
        follow(shown, timeout=0.1)
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "OverflowError")


def test_without_a_thread_no_criterion_is_added(model: Any, heard: Any) -> None:
    given: dict[str, Any] = {}

    class Engine:
        def generate(self, **options: Any) -> None:
            given.update(options)
            options["streamer"].end()

    with adapter.watch(Engine(), heard.monitor.turn()) as generation:
        generation.generate()
    assert list(given) == ["streamer"]


def test_a_reference_to_the_cache_does_not_stay(model: Any, heard: Any) -> None:
    import gc
    import weakref

    cache = DynamicCache(config=model.config)
    gone = weakref.ref(cache)
    with adapter.watch(model, heard.monitor.turn()) as generation:
        generation.generate(ids(), past_key_values=cache, max_new_tokens=2)
        del cache
        gc.collect()
        assert gone() is None


def test_the_spec_has_the_bytes_of_the_parameters(model: Any) -> None:
    spec = adapter.spec(model)
    assert spec is not None
    total = sum(one.numel() * 4 for one in model.parameters())
    assert spec.weight_bytes_total == total
    assert spec.weight_bytes_per_token == total - 64 * 32 * 4  # the input embedding is looked up
    assert spec.kv_bytes_per_token() == 2 * LAYERS * KV_HEADS * HEAD * 4
    assert (spec.allocation, spec.tied_embeddings, spec.context_trained) == ("growing", False, 128)


def test_a_tied_embedding_is_read_whole() -> None:
    made = LlamaForCausalLM(config(tie_word_embeddings=True))
    spec = adapter.spec(made)
    assert spec is not None and spec.tied_embeddings
    assert spec.weight_bytes_per_token == spec.weight_bytes_total


def test_experts_count_by_how_many_run() -> None:
    made = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=1,
        )
    )
    spec = adapter.spec(made)
    assert spec is not None and spec.experts is not None
    every = 2 * 4 * 3 * 32 * 48 * 4
    assert spec.experts.bytes == every
    assert spec.weight_bytes_total is not None and spec.weight_bytes_per_token is not None
    assert spec.weight_bytes_total - spec.weight_bytes_per_token == every * 3 // 4 + 64 * 32 * 4


def test_a_model_that_is_not_understood_has_no_spec() -> None:
    assert adapter.spec(object()) is None
