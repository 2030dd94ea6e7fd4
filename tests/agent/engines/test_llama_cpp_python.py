"""The adapter of llama-cpp-python, on the model of the demo."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.demo_model import demo_model

from decodewatch.agent import DecodeMonitor
from decodewatch.agent.engines import llama_cpp_python as adapter
from decodewatch.agent.wrapper.link import Link

llama_cpp = pytest.importorskip("llama_cpp")

CONTEXT = 256  # llama.cpp pads to this


@pytest.fixture(scope="module")
def loaded() -> Iterator[Any]:
    made = llama_cpp.Llama(
        str(demo_model()), n_ctx=CONTEXT, n_threads=1, n_threads_batch=1, verbose=False, seed=1
    )
    yield made
    made.close()


@pytest.fixture
def llm(loaded: Any) -> Any:
    loaded.reset()
    return loaded


@pytest.fixture
def heard(llm: Any, link: Link, listening: Callable[[DecodeMonitor], Any]) -> Any:
    return listening(adapter.monitor("chat", llm, link=link))


def numbers(count: int, first: int = 100) -> list[int]:
    """The ids of a prompt."""
    return list(range(first, first + count))


def complete(llm: Any, prompt: Any, **options: Any) -> Any:
    """A completion that goes on until somebody ends it."""
    return llm.create_completion(
        prompt, temperature=0, logit_bias={llm.token_eos(): -1000.0}, **options
    )


def test_a_streamed_completion_is_counted_by_tokens(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        for chunk in complete(llm, numbers(9), max_tokens=7, stream=True):
            last = chunk["choices"][0]["finish_reason"]
    assert last == "length"
    record = heard.turn()
    assert (record["prompt_tokens"], record["cached_tokens"]) == (9, 0)
    assert (record["output_tokens"], record["steps"], record["ending"]) == (7, 7, "complete")
    assert 0 < record["ttft_us"] < record["duration_us"]
    assert not {"generate", "create_completion", "eval"} & set(vars(llm))


def test_a_completion_at_once_is_measured_as_well(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        answer = complete(llm, numbers(9), max_tokens=5)
    record = heard.turn()
    assert record["output_tokens"] == answer["usage"]["completion_tokens"] == 5
    assert (record["ending"], record["steps"]) == ("complete", 5)


def test_a_chat_that_ends_with_its_text_counts_the_token_that_ends_it(llm: Any, heard: Any) -> None:
    messages = [{"role": "user", "content": "Say yes."}]
    ids: list[int] = []
    generate = llm.generate

    def recording(*arguments: Any, **options: Any) -> Iterator[int]:
        for token in generate(*arguments, **options):
            ids.append(token)
            yield token

    llm.generate = recording
    try:
        with heard.monitor.turn() as turn, adapter.watch(llm, turn):
            answer = llm.create_chat_completion(
                messages, max_tokens=9, logit_bias={llm.token_eos(): 1000.0}
            )
        assert llm.generate is recording  # what the application had put there
    finally:
        del llm.generate
    record = heard.turn()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert llama_cpp.llama_vocab_is_eog(llm._model.vocab, ids[-1])
    assert record["output_tokens"] == len(ids) == answer["usage"]["completion_tokens"] + 1
    assert record["ending"] == "complete"


def test_a_stop_text_completes_the_turn(llm: Any, heard: Any) -> None:
    free = complete(llm, numbers(9), max_tokens=12)["choices"][0]["text"]
    llm.reset()
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        answer = complete(llm, numbers(9), max_tokens=12, stop=[free[4:7]])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert heard.turn()["ending"] == "complete"


def test_a_loop_that_is_left_early_is_cancelled_with_the_tokens_so_far(
    llm: Any, heard: Any
) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        for seen, _ in enumerate(complete(llm, numbers(9), max_tokens=40, stream=True)):
            if seen == 2:
                break
    record = heard.turn()
    assert record["ending"] == "cancelled" and 3 <= record["output_tokens"] < 40


def test_a_stream_that_is_closed_is_cancelled(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        chunks = complete(llm, numbers(9), max_tokens=40, stream=True)
        next(chunks)
        chunks.close()
    assert heard.turn()["ending"] == "cancelled"


def test_a_loop_that_is_left_at_the_last_chunk_is_complete(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        for chunk in complete(llm, numbers(9), max_tokens=4, stream=True):
            if chunk["choices"][0]["finish_reason"]:
                break
    assert heard.turn()["ending"] == "complete"


def test_an_interrupt_is_cancelled_and_passes(llm: Any, heard: Any) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        heard.monitor.turn() as turn,
        adapter.watch(llm, turn),
    ):
        for _ in complete(llm, numbers(9), max_tokens=40, stream=True):
            raise KeyboardInterrupt
    record = heard.turn()
    assert record["ending"] == "cancelled" and record["output_tokens"] >= 1


def test_an_error_in_the_loop_is_the_turns_error_without_its_text(llm: Any, heard: Any) -> None:
    with pytest.raises(OSError), adapter.watch(llm, heard.monitor.turn()):
        for _ in complete(llm, numbers(9), max_tokens=40, stream=True):
            raise OSError("secret text of the answer")
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "OSError")
    assert "secret" not in str(heard.inbox.messages)


def test_a_prompt_that_goes_on_is_cached_and_one_cropped_at_its_front_is_not(
    llm: Any, heard: Any
) -> None:
    for prompt in (numbers(50), numbers(60), numbers(40, first=110)):
        with heard.monitor.turn() as turn, adapter.watch(llm, turn):
            complete(llm, prompt, max_tokens=1)
    found = [(one["prompt_tokens"], one["cached_tokens"]) for one in heard.turns()]
    assert found == [(50, 0), (60, 50), (40, 0)]


def test_time_to_the_first_token_holds_the_prefill(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        complete(llm, numbers(100), max_tokens=3)
    record = heard.turn()
    # A hundred tokens are read before the first is there, two are decoded after it.
    assert record["ttft_us"] > record["decode_us"]


def test_a_loop_over_generate_itself_is_measured(llm: Any, heard: Any) -> None:
    with adapter.watch(llm, heard.monitor.turn()) as turn:
        for _, token in zip(range(3), llm.generate(numbers(9), temp=0), strict=False):
            assert type(token) is int
    record = heard.turn()
    assert (turn.id, record["prompt_tokens"]) == (record["id"], 9)
    assert record["output_tokens"] >= 3 and record["ending"] == "cancelled"


def test_tokens_that_are_sent_into_generate_reach_it(heard: Any) -> None:
    with_logits = llama_cpp.Llama(
        str(demo_model()), n_ctx=CONTEXT, n_threads=1, verbose=False, logits_all=True
    )
    with adapter.watch(with_logits, heard.monitor.turn()):
        steps = with_logits.generate(numbers(9), temp=0)
        next(steps)
        steps.send([101, 102])
        assert with_logits.n_tokens == 9 + 1 + 2
        steps.close()
    with_logits.close()
    record = heard.turn()
    assert (record["output_tokens"], record["ending"]) == (2, "cancelled")


def test_a_prompt_that_does_not_fit_is_refused_with_its_numbers(llm: Any, heard: Any) -> None:
    with pytest.raises(ValueError), heard.monitor.turn() as turn, adapter.watch(llm, turn):
        list(complete(llm, numbers(CONTEXT + 30), max_tokens=4, stream=True))
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", "ValueError")
    assert record["output_tokens"] == 0 and "ttft_us" not in record
    assert record["prompt_tokens"] == CONTEXT + 30
    assert heard.events("context_limit") == [
        {"policy": "refuse", "depth": CONTEXT + 30, "limit": CONTEXT, "times": 1}
    ]


def test_an_answer_that_grows_out_of_the_context_is_cut_off(llm: Any, heard: Any) -> None:
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        complete(llm, numbers(CONTEXT - 8), max_tokens=100)
    record = heard.turn()
    assert (record["output_tokens"], record["ending"]) == (8, "complete")
    assert heard.events("context_limit") == [
        {"policy": "truncate", "depth": CONTEXT, "limit": CONTEXT, "times": 1}
    ]


def test_a_loop_over_generate_that_outruns_the_context_is_refused(llm: Any, heard: Any) -> None:
    with (
        pytest.raises(Exception) as raised,
        heard.monitor.turn() as turn,
        adapter.watch(llm, turn),
    ):
        for _ in llm.generate(numbers(CONTEXT - 3), temp=0):
            pass
    record = heard.turn()
    assert (record["ending"], record["error"]) == ("error", type(raised.value).__name__)
    (event,) = heard.events("context_limit")
    assert (event["policy"], event["limit"], event["depth"]) == ("refuse", CONTEXT, CONTEXT + 1)


def test_an_own_stopping_criterion_works_as_without(llm: Any, heard: Any) -> None:
    asked = []

    def after_three(ids: Any, scores: Any) -> bool:
        asked.append(len(ids))
        return len(ids) >= 9 + 3

    criteria = llama_cpp.StoppingCriteriaList([after_three])
    without = complete(llm, numbers(9), max_tokens=9, stopping_criteria=criteria)
    calls, asked = asked, []
    llm.reset()
    with heard.monitor.turn() as turn, adapter.watch(llm, turn):
        with_it = complete(llm, numbers(9), max_tokens=9, stopping_criteria=criteria)
    assert asked == calls
    assert with_it["choices"] == without["choices"]
    record = heard.turn()
    assert record["output_tokens"] == with_it["usage"]["completion_tokens"]
    assert record["ending"] == "complete"


def test_tokens_of_one_evaluation_with_a_draft_model_are_one_step(llm: Any, heard: Any) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafting = llama_cpp.Llama(
        str(demo_model()),
        n_ctx=CONTEXT,
        n_threads=1,
        verbose=False,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4),
    )
    evaluations = []
    evaluate = drafting.eval

    def counting(tokens: Any) -> Any:
        evaluations.append(len(tokens))
        return evaluate(tokens)

    drafting.eval = counting
    # What repeats is guessed from what stands before.
    prompt = numbers(4) * 8
    with heard.monitor.turn() as turn, adapter.watch(drafting, turn):
        answer = complete(drafting, prompt, max_tokens=30)
    assert drafting.eval is counting
    drafting.close()
    record = heard.turn()
    assert record["output_tokens"] == answer["usage"]["completion_tokens"] == 30
    assert record["steps"] == len(evaluations) < 30
    assert record["shared_tokens"] > 0
    assert (record["prompt_tokens"], record["ending"]) == (32, "complete")


def test_the_spec_and_the_settings_are_those_of_the_llama(llm: Any) -> None:
    spec, settings = adapter.spec(llm), adapter.settings(llm)
    assert spec is not None
    assert (spec.context_limit, spec.allocation, spec.overflow) == (CONTEXT, "at_once", "truncate")
    assert spec.kv_types == ("f16", "f16")
    assert settings["n_threads"] == 1 and settings["n_gpu_layers"] == 0
