"""A database as the collector would have left it: plausible devices that decoded for a while.

Everything follows from the moment given as `now` and from a fixed seed, so that two runs make the
same rows. Memory, temperatures and clocks move as on the boards that the names say.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine

from decodewatch.shared import tables
from decodewatch.shared.diagnose.throttle import SHARE, THROTTLED, state_of_shares
from decodewatch.shared.sensors import hottest
from decodewatch.shared.sketch import Sketch

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
MIB = 1 << 20
GIB = 1 << 30

SMOLLM2 = {
    "name": "SmolLM2-135M-Instruct",
    "architecture": "llama",
    "quantisation": "Q4_K_M",
    "weight_bytes_per_token": 104_000_000,
    "weight_bytes_total": 104_000_000,
    "file_bytes": 105_454_432,
    "layers": 30,
    "kv_heads": 3,
    "head_dim_k": 64,
    "head_dim_v": 64,
    "kv_types": ["f16", "f16"],
    "context_limit": 4096,
    "context_trained": 8192,
}


_KEYS = ("device_watts:{}", "power_watts:{}", "gpu_busy_share", "dram_busy_share")
LEVELS = {
    "idle": dict(zip(_KEYS, (4.9, 0.8, 0.0, 0.02), strict=True)),
    "prefill": dict(zip(_KEYS, (14.8, 7.9, 0.98, 0.31), strict=True)),
    "decode": dict(zip(_KEYS, (11.2, 4.4, 0.71, 0.64), strict=True)),
}
"""What the rails and the load of a board show in each phase; {} is its rail."""


ORIN_NANO: dict[str, Any] = {
    "model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
    "soc": "tegra234",
    "memory_bytes": 8 * GIB,
    "page_bytes": 4096,
    "kernel": "5.15.148-tegra",
    "l4t": "36.4.4",
    "jetpack": "6",
    "identified_by": "device-tree serial",
    "power_mode": "MAXN_SUPER",
    "ceiling_bytes_per_second": 102_368_000_000,
    "ceiling_from": "specification",
    "spec_device": "Jetson Orin Nano 8GB",
    "spec_bytes_per_second": 102_368_000_000,
    "spec_note": "at 3199 MHz, the memory clock that is allowed now",
}
"""What an event device_described of such a board says."""


@dataclass
class Board:
    """A device to seed; the defaults are an Orin Nano under llama.cpp."""

    device: str = "orin-nano-01"
    itl_ms: float = 12.0
    memory_total: int = 8 * GIB
    runtime_mib: float = 310.0
    leak_mib: float = 0.0  # a turn
    sensors: tuple[str, ...] = ("cpu-thermal", "gpu-thermal", "soc0-thermal")
    policies: dict[str, float] = field(default_factory=lambda: {"policy0": 1.51, "policy4": 1.73})
    rail: str | None = "VDD_IN"  # None: a board whose power and load nobody can read
    # Minutes ago between which heat held its clocks down; None: nobody can say whether it does.
    hot: tuple[int, int] | None = (44, 37)
    description: dict[str, Any] | None = field(default_factory=lambda: dict(ORIN_NANO))
    name: str = "chat"
    engine: str = "llama.cpp"
    engine_version: str = "b6123"
    model: dict[str, Any] | None = field(default_factory=lambda: dict(SMOLLM2))
    settings: dict[str, Any] = field(default_factory=lambda: {"n_ctx": 4096, "n_threads": 4})
    online: bool = True
    ended: int = 0  # microseconds ago that it was last heard
    hours: float = 2.0
    turns: bool = True
    missing: int = 0
    evicted: int = 0
    placed: str = "clock"
    event: str = "source_failed"
    error: str = "ContextLimitError"


FLEET = (
    Board(),
    Board(
        "rpi5-kitchen",
        itl_ms=61.0,
        memory_total=4 * GIB,
        runtime_mib=188.0,
        leak_mib=0.8,
        sensors=("cpu-thermal",),
        policies={"policy0": 2.4},
        rail=None,
        hot=None,
        description=None,
        name="assistant",
        engine_version="b6098",
        online=False,
        ended=25 * MINUTE,
        hours=2.0,
        missing=3,
        evicted=2,
    ),
)


def database(file: Path, now: int, boards: tuple[Board, ...] = FLEET) -> str:
    """Make an SQLite file with these boards; its URL."""
    url = f"sqlite:///{file}"
    fill(url, now, boards)
    return url


def fill(url: str, now: int, boards: tuple[Board, ...] = FLEET) -> None:
    """Make the tables in an empty database, and these boards in them."""
    engine = create_engine(url)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        tables.metadata.create_all(connection)
        for board in boards:
            add(connection, board, now)
        connection.commit()
    engine.dispose()


def add(connection: Connection, board: Board, now: int) -> None:
    """Put one board with all its rows into a database."""
    _Story(board, now).write(connection)


class _Story:
    """What one board did, from its boot until it was last heard."""

    def __init__(self, board: Board, now: int) -> None:
        self.board = board
        self.random = random.Random(board.device)
        self.end = now - board.ended
        self.start = self.end - round(board.hours * HOUR)
        self.boot = f"{self.random.getrandbits(128):032x}"
        self.runtime = f"{self.random.getrandbits(64):016x}"
        self.heat = 44.0
        self.rows: dict[Any, list[dict[str, Any]]] = {
            table: [] for table in tables.metadata.tables.values()
        }
        self.busy: list[tuple[int, int]] = []
        self.decoding: list[tuple[int, int]] = []
        self.windows: dict[int, dict[int, Sketch]] = {}
        self.memory = board.runtime_mib

    def t(self, at: int) -> int:
        """The boot clock at a moment: the board had been up for five minutes."""
        return at - self.start + 5 * MINUTE

    def common(self, at: int) -> dict[str, Any]:
        return {"device": self.board.device, "boot": self.boot, "t": self.t(at), "at": at}

    def write(self, connection: Connection) -> None:
        self._runtime()
        if self.board.turns:
            self._sessions()
            self._windows()
        self._samples()
        self._events()
        self._state()
        for table, rows in self.rows.items():
            if rows:
                connection.execute(table.insert(), rows)

    def _runtime(self) -> None:
        board = self.board
        self.rows[tables.boot].append(
            {
                "device": board.device,
                "boot": self.boot,
                "offset_us": self.start - 5 * MINUTE,
                "placed": board.placed,
                "clock_t": 5 * MINUTE,
                "first_received_at": self.start,
            }
        )
        if board.turns:
            self.rows[tables.runtime].append(
                {
                    **self.common(self.start + 20 * SECOND),
                    "runtime": self.runtime,
                    "pid": 2143,
                    "name": board.name,
                    "engine": board.engine,
                    "engine_version": board.engine_version,
                    "model": board.model,
                    "settings": board.settings,
                }
            )

    def _sessions(self) -> None:
        at, session = self.start + MINUTE, 0
        while at < self.end - MINUTE:
            depth, name = 0, f"{self.random.getrandbits(64):016x}"
            for number in range(self.random.randint(3, 7)):
                if at > self.end - MINUTE:
                    break
                at, depth = self._turn(at, name, number, depth)
                at += round(self.random.uniform(4, 25) * SECOND)
            session += 1
            at += round(self.random.uniform(20, 90) * SECOND)

    def _windows(self) -> None:
        for slot, strata in self.windows.items():
            tokens = sum(sketch.n for sketch in strata.values())
            self.rows[tables.window].append(
                {
                    **self.common(slot),
                    "runtime": self.runtime,
                    "duration_us": 10 * SECOND,
                    "tokens": tokens,
                    "steps": tokens,
                    "strata": [[d, 1, "none", s.to_json()] for d, s in strata.items()],
                }
            )

    def _turn(self, at: int, session: str, number: int, depth: int) -> tuple[int, int]:
        """One turn; when it ended, and the depth of its session then."""
        board, rnd = self.board, self.random
        prompt = depth + rnd.randint(18, 160)
        output = rnd.randint(120, 520)
        ttft = round((40 + (prompt - depth) * board.itl_ms * 0.11) * 1000 * rnd.uniform(0.9, 1.25))
        step = at + ttft
        octaves: dict[int, Sketch] = {}
        ending, error = "complete", None
        if rnd.random() < 0.04:
            ending, output = "cancelled", output // 3
        elif rnd.random() < 0.02:
            ending, error, output = "error", board.error, output // 2
        for token in range(1, output):
            reached = prompt + token
            gap = board.itl_ms * (1 + reached / 9000) * rnd.lognormvariate(0, 0.07)
            if rnd.random() < 0.012:
                gap *= rnd.uniform(1.8, 3.5)
            us = max(round(gap * 1000), 1)
            step += us
            octave = reached.bit_length() - 1
            octaves.setdefault(octave, Sketch()).add(us)
            slot = -(-step // (10 * SECOND)) * 10 * SECOND
            self.windows.setdefault(slot, {}).setdefault(octave, Sketch()).add(us)
        self.memory += board.leak_mib
        self.busy.append((at, step))
        self.decoding.append((at + ttft, step))
        self._turn_rows(
            at, step, ttft, session, number, prompt, depth, output, ending, error, octaves
        )
        return step, prompt + output

    def _turn_rows(
        self,
        at: int,
        end: int,
        ttft: int,
        session: str,
        number: int,
        prompt: int,
        cached: int,
        output: int,
        ending: str,
        error: str | None,
        octaves: dict[int, Sketch],
    ) -> None:
        rnd = self.random
        turn = f"{at:016x}{rnd.getrandbits(32):08x}"
        decode = end - at - ttft
        floor = round((self.memory + rnd.gauss(0, 0.15)) * MIB)
        self.rows[tables.turn].append(
            {
                **self.common(at),
                "turn": turn,
                "runtime": self.runtime,
                "session": session,
                "number": number,
                "duration_us": end - at,
                "ttft_us": ttft,
                "decode_us": decode,
                "tpot_us": decode / (output - 1) if output > 1 else None,
                "prompt_tokens": prompt,
                "cached_tokens": cached,
                "output_tokens": output,
                "first_tokens": 1,
                "steps": output,
                "shared_tokens": 0,
                "token_source": "counted",
                "ending": ending,
                "error": error,
                "suspended_us": 0,
                "concurrency": 1,
                "memory_start_bytes": floor,
                "memory_peak_bytes": floor + round(rnd.uniform(9, 16) * MIB),
                "memory_end_bytes": floor + round(rnd.uniform(1, 3) * MIB),
                "itl": [[octave, sketch.to_json()] for octave, sketch in octaves.items()],
            }
        )
        if rnd.random() < 0.9:
            self.rows[tables.floor].append(
                {
                    **self.common(end + 3 * SECOND),
                    "turn": turn,
                    "runtime": self.runtime,
                    "bytes": floor,
                    "readings": 3,
                    "settled": rnd.random() < 0.85,
                }
            )

    def _samples(self) -> None:
        board, rnd = self.board, self.random
        for at in range(self.start, self.end, 10 * SECOND):
            busy = any(begin < at and at - 10 * SECOND < end for begin, end in self.busy[-400:])
            self.heat += (0.10 if busy else 0.03) * ((71.0 if busy else 46.0) - self.heat)
            values: dict[str, Any] = {}
            for place, label in enumerate(board.sensors):
                level = self.heat - 2.3 * place + rnd.gauss(0, 0.25)
                values[f"temp_celsius:{label}"] = [
                    round(level, 2),
                    round(level - 0.6, 2),
                    round(level + 0.7, 2),
                ]
            for policy, top in board.policies.items():
                hertz = round((top if busy else 0.73) * 1e9)
                values[f"cpu_hertz:{policy}"] = [hertz, round(hertz * 0.97), hertz]
            free = round(board.memory_total * 0.55 - self.memory * MIB + rnd.gauss(0, 4) * MIB)
            values["mem_total_bytes"] = [board.memory_total] * 3
            values["mem_available_bytes"] = [free, free - 9 * MIB, free + 4 * MIB]
            unknown = {} if board.sensors else {"temp_celsius": "absent"}
            if board.hot is None:
                unknown |= dict.fromkeys((f"{SHARE}:{state}" for state in THROTTLED), "absent")
            else:
                first, last = (self.end - ago * MINUTE for ago in board.hot)
                held = "thermal" if first <= at < last else "none"
                for state in THROTTLED:
                    values[f"{SHARE}:{state}"] = [float(state == held)] * 3
            phases = self._phases(at)
            if board.rail is None:
                unknown |= dict.fromkeys(("gpu_busy_share", "dram_busy_share"), "absent")
                unknown["power_watts"] = "denied"
            else:
                for key, level in LEVELS["decode" if busy else "idle"].items():
                    values[key.format(board.rail)] = [level] * 3
            self.rows[tables.sample].append(
                {
                    **self.common(at),
                    "runtime": "",
                    "duration_us": 10 * SECOND,
                    "values": values,
                    "unknown": unknown or None,
                    "phases": phases,
                }
            )

    def _phases(self, at: int) -> dict[str, Any]:
        """What of the 10 s before a moment was prefill, decode and idle; turns never overlap."""

        def inside(spans: list[tuple[int, int]]) -> int:
            cut = ((max(begin, at - 10 * SECOND), min(end, at)) for begin, end in spans[-400:])
            return sum(max(end - begin, 0) for begin, end in cut)

        decode = inside(self.decoding)
        prefill = inside(self.busy) - decode
        lengths = {
            "idle": 10 * SECOND - prefill - decode,
            "prefill": prefill,
            "decode": decode,
        }
        return {
            name: [
                length,
                round(decode / self.board.itl_ms / 1000) if name == "decode" else 0,
                {key.format(self.board.rail): [one] * 3 for key, one in LEVELS[name].items()}
                if self.board.rail is not None
                else {},
            ]
            for name, length in lengths.items()
            if length
        }

    def _events(self) -> None:
        board = self.board
        moments = [
            (self.start, "agent_started", None, {"version": "0.1.0"}),
            *(
                [(self.start + 20 * SECOND, "runtime_started", self.runtime, {})]
                if self.board.turns
                else []
            ),
            (
                self.end - (self.end - self.start) // 3,
                "clock_stepped",
                None,
                {"step_us": 1_204_331},
            ),
            (
                self.end - (self.end - self.start) // 9,
                board.event,
                None,
                {"source": board.name, "errno": "EIO"},
            ),
        ]
        for place, (at, event, runtime, data) in enumerate(moments):
            self.rows[tables.event].append(
                {
                    **self.common(at),
                    "event_id": f"{self.boot[:8]}{place}",
                    "event": event,
                    "runtime": runtime,
                    "turn": None,
                    "data": data,
                }
            )

    def _state(self) -> None:
        board = self.board
        batches = max(round(board.hours * 360), 1)
        missing = [[batches - 40, batches - 41 + board.missing]] if board.missing else []
        self.rows[tables.stream].append(
            {
                "device": board.device,
                "stream": f"{self.random.getrandbits(128):032x}",
                "previous": None,
                "boot": self.boot,
                "watermark": batches - 41 if missing else batches,
                "ranges": [[batches - 40 + board.missing, batches]] if missing else [],
                "highest": batches,
                "received": batches - board.missing - board.evicted,
                "duplicate": 7,
                "late": 2,
                "missing": board.missing,
                "evicted_count": board.evicted,
                "evicted": [[5, 4 + board.evicted]] if board.evicted else [],
                "records": batches * 4,
                "refused": 0,
                "first_received_at": self.start + SECOND,
                "last_received_at": self.end,
            }
        )
        sample = self.rows[tables.sample][-1]
        hot = hottest(sample["values"])
        turn = self.rows[tables.turn][-1] if self.rows[tables.turn] else None
        self.rows[tables.device_state].append(
            {
                "device": board.device,
                "online": board.online,
                "connection": 1,
                "status_at": self.start if board.online else self.end,
                "agent_version": "0.1.0",
                "boot": self.boot,
                "clock_synchronised": board.placed == "clock",
                "first_received_at": self.start,
                "last_received_at": self.end,
                "sample_at": sample["at"],
                "hottest_label": None if hot is None else hot[0],
                "hottest_celsius": None if hot is None else hot[1],
                "memory_total_bytes": board.memory_total,
                "memory_available_bytes": sample["values"]["mem_available_bytes"][0],
                "swap_used_bytes": 0,
                "throttle": state_of_shares(sample["values"]),
                "described_at": self.start if board.description else None,
                "description": board.description,
                "turn_at": turn and turn["at"] + turn["duration_us"],
                "turn_id": turn and turn["turn"],
                "turn_ending": turn and turn["ending"],
                "turn_ttft_us": turn and turn["ttft_us"],
                "turn_tpot_us": turn and turn["tpot_us"],
                "runtime": turn and turn["runtime"],
                "runtime_memory_bytes": turn and turn["memory_end_bytes"],
            }
        )


MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
MARKDOWN = "**b** [l](http://evil.example) :red[x] :smile: $x^2$ `c` ~~s~~"
ADDRESSES = "www.evil.example http://evil.example me@evil.example"
RIGHT_TO_LEFT = "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe שלום مرحبا"
EMOJI = "\N{FIRE}\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL} llm"
LONG = "x" * 60 + "-" + "y" * 139

# One device for each kind of name that somebody else may choose.
HOSTILE = tuple(
    Board(
        device=device,
        name=name[:64],
        engine=name[:64],
        engine_version=name[:64],
        model={**SMOLLM2, "name": name[:128], "quantisation": name[:128]},
        settings={name[:128]: name[:256]},
        sensors=(name[:100],),
        policies={name[:100]: 1.5},
        rail=name[:100],
        hours=0.4,
        event=name[:64],
        error=name[:128],
    )
    for device, name in (
        ("a.markup", MARKUP),
        ("b__markdown__", MARKDOWN),
        ("c-addresses", ADDRESSES),
        ("d_rtl_", RIGHT_TO_LEFT),
        ("e-emoji", EMOJI),
        ("f-" + "l" * 62, LONG),
    )
)
