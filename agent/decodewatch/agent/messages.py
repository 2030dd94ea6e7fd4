"""The messages of an application to the agent, and their strict reading (`docs/inbox.md`). Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

from decodewatch.shared import records
from decodewatch.shared.errors import DecodewatchError, RecordError, shown
from decodewatch.shared.model import ALLOCATIONS, OVERFLOWS, ModelSpec
from decodewatch.shared.records import Check, Field, Scalar, integer, optional, text

VERSION = 1
MAX_LINE = 64 * 1024
"""Bytes of one line, its newline included."""
MAX_STEP_TOKENS = 1 << 20
MAX_AHEAD_US = 10_000_000
"""A time further ahead of the agent's clock than this is of another clock."""

_id = text(64)
_tokens = integer(0, 1 << 40)

EVENTS: Final[Mapping[str, Mapping[str, Check]]] = {
    # The client of a turn had left, and the server went on with it.
    "orphaned_generation": {
        "working_s": records.number,
        "tokens": optional(_tokens),
        "stopped": records.boolean,
    },
    # The context of a turn was full, and this is what became of it.
    "context_limit": {
        "policy": records.choice(OVERFLOWS),
        "depth": optional(_tokens),
        "limit": optional(_tokens),
        "times": optional(integer(1, 1 << 31)),
    },
    # What the runtime itself says that its KV cache held at the end of a turn.
    "kv_cache": {
        "allocation": optional(records.choice(ALLOCATIONS)),
        "bytes": integer(),
        "peak_bytes": optional(integer()),
        "tokens": optional(_tokens),
        "stale_tokens": optional(_tokens),
    },
}
"""The events that an application may report, and what the data of each must be. No text: it could
be that of a prompt."""
MAX_TURN_EVENTS: Final = 8
"""Events of one turn that come with its record."""


class Refusal(DecodewatchError):
    """A message is not valid and never will be; `turn` is the turn that it concerns, if any.

    `message` is its type, where it has one and whoever raises this alone knows it.
    """

    def __init__(self, reason: str, turn: str | None = None, message: str | None = None) -> None:
        super().__init__(reason)
        self.turn = turn
        self.message = message


def _model(value: Any) -> ModelSpec:
    try:
        return ModelSpec.from_json(value)
    except DecodewatchError as error:
        raise RecordError(str(error)) from None


def _version(value: Any) -> int:
    if type(value) is not int or value != VERSION:
        raise RecordError(f"{shown(value)}; accepted is {VERSION}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{shown(value)}; accepted is an object")
    return value


def _steps(value: Any) -> "tuple[tuple[int | None, int], ...]":
    """[[gap_us or null, tokens], ...]."""
    if not isinstance(value, list):
        raise RecordError(f"{shown(value)}; accepted is a list of [gap_us, tokens]")
    found = []
    for place, item in enumerate(value):
        if not isinstance(item, list) or len(item) != 2:
            raise RecordError(f"[{place}]: {shown(item)}; accepted is [gap_us, tokens]")
        gap, tokens = item
        if gap is not None and not (type(gap) is int and 0 <= gap <= records.MAX_TIME_US):
            raise RecordError(f"[{place}]: gap {shown(gap)}; accepted are microseconds or null")
        if type(tokens) is not int or not 0 <= tokens <= MAX_STEP_TOKENS:
            raise RecordError(
                f"[{place}]: tokens {shown(tokens)}; accepted are 0 to {MAX_STEP_TOKENS}"
            )
        found.append((gap, tokens))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event that comes with the record of its turn."""

    event: str
    t: int
    data: Mapping[str, Scalar]


def _turn_events(value: Any) -> tuple[TurnEvent, ...]:
    """[{"event": ..., "t": ..., "data": {...}}, ...]. Kinds of a newer wrapper are left out: for
    them its turn is not to be refused."""
    if not isinstance(value, list) or len(value) > MAX_TURN_EVENTS:
        raise RecordError(f"{shown(value)}; accepted is a list of at most {MAX_TURN_EVENTS}")
    found = []
    for place, item in enumerate(value):
        try:
            fields = _object(item)
            kind = _id(fields.get("event"))
            if kind not in EVENTS:
                continue
            t = integer(0, records.MAX_TIME_US)(fields.get("t"))
            found.append(TurnEvent(kind, t, _data_of(kind, _object(fields.get("data")))))
        except RecordError as error:
            raise RecordError(f"[{place}]: {error}") from None
    return tuple(found)


def _data_of(kind: str, data: Mapping[str, Any]) -> dict[str, Scalar]:
    """What an event's kind says of it. Raises RecordError naming the field."""
    found: dict[str, Scalar] = {}
    for name, check in EVENTS[kind].items():
        try:
            found[name] = check(data.get(name))
        except RecordError as error:
            raise RecordError(f"data.{name}: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class Hello:
    """An application names itself. `pid` counts only where the socket's credentials show none.

    `of_pid` names another process as the runtime, 0 one that is not known.
    """

    TYPE: ClassVar[str] = "hello"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("v", _version),
        Field("name", _id),
        Field("engine", _id),
        Field("engine_version", optional(_id), required=False),
        Field("model", optional(_model), required=False),
        Field("settings", optional(records.scalars), required=False),
        Field("pid", optional(integer(1, 1 << 31)), required=False),
        Field("of_pid", optional(integer(0, 1 << 31)), required=False),
    )

    v: int
    name: str
    engine: str
    engine_version: str | None
    model: ModelSpec | None
    settings: Mapping[str, Scalar] | None
    pid: int | None
    of_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """A request was accepted."""

    TYPE: ClassVar[str] = "begin"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("turn", _id),
        Field("t", integer(0, records.MAX_TIME_US)),
        Field("session", optional(text(256)), required=False),
        Field("number", optional(integer(0, 1 << 31)), required=False),
        Field("prompt_tokens", optional(_tokens), required=False),
        Field("cached_tokens", optional(_tokens), required=False),
    )

    turn: str
    t: int
    session: str | None
    number: int | None
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The steps of an open turn since the last progress."""

    TYPE: ClassVar[str] = "progress"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("turn", _id),
        Field("t", integer(0, records.MAX_TIME_US)),
        Field("first", integer(0, 1 << 40)),
        Field("steps", _steps),
        Field("ttft_us", optional(integer(0, records.MAX_TIME_US)), required=False),
        Field("depth", optional(_tokens), required=False),
        Field("memory_bytes", optional(integer()), required=False),
    )

    turn: str
    t: int
    first: int
    steps: tuple[tuple[int | None, int], ...]
    ttft_us: int | None
    depth: int | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn ended. `record` is read by `turn_record`, once the runtime is known.

    `events` are of this turn, and stored with it.
    """

    TYPE: ClassVar[str] = "turn"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("record", _object),
        Field("events", optional(_turn_events), required=False),
    )

    record: Mapping[str, Any]
    events: "tuple[TurnEvent, ...] | None" = None


