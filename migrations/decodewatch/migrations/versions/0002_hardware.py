"""What the hardware is, whether it is throttled, and samples kept apart by phase."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Change the schema to this revision."""
    op.add_column("device_state", sa.Column("throttle", sa.String(length=16), nullable=True))
    op.add_column("device_state", sa.Column("described_at", sa.BigInteger(), nullable=True))
    op.add_column(
        "device_state", sa.Column("description", sa.JSON(none_as_null=True), nullable=True)
    )
    op.add_column("sample", sa.Column("phases", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Change it back."""
    op.drop_column("sample", "phases")
    for name in ("description", "described_at", "throttle"):
        op.drop_column("device_state", name)
