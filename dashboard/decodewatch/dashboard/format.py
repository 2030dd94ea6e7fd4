"""How values look: units, ages, unknowns, percentiles, and names that others chose.

Everything here takes plain values and returns text. An unknown value is the word "unknown".
Durations come in microseconds, sizes in bytes, moments in microseconds since 1970 (UTC).
"""

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from decodewatch.shared.sketch import Percentile, enough_for

UNKNOWN = "unknown"
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HERTZ = ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"))
_AGES = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# What would move or hide the text around it: control characters and bidirectional overrides.
_UNRULY = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPECIAL = re.compile(r"[-<>~=](?=[-<>=])|[:@](?=\S)|www(?=\.)", re.IGNORECASE)
_JOINER = "\N{WORD JOINER}"


def _digits(value: float) -> str:
    """Three digits that mean something, and no more: 0.42, 4.21, 42.1, 421, 4,210."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


def count(value: int | None) -> str:
    """A number of things: 48,112."""
    return UNKNOWN if value is None else f"{value:,}"


def counted(value: int, thing: str) -> str:
    """A number of things with their name: "1 turn", "2 turns", "3 batches"."""
    ending = "" if value == 1 else "es" if thing.endswith("ch") else "s"
    return f"{value:,} {thing}{ending}"


def sentence(text: str) -> str:
    """Some words with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def duration(us: float | None) -> str:
    """A duration: 850 µs, 14.2 ms, 1.24 s, 12 min; one into the past has a minus."""
    if us is None:
        return UNKNOWN
    if us < 0:
        return f"\N{MINUS SIGN}{duration(-us)}"
    if us < 999.5:
        return f"{us:.0f} µs"
    if us < 999_500:
        return f"{_digits(us / 1000)} ms"
    return f"{_digits(us / SECOND)} s" if us < 2 * MINUTE else span(us)


def size(value: float | None) -> str:
    """A size in binary units: 412 MiB, 3.10 GiB."""
    if value is None:
        return UNKNOWN
    unit = 0
    while abs(value) >= 1023.5 and unit < len(_BYTES) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} B" if unit == 0 else f"{_digits(value)} {_BYTES[unit]}"


def frequency(hertz: float | None) -> str:
    """A clock: 1.51 GHz."""
    if hertz is None:
        return UNKNOWN
    for factor, unit in _HERTZ:
        if hertz >= factor:
            return f"{_digits(hertz / factor)} {unit}"
    return f"{hertz:.0f} Hz"


def power(watts: float | None) -> str:
    """Power: 7.13 W."""
    return UNKNOWN if watts is None else f"{_digits(watts)} W"


def energy(joules: float | None) -> str:
    """Energy: 412 mJ, 1.24 J."""
    if joules is None:
        return UNKNOWN
    return f"{_digits(joules)} J" if abs(joules) >= 0.9995 else f"{_digits(1000 * joules)} mJ"


def rate(bytes_per_second: float | None) -> str:
    """How fast memory is read, in the decimal units of its data sheets: 68.3 GB/s."""
    if bytes_per_second is None:
        return UNKNOWN
    return f"{_digits(bytes_per_second / 1e9)} GB/s"


def temperature(celsius: float | None) -> str:
    """A temperature: 61.2 °C."""
    return UNKNOWN if celsius is None else f"{celsius:.1f} °C"


def share(part: float | None, whole: float | None) -> str:
    """A share in percent: 42 %."""
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.0f} %"


def span(us: float) -> str:
    """A length of time by its largest unit: 40 s, 12 min, 3 h, 2 d."""
    for unit, name in _AGES:
        if us >= unit:
            return f"{us / unit:.0f} {name}" if us >= 2 * unit else f"1 {name}"
    return "0 s"


def ago(at: int | None, now: int) -> str:
    """How long ago a moment was: "12 s ago"; a little in the future counts as now."""
    if at is None:
        return UNKNOWN
    if at - now > MINUTE:
        return f"in {span(at - now)}"
    return "now" if now - at < SECOND else f"{span(now - at)} ago"


def zone(name: str | None) -> tzinfo:
    """The viewer's time zone, as the browser names it; UTC where nobody knows it."""
    try:
        return ZoneInfo(name) if name else timezone.utc
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return timezone.utc


def moment(at: int, where: tzinfo) -> datetime:
    """A moment in a time zone."""
    return (_EPOCH + timedelta(microseconds=at)).astimezone(where)


def clock(at: int | None, now: int, where: tzinfo) -> str:
    """A moment as a clock shows it, with the date where that is not today: 09:12, 3 Nov 09:12."""
    if at is None:
        return UNKNOWN
    then, today = moment(at, where), moment(now, where)
    text = f"{then:%H:%M}"
    if then.date() == today.date():
        return text
    return f"{then.day} {then:%b} {text}" if then.year == today.year else f"{then:%Y-%m-%d} {text}"


def percentile(found: Percentile) -> str:
    """A percentile by the withholding rule: "p99 41.2 ms", or what it would need."""
    name = f"p{found.q * 100:g}"
    if found.us is not None:
        return f"{name} {duration(found.us)}"
    if found.n == 0:
        return f"{name} {UNKNOWN}"
    return f"{name} needs {enough_for(found.q):,}"


def plain(text: str, limit: int = 48) -> str:
    """A name that somebody else chose, short, on one line and unable to move what stands beside it.

    Control characters and bidirectional overrides become U+FFFD; a name with right-to-left letters
    is isolated, so that it reads right and its neighbours stay where they are.
    """
    tame = _UNRULY.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(tame) > limit:
        tame = tame[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    if _RIGHT_TO_LEFT.search(tame):
        return f"\N{FIRST STRONG ISOLATE}{tame}\N{POP DIRECTIONAL ISOLATE}"
    return tame


def inert(text: str, limit: int = 48) -> str:
    """`plain`, for Markdown: what looks like markup is shown as it is written.

    Every punctuation mark is escaped. What Streamlit and GFM look for in the text that is left
    (emoji codes, addresses of the web and of mail, arrows) is broken up by a word joiner, which has
    no width; a device's id never needs one, so that it can be copied and searched for.
    """
    broken = _SPECIAL.sub(lambda found: found[0] + _JOINER, plain(text, limit))
    return _PUNCTUATION.sub(r"\\\1", broken)
