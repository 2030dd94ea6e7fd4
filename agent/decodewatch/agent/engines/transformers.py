"""Hugging Face Transformers, as read in 5.24.

    monitor = transformers.monitor("chat", model)
    with transformers.watch(model, monitor.session("user-42").turn()) as generation:
        output = generation.generate(**inputs, max_new_tokens=64)

`generation.generate` is `model.generate` with a streamer that stamps each step before it passes
the ids on to the caller's own. Where it runs in a thread of its own, leaving the block (or
`cancel()`) ends it after its next step. One row of ids is one turn: of a batch the tokens of all
rows are counted.
"""

import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from decodewatch.agent.engines.holding import Holding
from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.turn import Streamer, Turn
from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.model import Experts, ModelSpec
from decodewatch.shared.records import Scalar
from decodewatch.shared.unknown import or_reason

ENGINE: Final = "transformers"

_TYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}
_CACHES: Final = ("cache", "past_key_values")  # what `generate` calls it; the second until 6.0
_LEAST_DIMENSIONS: Final = 3  # of what holds keys, values or states; fewer are counters


def monitor(name: str, model: Any, *, link: Link = LINK) -> DecodeMonitor:
    """The monitor of a model that can `generate`.

    Raises SettingsError for a `name` that no agent would take.
    """
    try:
        version: str | None = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        version = None
    return DecodeMonitor(
        name,
        engine=ENGINE,
        engine_version=version,
        model=spec(model),
        settings=settings(model),
        link=link,
    )


def settings(model: Any) -> dict[str, Scalar]:
    """What of a model changes its speed or memory."""
    found: dict[str, Scalar] = {}
    for name, value in (
        ("device", getattr(model, "device", None)),
        ("dtype", getattr(model, "dtype", None)),
        ("attention", getattr(getattr(model, "config", None), "_attn_implementation", None)),
        ("cache", getattr(getattr(model, "generation_config", None), "cache_implementation", None)),
    ):
        if value is not None:
            found[name] = str(value)[:64] or None
    return found


def spec(model: Any) -> ModelSpec | None:
    """The spec of a model by its configuration and its parameters as they lie in memory; None, with
    a word to the log, where these make no sense."""
    try:
        return ModelSpec(**_kv_fields(model), **_weight_fields(model))
    except Exception as error:
        # The code of a model may be anybody's.
        text = str(error) if isinstance(error, DecodewatchError) else type(error).__name__
        complain.once("spec", "decodewatch: the model is not known: %s", text)
        return None


def _kv_fields(model: Any) -> dict[str, Any]:
    # Only who makes a spec pays for this.
    from decodewatch.shared.hf_config import HfConfig

    config = HfConfig(model.config.to_dict())
    path = str(getattr(model.config, "_name_or_path", "") or "")
    kind = _TYPES.get(str(model.dtype).rpartition(".")[2])
    cache = str(getattr(getattr(model, "generation_config", None), "cache_implementation", None))
    # Where attention is latent, Transformers caches the keys and values that it expands to.
    attention, reason = or_reason(lambda: config.attention(expanded_mla=True))
    return {
        "name": (PurePath(path).name or type(model).__name__)[:128],
        "architecture": config.model_type and config.model_type[:128],
        "quantisation": or_reason(config.quantisation)[0],
        "layers": or_reason(config.layers)[0],
        "kv_types": None if kind is None else (kind, kind),
        "kv_unknown": reason,
        "allocation": "at_once" if "static" in cache else "growing",
        "context_trained": or_reason(config.context_trained)[0],
        **({} if attention is None else attention.fields),
    }


def _weight_fields(model: Any) -> dict[str, Any]:
    from decodewatch.shared.hf_config import HfConfig

    # Each once, however many modules share it.
    sizes = {name: int(one.nbytes) for name, one in model.named_parameters()}
    total = sum(sizes.values())
    fields: dict[str, Any] = {"weight_bytes_total": total}
    entry, out = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.get_text_config() is not model.config or entry is None or out is None:
        fields["weight_unknown"] = "which of the parameters a token reads is not known"
        return fields
    tied = entry.weight is out.weight
    fields["tied_embeddings"] = tied
    read = total if tied else total - int(entry.weight.nbytes)
    counts = HfConfig(model.config.to_dict()).experts()
    if counts is not None:
        held = sum(size for name, size in sizes.items() if ".experts." in name)
        experts = Experts(total=counts[0], used=counts[1], bytes=held)
        fields["experts"] = experts
        read -= experts.bytes - experts.bytes_per_token
    fields["weight_bytes_per_token"] = read
    return fields


class Held(NamedTuple):
    """What a cache holds. `limit` is how many tokens it has room for; None: it grows."""

    bytes: int
    largest_bytes: int
    limit: int | None

    @property
    def peak_bytes(self) -> int | None:
        """What it took for a moment at least while it grew: a tensor grows by being copied, and is
        there twice until the old one is let go. An allocator may keep more. None: it does not."""
        return self.bytes + self.largest_bytes if self.limit is None else None


def held(cache: Any) -> Held:
    """By the shapes of its tensors: reading what is in one would wait for the GPU."""
    tensors = {id(one): one for layer in _layers(cache) for one in _tensors(vars(layer))}
    sizes = [int(one.nbytes) for one in tensors.values()]
    return Held(sum(sizes), max(sizes, default=0), _limit(cache))


def _layers(cache: Any) -> Iterator[Any]:
    for part in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(cache, part):
            yield from _layers(getattr(cache, part))
    yield from getattr(cache, "layers", ())


