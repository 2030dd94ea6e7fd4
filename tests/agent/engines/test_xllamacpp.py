"""The adapter of xllamacpp, on the model of the demo."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.demo_model import demo_model

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.engines import xllamacpp as adapter
from decodewatch.agent.wrapper.link import Link

xllamacpp = pytest.importorskip("xllamacpp")

CONTEXT = 256
SLOTS = 2
QUESTION = {
    "messages": [{"role": "user", "content": "Count the stars of the night sky."}],
    "ignore_eos": True,
}


def parameters(**changes: Any) -> Any:
    made = xllamacpp.CommonParams()
    made.model.path = str(demo_model())
    made.n_ctx = CONTEXT * SLOTS
    made.n_parallel = SLOTS
    made.n_gpu_layers = 0
    made.cpuparams.n_threads = 1
    made.cache_ram_mib = 0
    made.verbosity = -1
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    yield xllamacpp.Server(parameters())


@pytest.fixture
def heard(link: Link, listening: Callable[[DecodeMonitor], Any]) -> Any:
    return listening(adapter.monitor("chat", parameters(), link=link))


class Chunks:
    """An application's callback: keeps the chunks, and may want no more of them."""

    def __init__(self, enough: int | None = None) -> None:
        self.kept: list[Any] = []
        self._enough = enough

    def __call__(self, chunk: Any) -> bool:
        self.kept.append(chunk)
        return self._enough is not None and len(self.kept) >= self._enough

    @property
    def timings(self) -> dict[str, Any]:
        read = [json.loads(one) if isinstance(one, str) else one for one in self.kept]
        found: dict[str, Any] = [one["timings"] for one in read if "timings" in one][-1]
        return found


def test_a_streamed_answer_agrees_with_the_server(server: Any, heard: Any) -> None:
    shown = Chunks()
    with heard.monitor.turn() as turn:
        request = {**QUESTION, "stream": True, "max_tokens": 12, "temperature": 0}
        adapter.handle(turn, server.handle_chat_completions, request, shown)
    assert "timings_per_token" not in request
    record, timings = heard.turn(), shown.timings
    assert record["ending"] == "complete"
    assert record["output_tokens"] == timings["predicted_n"] == 12
    assert record["prompt_tokens"] == timings["prompt_n"] + timings["cache_n"]
    assert record["cached_tokens"] == timings["cache_n"]
    assert sum(tokens for _, tokens in heard.steps()) == 12
    # The server's prompt time ends where the prompt is read; the first token comes a little later.
    assert record["ttft_us"] / 1000 >= timings["prompt_ms"] * 0.95
    assert record["decode_us"] / 1000 == pytest.approx(timings["predicted_ms"], rel=0.25, abs=15)


def test_what_the_cache_had_is_counted_apart(server: Any, heard: Any) -> None:
    for _ in range(2):
        with heard.monitor.turn() as turn:
            request = {
                "prompt": "One two three four five six seven",
                "stream": True,
                "max_tokens": 2,
                "id_slot": 1,
            }
            adapter.handle(turn, server.handle_completions, request, Chunks())
    first, second = heard.turns()
    assert first["prompt_tokens"] == second["prompt_tokens"]
    # The last token of a prompt is always read anew.
    assert second["cached_tokens"] == second["prompt_tokens"] - 1 > first["cached_tokens"]


def test_a_callback_that_wants_no_more_cancels(server: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        request = {**QUESTION, "stream": True, "max_tokens": 100}
        adapter.handle(turn, server.handle_chat_completions, request, Chunks(enough=4))
    record = heard.turn()
    assert record["ending"] == "cancelled"
    assert record["output_tokens"] == 3  # the first chunk is the role


def test_a_callback_that_raises_fails_its_turn_without_its_text(server: Any, heard: Any) -> None:
    def fail(chunk: Any) -> bool:
        raise LookupError("secret text of the answer")

    with heard.monitor.turn() as turn:
        request = {**QUESTION, "stream": True, "max_tokens": 5}
        adapter.handle(turn, server.handle_chat_completions, request, fail)
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "LookupError")
    assert "secret" not in json.dumps(heard.inbox.messages)


def test_a_prompt_that_does_not_fit_is_refused_with_its_numbers(server: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        request = {"prompt": "word " * 400, "stream": True, "max_tokens": 5}
        adapter.handle(turn, server.handle_completions, request, Chunks())
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "exceed_context_size_error")
    assert record["output_tokens"] == 0 and "ttft_us" not in record
    assert heard.events("context_limit") == [
        {"policy": "refuse", "depth": record["prompt_tokens"], "limit": CONTEXT, "times": 1}
    ]
    assert record["prompt_tokens"] > CONTEXT


