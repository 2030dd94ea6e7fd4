"""How values look."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.dashboard import format as words
from decodewatch.shared.sketch import Percentile

DAY = words.DAY
NOON = 1_764_072_000_000_000  # 2025-11-25 12:00 UTC
UTC, BERLIN = words.zone("UTC"), words.zone("Europe/Berlin")


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "unknown"),
        (-1_204_331, "\N{MINUS SIGN}1.20 s"),
        (0, "0 µs"),
        (850, "850 µs"),
        (999.6, "1.00 ms"),
        (14_230, "14.2 ms"),
        (421_000, "421 ms"),
        (999_499, "999 ms"),
        (999_600, "1.00 s"),
        (12_400_000, "12.4 s"),
        (119_000_000, "119 s"),
        (13 * 60_000_000, "13 min"),
    ],
)
def test_a_duration_has_three_digits_and_its_unit(us: float | None, text: str) -> None:
    assert words.duration(us) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (432_013_312, "412 MiB"),
        (1024**3 - 1, "1.00 GiB"),
        (7.4 * 1024**3, "7.40 GiB"),
    ],
)
def test_a_size_is_in_binary_units(size: float | None, text: str) -> None:
    assert words.size(size) == text


def test_unknown_is_a_word_and_zero_is_not_unknown() -> None:
    assert words.count(None) == words.temperature(None) == words.frequency(None) == "unknown"
    assert words.share(None, 5) == words.share(5, None) == words.ago(None, 0) == "unknown"
    assert (words.count(0), words.temperature(0.0), words.share(0, 8)) == ("0", "0.0 °C", "0 %")


def test_power_and_energy_have_their_units() -> None:
    assert [words.power(one) for one in (None, 0.0, 7.134)] == ["unknown", "0.00 W", "7.13 W"]
    shown = [words.energy(one) for one in (None, 0.0134, 0.9994, 1.24)]
    assert shown == ["unknown", "13.4 mJ", "999 mJ", "1.24 J"]


def test_ages_say_their_largest_unit() -> None:
    assert words.ago(NOON - 12_000_000, NOON) == "12 s ago"
    assert words.ago(NOON - 3 * words.HOUR, NOON) == "3 h ago"
    assert words.ago(NOON - 90 * words.MINUTE, NOON) == "1 h ago"
    assert words.ago(NOON - 2 * DAY, NOON) == "2 d ago"
    assert words.ago(NOON, NOON) == "now"


def test_a_device_whose_clock_runs_a_little_ahead_is_now_and_one_far_ahead_is_said() -> None:
    assert words.ago(NOON + 5 * words.SECOND, NOON) == "now"
    assert words.ago(NOON + 3 * words.HOUR, NOON) == "in 3 h"


def test_a_clock_shows_the_viewers_zone_and_the_date_where_it_is_another_day() -> None:
    assert words.clock(NOON, NOON, UTC) == "12:00"
    assert words.clock(NOON, NOON, BERLIN) == "13:00"
    assert words.clock(NOON - DAY, NOON, UTC) == "24 Nov 12:00"
    assert words.clock(NOON - 400 * DAY, NOON, UTC) == "2024-10-21 12:00"
    assert words.clock(NOON + 11 * words.HOUR, NOON, BERLIN) == "26 Nov 00:00"


@pytest.mark.parametrize("name", [None, "", "Not/AZone", "../../etc/passwd", "x" * 300])
def test_a_zone_that_nobody_knows_is_utc(name: str | None) -> None:
    assert words.clock(NOON, NOON, words.zone(name)) == "12:00"


def test_a_withheld_percentile_says_what_it_needs() -> None:
    assert words.percentile(Percentile(0.99, 41_230.0, 5000)) == "p99 41.2 ms"
    assert words.percentile(Percentile(0.99, None, 412)) == "p99 needs 1,000"
    assert words.percentile(Percentile(0.95, None, 12)) == "p95 needs 200"
    assert words.percentile(Percentile(0.9, None, 0)) == "p90 unknown"


def test_plurals() -> None:
    assert words.counted(1, "turn") == "1 turn"
    assert words.counted(0, "batch") == "0 batches"
    assert words.counted(48_112, "token") == "48,112 tokens"


def test_a_name_cannot_move_its_neighbours() -> None:
    assert words.plain("a\u202eb\nc\x00d\u2066e") == "a\ufffdb\ufffdc\ufffdd\ufffde"
    hebrew = "\N{HEBREW LETTER SHIN}\N{HEBREW LETTER LAMED}"
    assert words.plain(hebrew) == f"\u2068{hebrew}\u2069"
    assert words.plain("e" * 200, 10) == "eeeeeeeee…"


@given(st.text(max_size=200), st.integers(8, 64))
def test_a_plain_name_is_short_and_on_one_line(text: str, limit: int) -> None:
    tame = words.plain(text, limit)
    assert len(tame) <= limit + 2
    assert len(tame.splitlines()) <= 1
    assert not set("\u202a\u202b\u202d\u202e\u2066\u2067") & set(tame)


@given(st.text(max_size=100))
def test_an_inert_name_says_the_same_as_the_plain_one(text: str) -> None:
    """Without its escapes and joiners, and escaped wherever a mark could mean something."""
    inert = words.inert(text)
    assert inert.replace("\u2060", "").replace("\\", "") == words.plain(text).replace("\\", "")
    for place, letter in enumerate(inert):
        if letter in "<>[]()*_`$~|:#&!":
            assert inert[place - 1] == "\\"


def test_the_id_of_a_device_can_be_copied_and_searched_for() -> None:
    assert words.inert("orin_nano-01.lab") == r"orin\_nano\-01\.lab"


@pytest.mark.parametrize(
    "text", [":smile:", ":red[x]", ":+1:", "a->b", "a--b", "http://x.example", "WWW.x", "me@x.y"]
)
def test_what_streamlit_looks_for_in_plain_text_is_broken_up(text: str) -> None:
    assert "\u2060" in words.inert(text)
