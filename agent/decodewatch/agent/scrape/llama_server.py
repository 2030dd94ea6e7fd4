"""llama-server of llama.cpp: /metrics (where it was started with --metrics), /slots and /props.

Two of its three kinds of figures cannot be used. The gauges of throughput and of busy slots are
means since whoever asked last, and begin anew each time: with two askers both are wrong. The
counters of tokens and seconds move when a request ends, not while it runs.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from decodewatch.agent.scrape import measurements as m
from decodewatch.agent.scrape.http import Answer, Fault, Result, fault_of
from decodewatch.agent.scrape.kinds import Command, Round, Said
from decodewatch.agent.scrape.measurements import Row
from decodewatch.agent.scrape.prometheus import Metrics, parse
from decodewatch.agent.scrape.values import load_json, total, whole, words
from decodewatch.agent.sources.kit.base import Measurement, Reading, read_as, unknown
from decodewatch.shared.model import KV_TYPES, MAX_TEXT
from decodewatch.shared.records import Scalar

_P: Final = "llamacpp:"
# Every name that is read, and by which names other versions have it.
TABLE: Final = (
    Row(m.RUNNING, (f"{_P}requests_processing",)),
    Row(m.WAITING, (f"{_P}requests_deferred",)),
    Row(m.KV_USED_SHARE, (f"{_P}kv_cache_usage_ratio",)),  # until May 2025
    Row(m.KV_USED_TOKENS, (f"{_P}kv_cache_tokens",)),  # until May 2025
    Row(m.PREFILL_TOKENS, (f"{_P}prompt_tokens_total",)),  # without those from the cache
    Row(m.CACHED_TOKENS, (f"{_P}prompt_tokens_cached_total",)),
    Row(m.PREFILL_TIME, (f"{_P}prompt_seconds_total",), 1_000_000),
    Row(m.OUTPUT_TOKENS, (f"{_P}tokens_predicted_total",)),
    Row(m.DECODE_TIME, (f"{_P}tokens_predicted_seconds_total",), 1_000_000),
    Row(m.STEPS, (f"{_P}n_decode_total",)),
    Row(m.DRAFT_TOKENS, (f"{_P}spec_decode_num_draft_tokens_total",)),
    Row(m.ACCEPTED_TOKENS, (f"{_P}spec_decode_num_accepted_tokens_total",)),
)
_NAMES: Final = m.names_of(TABLE)
_ITS: Final = re.compile(rb"^llamacpp:", re.MULTILINE)
_STARTED: Final = "process-start-time-unix"
_MOST_SLOTS: Final = 4096
_NO_METRICS: Final = frozenset({404, 501})  # of one that was started without --metrics


class Slot(NamedTuple):
    """One slot. `tokens` is what its context holds, prompt and output; None where not known."""

    n_ctx: int
    tokens: int | None
    busy: bool
    decoded: int | None  # output tokens of its request so far


class CommandLine(NamedTuple):
    """What matters of the flags that a llama-server was started with; None where not given."""

    kv_types: tuple[str, str] | None
    unified: bool | None
    """Whether all slots share one KV cache, so that `n_ctx` of each is that of all."""
    prompt_cache_bytes: int | None
    """The prompt cache in the host's memory grows up to so much, which is no leak."""


def parse_slots(body: bytes) -> list[Slot] | None:
    """The answer to /slots; None where it is none. The texts that some versions put into it are
    not looked at."""
    value = load_json(body)
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_SLOTS:
        return None
    slots = [_slot(item) for item in value]
    known = [slot for slot in slots if slot is not None]
    return known if len(known) == len(slots) else None


def _slot(item: Any) -> Slot | None:
    if not isinstance(item, dict):
        return None
    n_ctx = whole(item.get("n_ctx"))
    busy = item.get("is_processing")
    if type(busy) is not bool:
        state = whole(item.get("state"))  # older versions: 0 where it is idle
        if state is None:
            return None
        busy = state != 0
    if n_ctx is None or n_ctx == 0:
        return None
    # Its name says prompt; it is all that the slot's context holds.
    tokens = whole(item.get("n_prompt_tokens"))
    if tokens is None and not busy and "id_task" not in item and "n_prompt_tokens" not in item:
        tokens = 0  # it has not had a request
    if tokens is not None and tokens > n_ctx:
        tokens = None
    following = item.get("next_token")
    if isinstance(following, list):  # an object until 2025
        following = following[0] if following else None
    decoded = whole(following.get("n_decoded")) if isinstance(following, dict) else None
    return Slot(n_ctx, tokens, busy, decoded)


