"""What servers say of themselves, by one name for all of them, and how it is read from a text."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from decodewatch.agent.scrape.prometheus import Metrics
from decodewatch.agent.sources.kit.base import Kind, Measurement, Reading, Unit, read_as


def _row(name: str, unit: Unit, kind: Kind, help: str) -> Measurement:
    return Measurement(f"server_{name}", unit, kind, help)


RUNNING: Final = _row("running_requests", "count", "gauge", "requests being worked on")
WAITING: Final = _row("waiting_requests", "count", "gauge", "requests that wait to be worked on")
RUNNING_TOKENS: Final = _row(
    "running_tokens", "count", "gauge", "output tokens so far of the requests being worked on"
)
KV_USED_SHARE: Final = _row("kv_used_share", "share", "gauge", "how full the KV cache is")
KV_USED_TOKENS: Final = _row(
    "kv_used_tokens", "count", "gauge", "tokens whose K and V are kept, also for requests that end"
)
KV_LIMIT_TOKENS: Final = _row(
    "kv_limit_tokens", "count", "gauge", "tokens that the KV cache has room for"
)
FULLEST_SLOT: Final = _row(
    "fullest_slot_share",
    "share",
    "gauge",
    "how much of its context the fullest slot holds; at 1 it is at the limit",
)
PROMPT_TOKENS: Final = _row(
    "prompt_tokens", "count", "counter", "prompt tokens, those from a cache among them"
)
CACHED_TOKENS: Final = _row(
    "cached_tokens", "count", "counter", "of these, found in the prompt cache"
)
PREFILL_TOKENS: Final = _row(
    "prefill_tokens", "count", "counter", "prompt tokens that were computed, not found in a cache"
)
OUTPUT_TOKENS: Final = _row("output_tokens", "count", "counter", "output tokens")
PREFILL_TIME: Final = _row(
    "prefill_microseconds", "microseconds", "counter", "prefill time of the requests, added up"
)
DECODE_TIME: Final = _row(
    "decode_microseconds", "microseconds", "counter", "decode time of the requests, added up"
)
DECODE_TOKENS: Final = _row(
    "decode_tokens",
    "count",
    "counter",
    "output tokens that the decode time was spent on: without the first of each request",
)
STEPS: Final = _row("steps", "count", "counter", "batches that the model ran")
FINISHED: Final = _row("finished_requests", "count", "counter", "requests that came to an end")
PREEMPTIONS: Final = _row(
    "preemptions", "count", "counter", "requests that lost their KV to make room, to begin again"
)
DRAFT_TOKENS: Final = _row("draft_tokens", "count", "counter", "tokens that were speculated")
ACCEPTED_TOKENS: Final = _row(
    "accepted_tokens", "count", "counter", "of these, accepted by the model"
)
QUEUE_TIME: Final = _row(
    "queue_microseconds", "microseconds", "counter", "time that requests waited, added up"
)
TTFT_TIME: Final = _row("ttft_microseconds", "microseconds", "counter", "TTFTs, added up")
TTFT_COUNT: Final = _row("ttft_requests", "count", "counter", "requests whose TTFT was added up")
ITL_TIME: Final = _row("itl_microseconds", "microseconds", "counter", "ITLs, added up")
ITL_COUNT: Final = _row("itl_steps", "count", "counter", "steps whose ITL was added up")
SCRAPED_TIME: Final = _row(
    "scraped_microseconds",
    "microseconds",
    "counter",
    "time between the scrapes that the increases here are of; rates are per this",
)
ANSWER_TIME: Final = _row(
    "answer_microseconds", "microseconds", "gauge", "how long a scrape's answers took"
)
SKIPPED_LINES: Final = _row(
    "skipped_lines", "count", "counter", "lines of /metrics that were not well formed"
)

OF_ALL: Final = (RUNNING, WAITING, KV_USED_SHARE, KV_USED_TOKENS, KV_LIMIT_TOKENS)
"""What every kind of server is asked for."""
OF_SCRAPES: Final = (SCRAPED_TIME, ANSWER_TIME, SKIPPED_LINES)
"""What the agent itself knows of the asking."""


class Row(NamedTuple):
    """Which metrics a measurement is, the first that is there. Others that mean the same are the
    names of older or newer versions: never added up."""

    measurement: Measurement
    names: Sequence[str]
    scale: int = 1


def names_of(table: Iterable[Row]) -> set[str]:
    """Every name of a table."""
    return {name for row in table for name in row.names}


def read_table(metrics: Metrics, table: Iterable[Row]) -> list[Reading]:
    """One reading a row; a metric that is not there is absent, and never 0."""
    return [reading(row.measurement, first_total(metrics, row.names), row.scale) for row in table]


def first_total(metrics: Metrics, names: Iterable[str]) -> float | None:
    """The value of the first of these names that is there, summed over its series."""
    for name in names:
        total = metrics.total(name)
        if total is not None:
            return total
    return None


def reading(measurement: Measurement, value: float | None, scale: int = 1) -> Reading:
    """A reading of what must not be negative, whole where it can be; None is absent."""
    if value is not None and value < 0:
        return read_as(measurement, None, "implausible")
    if value is not None:
        value *= scale
        if measurement.unit != "share" and value < 1 << 63:
            value = round(value)
    return read_as(measurement, value, "absent")
