"""The line that says what a device is, and what its ceiling is by whom."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from support import seed

from decodewatch.dashboard import format as words
from decodewatch.dashboard import lists
from decodewatch.dashboard.queries import Event

ORIN = {
    "model": "NVIDIA Jetson Orin Nano Developer Kit",
    "soc": "tegra234",
    "memory_bytes": 7802844 * 1024,
    "kernel": "5.15.148-tegra",
    "l4t": "36.4.4",
    "jetpack": "6",
    "power_mode": "15W",
    "ceiling_bytes_per_second": 68_256_000_000,
    "ceiling_from": "specification",
    "spec_bytes_per_second": 68_256_000_000,
    "spec_device": "Jetson Orin Nano 8GB",
}

MEASURE = "; `decodewatch agent bandwidth` measures it"


def line(description: dict[str, Any]) -> str:
    return " | ".join(lists.board(description)).replace("\\", "").replace("\u2060", "")


def test_a_board_is_told_in_one_line() -> None:
    assert line(ORIN) == (
        "NVIDIA Jetson Orin Nano Developer Kit | tegra234 | 7.44 GiB memory | power mode 15W | "
        "L4T 36.4.4 (JetPack 6) | kernel 5.15.148-tegra | "
        "ceiling 68.3 GB/s, by the specification of Jetson Orin Nano 8GB"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"ceiling_from": "measured", "ceiling_bytes_per_second": 41.2e9},
            "ceiling 41.2 GB/s, measured (specification of Jetson Orin Nano 8GB: 68.3 GB/s)",
        ),
        (
            {"ceiling_bytes_per_second": None, "spec_note": "not in the table of known devices"},
            "ceiling unknown: not in the table of known devices" + MEASURE,
        ),
        ({"ceiling_from": None, "spec_note": None}, "ceiling unknown" + MEASURE),
        ({"ceiling_bytes_per_second": -1}, "ceiling unknown" + MEASURE),
        ({"ceiling_bytes_per_second": "much"}, "ceiling unknown" + MEASURE),
    ],
)
def test_the_ceiling_says_where_it_comes_from(changed: dict[str, Any], said: str) -> None:
    assert line(ORIN | changed).endswith(said)


def test_a_pc_is_called_by_its_processor_where_nothing_better_is_known() -> None:
    nothing = f"model unknown | ceiling unknown{MEASURE}"
    assert line({"cpu": "AMD EPYC"}) == f"AMD EPYC | ceiling unknown{MEASURE}"
    assert line({}) == nothing
    assert line({"model": 5, "memory_bytes": True, "l4t": ["x"]}) == nothing


def test_what_a_device_says_of_itself_cannot_be_markup() -> None:
    (model, *_) = lists.board({"model": "[x](http://e.vil) **b** :red[x]\n# h"})
    for mark in ("[x]", "](", "**b", ":red", "\n"):
        assert mark not in model


def test_a_rate_in_an_event_has_its_unit() -> None:
    rows = [Event(1_764_072_000_000_000, "e", None, None, {"ceiling_bytes_per_second": 68.256e9})]
    (told,) = lists.events(rows, {}, words.zone("UTC"))["what"]
    assert told == "ceiling: 68.3 GB/s"


def test_the_page_of_a_device_shows_the_line(
    tmp_path: Path, now: int, use: Callable[[str], None]
) -> None:
    def script() -> None:
        from decodewatch.dashboard.pages import device

        device.page()

    def captions() -> str:
        page = AppTest.from_function(script, default_timeout=20)
        page.query_params["device"] = "orin"
        page.run()
        assert not page.exception, page.exception
        return "\n".join(str(one.value) for one in page.caption).replace("\\", "")

    file = tmp_path / "decodewatch.db"
    use(seed.database(file, now, (seed.Board("orin", hours=0.2, description=None),)))
    assert "ceiling" not in captions()
    with sqlite3.connect(file) as writer:
        writer.execute(
            "UPDATE device_state SET described_at = ?, description = ?", (now, json.dumps(ORIN))
        )
    assert "tegra234 · 7.44 GiB memory · power mode 15W" in captions()
