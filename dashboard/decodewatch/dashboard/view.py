"""What every page shares: its dress, the period in the address, the clock, the states without data."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import tzinfo

import streamlit as st
from sqlalchemy import Connection

from decodewatch.dashboard import format as words
from decodewatch.dashboard import settings
from decodewatch.dashboard.database import Unavailable, reading
from decodewatch.dashboard.series import MOST_BINS
from decodewatch.shared import logs

_log = logs.get(__name__)

PERIODS = {
    "15m": ("15 min", 15 * words.MINUTE),
    "1h": ("1 h", words.HOUR),
    "6h": ("6 h", 6 * words.HOUR),
    "24h": ("24 h", words.DAY),
    "7d": ("7 d", 7 * words.DAY),
}
DEFAULT_PERIOD = "1h"
SLOWEST_REFRESH_S = 60


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
        """As people say it."""
        return PERIODS[self.key][0]

    @property
    def length(self) -> int:
        """In microseconds."""
        return PERIODS[self.key][1]

    @property
    def stride(self) -> int:
        """Of how many samples a chart needs one: a bin still holds several."""
        return max(self.length // (10 * words.SECOND) // 2000, 1)

    def refresh_s(self, least: int) -> int:
        """Seconds between refreshes: nothing new can be seen within a quarter of a bin."""
        bin_s = self.length // MOST_BINS // words.SECOND
        return max(least, min(bin_s // 4, SLOWEST_REFRESH_S))


def dress() -> None:
    """Title and width of every page."""
    st.set_page_config(page_title="decodewatch", page_icon=":material/monitoring:", layout="wide")


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
    """A state without data: what is, and what to do about it."""
    with st.container(border=True):
        st.markdown(f"#### {icon} {what}")
        st.markdown(advice)
