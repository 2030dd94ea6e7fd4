"""What applications say is read strictly, and whatever else they send is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.application import turn_fields

from decodewatch.agent.messages import (
    MAX_AHEAD_US,
    TYPES,
    Begin,
    Bye,
    Ended,
    Hello,
    Progress,
    Refusal,
    parse,
    session_of,
    turn_record,
)

NOW = 50_000_000
HELLO: dict[str, Any] = {"type": "hello", "v": 1, "name": "chat", "engine": "llama.cpp"}
BEGIN: dict[str, Any] = {"type": "begin", "turn": "t1", "t": NOW}
PROGRESS: dict[str, Any] = {
    "type": "progress",
    "turn": "t1",
    "t": NOW,
    "first": 0,
    "steps": [[None, 1], [40_000, 2]],
    "depth": 103,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def said(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def test_a_hello_is_read_and_unknown_fields_are_ignored() -> None:
    found = parse(said({**HELLO, "engine_version": "b1", "settings": {"n": 4}, "later": []}), NOW)
    assert found == Hello(1, "chat", "llama.cpp", "b1", None, {"n": 4}, None)


def test_the_other_messages_are_read() -> None:
    assert parse(said({**BEGIN, "prompt_tokens": 7}), NOW) == Begin("t1", NOW, None, None, 7, None)
    assert parse(said(PROGRESS), NOW) == Progress(
        "t1", NOW, 0, ((None, 1), (40_000, 2)), None, 103, None
    )
    assert parse(b'{"type":"bye","reason":"exit"}', NOW) == Bye("exit")
    assert parse(b'{"type":"turn","record":{"id":"t1"}}', NOW) == Ended({"id": "t1"})


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ([], "accepted is a JSON object"),
        ({}, "type: None"),
        ({"type": "shout"}, "type: 'shout'; accepted are hello, begin"),
        ({**HELLO, "v": 2}, "hello.v: 2; accepted is 1"),
        ({**HELLO, "v": True}, "hello.v: True"),
        ({**HELLO, "name": ""}, "hello.name: ''"),
        ({**HELLO, "engine": 3}, "hello.engine: 3"),
        ({**HELLO, "model": {"layers": "many"}}, "hello.model: "),
        ({**HELLO, "settings": {"a": {}}}, "hello.settings: "),
        ({"type": "begin", "turn": "t1"}, "begin.t: missing"),
        ({**BEGIN, "turn": "x" * 65}, "begin.turn: "),
        ({**BEGIN, "t": 1.5}, "begin.t: 1.5"),
        ({**BEGIN, "t": NOW + MAX_AHEAD_US + 1}, "begin.t: 60000001 is ahead of the boot clock"),
        ({**BEGIN, "session": 5}, "begin.session: 5"),
        ({**PROGRESS, "steps": [[1]]}, "progress.steps: [0]: [1]"),
        ({**PROGRESS, "steps": [[-1, 1]]}, "progress.steps: [0]: gap -1"),
        ({**PROGRESS, "steps": [[None, 1], [5, True]]}, "progress.steps: [1]: tokens True"),
        ({**PROGRESS, "depth": -1}, "progress.depth: -1"),
        ({"type": "turn", "record": []}, "turn.record: []"),
    ],
)
def test_a_wrong_message_is_refused_naming_the_field(message: Any, field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse(said(message), NOW)
    assert field in str(refusal.value)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"\xff\xfe{}", b'{"a": NaN}', b"[" * 60_000, b"1" * 60_000]
)
def test_what_is_not_json_is_refused(line: bytes) -> None:
    with pytest.raises(Refusal):
        parse(line, NOW)


def test_a_refusal_names_the_turn_that_it_concerns() -> None:
    with pytest.raises(Refusal) as refusal:
        parse(said({**BEGIN, "t": -1}), NOW)
    assert (refusal.value.turn, refusal.value.message) == ("t1", "begin")
    with pytest.raises(Refusal) as refusal:
        turn_record({"id": "t2", "t": 0}, "r1", None, NOW)
    assert refusal.value.turn == "t2"
    for line in (b'{"type":"forgot","turn":"t3"}', b'{"type":["turn"],"turn":"t3"}'):
        with pytest.raises(Refusal, match=r"^type: ") as refusal:
            parse(line, NOW)
        assert (refusal.value.turn, refusal.value.message) == ("t3", None)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_refusal(line: bytes) -> None:
    try:
        parse(line, NOW)
    except Refusal as refusal:
        assert str(refusal)


@given(st.sampled_from(sorted(TYPES)), st.dictionaries(st.text(max_size=8), JSON))
def test_any_object_of_a_known_type_is_a_message_or_a_refusal(
    kind: str, fields: dict[str, Any]
) -> None:
    known = {"hello": HELLO, "begin": BEGIN, "progress": PROGRESS}.get(kind, {})
    try:
        parse(said({**known, **fields, "type": kind}), NOW)
    except Refusal as refusal:
        assert str(refusal)


@given(st.sampled_from(sorted(turn_fields("t1"))), JSON)
def test_a_turn_record_with_any_field_replaced_is_a_turn_or_a_refusal(
    field: str, value: Any
) -> None:
    record = {**turn_fields("t1", t=NOW), field: value}
    try:
        turn = turn_record(record, "r1", session_of(record), NOW)
    except Refusal as refusal:
        assert str(refusal)
    else:
        assert turn.runtime == "r1"


def test_a_turn_record_takes_runtime_and_session_from_the_agent() -> None:
    record = turn_fields("t1", t=NOW, runtime="forged", session="secret")
    turn = turn_record(record, "r1", "hash", NOW)
    assert (turn.runtime, turn.session, turn.output_tokens) == ("r1", "hash", 16)


def test_the_session_of_a_turn_record_is_checked_before_it_is_hashed() -> None:
    assert session_of({"id": "t1"}) is None
    with pytest.raises(Refusal, match=r"turn\.session: 12"):
        session_of({"id": "t1", "session": 12})


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
    lines = [line[2:] for line in text.splitlines() if line.startswith("> {")]
    assert [parse(line.encode(), 1 << 40).TYPE for line in lines] == [
        *("hello", "begin", "progress", "turn"),
    ]
    record = json.loads(lines[-1])["record"]
    assert turn_record(record, "r1", None, 1 << 40).output_tokens == 2


@pytest.mark.parametrize("kind", TYPES.values())
def test_every_field_is_documented(kind: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "inbox.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{kind.TYPE}` |")]
    for field in kind.FIELDS:
        assert f"`{field.name}`" in row
