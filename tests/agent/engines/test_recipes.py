"""The recipes of docs/engines.md, run as they stand there on engines with the same interface."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/engines.md"


def recipe(name: str) -> Any:
    """The functions of a recipe."""
    (code,) = re.findall(rf"```python\n# recipe: {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), found)
    return SimpleNamespace(**found)


def chunk(text: str | None, usage: Any = None) -> Any:
    choices = [] if text is None else [SimpleNamespace(delta=SimpleNamespace(content=text))]
    return SimpleNamespace(choices=choices, usage=usage)


def test_mlc_is_counted_by_its_usage_with_the_cache_apart(told: Any) -> None:
    class Engine:
        def __init__(self) -> None:
            self.chat = SimpleNamespace(completions=self)

        def create(self, **request: Any) -> Iterator[Any]:
            assert request["stream"] and request["stream_options"] == {"include_usage": True}
            yield chunk("")  # the role
            yield chunk("A")
            yield chunk("BC")
            extra = {"prefill_tokens": 3, "inter_token_latency_s": 9.0}
            usage = SimpleNamespace(prompt_tokens=10, completion_tokens=3, extra=extra)
            yield chunk(None, usage)

    session = told.monitor.session("u")
    shown = list(recipe("mlc").answer(Engine(), session, []))
    assert "".join(shown) == "ABC"
    record = told.turn()
    assert (record["prompt_tokens"], record["cached_tokens"]) == (10, 7)
    assert (record["output_tokens"], record["token_source"], record["steps"]) == (3, "reported", 2)
    assert record["ending"] == "complete"


class Runner:
    """ExecuTorch's, whose echo is on unless it is switched off, and whose clock is coarse."""

    def generate(
        self, prompt: str, config: Any, token_callback: Any = None, stats_callback: Any = None
    ) -> None:
        if config.echo:
            token_callback(prompt)
        for piece in ("A", "B", "<eos>"):
            token_callback(piece)
        # The first token is not in its count, and 0 ms make its rates infinite.
        stats_callback(
            SimpleNamespace(
                num_prompt_tokens=5, num_generated_tokens=2, prompt_eval_end_ms=7, first_token_ms=7
            )
        )


def test_executorch_counts_its_first_and_its_last_token_and_not_the_prompt(told: Any) -> None:
    shown: list[str] = []
    session = told.monitor.session("u")
    config = SimpleNamespace(echo=True)
    recipe("executorch").answer(Runner(), session, "prompt", config, shown.append)
    assert shown == ["A", "B", "<eos>"]
    record = told.turn()
    assert (record["output_tokens"], record["prompt_tokens"]) == (3, 5)
    assert (record["steps"], record["token_source"]) == (3, "counted")
    assert record["ending"] == "complete"


class Conversation:
    """LiteRT-LM's: partial texts, and an engine that goes on until it is cancelled."""

    def __init__(self, counts: Any = None) -> None:
        self.cancelled = False
        self._counts = counts

    def send_message_async(self, message: str) -> Iterator[str]:
        yield from ("Hel", "lo wor", "ld")

    def cancel_process(self) -> None:
        self.cancelled = True

    def get_benchmark_info(self) -> Any:
        if self._counts is None:
            raise RuntimeError("benchmark is not enabled")
        return self._counts


def test_litert_texts_are_chunks_whose_tokens_are_an_estimate(told: Any) -> None:
    session = told.monitor.session("u")
    recipe("litert-lm").answer(None, Conversation(), session, "hi", lambda text: True)
    record = told.turn()
    assert (record["steps"], record["token_source"], record["ending"]) == (
        3,
        "estimated",
        "complete",
    )


def test_litert_with_its_benchmark_says_its_tokens(told: Any) -> None:
    counts = SimpleNamespace(last_prefill_token_count=11, last_decode_token_count=4)
    session = told.monitor.session("u")
    recipe("litert-lm").answer(None, Conversation(counts), session, "hi", lambda text: True)
    record = told.turn()
    assert (record["prompt_tokens"], record["output_tokens"]) == (11, 4)
    assert record["token_source"] == "reported"


def test_litert_that_is_left_early_is_cancelled_in_the_engine_too(told: Any) -> None:
    conversation = Conversation()
    session = told.monitor.session("u")
    recipe("litert-lm").answer(None, conversation, session, "hi", lambda text: False)
    assert conversation.cancelled
    record = told.turn()
    assert (record["steps"], record["ending"]) == (1, "cancelled")


@pytest.mark.parametrize("policy", ["refuse", "truncate", "shift", "summarise"])
def test_what_became_of_a_full_context_is_told(told: Any, policy: str) -> None:
    with told.monitor.turn(prompt_tokens=90) as turn:
        for depth in (100, 110):
            turn.overflow(policy, depth=depth, limit=100)
    assert told.events("context_limit") == [
        {"policy": policy, "depth": 110, "limit": 100, "times": 2}
    ]


def test_a_policy_that_is_none_is_left_out_and_never_raises(told: Any) -> None:
    with told.monitor.turn() as turn:
        turn.overflow("explode", depth=1)
        turn.kv_cache(-5)
        turn.kv_cache(5, allocation="somehow", tokens=-1)
    assert told.events("context_limit") == []
    assert told.events("kv_cache") == [{"bytes": 5}]
