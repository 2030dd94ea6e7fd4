"""One turn in every API that servers speak: the same meaning."""

from typing import Any

import pytest
from support.streams import DONE, Read, chat, counts, metered, ndjson, sse, usage


def completion(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}


def delta(text: str, kind: str = "text") -> dict[str, Any]:
    field = {"text": "text", "thinking": "thinking", "input_json": "partial_json"}[kind]
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": f"{kind}_delta", field: text},
    }


def native(text: str, total: int, **more: Any) -> dict[str, Any]:
    whole = {"content": text, "stop": False, "tokens_predicted": total, "tokens_evaluated": 9}
    return {**whole, **more}


def output(text: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "delta": text}


ANTHROPIC_START = {
    "type": "message_start",
    "message": {
        "type": "message",
        "content": [],
        "usage": {
            "input_tokens": 2,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 3,
            "output_tokens": 1,
        },
    },
}
OLLAMA_END = {
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 9,
    "prompt_eval_cached_count": 4,
    "prompt_eval_duration": 50_000_000,
    "eval_count": 3,
    "eval_duration": 80_000_000,
}

# A turn each: 9 tokens of prompt, 4 of them cached; 3 tokens of answer at 100, 140 and 180 ms.
TURNS: dict[str, tuple[str, list[Any], str]] = {
    "OpenAI chat": (
        "sse",
        [
            [chat(delta={"role": "assistant", "content": ""}), chat("a")],
            chat("b"),
            chat("c"),
            [
                chat(finish="stop"),
                usage(9, 3, prompt_tokens_details={"cached_tokens": 4}),
                DONE,
            ],
        ],
        "stop",
    ),
    "OpenAI completions": (
        "sse",
        [
            completion("a", usage=None),
            completion("b", usage=None),
            completion("c", "length", usage=None),
            [usage(9, 3, prompt_tokens_details={"cached_tokens": 4}), DONE],
        ],
        "length",
    ),
    "OpenAI responses": (
        "sse",
        [
            [{"type": "response.created", "response": {"error": None}}, output("a")],
            output("b"),
            [output("c"), {"type": "response.output_text.done", "text": "abc"}],
            {
                "type": "response.completed",
                "response": {
                    "status": "completed",
                    "error": None,
                    "usage": {
                        "input_tokens": 9,
                        "input_tokens_details": {"cached_tokens": 4},
                        "output_tokens": 3,
                    },
                },
            },
        ],
        "stop",
    ),
    "Anthropic messages": (
        "sse",
        [
            [
                ANTHROPIC_START,
                {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
                {"type": "ping"},
                delta("a"),
            ],
            delta("b"),
            [delta("c"), {"type": "content_block_stop", "index": 0}],
            [
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"input_tokens": 2, "output_tokens": 3},
                },
                {"type": "message_stop"},
            ],
        ],
        "end_turn",
    ),
    "llama-server": (
        "sse",
        [
            native("a", 1),
            native("b", 2),
            native("c", 3),
            native(
                *("", 3),
                stop=True,
                stop_type="word",
                timings={"prompt_n": 5, "cache_n": 4, "prompt_ms": 50, "predicted_n": 3},
            ),
        ],
        "word",
    ),
    "Ollama chat": (
        "ndjson",
        [
            {"message": {"role": "assistant", "content": "a"}, "done": False},
            {"message": {"role": "assistant", "content": "b"}, "done": False},
            {"message": {"role": "assistant", "content": "c"}, "done": False},
            {"message": {"role": "assistant", "content": ""}, **OLLAMA_END},
        ],
        "stop",
    ),
    "Ollama generate": (
        "ndjson",
        [
            {"response": "a", "done": False},
            {"response": "b", "done": False},
            {"response": "c", "done": False},
            {"response": "", **OLLAMA_END},
        ],
        "stop",
    ),
    "MLC": (
        "sse",
        [
            chat("a"),
            chat("b"),
            chat("c"),
            [
                chat(finish="stop"),
                usage(9, 3, extra={"prefill_tokens": 5, "inter_token_latency_s": 9}),
                DONE,
            ],
        ],
        "stop",
    ),
}


def reads_of(framing: str, parts: list[Any]) -> list[Read]:
    make = sse if framing == "sse" else ndjson
    times = [100.0, 140.0, 180.0, 181.0]
    return [
        (t_ms, make(*(part if isinstance(part, list) else [part])))
        for t_ms, part in zip(times, parts, strict=True)
    ]


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_means_the_same_in_every_api(name: str) -> None:
    framing, parts, finish = TURNS[name]
    said = metered(reads_of(framing, parts), framing)
    assert (said["status"], said["finish"]) == ("complete", finish)
    assert (said["N"], said["chunk_tokens"]) == (3, [1, 1, 1])
    assert said["N_src"] != "chunks (estimate)"
    assert (said["prompt"], said["cached"]) == (9, 4)
    assert (said["ttft"], said["ttfo"], said["e2e"]) == (100, 100, 180)
    assert (said["tpot"], said["gaps"], said["flags"]) == (40, [40, 40], [])


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_that_breaks_off_is_truncated_in_every_api(name: str) -> None:
    framing, parts, _ = TURNS[name]
    kept = 2 if name == "OpenAI completions" else 3
    said = metered(reads_of(framing, parts)[:kept], framing)
    assert (said["status"], said["finish"], said["tpot"]) == ("truncated", None, 40)


