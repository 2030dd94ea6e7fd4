"""Alembic's entry: runs the migrations on the connection that the collector gives, or on a URL.

From the command line: `alembic -x url=sqlite:///FILE check`, or with the URL in
$DECODEWATCH_COLLECTOR_DATABASE.
"""

import os

from alembic import context
from sqlalchemy import create_engine, pool
from sqlalchemy.engine import Connection

from decodewatch.shared.tables import metadata


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        # SQLite cannot alter most of a table: Alembic then copies it.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def _url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url")
    url = url or os.environ.get("DECODEWATCH_COLLECTOR_DATABASE")
    if not url:
        raise SystemExit("no database: give -x url=... or $DECODEWATCH_COLLECTOR_DATABASE")
    return url


if context.is_offline_mode():
    context.configure(url=_url(), target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
elif (given := context.config.attributes.get("connection")) is not None:
    _run(given)
else:
    with create_engine(_url(), poolclass=pool.NullPool).connect() as opened:
        _run(opened)
