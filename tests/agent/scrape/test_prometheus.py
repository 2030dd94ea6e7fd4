"""The text format, as servers write it and as they spoil it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.agent.scrape.prometheus import MOST_SERIES, parse

A = {"llamacpp:a", "llamacpp:b"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"llamacpp:a 1", 1.0),
        (b"llamacpp:a 1.23457e+06", 1234570.0),
        (b"llamacpp:a\t+.5", 0.5),
        (b"llamacpp:a -3 1700000000000", -3.0),
        (b'llamacpp:a{x="1"} 7', 7.0),
        (b'llamacpp:a{x="1",}7', 7.0),
        (b"llamacpp:a{} 7\r", 7.0),
        (b'llamacpp:a{x="}\\" 9 {"} 7 # {trace="1"} 2', 7.0),
    ],
)
def test_a_sample_is_read_however_it_is_written(line: bytes, value: float) -> None:
    metrics = parse(line, A)
    assert metrics.total("llamacpp:a") == value
    assert metrics.skipped == 0


@pytest.mark.parametrize(
    "line",
    [
        b"llamacpp:a NaN",
        b"llamacpp:a",
        b"llamacpp:a ",
        b"llamacpp:a +Inf",
        b"llamacpp:a 1e999",
        b"llamacpp:a 1,5",
        b"llamacpp:a12 x",
        b"llamacpp:a {x=1} 5",
        b'llamacpp:a{x="1} 5',
        b'llamacpp:a{x="1"y="2"} 5',
        b'llamacpp:a{x="' + b"1" * 20_000 + b'"} 5',
        b"<html>",
        b"1llamacpp:a 5",
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_not_well_formed_is_skipped_and_counted_and_the_others_kept(
    line: bytes,
) -> None:
    metrics = parse(b"llamacpp:b 1\n" + line + b'\nllamacpp:b{x="2"} 2\n', A)
    assert metrics.skipped == 1
    assert metrics.total("llamacpp:b") == 3
    assert metrics.total("llamacpp:a") is None


def test_comments_and_empty_lines_are_neither_samples_nor_faults() -> None:
    text = b"# HELP llamacpp:a 5\n# TYPE llamacpp:a counter\n\n  \n#\nllamacpp:a 2\n# EOF"
    metrics = parse(text, A)
    assert (metrics.total("llamacpp:a"), metrics.skipped) == (2, 0)


def test_a_series_that_is_there_twice_counts_once() -> None:
    assert parse(b'llamacpp:a{x="1"} 5\nllamacpp:a{x="1"} 6', A).total("llamacpp:a") == 6


def test_labels_are_told_apart_with_their_escapes() -> None:
    metrics = parse(rb'llamacpp:a{path="C:\\n\n\"x\"",b="2"} 1', A)
    ((labels, _),) = metrics.series["llamacpp:a"]
    assert labels == {"path": 'C:\\n\n"x"', "b": "2"}
    assert metrics.total("llamacpp:a", b="2") == 1
    assert metrics.total("llamacpp:a", b="3") is None


def test_names_that_nobody_asked_for_are_not_kept() -> None:
    assert set(parse(b"llamacpp:a 1\nllamacpp:ab 1\nother 1", A).series) == {"llamacpp:a"}


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(content: bytes) -> None:
    lines = [line for line in content.split(b"\n") if line.strip()]
    assert 0 <= parse(content, A).skipped <= len(lines)


def test_a_hostile_line_takes_no_longer_than_its_length() -> None:
    began = time.monotonic()
    for part in (b'x="\\', b'x="",', b'"",', b" ", b"1", b"a", b"x=", b'x="" '):
        for start in (b"llamacpp:a{", b"llamacpp:a ", b"llamacpp:a 1 "):
            line = start + part * (15_000 // len(part)) + b"!"
            assert parse(b"\n".join([line] * 60), A).skipped == 60
    assert time.monotonic() - began < 5  # with backtracking it would be hours


def test_a_name_with_too_many_series_is_unknown_and_the_others_are_kept() -> None:
    many = b"".join(b'many{engine="%d"} 1\n' % number for number in range(MOST_SERIES + 5))
    found = parse(many + b'many{engine="0"} 2\nfew 3\n', ["many", "few"])
    assert (found.total("many"), found.total("few"), found.skipped) == (None, 3, 5)
    assert parse(many, ["few"]).skipped == 0