def _tensors(values: Mapping[Any, Any]) -> Iterator[Any]:
    for value in values.values():
        if isinstance(value, Mapping):
            yield from _tensors(value)
        elif isinstance(value, (list, tuple)):
            yield from _tensors(dict(enumerate(value)))
        elif getattr(value, "ndim", 0) >= _LEAST_DIMENSIONS and hasattr(value, "nbytes"):
            yield value


def _limit(cache: Any) -> int | None:
    """The tokens that a cache of a fixed size has room for."""
    if not getattr(cache, "is_compileable", False):
        return None
    ask = getattr(cache, "get_max_length", None) or getattr(cache, "get_max_cache_shape", None)
    limit = None if ask is None else ask()
    return limit if isinstance(limit, int) and limit > 0 else None


class watch(Holding):
    """Measures what `generate` generates inside the block in `turn`.

    An iterator streamer needs a `timeout`: where `generate` fails in its thread nobody else ends
    the loop over it. That loop's `queue.Empty` makes the turn `error` where `generate` raised, and
    `truncated` where it is only late.
    """

    def __init__(self, model: Any, turn: Turn) -> None:
        super().__init__(turn)
        self._model = model
        self._cache: Any = None
        self._cached: int | None = None
        self._home = threading.get_ident()
        self._cancelled = threading.Event()
        self._running = False
        self._error: BaseException | None = None

    def __enter__(self) -> "watch":  # type: ignore[override]  # has the turn as `turn`
        super().__enter__()
        return self

    @property
    def turn(self) -> Turn:
        """The turn that is measured."""
        return self._turn

    def cancel(self) -> None:
        """Have a `generate` in another thread end after its next step."""
        self._cancelled.set()

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """`model.generate(...)`, measured. What it returns and raises passes on."""
        if self._cancelled.is_set():
            self._turn.saw("cancelled")
        self._see_cache(options)
        options["streamer"] = self.streamer(options.get("streamer"))
        if threading.get_ident() != self._home:
            # Only then: it costs a tensor operation a step, and nobody else could cancel.
            criteria = options.get("stopping_criteria") or ()
            options["stopping_criteria"] = [*criteria, self._stops]
        self._running = True
        try:
            return self._model.generate(*arguments, **options)
        except BaseException as error:
            self._error = error
            self._turn.failed(error)
            self._see_full(error)
            raise
        finally:
            self._running = False
            # It is changed in place, by its owner too: no reference may stay.
            self._cache = None

    def streamer(self, inner: Any = None) -> Streamer:
        """The streamer on its own, before `inner`, for a `generate` that somebody else calls."""
        self._turn.saw("cancelled")  # unless it comes to its end
        return _Streamer(self, self._turn, inner)

    def _end(self, error: BaseException | None) -> None:
        self._cancelled.set()
        if type(error).__name__ != "Empty":
            return
        if self._error is not None:
            self._turn.report(ending="error", error=type(self._error).__name__)
        elif self._turn.ending != "complete":
            self._turn.report(ending="truncated")

    def _stops(self, ids: Any, scores: Any, **_: Any) -> Any:
        """A stopping criterion: of each row, whether it is done."""
        return ids.new_full((ids.shape[0],), int(self._cancelled.is_set())).bool()

    def _see_cache(self, options: Mapping[str, Any]) -> None:
        cache = next((options[name] for name in _CACHES if options.get(name) is not None), None)
        self._cache, self._cached = cache, 0
        if cache is None:
            return
        try:
            # One of a fixed size counts on its device. This waits for it, but before any step.
            self._cached = int(cache.get_seq_length())
        except Exception as error:
            self._cached = None
            kind = type(error).__name__
            complain.once("cached", "decodewatch: how much a cache holds: %s", kind)

    def see_prompt(self, tokens: int | None) -> None:
        """The prompt's ids were put: all of them, those that the cache had too."""
        if self._cached is not None and tokens is not None:
            self._turn.report(cached_tokens=min(self._cached, tokens))

    def see_end(self) -> None:
        """`generate` came to its end."""
        self._turn.saw("cancelled" if self._cancelled.is_set() else "complete")
        if self._cache is None:
            return
        try:
            found = held(self._cache)
            length = int(self._cache.get_seq_length()) if found.limit is None else None
            prompt = self._turn.prompt_tokens
            stale = None
            if prompt is not None and self._cached is not None:
                stale = max(0, self._cached - prompt)
            self._turn.kv_cache(
                found.bytes,
                peak_bytes=found.peak_bytes,
                tokens=length,
                stale_tokens=stale,
                allocation="growing" if found.limit is None else "at_once",
            )
        except Exception as error:
            complain.once("kv", "decodewatch: what a cache holds: %s", type(error).__name__)

    def _see_full(self, error: BaseException) -> None:
        """A cache of a fixed size has no place for one token more, and says so by an index."""
        if self._cache is None or not isinstance(error, (IndexError, RuntimeError)):
            return
        limit = _limit(self._cache)
        try:
            length = int(self._cache.get_seq_length())
        except Exception:
            # After a fault of the GPU nothing can be read; the turn has its error.
            return
        if limit is not None and length > limit:
            self._turn.overflow("refuse", depth=length, limit=limit)


class _Streamer(Streamer):
    """Tells its `watch` of the prompt and the end."""

    def __init__(self, watching: watch, turn: Turn, inner: Any) -> None:
        super().__init__(turn, inner)
        self._watching = watching

    def end(self) -> None:
        """The engine came to its end."""
        # Before the inner one: whoever waits for that may leave the block at once.
        self._watching.see_end()
        if self._inner is not None:
            self._inner.end()

    def _see_prompt(self, value: Any) -> None:
        super()._see_prompt(value)
        self._watching.see_prompt(self._turn.prompt_tokens)
