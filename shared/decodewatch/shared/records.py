"""The records that a device sends, and the strict reading of them on the server.

Each record is a frozen dataclass, and each class says with FIELDS how its fields are checked when
they come from the network: a missing, mistyped or out-of-range field raises RecordError naming it,
and a field that this version does not know is ignored, so that a newer device is still understood.

Times `t` are microseconds of the boot clock of the boot that the batch names; durations end in
`_us` and are microseconds; sizes end in `_bytes`. None always means "not known".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from decodewatch.shared.errors import DecodewatchError, RecordError, shown
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.sketch import Sketch

Check = Callable[[Any], Any]
Scalar = str | int | float | bool | None

# How a turn ended. `lost` is the agent's word: its runtime vanished in the middle of it.
ENDINGS = ("complete", "cancelled", "error", "aborted", "truncated", "lost")
# Where the number of output tokens comes from: counted one a step, the engine's own report, or
# one a chunk because nothing better was known.
TOKEN_SOURCES = ("counted", "reported", "estimated")
# What held the clocks down. policy: the power mode or a cap was changed, which is no throttling.
THROTTLE_STATES = ("none", "thermal", "power", "over_current", "policy", "unknown")
# What a device was doing in a part of an interval, by the times of its turns: `prefill` and
# `decode` where every open turn was in that phase, `mixed` where there were both.
PHASES = ("idle", "prefill", "decode", "mixed")

MAX_TIME_US = (1 << 53) - 1  # 285 years: exact in every JSON reader
MAX_INTEGER = (1 << 63) - 1  # what a SQL BIGINT holds
MAX_MEASUREMENTS = 512
MAX_DATA = 32


def integer(low: int = 0, high: int = MAX_INTEGER) -> Check:
    """Accept a whole number from `low` to `high`."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise RecordError(f"{shown(value)}; accepted is a whole number from {low} to {high}")
        return value

    return check


def text(limit: int) -> Check:
    """Accept text of at most `limit` characters that SQL can store: no NUL, no lone surrogates."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= limit or "\0" in value:
            raise RecordError(f"{shown(value)}; accepted is text of 1 to {limit} characters")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RecordError(f"{shown(value)}; accepted is text that UTF-8 can hold") from None
        return value

    return check


def choice(accepted: tuple[str, ...]) -> Check:
    """Accept one of some words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in accepted:
            raise RecordError(f"{shown(value)}; accepted are {', '.join(accepted)}")
        return value

    return check


def boolean(value: Any) -> bool:
    """Accept true or false."""
    if type(value) is not bool:
        raise RecordError(f"{shown(value)}; accepted are true and false")
    return value


def optional(check: Check) -> Check:
    """Accept null, or what `check` accepts."""
    return lambda value: None if value is None else check(value)


def number(value: Any) -> int | float:
    """Accept a finite number."""
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    if type(value) is float and value - value == 0:
        return value
    raise RecordError(f"{shown(value)}; accepted is a finite number")


def scalars(value: Any) -> dict[str, Scalar]:
    """Accept a small flat object of text, numbers, booleans and nulls."""
    if not isinstance(value, dict) or len(value) > MAX_DATA:
        raise RecordError(f"{shown(value)}; accepted is an object of at most {MAX_DATA} fields")
    for name, item in value.items():
        _name(name)
        if isinstance(item, str):
            if item:
                text(256)(item)
        elif item is not None and type(item) is not bool:
            number(item)
    return value


def _measured(value: Any) -> int | float | tuple[int | float, int | float, int | float]:
    """A counter's increase over the interval, or a gauge's [mean, minimum, maximum]."""
    if not isinstance(value, list):
        return number(value)
    if len(value) != 3:
        raise RecordError(f"{shown(value)}; accepted is [mean, minimum, maximum]")
    mean, low, high = map(number, value)
    return mean, low, high


def _measurements(value: Any) -> "dict[str, Measured]":
    if not isinstance(value, dict) or len(value) > MAX_MEASUREMENTS:
        raise RecordError(
            f"{shown(value)}; accepted is an object of at most {MAX_MEASUREMENTS} measurements"
        )
    return {_name(name): _measured(item) for name, item in value.items()}


def _reasons(value: Any) -> dict[str, str]:
    """Why measurements are unknown."""
    if not isinstance(value, dict) or len(value) > MAX_MEASUREMENTS:
        raise RecordError(
            f"{shown(value)}; accepted is an object of at most {MAX_MEASUREMENTS} reasons"
        )
    return {_name(name): _id(reason) for name, reason in value.items()}


_name = text(128)
_time = integer(0, MAX_TIME_US)
_id = text(64)
Measured = int | float | tuple[int | float, int | float, int | float]


def _model(value: Any) -> ModelSpec:
    try:
        return ModelSpec.from_json(value)
    except RecordError:
        raise
    except DecodewatchError as error:
        raise RecordError(str(error)) from None


