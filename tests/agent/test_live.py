"""What the agent follows of one runtime: memory around turns, floors, windows, samples."""

from pathlib import Path
from typing import Any

import pytest
from support.application import turn_fields
from support.devices import FakeKernel

from decodewatch.agent.messages import Begin, Progress, Refusal, turn_record
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes.floors import LONGEST_US, FloorWatch
from decodewatch.agent.runtimes.live import MAX_OPEN_TURNS, STALE_US, LiveRuntime
from decodewatch.agent.runtimes.oom import WINDOW_US, KillCounter
from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.shared.records import Floor, Phase, Record, Runtime, Sample, Turn, Window

PID = 4711
SECOND = 1_000_000
MEBIBYTE = 1 << 20
START = 1000 * SECOND
SILENCE = 600 * SECOND
_STAT = "4711 (app) S 1 1 1 0 -1 0 0 0 0 0 {cpu} 0 0 0 20 0 1 0 555 0 0\n"
_STATUS = "Name:\tapp\nRssAnon:\t{anon} kB\nRssFile:\t100 kB\nVmSwap:\t{swap} kB\n"


class Device:
    """One process as the kernel shows it, and the runtime that the agent follows on it."""

    def __init__(self, folder: Path, *, readable: bool = True) -> None:
        self.kernel = FakeKernel(folder)
        self.emitted: list[Record] = []
        self.memory(100)
        reader = ProcessReader(PID, folder, self.kernel, ticks_per_second=100)
        record = Runtime("r1", START, PID, "chat", "llama.cpp")
        self.phases = Phases(START, SECOND)
        self.hot_from = 1 << 60
        self.live = LiveRuntime(
            record,
            reader if readable else None,
            self.emit,
            self.phases,
            SILENCE,
            START,
            lambda t: "thermal" if t >= self.hot_from else "none",
        )

    def emit(self, record: Record, *, urgent: bool = False, soon: bool = False) -> None:
        self.emitted.append(record)

    def memory(self, anon: int, swap: int = 0) -> None:
        """Have the process hold so many MiB."""
        # Written over and not replaced: the agent keeps the files open.
        self.kernel.write(f"/proc/{PID}/stat", _STAT.format(cpu=anon))
        self.kernel.write(f"/proc/{PID}/status", _STATUS.format(anon=anon * 1024, swap=swap * 1024))

    def begin(self, turn: str, t: int, now: int | None = None) -> None:
        self.live.begin(Begin(turn, t, None, None, 100, None), None, t if now is None else now)

    def progress(self, turn: str, now: int, first: int, steps: Any, **fields: Any) -> None:
        whole = {"ttft_us": None, "depth": None, "memory_bytes": None, **fields}
        self.live.progress(Progress(turn, now, first, steps, **whole), now)

    def end(self, turn: str, end: int, now: int | None = None, **fields: Any) -> Turn:
        now = end if now is None else now
        whole = turn_fields(turn, t=end - SECOND, duration_us=SECOND, **fields)
        return self.live.end_turn(turn_record(whole, "r1", None, now), now)

    def take(self, kind: type[Record]) -> list[Any]:
        found = [record for record in self.emitted if isinstance(record, kind)]
        self.emitted = [record for record in self.emitted if not isinstance(record, kind)]
        return found


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_turn_gets_the_memory_that_the_agent_saw_around_it(device: Device) -> None:
    device.begin("t1", START)
    device.memory(180, swap=20)
    device.live.tick(START + SECOND)
    device.memory(120)
    turn = device.end("t1", START + 2 * SECOND)
    assert turn.memory_start_bytes == 100 * MEBIBYTE
    assert turn.memory_peak_bytes == 200 * MEBIBYTE
    assert turn.memory_end_bytes == 120 * MEBIBYTE


def test_what_the_application_read_of_itself_is_kept(device: Device) -> None:
    device.begin("t1", START)
    turn = device.end("t1", START + SECOND, memory_start_bytes=5, memory_end_bytes=7)
    assert (turn.memory_start_bytes, turn.memory_end_bytes) == (5, 7)
    assert turn.memory_peak_bytes == 100 * MEBIBYTE


def test_memory_now_says_nothing_about_a_turn_of_long_ago(device: Device) -> None:
    turn = device.end("t1", START - 60 * SECOND, now=START)
    assert (turn.memory_start_bytes, turn.memory_peak_bytes, turn.memory_end_bytes) == (
        *(None, None, None),
    )