@dataclass(frozen=True, slots=True)
class Forget:
    """A turn that began has no record: the application had to give it up."""

    TYPE: ClassVar[str] = "forget"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("turn", _id),)

    turn: str


@dataclass(frozen=True, slots=True)
class Happened:
    """Something happened to the runtime or to one of its turns. `data` is read by `event_data`."""

    TYPE: ClassVar[str] = "event"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("event", records.choice(tuple(EVENTS))),
        Field("t", integer(0, records.MAX_TIME_US)),
        Field("turn", optional(_id), required=False),
        Field("data", _object),
    )

    event: str
    t: int
    turn: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bye:
    """The process is about to exit in good order."""

    TYPE: ClassVar[str] = "bye"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("reason", optional(text(256)), required=False),)

    reason: str | None


Message = Hello | Begin | Progress | Ended | Forget | Happened | Bye
TYPES: Mapping[str, type[Message]] = {
    kind.TYPE: kind for kind in (Hello, Begin, Progress, Ended, Forget, Happened, Bye)
}


def parse(line: bytes, now_us: int) -> Message:
    """The message of one line. `now_us` is the boot clock. Raises Refusal naming what is wrong."""
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"not JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise Refusal(f"{shown(value)}; accepted is a JSON object")
    name = value.get("type")
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Refusal(f"type: {shown(name)}; accepted are {', '.join(TYPES)}", _turn_of(value))
    checked: dict[str, Any] = {}
    for item in kind.FIELDS:
        if item.name not in value:
            if item.required:
                raise Refusal(f"{kind.TYPE}.{item.name}: missing", _turn_of(value), kind.TYPE)
            checked[item.name] = None
            continue
        try:
            checked[item.name] = item.check(value[item.name])
        except RecordError as error:
            reason = f"{kind.TYPE}.{item.name}: {error}"
            raise Refusal(reason, _turn_of(value), kind.TYPE) from None
    if "t" in checked:
        _check_time(kind.TYPE, checked["t"], now_us, _turn_of(value))
    return kind(**checked)


def turn_record(
    record: Mapping[str, Any], runtime: str, session: str | None, now_us: int
) -> records.Turn:
    """The record of an ended turn, completed by what the agent knows. Raises Refusal."""
    named = _turn_of({"record": record})
    try:
        turn = records.read(records.Turn, {**record, "runtime": runtime, "session": session})
    except RecordError as error:
        raise Refusal(str(error), named) from None
    _check_time(Ended.TYPE, turn.t, now_us, named)
    return turn


def event_data(message: Happened) -> dict[str, Scalar]:
    """What an event's kind says of it; fields that it does not have are left out. Raises Refusal.

    A required field that is missing is refused, an optional one is None.
    """
    try:
        return _data_of(message.event, message.data)
    except RecordError as error:
        raise Refusal(f"event.{error}", message.turn, message.TYPE) from None


def session_of(record: Mapping[str, Any]) -> str | None:
    """The application's own session id in an ended turn. Raises Refusal."""
    try:
        found: str | None = _session(record.get("session"))
    except RecordError as error:
        raise Refusal(f"turn.session: {error}", _turn_of({"record": record})) from None
    return found


_session: Check = optional(text(256))


def _check_time(message: str, t: int, now_us: int, turn: str | None) -> None:
    if t > now_us + MAX_AHEAD_US:
        raise Refusal(
            f"{message}.t: {t} is ahead of the boot clock, which is at {now_us}; accepted are its "
            "microseconds (CLOCK_BOOTTIME)",
            turn,
            message,
        )


def _turn_of(value: Mapping[str, Any]) -> str | None:
    """The turn that a message concerns, if it says so in a usable form."""
    record = value.get("record")
    found = record.get("id") if isinstance(record, dict) else value.get("turn")
    return found if isinstance(found, str) and 0 < len(found) <= 64 else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
