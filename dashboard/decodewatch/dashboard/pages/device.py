"""Device: what happened on this one, along one time axis?"""

from collections.abc import Iterator, Sequence

import streamlit as st
from sqlalchemy import Connection

from decodewatch.dashboard import cells, charts, lists, queries, series, verdicts, view
from decodewatch.dashboard import format as words
from decodewatch.shared.energy import joules_a_token, totals
from decodewatch.shared.sketch import enough_for

URL = "device"
_WHOLE = "a double click on a cell shows all of it"


def link(name: str, period: view.Period, label: str | None = None) -> None:
    """A link to the page of a device."""
    st.page_link(
        st.Page(page, title="Device", url_path=URL),
        label=f":primary[**{label or words.inert(name, 64)}**]",
        icon=":material/chevron_right:",
        icon_position="right",
        query_params={"device": name, "period": period.key},
    )


def page() -> None:
    """The page; the address says which device."""
    name = st.query_params.get("device") or st.session_state.get("device") or _only_one()
    with view.heading(words.inert(name, 64) if name else "Device"):
        period = view.period_selector()
    if name:
        # Kept for the way back through the navigation, whose links carry no device.
        st.session_state["device"] = st.query_params["device"] = name
        view.live(lambda: _body(name, period), period)
    else:
        view.live(lambda: _choice(period, "Which device?"), period)


def _only_one() -> str | None:
    """The device, for the owner of one."""
    with view.database() as connection:
        found = queries.devices(connection, limit=2)
    return found[0].device if len(found) == 1 else None


def _choice(period: view.Period, question: str) -> None:
    with view.database() as connection:
        devices = queries.devices(connection)
    if not devices:
        view.notice(":material/memory:", "No device has reported yet.", view.START_AGENT)
        return
    st.markdown(question)
    for device in devices:
        link(device.device, period)


def _body(name: str, period: view.Period) -> None:
    moment = view.moment()
    with view.database() as connection:
        device = queries.device(connection, name)
        if device is None:
            view.notice(
                ":material/help:",
                f"No device {words.inert(name, 64)} has reported.",
                "Its name may be mistyped, or its agent has not reached the broker yet.",
            )
            _choice(period, "These have reported:")
            return
        runtimes = queries.runtimes(connection, name)
        since = moment.now - period.length
        decoding = queries.decoding(connection, name, since)
        _head(connection, device, decoding, runtimes, period, moment)
        if device.turn_at is None:
            view.notice(":material/hourglass_empty:", "No turn yet.", view.WRAP_LOOP)
        turns = queries.turns(connection, name, since)
        stride = queries.stride(moment.now - max(since, device.first_received_at))
        samples = queries.samples(connection, name, since, stride)
        with st.container(gap="xsmall"):
            _timelines(connection, device, turns, samples, stride, runtimes, period, moment)
        left, right = st.columns(2, gap="medium") if decoding.itl else (None, st.container())
        if left is not None:
            with left:
                _depth(decoding)
        with right:
            _runtime(device, runtimes)
        _phases(samples)
        _turns(turns, runtimes, decoding, moment)
        left, right = st.columns([4, 5], gap="medium")
        with left:
            _events(queries.events(connection, name, since), runtimes, period, moment)
        with right:
            _delivery(queries.streams(connection, name), moment)
        st.caption(cells.HOW_TO_READ)


def _head(
    connection: Connection,
    device: queries.Device,
    decoding: queries.Decoding,
    runtimes: Sequence[queries.Runtime],
    period: view.Period,
    moment: view.Moment,
) -> None:
    current = next((one for one in runtimes if one.runtime == device.runtime), None)
    ledger = queries.ledgers(connection, [device.device]).get(device.device)
    found = verdicts.connection(device, moment.now)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        view.connection_badge(device, moment)
        st.markdown(f"**{words.sentence(verdicts.decoded(decoding, period.words))}**")
        st.caption(_facts(connection, device, moment))
    if device.description:
        st.caption(f":material/memory: {' · '.join(lists.board(device.description))}")
    if found.advice:
        st.caption(f":material/info: {found.advice}")
    with st.container(border=True):
        cells.row(cells.of(device, decoding, current, ledger), device.device)


def _facts(connection: Connection, device: queries.Device, moment: view.Moment) -> str:
    parts = [cells.last_turn(device, moment)]
    if device.agent_version is not None:
        parts.append(f"agent {words.inert(device.agent_version)}")
    if device.boot is not None:
        placed = queries.boot_placed(connection, device.device, device.boot)
        parts.append(f"boot {words.inert(device.boot[:8])}")
        if placed == "receipt":
            parts.append("its clock was never synchronised: times are those of receipt")
    return " · ".join(parts)


