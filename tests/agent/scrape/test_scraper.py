"""Rounds of questions to servers of scripted answers, in a loop whose clock the tests turn."""

import contextlib
import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.application import Application
from support.scrape_server import HEALTHY, Answer, ScrapeServer, answer, as_json
from support.waiting import until

from decodewatch.agent.identity import Identity
from decodewatch.agent.inbox import Inbox, listen
from decodewatch.agent.pending import Pending
from decodewatch.agent.phases import Phases
from decodewatch.agent.runtimes.runtimes import Runtimes
from decodewatch.agent.sampler import Sampler
from decodewatch.agent.scrape.scraper import Scraper
from decodewatch.agent.scrape.targets import targets
from decodewatch.shared.clock import boot_us
from decodewatch.shared.records import Event, Record, Runtime, Sample, Scalar

SECOND = 1_000_000
EVERY = 10 * SECOND
TESTS = Path(__file__).resolve().parents[2]
_T = TypeVar("_T")


def metrics(output: int = 0, running: int = 0, started: str | None = "1") -> bytes:
    """A llama-server's /metrics."""
    text = (
        f"llamacpp:tokens_predicted_total {output}\n"
        f"llamacpp:n_decode_total {output * 2}\n"
        f"llamacpp:requests_processing {running}\n"
        "llamacpp:requests_deferred 0\n"
    )
    return answer(
        text, "200 OK", *([] if started is None else [f"Process-Start-Time-Unix: {started}"])
    )


def slots(tokens: int = 0, busy: bool = False, **more: Any) -> bytes:
    """A llama-server's /slots, of one slot."""
    slot = {"id": 0, "n_ctx": 100, "is_processing": busy, "id_task": 1, "n_prompt_tokens": tokens}
    return as_json([{**slot, **more}])


PROPS = as_json(
    {
        "default_generation_settings": {"n_ctx": 100},
        "total_slots": 1,
        "model_alias": "m",
        "model_path": "/nowhere/m.gguf",
        "build_info": "b1",
        "is_sleeping": False,
    }
)
MODELS = as_json({"data": [{"id": "m", "meta": {"size": 1000, "n_ctx_train": 200}}]})


def llama(**other: Answer) -> dict[str, Answer]:
    """The answers of a llama-server that is idle."""
    return {
        "/health": HEALTHY,
        "/props": PROPS,
        "/v1/models": MODELS,
        "/metrics": metrics(),
        "/slots": slots(),
        **{f"/{name}": value for name, value in other.items()},
    }


class Rig:
    """The parts of the agent that matter here, and its loop."""

    def __init__(self, folder: Path, text: str, **more: Any) -> None:
        self.now = boot_us()
        self.stored: list[Record] = []
        self.told: list[tuple[str, dict[str, Scalar]]] = []
        self.selector = selectors.DefaultSelector()
        self.pending = Pending(self._append, 1 << 20)
        self.runtimes = Runtimes(
            Identity("dev-1", b"salt" * 4, made=False),
            "boot-1",
            self.pending,
            lambda now: None,
            Phases(self.now, SECOND),
            lambda t: "none",
            silence_us=600 * SECOND,
        )
        self.path = folder / "agent.sock"
        self.inbox = Inbox(listen(self.path, 0o660), self.selector, self.runtimes)
        self.sampler = Sampler([], self.now, lambda source, fault: None)
        self.scraper = Scraper(
            targets(text),
            self.selector,
            self.runtimes,
            lambda kind, data: self.told.append((kind, data)),
            self.now,
            **{"interval_us": EVERY, "timeout_us": 5 * SECOND, **more},
        )
        self._real = boot_us()

    def _append(self, records: Sequence[Record]) -> None:
        self.stored += records

    def pump(self, later_us: int = 0) -> None:
        """One turn of the loop. The clock runs as it does, and `later_us` more."""
        for key, mask in self.selector.select(0.01):
            key.data(mask)
        real = boot_us()
        self.now += real - self._real + later_us
        self._real = real
        self.scraper.look(self.now)

    def round(self) -> None:
        """The next round of every server, to its end, and a tick."""
        wait = self.scraper.due_in_us(self.now)
        self.pump(max(wait, 0))
        self.until(lambda: not self.asking())
        self.tick()

    def until(self, probe: Callable[[], _T]) -> _T:
        """Turn the loop until something is true."""

        def turned() -> _T:
            self.pump()
            return probe()

        return until(turned)

    def asking(self) -> bool:
        """Whether a request is under way or due."""
        return self.connected() or self.scraper.due_in_us(self.now) <= 0

    def connected(self) -> bool:
        """Whether a request is under way."""
        return len(self.selector.get_map()) > 1  # the inbox is there always

    def tick(self) -> None:
        self.sampler.conclude(self.scraper.tick(self.now))
        self.runtimes.tick(self.now, None)

    def samples(self) -> dict[str | None, Sample]:
        """Closes the interval: the samples of it, by runtime."""
        self.pending.commit(self.now)  # what ended before, with last samples of its own
        before = len(self.stored)
        system = self.sampler.close(self.now)
        if system is not None:
            self.pending.add(system)
        self.runtimes.close_interval(self.now)
        self.pending.commit(self.now)
        return {one.runtime: one for one in self.stored[before:] if isinstance(one, Sample)}

    def of_server(self) -> Sample:
        """Closes the interval: the one sample that has measurements of a server."""
        (found,) = [
            one
            for one in self.samples().values()
            if any(key.startswith("server_") for key in {**one.values, **(one.unknown or {})})
        ]
        return found

    def records(self, kind: type[_T]) -> list[_T]:
        self.pending.commit(self.now)
        return [one for one in self.stored if isinstance(one, kind)]

    def close(self) -> None:
        self.scraper.close()
        self.inbox.close()
        self.inbox.disconnect()
        assert not self.selector.get_map()
        self.selector.close()


