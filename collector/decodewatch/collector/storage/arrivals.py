"""What arrives over MQTT, read: a batch, a status, or a letter that cannot be delivered. Pure."""

from dataclasses import dataclass, replace

from decodewatch.collector.storage.placement import AHEAD_US
from decodewatch.shared import records, wire
from decodewatch.shared.errors import RecordError, WireError, shown
from decodewatch.shared.wire import Batch, Received, Status

_REASON = 512  # what tables.dead_letter holds
_TOPIC = 256


@dataclass(frozen=True, slots=True)
class Message:
    """A message as MQTT hands it over; `received_at` is the server's wall time, microseconds.

    `size` is that of the payload as sent, of which too large a one keeps its beginning only.
    """

    topic: str
    payload: bytes
    received_at: int
    retained: bool
    size: int

    @classmethod
    def of(
        cls, topic: str, payload: bytes, received_at: int, *, retained: bool = False
    ) -> "Message":
        """A message with no more of its payload than a batch may have."""
        kept = payload[: wire.MAX_SENT]
        return cls(topic, kept, received_at, retained, len(payload))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What of a batch must be readable so that it can be acknowledged and entered in the ledger."""

    device: str
    stream: str
    number: int
    previous: str | None
    boot: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch, and whatever records of it were not valid."""

    message: Message
    received: Received

    @property
    def envelope(self) -> Envelope:
        """The envelope of the batch."""
        return envelope_of(self.received.batch)


@dataclass(frozen=True, slots=True)
class Heard:
    """A status message."""

    message: Message
    status: Status


@dataclass(frozen=True, slots=True)
class Letter:
    """What cannot be stored, with its reason; `device` is the topic's, "" where it names none."""

    message: Message
    device: str
    reason: str
    envelope: Envelope | None = None

    @property
    def topic(self) -> str:
        """The topic as a table can hold it."""
        return escaped(self.message.topic, _TOPIC)

    @property
    def short_reason(self) -> str:
        """The reason as a table can hold it."""
        return escaped(self.reason, _REASON)


Arrival = Delivery | Heard | Letter


def escaped(text: str, limit: int) -> str:
    """Text that somebody else chose, printable, and at most `limit` characters long."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def envelope_of(batch: Batch) -> Envelope:
    """The envelope of a batch that was read."""
    return Envelope(batch.device, batch.stream, batch.number, batch.previous, batch.boot)


def read(message: Message) -> Arrival:
    """Read one message of an `up` or `status` topic. Whatever it holds, this does not raise."""
    try:
        device = wire.device_of(message.topic)
    except WireError as error:
        return Letter(message, "", str(error))
    if message.size > wire.MAX_SENT:
        reason = f"payload of {message.size} bytes; accepted are {wire.MAX_SENT}"
        return Letter(message, device, reason)
    try:
        if message.topic != wire.topic(device, "up"):
            return _status(message, device)
    except WireError as error:
        return Letter(message, device, str(error))
    try:
        received = wire.decode_batch(message.payload)
    except WireError as error:
        return Letter(message, device, str(error), _envelope(message.payload, device))
    if received.batch.device != device:
        return Letter(message, device, _belongs_to(received.batch.device))
    return Delivery(message, _without_future(received))


def _status(message: Message, device: str) -> Arrival:
    status = wire.decode_status(message.payload)
    if status.device != device:
        return Letter(message, device, _belongs_to(status.device))
    highest = (message.received_at + AHEAD_US) // 1000
    if status.connection > highest:
        # Milliseconds of the device's wall clock where it connected first: of one so far ahead,
        # nothing that it or anybody says later would be the newer.
        return Letter(
            message, device, f"status.connection: {status.connection}; accepted is 0 to {highest}"
        )
    return Heard(message, status)


def _without_future(received: Received) -> Received:
    """Set apart what ended more than a day after its batch was made: it would be the newest for
    ever."""
    batch, refused = received.batch, list(received.refused)
    latest = batch.clock.t + AHEAD_US
    kept = []
    for record in batch.records:
        end = _end(record)
        if end <= latest:
            kept.append(record)
        else:
            kind = type(record).__name__.lower()
            refused.append(
                f"{kind} that ends at t {end}; accepted is up to {latest}, a day after clock.t"
            )
    return Received(replace(batch, records=tuple(kept)), tuple(refused))


def _end(record: records.Record) -> int:
    return record.t + record.duration_us if isinstance(record, records.Turn) else record.t


def _belongs_to(device: str) -> str:
    return f"payload names device {shown(device)}; accepted is the device of its topic"


def _envelope(payload: bytes, device: str) -> Envelope | None:
    """What can be read of the envelope of a batch that is not valid; None where that is too little.

    A payload that names another device, or none, proves nothing about this device's streams.
    """
    try:
        value = wire.unpack(payload)
        if value.get("device") != device:
            return None
        text, number = records.text(64), records.integer(1, records.MAX_INTEGER)
        stream, sequence = text(value.get("stream")), number(value.get("number"))
    except WireError:
        return None
    previous, boot = (_or_none(value.get(name)) for name in ("previous", "boot"))
    return Envelope(device, stream, sequence, previous, boot or "")


def _or_none(value: object) -> str | None:
    try:
        checked: str | None = records.optional(records.text(64))(value)
    except RecordError:
        return None
    return checked
