"""What a person sees: every page in a real Chromium, and pictures of them in `artefacts/`."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
from support import seed
from support.browser import Browser
from support.waiting import until

from decodewatch.dashboard import format as words
from decodewatch.dashboard.database import reading
from decodewatch.dashboard.queries import decoding, turns

from .conftest import dashboard, share_out

ORIN, PI = "orin-nano-01", "rpi5-kitchen"
TITLES = [
    "ITL, and TPOT of each turn",
    "TTFT of each turn",
    "RssAnon + VmSwap after each turn",
    "Temperature",
    "CPU clock",
    "GPU utilisation",
    "DRAM utilisation",
    "Power",
    "ITL against depth",
]
ALONG_TIME = ("itl", "ttft", "memory", "heat", "clocks", "gpu", "dram", "power")
NO_POWER = ALONG_TIME[:5]
"""Of a board whose load and power nobody can read."""


@pytest.fixture(autouse=True)
def nothing_went_wrong(chromium: Browser) -> Iterator[None]:
    """No page of any test shows an exception or writes an error to the console."""
    chromium.look(1360)
    chromium.problems()
    yield
    problems = chromium.problems()
    # A page that is left open would go on asking for a server that is gone.
    chromium.driver.get("about:blank")
    assert problems == []


def address(chromium: Browser) -> dict[str, list[str]]:
    return parse_qs(urlparse(chromium.driver.current_url).query)


def click(chromium: Browser, selector: str, text: str) -> None:
    found = [one for one in chromium.all(selector) if text in one.text]
    assert found, f"nothing to click that says {text!r}: {chromium.text()}"
    found[0].click()


def link(chromium: Browser, text: str) -> None:
    click(chromium, '[data-testid="stPageLink"] a', text)


def charts_drawn(chromium: Browser) -> None:
    until(
        lambda: chromium.all(".st-key-chart-itl .vega-embed > svg"), 20, "the device page's charts"
    )
    chromium.settle()


def points(chromium: Browser, key: str) -> list[dict[str, str]]:
    """What each mark of a chart says of itself: its data, as they were drawn."""
    labels = chromium.script(
        """
        const marks = document.querySelectorAll(
            `.st-key-chart-${arguments[0]} [role="graphics-symbol"][aria-label]`);
        return [...marks].map(mark => mark.getAttribute('aria-label'))
          .filter(label => label.includes('; '));
        """,
        key,
    )
    told = [label.split("; ") for label in labels]
    return [dict(part.split(": ", 1) for part in parts) for parts in told]


def test_the_fleet_page_shows_every_device_and_leads_to_it(
    chromium: Browser, fleet_at: str
) -> None:
    chromium.open(f"{fleet_at}/?period=6h")
    text = chromium.text()
    assert "1 of 2 devices is online: rpi5-kitchen is offline." in text
    assert text.index(f"{PI}\n") < text.index(f"{ORIN}\n")  # who is away comes first
    for figure in ("TTFT", "ITL", "memory available", "RssAnon + VmSwap", "cpu-thermal"):
        assert figure in text
    assert "715 received · 7 duplicate · 3 missing · 2 evicted" in text

    link(chromium, ORIN)
    charts_drawn(chromium)
    assert address(chromium) == {"device": [ORIN], "period": ["6h"]}
    assert chromium.text("h3") == ORIN

    chromium.driver.back()
    until(lambda: "devices is online" in chromium.text(), 20, "the fleet page again")
    assert "in the last 6 hours" in chromium.text()


def test_the_device_page_draws_what_the_database_holds(
    chromium: Browser, fleet_at: str, fleet_url: str, now: int
) -> None:
    """All of the two hours that there are, so that no turn leaves the period meanwhile."""
    with reading(fleet_url) as connection:
        stored = turns(connection, ORIN, now - 6 * seed.HOUR)
        found = decoding(connection, ORIN, now - 6 * seed.HOUR)
    chromium.open(f"{fleet_at}/device?device={ORIN}&period=6h")
    assert [one.text for one in chromium.all(".stVegaLiteChart .role-title-text")] == TITLES

    text, itl = chromium.text(), found.all_itl
    assert f"{words.duration(itl.quantile(0.5))} p50" in text
    assert f"{words.percentile(itl.percentile(0.99))} · {words.counted(itl.n, 'token')}" in text
    assert f"{words.duration(found.ttft.quantile(0.5))} p50" in text

    ttft = sorted(one["TTFT"] for one in points(chromium, "ttft"))
    assert ttft == sorted(words.duration(one.ttft_us) for one in stored)
    memory = [(one["RssAnon + VmSwap"], one["known as"]) for one in points(chromium, "memory")]
    known = [one for one in stored if one.floor_bytes is not None]
    assert len(memory) == len(stored)
    assert {size for size, how in memory if how.startswith("floor")} == {
        words.size(one.floor_bytes) for one in known
    }
    assert {how for _, how in memory} == {"floor", "floor, unsettled", "turn's end"}
    drawn = [one for one in points(chromium, "itl") if "tokens" in one]
    assert {one["percentile"] for one in drawn} == {"p50", "p90", "p99"}
    assert sum(int(one["tokens"].replace(",", "")) for one in drawn) > 3 * itl.n * 0.99
    heat = {one["sensor"] for one in points(chromium, "heat") if "sensor" in one}
    assert heat == {"cpu-thermal", "gpu-thermal", "soc0-thermal"}
    rails = {one["sensor"] for one in points(chromium, "power") if "sensor" in one}
    assert rails == {"VDD_IN", "VDD_IN (whole device)"}
    assert {one["percentile"] for one in points(chromium, "depth")} == {"p50", "p90", "p99"}
    check_moments_line_up(chromium)


def check_moments_line_up(chromium: Browser, keys: Sequence[str] = ALONG_TIME) -> None:
    """All charts of the time axis come to have the same axis in the same place.

    Come to: each is drawn by itself, so that in the middle of a refresh they may differ.
    """
    frames: list[tuple[float, float, str]] = []

    def line_up() -> bool:
        frames[:] = frames_in_time(chromium, keys)
        lefts, rights, axes = zip(*frames, strict=True)
        # Edges lie between pixels: two that are the same may be rounded apart.
        return max(lefts) - min(lefts) <= 1 >= max(rights) - min(rights) and len(set(axes)) == 1

    until(line_up, 15, f"the charts line up: {frames}")


def frames_in_time(chromium: Browser, keys: Sequence[str]) -> list[tuple[float, float, str]]:
    """Left, right and label of the time axis of each chart; a chart being drawn has none."""
    frames = chromium.script(
        """
        return arguments[0].map(key => {
          const chart = document.querySelector(`.st-key-chart-${key} .vega-embed > svg`);
          const lines = [...(chart?.querySelectorAll('.role-axis-grid line') ?? [])];
          const area = lines.map(one => one.getBoundingClientRect()).find(one => one.width > 100);
          const axis = chart?.querySelector('[aria-label^="X-axis"]');
          if (!area || !axis) return [-1, 0, `${key} not drawn`];
          return [area.left, area.right, axis.getAttribute('aria-label')];
        });
        """,
        list(keys),
    )
    return [tuple(frame) for frame in frames]


def test_the_period_is_chosen_with_a_click_and_kept_from_page_to_page(
    chromium: Browser, fleet_at: str
) -> None:
    chromium.open(f"{fleet_at}/")
    click(chromium, '[role="radio"], [data-testid^="stBaseButton-seg"]', "15 min")
    until(lambda: "in the last 15 minutes" in chromium.text(), 20, "the shorter period")
    assert address(chromium)["period"] == ["15m"]

    link(chromium, PI)
    until(lambda: "Nothing in the last 15 minutes." in chromium.text(), 20, "the device page")
    assert address(chromium) == {"device": [PI], "period": ["15m"]}

    link(chromium, "Show the last hour")
    charts_drawn(chromium)
    assert address(chromium) == {"device": [PI], "period": ["1h"]}

    click(chromium, '[data-testid="stTopNavLink"]', "Fleet")
    until(lambda: "in the last hour" in chromium.text(), 20, "the fleet page")
    assert address(chromium)["period"] == ["1h"]


def test_times_are_in_the_viewers_zone(chromium: Browser, fleet_at: str, now: int) -> None:
    chromium.open(f"{fleet_at}/device?device={PI}&period=6h")
    berlin = words.zone("Europe/Berlin")
    went = words.clock(now - 25 * seed.MINUTE, time.time_ns() // 1000, berlin)
    assert f"offline since {went}" in chromium.text().replace("\n", " ")
    assert "Times are those of Europe/Berlin." in chromium.text()


def test_a_bookmark_opens_on_a_server_that_just_started_and_stops_in_time(
    chromium: Browser, fleet_url: str, tmp_path: Path
) -> None:
    """Streamlit once showed an empty page to whoever opened another page than the first one."""
    with dashboard(fleet_url, tmp_path) as at:
        chromium.open(f"{at}/device?device={ORIN}&period=1h")
        assert chromium.text("h3") == ORIN
        began = time.monotonic()
    assert time.monotonic() - began < 5
    chromium.problems()  # the connection that was cut


def test_data_appear_by_themselves_in_a_page_that_stays(
    chromium: Browser, tmp_path: Path, now: int
) -> None:
    file = tmp_path / "live.db"
    with dashboard(f"sqlite:///{file}", tmp_path) as at:
        chromium.open(f"{at}/device?device={ORIN}&period=15m")
        assert "There is no database yet." in chromium.text()
        chromium.picture("no-database")
        seed.database(tmp_path / "made.db", now, (seed.Board(hours=0.15),))
        (tmp_path / "made.db").rename(file)
        charts_drawn(chromium)

        before = len(points(chromium, "ttft"))
        chromium.script(
            """
            document.querySelector('.st-key-chart-ttft .vega-embed > svg').kept = true;
            document.querySelector('[data-testid="stMain"]').scrollTop = 300;
            """
        )
        add_turn(file)
        until(lambda: len(points(chromium, "ttft")) > before, 20, "the new turn")
        assert chromium.script(
            "return document.querySelector('.st-key-chart-ttft .vega-embed > svg').kept"
        )
        main = "return document.querySelector('[data-testid=\"stMain\"]').scrollTop"
        assert chromium.script(main) == 300
        assert chromium.problems() == []
        chromium.driver.get("about:blank")


def add_turn(file: Path) -> None:
    """A turn like the newest one, that ended just now."""
    writer = sqlite3.connect(file, timeout=5)
    names = [row[1] for row in writer.execute("PRAGMA table_info(turn)")]
    values = {"turn": "'new'", "at": str(time.time_ns() // 1000 - 60 * seed.SECOND)}
    taken = ", ".join(values.get(name, f'"{name}"') for name in names)
    writer.execute(f"INSERT INTO turn SELECT {taken} FROM turn ORDER BY at DESC LIMIT 1")
    writer.commit()
    writer.close()


@pytest.fixture(scope="module")
def hostile_at(now: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hostile")
    with dashboard(seed.database(folder / "d.db", now, seed.HOSTILE), folder) as at:
        yield at


@pytest.mark.parametrize("board", seed.HOSTILE, ids=lambda board: board.device[:12])
def test_names_that_others_chose_are_shown_as_they_are_written(
    chromium: Browser, hostile_at: str, board: seed.Board
) -> None:
    chromium.open(f"{hostile_at}/device?device={board.device}&period=1h")
    text = chromium.text().replace("\u2060", "")
    for name in (board.device, words.plain(board.name), words.plain(board.engine)):
        assert name in text
    assert alive(chromium) == []


def test_names_that_others_chose_are_inert_on_the_fleet_page(
    chromium: Browser, hostile_at: str
) -> None:
    chromium.open(f"{hostile_at}/?period=1h")
    text = chromium.text().replace("\u2060", "")
    for board in seed.HOSTILE:
        assert board.device in text
        assert words.plain(board.name) in text
    assert alive(chromium) == []
    chromium.picture("fleet-hostile")


def alive(chromium: Browser) -> list[str]:
    """What of the page could only come from a name: images, formulas, links elsewhere, colours."""
    found: list[str] = chromium.script(
        """
        const main = document.querySelector('[data-testid="stMain"]');
        const markup = ['img', 'b', 'del', '.katex', 'script', 'a:not([href^="#"])'];
        const places = ['.stMarkdown', '.stTable', '.stHeading'];
        const suspects = places.flatMap(place => markup.map(one => `${place} ${one}`));
        suspects.push('.stTable strong', '.stTable code', '.stTable em',
                      'svg image', 'svg foreignObject', '[class*="Colored"][style*="red"]');
        return [...main.querySelectorAll(suspects.join(','))].map(one => one.outerHTML);
        """
    )
    return found


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fleet", "/?period=6h"),
        ("device", f"/device?device={ORIN}&period=1h"),
        ("device-offline", f"/device?device={PI}&period=6h"),
        ("device-nothing", f"/device?device={PI}&period=15m"),
    ],
)
def test_pictures_in_light_and_dark_and_narrow(
    chromium: Browser, fleet_at: str, name: str, path: str
) -> None:
    chromium.open(fleet_at + path)
    for look, width, dark in (("light", 1360, False), ("dark", 1360, True), ("narrow", 420, False)):
        chromium.look(width, dark=dark)
        until(lambda dark=dark: is_dark(chromium) is dark, 10, f"the page is {look}")  # type: ignore[misc]
        assert chromium.picture(f"{name}-{look}").stat().st_size > 10_000
        until(
            lambda width=width: (  # type: ignore[misc]
                chromium.script("return document.documentElement.scrollWidth") <= width
            ),
            10,
            f"the page is no wider than {width}",
        )
        if chromium.all(".st-key-chart-itl"):
            check_moments_line_up(chromium, NO_POWER if PI in path else ALONG_TIME)


def test_many_runtimes_fit_on_a_narrow_page(chromium: Browser, tmp_path: Path, now: int) -> None:
    """Legends stay on the page, no point is cut, and figures stand in two even columns."""
    file = tmp_path / "d.db"
    url = seed.database(file, now, (seed.Board(hours=0.5),))
    share_out(file, [f"assistant-{k} of some house" for k in range(9)])
    writer = sqlite3.connect(file)
    writer.execute("UPDATE turn SET ttft_us = 657 WHERE runtime LIKE '%0'")
    writer.commit()
    writer.close()
    chromium.look(500)
    with dashboard(url, tmp_path) as at:
        chromium.open(f"{at}/device?device={ORIN}&period=1h")
        charts_drawn(chromium)
        chromium.picture("device-runtimes-narrow")
        check_moments_line_up(chromium)
        assert outside(chromium) == []
        lefts = chromium.script(
            """
            const cells = document.querySelector('[class*="st-key-figures-"]').children;
            return [...cells].map(one => Math.round(one.getBoundingClientRect().left));
            """
        )
        assert set(lefts[0::2]) == {lefts[0]} and set(lefts[1::2]) == {lefts[1]}
        assert lefts[1] > lefts[0] + 200
        chromium.driver.get("about:blank")


def outside(chromium: Browser) -> list[str]:
    """What of a chart reaches over its edge: words of a legend, or marks over the axes."""
    wrong, words_seen, marks_seen = chromium.script(
        """
        const wrong = [];
        let words = 0, marks = 0;
        for (const chart of document.querySelectorAll('.vega-embed > svg')) {
          const page = chart.getBoundingClientRect();
          for (const word of chart.querySelectorAll('.role-legend-label text')) {
            words += 1;
            if (word.getBoundingClientRect().right > page.right + 1) wrong.push(word.textContent);
          }
          const lines = [...chart.querySelectorAll('.role-axis-grid line')];
          const sizes = lines.map(one => one.getBoundingClientRect());
          const tall = sizes.find(one => one.height > 50);
          if (!tall) continue;
          for (const mark of chart.querySelectorAll('.mark-symbol.role-mark path[aria-label]')) {
            const box = mark.getBoundingClientRect();
            marks += 1;
            if (box.top < tall.top - 0.5 || box.bottom > tall.bottom + 0.5)
              wrong.push(mark.getAttribute('aria-label'));
          }
        }
        return [wrong, words, marks];
        """
    )
    assert words_seen > 15 and marks_seen > 30
    return list(wrong)


def is_dark(chromium: Browser) -> bool:
    colour: str = chromium.script(
        "return getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    )
    return colour != "rgb(255, 255, 255)"