class ServerProcess:
    """A server in a process of its own, whose answers lie in a folder."""

    def __init__(self, folder: Path, answers: dict[str, bytes], port: int = 0) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.say(**{path[1:]: raw for path, raw in answers.items()})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.scrape_server", str(folder), str(port)],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def say(self, **answers: bytes) -> None:
        """Answers from now on, by their paths."""
        for path, raw in answers.items():
            (self.folder / path.replace("/", "+")).write_bytes(raw)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def made() -> Iterator[contextlib.ExitStack]:
    """Closes what a test made."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def process(tmp_path: Path, made: contextlib.ExitStack) -> Callable[..., ServerProcess]:
    def start(port: int = 0, **answers: bytes) -> ServerProcess:
        whole = {path: raw for path, raw in llama(**answers).items() if isinstance(raw, bytes)}
        server = ServerProcess(tmp_path / "answers", whole, port)
        made.callback(server.close)
        return server

    return start


@pytest.fixture
def scripted(made: contextlib.ExitStack) -> Callable[..., ScrapeServer]:
    def start(**answers: Answer) -> ScrapeServer:
        return made.enter_context(ScrapeServer(llama(**answers)))

    return start


@pytest.fixture
def rig(tmp_path: Path, made: contextlib.ExitStack) -> Callable[..., Rig]:
    def make(text: str, **more: Any) -> Rig:
        found = Rig(tmp_path, text, **more)
        made.callback(found.close)
        return found

    return make


@pytest.fixture
def unseen(tmp_path: Path) -> dict[str, Path]:
    """Where no process can be found."""
    (tmp_path / "empty").mkdir()
    return {"root": tmp_path / "empty"}


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged, with the fields."""
    return repr([vars(record) for record in caplog.records])


def test_a_server_is_the_runtime_that_listens_there(
    process: Callable[..., ServerProcess], rig: Callable[..., Rig]
) -> None:
    server = process(metrics=metrics(10, running=1), slots=slots(25, busy=True))
    core = rig(server.url)
    core.round()
    server.say(metrics=metrics(17, running=1), slots=slots(75, busy=True))
    core.round()
    sample = core.of_server()
    assert sample.runtime is not None
    assert sample.values["server_running_requests"] == (1, 1, 1)
    assert sample.values["server_kv_used_tokens"] == (50, 25, 75)
    assert sample.values["server_kv_used_share"] == (0.5, 0.25, 0.75)
    assert sample.values["server_output_tokens"] == 7
    assert sample.values["server_steps"] == 14
    assert abs(sample.values["server_scraped_microseconds"] - EVERY) < SECOND  # type: ignore[operator]
    assert sample.values["runtime_rss_anon_bytes"]

    def described() -> bool:
        core.tick()
        return any(one.model for one in core.records(Runtime))

    core.until(described)
    last = core.records(Runtime)[-1]
    assert (last.id, last.pid) == (sample.runtime, server.pid)
    assert (last.name, last.engine, last.engine_version) == ("llama-server", "llama.cpp", "b1")
    assert last.settings == {"server": f"127.0.0.1:{server.port}", "slots": 1}
    assert last.model is not None
    assert (last.model.name, last.model.context_limit, last.model.allocation) == (
        *("m", 100),
        "at_once",
    )
    assert last.model.weight_bytes_per_token is None  # its file is not there
    assert [event.event for event in core.records(Event)] == ["runtime_started"]


