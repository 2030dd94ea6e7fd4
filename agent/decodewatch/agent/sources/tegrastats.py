"""What NVIDIA's `tegrastats` prints: the only one that says how busy a Jetson's memory is.

One line a second, of tokens in no fixed order. They differ by board, by release (L4T), and by
whether root asked:

    RAM 534/3964MB (lfb 98x4MB) CPU [16%@204,off] EMC_FREQ 4%@204 GR3D_FREQ 0%@76 APE 25 CPU@36.5C
    POM_5V_IN 1022/1022

    05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) CPU [14%@2188,off] EMC_FREQ 3%@2133
    GR3D_FREQ 0%@[305,305] NVENC 79%@166 NVDEC off cpu@52.5C VDD_GPU_SOC 2412mW/2412mW

Clocks are in MHz, rails in mW: the present power, then a mean since the program began, and from L4T
39 on a maximum; temperatures have a maximum behind a slash then. See "Tegrastats Utility" in the
Jetson Linux Developer Guide.

The agent lets it run only for what files do not show, and not at all where it does not show that
either: it needs to be root.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from decodewatch.agent.sources.cpu import BUSY as CPU_BUSY
from decodewatch.agent.sources.cpufreq import CLOCK as CPU_CLOCK
from decodewatch.agent.sources.kit import rails
from decodewatch.agent.sources.kit.base import (
    Measurement,
    Reading,
    Reason,
    Value,
    all_unknown,
    read_as,
    unknown,
)
from decodewatch.agent.sources.kit.child import Child
from decodewatch.agent.sources.kit.common import (
    DRAM_BUSY,
    DRAM_CLOCK,
    GPU_BUSY,
    GPU_CLOCK,
    POWER,
    TEMP,
)
from decodewatch.agent.sources.kit.device_tree import is_jetson
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.kernel import KERNEL, Kernel
from decodewatch.agent.sources.kit.labels import untaken
from decodewatch.agent.sources.meminfo import SWAP_TOTAL, TOTAL
from decodewatch.agent.sources.thermal import PLAUSIBLE_ABOVE_C, PLAUSIBLE_BELOW_C

FREE_BLOCKS = Measurement(
    "mem_largest_free_blocks",
    "count",
    "gauge",
    "free blocks of the largest size that there is one of (mem_largest_free_block_bytes)",
)
FREE_BLOCK = Measurement(
    "mem_largest_free_block_bytes",
    "bytes",
    "gauge",
    "size of the largest free blocks of memory; it falls before memory runs out",
)

# In a log only: in a running agent, other sources have these, or better ones.
USED = Measurement(
    "mem_used_bytes", "bytes", "gauge", "memory that is neither free nor buffers nor page cache"
)
SWAP_USED = Measurement("swap_used_bytes", "bytes", "gauge", "swap space in use, zram included")
ENGINE_BUSY = Measurement(
    "engine_busy_share",
    "share",
    "gauge",
    "share of the time in which the engine that the label names (NVENC, VIC) was busy",
)
ENGINE_CLOCK = Measurement(
    "engine_hertz", "hertz", "gauge", "clock of the engine that the label names; 0 is switched off"
)

MOST_TOKENS: Final = 256
"""Tokens of a record at most; the longest known has 50."""
MOST_CPUS: Final = 128

SILENCE_S: Final = 10.0
STALE_S: Final = 3.0
"""A record counts for so long: one comes each second."""
LINES_TO_TRY: Final = 10
REST_S: Final = 3600.0
"""After `LINES_TO_TRY` lines without the memory's clock, tegrastats is left alone for so long."""

_UNITS: Final = {b"k": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}
_HIGHEST_MHZ: Final = 20_000
_MOST_MILLIWATTS: Final = 2_000_000

# The same in all releases, with or without this ending.
_ENDING: Final = "_FREQ"
_MEMORY: Final = "EMC"
_GPU: Final = "GR3D"


class _Grammar(NamedTuple):
    start: re.Pattern[bytes]
    token: re.Pattern[bytes]
    word: re.Pattern[bytes]
    colour: re.Pattern[bytes]
    cpu: re.Pattern[bytes]


