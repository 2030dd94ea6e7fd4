"""Wrapping Hugging Face Transformers: a tiny random Llama, which is made here.

    pip install torch transformers
    python examples/transformers_generate.py

What it generates means nothing; how it is measured is what a real model needs. The second turn goes
on where the first ended, with the same cache; the third is left early. Runs with or without an
agent.
"""

from threading import Thread

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from decodewatch.agent.engines import transformers as watched


class Following:
    """An application's own streamer: counts what it is shown, and says when that is enough."""

    def __init__(self, enough: int) -> None:
        self.left = enough

    def put(self, value: torch.Tensor) -> None:
        """Ids that `generate` has."""
        self.left -= value.numel()

    def end(self) -> None:
        """There are no more."""
        self.left = 0


def main() -> None:
    """Three turns of one conversation."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    monitor = watched.monitor("transformers-example", model)
    session = monitor.session("user-42")

    cache = DynamicCache(config=config)
    ids = torch.randint(3, 512, (1, 24))
    for _ in range(2):
        with watched.watch(model, session.turn()) as generation:
            ids = generation.generate(ids, cache=cache, max_new_tokens=32, do_sample=False)
        print(f"{ids.shape[1]} tokens, of which the cache holds {cache.get_seq_length()}")

    following = Following(enough=ids.shape[1] + 8)
    with watched.watch(model, session.turn()) as generation:
        options = {"inputs": ids, "max_new_tokens": 2000, "streamer": following}
        thread = Thread(target=generation.generate, kwargs=options)
        thread.start()
        while following.left > 0:
            thread.join(0.01)
    thread.join(10)  # leaving the block ended it
    print("the third turn was left early")

    if monitor.flush(timeout=2):
        print("The agent has stored 3 turns.")
    else:
        print("No agent took the turns. Start one with: decodewatch agent run")


if __name__ == "__main__":
    main()
