"""What a llama-server's answers mean, version by version."""

import json
from typing import Any

import pytest

from decodewatch.agent.scrape.http import Fault
from decodewatch.agent.scrape.llama_server import _NAMES as NAMES
from decodewatch.agent.scrape.llama_server import (
    CommandLine,
    Slot,
    parse_command,
    parse_slots,
    read,
    said,
)
from decodewatch.agent.scrape.prometheus import parse

NOBODY = CommandLine(None, None, None)
METRICS = b"""\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 34
llamacpp:prompt_tokens_cached_total 66
llamacpp:prompt_seconds_total 4.79583
llamacpp:tokens_predicted_total 100
llamacpp:tokens_predicted_seconds_total 18.5927
llamacpp:n_decode_total 101
llamacpp:n_tokens_max 133
llamacpp:prompt_tokens_seconds 1e9
llamacpp:predicted_tokens_seconds 1e9
llamacpp:n_busy_slots_per_decode 1e9
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""
BUSY = {
    "id": 0,
    "n_ctx": 1000,
    "is_processing": True,
    "id_task": 2,
    "n_prompt_tokens": 134,
    "next_token": [{"n_decoded": 100, "n_remain": 5}],
}
UNUSED = {"id": 1, "n_ctx": 1000, "is_processing": False}


def values(metrics: bytes | Fault, slots: Any, unified: bool | None = None) -> dict[str, Any]:
    """Each measurement's value, without `server_`, or its reason."""
    parsed = metrics if isinstance(metrics, Fault) else parse(metrics, NAMES)
    if not isinstance(slots, Fault):
        slots = parse_slots(json.dumps(slots).encode())
        assert slots is not None
    found = read(parsed, slots, unified)
    assert len({one.key for one in found}) == len(found)
    return {one.key[7:]: one.value if one.known else one.reason for one in found}


def test_counters_are_read_with_cached_prompt_tokens_apart() -> None:
    found = values(METRICS, [BUSY])
    assert found["prefill_tokens"] == 34
    assert found["cached_tokens"] == 66
    assert found["prompt_tokens"] == 100
    assert found["prefill_microseconds"] == 4_795_830
    assert found["output_tokens"] == 100
    assert found["decode_microseconds"] == 18_592_700
    assert found["steps"] == 101
    assert (found["running_requests"], found["waiting_requests"]) == (1, 2)


def test_gauges_that_begin_anew_at_every_scrape_are_not_used() -> None:
    assert not [value for value in values(METRICS, [BUSY]).values() if value == 10**9]


def test_a_metric_that_is_not_there_is_absent_and_not_0() -> None:
    found = values(b"llamacpp:requests_processing 0\n", Fault("unsupported", "501"))
    assert found.pop("running_requests") == 0
    assert set(found.values()) == {"absent", "unsupported"}
    # Older versions do not count cached tokens: the whole prompt is not known then.
    assert values(b"llamacpp:prompt_tokens_total 5\n", [BUSY])["prompt_tokens"] == "absent"


def test_occupancy_comes_from_the_slots_since_its_metric_was_removed() -> None:
    found = values(METRICS, [BUSY])
    assert found["kv_used_tokens"] == 134  # with the 100 output tokens, not plus them
    assert found["kv_limit_tokens"] == 1000
    assert found["kv_used_share"] == found["fullest_slot_share"] == 0.134
    assert found["running_tokens"] == 100


def test_the_metric_of_occupancy_is_believed_where_an_old_version_has_it() -> None:
    old = METRICS + b"llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:kv_cache_tokens 500\n"
    found = values(old, [BUSY, UNUSED])
    assert (found["kv_used_share"], found["kv_used_tokens"]) == (0.25, 500)


def test_without_slots_nothing_is_known_of_occupancy() -> None:
    found = values(METRICS, Fault("unsupported", "status 501"))
    keys = ("kv_used_share", "kv_used_tokens", "kv_limit_tokens", "fullest_slot_share")
    assert {found[key] for key in keys} == {"unsupported"}


def test_whether_several_slots_share_one_cache_must_be_known_for_its_size() -> None:
    slots = [BUSY, UNUSED]
    unknown = values(METRICS, slots)
    assert (unknown["kv_limit_tokens"], unknown["kv_used_share"]) == ("absent", "absent")
    assert unknown["kv_used_tokens"] == 134  # nothing yet in the slot that had no request
    assert values(METRICS, slots, unified=False)["kv_limit_tokens"] == 2000
    shared = values(METRICS, slots, unified=True)
    assert (shared["kv_limit_tokens"], shared["kv_used_share"]) == (1000, 0.134)


def test_without_metrics_the_slots_say_what_runs() -> None:
    found = values(Fault("unsupported", "status 501"), [BUSY, UNUSED])
    assert found["running_requests"] == 1
    assert found["waiting_requests"] == found["output_tokens"] == "unsupported"