@functools.cache
def _grammar() -> _Grammar:
    """Compiled where there is a tegrastats or a log: most devices have neither."""
    when = rb"\d\d-\d\d-\d{4}\s\d\d:\d\d:\d\d"
    ram = rb"RAM\s+\d{1,9}/\d{1,9}[kMG]B"
    # Not the words of other tokens: `SWAP 0/20` is half of one, and no rail.
    name = rb"(?!(?:RAM|SWAP|IRAM|MTS|fg|bg|EDP|limit)\s)[A-Za-z][A-Za-z0-9_.-]{0,39}"
    clocks = rb"\d{1,9}|\[\d{1,9}(?:,\d{1,9}){0,15}\]"
    token = rb"""
        (?: (?P<when>WHEN)
          | (?P<memory>RAM|SWAP|IRAM)\s+(?P<used>\d{1,9})/(?P<total>\d{1,9})(?P<unit>[kMG])B
            (?: \s*\( (?: lfb\s+(?P<blocks>\d{1,9})x(?P<block>\d{1,9})(?P<block_unit>[kMG])B
                        | (?:lfb|cached)\s+\d{1,9}[kMG]B ) \) )?
          | (?:CPU|cpu)\s+\[(?P<cpus>[^\]\s]{1,4096})\](?:@(?P<cpus_clock>-?\d{1,9}))?
          | MTS\s+fg\s+\d{1,9}%\s+bg\s+\d{1,9}%
          | EDP\s+limit\s+\d{1,9}
          | (?P<sensor>NAME)@(?P<celsius>-?\d{1,9}(?:\.\d{1,9})?)C(?:/-?\d{1,9}(?:\.\d{1,9})?C)?
          | (?P<rail>NAME)\s+(?P<milliwatts>\d{1,9})
            (?: mW(?:/\d{1,9}(?:mW)?){0,2} | (?:/\d{1,9}(?:mW)?){1,2} )
          | (?P<engine>NAME)\s+
            (?: (?P<off>off)
              | (?P<busy>\d{1,9})%(?:@(?P<clock>CLOCKS))?
              | @?(?P<only_clock>CLOCKS) )
        )(?=\s|\Z)"""
    for stands, what in ((b"WHEN", when), (b"NAME", name), (b"CLOCKS", clocks)):
        token = token.replace(stands, what)
    return _Grammar(
        re.compile(rb"(?P<when>" + when + rb")(?:\s+" + ram + rb")?|(?<!I)" + ram),
        re.compile(token, re.VERBOSE),
        re.compile(rb"\S+"),
        re.compile(rb"\x1b\[[0-9;?]*[@-~]"),
        re.compile(rb"off|(?P<busy>\d{1,9})%(?:@(?P<clock>-?\d{1,9}))?"),
    )


class Record(NamedTuple):
    """The bytes of one record, and whether nothing was cut off at their end."""

    text: bytes
    whole: bool


Token = re.Match[bytes]


def records(content: bytes) -> Iterator[Record]:
    """The records of a log: one a line, or several joined; and lines that are none.

    A record begins with its time or, in releases that print none, with RAM. What a terminal would
    make colours of, such as those of `grep`, is left out.
    """
    start = _grammar().start
    if b"\x1b" in content:
        content = _grammar().colour.sub(b"", content)
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        ended = number + 1 < len(lines)
        begins = [0]
        timed = has_ram = False
        for found in start.finditer(line):
            if found["when"] is not None or has_ram or not timed:
                begins.append(found.start())
                timed, has_ram = found["when"] is not None, False
            has_ram = has_ram or b"RAM" in found[0]
        for begin, end in zip(begins, (*begins[1:], len(line)), strict=True):
            text = line[begin:end]
            if text:
                whole = ended if end == len(line) else text[-1:].isspace()
                yield Record(text, whole)


def tokens(record: Record) -> list[Token | bytes]:
    """The tokens of a record, those that are not known as bytes; empty where it is no record.

    That is one with neither RAM nor CPU, such as the date above a log. Without a time in front,
    what stands before these two is left out: it may be half a name, or end another record.
    """
    grammar = _grammar()
    text = record.text
    found: list[Token | bytes] = []
    at = 0
    while len(found) < MOST_TOKENS and (word := grammar.word.search(text, at)) is not None:
        token = grammar.token.match(text, word.start())
        if token is not None and not record.whole and token.end() == len(text):
            token = _closed(token)
        found.append(word[0] if token is None else token)
        at = (token or word).end()
    heads = [
        at
        for at, token in enumerate(found)
        if not isinstance(token, bytes) and (token["memory"] == b"RAM" or token["cpus"])
    ]
    if not heads:
        return []
    first = found[0]
    timed = not isinstance(first, bytes) and first["when"] is not None
    return found if timed else found[heads[0] :]


def _closed(token: Token) -> Token | None:
    """The last token of a record that may have been cut: None where more digits could follow.

    Of a rail, the number that counts is not the last one.
    """
    return None if token[0][-1:].isdigit() and token["rail"] is None else token


