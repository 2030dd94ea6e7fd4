"""What one event of an inference server says, in whichever API it speaks.

OpenAI's chat and text completions (llama-server, vLLM, Ollama, LM Studio, Triton, MLC, TensorRT
Edge-LLM), OpenAI's responses, Anthropic's messages, llama-server's own completion, Ollama's chat
and generate, Triton's generate_stream. The event's own fields tell which. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MOST_TOKENS: Final = 1 << 40

USAGE: Final = "usage"
TIMINGS: Final = "timings"
NATIVE: Final = "tokens_predicted"
EVAL_COUNT: Final = "eval_count"
OUTPUT_TOKENS: Final = "num_output_tokens"
TOKEN_IDS: Final = "token_ids"
LOGPROBS: Final = "logprobs"
SOURCES: Final = (USAGE, TIMINGS, NATIVE, EVAL_COUNT, OUTPUT_TOKENS, TOKEN_IDS, LOGPROBS)
"""Where a number of tokens may come from, the most trusted first."""

ABORTED: Final = frozenset({"abort", "aborted", "cancelled"})
"""The reasons with which a server says that it gave up, and not that the model came to its end."""


@dataclass(slots=True)
class Timings:
    """What a server says of its own times, in ms; None where it says nothing."""

    prompt_ms: float | None = None
    prompt_processed: int | None = None  # tokens, those from a cache left out
    decode_ms: float | None = None
    decode_tokens: int | None = None
    decode_ms_per_token: float | None = None  # the server's own division, which shows its divisor
    drafted: int | None = None
    accepted: int | None = None
    queue_ms: float | None = None


@dataclass(slots=True)
class Said:
    """What one event says. None where it says nothing of a thing."""

    text: str = ""  # of an answer or of reasoning; for comparing with the event before
    reasoning: bool = False
    answer: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)  # in this event, by SOURCES
    totals: Mapping[str, int] = field(default_factory=dict)  # of the turn so far, by SOURCES
    prompt: int | None = None  # tokens of the whole prompt, those from a cache included
    cached: int | None = None
    reasoning_tokens: int | None = None
    finish: str | None = None
    closing: bool = False  # it has the turn's totals and no part of the output
    several: bool = False  # it belongs to one of several choices
    error: bool = False
    context_full: bool = False
    context_shifted: bool = False
    timings: Timings | None = None

    @property
    def output(self) -> bool:
        """Whether any channel got something."""
        return self.answer or self.reasoning


def read(event: Mapping[str, Any]) -> Said:
    """What an event says. One that is of no known API says nothing."""
    kind = event.get("type")
    if event.get("error") or event.get("object") == "error" or kind == "error":
        return Said(error=True)
    if isinstance(kind, str) and kind.startswith("response."):
        return _responses(event, kind)
    if isinstance(kind, str) and kind in _MESSAGES:
        return _messages(event, kind)
    if isinstance(event.get("choices"), list):
        return _choices(event)
    if isinstance(event.get("done"), bool):
        return _ollama(event)
    if "content" in event and "stop" in event:
        return _native(event)
    if "text_output" in event:
        return _triton(event)
    if event.get("object") == "response":
        return _response(event)
    said = Said()
    _usage(said, event.get("usage"))
    return said


# OpenAI's completions, and what servers add to them.


def _choices(event: Mapping[str, Any]) -> Said:
    said = Said()
    tokens: dict[str, int] = {}
    for choice in event["choices"]:
        if not isinstance(choice, dict):
            continue
        part = choice.get("delta")
        if not isinstance(part, dict):
            part = choice.get("message")
        if not isinstance(part, dict):
            part = {}
        reasoning = _text(part.get("reasoning_content")) or _text(part.get("reasoning"))
        answer = _text(part.get("content")) or _text(part.get("refusal"))
        answer = answer or _text(choice.get("text"))
        called = bool(part.get("tool_calls")) or bool(part.get("function_call"))
        said.reasoning |= bool(reasoning)
        said.answer |= bool(answer) or called
        said.text += reasoning + answer
        said.several |= choice.get("index") not in (0, None)
        said.finish = _word(choice.get("finish_reason")) or said.finish
        if isinstance(choice.get("token_ids"), list):
            tokens[TOKEN_IDS] = tokens.get(TOKEN_IDS, 0) + len(choice["token_ids"])
        logged = _logged(choice.get("logprobs"))
        if logged is not None:
            tokens[LOGPROBS] = tokens.get(LOGPROBS, 0) + logged
    said.tokens = tokens
    said.error = said.finish == "error"
    _usage(said, event.get("usage"))
    said.closing = not event["choices"] and bool(said.totals)
    _timings(said, event.get("timings"))
    _metrics(said, event.get("metrics"))
    return said


def _logged(logprobs: Any) -> int | None:
    """The number of tokens that log probabilities were given for."""
    if not isinstance(logprobs, dict):
        return None
    for name in ("content", "tokens"):
        if isinstance(logprobs.get(name), list):
            return len(logprobs[name])
    return None


def _usage(said: Said, usage: Any) -> None:
    """OpenAI's, the responses API's and Anthropic's names for it."""
    if not isinstance(usage, dict):
        return
    said.prompt = _first(usage, "prompt_tokens", "input_tokens")
    total = _first(usage, "completion_tokens", "output_tokens")
    if total is not None:
        said.totals = {**said.totals, USAGE: total}
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            said.cached = _count(details.get("cached_tokens"))
    for name in ("completion_tokens_details", "output_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict):
            said.reasoning_tokens = _count(details.get("reasoning_tokens"))
    # Anthropic's input tokens leave out what came from its cache, or went into it.
    read = _count(usage.get("cache_read_input_tokens"))
    made = _count(usage.get("cache_creation_input_tokens"))
    if said.prompt is not None:
        said.prompt += (read or 0) + (made or 0)
    if read is not None:
        said.cached = read
    # MLC says instead how many tokens were not from the cache.
    extra = usage.get("extra")
    processed = _count(extra.get("prefill_tokens")) if isinstance(extra, dict) else None
    if said.cached is None and processed is not None and (said.prompt or 0) >= processed:
        said.cached = (said.prompt or 0) - processed


def _timings(said: Said, timings: Any) -> None:
    """llama-server's own times; its `prompt_n` leaves out what came from the cache."""
    if not isinstance(timings, dict):
        return
    processed, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    total = _count(timings.get("predicted_n"))
    if total is not None:
        said.totals = {**said.totals, TIMINGS: total}
    if said.prompt is None and processed is not None:
        said.prompt = processed + (cached or 0)
    if said.cached is None:
        said.cached = cached
    said.timings = Timings(
        prompt_ms=_ms(timings.get("prompt_ms")),
        prompt_processed=processed,
        decode_ms=_ms(timings.get("predicted_ms")),
        decode_tokens=total,
        decode_ms_per_token=_ms(timings.get("predicted_per_token_ms")),
        drafted=_count(timings.get("draft_n")),
        accepted=_count(timings.get("draft_n_accepted")),
    )


def _metrics(said: Said, metrics: Any) -> None:
    """vLLM's figures of one request. Its time to the first token leaves the queue out."""
    if not isinstance(metrics, dict):
        return
    drafting = metrics.get("speculative_decoding")
    if not isinstance(drafting, dict):
        drafting = {}
    said.timings = Timings(
        queue_ms=_ms(metrics.get("queue_time_ms")),
        drafted=_count(drafting.get("num_draft_tokens")),
        accepted=_count(drafting.get("num_accepted_draft_tokens")),
    )


# llama-server's own completion.


def _native(event: Mapping[str, Any]) -> Said:
    text = _text(event.get("content"))
    said = Said(text=text, answer=bool(text))
    total = _count(event.get("tokens_predicted"))
    if total is not None:
        said.totals = {NATIVE: total}
    said.prompt = _count(event.get("tokens_evaluated"))
    _timings(said, event.get("timings"))
    if event.get("stop") is not True:
        return said
    # Builds of before 2025 have a field for each reason instead of one word.
    old = (name for name in ("limit", "word", "eos") if event.get(f"stopped_{name}") is True)
    said.finish = _word(event.get("stop_type")) or next(old, "stop")
    if event.get("truncated") is True:
        # What is left in the context; a shift has thrown away more than the last token, which
        # is never in it.
        left = _count(event.get("tokens_cached"))
        made = None if said.prompt is None or total is None else said.prompt + total
        said.context_shifted = left is not None and made is not None and left + 1 < made
        said.context_full = not said.context_shifted
    return said


# Triton's generate_stream, with what its vLLM backend adds where it is asked.


def _triton(event: Mapping[str, Any]) -> Said:
    text = _text(event.get("text_output"))
    said = Said(text=text, answer=bool(text))
    # Of this response alone.
    tokens = _count(event.get("num_output_tokens"))
    if tokens is not None:
        said.tokens = {OUTPUT_TOKENS: tokens}
    said.prompt = _count(event.get("num_input_tokens"))
    said.finish = _word(event.get("finish_reason"))
    if said.finish is None and event.get("triton_final_response") is True:
        said.finish = "stop"
    return said


# Ollama's chat and generate.


def _ollama(event: Mapping[str, Any]) -> Said:
    message = event.get("message")
    part = message if isinstance(message, dict) else event
    reasoning = _text(part.get("thinking"))
    answer = _text(part.get("content")) or _text(event.get("response"))
    called = bool(part.get("tool_calls"))
    said = Said(text=reasoning + answer, reasoning=bool(reasoning), answer=bool(answer) or called)
    logprobs = event.get("logprobs")
    if isinstance(logprobs, list) and logprobs:
        said.tokens = {LOGPROBS: len(logprobs)}
    if not event["done"]:
        return said
    said.finish = _word(event.get("done_reason")) or "stop"
    total = _count(event.get("eval_count"))
    if total is not None:
        said.totals = {EVAL_COUNT: total}
    said.prompt = _count(event.get("prompt_eval_count"))
    said.cached = _count(event.get("prompt_eval_cached_count"))
    # The duration is of what was processed, the count of all: without the cached count, nobody
    # knows how many tokens the time was for.
    processed = (
        said.prompt - said.cached
        if said.prompt is not None and said.cached is not None and said.cached <= said.prompt
        else None
    )
    said.timings = Timings(
        prompt_ms=_ms(event.get("prompt_eval_duration"), 1e-6),
        prompt_processed=processed,
        decode_ms=_ms(event.get("eval_duration"), 1e-6),
        decode_tokens=total,
    )
    return said


# OpenAI's responses.

_RESPONSE_ENDS: Final = {
    "completed": "stop",
    "incomplete": "length",
    "failed": "error",
    "cancelled": "cancelled",
}


def _responses(event: Mapping[str, Any], kind: str) -> Said:
    said = Said()
    if kind.endswith(".delta"):
        said.text = _text(event.get("delta"))
        said.reasoning = bool(said.text) and "reasoning" in kind
        said.answer = bool(said.text) and not said.reasoning
        logprobs = event.get("logprobs")
        if isinstance(logprobs, list) and logprobs:
            said.tokens = {LOGPROBS: len(logprobs)}
    elif kind == "response.output_item.added":
        # A call has its name already, which the model wrote.
        item = event.get("item")
        said.answer = isinstance(item, dict) and str(item.get("type", "")).endswith("_call")
    elif kind.removeprefix("response.") in _RESPONSE_ENDS:
        response = event.get("response")
        said = _response(response if isinstance(response, dict) else {})
        ending = kind.removeprefix("response.")
        said.finish = said.finish or _RESPONSE_ENDS[ending]
        said.error = ending == "failed"
    return said


def _response(response: Mapping[str, Any]) -> Said:
    """The whole response, as the last event has it, or an answer that was not streamed."""
    said = Said()
    _usage(said, response.get("usage"))
    said.finish = _RESPONSE_ENDS.get(_word(response.get("status")) or "")
    said.error = bool(response.get("error")) or said.finish == "error"
    details = response.get("incomplete_details")
    if isinstance(details, dict) and _word(details.get("reason")):
        said.finish = _word(details["reason"])
    return said


# Anthropic's messages.

_MESSAGES: Final = frozenset(
    {
        "message",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    }
)


def _messages(event: Mapping[str, Any], kind: str) -> Said:
    said = Said()
    if kind == "message_start":
        message = event.get("message")
        if isinstance(message, dict):
            _usage(said, message.get("usage"))
            # What it says of output here is what it begins with, and no total yet.
            said.totals = {}
    elif kind == "content_block_start":
        block = event.get("content_block")
        if isinstance(block, dict):
            # A call has its name already, which the model wrote; thinking may be hidden.
            said.reasoning = block.get("type") == "redacted_thinking"
            said.text = _text(block.get("text"))
            said.answer = bool(said.text) or str(block.get("type", "")).endswith("tool_use")
    elif kind == "content_block_delta":
        delta = event.get("delta")
        if isinstance(delta, dict):
            thinking = _text(delta.get("thinking"))
            said.text = thinking or _text(delta.get("text")) or _text(delta.get("partial_json"))
            said.reasoning = bool(thinking)
            said.answer = bool(said.text) and not thinking
    elif kind == "message_delta":
        delta = event.get("delta")
        said.finish = _word(delta.get("stop_reason")) if isinstance(delta, dict) else None
        _usage(said, event.get("usage"))
    elif kind == "message":
        said.answer = bool(event.get("content"))
        _usage(said, event.get("usage"))
        said.finish = _word(event.get("stop_reason"))
    return said


def _text(value: Any) -> str:
    """Text; the text parts of a list of parts, as some servers send content."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _word(value: Any) -> str | None:
    """A reason to stop. Empty, or the word for nothing of some language, is none."""
    return value if isinstance(value, str) and value not in ("", "None", "null") else None


def _first(values: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        found = _count(values.get(name))
        if found is not None:
            return found
    return None


def _count(value: Any) -> int | None:
    """A number of tokens."""
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None


def _ms(value: Any, factor: float = 1.0) -> float | None:
    """A duration in ms that was measured. 0 is what servers say where they did not."""
    if type(value) not in (int, float) or not 0 < value < 1e18:
        return None
    return float(value) * factor
