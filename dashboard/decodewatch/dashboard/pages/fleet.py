"""Fleet: which devices are there, how fast do they decode, is anything missing?"""

import streamlit as st
from sqlalchemy import Connection

from decodewatch.dashboard import cells, queries, verdicts, view
from decodewatch.dashboard.pages import device as device_page

# With many devices each gets fewer of its newest turns, but not fewer than these.
_FEWEST_TURNS = 50


def page() -> None:
    """The page."""
    with view.heading("Fleet"):
        period = view.period_selector()
    view.live(lambda: _body(period), period)


def _body(period: view.Period) -> None:
    moment = view.moment()
    with view.database() as connection:
        in_all, _ = queries.device_counts(connection)
        devices = queries.devices(connection)
        if not devices:
            view.notice(":material/memory:", "No device has reported yet.", view.START_AGENT)
            return
        ledgers = queries.ledgers(connection, [device.device for device in devices])
        st.markdown(f"**{verdicts.fleet(in_all, devices, ledgers, moment.now)}**")
        limit = max(queries.MOST_TURN_SKETCHES // len(devices), _FEWEST_TURNS)
        for device in devices:
            with st.container(border=True, gap="small", key=f"device-{device.device}"):
                ledger = ledgers.get(device.device)
                _device(connection, device, ledger, period, moment, limit)
        if in_all > len(devices):
            st.caption(f"{len(devices)} of {in_all:,} devices, those that are not online first.")
        st.caption(cells.HOW_TO_READ)


def _device(
    connection: Connection,
    device: queries.Device,
    ledger: queries.Ledger | None,
    period: view.Period,
    moment: view.Moment,
    limit: int,
) -> None:
    decoding = queries.decoding(connection, device.device, moment.now - period.length, limit)
    runtime = queries.runtime(connection, device.device, device.runtime)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        device_page.link(device.device, period)
        view.connection_badge(device, moment)
        st.caption(_decoded(device, decoding, period, moment))
    cells.row(cells.of(device, decoding, runtime, ledger), device.device)
    if device.turn_at is None:
        st.caption(view.WRAP_LOOP)
    elif decoding.cut:
        st.caption(f"TTFT and ITL are of the newest {limit:,} turns of the period.")


def _decoded(
    device: queries.Device, found: queries.Decoding, period: view.Period, moment: view.Moment
) -> str:
    parts = [cells.last_turn(device, moment)]
    if device.turn_at is not None:
        parts.append(verdicts.decoded(found, period.words))
    return " · ".join(parts)
