"""The pages' logic: states, verdicts, and what stands in the address (AppTest, no browser)."""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from support import seed

import decodewatch.dashboard

from .conftest import share_out

APP = Path(decodewatch.dashboard.__file__).with_name("app.py")
Use = Callable[[str], None]


def fleet_page(**address: str) -> AppTest:
    def script() -> None:
        from decodewatch.dashboard.pages import fleet

        fleet.page()

    return run(AppTest.from_function(script, default_timeout=20), address)


def device_page(**address: str) -> AppTest:
    def script() -> None:
        from decodewatch.dashboard.pages import device

        device.page()

    return run(AppTest.from_function(script, default_timeout=20), address)


def run(page: AppTest, address: dict[str, str]) -> AppTest:
    for name, value in address.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception, page.exception
    return page


def said(page: AppTest) -> str:
    """All words of a page, without what keeps names inert."""
    elements = [*page.markdown, *page.caption, *page.subheader]
    return "\n".join(str(one.value) for one in elements).replace("\\", "").replace("\u2060", "")


@pytest.fixture
def one(tmp_path: Path, now: int, use: Use) -> Callable[..., Path]:
    """Make the pages read a new database with some boards; its file."""

    def make(*boards: seed.Board) -> Path:
        use(seed.database(tmp_path / "decodewatch.db", now, boards))
        return tmp_path / "decodewatch.db"

    return make


def test_the_fleet_page_says_first_who_is_away_and_what_is_missing(
    use: Use, fleet_url: str
) -> None:
    use(fleet_url)
    page = fleet_page()
    verdict = said(page).splitlines()[0]
    assert "1 of 2 devices is online: rpi5-kitchen is offline." in verdict
    assert "3 batches of rpi5-kitchen have not arrived yet." in verdict