def _strata(value: Any) -> "tuple[tuple[int | None, Sketch], ...]":
    """[[depth octave or null, sketch], ...]."""
    if not isinstance(value, list) or len(value) > 65:
        raise RecordError(f"{shown(value)}; accepted is a list of [depth octave, sketch]")
    found = []
    for item in value:
        if not isinstance(item, list) or len(item) != 2:
            raise RecordError(f"{shown(item)}; accepted is [depth octave, sketch]")
        found.append((optional(integer(0, 63))(item[0]), Sketch.from_json(item[1])))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Field:
    """How one field is read: its check, and whether it may be missing (None is used then)."""

    name: str
    check: Check
    required: bool = True


@dataclass(frozen=True, slots=True)
class Runtime:
    """One process that decodes. Sent when it registers and again when anything of it changes."""

    KIND: ClassVar[str] = "runtime"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("id", _id),
        Field("t", _time),
        Field("pid", integer(1, 1 << 31)),
        Field("name", text(64)),
        Field("engine", text(64)),
        Field("engine_version", optional(text(64)), required=False),
        Field("model", optional(_model), required=False),
        Field("settings", scalars, required=False),
    )

    id: str
    t: int
    pid: int
    name: str
    engine: str
    engine_version: str | None = None
    model: ModelSpec | None = None
    settings: Mapping[str, Scalar] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its response.

    `t` is when the request was accepted; `ttft_us` counts from there to the first output token,
    `duration_us` to the end. `itl` holds the gaps between steps by depth octave
    (floor(log2(depth)), None where the depth is not known), one value a token: a chunk of k tokens
    gives k values of gap/k, and `shared_tokens` says how many tokens were measured so.
    `decode_us` is last token time - first token time.
    """

    KIND: ClassVar[str] = "turn"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("id", _id),
        Field("runtime", _id),
        Field("session", optional(_id), required=False),
        Field("number", optional(integer(0, 1 << 31)), required=False),
        Field("t", _time),
        Field("duration_us", _time),
        Field("ttft_us", optional(_time), required=False),
        Field("decode_us", optional(_time), required=False),
        Field("prompt_tokens", optional(integer(0, 1 << 40)), required=False),
        Field("cached_tokens", optional(integer(0, 1 << 40)), required=False),
        Field("output_tokens", integer(0, 1 << 40)),
        Field("first_tokens", integer(0, 1 << 40)),
        Field("steps", integer(0, 1 << 40)),
        Field("shared_tokens", integer(0, 1 << 40)),
        Field("token_source", choice(TOKEN_SOURCES)),
        Field("ending", choice(ENDINGS)),
        Field("error", optional(text(128)), required=False),
        Field("suspended_us", _time),
        Field("concurrency", integer(1, 1 << 20)),
        Field("memory_start_bytes", optional(integer()), required=False),
        Field("memory_peak_bytes", optional(integer()), required=False),
        Field("memory_end_bytes", optional(integer()), required=False),
        Field("itl", _strata),
    )

    id: str
    runtime: str
    session: str | None
    number: int | None  # 0 for the first turn of its session
    t: int
    duration_us: int
    ttft_us: int | None
    decode_us: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    first_tokens: int  # in the first chunk
    steps: int
    shared_tokens: int
    token_source: str
    ending: str
    error: str | None  # the exception's class; never its text, which may hold the prompt
    suspended_us: int  # how long the device slept inside the turn
    concurrency: int  # the most turns that its runtime had open at once during it
    memory_start_bytes: int | None  # RssAnon + VmSwap, like the two below
    memory_peak_bytes: int | None
    memory_end_bytes: int | None
    itl: tuple[tuple[int | None, Sketch], ...] = ()

    @property
    def tpot_us(self) -> float | None:
        """(last token time - first token time) / (output tokens - 1); None below two tokens."""
        if self.decode_us is None or self.output_tokens < 2:
            return None
        return self.decode_us / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Floor:
    """RssAnon + VmSwap of a runtime at its lowest between a turn's end and the next turn's start.

    `settled` says whether a reading lies 2 s or more after the turn's end, when allocators and
    caches have given back what they will.
    """

    KIND: ClassVar[str] = "floor"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("turn", _id),
        Field("runtime", _id),
        Field("t", _time),
        Field("bytes", integer()),
        Field("readings", integer(1, 1 << 31)),
        Field("settled", boolean),
    )

    turn: str
    runtime: str
    t: int
    bytes: int
    readings: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Stratum:
    """The gaps of one window at one depth octave, concurrency and throttle state."""

    depth: int | None
    concurrency: int
    throttle: str
    itl: Sketch


def _window_strata(value: Any) -> tuple[Stratum, ...]:
    if not isinstance(value, list) or len(value) > 256:
        raise RecordError(f"{shown(value)}; accepted is a list of at most 256 strata")
    found = []
    for item in value:
        if not isinstance(item, list) or len(item) != 4:
            raise RecordError(f"{shown(item)}; accepted is [depth, concurrency, throttle, sketch]")
        found.append(
            Stratum(
                optional(integer(0, 63))(item[0]),
                integer(1, 1 << 20)(item[1]),
                choice(THROTTLE_STATES)(item[2]),
                Sketch.from_json(item[3]),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Window:
    """What one runtime decoded in the `duration_us` before `t`."""

    KIND: ClassVar[str] = "window"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("runtime", _id),
        Field("t", _time),
        Field("duration_us", integer(1, MAX_TIME_US)),
        Field("tokens", integer(0, 1 << 40)),
        Field("steps", integer(0, 1 << 40)),
        Field("strata", _window_strata),
    )

    runtime: str
    t: int
    duration_us: int
    tokens: int
    steps: int
    strata: tuple[Stratum, ...] = ()


@dataclass(frozen=True, slots=True)
class Phase:
    """What the hardware showed while the device was in one of PHASES.

    `duration_us` is the time of the interval's readings that lie in it; `tokens` were decoded in
    it. Power times duration over tokens is the energy of a token.
    """

    duration_us: int
    tokens: int
    values: Mapping[str, Measured]


def _phases(value: Any) -> dict[str, Phase]:
    if not isinstance(value, dict):
        raise RecordError(f"{shown(value)}; accepted is an object of phases")
    found = {}
    for name, item in value.items():
        choice(PHASES)(name)
        if not isinstance(item, list) or len(item) != 3:
            raise RecordError(f"{shown(item)}; accepted is [duration_us, tokens, measurements]")
        found[name] = Phase(
            integer(1, MAX_TIME_US)(item[0]), integer(0, 1 << 40)(item[1]), _measurements(item[2])
        )
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """What the hardware (or, with `runtime`, one runtime's process) showed in one interval.

    `values` maps a measurement, with its label after a colon where it has one, to a gauge's
    [mean, minimum, maximum] or a counter's increase. A measurement that could not be read is
    absent from it and stands in `unknown` with its reason. `phases` holds the same of those that
    are kept apart by phase, for the system only.
    """

    KIND: ClassVar[str] = "sample"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("runtime", optional(_id), required=False),
        Field("t", _time),
        Field("duration_us", integer(1, MAX_TIME_US)),
        Field("values", _measurements),
        Field("unknown", _reasons, required=False),
        Field("phases", optional(_phases), required=False),
    )

    runtime: str | None
    t: int
    duration_us: int
    values: Mapping[str, Measured]
    unknown: Mapping[str, str] | None = None
    phases: Mapping[str, Phase] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something at one moment; `event` is its kind and `data` its numbers and words."""

    KIND: ClassVar[str] = "event"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("id", _id),
        Field("t", _time),
        Field("event", text(64)),
        Field("runtime", optional(_id), required=False),
        Field("turn", optional(_id), required=False),
        Field("data", scalars),
    )

    id: str
    t: int
    event: str
    runtime: str | None = None
    turn: str | None = None
    data: Mapping[str, Scalar] = field(default_factory=dict)