def test_a_gauge_stands_until_the_next_round_and_an_increase_is_told_once(
    process: Callable[..., ServerProcess], rig: Callable[..., Rig]
) -> None:
    server = process(metrics=metrics(10, running=1))
    core = rig(server.url)
    core.round()
    server.say(metrics=metrics(20, running=1))
    core.round()
    first = core.of_server()
    core.tick()
    between = core.of_server()
    core.round()
    last = core.of_server()
    assert first.values["server_output_tokens"] == 10
    assert between.values["server_running_requests"] == (1, 1, 1)
    # No round ended in this interval: its increase is not known, and is not 0.
    assert between.unknown is not None
    assert between.unknown["server_output_tokens"] == "transient"
    assert last.values["server_output_tokens"] == 0


def test_a_server_that_was_started_again_counts_from_0(
    process: Callable[..., ServerProcess], rig: Callable[..., Rig]
) -> None:
    first = process(metrics=metrics(100))
    core = rig(first.url)
    core.round()
    before = core.of_server()
    first.close()
    # More than before: that it counts anew shows in the process alone.
    second = process(first.port, metrics=metrics(130, started=None))
    core.round()
    after = core.of_server()
    assert after.runtime not in (None, before.runtime)
    assert after.values["server_output_tokens"] == 130
    pids = [one.pid for one in core.records(Runtime)]
    assert {first.pid, second.pid} == set(pids)
    ended = [one for one in core.records(Event) if one.event == "runtime_ended"]
    assert [one.runtime for one in ended] == [before.runtime]


def test_a_server_that_was_gone_for_a_while_is_found_again_at_once(
    process: Callable[..., ServerProcess], rig: Callable[..., Rig]
) -> None:
    first = process(metrics=metrics(100, started=None))
    core = rig(first.url)
    core.round()
    before = core.of_server()
    first.close()
    core.round()
    core.round()
    gone = core.of_server()
    key = f"server_running_requests:127.0.0.1:{first.port}"
    assert (gone.runtime, gone.unknown) == (None, {key: "absent"})
    props = as_json({"default_generation_settings": {}, "model_alias": "other", "model_path": "x"})
    second = process(first.port, metrics=metrics(130, started=None), props=props)
    core.round()
    after = core.of_server()
    assert after.runtime not in (None, before.runtime)
    assert after.values["server_output_tokens"] == 130

    def described() -> bool:
        core.tick()
        last = core.records(Runtime)[-1]
        return last.pid == second.pid and last.model is not None and last.model.name == "other"

    core.until(described)


def test_a_server_whose_process_is_not_seen_is_in_the_systems_sample(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig], unseen: dict[str, Path]
) -> None:
    server = scripted(metrics=metrics(5, running=3))
    core = rig(server.url, **unseen)
    core.round()
    sample = core.of_server()
    assert sample.runtime is None
    assert sample.values[f"server_running_requests:127.0.0.1:{server.port}"] == (3, 3, 3)
    assert core.records(Runtime) == []


@pytest.mark.parametrize(
    ("then", "started", "increase"),
    [
        (130, "2", 130),  # it says that it is another one
        (40, None, 40),  # it does not, and counts less than before
        (130, None, 30),
        (40, "1", None),  # it says that it is the same: that one count went back means nothing
    ],
)
def test_a_restart_is_seen_without_its_process(
    scripted: Callable[..., ScrapeServer],
    rig: Callable[..., Rig],
    unseen: dict[str, Path],
    then: int,
    started: str | None,
    increase: int | None,
) -> None:
    first = None if started is None else "1"
    server = scripted(metrics=metrics(100, started=first))
    core = rig(server.url, **unseen)
    core.round()
    server.answers["/metrics"] = metrics(then, started=started)
    core.round()
    key = f"server_output_tokens:127.0.0.1:{server.port}"
    assert core.of_server().values.get(key) == increase
    restarts = [kind for kind, _ in core.told if kind == "server_restarted"]
    assert len(restarts) == (increase not in (None, 30))