def parse_command(arguments: Sequence[str]) -> CommandLine:
    """The flags of a llama-server's command line.

    The types of the KV cache are those of the flags, or f16 where a llama-server was given none. Of
    another program, whose settings are not in its command line, nothing is known.
    """
    if not arguments or not arguments[0].rpartition("/")[2].startswith("llama-server"):
        return CommandLine(None, None, None)
    flags = dict(zip(arguments[1:], [*arguments[2:], ""], strict=True))
    keys = flags.get("-ctk", flags.get("--cache-type-k", "f16")).lower()
    values = flags.get("-ctv", flags.get("--cache-type-v", "f16")).lower()
    types = (keys, values) if {keys, values} <= KV_TYPES.keys() else None
    slots = flags.get("-np", flags.get("--parallel", ""))
    unified: bool | None = None
    if "-kvu" in flags or "--kv-unified" in flags:
        unified = True
    elif "-no-kvu" in flags or "--no-kv-unified" in flags or slots.isdecimal():
        unified = False  # a number of slots that was asked for parts the cache among them
    cache = flags.get("-cram", flags.get("--cache-ram", ""))  # MiB; -1 is without a limit
    return CommandLine(
        types, unified, int(cache) << 20 if cache.isdecimal() and len(cache) < 10 else None
    )


def read(
    metrics: Metrics | Fault, slots: list[Slot] | Fault, unified: bool | None
) -> list[Reading]:
    """The readings of one round, from what was answered."""
    found: dict[str, Reading] = {}
    if isinstance(metrics, Fault):
        for row in TABLE:
            found[row.measurement.name] = unknown(row.measurement, metrics.reason)
    else:
        for one in m.read_table(metrics, TABLE):
            found[one.key] = one
    prefill, cached = found[m.PREFILL_TOKENS.name].value, found[m.CACHED_TOKENS.name].value
    whole_prompt = None if prefill is None or cached is None else prefill + cached
    found[m.PROMPT_TOKENS.name] = (
        unknown(m.PROMPT_TOKENS, found[m.CACHED_TOKENS.name].reason or "absent")
        if whole_prompt is None
        else read_as(m.PROMPT_TOKENS, whole_prompt, "absent")
    )
    for one in _of_slots(slots, unified):
        # The metric is believed where there is one: of a KV cache that slots share it is exact.
        if one.key not in found or not found[one.key].known:
            found[one.key] = one
    return list(found.values())


def _of_slots(slots: list[Slot] | Fault, unified: bool | None) -> list[Reading]:
    if isinstance(slots, Fault):
        return [
            unknown(row, slots.reason)
            for row in (
                m.RUNNING,
                m.RUNNING_TOKENS,
                m.KV_USED_TOKENS,
                m.KV_LIMIT_TOKENS,
                m.KV_USED_SHARE,
                m.FULLEST_SLOT,
            )
        ]
    busy = [slot for slot in slots if slot.busy]
    decoded = total(slot.decoded for slot in busy)
    used = total(slot.tokens for slot in slots)
    shares = [slot.tokens / slot.n_ctx for slot in slots if slot.tokens is not None]
    limit: int | None = None
    if len(slots) == 1:
        limit = slots[0].n_ctx
    elif unified is not None:
        limit = max(slot.n_ctx for slot in slots) if unified else sum(s.n_ctx for s in slots)
    return [
        read_as(m.RUNNING, len(busy), "absent"),
        read_as(m.RUNNING_TOKENS, decoded, "absent"),
        read_as(m.KV_USED_TOKENS, used, "absent"),
        read_as(m.KV_LIMIT_TOKENS, limit, "absent"),
        read_as(
            m.KV_USED_SHARE,
            None if used is None or limit is None else min(used / limit, 1.0),
            "absent",
        ),
        read_as(m.FULLEST_SLOT, max(shares) if len(shares) == len(slots) else None, "absent"),
    ]


