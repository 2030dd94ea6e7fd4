"""What an agent that has ended left in its spool."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from decodewatch.shared.records import Event, Record
from decodewatch.shared.wire import Batch, decode_batch


def batches(state: Path) -> list[Batch]:
    """The batches that wait in the spool of a state folder, in their order."""
    with contextlib.closing(sqlite3.connect(state / "spool.db")) as database:
        rows = database.execute("SELECT payload FROM batch ORDER BY id").fetchall()
    found = [decode_batch(payload) for (payload,) in rows]
    assert not [reason for one in found for reason in one.refused]
    return [one.batch for one in found]


def records(state: Path, kind: type[Record]) -> list[Any]:
    """The records of one kind in them."""
    return [record for batch in batches(state) for record in batch.records if type(record) is kind]


def events(state: Path, name: str) -> list[Event]:
    """The events of one kind in them."""
    return [event for event in records(state, Event) if event.event == name]
