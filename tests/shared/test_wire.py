"""Batches, acknowledgements and status: round trips, limits, refusals that name the wrong thing."""

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import BATCHES, CLOCKS, DEVICES, IDS, OF_KIND, RECORDS, a_sample, a_turn

from decodewatch.shared import records, wire
from decodewatch.shared.errors import RecordError, WireError
from decodewatch.shared.records import Record

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.fixture(name="plain")
def _plain() -> dict[str, Any]:
    """A valid batch as a JSON object, for tests that break it."""
    batch = wire.Batch(
        "orin-7", "s1", "s0", 3, "boot-1", wire.Clock(9_000_000, 1_760_000_000_000_000, True),
        (a_turn(), a_sample()),
    )  # fmt: skip
    return wire.unpack(wire.encode_batch(batch))


def through_json(record: Record) -> Any:
    return json.loads(json.dumps(records.to_json(record)))


@given(RECORDS)
def test_a_record_survives_json(record: Record) -> None:
    assert records.from_json(through_json(record)) == record


@given(BATCHES)
def test_a_batch_survives_the_wire(batch: wire.Batch) -> None:
    received = wire.decode_batch(wire.encode_batch(batch))
    assert received == wire.Received(batch, ())


@given(
    st.builds(
        wire.Status, DEVICES, st.booleans(), st.integers(0, 2**62), st.none() | IDS,
        st.none() | IDS, st.none() | CLOCKS,
    )
)  # fmt: skip
def test_a_status_survives_the_wire(status: wire.Status) -> None:
    assert wire.decode_status(wire.encode_status(status)) == status


RANGES = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)).map(lambda p: (p[0], p[0] + p[1]))


@given(
    st.lists(st.builds(wire.Acknowledged, IDS, st.lists(RANGES, max_size=5).map(tuple)), max_size=5)
)
def test_an_acknowledgement_survives_the_wire(acknowledged: list[wire.Acknowledged]) -> None:
    assert wire.decode_ack(wire.encode_ack(acknowledged)) == tuple(acknowledged)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_wire_error(payload: bytes) -> None:
    for decode in (wire.decode_batch, wire.decode_status, wire.decode_ack):
        for attempt in (payload, zlib.compress(payload)):
            try:
                decode(attempt)
            except WireError:
                continue


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), JSON, JSON)
def test_no_json_raises_anything_but_a_wire_error(value: Any, items: Any, clock: Any) -> None:
    value |= {"v": 1, "device": "d", "stream": "s", "number": 1, "boot": "b"}
    value |= {"clock": clock, "records": [items], "online": True, "connection": 1, "streams": items}
    payload = json.dumps(value).encode()
    for decode in (wire.decode_batch, wire.decode_status, wire.decode_ack):
        try:
            decode(payload)
        except WireError:
            continue


@given(st.sampled_from(list(OF_KIND)), st.data())
def test_a_field_of_any_other_value_is_refused_by_name_or_accepted(kind: Any, data: Any) -> None:
    value = through_json(data.draw(OF_KIND[kind]))
    name = data.draw(st.sampled_from([item.name for item in kind.FIELDS]))
    value[name] = data.draw(JSON)
    try:
        read = records.from_json(value)
    except RecordError as error:
        assert f"{kind.KIND}.{name}" in str(error)
    else:
        assert records.from_json(through_json(read)) == read


def test_a_batch_is_deflated_only_where_that_is_shorter(plain: dict[str, Any]) -> None:
    assert wire.pack(plain)[:1] != b"{"
    assert wire.pack({"v": 1}) == b'{"v":1}'


def test_a_field_that_this_version_does_not_know_is_ignored(plain: dict[str, Any]) -> None:
    plain["colour"] = "blue"
    plain["records"][0]["mood"] = {"deep": [1]}
    received = wire.decode_batch(wire.pack(plain))
    assert not received.refused
    assert received.batch.records[0] == a_turn()


