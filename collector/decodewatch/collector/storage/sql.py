"""SQL that SQLite and PostgreSQL both speak, and SQLAlchemy only by dialect."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, bindparam, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from decodewatch.collector.storage.rows import Row

Key = tuple[str, ...]
_KEYS_A_QUERY = 400  # SQLite takes 999 parameters where it is old


def _insert(connection: Connection, table: Table) -> Any:
    """The dialect's INSERT, which can say what to do where the key exists."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return make(table)


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert the rows whose key is not there yet."""
    if rows:
        connection.execute(_insert(connection, table).on_conflict_do_nothing(), rows)


def upsert_newer(connection: Connection, table: Table, rows: Sequence[Row], by: str) -> None:
    """Insert the rows; where the key is there, replace the row unless its `by` is greater."""
    if not rows:
        return
    statement = _insert(connection, table)
    keys = [column.name for column in table.primary_key]
    statement = statement.on_conflict_do_update(
        index_elements=keys,
        set_={name: statement.excluded[name] for name in rows[0] if name not in keys},
        where=statement.excluded[by] >= table.c[by],
    )
    connection.execute(statement, rows)


def locked(connection: Connection, table: Table, defaults: Mapping[Key, Row]) -> dict[Key, Row]:
    """The rows of some keys, locked until the transaction ends; absent ones are made as given.

    Keys are locked in their order, so that two transactions that want the same ones never wait for
    each other.
    """
    found: dict[Key, Row] = {}
    wanted = sorted(defaults)
    found.update(_select(connection, table, wanted))
    absent = [key for key in wanted if key not in found]
    if absent:
        insert_new(connection, table, [defaults[key] for key in absent])
        # Another transaction may have been quicker: what it committed counts.
        found.update(_select(connection, table, absent))
    return found


def _select(connection: Connection, table: Table, keys: Sequence[Key]) -> Iterator[tuple[Key, Row]]:
    columns = list(table.primary_key)
    for start in range(0, len(keys), _KEYS_A_QUERY):
        some = keys[start : start + _KEYS_A_QUERY]
        query = select(table).where(tuple_(*columns).in_(some)).order_by(*columns)
        for row in connection.execute(query.with_for_update()).mappings():
            yield tuple(row[column.name] for column in columns), dict(row)


def save(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Write rows back that `locked` gave."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    statement = update(table).values(
        {name: bindparam(name) for name in rows[0] if name not in keys}
    )
    for name in keys:
        statement = statement.where(table.c[name] == bindparam(f"key_{name}"))
    connection.execute(
        statement,
        [
            {(f"key_{name}" if name in keys else name): value for name, value in row.items()}
            for row in rows
        ],
    )
