"""What vLLM's metrics mean, version by version."""

from typing import Any

import pytest

from decodewatch.agent.scrape.prometheus import parse
from decodewatch.agent.scrape.vllm import _NAMES as NAMES
from decodewatch.agent.scrape.vllm import read, said


def values(text: str) -> dict[str, Any]:
    """Each measurement's value, without `server_`, or its reason."""
    found = read(parse(text.encode(), NAMES))
    assert len({one.key for one in found}) == len(found)
    return {one.key[7:]: one.value if one.known else one.reason for one in found}


def test_a_gauge_with_its_old_and_its_new_name_counts_once() -> None:
    both = values(
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    )
    assert both["kv_used_share"] == 0.5
    assert values("vllm:gpu_cache_usage_perc 0.25\n")["kv_used_share"] == 0.25
    differ = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n"
    assert values(differ)["kv_used_share"] == 0.5


def test_a_histogram_with_its_old_and_its_new_name_counts_once() -> None:
    old = "vllm:time_per_output_token_seconds_{} {}\n"
    new = "vllm:inter_token_latency_seconds_{} {}\n"
    text = old.format("sum", 3) + old.format("count", 30)
    found = values(text)
    assert (found["itl_microseconds"], found["itl_steps"]) == (3_000_000, 30)
    found = values(text + new.format("sum", 2) + new.format("count", 20))
    assert (found["itl_microseconds"], found["itl_steps"]) == (2_000_000, 20)


def test_the_figures_of_all_engines_are_added_up() -> None:
    text = "".join(
        f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}\n'
        for name in (
            "spec_decode_num_draft_tokens_total",
            "num_requests_running",
            "num_preemptions_total",
        )
        for engine, value in ((0, 10), (1, 30))
    )
    found = values(text)
    assert found["draft_tokens"] == found["running_requests"] == found["preemptions"] == 40


def test_a_metric_that_is_not_there_is_absent_and_not_0() -> None:
    found = values("vllm:num_requests_running 0\n")
    assert found.pop("running_requests") == 0
    assert set(found.values()) == {"absent"}


def test_occupancy_in_tokens_is_of_the_blocks_of_every_engine() -> None:
    info = 'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{}",engine="{}"}} 1.0\n'
    share = 'vllm:kv_cache_usage_perc{{engine="{}"}} {}\n'
    found = values(info.format(100, 0) + share.format(0, 0.5))
    assert (found["kv_limit_tokens"], found["kv_used_tokens"]) == (1600, 800)
    assert found["kv_used_share"] == 0.5
    two = info.format(100, 0) + info.format(300, 1) + share.format(0, 1.0) + share.format(1, 0.2)
    found = values(two)
    assert (found["kv_limit_tokens"], found["kv_used_tokens"]) == (6400, 2560)
    assert found["kv_used_share"] == pytest.approx(0.4)  # not the mean of the two shares
    one_info = values(info.format(100, 0) + share.format(0, 1.0) + share.format(1, 0.0))
    assert (one_info["kv_limit_tokens"], one_info["kv_used_share"]) == (3200, 0.5)


def test_a_share_above_one_is_not_believed() -> None:
    assert values("vllm:kv_cache_usage_perc 37.5\n")["kv_used_share"] == "implausible"


def test_the_number_of_blocks_that_is_not_known_yet_leaves_the_tokens_unknown() -> None:
    found = values(
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
        "vllm:kv_cache_usage_perc 0.5\n"
    )
    assert (found["kv_limit_tokens"], found["kv_used_tokens"]) == ("absent", "absent")
    assert found["kv_used_share"] == 0.5


def test_decode_time_comes_with_the_tokens_it_was_spent_on() -> None:
    # Two requests of 11 and 1 tokens: 10 of them were decoded, in 1 s.
    found = values(
        "vllm:request_decode_time_seconds_sum 1\n"
        "vllm:request_generation_tokens_sum 12\n"
        "vllm:request_generation_tokens_count 2\n"
    )
    assert (found["decode_microseconds"], found["decode_tokens"]) == (1_000_000, 10)


def test_cached_prompt_tokens_are_apart() -> None:
    by_source = (
        'vllm:prompt_tokens_by_source_total{source="local_compute"} 30\n'
        'vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 70\n'
    )
    text = "vllm:prompt_tokens_total 100\nvllm:prompt_tokens_cached_total 70\n"
    for found in (values(text), values(text + by_source)):
        assert found["prompt_tokens"] == 100
        assert (found["prefill_tokens"], found["cached_tokens"]) == (30, 70)
    older = values("vllm:prompt_tokens_total 100\nvllm:gpu_prefix_cache_hits_total 64\n")
    assert (older["cached_tokens"], older["prefill_tokens"]) == (64, "absent")


def test_a_negative_count_is_not_believed() -> None:
    assert values("vllm:num_requests_running -1\n")["running_requests"] == "implausible"


def test_the_model_is_named_and_paged() -> None:
    models = {"data": [{"id": "/srv/private/Qwen3-0.6B/", "max_model_len": 4096}]}
    config = {"cache_dtype": "fp8_e4m3", "block_size": "16", "num_gpu_blocks": "100"}
    found = said(models, {"version": "0.33.0"}, config)
    assert found.version == "0.33.0"
    assert found.model["name"] == "Qwen3-0.6B"
    assert found.model["kv_types"] == ("fp8", "fp8")
    assert (found.model["allocation"], found.model["context_limit"]) == ("paged", 4096)
    assert found.settings["num_gpu_blocks"] == "100"
    assert said(models, {}, {"cache_dtype": "auto"}).model["kv_types"] is None
    assert said({"data": [{"id": 5}]}, {"version": []}, {}).model == {}
