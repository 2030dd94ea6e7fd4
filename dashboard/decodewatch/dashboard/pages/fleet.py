"""Fleet: which devices are there, how fast do they decode, is anything missing?"""

import streamlit as st
from sqlalchemy import Connection

from decodewatch.dashboard import cells, queries, verdicts, view
from decodewatch.dashboard import format as words

# Sketches of one page in all: with many devices each gets fewer of its newest turns.
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
        ledgers = queries.ledgers(connection, [device.device for device in devices])
        if not devices:
            view.notice(
                ":material/memory:",
                "No device has reported yet.",
                "Start an agent on a device: `pip install decodewatch`, then "
                "`decodewatch agent run --broker-host THIS-MACHINE`. It appears here within "
                "seconds; if it does not, see the logs of the agent and of the collector.",
            )
            return
        st.markdown(f"##### {verdicts.fleet(in_all, devices, ledgers, moment.now)}")
        for device in devices:
            _device(connection, device, ledgers.get(device.device), period, moment, len(devices))
        if in_all > len(devices):
            st.caption(f"{len(devices)} of {in_all:,} devices, those that are not online first.")


def _device(
    connection: Connection,
    device: queries.Device,
    ledger: queries.Ledger | None,
    period: view.Period,
    moment: view.Moment,
    devices: int,
) -> None:
    since = moment.now - period.length
    limit = max(queries.MOST_TURN_SKETCHES // devices, _FEWEST_TURNS)
    decoding = queries.decoding(connection, device.device, since, limit)
    runtime = queries.runtime(connection, device.device, device.runtime)
    with st.container(border=True, gap="small", key=f"device-{device.device}"):
        view.device_line(device, moment, period, link=True)
        if decoding.turns or device.turn_at is None:
            pass
        cells.row(cells.of(device, decoding, runtime, ledger))
        if device.turn_at is None:
            st.caption(f"{words.inert(device.device)} has sent no turn yet. {view.WRAP}")
        elif decoding.cut:
            st.caption(f"TTFT and ITL are of the newest {limit:,} turns of the period.")
