"""The recorded streams of tests/data/streams: right however the network cuts them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import (
    FOLDER,
    RECORDED,
    Read,
    Recorded,
    cut_in_two,
    glued,
    metered,
    of_pieces,
)

COUNTS = ("status", "finish", "prompt", "cached", "N", "N_src", "server")
"""What does not depend on when the bytes came."""


def holds(expected: Any, found: Any) -> bool:
    """Whether what was found has all that was expected; objects may have more."""
    if isinstance(expected, dict):
        return all(name in found and holds(value, found[name]) for name, value in expected.items())
    return bool(
        found == pytest.approx(expected, abs=0.0006) if _number(expected) else found == expected
    )


def _number(value: Any) -> bool:
    return isinstance(value, float) or type(value) is int


def check(stream: Recorded, reads: list[Read], only: tuple[str, ...] | None = None) -> None:
    said = metered(reads, stream.framing, encoding=stream.encoding, cancelled=stream.cancelled)
    names = [name for name in stream.expect if only is None or name in only]
    wrong = {
        name: (stream.expect[name], said[name])
        for name in names
        if not holds(stream.expect[name], said[name])
    }
    assert not wrong, f"{stream.name}: expected, found"


streams = pytest.mark.parametrize("stream", RECORDED, ids=[one.name for one in RECORDED])


def test_there_are_streams() -> None:
    assert len(RECORDED) >= 18


@streams
def test_a_stream_is_read_right(stream: Recorded) -> None:
    check(stream, stream.reads)


@streams
def test_a_stream_is_counted_right_a_byte_a_read(stream: Recorded) -> None:
    check(stream, of_pieces(stream.reads, 1), COUNTS)


@streams
def test_what_a_stream_tells_of_times_is_the_same_a_byte_a_read(stream: Recorded) -> None:
    # Each byte at the time of the read that it was in: nothing may change at all.
    check(stream, of_pieces(stream.reads, 1))


@streams
def test_a_stream_is_counted_right_in_one_read(stream: Recorded) -> None:
    check(stream, glued(stream.reads), COUNTS)


@streams
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_is_counted_right_wherever_it_is_cut(stream: Recorded, data: Any) -> None:
    size = sum(len(content) for _, content in stream.reads)
    place = data.draw(st.integers(0, size))
    check(stream, cut_in_two(stream.reads, place), COUNTS)


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "decodewatch.shared.cli", "agent", "meter", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_prints_a_line_a_file() -> None:
    files = [str(file) for file in sorted(FOLDER.glob("*.json"))]
    done = run(*files)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["file"] for line in lines] == files
    for stream, line in zip(RECORDED, lines, strict=True):
        assert line["id"] == stream.name and holds(stream.expect, line)


def test_a_device_without_an_end_is_refused() -> None:
    done = run("/dev/zero")
    assert done.returncode == 1 and "/dev/zero: more than 64 MiB" in done.stderr


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_printed(tmp_path: Path) -> None:
    secret = "secret-text-of-an-answer"
    read = {"t_ms": 1, "bytes_base64": ""}
    bad: dict[str, Any] = {
        "text.json": secret,
        "list.json": f'["{secret}"]',
        "framing.json": {"framing": "tcp", "reads": []},
        "encoding.json": {"content_encoding": 7, "reads": []},
        "reads.json": {"reads": secret},
        "read.json": {"reads": [secret]},
        "base64.json": {"reads": [{"t_ms": 1, "bytes_base64": f"{secret}!"}]},
        "bytes.json": {"reads": [{"t_ms": 1, "bytes_base64": [secret]}]},
        "time.json": {"reads": [{**read, "t_ms": "soon"}]},
        "nan.json": '{"reads": [{"t_ms": NaN, "bytes_base64": ""}]}',
        "back.json": {"reads": [{**read, "t_ms": 5}, {**read, "t_ms": 4}]},
        "deep.json": "[" * 100_000,
        "utf.json": b"\xff\xfe\xfd",
    }
    for name, content in bad.items():
        whole = content if isinstance(content, str | bytes) else json.dumps(content)
        (tmp_path / name).write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    names = [str(tmp_path / name) for name in bad]
    good = str(FOLDER / "v08.json")
    done = run(*names, str(tmp_path / "none.json"), str(tmp_path), good)
    assert done.returncode == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["V08"]
    said = done.stderr.splitlines()
    assert len(said) == len(bad) + 2
    for name, line in zip([*names, str(tmp_path / "none.json"), str(tmp_path)], said, strict=True):
        assert line.startswith(f"decodewatch agent: {name}: ")
    assert secret not in done.stderr and "Traceback" not in done.stderr


def test_a_file_without_an_id_is_printed_with_none(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"reads": []}')
    done = run(str(tmp_path / "one.json"))
    (line,) = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0
    assert (line["id"], line["status"], line["N"], line["ttft"]) == (None, "truncated", 0, None)


def test_the_command_wants_a_file() -> None:
    assert run().returncode == 2
