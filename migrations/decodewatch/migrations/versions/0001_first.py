"""The first schema: devices, boots, streams, records, dead letters."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Change the schema to this revision."""
    op.create_table(
        "boot",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("offset_us", sa.BigInteger(), nullable=False),
        sa.Column("placed", sa.String(length=16), nullable=False),
        sa.Column("clock_t", sa.BigInteger(), nullable=True),
        sa.Column("first_received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", "boot", name=op.f("pk_boot")),
    )
    op.create_table(
        "dead_letter",
        sa.Column("device", sa.String(length=128), nullable=False),
        sa.Column("letter", sa.String(length=64), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("topic", sa.String(length=256), nullable=False),
        sa.Column("reason", sa.String(length=512), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("device", "letter", name=op.f("pk_dead_letter")),
    )
    op.create_index(
        op.f("ix_dead_letter_received_at"), "dead_letter", ["received_at"], unique=False
    )
    op.create_table(
        "device_state",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("online", sa.Boolean(), nullable=False),
        sa.Column("connection", sa.BigInteger(), nullable=False),
        sa.Column("status_at", sa.BigInteger(), nullable=True),
        sa.Column("agent_version", sa.String(length=64), nullable=True),
        sa.Column("boot", sa.String(length=64), nullable=True),
        sa.Column("clock_synchronised", sa.Boolean(), nullable=True),
        sa.Column("first_received_at", sa.BigInteger(), nullable=False),
        sa.Column("last_received_at", sa.BigInteger(), nullable=False),
        sa.Column("sample_at", sa.BigInteger(), nullable=True),
        sa.Column("hottest_label", sa.String(length=128), nullable=True),
        sa.Column("hottest_celsius", sa.Float(), nullable=True),
        sa.Column("memory_total_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_available_bytes", sa.BigInteger(), nullable=True),
        sa.Column("swap_used_bytes", sa.BigInteger(), nullable=True),
        sa.Column("turn_at", sa.BigInteger(), nullable=True),
        sa.Column("turn_id", sa.String(length=64), nullable=True),
        sa.Column("turn_ending", sa.String(length=16), nullable=True),
        sa.Column("turn_ttft_us", sa.BigInteger(), nullable=True),
        sa.Column("turn_tpot_us", sa.Float(), nullable=True),
        sa.Column("runtime", sa.String(length=64), nullable=True),
        sa.Column("runtime_memory_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_state")),
    )
    op.create_table(
        "event",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=True),
        sa.Column("turn", sa.String(length=64), nullable=True),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("device", "event_id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_device_at"), "event", ["device", "at"], unique=False)
    op.create_table(
        "floor",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("readings", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("device", "turn", name=op.f("pk_floor")),
    )
    op.create_table(
        "runtime",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("engine", sa.String(length=64), nullable=False),
        sa.Column("engine_version", sa.String(length=64), nullable=True),
        sa.Column("model", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("settings", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("device", "runtime", name=op.f("pk_runtime")),
    )
    op.create_table(
        "sample",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("duration_us", sa.BigInteger(), nullable=False),
        sa.Column("values", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("unknown", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("device", "runtime", "boot", "t", name=op.f("pk_sample")),
    )
    op.create_index(op.f("ix_sample_device_at"), "sample", ["device", "at"], unique=False)
    op.create_table(
        "stream",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("stream", sa.String(length=64), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("watermark", sa.BigInteger(), nullable=False),
        sa.Column("ranges", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("highest", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("duplicate", sa.BigInteger(), nullable=False),
        sa.Column("late", sa.BigInteger(), nullable=False),
        sa.Column("missing", sa.BigInteger(), nullable=False),
        sa.Column("evicted_count", sa.BigInteger(), nullable=False),
        sa.Column("evicted", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.Column("first_received_at", sa.BigInteger(), nullable=False),
        sa.Column("last_received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device", "stream", name=op.f("pk_stream")),
    )
    op.create_table(
        "turn",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("duration_us", sa.BigInteger(), nullable=False),
        sa.Column("ttft_us", sa.BigInteger(), nullable=True),
        sa.Column("decode_us", sa.BigInteger(), nullable=True),
        sa.Column("tpot_us", sa.Float(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_tokens", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("shared_tokens", sa.BigInteger(), nullable=False),
        sa.Column("token_source", sa.String(length=16), nullable=False),
        sa.Column("ending", sa.String(length=16), nullable=False),
        sa.Column("error", sa.String(length=128), nullable=True),
        sa.Column("suspended_us", sa.BigInteger(), nullable=False),
        sa.Column("concurrency", sa.BigInteger(), nullable=False),
        sa.Column("memory_start_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_end_bytes", sa.BigInteger(), nullable=True),
        sa.Column("itl", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("device", "turn", name=op.f("pk_turn")),
    )
    op.create_index(op.f("ix_turn_device_at"), "turn", ["device", "at"], unique=False)
    op.create_table(
        "window",
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("t", sa.BigInteger(), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("duration_us", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("strata", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("device", "runtime", "t", name=op.f("pk_window")),
    )
    op.create_index(op.f("ix_window_device_at"), "window", ["device", "at"], unique=False)


def downgrade() -> None:
    """Change it back."""
    op.drop_index(op.f("ix_window_device_at"), table_name="window")
    op.drop_table("window")
    op.drop_index(op.f("ix_turn_device_at"), table_name="turn")
    op.drop_table("turn")
    op.drop_table("stream")
    op.drop_index(op.f("ix_sample_device_at"), table_name="sample")
    op.drop_table("sample")
    op.drop_table("runtime")
    op.drop_table("floor")
    op.drop_index(op.f("ix_event_device_at"), table_name="event")
    op.drop_table("event")
    op.drop_table("device_state")
    op.drop_index(op.f("ix_dead_letter_received_at"), table_name="dead_letter")
    op.drop_table("dead_letter")
    op.drop_table("boot")
