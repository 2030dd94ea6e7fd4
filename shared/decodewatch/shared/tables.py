"""The SQL tables, for servers only: the collector writes them, the dashboard reads them.

Portable by rule: every type here exists on SQLite and PostgreSQL, every key starts with the
device, nothing is numbered by a sequence, and nothing refers across devices. Columns that end in
`_at` are wall time in microseconds since 1970 (UTC); `t` is the device's boot clock in
microseconds; `_us` are durations. NULL always means "not known".

`at` of a record is `t` plus its boot's offset. A boot whose wall clock was never synchronised is
placed by receipt and moved when something better is learned; see `boot`.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
)

_Id = String(64)
_Json = JSON(none_as_null=True)


def _device() -> Column[str]:
    return Column("device", _Id, primary_key=True)


# What is known of each device now: one row, so that a page need not look at history.
device_state = Table(
    "device_state",
    metadata,
    _device(),
    Column("online", Boolean, nullable=False),
    # Of two status messages the one with the higher number is newer; -1 before the first one, when
    # `online` says nothing and `status_at` is NULL.
    Column("connection", BigInteger, nullable=False),
    Column("status_at", BigInteger),  # receipt of the newest status
    Column("agent_version", _Id),
    Column("boot", _Id),
    Column("clock_synchronised", Boolean),
    Column("first_received_at", BigInteger, nullable=False),
    Column("last_received_at", BigInteger, nullable=False),  # receipt of anything
    Column("sample_at", BigInteger),  # of the newest system sample, like the columns below
    Column("hottest_label", String(128)),
    Column("hottest_celsius", Float),
    Column("memory_total_bytes", BigInteger),
    Column("memory_available_bytes", BigInteger),
    Column("swap_used_bytes", BigInteger),
    Column("throttle", String(16)),  # one of records.THROTTLE_STATES
    Column("turn_at", BigInteger),  # end of the newest turn, like the columns below
    Column("turn_id", _Id),
    Column("turn_ending", String(16)),
    Column("turn_ttft_us", BigInteger),
    Column("turn_tpot_us", Float),
    Column("runtime", _Id),
    Column("runtime_memory_bytes", BigInteger),  # RssAnon + VmSwap after it
    Column("described_at", BigInteger),  # of the newest event device_described
    Column("description", _Json),  # its data: board, memory, power mode, ceiling
)

# One boot of a device, and how its boot clock maps to wall time.
boot = Table(
    "boot",
    metadata,
    _device(),
    Column("boot", _Id, primary_key=True),
    Column("offset_us", BigInteger, nullable=False),  # wall = t + offset
    Column("placed", String(16), nullable=False),  # "clock" (synchronised) or "receipt"
    Column("clock_t", BigInteger),  # boot clock of the synchronised reading behind the offset
    Column("first_received_at", BigInteger, nullable=False),
)

# The delivery ledger. Every number of a stream up to `watermark`, and in `ranges` above it
# ([[first, last], ...]), is settled: it arrived, or the device said that it evicted it (`evicted`,
# the newest ranges only). `missing` and `evicted_count` are whole counts: never derive them.
stream = Table(
    "stream",
    metadata,
    _device(),
    Column("stream", _Id, primary_key=True),
    Column("previous", _Id),
    Column("boot", _Id, nullable=False),
    Column("watermark", BigInteger, nullable=False),
    Column("ranges", _Json, nullable=False),
    Column("highest", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),  # batches stored
    Column("duplicate", BigInteger, nullable=False),  # batches received again and dropped
    Column("late", BigInteger, nullable=False),  # batches stored after a higher number was
    Column("missing", BigInteger, nullable=False),  # numbers below `highest` that never arrived
    Column("evicted_count", BigInteger, nullable=False),  # batches that the device gave up
    Column("evicted", _Json, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),  # records that were not valid
    Column("first_received_at", BigInteger, nullable=False),
    Column("last_received_at", BigInteger, nullable=False),
)

runtime = Table(
    "runtime",
    metadata,
    _device(),
    Column("runtime", _Id, primary_key=True),
    Column("boot", _Id, nullable=False),
    Column("t", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("name", _Id, nullable=False),
    Column("engine", _Id, nullable=False),
    Column("engine_version", _Id),
    Column("model", _Json),
    Column("settings", _Json),
)

turn = Table(
    "turn",
    metadata,
    _device(),
    Column("turn", _Id, primary_key=True),
    Column("runtime", _Id, nullable=False),
    Column("session", _Id),
    Column("number", BigInteger),
    Column("boot", _Id, nullable=False),
    Column("t", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),  # its beginning
    Column("duration_us", BigInteger, nullable=False),
    Column("ttft_us", BigInteger),
    Column("decode_us", BigInteger),
    Column("tpot_us", Float),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger, nullable=False),
    Column("first_tokens", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("shared_tokens", BigInteger, nullable=False),
    Column("token_source", String(16), nullable=False),
    Column("ending", String(16), nullable=False),
    Column("error", String(128)),
    Column("suspended_us", BigInteger, nullable=False),
    Column("concurrency", BigInteger, nullable=False),
    Column("memory_start_bytes", BigInteger),
    Column("memory_peak_bytes", BigInteger),
    Column("memory_end_bytes", BigInteger),
    Column("itl", _Json, nullable=False),  # [[depth octave or null, sketch], ...]
    Index(None, "device", "at"),
)

# The floor of memory after a turn; apart from `turn` because it is known only later.
floor = Table(
    "floor",
    metadata,
    _device(),
    Column("turn", _Id, primary_key=True),
    Column("runtime", _Id, nullable=False),
    Column("boot", _Id, nullable=False),
    Column("t", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("readings", BigInteger, nullable=False),
    Column("settled", Boolean, nullable=False),
)

window = Table(
    "window",
    metadata,
    _device(),
    Column("runtime", _Id, primary_key=True),
    Column("t", BigInteger, primary_key=True),
    Column("boot", _Id, nullable=False),
    Column("at", BigInteger, nullable=False),  # its end
    Column("duration_us", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("strata", _Json, nullable=False),  # [[depth octave, concurrency, throttle, sketch], ...]
    Index(None, "device", "at"),
)

sample = Table(
    "sample",
    metadata,
    _device(),
    Column("runtime", _Id, primary_key=True),  # "" for the system
    Column("boot", _Id, primary_key=True),
    Column("t", BigInteger, primary_key=True),
    Column("at", BigInteger, nullable=False),  # its end
    Column("duration_us", BigInteger, nullable=False),
    Column("values", _Json, nullable=False),  # {measurement: [mean, min, max] or increase}
    Column("unknown", _Json),  # {measurement: reason}
    Column("phases", _Json),  # {phase: [duration_us, tokens, values]}
    Index(None, "device", "at"),
)

event = Table(
    "event",
    metadata,
    _device(),
    Column("event_id", _Id, primary_key=True),
    Column("boot", _Id, nullable=False),
    Column("t", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event", _Id, nullable=False),
    Column("runtime", _Id),
    Column("turn", _Id),
    Column("data", _Json, nullable=False),
    Index(None, "device", "at"),
)

# What arrived and could not be stored: the newest ones only, see the collector's settings.
dead_letter = Table(
    "dead_letter",
    metadata,
    Column("device", String(128), primary_key=True),  # as the topic says; "" where it says nothing
    Column("letter", _Id, primary_key=True),
    Column("received_at", BigInteger, nullable=False),
    Column("topic", String(256), nullable=False),
    Column("reason", String(512), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),  # its first bytes
    Index(None, "received_at"),
)

# Tables whose rows are placed in time by their boot and move when its offset is learned better.
PLACED = (runtime, turn, floor, window, sample, event)
