"""From rows to what a table shows: frames whose cells are plain numbers, moments and tame text.

Pure. Streamlit draws `st.dataframe` on a canvas, where no text is markup; `facts` go into
`st.table`, which reads Markdown, and are escaped. Unknown is None in a frame, drawn as "unknown".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import pandas as pd

from decodewatch.dashboard import format as words
from decodewatch.dashboard.queries import Event, Runtime, Stream, Turn
from decodewatch.shared.model import ModelSpec

_MOST_SETTINGS = 12
# What records allow: a cell is cut where it is drawn, and shows all of it when it is opened.
_LONGEST_VALUE, _LONGEST_ERROR = 256, 128


def _milli(us: float | None) -> float | None:
    return None if us is None else us / 1000


def _mib(value: int | None) -> float | None:
    return None if value is None else value / 2**20


def names(runtimes: Iterable[Runtime]) -> dict[str, str]:
    """What to call each runtime: its name and pid."""
    return {one.runtime: f"{words.plain(one.name, 32)} {one.pid}" for one in runtimes}


def turns(rows: Sequence[Turn], called: Mapping[str, str], where: tzinfo) -> pd.DataFrame:
    """A row a turn, the newest first.

    A column that says the same in every row is left out: the runtime where there is one only, and
    how tokens were counted where all were counted one a step.
    """
    columns = {
        "began": [words.moment(row.at, where) for row in rows],
        "session": [None if row.session is None else row.session[:8] for row in rows],
        "turn": [row.number for row in rows],
        "ending": [words.plain(row.ending) for row in rows],
        "TTFT": [_milli(row.ttft_us) for row in rows],
        "TPOT": [_milli(row.tpot_us) for row in rows],
        "prompt": [row.prompt_tokens for row in rows],
        "cached": [row.cached_tokens for row in rows],
        "output": [row.output_tokens for row in rows],
        "counted": [words.plain(row.token_source) for row in rows],
        "floor": [_mib(row.floor_bytes) for row in rows],
        "end": [_mib(row.memory_end_bytes) for row in rows],
        "peak": [_mib(row.memory_peak_bytes) for row in rows],
        "error": [
            "" if row.error is None else words.plain(row.error, _LONGEST_ERROR) for row in rows
        ],
        "runtime": [called.get(row.runtime, row.runtime[:8]) for row in rows],
    }
    if len(called) < 2:
        del columns["runtime"]
    if all(row.token_source == "counted" for row in rows):
        del columns["counted"]
    whole = ("turn", "prompt", "cached", "output")
    return pd.DataFrame(columns).astype(dict.fromkeys(whole, "Int64"))


def events(rows: Sequence[Event], called: Mapping[str, str], where: tzinfo) -> pd.DataFrame:
    """A row an event, the newest first."""
    return pd.DataFrame(
        {
            "at": [words.moment(row.at, where) for row in rows],
            "event": [words.plain(row.event) for row in rows],
            "what": [_told(row.data) for row in rows],
            "runtime": [
                None if row.runtime is None else called.get(row.runtime, row.runtime[:8])
                for row in rows
            ],
        }
    )


def _told(data: Mapping[str, Any]) -> str:
    """What an event tells, without what it does not know."""
    known = [(name, value) for name, value in data.items() if value not in (None, "")]
    return " · ".join(_fact(words.plain(name), value) for name, value in known)


def _fact(name: str, value: Any) -> str:
    """A name with underscores and units in it, and its value, as a person would write them."""
    stem, _, unit = name.rpartition("_")
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif not isinstance(value, int | float):
        text = words.plain(str(value), _LONGEST_VALUE)
    elif stem and unit in _UNITS:
        name, text = stem, _UNITS[unit](value)
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name.replace('_', ' ')}: {text}"


_UNITS: Mapping[str, Callable[[float], str]] = {
    "us": words.duration,
    "bytes": words.size,
    "hertz": words.frequency,
    "celsius": words.temperature,
}


def streams(rows: Sequence[Stream], where: tzinfo) -> pd.DataFrame:
    """A row a stream with its delivery ledger, the newest first."""
    return pd.DataFrame(
        {
            "stream": [row.stream[-8:] for row in rows],
            "first": [words.moment(row.first_received_at, where) for row in rows],
            "last": [words.moment(row.last_received_at, where) for row in rows],
            "received": [row.ledger.received for row in rows],
            "duplicate": [row.ledger.duplicate for row in rows],
            "late": [row.ledger.late for row in rows],
            "missing": [row.ledger.missing for row in rows],
            "evicted": [row.ledger.evicted for row in rows],
            "refused": [row.ledger.refused for row in rows],
        }
    )


def facts(runtime: Runtime) -> list[tuple[str, str]]:
    """What a runtime and its model are, as Markdown."""
    engine = words.inert(runtime.engine)
    if runtime.engine_version is not None:
        engine += f" {words.inert(runtime.engine_version)}"
    found = [("runtime", f"{words.inert(runtime.name)}, pid {runtime.pid}"), ("engine", engine)]
    if runtime.model is None:
        found.append(("model", f"{words.UNKNOWN}: the application did not say"))
    else:
        found += _model_facts(runtime.model)
    settings = [
        f"{words.inert(str(name), 32)} = {words.inert(str(value), 48)}"
        for name, value in runtime.settings.items()
    ]
    more = len(settings) - _MOST_SETTINGS
    if settings:
        shown = ", ".join(settings[:_MOST_SETTINGS]) + (f" and {more} more" if more > 0 else "")
        found.append(("settings", shown))
    return found


def _model_facts(model: ModelSpec) -> list[tuple[str, str]]:
    name = words.inert(model.name, 128)
    if model.quantisation is not None:
        name += f", {words.inert(model.quantisation)}"
    weights = words.size(model.weight_bytes_per_token)
    if model.weight_bytes_per_token is None:
        weights = f"{words.UNKNOWN}: {words.inert(model.weight_unknown or 'not given', 120)}"
    kv = words.size(model.kv_bytes_per_token())
    if model.kv_bytes_per_token() is None:
        kv = f"{words.UNKNOWN}: {words.inert(model.kv_unknown or model.why_unknown() or '', 120)}"
    elif model.kv_types is not None:
        kv += f", {words.inert(' and '.join(dict.fromkeys(model.kv_types)))}"
    context = words.count(model.context_limit)
    if model.context_trained is not None:
        context += f", trained for {words.count(model.context_trained)}"
    return [
        ("model", name),
        ("weights read a token", weights),
        ("KV cache a token", kv),
        ("context limit, tokens", context),
    ]
