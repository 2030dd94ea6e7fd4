"""What goes over MQTT: topics, batches, acknowledgements and status, and their strict reading.

Nothing here touches a network. Limits are checked before any work is done for a payload: its size
as sent before it is inflated, its inflated size while it is inflated, its depth by the JSON reader.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decodewatch.shared import records
from decodewatch.shared.errors import RecordError, WireError, shown
from decodewatch.shared.ids import DEVICE_ID_ACCEPTED, is_device_id
from decodewatch.shared.records import MAX_TIME_US, Record

VERSION = 1
ROOT = f"decodewatch/{VERSION}"
MAX_SENT = 64 * 1024
MAX_INFLATED = 1024 * 1024
MAX_RECORDS = 4096
MAX_ACK_INFLATED = 64 * 1024  # an acknowledgement is read by the device, whose memory is small
MAX_RANGES = 1024  # of one acknowledgement, over all its streams
MAX_NUMBER = 1 << 40  # of a batch: a thousand a second for 35 years; sums of it fit in 64 bits
LEAVES = ("up", "status", "ack", "desired")

_integer = records.integer
_time = _integer(0, MAX_TIME_US)
_wall = _integer(0, MAX_TIME_US)
_id = records.text(64)
_number = _integer(1, MAX_NUMBER)


@dataclass(frozen=True, slots=True)
class Clock:
    """One moment on both clocks of a device, in microseconds; does NTP vouch for `wall`?"""

    t: int
    wall: int
    synchronised: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records under one number of a stream; `previous` is the stream before this one."""

    device: str
    stream: str
    previous: str | None
    number: int  # from 1, without holes, in the order of making
    boot: str
    clock: Clock
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """A batch as the collector reads it: what was valid, and why the rest was not."""

    batch: Batch
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a device is connected. Retained; of two, the higher `connection` is the newer."""

    device: str
    online: bool
    connection: int
    agent_version: str | None
    boot: str | None
    clock: Clock | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Numbers of one stream that are committed, as inclusive ranges in rising order."""

    stream: str
    ranges: tuple[tuple[int, int], ...]


def topic(device: str, leaf: str) -> str:
    """The topic of one device for one of LEAVES."""
    return f"{ROOT}/{device}/{leaf}"


def device_of(name: str) -> str:
    """The device that a topic belongs to. Raises WireError where the topic is not ours."""
    parts = name.split("/")
    root = ROOT.split("/")
    if len(parts) != 4 or parts[:2] != root or not is_device_id(parts[2]) or parts[3] not in LEAVES:
        raise WireError(
            f"topic {shown(name, 120)}; accepted is {ROOT}/<device>/<{'|'.join(LEAVES)}>, "
            f"device being {DEVICE_ID_ACCEPTED}"
        )
    return parts[2]


def pack(value: Any) -> bytes:
    """A JSON document, deflated where that is shorter.

    Raises WireError where nobody would inflate it again.
    """
    plain = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    if len(plain) > MAX_INFLATED:
        raise WireError(f"payload inflates to {len(plain)} bytes; accepted are {MAX_INFLATED}")
    deflated = zlib.compress(plain, 6)
    return deflated if len(deflated) < len(plain) else plain


def unpack(payload: bytes, most: int = MAX_INFLATED) -> dict[str, Any]:
    """The JSON object of a payload, `most` bytes of it once inflated.

    Raises WireError where it is malformed or over a limit.
    """
    if len(payload) > MAX_SENT:
        raise WireError(f"payload of {len(payload)} bytes; accepted are {MAX_SENT}")
    plain = payload if payload[:1] == b"{" else _inflate(payload, most)
    try:
        value = json.loads(plain, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"payload {shown(value)}; accepted is a JSON object")
    return value


def _inflate(payload: bytes, most: int) -> bytes:
    machine = zlib.decompressobj()
    try:
        plain = machine.decompress(payload, most)
    except zlib.error as error:
        raise WireError(f"payload is neither a JSON object nor deflated: {error}") from None
    if machine.unconsumed_tail:
        raise WireError(f"payload inflates to more than {most} bytes")
    if not machine.eof or machine.unused_data:
        raise WireError("payload is cut short, or holds bytes after its end")
    return plain


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _get(value: dict[str, Any], name: str, check: records.Check, where: str) -> Any:
    if name not in value:
        raise WireError(f"{where}.{name}: missing")
    try:
        return check(value[name])
    except RecordError as error:
        raise WireError(f"{where}.{name}: {error}") from None


def _get_optional(value: dict[str, Any], name: str, check: records.Check, where: str) -> Any:
    return None if value.get(name) is None else _get(value, name, check, where)


def _check_version(value: dict[str, Any], where: str) -> None:
    if type(value.get("v")) is not int or value["v"] != VERSION:
        raise WireError(f"{where}.v: {shown(value.get('v'))}; accepted is {VERSION}")