def test_triton_has_no_sign_of_its_end_unless_it_is_asked_for_one() -> None:
    reads = [(100.0 + 40 * n, sse({"model_name": "m", "text_output": "a"})) for n in range(3)]
    said = metered(reads)
    assert (said["status"], said["N"], said["tpot"]) == ("truncated", 3, 40)
    last = (180.0, sse({"text_output": "", "triton_final_response": True}))
    assert metered([*reads, last])["status"] == "complete"
    failed = metered([*reads, (181.0, sse({"error": "no slot"}))])
    assert failed["status"] == "error"


def test_tritons_counts_are_of_each_response() -> None:
    def event(text: str, tokens: int, finish: str = "None") -> dict[str, Any]:
        own = {"num_output_tokens": tokens, "num_input_tokens": 9, "finish_reason": finish}
        return {"text_output": text, **own}

    reads = [
        (100.0, sse(event("a", 1))),
        (140.0, sse(event("bcd", 3))),
        (180.0, sse(event("e", 1, "stop"))),
    ]
    said = metered(reads)
    assert (said["N"], said["N_src"], said["chunk_tokens"]) == (5, "num_output_tokens", [1, 3, 1])
    assert (said["status"], said["finish"], said["prompt"]) == ("complete", "stop", 9)


THINKING = {
    "OpenAI chat": [chat(delta={"reasoning_content": "hm"}), chat("a")],
    "OpenAI responses": [output("hm", "reasoning_summary_text"), output("a")],
    "Anthropic messages": [delta("hm", "thinking"), delta("a")],
}


@pytest.mark.parametrize("name", THINKING)
def test_thinking_is_told_from_the_answer(name: str) -> None:
    reads = [(100.0 + 40 * n, sse(event)) for n, event in enumerate(THINKING[name])]
    said = metered(reads)
    assert (said["ttft"], said["ttfo"]) == (100, 140)


def test_ollamas_thinking_is_told_from_the_answer() -> None:
    lines = [
        {"message": {"content": "", "thinking": "hm"}, "done": False},
        {"message": {"content": "a"}, "done": False},
    ]
    said = metered([(100.0 + 40 * n, ndjson(line)) for n, line in enumerate(lines)], "ndjson")
    assert (said["ttft"], said["ttfo"]) == (100, 140)


CALLS = {
    "OpenAI chat": chat(delta={"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
    "OpenAI chat, old": chat(delta={"function_call": {"name": "f"}}),
    "OpenAI responses": {"type": "response.output_item.added", "item": {"type": "function_call"}},
    "Anthropic messages": {
        "type": "content_block_start",
        "content_block": {"type": "tool_use", "name": "f", "input": {}},
    },
    "Ollama chat": {"message": {"content": "", "tool_calls": [{}]}, "done": False},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_tool_is_output(name: str) -> None:
    framing = "ndjson" if name.startswith("Ollama") else "sse"
    content = ndjson(CALLS[name]) if framing == "ndjson" else sse(CALLS[name])
    said = metered([(200.0, content)], framing)
    assert (said["ttft"], said["ttfo"], said["N"]) == (200, 200, 1)


def test_arguments_of_a_call_are_output() -> None:
    events = [delta('{"a"', "input_json"), output("{", "function_call_arguments")]
    said = metered([(100.0 + 40 * n, sse(event)) for n, event in enumerate(events)])
    assert (said["N"], said["gaps"]) == (2, [40])


RESPONSE_ENDS = [
    ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "complete"),
    ("incomplete", {}, "complete"),
    ("failed", {"error": {"code": "server_error"}}, "error"),
    ("failed", {}, "error"),
    ("cancelled", {}, "aborted"),
]


@pytest.mark.parametrize(("status", "more", "ending"), RESPONSE_ENDS)
@pytest.mark.parametrize("streamed", [True, False])
def test_the_other_ends_of_a_response(
    status: str, more: dict[str, Any], ending: str, streamed: bool
) -> None:
    response = {"object": "response", "status": status, **more}
    if streamed:
        said = metered([(9.0, sse({"type": f"response.{status}", "response": response}))])
    else:
        said = metered([(9.0, ndjson(response))], "document")
    assert said["status"] == ending


DOCUMENTS: dict[str, dict[str, Any]] = {
    "OpenAI": {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}]},
    "Anthropic": {"type": "message", "content": [{"type": "text"}], "stop_reason": "end_turn"},
    "responses": {"object": "response", "status": "completed"},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_answer_that_is_not_streamed_has_counts_and_no_token_times(name: str) -> None:
    own = counts(9, 2) if name == "OpenAI" else {"input_tokens": 9, "output_tokens": 2}
    whole = ndjson({**DOCUMENTS[name], "usage": own})
    said = metered([(50.0, whole[:10]), (900.0, whole[10:])], "document")
    assert (said["status"], said["prompt"], said["N"], said["N_src"]) == ("complete", 9, 2, "usage")
    assert (said["ttft"], said["tpot"], said["gaps"]) == (None, None, [])


def test_ollamas_answer_that_is_not_streamed_has_the_servers_times() -> None:
    said = metered([(900.0, ndjson({"response": "abc", **OLLAMA_END}))], "document")
    assert (said["N"], said["ttft"], said["server"]["tpot"]) == (3, None, 40)


def test_old_llama_servers_name_the_reason_in_fields() -> None:
    last = native("", 3, stop=True, stopped_limit=True, stopped_eos=False)
    assert metered([(100.0, sse(native("a", 1), last))])["finish"] == "limit"


def test_what_is_of_no_known_api_says_nothing() -> None:
    said = metered([(5.0, sse({"hello": 1}, {"type": "unknown"}, {"choices": "none"}))])
    assert (said["N"], said["status"], said["flags"]) == (0, "truncated", [])
