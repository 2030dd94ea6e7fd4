"""What the device is and how it is set, told when it changes and no more often than that."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.devices import recorded

from decodewatch.agent.hardware import board, measurements
from decodewatch.agent.hardware.measurements import Measurement
from decodewatch.agent.hardware.watch import DeviceWatch
from decodewatch.agent.sources.kit.base import Measurement as Row
from decodewatch.agent.sources.kit.base import Reading, Reason, read_as, unknown, word_of
from decodewatch.agent.sources.kit.common import DRAM_HW_MAX, DRAM_MAX, POWER_MODE
from decodewatch.shared.records import Event, from_json, to_json

SECOND = 1_000_000
CAP = Row("power_cap_hertz", "hertz", "gauge", "the clock that the power mode allows")
GOVERNOR = Row("cpu_governor", "word", "word", "who sets the clocks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder."""
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def watch(tmp_path: Path, folder: Path) -> DeviceWatch:
    """That of an Orin Nano Super, since the moment 0."""
    kernel = recorded("orin_nano_super", tmp_path)
    return DeviceWatch(board.read(kernel.root, kernel), folder, "device-tree", 0)


def mode(word: str | None, reason: Reason = "transient") -> Reading:
    return word_of(POWER_MODE, word, reason)


def cap(hertz: int | None, reason: Reason = "absent") -> Reading:
    return read_as(DRAM_MAX, hertz, reason)


def look(watch: DeviceWatch, second: float, *readings: Reading) -> dict[str, dict[str, Any]]:
    told = watch.look(round(second * SECOND), readings)
    assert len({kind for kind, _ in told}) == len(told)
    for kind, data in told:
        event = Event("id", 1, kind, data=data)
        assert from_json(to_json(event)) == event, "a record takes it"
    return dict(told)


def test_a_device_is_described_at_once_where_everything_is_known(watch: DeviceWatch) -> None:
    (data,) = look(watch, 0, mode("MAXN_SUPER"), cap(3_199_000_000)).values()
    assert data["model"].endswith("Developer Kit Super")
    assert (data["soc"], data["l4t"], data["jetpack"]) == ("tegra234", "36.4.4", "6")
    assert (data["power_mode"], data["identified_by"]) == ("MAXN_SUPER", "device-tree")
    assert data["ceiling_bytes_per_second"] == data["spec_bytes_per_second"] == 102_368_000_000
    assert data["ceiling_from"] == "specification"
    assert "NVIDIA" in data["spec_source"] and data["spec_confidence"] == "verified"
    assert "android" not in data, "what is not known is left out"
    assert look(watch, 1, mode("MAXN_SUPER"), cap(3_199_000_000)) == {}


def test_the_first_description_waits_for_what_takes_its_time(watch: DeviceWatch) -> None:
    assert look(watch, 0, mode(None), cap(3_199_000_000)) == {}
    assert look(watch, 1, mode(None), cap(3_199_000_000)) == {}
    told = look(watch, 2, mode("15W"), cap(3_199_000_000))
    assert told["device_described"]["power_mode"] == "15W"


def test_it_does_not_wait_for_ever(watch: DeviceWatch) -> None:
    assert look(watch, 4.9, mode(None)) == {}
    assert "power_mode" not in look(watch, 5, mode(None))["device_described"]


def test_it_does_not_wait_for_what_the_device_has_not(watch: DeviceWatch) -> None:
    assert "device_described" in look(watch, 0, mode(None, "absent"), cap(None, "denied"))


def test_another_power_mode_is_told_and_described(watch: DeviceWatch) -> None:
    look(watch, 0, mode("MAXN_SUPER"), cap(3_199_000_000))
    told = look(watch, 90, mode("15W"), cap(2_133_000_000))
    assert told["power_mode_changed"] == {"from": "MAXN_SUPER", "to": "15W"}
    data = told["device_described"]
    assert data["ceiling_bytes_per_second"] == 68_256_000_000
    assert "2133 MHz" in data["spec_note"]


def test_a_mode_that_flutters_is_told_once_a_minute(watch: DeviceWatch) -> None:
    look(watch, 0, mode("A"))
    told = [
        (second, kind, data)
        for second in range(1, 301)
        for kind, data in look(watch, second, mode("AB"[second % 2])).items()
    ]
    assert 4 <= sum(kind == "power_mode_changed" for _, kind, _ in told) <= 6
    assert sum(kind == "device_described" for _, kind, _ in told) <= 5


def test_what_went_back_within_the_minute_is_not_told(watch: DeviceWatch) -> None:
    look(watch, 0, mode("A"))
    assert "power_mode_changed" in look(watch, 1, mode("B"))
    assert look(watch, 2, mode("A")) == {}
    assert look(watch, 59, mode("B")) == {}
    told = look(watch, 61, mode("B"))
    assert "power_mode_changed" not in told and told["device_described"]["power_mode"] == "B"