def test_an_answer_that_grows_out_of_the_context_is_cut_off(server: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        request = {
            "prompt": "word " * 240,
            "stream": True,
            "max_tokens": 100,
            "ignore_eos": True,
        }
        adapter.handle(turn, server.handle_completions, request, Chunks())
    record = heard.turn()
    assert record["prompt_tokens"] + record["output_tokens"] == CONTEXT
    assert heard.events("context_limit") == [
        {"policy": "truncate", "depth": CONTEXT, "limit": CONTEXT, "times": 1}
    ]


@pytest.mark.slow
def test_a_server_that_shifts_its_context_says_so(
    link: Link, listening: Callable[[DecodeMonitor], Any]
) -> None:
    shifting = parameters(ctx_shift=True)
    heard = listening(adapter.monitor("chat", shifting, link=link))
    with heard.monitor.turn() as turn:
        request = {
            "prompt": "word " * 240,
            "stream": True,
            "max_tokens": 40,
            "ignore_eos": True,
        }
        adapter.handle(turn, xllamacpp.Server(shifting).handle_completions, request, Chunks())
    record = heard.turn()
    (event,) = heard.events("context_limit")
    assert record["output_tokens"] == 40
    assert (event["policy"], event["limit"]) == ("shift", CONTEXT)
    assert event["depth"] == record["prompt_tokens"] + 40 > CONTEXT
    assert heard.monitor.model.overflow == "shift"


def test_an_answer_at_once_has_counts_and_no_steps(server: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn:
        request = {**QUESTION, "max_tokens": 5}
        adapter.handle(turn, server.handle_chat_completions, request, Chunks())
    record = heard.turn()
    assert (record["output_tokens"], record["token_source"]) == (5, "reported")
    assert (record["steps"], record["ending"]) == (0, "complete")
    assert "ttft_us" not in record and "decode_us" not in record


def test_a_request_as_text_is_measured_too(server: Any, heard: Any) -> None:
    shown = Chunks()
    with heard.monitor.turn() as turn:
        request = json.dumps({**QUESTION, "stream": True, "max_tokens": 4})
        adapter.handle(turn, server.handle_chat_completions, request, shown)
    assert heard.turn()["output_tokens"] == shown.timings["predicted_n"] == 4


def test_chunks_are_counted_by_the_tokens_that_the_server_says(told: Any) -> None:
    """Text of several tokens in one chunk, and an end that only the count shows."""

    def chunk(count: int, **more: Any) -> dict[str, Any]:
        timings = {"cache_n": 2, "prompt_n": 3, "predicted_n": count}
        return {"choices": [{"finish_reason": None}], "timings": timings, **more}

    def serve(request: Any, on_chunk: Callable[[Any], Any]) -> None:
        on_chunk({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for count in (1, 4, 5):
            on_chunk(chunk(count))
        # The end-of-text token: decoded, and no text of it.
        on_chunk(chunk(6, choices=[{"finish_reason": "stop"}]))
        on_chunk(chunk(6, choices=[]))

    shown = Chunks()
    with told.monitor.turn() as turn:
        adapter.handle(turn, serve, {"stream": True}, shown)
    record = told.turn()
    assert len(shown.kept) == 6
    assert [tokens for _, tokens in told.steps()] == [1, 3, 1, 1]
    assert (record["output_tokens"], record["prompt_tokens"], record["cached_tokens"]) == (6, 5, 2)


def test_chunks_that_nobody_understands_pass(told: Any) -> None:
    odd: list[Any] = [None, [], "text", {"choices": 3}, {"timings": {}}, {"error": "no object"}]

    def serve(request: Any, on_chunk: Callable[[Any], Any]) -> None:
        for chunk in odd:
            on_chunk(chunk)

    shown = Chunks()
    with told.monitor.turn() as turn:
        adapter.handle(turn, serve, {"stream": True}, shown)
    assert shown.kept == odd
    assert told.turn()["output_tokens"] == 0


def test_a_method_that_raises_fails_its_turn(told: Any) -> None:
    def serve(request: Any, on_chunk: Callable[[Any], Any]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError), told.monitor.turn() as turn:
        adapter.handle(turn, serve, {"stream": True}, Chunks())
    assert told.turn()["error"] == "ConnectionError"


def test_the_spec_is_of_one_slot() -> None:
    spec = adapter.spec(parameters())
    assert spec is not None
    assert (spec.context_limit, spec.allocation, spec.overflow) == (CONTEXT, "at_once", "truncate")
    assert spec.kv_types == ("f16", "f16")
    quantised = parameters(cache_type_k=xllamacpp.ggml_type.GGML_TYPE_Q8_0)
    spec = adapter.spec(quantised)
    assert spec is not None and spec.kv_types == ("q8_0", "f16")


def test_a_file_that_is_no_model_leaves_the_model_unknown(tmp_path: Any, link: Link) -> None:
    broken = parameters()
    broken.model.path = str(tmp_path / "none.gguf")
    assert adapter.monitor("chat", broken, link=link).model is None
