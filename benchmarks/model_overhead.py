"""Tokens a second of the real model with and without the wrapper, alternating in one process.

    python benchmarks/model_overhead.py --rounds 20

Prints JSON lines; `ratio` is watched over bare, the median of the pairs (1.0 = no cost). The same
greedy answer of the same length to the same prompt is decoded in every round.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xllamacpp
from model import packaged_model

from decodewatch.agent import DecodeMonitor, ModelSpec

REQUEST = {
    "messages": [{"role": "user", "content": "Write a long story about a lighthouse."}],
    "stream": True,
    "temperature": 0.0,
    "cache_prompt": True,
    "ignore_eos": True,
}


def load(model: Path) -> xllamacpp.Server:
    """llama.cpp with one slot and one thread: a second core is left to everything else."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = 2048
    parameters.n_parallel = 1
    parameters.n_gpu_layers = 0
    parameters.cpuparams.n_threads = 1
    parameters.cache_ram_mib = 0
    parameters.verbosity = -1
    return xllamacpp.Server(parameters)


def decode(server: xllamacpp.Server, tokens: int, step: Callable[[], object]) -> float:
    """Decode once; tokens a second between the first and the last token."""
    stamps: list[int] = []

    def on_chunk(chunk: dict[str, Any]) -> bool:
        if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
            step()
            stamps.append(time.monotonic_ns())
        return False

    server.handle_chat_completions({**REQUEST, "max_tokens": tokens}, on_chunk)
    return (len(stamps) - 1) / (stamps[-1] - stamps[0]) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--model", type=Path)
    wanted = parser.parse_args()
    model = wanted.model or packaged_model()
    server = load(model)
    monitor = DecodeMonitor("bench", engine="llama.cpp", model=ModelSpec.from_gguf(model))

    def bare() -> float:
        return decode(server, wanted.tokens, lambda: None)

    def watched() -> float:
        with monitor.session().turn() as turn:
            return decode(server, wanted.tokens, turn.step)

    bare(), watched()  # warm-up: weights into the page cache, threads born
    pairs = []
    for number in range(wanted.rounds):
        # Which of the two goes first alternates, so that neither gains from a drifting clock.
        if number % 2:
            second, first = watched(), bare()
        else:
            first, second = bare(), watched()
        pairs.append((first, second))
    ratios = sorted(after / before for before, after in pairs)
    print(
        json.dumps(
            {
                "benchmark": "model_overhead",
                "rounds": wanted.rounds,
                "bare_tokens_per_s": round(statistics.median(pair[0] for pair in pairs), 1),
                "watched_tokens_per_s": round(statistics.median(pair[1] for pair in pairs), 1),
                "ratio": round(statistics.median(ratios), 4),
                "ratio_min": round(ratios[0], 4),
                "ratio_max": round(ratios[-1], 4),
            }
        )
    )


if __name__ == "__main__":
    main()
