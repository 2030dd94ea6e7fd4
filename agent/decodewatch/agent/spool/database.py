"""The spool's SQLite database: how it is opened, its tables, its transactions and its errors."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decodewatch.shared import logs

log = logs.get(__name__)

PAGE_BYTES = 4096
CHECKPOINT_PAGES = 64
"""The write-ahead log is copied into the database when it has so many pages: it stays small, and
its blocks are used again, so that a full disk finds them reserved."""
WAL_BYTES = 384 * 1024
"""What a longer write-ahead log is cut back to."""
_CACHE_KIB = 256
_APPLICATION = 0x44574348  # "DWCH", in the header of the file
_SCHEMA = 1

# batch.id is stream.base + the batch's number: one b-tree, appended to at its end, is all that a
# batch costs the flash. A stream's ids end where the next stream's base is.
_TABLES = (
    "CREATE TABLE stream (base INTEGER PRIMARY KEY, stream TEXT NOT NULL UNIQUE, previous TEXT)",
    "CREATE TABLE batch (id INTEGER PRIMARY KEY, detail INTEGER NOT NULL,"
    " records INTEGER NOT NULL, crc INTEGER NOT NULL, payload BLOB NOT NULL)",
    "CREATE TABLE loss (event_id TEXT NOT NULL, stream TEXT NOT NULL,"
    " first INTEGER NOT NULL, last INTEGER NOT NULL,"
    " batches INTEGER NOT NULL, records INTEGER NOT NULL, turns INTEGER NOT NULL)",
    "CREATE INDEX loss_place ON loss (stream, first)",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_SCHEMA}",
)


class Database:
    """One connection, which only the thread that made it may use.

    Every method may raise sqlite3.Error; `is_corrupt`, `is_full` and `is_io` sort them.
    """

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, timeout=1, isolation_level=None)
        try:
            self._configure()
        except BaseException:
            self._connection.close()
            raise

    def _configure(self) -> None:
        for pragma in (
            f"page_size = {PAGE_BYTES}",
            "auto_vacuum = INCREMENTAL",
            # Nobody else opens the spool; the WAL's index then needs no shared memory file, which
            # a full disk could refuse.
            "locking_mode = EXCLUSIVE",
        ):
            self.query(f"PRAGMA {pragma}")
        mode = self.query("PRAGMA journal_mode = WAL")[0][0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"no write-ahead log here, only {mode}")
        for pragma in (
            "synchronous = FULL",
            f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"journal_size_limit = {WAL_BYTES}",
            f"cache_size = -{_CACHE_KIB}",
            "temp_store = MEMORY",
            # Zeros over what was deleted would double what is written, and hide nothing here.
            "secure_delete = OFF",
        ):
            self.query(f"PRAGMA {pragma}")

    def prepare(self) -> None:
        """Make the tables in a new file, inside a transaction.

        Raises sqlite3.DatabaseError where the file holds a database of something else.
        """
        application = self.query("PRAGMA application_id")[0][0]
        schema = self.query("PRAGMA user_version")[0][0]
        if (application, schema) == (_APPLICATION, _SCHEMA):
            return
        if application or schema or self.query("SELECT 1 FROM sqlite_master LIMIT 1"):
            raise sqlite3.DatabaseError(
                f"file is not a database of this spool: application {application:#x}, "
                f"schema {schema}; accepted are {_APPLICATION:#x} and {_SCHEMA}"
            )
        for statement in _TABLES:
            self.query(statement)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a statement. Never a half-read cursor: it would hold back the checkpoint."""
        return self._connection.execute(statement, values).fetchall()

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """One statement for each of some rows."""
        self._connection.executemany(statement, rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; durable when it ends without an exception."""
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            # After some errors SQLite has rolled back already.
            if self._connection.in_transaction:
                self.query("ROLLBACK")
            raise

    def used_pages(self) -> int:
        """Pages that hold something."""
        return self.pages() - self.free_pages()

    def pages(self) -> int:
        """Pages of the file, as of the last commit."""
        count: int = self.query("PRAGMA page_count")[0][0]
        return count

    def free_pages(self) -> int:
        """Pages of the file that hold nothing."""
        count: int = self.query("PRAGMA freelist_count")[0][0]
        return count

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the database and begin it anew, as far as possible."""
        try:
            self.query("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            if is_corrupt(error):
                raise
            log.warning("checkpoint not made", every=600, reason=str(error))

    def give_back(self, pages: int) -> None:
        """Cut some free pages off the file."""
        # It yields a row without columns for each page, at the first of which `query` would stop.
        self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")

    def meta(self, name: str) -> str | None:
        """A value kept by `set_meta`."""
        rows = self.query("SELECT value FROM meta WHERE name = ?", name)
        return rows[0][0] if rows else None

    def set_meta(self, name: str, value: str) -> None:
        """Keep a value, inside a transaction."""
        self.query(
            "INSERT INTO meta VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )

    def close(self) -> None:
        """Close it; the last checkpoint is made here."""
        self._connection.close()


# Python 3.10 has no error codes in its exceptions; these texts are SQLite's own and do not change.
def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, or is no database of ours at all."""
    text = str(error)
    return "malformed" in text or "file is not a database" in text


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk is full."""
    return "is full" in str(error)


def is_io(error: sqlite3.Error) -> bool:
    """Whether the operating system refused to read or write; also where a quota is used up."""
    return "disk I/O error" in str(error)