def _check_device(value: dict[str, Any], where: str) -> str:
    device = value.get("device")
    if not isinstance(device, str) or not is_device_id(device):
        raise WireError(f"{where}.device: {shown(device)}; accepted is {DEVICE_ID_ACCEPTED}")
    return device


def _clock(value: Any) -> Clock:
    if not isinstance(value, dict):
        raise RecordError(f"{shown(value)}; accepted is an object")
    return Clock(
        _get(value, "t", _time, "clock"),
        _get(value, "wall", _wall, "clock"),
        _get(value, "sync", records.boolean, "clock"),
    )


def _clock_json(clock: Clock) -> dict[str, Any]:
    return {"t": clock.t, "wall": clock.wall, "sync": clock.synchronised}


def encode_batch(batch: Batch) -> bytes:
    """The payload of a batch. Raises WireError where it would be over a limit."""
    if not 0 < len(batch.records) <= MAX_RECORDS:
        raise WireError(f"batch of {len(batch.records)} records; accepted are 1 to {MAX_RECORDS}")
    payload = pack(
        {
            "v": VERSION,
            "device": batch.device,
            "stream": batch.stream,
            "previous": batch.previous,
            "number": batch.number,
            "boot": batch.boot,
            "clock": _clock_json(batch.clock),
            "records": [records.to_json(record) for record in batch.records],
        }
    )
    if len(payload) > MAX_SENT:
        raise WireError(f"batch of {len(payload)} bytes; accepted are {MAX_SENT}")
    return payload


def decode_batch(payload: bytes) -> Received:
    """Read a batch. Raises WireError where its envelope is wrong; bad records are set apart."""
    value = unpack(payload)
    _check_version(value, "batch")
    items = value.get("records")
    if not isinstance(items, list) or not 0 < len(items) <= MAX_RECORDS:
        raise WireError(f"batch.records: {shown(items)}; accepted is a list of 1 to {MAX_RECORDS}")
    good: list[Record] = []
    refused: list[str] = []
    for place, item in enumerate(items):
        try:
            good.append(records.from_json(item))
        except RecordError as error:
            refused.append(f"records[{place}]: {error}")
    batch = Batch(
        device=_check_device(value, "batch"),
        stream=_get(value, "stream", _id, "batch"),
        previous=_get_optional(value, "previous", _id, "batch"),
        number=_get(value, "number", _number, "batch"),
        boot=_get(value, "boot", _id, "batch"),
        clock=_get(value, "clock", _clock, "batch"),
        records=tuple(good),
    )
    return Received(batch, tuple(refused))


def encode_status(status: Status) -> bytes:
    """The payload of a status message; small and never deflated, so that people can read it."""
    value: dict[str, Any] = {
        "v": VERSION,
        "device": status.device,
        "online": status.online,
        "connection": status.connection,
    }
    if status.agent_version is not None:
        value["agent"] = status.agent_version
    if status.boot is not None:
        value["boot"] = status.boot
    if status.clock is not None:
        value["clock"] = _clock_json(status.clock)
    return json.dumps(value, separators=(",", ":")).encode()


def decode_status(payload: bytes) -> Status:
    """Read a status message. Raises WireError where it is not one."""
    value = unpack(payload)
    _check_version(value, "status")
    return Status(
        device=_check_device(value, "status"),
        online=_get(value, "online", records.boolean, "status"),
        connection=_get(value, "connection", _integer(), "status"),
        agent_version=_get_optional(value, "agent", _id, "status"),
        boot=_get_optional(value, "boot", _id, "status"),
        clock=_get_optional(value, "clock", _clock, "status"),
    )


def encode_ack(acknowledged: Sequence[Acknowledged]) -> bytes:
    """The payload of an acknowledgement."""
    return pack(
        {
            "v": VERSION,
            "streams": [
                [item.stream, [list(pair) for pair in item.ranges]] for item in acknowledged
            ],
        }
    )


def decode_ack(payload: bytes) -> tuple[Acknowledged, ...]:
    """Read an acknowledgement. Raises WireError where it is not one."""
    value = unpack(payload, MAX_ACK_INFLATED)
    _check_version(value, "ack")
    streams = value.get("streams")
    if not isinstance(streams, list):
        raise WireError(f"ack.streams: {shown(streams)}; accepted is a list of [stream, ranges]")
    found = []
    count = 0
    for item in streams:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], list)):
            raise WireError(f"ack.streams: {shown(item)}; accepted is [stream, ranges]")
        count += max(1, len(item[1]))
        if count > MAX_RANGES:
            raise WireError(f"ack.streams: more than {MAX_RANGES} ranges")
        try:
            found.append(Acknowledged(_id(item[0]), tuple(_range(pair) for pair in item[1])))
        except RecordError as error:
            raise WireError(f"ack.streams: {error}") from None
    return tuple(found)


def _range(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise RecordError(f"range {shown(value)}; accepted is [first, last]")
    first, last = map(_number, value)
    if first > last:
        raise RecordError(f"range {shown(value)}; accepted is [first, last], first <= last")
    return first, last
