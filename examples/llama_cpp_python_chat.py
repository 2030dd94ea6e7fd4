"""Wrapping llama-cpp-python: one conversation in the terminal.

    pip install llama-cpp-python
    python examples/llama_cpp_python_chat.py model.gguf

Written against the source of llama-cpp-python 0.3.36. The chunks of
`create_chat_completion(stream=True)` are text, not tokens: one may hold several tokens or none. So
the chunks are shown, and what is watched is `Llama.generate` below them, which yields every token.
"""

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from llama_cpp import Llama

from decodewatch.agent import DecodeMonitor, ModelSpec, Turn


@contextlib.contextmanager
def watched(llm: Llama, turn: Turn) -> Iterator[None]:
    """Has every token that `llm` generates inside the block counted in `turn`."""
    generate = llm.generate

    def watching(tokens: Sequence[int], *arguments: Any, **options: Any) -> Iterator[int]:
        turn.report(prompt_tokens=len(tokens), cached_tokens=cached(llm, tokens))
        steps: Iterator[int] = generate(tokens, *arguments, **options)
        return turn.watch(steps)

    llm.generate = watching  # found before the method of the class
    try:
        yield
    finally:
        del llm.generate


def cached(llm: Llama, tokens: Sequence[int]) -> int:
    """How much of the prompt `Llama.generate` finds in its KV cache; it reads the last one anew."""
    shared = 0
    for held, wanted in zip(llm.input_ids[: llm.n_tokens], tokens, strict=False):
        if held != wanted:
            break
        shared += 1
    return max(0, min(shared, len(tokens) - 1))


def answer(llm: Llama, turn: Turn, messages: list[dict[str, str]]) -> str:
    """Show the model's answer as it comes, and return it."""
    parts = []
    with watched(llm, turn):
        for chunk in llm.create_chat_completion(messages=messages, stream=True, max_tokens=256):
            choice = chunk["choices"][0]
            text = choice["delta"].get("content")
            if text:
                print(text, end="", flush=True)
                parts.append(text)
            if choice["finish_reason"] is not None:
                # llama-cpp-python leaves `generate` at the end-of-text token, as somebody who
                # interrupts it would.
                turn.report(ending="complete")
    print()
    return "".join(parts)


def main() -> None:
    """Ask for questions and answer them until an empty one."""
    parser = argparse.ArgumentParser(description="A chat with llama-cpp-python, watched.")
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--context", type=int, default=4096, help="tokens (default: 4096)")
    wanted = parser.parse_args()
    spec = ModelSpec.from_gguf(wanted.model, context_limit=wanted.context, allocation="at_once")
    llm = Llama(wanted.model, n_ctx=wanted.context, verbose=False)
    monitor = DecodeMonitor("terminal-chat", engine="llama-cpp-python", model=spec)
    session = monitor.session()
    messages: list[dict[str, str]] = []
    while question := input("> "):
        messages.append({"role": "user", "content": question})
        with session.turn() as turn:
            reply = answer(llm, turn, messages)
        messages.append({"role": "assistant", "content": reply})


if __name__ == "__main__":
    main()