def test_the_application_opens_with_the_fleet_page(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = run(AppTest.from_file(APP, default_timeout=20), {})
    assert page.subheader[0].value == "Fleet"


def test_the_fleet_page_withholds_what_has_too_few_values(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    text = said(fleet_page(period="1h"))
    assert "p95 needs 200" in text  # TTFT: some hundred turns
    assert "p99 " in text and "p99 needs" not in text  # ITL: tens of thousands of tokens


def test_a_percentile_that_is_not_drawn_is_named_with_what_it_needs(
    one: Callable[..., Path],
) -> None:
    one(seed.Board("slow", hours=0.25, itl_ms=900))
    text = said(device_page(device="slow"))
    assert "p99 not drawn: it needs 1,000 tokens a point." in text
    assert "p50 " in text and "p99 not drawn: it needs 1,000 tokens a point, p" not in text


def test_figures_over_several_runtimes_say_so(one: Callable[..., Path]) -> None:
    file = one(seed.Board("busy", hours=0.3))
    assert "over" not in said(fleet_page())
    share_out(file, ["toy", "chat"])
    for page in (fleet_page(), device_page(device="busy")):
        assert len(re.findall(r"\d (?:turns|tokens) over 2 runtimes", said(page))) == 2


def test_the_period_comes_from_the_address(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = fleet_page(period="6h")
    assert page.segmented_control[0].value == "6h"
    assert "in the last 6 hours" in said(page)


def test_a_chosen_period_goes_into_the_address(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = fleet_page()
    page.segmented_control[0].set_value("15m").run()
    assert page.query_params["period"] == "15m"
    assert "in the last 15 minutes" in said(page)


@pytest.mark.parametrize("period", ["", "2h", "<b>", "9" * 500])
def test_a_period_that_there_is_not_is_the_usual_one(use: Use, fleet_url: str, period: str) -> None:
    use(fleet_url)
    assert fleet_page(period=period).segmented_control[0].value == "1h"


def test_without_a_database_the_pages_say_who_makes_it(use: Use, tmp_path: Path) -> None:
    use(f"sqlite:///{tmp_path / 'none.db'}")
    for page in (fleet_page(), device_page(), device_page(device="orin")):
        assert "There is no database yet." in said(page)
        assert "decodewatch collector run" in said(page)


def test_without_a_device_the_pages_say_how_to_start_an_agent(one: Callable[..., Path]) -> None:
    one()
    for page in (fleet_page(), device_page()):
        assert "No device has reported yet." in said(page)
        assert "decodewatch agent run" in said(page)


def test_a_locked_database_is_a_state(one: Callable[..., Path]) -> None:
    file = one(seed.Board(hours=0.1))
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode=DELETE")
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert "The database is busy." in said(fleet_page())
    finally:
        writer.close()


def test_a_device_without_turns_says_how_to_wrap_a_loop(one: Callable[..., Path]) -> None:
    one(seed.Board("bare", turns=False, sensors=(), policies={}, hours=0.2))
    assert "DecodeMonitor" in said(fleet_page())
    text = said(device_page(device="bare"))
    assert "No turn yet." in text and "DecodeMonitor" in text
    assert "No runtime has registered yet." in text


def test_a_machine_without_sensors_says_so(one: Callable[..., Path]) -> None:
    one(seed.Board("bare", sensors=(), policies={}, hours=0.2))
    text = said(device_page(device="bare"))
    assert "No temperature sensor on this machine (absent)." in text
    assert "No CPU clock on this machine." in text
    assert "no sensor on this machine" in text


def test_energy_a_decoded_token_stands_with_its_rail_beside_the_phases(
    use: Use, fleet_url: str
) -> None:
    use(fleet_url)
    page = device_page(device="orin-nano-01")
    text = said(page)
    figure = text[text.index("energy a decoded token") :]
    assert re.match(r".*\n\*\*13\d mJ\*\*.*\n.*VDD_IN \(whole device\) · 11.2 W over", figure)
    assert "Power is that of VDD_IN (whole device)." in text
    phases = page.table[1].value
    assert list(phases.index) == ["idle", "prefill", "decode"]
    assert list(phases["power"]) == ["4.90 W", "14.8 W", "11.2 W"]
    assert list(phases["DRAM busy"]) == ["2 %", "31 %", "64 %"]


def test_a_machine_without_a_rail_that_can_be_read_says_so(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = device_page(device="rpi5-kitchen")
    text = said(page)
    assert "No power rail on this machine (denied)." in text
    assert "No GPU utilisation on this machine (absent)." in text
    assert "No DRAM utilisation on this machine (absent)." in text
    assert "no power rail of this machine could be read meanwhile" in text
    assert set(page.table[1].value["power"]) == {"unknown"}


def test_samples_that_tell_no_phases_apart_say_so(one: Callable[..., Path]) -> None:
    file = one(seed.Board("old", hours=0.2))
    writer = sqlite3.connect(file)
    writer.execute("UPDATE sample SET phases = NULL")
    writer.commit()
    writer.close()
    assert "No sample of the period tells them apart." in said(device_page(device="old"))


def test_a_device_that_is_offline_says_since_when_and_what_to_check(
    use: Use, fleet_url: str
) -> None:
    use(fleet_url)
    text = said(device_page(device="rpi5-kitchen"))
    assert re.search(r"offline since .*\d\d:\d\d, [23]\d min", text)
    assert "systemctl status decodewatch-agent" in text


def test_a_period_without_data_says_when_the_newest_are_of(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = device_page(device="rpi5-kitchen", period="15m")
    assert "Nothing in the last 15 minutes." in said(page)
    assert re.search(r"The newest is of .*\d\d:\d\d, [23]\d min ago", said(page))
    assert "No turn in the last 15 minutes." in said(page)


def test_a_device_that_there_is_not_names_those_that_there_are(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    text = said(device_page(device="nobody"))
    assert "No device nobody has reported." in text and "These have reported:" in text


def test_a_name_in_the_address_is_inert(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    page = device_page(device="<script>alert(1)</script> **x** :red[y]")
    assert r"\<" in page.subheader[0].value and r"\*\*x\*\*" in page.subheader[0].value


def test_the_owner_of_one_device_need_not_choose(one: Callable[..., Path]) -> None:
    one(seed.Board("mine", hours=0.2))
    page = device_page()
    assert page.subheader[0].value == "mine"
    assert page.query_params["device"] == "mine"


def test_with_several_devices_the_page_asks_which(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    assert "Which device?" in said(device_page())


def test_a_boot_whose_clock_never_was_right_is_marked(one: Callable[..., Path]) -> None:
    one(seed.Board("lost", placed="receipt", model=None, hours=0.2))
    text = said(device_page(device="lost"))
    assert "its clock was never synchronised: times are those of receipt" in text


def test_turns_and_events_and_streams_are_tables(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    turns, events, streams = (table.value for table in device_page(device="orin-nano-01").dataframe)
    assert {"began", "ending", "TTFT", "TPOT", "prompt", "floor", "error"} <= set(turns.columns)
    assert len(turns) > 50 and turns["began"].is_monotonic_decreasing
    assert turns["floor"].isna().any()  # not known yet, and not 0
    assert events["event"].iloc[0] == "source_failed"
    assert list(streams["received"]) == [720]


def test_columns_that_say_nothing_are_left_out(use: Use, fleet_url: str) -> None:
    use(fleet_url)
    turns = device_page(device="orin-nano-01").dataframe[0].value
    assert "runtime" not in turns.columns and "counted" not in turns.columns


def test_what_a_runtime_did_not_say_is_unknown(one: Callable[..., Path]) -> None:
    one(seed.Board("lost", model=None, hours=0.2))
    facts = device_page(device="lost").table[0].value
    assert "unknown: the application did not say" in facts.to_string()


def test_no_page_brings_markup_of_others_to_life() -> None:
    """Streamlit draws HTML only where it is told to: nowhere but for the style sheet."""
    folder = APP.parent
    for file in [*folder.glob("*.py"), *folder.glob("pages/*.py")]:
        text = file.read_text()
        assert "unsafe_allow" not in text
        assert text.count("st.html(") == (1 if file.name == "view.py" else 0)


def test_pages_hold_no_sql_and_queries_no_drawing() -> None:
    for file in APP.parent.glob("pages/*.py"):
        assert "select(" not in file.read_text() and "import altair" not in file.read_text()
    assert "streamlit" not in (APP.parent / "queries.py").read_text()