def _timelines(
    connection: Connection,
    device: queries.Device,
    turns: Sequence[queries.Turn],
    samples: Sequence[queries.Sample],
    stride: int,
    runtimes: Sequence[queries.Runtime],
    period: view.Period,
    moment: view.Moment,
) -> None:
    since = moment.now - period.length
    windows = queries.windows(connection, device.device, since)
    if not (turns or windows or samples):
        _nothing(device, period, moment)
        return
    moments = [turn.at for turn in turns]
    moments += [sample.at for sample in samples] + [window.at for window in windows]
    along = series.axis(since, moment.now, moments)
    points = series.turn_points(turns)
    itl = series.itl_over_time(windows, along)
    if turns or windows:
        bands = series.throttle_bands(samples, along)
        drawing = charts.itl_over_time(itl.frame, points, along, bands)
        _chart("itl", drawing, "ITL and TPOT over time, with what held the clocks down")
        _chart("ttft", charts.ttft_of_turns(points, along), "TTFT of each turn over time")
    memory = series.memory_points(turns, lists.names(runtimes))
    if len(memory):
        _chart("memory", charts.memory_of_turns(memory, along), "Memory after each turn over time")
    elif turns:
        st.caption("RssAnon + VmSwap after a turn: unknown, the agent may not look at the runtime.")
    heat = series.temperatures(samples, along)
    _gauges("heat", heat, charts.temperatures(heat.frame, along), "temperature sensor")
    speed = series.clocks(samples, along)
    _gauges("clocks", speed, charts.clocks(speed.frame, along), "CPU clock")
    gpu = series.gpu_busy(samples, along)
    _gauges("gpu", gpu, charts.gpu_busy(gpu.frame, along), "GPU utilisation")
    dram = series.dram_busy(samples, along)
    _gauges("dram", dram, charts.dram_busy(dram.frame, along), "DRAM utilisation")
    rails = series.power(samples, along)
    _gauges("power", rails, charts.power(rails.frame, along), "power rail")
    st.caption(" ".join(_notes(itl, along, turns, windows, stride, moment)))


def _notes(
    itl: series.OverTime,
    along: series.Axis,
    turns: Sequence[queries.Turn],
    windows: Sequence[queries.Window],
    stride: int,
    moment: view.Moment,
) -> Iterator[str]:
    """What a reader of the charts should know of their points."""
    yield f"Times are those of {moment.zone}."
    if windows:
        drawn = {name: width for name, width in itl.widths.items() if width is not None}
        apart = ", ".join(f"{name} {words.span(width)}" for name, width in drawn.items())
        if drawn:
            yield f"A point of ITL stands for as long as it needs to have enough tokens: {apart}."
        for q, name in zip(series.QUANTILES, series.PERCENTILES, strict=True):
            if drawn and name not in drawn:
                yield f"{name} not drawn: it needs {enough_for(q):,} tokens a point."
    yield f"A point of a sensor stands for {words.span(along.width)}."
    if stride > 1:
        yield f"Sensors are read from one sample in {stride}."
    if len(windows) == queries.MOST_WINDOWS:
        since = moment.clock(windows[-1].at)
        yield f"ITL is of the newest {len(windows):,} windows, since {since}."
    if len(turns) == queries.MOST_TURNS:
        yield f"Turns are the newest {len(turns):,}, since {moment.clock(turns[-1].at)}."


def _nothing(device: queries.Device, period: view.Period, moment: view.Moment) -> None:
    newest = max(filter(None, (device.turn_at, device.sample_at)), default=None)
    if newest is None:
        view.notice(
            ":material/hourglass_empty:",
            "No sample yet.",
            "An agent sends one within a minute of its start; see its log.",
        )
        return
    view.notice(
        ":material/history:",
        f"Nothing in the last {period.words}.",
        f"The newest is of {moment.clock(newest)}, {moment.ago(newest)}.",
    )
    wider = view.period_with(moment.now - newest)
    if wider is not None:
        link(device.device, wider, f"Show the last {wider.words}")


def _chart(key: str, drawing: charts.Drawing, about: str) -> None:
    with st.container(key=f"chart-{key}"):
        st.vega_lite_chart(spec=drawing.whole, width="stretch", alt=about)