def test_an_erased_cache_is_empty_and_as_large_as_before() -> None:
    before = values(METRICS, [{**BUSY, "is_processing": False}])
    after = values(METRICS, [{**BUSY, "is_processing": False, "n_prompt_tokens": 0}])
    assert (before["kv_used_tokens"], after["kv_used_tokens"]) == (134, 0)
    assert before["kv_limit_tokens"] == after["kv_limit_tokens"]


@pytest.mark.parametrize("following", [{"n_decoded": 7}, [{"n_decoded": 7}]])
def test_the_next_token_is_an_object_or_a_list(following: Any) -> None:
    slots = parse_slots(json.dumps([{**BUSY, "next_token": following}]).encode())
    assert slots == [Slot(1000, 134, True, 7)]


def test_an_older_slot_without_a_token_count_has_an_unknown_occupancy() -> None:
    old = {"id": 0, "n_ctx": 512, "state": 1, "id_task": 3, "prompt": "marker", "next_token": {}}
    assert parse_slots(json.dumps([old]).encode()) == [Slot(512, None, True, None)]
    found = values(METRICS, [old])
    assert (found["kv_used_tokens"], found["running_tokens"]) == ("absent", "absent")
    idle = {**old, "state": 0, "id_task": -1}
    assert parse_slots(json.dumps([idle]).encode()) == [Slot(512, None, False, None)]


def test_more_tokens_than_a_slot_has_room_for_are_not_believed() -> None:
    assert parse_slots(json.dumps([{**BUSY, "n_prompt_tokens": 1001}]).encode()) == [
        Slot(1000, None, True, 100)
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b'[{"n_ctx":0,"is_processing":true}]',
        b'[{"n_ctx":5}]',
        b"[" * 9000,
        b'[{"n_ctx":1e999,"is_processing":true}]',
        b'{"error":{"code":501}}',
        b"\xff",
    ],
)
def test_what_is_no_list_of_slots_is_refused(body: bytes) -> None:
    assert parse_slots(body) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("llama-server -m x.gguf", CommandLine(("f16", "f16"), None, None)),
        ("/opt/llama-server -ctk q8_0 -ctv q4_0", CommandLine(("q8_0", "q4_0"), None, None)),
        ("llama-server --cache-type-k BF16", CommandLine(("bf16", "f16"), None, None)),
        ("llama-server -ctk turbo9", CommandLine(None, None, None)),
        ("llama-server -np 4", CommandLine(("f16", "f16"), False, None)),
        ("llama-server --parallel 4 -kvu", CommandLine(("f16", "f16"), True, None)),
        ("llama-server --no-kv-unified", CommandLine(("f16", "f16"), False, None)),
        ("llama-server -cram 512", CommandLine(("f16", "f16"), None, 512 << 20)),
        ("llama-server --cache-ram -1", CommandLine(("f16", "f16"), None, None)),
        ("llama-server -ctk", CommandLine(None, None, None)),
        ("python app.py -ctk q8_0", NOBODY),
        ("", NOBODY),
    ],
)
def test_the_command_line_says_what_no_answer_does(command: str, expected: CommandLine) -> None:
    assert parse_command(command.split()) == expected


def test_a_server_is_described_by_its_props_and_its_model() -> None:
    props = {
        "default_generation_settings": {"n_ctx": 1024, "params": {}},
        "total_slots": 2,
        "model_alias": "/home/somebody/private/m.gguf",
        "model_path": "/home/somebody/private/m.gguf",
        "build_info": "b9999-abc",
        "chat_template": "marker",
    }
    meta = {"n_ctx": 1024, "n_ctx_train": 8192, "size": 96576768, "ftype": "Q4_1"}
    found = said(props, {"data": [{"id": "m", "meta": meta}]}, CommandLine(("f16",) * 2, None, 5))
    assert found.version == "b9999-abc"
    assert found.model_path == "/home/somebody/private/m.gguf"
    assert found.model["name"] == "m.gguf"
    assert found.model["context_limit"] == 1024
    assert found.model["quantisation"] == "Q4_1"
    assert found.model["kv_types"] == ("f16", "f16")
    assert found.settings == {"slots": 2, "prompt_cache_limit_bytes": 5}
    assert "somebody" not in repr(found.model) + repr(found.settings)


@pytest.mark.parametrize("junk", [None, 5, "x", [], [5], {"meta": 5}, [{"meta": [], "id": 7}]])
def test_a_description_of_the_wrong_shape_says_nothing(junk: Any) -> None:
    props = dict.fromkeys(("default_generation_settings", "total_slots", "model_path"), junk)
    found = said({**props, "total_slots": -1}, {"data": junk}, NOBODY)
    assert found.settings == {}
    assert found.model.get("context_limit") is None
