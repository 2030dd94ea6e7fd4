"""ONNX Runtime GenAI's generator loop, as read in 0.18.

    monitor = onnxruntime_genai.monitor("chat", folder, max_length=4096)
    with monitor.session("user-42").turn() as turn:
        for token in onnxruntime_genai.tokens(generator, turn, ids):
            ...

The prompt is read in `append_tokens`, so that it is in TTFT. What the generator held before is its
cached part: a conversation goes on with the same generator, after `rewind_to` where it takes
another way. The engine holds the interpreter for the whole of a token: other threads of the
process, such as the one that tells the agent, run once a token.
"""

import json
from collections.abc import Iterator, Sequence
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.wrapper import complain
from decodewatch.agent.wrapper.link import LINK, Link
from decodewatch.agent.wrapper.monitor import DecodeMonitor
from decodewatch.agent.wrapper.turn import Turn
from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import Scalar

ENGINE: Final = "onnxruntime-genai"

_PACKAGES: Final = ("onnxruntime-genai", "onnxruntime-genai-cuda", "onnxruntime-genai-directml")
_MOST_CONFIG: Final = 1 << 20
_MOST_FILES: Final = 4096


def monitor(
    name: str,
    folder: str | PathLike[str],
    *,
    max_length: int | None = None,
    kv_type: str | None = None,
    settings: dict[str, Scalar] | None = None,
    link: Link = LINK,
) -> DecodeMonitor:
    """The monitor of the model in `folder`; the rest is as for `spec`.

    Raises SettingsError for what no agent would take.
    """
    version = None
    for package in _PACKAGES:
        try:
            version = metadata.version(package)
            break
        except metadata.PackageNotFoundError:
            continue
    return DecodeMonitor(
        name,
        engine=ENGINE,
        engine_version=version,
        model=spec(folder, max_length=max_length, kv_type=kv_type),
        settings=settings,
        link=link,
    )


def spec(
    folder: str | PathLike[str], *, max_length: int | None = None, kv_type: str | None = None
) -> ModelSpec | None:
    """The spec of the model in `folder`, by its `genai_config.json`; None, with a word to the log,
    where that cannot be read.

    `max_length` is the search option where the application sets it. `kv_type` is one of KV_TYPES:
    only the ONNX graph says it, which is not read. A generator stops when it is full, and refuses a
    prompt that is longer.
    """
    file = Path(folder) / "genai_config.json"
    try:
        with file.open("rb") as opened:
            config = json.loads(opened.read(_MOST_CONFIG))
        model = config["model"]
        decoder = model["decoder"]
        search = config.get("search", {})
        limit = max_length or search.get("max_length") or model.get("context_length")
        window = decoder.get("sliding_window")
        if isinstance(window, dict):
            window = window.get("window_size")
        return ModelSpec(
            name=(Path(folder).resolve().name or "onnx")[:128],
            architecture=model.get("type"),
            weight_bytes_total=_weights(Path(folder)),
            weight_unknown="how much of an ONNX model's weights a token reads is not known",
            layers=decoder.get("num_hidden_layers"),
            kv_heads=decoder.get("num_key_value_heads") or decoder.get("num_attention_heads"),
            head_dim_k=decoder.get("head_size"),
            head_dim_v=decoder.get("head_size"),
            kv_types=None if kv_type is None else (kv_type, kv_type),
            allocation="at_once" if search.get("past_present_share_buffer") else "growing",
            overflow="truncate",
            context_limit=limit,
            context_trained=model.get("context_length"),
            sliding_window=window,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        complain.once("genai", "decodewatch: %s: %s", file, type(error).__name__)
    except DecodewatchError as error:
        complain.once("genai", "decodewatch: %s: %s", file, error)
    return None


def _weights(folder: Path) -> int | None:
    """The bytes of the graph and of the data beside it."""
    sizes = []
    for number, file in enumerate(folder.iterdir()):
        if number >= _MOST_FILES:
            return None
        if file.suffix in (".onnx", ".data") or file.name.endswith(".onnx_data"):
            sizes.append(file.stat().st_size)
    return sum(sizes) or None


def tokens(generator: Any, turn: Turn, ids: Sequence[int] | None = None) -> Iterator[int]:
    """The tokens that a `Generator` makes of `ids`, each a step of `turn`; closing it leaves the
    generator as it is. Without `ids` the application has appended them, inside the turn.

    A generator of one sequence: of several the first one's tokens come.
    """
    before = _count(generator)
    if before is not None:
        fresh = 0 if ids is None else len(ids)
        turn.report(
            prompt_tokens=before + fresh,
            # What the application appended itself cannot be told from what was there.
            cached_tokens=None if ids is None else before,
        )
    return turn.watch(_loop(generator, turn, ids))


def _loop(generator: Any, turn: Turn, ids: Sequence[int] | None) -> Iterator[int]:
    if ids is not None:
        try:
            generator.append_tokens(ids)
        except Exception:
            limit = _limit(turn)
            wanted = turn.prompt_tokens
            if limit is not None and wanted is not None and wanted > limit:
                turn.overflow("refuse", depth=wanted, limit=limit)
            raise
    while not generator.is_done():
        generator.generate_next_token()
        yield int(generator.get_next_tokens()[0])
    depth, limit = _count(generator), _limit(turn)
    if depth is not None and limit is not None and depth >= limit:
        turn.overflow("truncate", depth=depth, limit=limit)


def _limit(turn: Turn) -> int | None:
    return None if turn.model is None else turn.model.context_limit


def _count(generator: Any) -> int | None:
    try:
        return int(generator.token_count())
    except Exception as error:
        complain.once("count", "decodewatch: token_count: %s", type(error).__name__)
        return None
