"""What public reports taught about streams, a test each: see docs/metrics.md."""

import json
import zlib
from itertools import accumulate
from typing import Any

import pytest
from support.streams import (
    DONE,
    Read,
    chat,
    counts,
    glued,
    metered,
    ndjson,
    of_pieces,
    sse,
    usage,
)


def timings(prompt: int, prompt_ms: float, tokens: int, ms: float, **more: Any) -> dict[str, Any]:
    """llama-server's own times."""
    own = {"prompt_n": prompt, "prompt_ms": prompt_ms, "predicted_n": tokens, "predicted_ms": ms}
    return {**own, **more}


# How a stream ends.


def test_an_abort_is_no_success_although_done_follows() -> None:
    reads = [(30.0, sse(chat("a"))), (60.0, sse(chat(finish="abort"), usage(3, 1), DONE))]
    said = metered(reads)
    assert (said["status"], said["finish"], said["N"]) == ("aborted", "abort", 1)
    # A server that noticed the client's disconnect calls it so, too.
    assert metered(reads, cancelled=True)["status"] == "cancelled"


def test_done_alone_proves_nothing() -> None:
    assert metered([(30.0, sse(chat("a"), DONE))])["status"] == "truncated"


def test_a_stream_that_stops_silently_is_truncated_and_keeps_what_came() -> None:
    said = metered([(30.0, sse(chat("a"))), (50.0, sse(chat("b")))])
    assert (said["status"], said["N"], said["N_src"]) == ("truncated", 2, "chunks (estimate)")
    assert (said["ttft"], said["tpot"]) == (30, 20)


def test_totals_and_the_end_of_the_stream_make_it_complete_without_a_finish_reason() -> None:
    reads = [(30.0, sse(chat("a"))), (50.0, sse(chat("b"))), (51.0, sse(usage(3, 2)))]
    assert metered(reads)["status"] == "complete"
    assert metered([*reads, (60.0, sse(chat("c")))])["status"] == "truncated"


def test_a_usage_that_grows_with_each_chunk_is_no_end() -> None:
    reads = [(10.0 * n, sse(chat("a", usage=counts(3, n)))) for n in (1, 2, 3)]
    assert metered(reads)["status"] == "truncated"
    assert metered(reads, cancelled=True)["status"] == "cancelled"


def test_a_turn_that_was_whole_when_the_client_left_is_complete() -> None:
    reads = [(30.0, sse(chat("a"))), (31.0, sse(chat(finish="stop")))]
    assert metered(reads, cancelled=True)["status"] == "complete"


def test_a_cancel_before_the_first_token_has_no_latency() -> None:
    said = metered([(5.0, sse(chat(delta={"role": "assistant", "content": ""})))], cancelled=True)
    assert (said["status"], said["N"], said["ttft"], said["e2e"]) == ("cancelled", 0, None, None)


