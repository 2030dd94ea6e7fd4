"""Cutting records into batches that fit the wire. Pure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from decodewatch.shared import logs
from decodewatch.shared.errors import WireError
from decodewatch.shared.ids import uuid7
from decodewatch.shared.records import Event, Record
from decodewatch.shared.wire import Batch, encode_batch

log = logs.get(__name__)

REFUSED = "record_refused"
"""The event that stands in the stream for a record that no batch can hold."""
# JSON of so many records stays far below the inflated limit, and the memory that making it takes.
MOST_RECORDS = 128


@dataclass(frozen=True, slots=True)
class Encoded:
    """One batch ready to be stored."""

    records: Sequence[Record]
    payload: bytes


def encode(records: Sequence[Record], first: Batch) -> list[Encoded]:
    """The records in order, in as few batches as fit the limits.

    `first` gives all but the records; its number is the first batch's, and the others follow.
    """
    waiting = [
        records[start : start + MOST_RECORDS] for start in range(0, len(records), MOST_RECORDS)
    ]
    waiting.reverse()
    made: list[Encoded] = []
    while waiting:
        part = waiting.pop()
        batch = dataclasses.replace(first, number=first.number + len(made), records=tuple(part))
        try:
            made.append(Encoded(part, encode_batch(batch)))
        except (WireError, ValueError) as error:  # ValueError: NaN, or text that UTF-8 cannot hold
            if len(part) > 1:
                middle = len(part) // 2
                waiting += part[middle:], part[:middle]
            else:
                waiting.append((_refusal(part[0], error, first.clock.t),))
    return made


def _refusal(record: Record, error: Exception, t: int) -> Event:
    log.error("record cannot be sent", kind=record.KIND, reason=str(error))
    data = {"kind": record.KIND, "reason": ascii(str(error))[:200]}
    return Event(id=uuid7(), t=t, event=REFUSED, data=data)