Record = Runtime | Turn | Floor | Window | Sample | Event
KINDS: Mapping[str, type[Record]] = {
    kind.KIND: kind for kind in (Runtime, Turn, Floor, Window, Sample, Event)
}


def to_json(record: Record) -> dict[str, Any]:
    """The record as a JSON object, fields that are None left out."""
    out: dict[str, Any] = {"kind": record.KIND}
    for item in record.FIELDS:
        value = getattr(record, item.name)
        if value is not None:
            out[item.name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, (Sketch, ModelSpec)):
        return value.to_json()
    if isinstance(value, Phase):
        return [value.duration_us, value.tokens, value.values]
    if isinstance(value, Mapping) and any(isinstance(item, Phase) for item in value.values()):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Stratum):
        return [value.depth, value.concurrency, value.throttle, value.itl.to_json()]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


_R = TypeVar("_R", bound=Record)


def read(kind: type[_R], value: Mapping[str, Any]) -> _R:
    """One record of a known kind. Raises RecordError naming the field that is wrong."""
    checked: dict[str, Any] = {}
    for item in kind.FIELDS:
        if item.name not in value:
            if item.required:
                raise RecordError(f"{kind.KIND}.{item.name}: missing")
            checked[item.name] = None
            continue
        try:
            checked[item.name] = item.check(value[item.name])
        except RecordError as error:
            raise RecordError(f"{kind.KIND}.{item.name}: {error}") from None
    return kind(**checked)


def from_json(value: Any) -> Record:
    """One record. Raises RecordError where its kind or a field is not valid."""
    if not isinstance(value, dict):
        raise RecordError(f"record: {shown(value)}; accepted is an object")
    name = value.get("kind")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"record.kind: {shown(name)}; accepted are {', '.join(KINDS)}")
    return read(kind, value)