def test_a_server_that_says_nothing_has_unknown_values_and_is_told_of_once(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig], unseen: dict[str, Path]
) -> None:
    server = scripted()
    core = rig(server.url, timeout_us=SECOND // 2, **unseen)
    core.round()
    core.of_server()
    server.answers["/metrics"] = server.hang
    core.round()
    core.round()
    sample = core.of_server()
    assert not any(key.startswith("server_") for key in sample.values)
    assert sample.unknown is not None
    assert set(sample.unknown.values()) == {"transient"}
    data = {"server": f"127.0.0.1:{server.port}", "reason": "transient"}
    assert core.told == [("scrape_failed", {**data, "fault": "GET /metrics: no answer in time"})]
    server.answers["/metrics"] = metrics(running=2)
    core.round()
    key = f"server_running_requests:127.0.0.1:{server.port}"
    assert core.of_server().values[key] == (2, 2, 2)


def test_a_server_that_is_not_there_is_absent_and_found_when_it_comes(
    process: Callable[..., ServerProcess], rig: Callable[..., Rig]
) -> None:
    first = process()
    first.close()
    core = rig(first.url)
    core.round()
    sample = core.of_server()
    key = f"server_running_requests:127.0.0.1:{first.port}"
    assert (sample.runtime, sample.unknown) == (None, {key: "absent"})
    second = process(first.port)
    core.round()
    core.tick()
    assert [one.pid for one in core.records(Runtime)] == [second.pid]


def test_a_server_that_loads_its_model_is_asked_nothing_else(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig]
) -> None:
    loading = as_json({"error": {"message": "Loading model"}}).replace(b"200 OK", b"503 Busy")
    server = scripted(health=loading)
    core = rig(server.url)
    core.round()
    core.round()
    assert server.asked == ["/health", "/health"]


def test_a_server_that_sleeps_is_not_woken_up(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig]
) -> None:
    server = scripted()
    core = rig(f"llama-server={server.url}")
    core.round()
    server.answers["/props"] = as_json({"is_sleeping": True})
    server.asked.clear()
    core.round()
    core.round()
    assert server.asked == ["/props", "/health", "/props"]


def test_a_server_at_work_is_asked_twice_a_round_and_one_question_at_a_time(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig]
) -> None:
    server = scripted(metrics=metrics(running=1), slots=slots(busy=True))
    core = rig(server.url)
    core.round()
    server.asked.clear()
    core.round()
    assert server.asked == ["/metrics", "/slots"]
    assert core.scraper.busy


def test_rounds_that_were_missed_are_not_made_up_for(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig]
) -> None:
    server = scripted(metrics=metrics(running=1))
    core = rig(server.url)
    core.round()
    server.asked.clear()
    core.pump(10 * EVERY)  # the device slept
    core.until(lambda: not core.asking())
    assert server.asked == ["/metrics", "/slots"]
    assert SECOND <= core.scraper.due_in_us(core.now) <= EVERY


def test_between_two_rounds_lies_a_second_however_long_one_takes(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig]
) -> None:
    core = rig(scripted(metrics=metrics(running=1)).url, interval_us=SECOND)
    core.round()
    core.pump(max(core.scraper.due_in_us(core.now), 0))
    core.pump(1_300_000)
    core.until(lambda: not core.connected())
    assert core.scraper.due_in_us(core.now) <= 0  # it is late
    core.pump()
    core.until(lambda: not core.connected())
    assert core.scraper.due_in_us(core.now) > 750_000


def test_a_server_without_metrics_is_known_by_its_props(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig], unseen: dict[str, Path]
) -> None:
    off = answer('{"error":{"code":501}}', "501 Not Implemented")
    server = scripted(metrics=off, slots=slots(50, busy=True))
    core = rig(server.url, **unseen)
    core.round()
    sample = core.of_server()
    label = f":127.0.0.1:{server.port}"
    assert sample.values["server_running_requests" + label] == (1, 1, 1)
    assert sample.values["server_kv_used_share" + label] == (0.5, 0.5, 0.5)
    assert sample.unknown is not None
    assert sample.unknown["server_output_tokens" + label] == "unsupported"


@pytest.mark.parametrize("status", ["501 Not Implemented", "404 Not Found"])
def test_a_llama_server_without_metrics_is_one_warning_that_says_what_to_do(
    scripted: Callable[..., ScrapeServer],
    rig: Callable[..., Rig],
    unseen: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    status: str,
) -> None:
    server = scripted(metrics=answer("", status))
    core = rig(server.url, **unseen)
    for _ in range(3):
        core.round()
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings == [
        f"llama-server answers /metrics with {status[:3]}: start it with --metrics; only /slots is "
        "read"
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (answer("<html>marker</html>"), "unsupported"),
        (answer("", "404 Not Found"), "unsupported"),
        (answer("", "302 Found", "Location: /elsewhere"), "unsupported"),
        (answer("", "401 Unauthorized"), "denied"),
        (b"garbage\r\n\r\n", "implausible"),
    ],
)
def test_what_is_no_server_that_is_known_is_told_with_its_reason(
    scripted: Callable[..., ScrapeServer],
    rig: Callable[..., Rig],
    unseen: dict[str, Path],
    raw: bytes,
    reason: str,
) -> None:
    server = scripted(metrics=raw, props=answer("", "404 Not Found"))
    core = rig(server.url, **unseen)
    core.round()
    key = f"server_running_requests:127.0.0.1:{server.port}"
    assert core.of_server().unknown == {key: reason}
    assert core.told[0][1]["reason"] == reason