def test_the_floor_is_the_lowest_until_the_next_turn(device: Device) -> None:
    device.begin("t1", START)
    device.end("t1", START + SECOND)
    for second, anon in ((2, 90), (3, 80), (4, 85)):
        device.memory(anon)
        device.live.tick(START + second * SECOND)
    assert device.take(Floor) == []
    device.memory(85)
    device.begin("t2", START + 5 * SECOND)
    assert device.take(Floor) == [
        Floor("t1", "r1", START + 3 * SECOND, 80 * MEBIBYTE, 4, settled=True)
    ]


def test_a_floor_exists_even_where_the_next_turn_follows_at_once(device: Device) -> None:
    device.begin("t1", START)
    device.end("t1", START + SECOND)
    device.begin("t2", START + SECOND + 1)
    (floor,) = device.take(Floor)
    assert (floor.turn, floor.bytes, floor.settled) == ("t1", 100 * MEBIBYTE, False)


def test_a_settled_floor_does_not_wait_for_ever(device: Device) -> None:
    device.end("t1", START)
    assert device.live.busy(START)
    for second in range(1, 12):
        device.live.tick(START + second * SECOND)
    (floor,) = device.take(Floor)
    assert (floor.readings, floor.settled) == (11, True)
    assert not device.live.busy(START + 12 * SECOND)


def test_no_floor_while_another_turn_is_open(device: Device) -> None:
    device.begin("t1", START)
    device.begin("t2", START)
    assert device.end("t1", START + SECOND).concurrency == 2
    device.live.tick(START + 2 * SECOND)
    device.end("t2", START + 3 * SECOND)
    device.live.end(START + 4 * SECOND)
    assert [floor.turn for floor in device.take(Floor)] == ["t2"]


def test_turns_reported_late_get_no_floor_from_after_the_next_turn(device: Device) -> None:
    # The application was alone for a while, and reports three turns at once.
    device.end("t1", START + SECOND, now=START + 60 * SECOND)
    device.live.tick(START + 60 * SECOND)  # between two of its messages
    device.end("t2", START + 30 * SECOND, now=START + 60 * SECOND + 1)
    device.end("t3", START + 50 * SECOND, now=START + 60 * SECOND + 2)
    for second in range(61, 65):
        device.live.tick(START + second * SECOND)
    (floor,) = device.take(Floor)
    assert (floor.turn, floor.settled) == ("t3", True)


def test_a_process_that_the_agent_cannot_read_has_its_own_word(tmp_path: Path) -> None:
    device = Device(tmp_path, readable=False)
    device.begin("t1", START)
    device.progress("t1", START + SECOND, 0, ((None, 1),), memory_bytes=300)
    turn = device.end("t1", START + 2 * SECOND, memory_end_bytes=200)
    assert (turn.memory_start_bytes, turn.memory_peak_bytes) == (None, 300)
    device.live.tick(START + 2 * SECOND + LONGEST_US)
    assert [(floor.bytes, floor.settled) for floor in device.take(Floor)] == [(200, False)]
    device.end("t2", START + 40 * SECOND)
    device.live.tick(START + 40 * SECOND + LONGEST_US)
    assert device.take(Floor) == []  # nobody knows: none, and never 0
    assert not device.live.busy(START + 60 * SECOND)
    device.live.close_interval(START + 60 * SECOND)
    assert device.take(Sample) == []


def test_windows_and_samples_are_of_the_runtime(device: Device) -> None:
    device.begin("t1", START)
    device.progress("t1", START + SECOND, 0, ((None, 1), (40_000, 1)), depth=102)
    for second in (1, 2):
        device.live.tick(START + second * SECOND)
    device.live.close_interval(START + 10 * SECOND)
    (window,) = device.take(Window)
    (sample,) = device.take(Sample)
    assert (window.runtime, window.tokens, window.strata[0].depth) == ("r1", 2, 6)
    assert sample.runtime == "r1"
    assert sample.values["runtime_rss_anon_bytes"] == (100 * MEBIBYTE,) * 3
    device.live.close_interval(START + 20 * SECOND)
    assert device.take(Window) == []


def test_steps_are_kept_apart_by_what_held_the_clocks_down_when_they_were_made(
    device: Device,
) -> None:
    device.begin("t1", START)
    device.hot_from = START + 1_500_000
    device.progress("t1", START + 2 * SECOND, 0, ((None, 1), *[(200_000, 1)] * 9), depth=110)
    device.live.close_interval(START + 3 * SECOND)
    (window,) = device.take(Window)
    assert [(s.throttle, s.itl.n) for s in window.strata] == [("none", 6), ("thermal", 3)]


