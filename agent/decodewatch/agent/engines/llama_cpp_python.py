"""llama-cpp-python, as read in 0.3.36.

    monitor = llama_cpp_python.monitor("chat", llm)
    with llama_cpp_python.watch(llm, monitor.session("user-42").turn()):
        for chunk in llm.create_chat_completion(messages=messages, stream=True):
            ...

What is watched is `Llama.generate`, which yields every token: a chunk of a completion is text, and
may hold several tokens or none. `Llama.eval` is replaced until its first call, which sees the
prompt and how much of it the KV cache had. So a token costs what `Turn.watch` costs.

A completion that came to its own end drops `generate` as one that was interrupted does. What tells
them apart is a stopping criterion of ours: a completion calls it once after its loop, unless it is
being closed. `generate`, which would call it for each token, does not get it.
"""

import inspect
import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, Final

from decodewatch.agent.engines.holding import Holding
from decodewatch.agent.engines.llama_cpp import model_spec
from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.turn import Turn
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

ENGINE: Final = "llama-cpp-python"

_TOO_LONG: Final = re.compile(r"Requested tokens \((\d+)\) exceed context window of (\d+)")
_HOOKS: Final = ("generate", "create_completion", "eval")


def monitor(name: str, llm: Any, *, link: Link = LINK) -> DecodeMonitor:
    """The monitor of a `Llama`. Raises SettingsError for a `name` that no agent would take."""
    try:
        version: str | None = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        version = None
    return DecodeMonitor(
        name,
        engine=ENGINE,
        engine_version=version,
        model=spec(llm),
        settings=settings(llm),
        link=link,
    )


def spec(llm: Any) -> ModelSpec | None:
    """The spec of the model that a `Llama` runs; None where its file cannot be read.

    Its KV cache is allocated at once for the whole context. Completions refuse a prompt that does
    not fit into it, and cut off an answer that grows out of it.
    """
    parameters = getattr(llm, "context_params", None)
    types = getattr(parameters, "type_k", None), getattr(parameters, "type_v", None)
    return model_spec(llm.model_path, types, llm.n_ctx(), "truncate")


def settings(llm: Any) -> dict[str, Scalar]:
    """What of a `Llama` changes its speed or memory."""
    found: dict[str, Scalar] = {}
    for owner, names in (
        ("context_params", ("n_threads", "n_threads_batch", "n_batch", "n_ubatch")),
        ("model_params", ("n_gpu_layers", "use_mmap", "use_mlock")),
    ):
        parameters = getattr(llm, owner, None)
        for name in names:
            value = getattr(parameters, name, None)
            if isinstance(value, (bool, int)):
                found[name] = value
    if getattr(llm, "draft_model", None) is not None:
        found["draft_model"] = type(llm.draft_model).__name__[:64]
    return found