class LlamaServer:
    """The questions for a llama-server."""

    name = "llama-server"
    engine = "llama.cpp"
    measurements: tuple[Measurement, ...] = (
        *m.OF_ALL,
        m.FULLEST_SLOT,
        m.RUNNING_TOKENS,
        m.PROMPT_TOKENS,
        m.CACHED_TOKENS,
        m.PREFILL_TOKENS,
        m.OUTPUT_TOKENS,
        m.PREFILL_TIME,
        m.DECODE_TIME,
        m.STEPS,
        m.DRAFT_TOKENS,
        m.ACCEPTED_TOKENS,
    )

    def recognise(self, metrics: bytes) -> bool:
        """Whether an answer to /metrics is of a llama-server."""
        return _ITS.search(metrics) is not None

    def ask(self, command: Command, *, idle: bool) -> Generator[str, Result, Round | Fault]:
        """One round. An idle server that may have gone to sleep is not woken up."""
        if idle:
            props = yield "/props"
            if isinstance(props, Answer) and _sleeps(props.body):
                return Fault("transient", "the server sleeps")
        answer = yield "/metrics"
        fault = fault_of(answer)
        metrics: Metrics | Fault
        advice = None
        if fault is None:
            assert isinstance(answer, Answer)
            metrics = parse(answer.body, _NAMES)
            if not metrics.series:
                return Fault("implausible", "/metrics has none of llama-server's")
        elif fault.reason != "unsupported":
            return fault
        else:
            metrics = fault
            if isinstance(answer, Answer) and answer.status in _NO_METRICS:
                advice = (
                    f"llama-server answers /metrics with {answer.status}: start it with "
                    "--metrics; only /slots is read"
                )
        started = answer.headers.get(_STARTED) if isinstance(answer, Answer) else None
        answer = yield "/slots"
        fault = fault_of(answer)
        if fault is not None:
            if isinstance(metrics, Fault):
                return fault
            slots: list[Slot] | Fault = fault
        else:
            assert isinstance(answer, Answer)
            slots = parse_slots(answer.body) or Fault("implausible", "/slots is no list of slots")
        skipped = 0 if isinstance(metrics, Fault) else metrics.skipped
        unified = parse_command(command()).unified
        return Round(read(metrics, slots, unified), started, skipped, advice)

    def describe(self, command: Command) -> Generator[str, Result, Said | Fault]:
        """What the server says at /props, and of its model at /v1/models."""
        answer = yield "/props"
        fault = fault_of(answer)
        if fault is not None and fault.reason != "unsupported":
            return fault
        props = load_json(answer.body) if isinstance(answer, Answer) and fault is None else None
        answer = yield "/v1/models"
        models = load_json(answer.body) if isinstance(answer, Answer) else None
        return said(
            props if isinstance(props, dict) else {},
            models if isinstance(models, dict) else {},
            parse_command(command()),
        )


def _sleeps(body: bytes) -> bool:
    props = load_json(body)
    return isinstance(props, dict) and props.get("is_sleeping") is True


def said(props: Mapping[str, Any], models: Mapping[str, Any], command: CommandLine) -> Said:
    """What a server is, by its answers to /props and /v1/models, and its command line."""
    defaults = props.get("default_generation_settings")
    n_ctx = whole(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
    data = models.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
    meta = first.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    path = words(props.get("model_path"), 4096)
    alias = words(props.get("model_alias"), 4096) or words(first.get("id"), 4096) or path
    model: dict[str, Any] = {}
    if alias is not None and alias.rpartition("/")[2]:
        model = {
            # Without an alias it is the path: where somebody keeps files is nobody's business.
            "name": alias.rpartition("/")[2][:MAX_TEXT],
            "quantisation": words(meta.get("ftype"), MAX_TEXT)
            or words(props.get("model_ftype"), MAX_TEXT),
            "context_limit": n_ctx or whole(meta.get("n_ctx")) or None,
            "context_trained": whole(meta.get("n_ctx_train")) or None,
            "weight_bytes_total": whole(meta.get("size")) or None,
            "kv_types": command.kv_types,
            "allocation": "at_once",
        }
    settings: dict[str, Scalar] = {}
    slots = whole(props.get("total_slots"))
    if slots is not None:
        settings["slots"] = slots
    if command.prompt_cache_bytes is not None:
        settings["prompt_cache_limit_bytes"] = command.prompt_cache_bytes
    return Said(words(props.get("build_info"), 64), model, path, settings)
