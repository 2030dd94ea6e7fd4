"""Whatever arrives is read as a batch, a status or a letter, and nothing is raised."""

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collecting import SYNCHRONISED, WALL, a_batch
from support.records import BATCHES, a_sample, a_turn

from decodewatch.collector.storage.arrivals import Delivery, Heard, Letter, Message, escaped, read
from decodewatch.collector.storage.placement import AHEAD_US
from decodewatch.shared import wire
from decodewatch.shared.records import MAX_TIME_US, Record, Turn
from decodewatch.shared.wire import Status

UP = "decodewatch/1/device-1/up"
STATUS = "decodewatch/1/device-1/status"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def _first(part: Any) -> list[Any]:
    return part[:1] if isinstance(part, list) else []


def _within(record: Record) -> Record:
    """The record; a turn with an end that a clock can show."""
    return replace(record, duration_us=0) if isinstance(record, Turn) else record


def arrive(payload: bytes, topic: str = UP) -> Delivery | Heard | Letter:
    return read(Message.of(topic, payload, WALL))


def plain(batch: wire.Batch) -> dict[str, Any]:
    """The JSON object of a batch, to be spoilt."""
    value: dict[str, Any] = wire.unpack(wire.encode_batch(batch))
    return value


def letter(payload: bytes, topic: str = UP) -> Letter:
    found = arrive(payload, topic)
    assert isinstance(found, Letter)
    return found


@given(st.binary(max_size=200), st.sampled_from([UP, STATUS, "x", "decodewatch/1/a b/up"]))
def test_any_bytes_are_read_without_an_exception(payload: bytes, topic: str) -> None:
    arrive(payload, topic)


@given(st.binary(max_size=200))
def test_any_deflated_bytes_are_read_without_an_exception(payload: bytes) -> None:
    assert letter(zlib.compress(payload)).reason


@settings(max_examples=300)
@given(JSON)
def test_any_json_is_read_without_an_exception(value: Any) -> None:
    arrive(json.dumps(value).encode())


@settings(max_examples=300)
@given(BATCHES, st.data())
def test_a_batch_with_any_field_replaced_is_read_without_an_exception(
    batch: wire.Batch, data: st.DataObject
) -> None:
    value = plain(batch)
    target: Any = value
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [item for part in target.values() for item in (part, *_first(part))]
        inner = [item for item in inner if isinstance(item, dict) and item]
        if inner:
            target = data.draw(st.sampled_from(inner))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    arrive(json.dumps(value).encode(), wire.topic(batch.device, "up"))


@given(BATCHES)
def test_a_batch_is_delivered_whole(batch: wire.Batch) -> None:
    batch = replace(batch, clock=wire.Clock(MAX_TIME_US, WALL, True))
    batch = replace(batch, records=tuple(_within(record) for record in batch.records))
    found = arrive(wire.encode_batch(batch), wire.topic(batch.device, "up"))
    assert isinstance(found, Delivery)
    assert found.received.batch == batch
    assert (found.envelope.stream, found.envelope.number) == (batch.stream, batch.number)


@pytest.mark.parametrize(
    "device", ["a b", "ä", "-a", "a\tb", "a\x01", "", "a" * 65, "a\ud800", "+", "#", "a/b"]
)
def test_a_topic_that_names_no_device_makes_a_letter_that_a_table_can_hold(device: str) -> None:
    found = letter(b"{}", f"decodewatch/1/{device}/up")
    assert found.device == ""
    assert found.topic.isprintable()
    assert found.short_reason.isprintable()


def test_a_batch_of_another_device_is_a_letter_of_the_topics_device_and_not_acknowledged() -> None:
    found = letter(wire.encode_batch(a_batch(device="somebody-else")))
    assert found.device == "device-1"
    assert "somebody-else" in found.reason
    assert found.envelope is None


def test_a_letter_with_a_readable_envelope_can_be_acknowledged() -> None:
    value = plain(a_batch(7)) | {"clock": "noon"}
    found = letter(json.dumps(value).encode())
    assert "clock" in found.reason
    assert found.envelope is not None
    assert (found.envelope.stream, found.envelope.number) == ("stream-1", 7)


@pytest.mark.parametrize(
    "spoilt", [{"number": 0}, {"number": True}, {"stream": ""}, {"device": "device-2"}]
)
def test_a_letter_whose_envelope_says_too_little_is_not_acknowledged(
    spoilt: dict[str, Any],
) -> None:
    value = plain(a_batch(7)) | {"clock": "noon"} | spoilt
    assert letter(json.dumps(value).encode()).envelope is None


def test_an_oversized_payload_is_a_letter_with_its_whole_size_and_little_of_it_is_kept() -> None:
    found = letter(b"{" + b" " * 10_000_000)
    assert found.message.size == 10_000_001
    assert len(found.message.payload) == wire.MAX_SENT
    assert "10000001" in found.reason


def test_a_deflated_bomb_is_a_letter() -> None:
    assert "inflates" in letter(zlib.compress(b" " * 50_000_000)).reason


def test_good_records_of_a_batch_are_delivered_beside_bad_ones() -> None:
    value = plain(a_batch())
    value["records"] += [{"kind": "turn"}, 5, {"kind": "mystery"}]
    found = arrive(json.dumps(value).encode())
    assert isinstance(found, Delivery)
    assert len(found.received.batch.records) == 1
    assert len(found.received.refused) == 3


def test_a_status_is_heard() -> None:
    status = Status("device-1", True, 3, "0.1.0", "boot-1", None)
    found = arrive(wire.encode_status(status), STATUS)
    assert isinstance(found, Heard)
    assert found.status == status


def test_a_status_of_another_device_is_a_letter() -> None:
    payload = wire.encode_status(Status("device-2", True, 3, None, None, None))
    assert "device-2" in letter(payload, STATUS).reason


@given(st.text(), st.integers(4, 80))
def test_escaped_text_is_printable_and_short(text: str, limit: int) -> None:
    shown = escaped(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()


def test_a_record_that_ends_long_after_its_batch_was_made_is_set_apart() -> None:
    latest = SYNCHRONISED.t + AHEAD_US
    good = a_sample(latest)
    sent: list[Record] = [good, a_sample(latest + 1), a_turn(t=latest, duration_us=1)]
    found = arrive(wire.encode_batch(a_batch(1, sent)))
    assert isinstance(found, Delivery)
    assert found.received.batch.records == (good,)
    assert [why.partition(" that ends")[0] for why in found.received.refused] == ["sample", "turn"]


def test_a_status_is_no_batch_whatever_it_says() -> None:
    payload = {"v": 1, "device": "device-1", "stream": "stream-1", "number": 5}
    assert letter(json.dumps(payload).encode(), STATUS).envelope is None


def test_a_connection_number_far_ahead_of_the_servers_clock_is_put_aside() -> None:
    highest = (WALL + AHEAD_US) // 1000
    status = Status("device-1", True, highest, None, None, None)
    assert isinstance(arrive(wire.encode_status(status), STATUS), Heard)
    ahead = replace(status, connection=highest + 1)
    assert f"accepted is 0 to {highest}" in letter(wire.encode_status(ahead), STATUS).reason