class watch(Holding):
    """Counts every token that `llm` generates inside the block in `turn`.

    A `Llama` serves one turn at a time, and so does this. With a draft model, what follows one
    evaluation is one step of several tokens.
    """

    def __init__(self, llm: Any, turn: Turn) -> None:
        super().__init__(turn)
        self._llm = llm
        self._had: dict[str, Any] = {}
        self._prompt: int | None = None
        self._burst = 0  # tokens since the last evaluation, with a draft model
        self._burst_at = 0
        self._drafted = 0  # tokens of all bursts
        self._finished = False

    def _begin(self) -> None:
        held = vars(self._llm)
        self._had = {name: held[name] for name in _HOOKS if name in held}
        self._real_generate: Callable[..., Iterator[int]] = self._llm.generate
        self._real_completion: Callable[..., Any] = self._llm.create_completion
        self._real_eval: Callable[..., Any] = self._llm.eval
        self._parameters = inspect.signature(self._real_completion)
        # Found before the methods of the class.
        self._llm.generate = self._generate
        self._llm.create_completion = self._completion

    def _end(self, error: BaseException | None) -> None:
        for name in _HOOKS:
            self._restore(name)
        self._flush()
        if error is not None:
            self._see_refusal(error)

    def _restore(self, name: str) -> None:
        if name in self._had:
            setattr(self._llm, name, self._had[name])
        elif name in vars(self._llm):
            delattr(self._llm, name)

    def _generate(self, tokens: Sequence[int], *arguments: Any, **options: Any) -> Iterator[int]:
        criteria = options.get("stopping_criteria")
        if isinstance(criteria, _AtEnd):
            options["stopping_criteria"] = criteria.inner
        steps = self._real_generate(tokens, *arguments, **options)
        if getattr(self._llm, "draft_model", None) is None:
            self._llm.eval = self._first_eval
            return self._turn.watch(steps)
        self._llm.eval = self._each_eval
        return self._turn.watch(steps, tokens=self._one_of_burst)

    def _completion(self, *arguments: Any, **options: Any) -> Any:
        given = self._parameters.bind(*arguments, **options).arguments
        criteria = given.get("stopping_criteria")
        options["stopping_criteria"] = _AtEnd(criteria, self._see_end)
        if len(arguments) < len(given) and "stopping_criteria" in given:
            names = list(self._parameters.parameters)
            # Given by its place: it is replaced there.
            place = names.index("stopping_criteria")
            if place < len(arguments):
                del options["stopping_criteria"]
                arguments = (
                    *arguments[:place],
                    _AtEnd(criteria, self._see_end),
                    *arguments[place + 1 :],
                )
        return self._real_completion(*arguments, **options)

    def _first_eval(self, tokens: Sequence[int]) -> Any:
        self._restore("eval")
        self._see_prompt(tokens)
        return self._real_eval(tokens)

    def _each_eval(self, tokens: Sequence[int]) -> Any:
        self._flush()
        self._see_prompt(tokens)
        return self._real_eval(tokens)

    def _see_prompt(self, tokens: Sequence[int]) -> None:
        """What is evaluated first is what the KV cache did not have of the prompt."""
        if self._prompt is None:
            cached = int(self._llm.n_tokens)
            self._prompt = cached + len(tokens)
            self._turn.report(prompt_tokens=self._prompt, cached_tokens=cached)

    def _one_of_burst(self, token: int) -> int:
        """Of an evaluation with drafted tokens. It is one step, told when the next one begins."""
        if not self._burst:
            self._burst_at = time.monotonic_ns()
        self._burst += 1
        return 0

    def _flush(self) -> None:
        if self._burst:
            self._turn.step_at(self._burst_at, self._burst)
            self._drafted += self._burst
            self._burst = 0

    def _see_end(self) -> None:
        """A completion came to its own end."""
        self._turn.saw("complete")
        limit = int(self._llm.n_ctx())
        if getattr(self._llm, "draft_model", None) is None:
            # The last token was sampled and not evaluated.
            depth = int(self._llm.n_tokens) + 1
        else:
            depth = (self._prompt or 0) + self._drafted + self._burst
        if depth >= limit:
            self._turn.overflow("truncate", depth=depth, limit=limit)

    def _see_refusal(self, error: BaseException) -> None:
        limit = int(self._llm.n_ctx())
        if isinstance(error, ValueError):
            # Of the text only two numbers are looked at.
            found = _TOO_LONG.search(str(error))
            if found is not None:
                self._turn.report(prompt_tokens=int(found[1]), cached_tokens=0)
                self._turn.overflow("refuse", depth=int(found[1]), limit=int(found[2]))
        elif self._prompt is not None and int(self._llm.n_tokens) >= limit:
            # `generate` itself knows no limit: the next evaluation finds no room.
            self._turn.overflow("refuse", depth=int(self._llm.n_tokens) + 1, limit=limit)


class _AtEnd:
    """A stopping criterion that a completion asks at its end, with the application's own in it."""

    def __init__(self, inner: Any, at_end: Callable[[], None]) -> None:
        self.inner = inner
        self._at_end = at_end

    def __call__(self, ids: Any, scores: Any) -> bool:
        try:
            self._at_end()
        except Exception:
            complain.once("adapter", "decodewatch: an adapter failed at its end", trace=True)
        return False if self.inner is None else bool(self.inner(ids, scores))