def _gauges(key: str, found: series.Gauges, chart: charts.Drawing, thing: str) -> None:
    if not len(found.frame):
        why = f" ({words.inert(found.reason)})" if found.reason else ""
        st.caption(f":material/sensors_off: No {thing} on this machine{why}.")
        return
    _chart(key, chart, f"{thing}s over time")
    if found.left_out:
        st.caption(f"The {series.MOST_SERIES} highest; {found.left_out} more are not drawn.")


def _depth(decoding: queries.Decoding) -> None:
    frame = series.itl_by_depth(decoding.itl)
    if not len(frame):
        st.caption("ITL against depth: no turn in the period says how deep it was.")
        return
    _chart("depth", charts.itl_by_depth(frame), "ITL percentiles against depth")


def _phases(samples: Sequence[queries.Sample]) -> None:
    st.markdown("##### Prefill, decode and idle")
    found = totals(sample.phases for sample in samples)
    if not found:
        st.caption("No sample of the period tells them apart.")
        return
    left, right = st.columns([2, 5], gap="medium")
    with left:
        cells.single(cells.token_energy(joules_a_token(found)))
    with right:
        table, rail = lists.phases(found)
        st.table(table, border="horizontal")
        whose = f"Power is that of {words.inert(series.rail_name(rail), 64)}. " if rail else ""
        st.caption(
            f"{whose}By the turns' own times over all runtimes; mixed: some were in prefill and "
            "others in decode."
        )


def _runtime(device: queries.Device, runtimes: Sequence[queries.Runtime]) -> None:
    st.markdown("##### Runtime and model")
    current = next((one for one in runtimes if one.runtime == device.runtime), None)
    current = current or next(iter(runtimes), None)
    if current is None:
        st.caption("No runtime has registered yet.")
        return
    st.table(dict(lists.facts(current)), border="horizontal", width="content")
    if len(runtimes) > 1:
        st.caption(f"{len(runtimes) - 1} more on this device before it or beside it.")


def _turns(
    turns: Sequence[queries.Turn],
    runtimes: Sequence[queries.Runtime],
    decoding: queries.Decoding,
    moment: view.Moment,
) -> None:
    st.markdown("##### Turns")
    if not turns:
        st.caption("None in the period.")
        return
    milli = st.column_config.NumberColumn(format="%.1f ms")
    st.dataframe(
        lists.turns(turns, lists.names(runtimes), moment.zone),
        hide_index=True,
        placeholder=words.UNKNOWN,
        height=view.table_height(len(turns)),
        key="turns",
        column_config={
            "began": st.column_config.DatetimeColumn("began", format="D MMM HH:mm:ss"),
            "TTFT": milli,
            "TPOT": milli,
            "prompt": st.column_config.NumberColumn("prompt tokens"),
            "cached": st.column_config.NumberColumn("of it cached"),
            "output": st.column_config.NumberColumn("output tokens"),
            "counted": st.column_config.TextColumn(
                "tokens are",
                help="counted one a step, reported by the engine, or estimated at one a chunk",
            ),
            "floor": st.column_config.NumberColumn(
                "memory floor",
                format="%.1f MiB",
                help="RssAnon + VmSwap at its lowest after the turn",
            ),
            "end": st.column_config.NumberColumn("at its end", format="%.1f MiB"),
            "peak": st.column_config.NumberColumn("peak", format="%.1f MiB"),
            "error": st.column_config.TextColumn("error", help=_WHOLE),
        },
    )
    if decoding.turns > len(turns):
        st.caption(f"The newest {len(turns):,} of {decoding.turns:,}.")


def _events(
    events: Sequence[queries.Event],
    runtimes: Sequence[queries.Runtime],
    period: view.Period,
    moment: view.Moment,
) -> None:
    st.markdown("##### Events")
    if not events:
        st.caption(f"None in the last {period.words}.")
        return
    st.dataframe(
        lists.events(events, lists.names(runtimes), moment.zone),
        hide_index=True,
        placeholder="\N{EN DASH}",
        height=view.table_height(len(events)),
        key="events",
        column_config={
            "at": st.column_config.DatetimeColumn("at", format="D MMM HH:mm:ss"),
            "what": st.column_config.TextColumn("what", help=_WHOLE),
        },
    )


def _delivery(streams: Sequence[queries.Stream], moment: view.Moment) -> None:
    st.markdown("##### Delivery")
    if not streams:
        st.caption("No batch has arrived yet.")
        return
    times = st.column_config.DatetimeColumn(format="D MMM HH:mm")
    st.dataframe(
        lists.streams(streams, moment.zone),
        hide_index=True,
        height=view.table_height(len(streams)),
        key="streams",
        column_config={"first": times, "last": times},
    )
