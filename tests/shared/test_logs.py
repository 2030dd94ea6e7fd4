"""Log lines: one an event, parseable, and few where the same thing happens again and again."""

import json
import logging
from collections.abc import Iterator

import pytest

from decodewatch.shared import logs


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_text_line_has_time_level_module_event_and_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.setup()
    logs.get("decodewatch.agent.spool").info("batch stored", number=3, reason='a "b"\nc', empty="")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    stamp, rest = line.split(" ", 1)
    assert stamp.endswith("Z")
    assert rest == 'info spool: batch stored number=3 reason="a \\"b\\"\\nc" empty=""\n'


def test_a_json_line_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(form="json")
    logs.get("x.y").warning("odd", path="/a", n=1)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["event"], line["path"], line["n"]) == ("warning", "odd", "/a", 1)


def test_a_repeated_warning_is_counted_instead_of_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.setup()
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    log = logs.get("x")
    for now[0] in (0, 10, 20, 70):
        log.warning("broker unreachable", every=60)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("broker unreachable more=2")


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("warning")
    logs.get("x").info("chatter")
    assert capsys.readouterr().err == ""