@pytest.mark.parametrize(
    "frame",
    [
        sse({"error": {"code": 500, "message": "x"}}),
        sse({"object": "error", "message": "x"}),
        sse(b'error: {"code":500,"message":"x"}\n\n'),
        sse(b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'),
        sse(chat(finish="error")),
    ],
)
def test_an_error_inside_a_stream_of_status_200_is_an_error(frame: bytes) -> None:
    said = metered([(30.0, sse(chat("a"))), (31.0, frame + DONE)])
    assert (said["status"], said["N"], said["tpot"]) == ("error", 1, None)


def test_an_error_of_http_is_an_error_whatever_its_body_says() -> None:
    assert metered([(3.0, b"<html>")], "document", failed=True)["status"] == "error"


def test_ollama_ends_without_its_last_object_where_it_gave_up() -> None:
    lines = [(30.0 * n, ndjson({"response": "x", "done": False})) for n in (1, 2)]
    said = metered(lines, "ndjson")
    assert (said["status"], said["tpot"], said["server"]) == ("truncated", 30, None)


# When the first token came.


def test_pings_comments_and_empty_data_are_nothing_but_signs_of_life() -> None:
    reads = [
        (1000.0, b":\n\n"),
        (2000.0, b": WORKING\r\n\r\n:\n"),
        (2500.0, b"data: : WORKING\n\n"),
        (2600.0, b"data:\n\ndata\n\nevent: ping\n\nid: 7\nretry: 10\n\n"),
        (3000.0, sse(chat("A"))),
        (3050.0, sse(b": between\n\n", chat("B"), b":\n\n")),
        (3051.0, sse(chat(finish="stop"), usage(4, 2), DONE)),
    ]
    said = metered(reads)
    assert (said["N"], said["ttft"], said["tpot"], said["gaps"]) == (2, 3000, 50, [50])
    assert said["flags"] == ["bad_frame"]


def test_a_role_sent_while_the_prompt_is_read_is_no_token() -> None:
    role = chat(delta={"role": "assistant", "content": ""}, usage=counts(5, 0))
    reads = [(5.0, sse(role)), (9.0, sse(role)), (214.0, sse(chat("a"))), (234.0, sse(chat("b")))]
    assert metered(reads)["ttft"] == 214


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_output_and_the_answer_has_a_time_of_its_own(field: str) -> None:
    reads = [
        (90.0, sse(chat(delta={"role": "assistant", "content": None, field: "hm"}))),
        (110.0, sse(chat(delta={field: "ok"}))),
        (130.0, sse(chat("42"))),
        (131.0, sse(chat(finish="stop"))),
        (
            131.0,
            sse(usage(6, 4, completion_tokens_details={"reasoning_tokens": 3}), DONE),
        ),
    ]
    said = metered(reads)
    assert (said["ttft"], said["ttfo"], said["tpot"]) == (90, 130, pytest.approx(40 / 3, abs=1e-3))
    assert (said["N"], said["reasoning"]) == (4, 3)


def test_only_reasoning_has_no_answer_time() -> None:
    said = metered([(90.0, sse(chat(delta={"reasoning": "hm"}, finish="length")))])
    assert (said["ttft"], said["ttfo"], said["status"]) == (90, None, "complete")


def test_empty_choices_and_an_empty_finish_reason_are_no_end() -> None:
    reads = [
        (5.0, sse({"choices": [], "prompt_filter_results": []})),
        (30.0, sse(chat("a", finish=""))),
        (40.0, sse({"choices": []})),
        (50.0, sse(chat("b", finish=""))),
        (51.0, sse(chat(finish="stop"), usage(3, 2), DONE)),
    ]
    whole = metered(reads)
    assert (whole["status"], whole["finish"], whole["N"], whole["ttft"]) == (
        *("complete", "stop", 2),
        30,
    )
    assert whole["gaps"] == [20] and metered(reads[:-1])["status"] == "truncated"


def test_the_prompts_time_is_in_no_rate_of_decoding() -> None:
    reads = [
        (105.0, sse(chat("a"))),
        (125.0, sse(chat("b"))),
        (145.0, sse(chat("c", finish="stop"))),
    ]
    assert 1000 / metered(reads)["tpot"] == 50


# How many tokens.


def test_speculative_steps_are_chunks_of_several_tokens() -> None:
    text = ["a", "bcd", "efgh", "ij"]
    totals = list(accumulate(len(part) for part in text))
    reads: list[Read] = [
        (80.0 + 30 * n, sse(chat(part, timings=timings(7, 70, totals[n], 30.0 * n))))
        for n, part in enumerate(text)
    ]
    last = timings(7, 70, 10, 90, draft_n=9, draft_n_accepted=6)
    said = metered([*reads, (171.0, sse(chat(finish="stop", timings=last), DONE))])
    assert (said["N"], said["N_src"], said["chunk_tokens"]) == (10, "timings", [1, 3, 4, 2])
    assert (said["tpot"], said["gaps"]) == (10, [30, 30, 30])
    server = said["server"]
    assert (server["steps"], server["ms_per_step"], server["acceptance"]) == (3, 30, 0.667)


def test_no_speculation_is_not_an_acceptance_of_nothing() -> None:
    last = timings(7, 70, 4, 60, draft_n=0)
    for own in (last, timings(7, 70, 4, 60)):
        server = metered([(80.0, sse(chat("a", finish="stop", timings=own)))])["server"]
        assert (server["acceptance"], server["steps"]) == (None, None)


def test_a_gap_is_of_a_step_and_not_of_a_token() -> None:
    # Means of 213 ms a gap and 66.8 ms a token are one stream, of 3.19 tokens a step.
    tokens = [1] + [3, 3, 3, 4] * 25
    totals = list(accumulate(tokens))
    reads = [
        (300.0 + 213 * n, sse(chat("x", usage=counts(9, total)))) for n, total in enumerate(totals)
    ]
    said = metered(reads)
    per_step = sum(said["chunk_tokens"][1:]) / len(said["gaps"])
    assert per_step == 3.25
    assert sum(said["gaps"]) / len(said["gaps"]) / said["tpot"] == pytest.approx(per_step, 1e-4)


@pytest.mark.parametrize("finish_has_text", [False, True])
def test_a_total_that_comes_at_the_end_alone_is_not_one_large_chunk(finish_has_text: bool) -> None:
    last = chat("d" if finish_has_text else None, finish="stop", timings=timings(1, 8, 20, 60))
    reads = [(40.0 + 20 * n, sse(chat(text))) for n, text in enumerate("abc")]
    said = metered([*reads, (100.0, sse(last, DONE))])
    assert said["chunk_tokens"] == [1] * (4 if finish_has_text else 3)
    assert (said["N"], said["N_src"]) == (20, "timings")


def test_a_first_chunk_of_several_tokens_shows_in_the_chunk_aware_tpot() -> None:
    reads = [
        (100.0, sse(chat("abcde", usage=counts(3, 5)))),
        (150.0, sse(chat("fghij", usage=counts(3, 10)))),
        (151.0, sse(chat(finish="stop"))),
    ]
    said = metered(reads)
    assert (said["tpot"], said["tpot_ca"]) == (pytest.approx(50 / 9, abs=1e-3), 10)


def test_a_chunk_without_a_count_between_counted_ones_is_made_up_for() -> None:
    reads = [
        (10.0, sse(chat("a", usage=counts(3, 2)))),
        (20.0, sse(chat("b"))),
        (30.0, sse(chat("c", usage=counts(3, 6)))),
    ]
    assert metered(reads)["chunk_tokens"] == [2, 1, 3]


def test_native_counts_go_by_how_much_the_total_grew() -> None:
    def event(text: str, total: int, **more: Any) -> dict[str, Any]:
        one = {"content": text, "tokens": [7], "stop": False, "tokens_predicted": total}
        return {**one, "tokens_evaluated": 12, **more}

    reads = [
        (50.0, sse(event("a", 1))),
        (70.0, sse(event("", 2))),  # held back: it may be a word to stop at
        (90.0, sse(event("\u20ac\U0001f999", 5))),
        (95.0, sse(event("", 5, stop=True, stop_type="eos", tokens_cached=16))),
    ]
    said = metered(reads)
    assert (said["N"], said["N_src"], said["chunk_tokens"]) == (5, "tokens_predicted", [1, 4])
    assert (said["prompt"], said["cached"], said["finish"]) == (12, None, "eos")
    assert said["flags"] == []


def test_a_server_that_reports_no_tokens_is_not_believed() -> None:
    reads = [(10.0 * n, sse(chat("a"))) for n in (1, 2, 3)]
    said = metered([*reads, (31.0, sse(chat(finish="stop"), usage(0, 0), DONE))])
    assert (said["N"], said["N_src"], said["prompt"]) == (3, "chunks (estimate)", None)


def test_without_usage_the_count_says_that_it_is_an_estimate() -> None:
    reads = [(10.0 * n, sse(chat(text))) for n, text in enumerate(["Hel", "lo wor", "ld"], 1)]
    said = metered([*reads, (31.0, sse(chat(finish="stop"), DONE))])
    assert (said["N"], said["N_src"], said["status"]) == (3, "chunks (estimate)", "complete")


def test_log_probabilities_on_some_chunks_alone_do_not_count_the_turn() -> None:
    logged: dict[str, Any] = {"logprobs": {"content": [{}, {}]}}
    reads = [(10.0, sse(chat("ab", choice=logged))), (20.0, sse(chat("c", finish="stop")))]
    assert (metered(reads)["N"], metered(reads)["N_src"]) == (3, "chunks (estimate)")
    whole = [reads[0], (20.0, sse(chat("cd", choice=logged, finish="stop")))]
    assert (metered(whole)["N"], metered(whole)["N_src"]) == (4, "logprobs")


def test_ids_whose_text_is_held_back_belong_to_the_chunk_that_brings_it() -> None:
    reads = [
        (10.0, sse(chat("a", choice={"token_ids": [1]}))),
        (20.0, sse(chat("", choice={"token_ids": [2]}))),
        (30.0, sse(chat("bc", choice={"token_ids": [3]}, finish="stop"))),
    ]
    said = metered(reads)
    assert (said["N"], said["N_src"], said["chunk_tokens"]) == (3, "token_ids", [1, 2])


def test_text_that_comes_again_with_each_chunk_is_noticed() -> None:
    text = ["Hel", "Hello", "Hello wor", "Hello world"]
    reads = [(10.0 * n, sse({"text_output": part})) for n, part in enumerate(text, 1)]
    assert metered(reads)["flags"] == ["cumulative_text"]
    for deltas in (["a"] * 6, ["the", "the ", "re"], ["1", "10", "2"], ["a", "ab"]):
        honest = [(10.0 * n, sse({"text_output": part})) for n, part in enumerate(deltas, 1)]
        assert metered(honest)["flags"] == []


def test_a_last_token_that_comes_twice_is_noticed() -> None:
    reads = [(10.0 * n, sse(chat(text))) for n, text in enumerate(["a", "b", "b"], 1)]
    said = metered([*reads, (31.0, sse(chat(finish="stop"), usage(3, 2), DONE))])
    assert (said["N"], said["flags"]) == (2, ["more_chunks_than_tokens"])


def test_several_choices_are_counted_together_and_said_to_be_several() -> None:
    reads = [
        (10.0, sse(chat("a"), chat("b", index=1))),
        (30.0, sse(chat("a"))),
        (50.0, sse(chat("b", index=1, finish="stop"))),
        (51.0, sse(chat(finish="stop"), usage(3, 4))),
    ]
    said = metered(reads)
    assert (said["N"], said["flags"]) == (4, ["several_choices"])


# What the server says of its times.


@pytest.mark.parametrize("ms", [0, 0.0, 0.01, -1, None, "90", float("nan")])
def test_a_time_that_was_not_measured_gives_no_rate(ms: Any) -> None:
    own = timings(7, ms, 4, ms, predicted_per_second=1e6, predicted_per_token_ms=0.0)
    reads = [(40.0, sse(chat("a"))), (60.0, sse(chat("b")))]
    said = metered([*reads, (100.0, sse(chat(finish="stop", timings=own), DONE))])
    server = said["server"]
    assert (server["tpot"], server["semantics"], server["prefill_tps"]) == (None, None, None)
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_steps_and_acceptance_are_counts_that_need_no_time() -> None:
    own = timings(7, 70, 10, 0.0, draft_n=9, draft_n_accepted=6)
    server = metered([(80.0, sse(chat("a", finish="stop", timings=own)))])["server"]
    assert (server["steps"], server["acceptance"]) == (3, 0.667)
    assert (server["ms_per_step"], server["tpot"]) == (None, None)


def test_a_server_that_books_decoding_as_prefill_is_noticed_and_the_clients_times_hold() -> None:
    own = timings(7, 890, 10, 1)
    reads = [(80.0, sse(chat("a"))), (900.0, sse(chat("b")))]
    said = metered([*reads, (901.0, sse(chat(finish="stop", timings=own)))])
    assert said["flags"] == ["timing_inconsistent"]
    assert (said["server"]["tpot"], said["server"]["prefill_tps"]) == (None, None)
    assert said["tpot"] == pytest.approx(820 / 9, abs=1e-3)
    fair = timings(7, 79, 10, 815)
    assert metered([*reads, (901.0, sse(chat(finish="stop", timings=fair)))])["flags"] == []


@pytest.mark.parametrize(("per_token", "semantics"), [(15, "n"), (20, "n-1"), (None, None)])
def test_what_a_server_divides_by_is_found_and_the_rate_made_anew(
    per_token: float | None, semantics: str | None
) -> None:
    own = timings(1, 8, 4, 60, cache_n=500, predicted_per_token_ms=per_token)
    said = metered([(40.0, sse(chat("a", finish="stop", timings=own)))])
    assert (said["server"]["semantics"], said["server"]["tpot"]) == (semantics, 20)
    assert (said["prompt"], said["cached"], said["server"]["prefill_tps"]) == (501, 500, 125)


def test_the_free_first_token_is_no_step() -> None:
    # 100 tokens in 990 ms after the first one: 100 a second, and not 101.
    server = metered([(40.0, sse(chat("a", timings=timings(7, 30, 100, 990))))])["server"]
    assert 1000 / server["tpot"] == 100


def test_ollamas_missing_figures_are_unknown_and_divide_nothing() -> None:
    last = {"response": "", "done": True, "done_reason": "stop", "total_duration": 310_000_000}
    reads = [(200.0 + 50 * n, ndjson({"response": "a", "done": False})) for n in (0, 1)]
    for more in ({}, {"prompt_eval_count": 0, "prompt_eval_duration": 0, "eval_duration": 0}):
        said = metered([*reads, (300.0, ndjson({**last, **more}))], "ndjson")
        assert (said["prompt"], said["cached"], said["N"], said["N_src"]) == (
            *(None, None, 2),
            "chunks (estimate)",
        )
        assert set(said["server"].values()) == {None}
        assert (said["status"], said["tpot"]) == ("complete", 50)


def test_ollamas_prefill_rate_needs_the_number_of_cached_tokens() -> None:
    last = {
        "response": "",
        "done": True,
        "prompt_eval_count": 1000,
        "eval_count": 3,
        "prompt_eval_duration": 100_000_000,
        "eval_duration": 100_000_000,
    }
    first = (200.0, ndjson({"response": "a", "done": False}))

    def server(**more: int) -> Any:
        return metered([first, (300.0, ndjson({**last, **more}))], "ndjson")["server"]

    assert (server()["prefill_tps"], server()["tpot"]) == (None, 50)
    assert server(prompt_eval_cached_count=900)["prefill_tps"] == 1000
    # A count of the tokens that were read, with more cached than that: nobody knows of what.
    assert server(prompt_eval_cached_count=2000)["prefill_tps"] is None


def test_a_full_context_is_told_from_a_shifted_one() -> None:
    def flags(left: int | None) -> Any:
        last = {
            "content": "",
            "stop": True,
            "stop_type": "limit",
            "truncated": True,
            "tokens_evaluated": 4000,
            "tokens_predicted": 200,
            "tokens_cached": left,
        }
        one = {"content": "a", "stop": False}
        return metered([(900.0, sse(one)), (920.0, sse(one)), (921.0, sse(last))])["flags"]

    assert flags(4199) == ["context_full"] and flags(None) == ["context_full"]
    assert flags(2148) == ["context_shift"]


def test_vllms_own_figures_of_a_request_are_told_apart() -> None:
    drafting = {"num_draft_tokens": 12, "num_accepted_draft_tokens": 9}
    own = {"queue_time_ms": 120.5, "time_to_first_token_ms": 80, "speculative_decoding": drafting}
    reads = [(210.0, sse(chat("a"))), (230.0, sse(chat("b", finish="stop")))]
    said = metered([*reads, (231.0, sse({**usage(9, 2), "metrics": own}))])
    assert (said["server"]["queue"], said["server"]["acceptance"]) == (120.5, 0.75)
    assert said["ttft"] == 210, "the client's, with the queue in it"


# What proxies do.


def test_a_stream_that_was_held_back_is_bursty() -> None:
    events = [chat(text) for text in "abcdefghijkl"]
    batches = [(500.0, sse(*events[:6])), (1000.0, sse(*events[6:]))]
    assert metered(batches)["flags"] == ["bursty"]
    steady = [(20.0 * n, sse(event)) for n, event in enumerate(events, 1)]
    assert metered(steady)["flags"] == [] and metered(glued(steady))["flags"] == ["bursty"]


def test_a_server_as_fast_as_that_is_not_bursty_and_neither_is_speculation() -> None:
    fast = [(10 + 0.3 * n, sse(chat("a"))) for n in range(20)]
    assert metered(fast)["flags"] == ["bursty"]
    own = timings(7, 9, 20, 5.7)
    assert metered([*fast, (20.0, sse(chat(finish="stop", timings=own)))])["flags"] == []
    drafted = [(20.0 * n, sse(chat("a"), chat("b"), chat("c"))) for n in range(1, 6)]
    spec = timings(7, 9, 15, 80, draft_n=12, draft_n_accepted=10)
    assert metered([*drafted, (101.0, sse(chat(finish="stop", timings=spec)))])["flags"] == []
    held = [(100.0, sse(*(chat("a") for _ in range(15)), chat(finish="stop", timings=spec)))]
    assert metered(held)["flags"] == ["bursty"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_every_end_of_a_line_of_the_standard_is_read(end: str, size: int) -> None:
    # What Unicode counts as the end of a line is text to SSE.
    text = "a\u2028b\u2029c\x85d\x0be"
    reads = [
        (20.0, b"\xef\xbb\xbf" + sse(chat(text), end=end)),
        (40.0, sse(chat("\x85"), chat(finish="stop"), end=end)),
        (41.0, sse(usage(3, 2), end=end) + f"data: [DONE]{end}{end}".encode()),
    ]
    said = metered(of_pieces(reads, size))
    assert (said["N"], said["N_src"], said["flags"]) == (2, "usage", [])
    assert (said["ttft"], said["tpot"], said["status"]) == (20, 20, "complete")


def test_an_event_of_several_data_lines_is_one_document() -> None:
    whole = json.dumps(chat("a", finish="stop"), indent=1)
    lines = "".join(f"data: {line}\n" for line in whole.splitlines())
    said = metered([(20.0, lines.encode() + b"\n")])
    assert (said["N"], said["status"], said["flags"]) == (1, "complete", [])


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "raw deflate", "GZIP "])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_compressed_copy_is_inflated_however_it_is_cut(encoding: str, size: int) -> None:
    bits = {"deflate": 15, "raw deflate": -15}.get(encoding, 31)
    deflater = zlib.compressobj(9, zlib.DEFLATED, bits)
    reads = []
    for t_ms, content in [(40.0, sse(chat("a"))), (60.0, sse(chat("b"), chat(finish="stop")))]:
        deflated = deflater.compress(content) + deflater.flush(zlib.Z_SYNC_FLUSH)
        reads.append((t_ms, deflated))
    reads.append((61.0, deflater.flush()))
    said = metered(of_pieces(reads, size), encoding=encoding.removeprefix("raw "))
    assert (said["N"], said["ttft"], said["tpot"]) == (2, 40, 20)
    assert (said["status"], said["flags"]) == ("complete", [])