def parse(content: bytes, *, brief: bool = False) -> list[list[Reading]]:
    """The readings of each record of a log; those of memory and GPU only where it is to be `brief`.

    What a record does not show is unknown, and so is what it shows as 0 for want of permission.
    """
    return [one.readings for one in shown(content, brief=brief)]


class Shown(NamedTuple):
    """What a record shows, and its time as it is written there, if it has one."""

    when: str | None
    readings: list[Reading]


def shown(content: bytes, *, brief: bool = False) -> Iterator[Shown]:
    """The readings of each record as `parse` has them, with the record's time."""
    for record in records(content):
        found = tokens(record)
        if found:
            first = found[0]
            when = None if isinstance(first, bytes) else first["when"]
            yield Shown(
                None if when is None else " ".join(when.decode().split()),
                _readings(found, whole=record.whole, brief=brief),
            )


def _readings(found: list[Token | bytes], *, whole: bool, brief: bool) -> list[Reading]:
    made: dict[str, Reading] = {}
    watts: dict[str, float | Reason] = {}
    for token in found:
        if isinstance(token, bytes):
            continue
        if token["memory"]:
            new = _memory(token)
        elif token["engine"]:
            name = token["engine"].decode().removesuffix(_ENDING)
            if brief and name not in (_MEMORY, _GPU):
                continue
            new = _engine(token, name)
        elif brief:
            continue
        elif token["cpus"]:
            new = _cpus(token)
        elif token["sensor"]:
            new = [_temperature(token, made)]
        elif token["rail"]:
            new = _power(token, watts)
        else:
            continue
        for reading in new:
            made.setdefault(reading.key, reading)
    total = rails.total(watts)
    if total.label == rails.SUM and not whole:
        total = unknown(total.measurement, "transient", rails.SUM)  # parts of it may be missing
    made[total.key] = total
    for row in (
        *(TOTAL, USED, SWAP_TOTAL, SWAP_USED, FREE_BLOCKS, FREE_BLOCK),
        *(DRAM_BUSY, DRAM_CLOCK, GPU_BUSY, GPU_CLOCK),
    ):
        made.setdefault(row.name, unknown(row, "absent"))
    return list(made.values())


def _memory(token: Token) -> list[Reading]:
    if token["memory"] == b"IRAM":
        return []
    total_row, used_row = (TOTAL, USED) if token["memory"] == b"RAM" else (SWAP_TOTAL, SWAP_USED)
    unit = _UNITS[token["unit"]]
    used, total = int(token["used"]) * unit, int(token["total"]) * unit
    new = [
        read_as(total_row, total, "absent"),
        read_as(used_row, used if used <= total else None, "implausible"),
    ]
    if token["blocks"] and token["memory"] == b"RAM":
        block = int(token["block"]) * _UNITS[token["block_unit"]]
        new += (
            read_as(FREE_BLOCKS, int(token["blocks"]), "absent"),
            read_as(FREE_BLOCK, block, "absent"),
        )
    return new


def _cpus(token: Token) -> list[Reading]:
    new: list[Reading] = []
    for number, item in enumerate(token["cpus"].split(b",")[:MOST_CPUS]):
        label = f"cpu{number}"  # a CPU that is off has its place in the list
        cpu = _grammar().cpu.fullmatch(item)
        busy: Value | Reason = "absent"
        clock: Value | Reason = "absent"
        if cpu is None:
            busy = clock = "implausible"
        elif cpu["busy"]:
            busy = _share(cpu["busy"])
            mhz = cpu["clock"] or token["cpus_clock"]
            if mhz:
                clock = _hertz(int(mhz), lowest_mhz=1)
        new += (_as_read(CPU_BUSY, busy, label), _as_read(CPU_CLOCK, clock, label))
    return new


def _temperature(token: Token, made: Mapping[str, Reading]) -> Reading:
    # NVIDIA's -256 C is a sensor whose part of the chip is switched off.
    celsius = float(token["celsius"])
    value = celsius if PLAUSIBLE_ABOVE_C < celsius < PLAUSIBLE_BELOW_C else None
    taken = [reading.label for reading in made.values() if reading.measurement is TEMP]
    return read_as(TEMP, value, "implausible", untaken(token["sensor"].decode(), taken))


def _power(token: Token, watts: dict[str, float | Reason]) -> list[Reading]:
    name = token["rail"].decode()
    if name == rails.UNUSED:
        return []
    milliwatts = int(token["milliwatts"])
    label = untaken(name, watts)
    watts[label] = milliwatts / 1000 if milliwatts < _MOST_MILLIWATTS else "implausible"
    return [_as_read(POWER, watts[label], label)]


