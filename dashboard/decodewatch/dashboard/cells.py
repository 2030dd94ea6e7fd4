"""The figures of one device side by side, as the fleet page and the device page show them.

Each cell is Markdown: what it is, the figure, and what stands behind it. Names that others chose
go through `format.inert`.
"""

from dataclasses import dataclass

import streamlit as st

from decodewatch.dashboard import format as words
from decodewatch.dashboard import verdicts
from decodewatch.dashboard.queries import Decoding, Device, Ledger, Runtime
from decodewatch.dashboard.series import rail_name
from decodewatch.dashboard.view import Moment
from decodewatch.shared.energy import LEAST_TOKENS, LEAST_US, NoEnergy, TokenEnergy
from decodewatch.shared.sketch import Sketch

HOW_TO_READ = (
    "Percentiles are read from merged sketches, at most 1.1 % off, and withheld where there are "
    "too few values for them: p90 needs 100, p95 200, p99 1,000. RssAnon + VmSwap is that of the "
    "last turn's runtime at its end; mapped weights are not in it. Delivery counts batches."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: `title` above it, `value` large, `detail` below it."""

    title: str
    value: str
    detail: str


def ttft(found: Decoding) -> Cell:
    """TTFT over the turns of the period: the median, and p95."""
    return _percentiles("TTFT", found.ttft, (0.95,), "turn", found.runtimes)


def itl(found: Decoding) -> Cell:
    """ITL over the tokens of the turns of the period: the median, p90 and p99."""
    return _percentiles("ITL", found.all_itl, (0.9, 0.99), "token", found.runtimes)


def _percentiles(
    title: str, sketch: Sketch, others: tuple[float, ...], thing: str, runtimes: int
) -> Cell:
    median = sketch.quantile(0.5)
    if median is None:
        return Cell(title, "\N{EN DASH}", f"no {thing} in the period")
    figures = [words.percentile(sketch.percentile(q)) for q in others]
    values = words.counted(sketch.n, thing)
    if runtimes > 1:
        values += f" over {words.counted(runtimes, 'runtime')}"
    detail = " · ".join([*figures, values])
    return Cell(title, f"{words.duration(median)} :small[p50]", detail)


def available(device: Device) -> Cell:
    """Memory that programs can still have."""
    free, total = device.memory_available_bytes, device.memory_total_bytes
    if free is None:
        return Cell("memory available", words.UNKNOWN, "no sample with it yet")
    detail = f"of {words.size(total)}, {words.share(free, total)}"
    return Cell("memory available", words.size(free), detail)


def runtime_memory(device: Device, runtime: Runtime | None) -> Cell:
    """RssAnon + VmSwap of the runtime of the last turn."""
    title = "RssAnon + VmSwap"
    if device.turn_at is None:
        return Cell(title, "\N{EN DASH}", "no turn yet")
    who = "its runtime is unknown"
    if runtime is not None:
        who = words.inert(runtime.name)
        if runtime.model is not None:
            who += f" · {words.inert(runtime.model.name, 64)}"
    if device.runtime_memory_bytes is None:
        return Cell(title, words.UNKNOWN, f"not read at the last turn's end · {who}")
    return Cell(title, words.size(device.runtime_memory_bytes), who)


def hottest(device: Device) -> Cell:
    """The hottest sensor of the chip."""
    if device.sample_at is None:
        return Cell("hottest sensor", words.UNKNOWN, "no sample yet")
    if device.hottest_celsius is None:
        return Cell("hottest sensor", words.UNKNOWN, "no sensor on this machine")
    label = words.inert(device.hottest_label or words.UNKNOWN)
    return Cell("hottest sensor", words.temperature(device.hottest_celsius), label)


def throttling(device: Device) -> Cell:
    """What holds the clocks down."""
    if device.sample_at is None:
        return Cell("throttling", words.UNKNOWN, "no sample yet")
    state, meaning = verdicts.throttled(device.throttle)
    held = device.throttle in ("thermal", "power", "over_current")
    return Cell("throttling", f":orange[{state}]" if held else state, meaning)


def token_energy(found: tuple[TokenEnergy, ...] | NoEnergy) -> Cell:
    """Energy of a decoded token in the period, by the first rail of those that tell it."""
    title = "energy a decoded token"
    if found == "no decode":
        why = "no token decoded in the period, or only while prompts were read"
        return Cell(title, "\N{EN DASH}", why)
    if found == "no rail":
        return Cell(title, words.UNKNOWN, "no power rail of this machine could be read meanwhile")
    if isinstance(found, str):
        least = f"needs {LEAST_TOKENS} tokens and {words.span(LEAST_US)} of decode"
        return Cell(title, words.UNKNOWN, f"{least} with the power read")
    energy = found[0]
    rail, length = words.inert(rail_name(energy.rail), 64), words.span(energy.duration_us)
    detail = f"{rail} · {words.power(energy.watts)} over {length} of decode"
    detail += f" · {words.counted(energy.tokens, 'token')}"
    return Cell(title, words.energy(energy.joules), detail)


def delivery(ledger: Ledger | None) -> Cell:
    """The delivery ledger over all streams of the device."""
    if ledger is None:
        return Cell("delivery", "\N{EN DASH}", "no batch yet")
    value = "all arrived"
    if ledger.missing:
        value = f":orange[{words.count(ledger.missing)} missing]"
    detail = f"{words.count(ledger.received)} received · {words.count(ledger.duplicate)} duplicate"
    detail += f" · {words.count(ledger.missing)} missing · {words.count(ledger.evicted)} evicted"
    return Cell("delivery", value, detail)


def last_turn(device: Device, moment: Moment) -> str:
    """When the last turn ended, and how, where not to its end."""
    if device.turn_at is None:
        return "no turn ever"
    text = f"last turn {moment.ago(device.turn_at)}"
    if device.turn_ending not in (None, "complete"):
        text += f", {words.inert(str(device.turn_ending))}"
    return text


def of(
    device: Device, found: Decoding, runtime: Runtime | None, ledger: Ledger | None
) -> list[Cell]:
    """All cells of a device."""
    return [
        ttft(found),
        itl(found),
        available(device),
        runtime_memory(device, runtime),
        hottest(device),
        throttling(device),
        delivery(ledger),
    ]


def row(cells: list[Cell], device: str) -> None:
    """Draw cells side by side, in as many lines as the screen is narrow: `style.css` says how."""
    with st.container(horizontal=True, gap="small", key=f"figures-{device}"):
        for cell in cells:
            single(cell)


def single(cell: Cell) -> None:
    """Draw one cell."""
    st.markdown(f":small[:gray[{cell.title}]]  \n**{cell.value}**  \n:small[:gray[{cell.detail}]]")