def test_a_bad_record_costs_itself_and_not_its_batch(plain: dict[str, Any]) -> None:
    plain["records"].insert(1, {"kind": "poem"})
    plain["records"][0]["duration_us"] = "long"
    received = wire.decode_batch(wire.pack(plain))
    assert [type(record).__name__ for record in received.batch.records] == ["Sample"]
    assert received.refused == (
        "records[0]: turn.duration_us: 'long'; accepted is a whole number from 0 to "
        "9007199254740991",
        "records[1]: record.kind: 'poem'; accepted are runtime, turn, floor, window, sample, event",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": 2}, r"batch\.v: 2; accepted is 1"),
        ({"v": True}, r"batch\.v: True"),
        ({"device": "a/b"}, r"batch\.device: 'a/b'"),
        ({"device": "a+"}, r"batch\.device"),
        ({"device": "#"}, r"batch\.device"),
        ({"device": "a\nb"}, r"batch\.device"),
        ({"device": ""}, r"batch\.device"),
        ({"device": "x" * 65}, r"batch\.device"),
        ({"number": 0}, r"batch\.number: 0"),
        ({"number": 1.0}, r"batch\.number"),
        ({"number": True}, r"batch\.number"),
        ({"number": 2**40 + 1}, r"batch\.number"),
        ({"stream": None}, r"batch\.stream"),
        ({"stream": "s\0"}, r"batch\.stream"),
        ({"stream": "\ud800"}, r"batch\.stream"),
        ({"boot": 7}, r"batch\.boot"),
        ({"clock": {"t": 1}}, r"clock.*wall: missing"),
        ({"clock": []}, r"batch\.clock"),
        ({"records": []}, r"batch\.records"),
        ({"records": {}}, r"batch\.records"),
        ({"records": [{}] * 4097}, r"batch\.records"),
    ],
)
def test_a_wrong_envelope_is_refused_by_name(
    plain: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(WireError, match=says):
        wire.decode_batch(json.dumps({**plain, **change}).encode())


def test_a_payload_over_64_kib_is_refused_before_it_is_inflated() -> None:
    with pytest.raises(WireError, match="65537 bytes; accepted are 65536"):
        wire.decode_batch(b"x" * 65537)


def test_a_deflate_bomb_stops_at_1_mib() -> None:
    bomb = zlib.compress(b'{"a":"' + b"a" * 50_000_000 + b'"}', 9)
    assert len(bomb) <= wire.MAX_SENT
    with pytest.raises(WireError, match="inflates to more than 1048576"):
        wire.decode_batch(bomb)


def test_an_acknowledgement_that_a_device_could_not_hold_is_refused() -> None:
    many = wire.pack({"v": 1, "streams": [["s", [[1, 1]] * 1025]]})
    with pytest.raises(WireError, match="more than 1024 ranges"):
        wire.decode_ack(many)
    bomb = wire.pack({"v": 1, "streams": [["s", [[1, 1]] * 100_000]]})
    assert len(bomb) < 4096
    with pytest.raises(WireError, match="inflates to more than 65536"):
        wire.decode_ack(bomb)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "neither a JSON object nor deflated|cut short"),
        (b"\xff\xfe", "neither a JSON object nor deflated"),
        (zlib.compress(b"{}" * 9)[:-3], "cut short"),
        (zlib.compress(b"{}") + b"tail", "bytes after its end"),
        (zlib.compress(b"[1]"), "accepted is a JSON object"),
        (b'{"a": NaN}', "NaN is not a number of JSON"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": ' + b"[" * 30_000, "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_bytes_that_are_no_json_object_are_refused(payload: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        wire.decode_batch(payload)


def test_a_batch_that_would_be_too_large_is_refused_when_it_is_made() -> None:
    import random

    noise = random.Random(1)
    big = tuple(
        a_turn("".join(noise.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=64)))
        for _ in range(1800)
    )
    clock = wire.Clock(1, 1, True)
    with pytest.raises(WireError, match="accepted are 65536"):
        wire.encode_batch(wire.Batch("d", "s", None, 1, "b", clock, big))


@pytest.mark.parametrize(
    "name",
    [
        "decodewatch/1/a/b/up",
        "decodewatch/1//up",
        "decodewatch/1/+/up",
        "decodewatch/1/#",
        "decodewatch/1/a\x00/up",
        "decodewatch/1/a\x1b[31m/up",
        "decodewatch/2/a/up",
        "decodewatch/1/a/down",
        "other/1/a/up",
        "",
    ],
)
def test_a_topic_that_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(WireError, match="accepted is decodewatch/1/<device>"):
        wire.device_of(name)


@given(DEVICES, st.sampled_from(wire.LEAVES))
def test_a_topic_gives_its_device_back(device: str, leaf: str) -> None:
    assert wire.device_of(wire.topic(device, leaf)) == device
