"""Wrapping llama-cpp-python: one conversation in the terminal.

    pip install llama-cpp-python
    python examples/llama_cpp_python_chat.py model.gguf

The chunks of `create_chat_completion(stream=True)` are text, not tokens: one may hold several
tokens or none. So the chunks are shown, and what the adapter watches is `Llama.generate` below
them, which yields every token.
"""

import argparse

from llama_cpp import Llama

from decodewatch.agent.engines import llama_cpp_python


def answer(llm: Llama, messages: list[dict[str, str]]) -> str:
    """Show the model's answer as it comes, and return it."""
    parts = []
    for chunk in llm.create_chat_completion(messages=messages, stream=True, max_tokens=256):
        text = chunk["choices"][0]["delta"].get("content")
        if text:
            print(text, end="", flush=True)
            parts.append(text)
    print()
    return "".join(parts)


def main() -> None:
    """Ask for questions and answer them until an empty one."""
    parser = argparse.ArgumentParser(description="A chat with llama-cpp-python, watched.")
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--context", type=int, default=4096, help="tokens (default: 4096)")
    wanted = parser.parse_args()
    llm = Llama(wanted.model, n_ctx=wanted.context, verbose=False)
    session = llama_cpp_python.monitor("terminal-chat", llm).session()
    messages: list[dict[str, str]] = []
    while question := input("> "):
        messages.append({"role": "user", "content": question})
        with session.turn() as turn, llama_cpp_python.watch(llm, turn):
            reply = answer(llm, messages)
        messages.append({"role": "assistant", "content": reply})


if __name__ == "__main__":
    main()
