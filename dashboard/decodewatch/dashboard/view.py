"""What every page shares: dress, the period in the address, the clock, states without data."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path

import streamlit as st
from sqlalchemy import Connection

from decodewatch.dashboard import format as words
from decodewatch.dashboard import settings, verdicts
from decodewatch.dashboard.database import Unavailable, reading
from decodewatch.dashboard.queries import Device
from decodewatch.dashboard.series import MOST_BINS
from decodewatch.shared import logs

_log = logs.get(__name__)

# What stands in the address: as the choice shows it, as a sentence says it, in microseconds.
PERIODS = {
    "15m": ("15 min", "15 minutes", 15 * words.MINUTE),
    "1h": ("1 h", "hour", words.HOUR),
    "6h": ("6 h", "6 hours", 6 * words.HOUR),
    "24h": ("24 h", "24 hours", words.DAY),
    "7d": ("7 d", "7 days", 7 * words.DAY),
}
DEFAULT_PERIOD = "1h"
_HERE = Path(__file__).parent
SLOWEST_REFRESH_S = 60

START_AGENT = (
    "Start an agent on a device: `pip install decodewatch`, then `decodewatch agent run` with "
    "`--broker-host` naming the machine of the broker. The device appears here within seconds; if "
    "it does not, see the logs of the agent and of the collector."
)
WRAP_LOOP = (
    "Wrap the loop that decodes with `DecodeMonitor` (`from decodewatch.agent import "
    "DecodeMonitor`), on the device itself; the README shows it in five lines."
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, as one run of a page sees it, and the viewer's time zone."""

    now: int
    zone: tzinfo

    def clock(self, at: int | None) -> str:
        """A moment as the viewer's clock showed it."""
        return words.clock(at, self.now, self.zone)

    def ago(self, at: int | None) -> str:
        """How long ago a moment was."""
        return words.ago(at, self.now)


@dataclass(frozen=True, slots=True)
class Period:
    """How far back a page looks; `key` is what stands in the address."""

    key: str

    @property
    def words(self) -> str:
        """As it follows "in the last"."""
        return PERIODS[self.key][1]

    @property
    def length(self) -> int:
        """In microseconds."""
        return PERIODS[self.key][2]

    def refresh_s(self, least: int) -> int:
        """Seconds between refreshes: nothing new can be seen within a quarter of a bin."""
        bin_s = self.length // MOST_BINS // words.SECOND
        return max(least, min(bin_s // 4, SLOWEST_REFRESH_S))


def dress() -> None:
    """Title, logo and width of every page."""
    st.set_page_config(page_title="decodewatch", page_icon=_HERE / "icon.svg", layout="wide")
    st.logo(_HERE / "logo.svg", size="medium", icon_image=_HERE / "logo.svg")
    st.html(_HERE / "style.css")


def moment() -> Moment:
    """Now, in the zone of the browser that looks."""
    return Moment(time.time_ns() // 1000, words.zone(st.context.timezone))


def period_selector() -> Period:
    """The choice of a period. It stands in the address, and is kept from page to page."""
    asked = st.query_params.get("period", st.session_state.get("period", DEFAULT_PERIOD))
    key = asked if asked in PERIODS else DEFAULT_PERIOD
    # The address leads, so that a bookmark and the browser's back button work.
    st.session_state["period_choice"] = st.session_state["period"] = key
    if st.query_params.get("period") != key:
        st.query_params["period"] = key
    st.segmented_control(
        "Period",
        list(PERIODS),
        format_func=lambda one: PERIODS[one][0],
        key="period_choice",
        required=True,
        on_change=_to_address,
        label_visibility="collapsed",
    )
    return Period(key)


def _to_address() -> None:
    st.query_params["period"] = st.session_state["period_choice"]


def live(body: Callable[[], None], period: Period) -> None:
    """Run the body now, and again by itself while somebody looks."""
    every = period.refresh_s(settings.active().refresh_s)
    st.fragment(body, run_every=every)()


@contextmanager
def database() -> Iterator[Connection]:
    """A connection for one run of a page; where there is none, the page says why and ends."""
    try:
        with reading(settings.active().database_url()) as connection:
            yield connection
    except Unavailable as error:
        _log.warning("page without database", every=60, why=str(error))
        notice(":material/database_off:", str(error), error.advice)
        st.stop()


def notice(icon: str, what: str, advice: str) -> None:
    """A state without data: what is, and what to do about it, both Markdown."""
    with st.container(border=True):
        st.markdown(f"**{icon} {what}**  \n{advice}")


@contextmanager
def heading(title: str) -> Iterator[None]:
    """The title of a page, with what is drawn inside beside it."""
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"
    ):
        st.subheader(title, anchor=False, width="content")
        yield


def connection_badge(device: Device, moment: Moment) -> None:
    """Whether a device is online, and since when; what to check where it is not, on hover."""
    found = verdicts.connection(device, moment.now)
    icons = {
        "online": ":material/check_circle:",
        "offline": ":material/cancel:",
        "silent": ":material/hourglass_empty:",
    }
    st.badge(
        f"{found.word} {verdicts.since(found, moment.now, moment.zone)}",
        icon=icons.get(found.word, ":material/help:"),
        color=found.colour,
        help=found.advice,
    )


def period_with(length: int) -> Period | None:
    """The shortest period that reaches back so far; None where none does."""
    return next((Period(key) for key, (_, _, reach) in PERIODS.items() if reach > length), None)


def table_height(rows: int) -> int:
    """Pixels for a table of so many rows: no emptiness below it, and not the whole page."""
    return 36 * min(rows + 1, 11) + 3
