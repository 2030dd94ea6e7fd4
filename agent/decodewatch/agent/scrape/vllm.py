"""vLLM's OpenAI server: /metrics, and what it says of its model.

With data parallelism there is one series an engine, told apart by the label `engine`: the server's
figure is their sum. A name that was deprecated is there together with the new one for a release or
two: the new one is taken, and never both.
"""

import re
from collections.abc import Generator, Mapping
from typing import Any, Final

from decodewatch.agent.scrape import measurements as m
from decodewatch.agent.scrape.http import Answer, Fault, Result, fault_of
from decodewatch.agent.scrape.kinds import Command, Round, Said
from decodewatch.agent.scrape.measurements import Row
from decodewatch.agent.scrape.prometheus import Labels, Metrics, parse
from decodewatch.agent.scrape.values import load_json, whole, words
from decodewatch.agent.sources.kit.base import Measurement, Reading, read_as
from decodewatch.shared.model import MAX_TEXT
from decodewatch.shared.records import Scalar

_P: Final = "vllm:"


def _renamed(*names: str) -> tuple[str, ...]:
    return tuple(_P + name for name in names)


# Every name that is read, the newest first.
TABLE: Final = (
    Row(m.RUNNING, _renamed("num_requests_running")),
    Row(m.WAITING, _renamed("num_requests_waiting")),
    Row(m.PROMPT_TOKENS, _renamed("prompt_tokens_total")),
    Row(
        m.CACHED_TOKENS,
        _renamed(
            "prompt_tokens_cached_total", "prefix_cache_hits_total", "gpu_prefix_cache_hits_total"
        ),
    ),
    Row(m.OUTPUT_TOKENS, _renamed("generation_tokens_total")),
    Row(m.PREFILL_TIME, _renamed("request_prefill_time_seconds_sum"), 1_000_000),
    Row(m.DECODE_TIME, _renamed("request_decode_time_seconds_sum"), 1_000_000),
    Row(m.STEPS, _renamed("iteration_tokens_total_count")),
    Row(m.FINISHED, _renamed("request_success_total")),
    Row(m.PREEMPTIONS, _renamed("num_preemptions_total")),
    Row(m.DRAFT_TOKENS, _renamed("spec_decode_num_draft_tokens_total")),
    Row(m.ACCEPTED_TOKENS, _renamed("spec_decode_num_accepted_tokens_total")),
    Row(m.QUEUE_TIME, _renamed("request_queue_time_seconds_sum"), 1_000_000),
    Row(m.TTFT_TIME, _renamed("time_to_first_token_seconds_sum"), 1_000_000),
    Row(m.TTFT_COUNT, _renamed("time_to_first_token_seconds_count")),
    Row(
        m.ITL_TIME,
        _renamed("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
        1_000_000,
    ),
    Row(
        m.ITL_COUNT,
        _renamed("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    ),
)
_KV_SHARE: Final = _renamed("kv_cache_usage_perc", "gpu_cache_usage_perc")  # 0 to 1, not per cent
_BY_SOURCE: Final = f"{_P}prompt_tokens_by_source_total"
_CACHED: Final = f"{_P}prompt_tokens_cached_total"
_OUTPUT_SUM: Final = f"{_P}request_generation_tokens_sum"
_OUTPUT_COUNT: Final = f"{_P}request_generation_tokens_count"
_CACHE_CONFIG: Final = f"{_P}cache_config_info"
_STARTED: Final = "process_start_time_seconds"
_NAMES: Final = m.names_of(TABLE) | {
    *_KV_SHARE,
    _BY_SOURCE,
    _CACHED,
    _OUTPUT_SUM,
    _OUTPUT_COUNT,
    _CACHE_CONFIG,
    _STARTED,
}
_ITS: Final = re.compile(rb"^vllm:", re.MULTILINE)
# What --kv-cache-dtype says, as far as it is a type; `auto` is that of the model.
_CACHE_TYPES: Final = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
}


def read(metrics: Metrics) -> list[Reading]:
    """The readings of one answer to /metrics."""
    computed = metrics.total(_BY_SOURCE, source="local_compute")
    whole_prompt, cached = metrics.total(f"{_P}prompt_tokens_total"), metrics.total(_CACHED)
    if computed is None and whole_prompt is not None and cached is not None:
        computed = whole_prompt - cached
    outputs, ended = metrics.total(_OUTPUT_SUM), metrics.total(_OUTPUT_COUNT)
    after_first = None if outputs is None or ended is None else outputs - ended
    return [
        *m.read_table(metrics, TABLE),
        m.reading(m.PREFILL_TOKENS, computed),
        m.reading(m.DECODE_TOKENS, after_first),
        *_kv(metrics),
    ]


def _kv(metrics: Metrics) -> list[Reading]:
    """How full the KV caches of all engines are, and how large."""
    shares = next((s for s in (metrics.series.get(name) for name in _KV_SHARE) if s), [])
    limits = {
        labels.get("engine", ""): _limit(labels)
        for labels, _ in metrics.series.get(_CACHE_CONFIG, ())
    }
    sizes = list(limits.values())
    limit = None if not sizes or None in sizes else sum(size for size in sizes if size is not None)
    if any(not 0 <= share <= 1 for _, share in shares):
        return [
            read_as(m.KV_USED_SHARE, None, "implausible"),
            read_as(m.KV_USED_TOKENS, None, "implausible"),
            read_as(m.KV_LIMIT_TOKENS, limit, "absent"),
        ]
    used: float | None = 0.0 if shares else None
    for labels, share in shares:
        # Where one size is told, it is that of every engine.
        size = limits.get(labels.get("engine", ""), sizes[0] if len(sizes) == 1 else None)
        used = None if used is None or size is None else used + share * size
    if len(sizes) == 1 and limit is not None and len(shares) > 1:
        limit *= len(shares)
    share_of_all: float | None = None
    if used is not None and limit:
        share_of_all = min(used / limit, 1.0)
    elif shares:
        share_of_all = sum(share for _, share in shares) / len(shares)
    return [
        read_as(m.KV_USED_SHARE, share_of_all, "absent"),
        m.reading(m.KV_USED_TOKENS, used),
        read_as(m.KV_LIMIT_TOKENS, limit, "absent"),
    ]


def _limit(labels: Labels) -> int | None:
    """Tokens that the KV cache of one engine has room for."""
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    if not (blocks.isdecimal() and size.isdecimal() and len(blocks) < 13 and len(size) < 7):
        return None
    return int(blocks) * int(size) or None


class Vllm:
    """The questions for vLLM."""

    name = "vllm"
    engine = "vllm"
    measurements: tuple[Measurement, ...] = (
        *(row.measurement for row in TABLE),
        m.PREFILL_TOKENS,
        m.DECODE_TOKENS,
        m.KV_USED_SHARE,
        m.KV_USED_TOKENS,
        m.KV_LIMIT_TOKENS,
    )

    def __init__(self) -> None:
        self._config: Labels = {}

    def recognise(self, metrics: bytes) -> bool:
        """Whether an answer to /metrics is of vLLM."""
        return _ITS.search(metrics) is not None

    def ask(self, command: Command, *, idle: bool) -> Generator[str, Result, Round | Fault]:
        """One round."""
        answer = yield "/metrics"
        fault = fault_of(answer)
        if fault is not None:
            return fault
        assert isinstance(answer, Answer)
        metrics = parse(answer.body, _NAMES)
        if not any(name.startswith(_P) for name in metrics.series):
            return Fault("implausible", "/metrics has none of vLLM's")
        config = metrics.series.get(_CACHE_CONFIG)
        self._config = config[0][0] if config else {}
        started = metrics.total(_STARTED)
        return Round(read(metrics), None if started is None else str(started), metrics.skipped)

    def describe(self, command: Command) -> Generator[str, Result, Said | Fault]:
        """What the server says at /v1/models and /version, and how its KV cache is made."""
        answer = yield "/v1/models"
        fault = fault_of(answer)
        if fault is not None and fault.reason not in ("denied", "unsupported"):
            return fault
        models = load_json(answer.body) if isinstance(answer, Answer) and fault is None else None
        answer = yield "/version"
        version = load_json(answer.body) if isinstance(answer, Answer) else None
        return said(
            models if isinstance(models, dict) else {},
            version if isinstance(version, dict) else {},
            self._config,
        )


def said(models: Mapping[str, Any], version: Mapping[str, Any], config: Labels) -> Said:
    """What a server is, by its answers to /v1/models and /version, and the labels of its
    cache_config_info."""
    data = models.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    name = words(first.get("id"), 4096)
    model: dict[str, Any] = {}
    if name is not None and name.rstrip("/").rpartition("/")[2]:
        cache_type = _CACHE_TYPES.get(config.get("cache_dtype", ""))
        model = {
            "name": name.rstrip("/").rpartition("/")[2][:MAX_TEXT],
            "context_limit": whole(first.get("max_model_len")) or None,
            "kv_types": None if cache_type is None else (cache_type, cache_type),
            "allocation": "paged",
            "weight_unknown": "the server does not say how large its weights are",
        }
    settings: dict[str, Scalar] = {}
    for label in ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"):
        value = words(config.get(label), 64)
        if value is not None:
            settings[label] = value
    return Said(words(version.get("version"), 64), model, None, settings)