def test_steps_that_are_reported_again_count_once(device: Device) -> None:
    device.begin("t1", START)
    device.progress("t1", START, 0, ((None, 1), (10, 1), (10, 1)), depth=103)
    device.begin("t1", START)  # after a reconnection
    device.progress("t1", START, 1, ((10, 1), (10, 1), (10, 1)), depth=104)
    device.live.close_interval(START + SECOND)
    assert [(window.steps, window.tokens) for window in device.take(Window)] == [(4, 4)]


def test_progress_of_a_turn_that_never_began_is_refused(device: Device) -> None:
    with pytest.raises(Refusal, match=r"progress\.turn: not open"):
        device.progress("t1", START, 0, ())


def test_open_turns_are_bounded(device: Device) -> None:
    for number in range(MAX_OPEN_TURNS):
        device.begin(f"t{number}", START + number)
    device.progress("t0", START + SECOND, 0, ())
    device.begin("one more", START + SECOND)
    assert len(device.live.turns) == MAX_OPEN_TURNS
    assert device.live.turns_stale == 1
    # The one that was silent for longest went; its record would still be taken.
    assert "t1" not in device.live.turns
    assert {"t0", "t2", "one more"} <= device.live.turns.keys()
    assert device.end("t1", START + 2 * SECOND).ending == "complete"


def test_a_turn_that_its_application_gave_up_is_open_no_more(device: Device) -> None:
    device.begin("t1", START)
    for _ in range(2):
        device.live.forget("t1", START + SECOND)
    assert device.live.turns == {} and device.live.turns_stale == 0
    device.begin("t2", START + SECOND)
    assert device.live.turns["t2"].concurrency == 1


def test_a_turn_that_was_silent_while_its_application_was_not_is_stale(device: Device) -> None:
    device.begin("missed its end", START)
    device.begin("open", START)
    device.progress("open", START + STALE_US + 1, 0, ((None, 1),))
    device.live.let_stale_go()
    assert list(device.live.turns) == ["open"] and device.live.turns_stale == 1


def test_silence_of_the_whole_application_makes_no_turn_stale(device: Device) -> None:
    device.begin("t1", START)
    device.live.tick(START + 2 * STALE_US)
    device.live.let_stale_go()
    assert list(device.live.turns) == ["t1"]


def test_an_application_that_leaves_is_read_for_no_floor(device: Device) -> None:
    device.end("t1", START)
    device.live.tick(START + SECOND)
    device.live.leave(START + SECOND)
    device.memory(1)  # its model is being unloaded
    device.live.tick(START + 3 * SECOND)
    assert [floor.bytes for floor in device.take(Floor)] == [100 * MEBIBYTE]


def test_an_abandoned_turn_ceases_to_count_and_floors_come_again(device: Device) -> None:
    device.begin("abandoned", START)
    device.begin("t1", START + SILENCE)
    assert device.live.turns["t1"].concurrency == 1
    device.end("t1", START + SILENCE + SECOND)
    device.live.end(START + SILENCE + 2 * SECOND)
    assert [floor.turn for floor in device.take(Floor)] == ["t1"]


def test_what_a_runtime_decodes_is_kept_apart_by_its_turns_own_times(device: Device) -> None:
    device.begin("t1", START)
    device.progress("t1", START + SECOND, 0, ((None, 1), (300_000, 2)), ttft_us=700_000)
    for second in (1, 2, 3):
        device.phases.read([], START + second * SECOND)
    device.progress("t1", START + 2 * SECOND, 1, ((300_000, 2), (500_000, 2)))  # one again
    device.end("t1", START + 2 * SECOND)
    device.live.close_interval(START + 3 * SECOND)
    assert device.phases.close(last=True) == {
        "prefill": Phase(700_000, 0, {}),
        "decode": Phase(1_300_000, 4, {}),
        "idle": Phase(SECOND, 0, {}),
    }
    assert [window.tokens for window in device.take(Window)] == [5]


def test_a_turn_that_is_forgotten_silent_or_missed_its_end_is_not_at_work(device: Device) -> None:
    device.begin("forgotten", START)
    device.begin("open", START)
    courses = {name: turn.course for name, turn in device.live.turns.items()}
    device.live.forget("forgotten", START + SECOND)
    assert device.live.courses(START + SECOND) == [courses["open"]]
    device.begin("next", START + STALE_US + 1)
    last = device.live.turns["next"].course
    assert device.live.courses(START + STALE_US + 1) == [last]
    assert device.live.courses(START + STALE_US + 1 + SILENCE) == []


