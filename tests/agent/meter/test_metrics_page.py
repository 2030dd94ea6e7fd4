"""docs/metrics.md: its worked example is computed, and it knows every name that is printed."""

import re
from pathlib import Path

import pytest
from support.streams import RECORDED, chat, counts, metered, sse

from decodewatch.agent.meter import meter
from decodewatch.agent.meter.dialects import SOURCES

PAGE = (Path(__file__).resolve().parents[3] / "docs/metrics.md").read_text()


def figures(section: str) -> dict[str, str]:
    """The rows of a table: who, and the figure."""
    return dict(re.findall(r"^\| (.+?) \| ([^|]+?) \|$", section, re.MULTILINE))


def test_the_worked_example_is_what_each_definition_gives() -> None:
    times, text = [100.0, 150.0], ["abcde", "fghij"]
    reads = [
        (t_ms, sse(chat(part, usage=counts(3, 5 * n))))
        for n, (t_ms, part) in enumerate(zip(times, text, strict=True), 1)
    ]
    said = metered([*reads, (151.0, sse(chat(finish="stop")))])
    section = PAGE.split("## One stream, five figures")[1].split("And one token")[0]
    shown = {who: figure for who, figure in figures(section).items() if who[0] not in "w-"}
    (gap,) = said["gaps"]
    computed = {
        "decodewatch `tpot`": said["tpot"],
        "vLLM's benchmark": (said["e2e"] - said["ttft"]) / (said["N"] - 1),
        "decodewatch `tpot_ca`": said["tpot_ca"],
        "AIPerf with usage": (said["e2e"] - said["ttft"]) / (said["N"] - said["chunk_tokens"][0]),
        "older GenAI-Perf": gap / said["chunk_tokens"][1],
        "llmperf, MLC": said["e2e"] / said["N"],
        "vLLM's ITL": gap,
    }
    for name, value in computed.items():
        (figure,) = (figure for who, figure in shown.items() if name in who)
        assert float(figure) == pytest.approx(value, abs=6e-4), name
    assert len(shown) == 5


def test_one_token_has_no_tpot_and_the_page_says_who_thinks_otherwise() -> None:
    said = metered([(40.0, sse(chat("a", finish="stop", usage=counts(3, 1))))])
    section = PAGE.split("And one token at 40 ms")[1].split("\n## ")[0]
    shown = figures(section)
    assert said["tpot"] is None and shown["decodewatch, vLLM's benchmark, AIPerf"] == "none"
    assert float(shown["llmperf, MLC"]) == said["e2e"] / said["N"]


def test_every_name_that_is_printed_is_on_the_page() -> None:
    section = PAGE.split("## `decodewatch agent meter")[1]
    names = set(re.findall(r"`(\w+)`", section))
    said = [metered(s.reads, s.framing, encoding=s.encoding) for s in RECORDED]
    printed = {name for one in said for name in (*one, *(one["server"] or ()))}
    assert printed | {"id", "file"} <= names
    source = Path(meter.__file__).read_text()
    flags = set(re.findall(r'yield "(\w+)"', source))
    assert "bad_frame" in flags and flags <= names
    assert {name for name in SOURCES if f"`{name}`" not in PAGE} == set()
    assert f"`{meter.ESTIMATE}`" in PAGE and str(meter.MOST_CHUNKS) in section