def test_another_kind_of_server_in_its_place_is_recognised(
    scripted: Callable[..., ScrapeServer], rig: Callable[..., Rig], unseen: dict[str, Path]
) -> None:
    server = scripted()
    core = rig(server.url, **unseen)
    core.round()
    server.answers["/metrics"] = answer(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 3\n'
        "vllm:kv_cache_usage_perc 0.5\nbad line\nvllm:num_preemptions_total 2\n"
    )
    core.round()
    core.round()
    core.of_server()
    server.answers["/metrics"] = answer(
        "vllm:num_requests_running 4\nvllm:num_preemptions_total 5\nbad\nline NaN\n"
    )
    core.round()
    sample = core.of_server()
    label = f":127.0.0.1:{server.port}"
    assert sample.values["server_running_requests" + label] == (4, 4, 4)
    assert sample.values["server_preemptions" + label] == 3
    assert sample.values["server_skipped_lines" + label] == 2
    assert sample.unknown is not None
    assert sample.unknown["server_kv_used_share" + label] == "absent"


def test_what_an_application_says_of_itself_stands_and_the_rest_is_filled_in(
    rig: Callable[..., Rig], scripted: Callable[..., ScrapeServer]
) -> None:
    core = rig(scripted().url)
    with Application(core.path) as application:
        application.hello(name="chat", engine="xllamacpp", model={"name": "said"})
        core.until(lambda: application.heard())
        found: dict[str, Any] = {"version": "b2", "model": None, "settings": {"slots": 1}}
        core.runtimes.follow(application.pid, "llama-server", "llama.cpp", core.now, **found)
        core.tick()
        last = core.records(Runtime)[-1]
        assert (last.name, last.engine, last.engine_version) == ("chat", "xllamacpp", "b2")
        assert last.model is not None and last.model.name == "said"
        assert last.settings == {"slots": 1}
        found["settings"] = {"slots": 2}
        core.runtimes.follow(application.pid, "llama-server", "llama.cpp", core.now, **found)
        core.tick()
        assert core.records(Runtime)[-1].settings == {"slots": 2}
        assert len({one.id for one in core.records(Runtime)}) == 1


def test_a_fault_of_the_scraper_costs_a_round_and_quotes_nothing(
    scripted: Callable[..., ScrapeServer],
    rig: Callable[..., Rig],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(body: bytes) -> None:
        raise ValueError(body.decode())

    server = scripted(slots=slots(prompt="marker text"))
    core = rig(server.url)
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr("decodewatch.agent.scrape.llama_server.parse_slots", broken)
        core.round()
    said = logged(caplog)
    assert "ValueError" in said and "marker" not in said
    assert core.told[0][1]["fault"] == "a fault of the agent"
    core.samples()
    core.round()
    assert "server_kv_used_tokens" in core.of_server().values


def test_text_that_a_server_answers_with_is_in_no_record_and_no_log(
    scripted: Callable[..., ScrapeServer],
    rig: Callable[..., Rig],
    caplog: pytest.LogCaptureFixture,
) -> None:
    marker = "marker-text"
    server = scripted(
        metrics=answer(f"{marker}\nllamacpp:requests_processing 1\nllamacpp:x {marker}\n"),
        slots=slots(5, busy=True, prompt=marker, generated=marker),
        props=as_json({"default_generation_settings": {"params": {"stop": [marker]}},
                       "chat_template": marker, "model_alias": "m"}),
    )  # fmt: skip
    core = rig(server.url)
    with caplog.at_level(logging.DEBUG):
        core.round()
        server.answers["/slots"] = answer(marker, "500 " + marker)
        core.round()
        server.answers["/metrics"] = answer(marker, "503 " + marker, f"Server: {marker}")
        core.round()
        core.samples()
    said = logged(caplog) + repr(core.stored) + repr(core.told)
    assert len(core.stored) > 2 and core.told
    assert marker not in said
