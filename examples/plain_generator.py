"""Wrapping a plain generator, without any model.

    python examples/plain_generator.py

The engine here is a toy: it sleeps a few milliseconds and yields the next word of a fixed sentence.
It stands for any Python generator that yields a token at a time. Runs with or without an agent.
"""

import time
from collections.abc import Iterator

from decodewatch.agent import DecodeMonitor

SENTENCE = "Whoever counts the steps of a loop must not slow the loop down ."


def generate(prompt: str) -> Iterator[str]:
    """The toy engine: a pause for the prompt, then a word every 20 ms."""
    time.sleep(0.002 * len(prompt))
    for word in SENTENCE.split():
        yield word
        time.sleep(0.02)


def main() -> None:
    """Three turns of one conversation: a whole one, one that is stopped, one that fails."""
    monitor = DecodeMonitor("plain-generator", engine="toy")
    session = monitor.session("user-42")

    prompt = "Say something about loops."
    with session.turn(prompt_tokens=len(prompt.split())) as turn:
        for word in turn.watch(generate(prompt)):
            print(word, end=" ", flush=True)
    print()

    with session.turn() as turn:
        for word in turn.watch(generate("Again, but I will interrupt you.")):
            print(word, end=" ", flush=True)
            if word == "steps":
                break  # the generator is closed, and the turn is recorded as cancelled
    print("...")

    try:
        with session.turn() as turn:
            for _ in turn.watch(generate("Once more.")):
                raise OSError("the listener hung up")
    except OSError as error:
        print(f"({error})")  # passes through unchanged; recorded as OSError, without its text

    if monitor.flush(timeout=2):
        print("The agent has stored 3 turns.")
    else:
        print("No agent took the turns. Start one with: decodewatch agent run")


if __name__ == "__main__":
    main()