def test_a_change_that_stays_is_told_after_the_minute(watch: DeviceWatch) -> None:
    look(watch, 0, mode("A"))
    look(watch, 1, mode("B"))
    assert look(watch, 2, mode("C")) == {}
    assert look(watch, 62, mode("C"))["power_mode_changed"] == {"from": "B", "to": "C"}


def test_a_word_that_is_not_known_for_a_while_has_not_changed(watch: DeviceWatch) -> None:
    look(watch, 0, mode("A"), cap(2_133_000_000))
    assert look(watch, 100, mode(None), cap(None, "transient")) == {}
    assert look(watch, 200) == {}
    assert look(watch, 300, mode("A"), cap(2_133_000_000)) == {}


def test_words_of_several_labels_are_told_apart(watch: DeviceWatch) -> None:
    def governors(first: str, second: str) -> tuple[Reading, Reading]:
        return (
            word_of(GOVERNOR, first, "absent", "policy0"),
            word_of(GOVERNOR, second, "absent", "policy4"),
        )

    look(watch, 0, *governors("schedutil", "schedutil"))
    told = look(watch, 1, *governors("schedutil", "performance"))
    assert told == {
        "cpu_governor_changed": {"from": "schedutil", "to": "performance", "label": "policy4"}
    }


def test_the_words_that_are_remembered_are_bounded(watch: DeviceWatch) -> None:
    def many(word: str) -> list[Reading]:
        return [word_of(GOVERNOR, word, "absent", f"policy{number}") for number in range(500)]

    watch.look(0, many("a"))
    assert len(watch.look(1, many("b"))) == 64


@pytest.mark.parametrize(
    ("readings", "gb_per_s"),
    [
        ([cap(2_133_000_000)], 68.3),
        ([read_as(CAP, 2_133_000_000, "absent", "emc")], 68.3),
        # The lower of two limits holds.
        ([cap(3_199_000_000), read_as(CAP, 2_133_000_000, "absent", "emc")], 68.3),
        ([unknown(DRAM_MAX, "unlimited"), read_as(DRAM_HW_MAX, 3_199_000_000, "absent")], 102.4),
        ([unknown(DRAM_MAX, "denied")], 102.4),
    ],
)
def test_the_ceiling_follows_whatever_says_the_limit(
    watch: DeviceWatch, readings: list[Reading], gb_per_s: float
) -> None:
    data = look(watch, 0, *readings)["device_described"]
    assert data["ceiling_bytes_per_second"] == pytest.approx(gb_per_s * 1e9, rel=0.004)


def test_a_new_measurement_is_picked_up(tmp_path: Path, folder: Path) -> None:
    kernel = recorded("rpi5", tmp_path)
    kernel.write("/proc/meminfo", "MemTotal: 8245248 kB\n")
    found = board.read(kernel.root, kernel)
    watch = DeviceWatch(found, folder, None, 0)
    data = look(watch, 0)["device_described"]
    assert (data["ceiling_from"], data["ceiling_bytes_per_second"]) == (
        "specification",
        17_068_000_000,
    )
    made = Measurement(1, 11.2e9, 12.5e9, 2, found.model, found.memory_bytes, None, None, 1.0)
    measurements.store(folder, made)
    data = look(watch, 70)["device_described"]
    assert (data["ceiling_from"], data["ceiling_bytes_per_second"]) == ("measured", 11_200_000_000)
    assert data["measured_copy_bytes_per_second"] == 12_500_000_000
    assert data["spec_bytes_per_second"] == 17_068_000_000
    (folder / measurements.FILE).unlink()
    assert look(watch, 140)["device_described"]["ceiling_from"] == "specification"


def test_a_measurement_that_a_cloned_image_brought_is_not_this_device_s(
    watch: DeviceWatch, folder: Path
) -> None:
    made = Measurement(1, 11.2e9, 12.5e9, 2, "Raspberry Pi 5", 8 << 30, None, None, 1.0)
    measurements.store(folder, made)
    assert "measured_at" not in look(watch, 0)["device_described"]
    measurements.store(folder, dataclasses.replace(made, model=None))
    assert look(watch, 70) == {}


def test_a_device_of_which_nothing_is_known_says_so(folder: Path) -> None:
    nothing = board.Board(
        *(None, None, None, (), None, 4096, None, None, None, None, None, None),
    )
    data = look(DeviceWatch(nothing, folder, None, 0), 0)["device_described"]
    assert data == {"page_bytes": 4096, "spec_note": "not in the table of known devices"}
