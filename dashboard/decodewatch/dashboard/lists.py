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
from decodewatch.shared.energy import DECODE, RAILS, Total
from decodewatch.shared.model import ModelSpec
from decodewatch.shared.records import PHASES

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
    stem, _, unit = name.removesuffix("_per_second").rpartition("_")
    if name.endswith("_per_second"):
        unit += "_per_second"
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
    "bytes_per_second": words.rate,
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


def board(description: Mapping[str, Any]) -> list[str]:
    """What a device is, by its description, as Markdown: model, chip, memory, software, ceiling."""

    def word(name: str, before: str = "", limit: int = 64) -> str | None:
        value = description.get(name)
        return f"{before}{words.inert(value, limit)}" if isinstance(value, str) else None

    def number(name: str) -> float | None:
        value = description.get(name)
        known = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        return value if known else None

    memory, jetpack = number("memory_bytes"), word("jetpack", "JetPack ")
    l4t = word("l4t", "L4T ")
    parts = [
        word("model") or word("cpu") or "model unknown",
        word("soc"),
        None if memory is None else f"{words.size(memory)} memory",
        word("power_mode", "power mode "),
        f"{l4t} ({jetpack})" if l4t and jetpack else l4t,
        word("android", "Android "),
        word("kernel", "kernel "),
        _ceiling(number("ceiling_bytes_per_second"), number("spec_bytes_per_second"), word),
    ]
    return [part for part in parts if part]


def _ceiling(
    ceiling: float | None, spec: float | None, word: Callable[[str, str], str | None]
) -> str:
    origin, of = word("ceiling_from", ""), word("spec_device", " of ") or ""
    if ceiling is None or origin is None:
        why = word("spec_note", ": ")
        return f"ceiling {words.UNKNOWN}{why or ''}; `decodewatch agent bandwidth` measures it"
    if origin == "measured":
        beside = "" if spec is None else f" (specification{of}: {words.rate(spec)})"
        return f"ceiling {words.rate(ceiling)}, measured{beside}"
    return f"ceiling {words.rate(ceiling)}, by the {origin}{of}"


def phases(found: Mapping[str, Total]) -> tuple[pd.DataFrame, str | None]:
    """A row a phase that occurred, as Markdown, and the rail whose power is shown: that of the
    whole device, else the one that takes most."""
    rail = _main_rail(found)
    rows = {
        name: {
            "time": words.duration(total.duration_us),
            "decoded tokens": words.count(total.tokens),
            "GPU busy": words.share(_mean(total, "gpu_busy_share"), 1),
            "DRAM busy": words.share(_mean(total, "dram_busy_share"), 1),
            "power": words.power(None if rail is None else _mean(total, rail)),
        }
        for name in PHASES
        if (total := found.get(name)) is not None
    }
    return pd.DataFrame.from_dict(rows, orient="index"), rail


def _main_rail(found: Mapping[str, Total]) -> str | None:
    """The first of the RAILS, by the power in decode, else in whatever phase there was: the one
    that tells the energy of a token."""
    for name in (DECODE, *PHASES):
        levels = found[name].levels if name in found else {}
        rails = [key for key in levels if key.partition(":")[0] in RAILS]
        if rails:
            return min(
                rails,
                key=lambda key: (RAILS.index(key.partition(":")[0]), -levels[key].mean, key),
            )
    return None


def _mean(total: Total, key: str) -> float | None:
    level = total.levels.get(key)
    return None if level is None else level.mean


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