def test_a_turn_that_was_over_before_it_was_heard_of_decodes_no_more(device: Device) -> None:
    device.end("t1", START + SECOND)
    device.phases.read([], START + 3 * SECOND)
    assert device.phases.close(last=True) == {
        "prefill": Phase(200_000, 0, {}),
        "decode": Phase(800_000, 0, {}),
        "idle": Phase(2 * SECOND, 0, {}),
    }


def test_a_lost_turn_says_what_was_known_of_it(device: Device) -> None:
    device.begin("t1", START)
    device.progress(
        "t1", START + SECOND, 0, ((None, 1), (40_000, 1), (90_000, 2)), depth=104, ttft_us=300_000
    )
    device.progress("t1", START + 2 * SECOND, 3, ((50_000, 1),), depth=105)
    turn = device.live.turns["t1"].lost("r1", START + 3 * SECOND)
    assert (turn.ending, turn.duration_us, turn.ttft_us) == ("lost", 3 * SECOND, 300_000)
    assert (turn.output_tokens, turn.steps, turn.first_tokens, turn.shared_tokens) == (5, 4, 1, 2)
    assert (turn.decode_us, turn.token_source) == (180_000, "counted")
    assert [(depth, sketch.n) for depth, sketch in turn.itl] == [(6, 4)]


def test_a_lost_turn_whose_steps_were_not_all_heard_is_an_estimate(device: Device) -> None:
    device.begin("t1", START)
    device.progress("t1", START, 100, ((40_000, 1),), depth=201)
    turn = device.live.turns["t1"].lost("r1", START + SECOND)
    assert (turn.output_tokens, turn.steps, turn.first_tokens) == (101, 101, 0)
    assert (turn.decode_us, turn.token_source) == (None, "estimated")


def test_a_runtime_is_described_again_only_where_something_changed(device: Device) -> None:
    device.live.describe(Runtime("r1", START + SECOND, PID, "chat", "llama.cpp"))
    assert device.take(Runtime) == []
    changed = Runtime("r1", START + SECOND, PID, "chat", "llama.cpp", settings={"n_ctx": 4096})
    device.live.describe(changed)
    device.live.tick(START + SECOND)
    device.live.tick(START + 2 * SECOND)
    assert device.take(Runtime) == [changed]


def test_a_description_that_changes_all_the_time_is_told_once_a_tick(device: Device) -> None:
    for number in range(100):
        settings = {"n_ctx": number}
        device.live.describe(Runtime("r1", START, PID, "chat", "llama.cpp", settings=settings))
    device.live.tick(START + SECOND)
    (record,) = device.take(Runtime)
    assert record.settings == {"n_ctx": 99}
    device.live.describe(Runtime("r1", START, PID, "chat", "llama.cpp", settings={"n_ctx": 7}))
    device.live.end(START + SECOND)
    assert [one.settings for one in device.take(Runtime)] == [{"n_ctx": 7}]


# Floors and kills by themselves.


def test_a_floor_without_a_reading_is_no_floor() -> None:
    watch = FloorWatch("t1", "r1", START, START)
    watch.add(None, START)
    assert watch.empty and watch.floor() is None


def test_the_reading_of_a_process_that_exits_is_no_floor_where_there_is_another() -> None:
    watch = FloorWatch("t1", "r1", START, START)
    watch.add(400, START)
    only = watch.floor(exited=True)
    assert only is not None and only.bytes == 400
    watch.add(390, START + SECOND)
    watch.add(40, START + 2 * SECOND)  # the model is being unloaded
    floor = watch.floor(exited=True)
    assert floor is not None
    assert (floor.bytes, floor.t, floor.readings, floor.settled) == (390, START + SECOND, 2, False)
    lowest = watch.floor()
    assert lowest is not None
    assert (lowest.bytes, lowest.readings, lowest.settled) == (40, 3, True)


def test_a_kill_is_claimed_by_one_death_within_seconds() -> None:
    counter = KillCounter()
    assert not counter.known
    counter.see(7, 0)
    assert counter.known and not counter.claim(0)  # before the agent: nobody knows whose
    counter.see(8, SECOND)
    assert counter.claim(2 * SECOND)
    assert not counter.claim(2 * SECOND)
    counter.see(10, 3 * SECOND)
    assert counter.kills(3 * SECOND) == 2
    assert not counter.claim(3 * SECOND + WINDOW_US + 1)


def test_a_counter_that_cannot_be_read_is_no_evidence() -> None:
    counter = KillCounter()
    for count in (7, None, 9):
        counter.see(count, SECOND)
    assert not counter.claim(SECOND)