def _engine(token: Token, name: str) -> list[Reading]:
    shown = token["clock"] or token["only_clock"] or b""
    mhz = [0] if token["off"] else [int(one) for one in shown.strip(b"[]").split(b",") if one]
    busy: Value | Reason = _share(token["busy"]) if token["busy"] else "unsupported"
    if name == _MEMORY:
        return [] if token["off"] else _dram(busy, mhz)
    clock: Value | Reason = _hertz(max(mhz), lowest_mhz=0) if mhz else "denied"
    if name != _GPU:
        new = [_as_read(ENGINE_BUSY, busy, name)] if token["busy"] else []
        return [*new, _as_read(ENGINE_CLOCK, clock, name)] if mhz else new
    new = [_as_read(GPU_BUSY, busy), _as_read(GPU_CLOCK, clock)]
    if shown.startswith(b"["):
        new += (
            _as_read(GPU_CLOCK, _hertz(one, lowest_mhz=0), f"gpc{number}")
            for number, one in enumerate(mhz)
        )
    return new


def _dram(busy: Value | Reason, mhz: list[int]) -> list[Reading]:
    """A share of 0 without a clock is what users other than root are shown on older releases."""
    clock: Value | Reason = _hertz(mhz[0], lowest_mhz=1) if mhz else "denied"
    if isinstance(clock, str) and (busy == 0 or mhz):
        busy = clock
    return [_as_read(DRAM_BUSY, busy), _as_read(DRAM_CLOCK, clock)]


def _share(percent: bytes) -> Value | Reason:
    return int(percent) / 100 if int(percent) <= 100 else "implausible"


def _hertz(mhz: int, *, lowest_mhz: int) -> Value | Reason:
    return mhz * 1_000_000 if lowest_mhz <= mhz <= _HIGHEST_MHZ else "implausible"


def _as_read(row: Measurement, value: Value | Reason, label: str = "") -> Reading:
    if isinstance(value, str):
        return unknown(row, value, label)
    return read_as(row, value, "absent", label)


class Tegrastats:
    """Keeps a tegrastats running where it shows how busy the memory is, and reads its lines."""

    name = "tegrastats"
    reads: ClassVar = "tegrastats --interval 1000, in a child that is kept running"
    platform: ClassVar = "Jetson"
    permission: ClassVar = "root"
    measurements: ClassVar[tuple[Measurement, ...]] = (
        DRAM_BUSY,
        DRAM_CLOCK,
        GPU_BUSY,
        GPU_CLOCK,
        FREE_BLOCKS,
        FREE_BLOCK,
    )

    def __init__(self, root: Path, kernel: Kernel = KERNEL) -> None:
        self._root = root
        self._kernel = kernel
        # Never `tegrastats --stop`: it ends those of others too.
        path = ":".join(part for part in (os.environ.get("PATH"), "/usr/bin") if part)
        self._child = Child(
            ("tegrastats", "--interval", "1000"), SILENCE_S, kernel, environment={"PATH": path}
        )
        self._jetson = False
        self._ask_at = float("-inf")
        self._last: list[Reading] = []
        self._last_at = 0.0
        self._without = 0  # lines in a row that did not show the memory's clock

    def read(self) -> list[Reading]:
        """All of `measurements`, of the last record where it is not older than `STALE_S`."""
        if not self._is_jetson():
            return all_unknown(self.measurements, "absent")
        now = self._kernel.monotonic()
        lines = self._child.read()
        if not isinstance(lines, str):
            for line in lines:
                self._take(line, now)
            if self._without >= LINES_TO_TRY:
                lines = self._give_up()
        if self._last and now - self._last_at <= STALE_S:
            return self._last
        return all_unknown(self.measurements, lines if isinstance(lines, str) else "transient")

    def close(self) -> None:
        """End the child."""
        self._child.close()
        self._last = []
        self._without = 0

    def _is_jetson(self) -> bool:
        now = self._kernel.monotonic()
        if not self._jetson and now >= self._ask_at:
            self._ask_at = now + REPROBE_S
            self._jetson = is_jetson(self._root, self._kernel)
        return self._jetson

    def _take(self, line: bytes, now: float) -> None:
        self._without += 1
        for readings in parse(line + b"\n", brief=True):
            found = {reading.key: reading for reading in readings}
            self._last = [found[row.name] for row in self.measurements]
            self._last_at = now
            if found[DRAM_CLOCK.name].known:
                self._without = 0

    def _give_up(self) -> Reason:
        reason: Reason = "denied" if self._last else "implausible"
        why = "shows_no_memory_clock" if self._last else "prints_no_records"
        self._child.fail(reason, f"{why} lines={LINES_TO_TRY}", REST_S)
        self._last = []
        self._without = 0
        return reason
