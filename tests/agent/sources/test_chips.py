"""Chips of /sys/class/hwmon: known by name, whatever their numbers."""

import errno
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded

from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.kit.hwmon import MOST_CHIPS, Chip, Chips
from decodewatch.agent.sources.kit.labels import printable, untaken

FOLDER = "/sys/class/hwmon"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/hwmon").mkdir(parents=True)
    return made


def chip(kernel: FakeKernel, number: int, name: str, **files: int | str) -> None:
    kernel.write(f"{FOLDER}/hwmon{number}/name", name + "\n")
    for file, content in files.items():
        kernel.write(f"{FOLDER}/hwmon{number}/{file}", f"{content}\n")


def words(found: Chip) -> list[str]:
    return [found.word(f"in{number}_label") for number in found.numbers("in", "_input")]


def chips_of(kernel: FakeKernel, *names: str) -> Chips[list[str]]:
    return Chips(kernel.root, names.__contains__, words, kernel)


def read(chips: Chips[list[str]]) -> dict[str, bytes | str]:
    return {found.label: found.read("in1_input") for found, _ in chips.look()}


def test_a_board_with_two_chips_of_one_name(tmp_path: Path) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    chips = chips_of(kernel, "ina3221")
    assert {found.label: labels for found, labels in chips.look()} == {
        "ina3221": ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"],
        "ina3221#2": ["NC", "VDDQ_VDD2_1V8AO", "NC"],
    }
    assert read(chips) == {"ina3221": b"20008\n", "ina3221#2": b"0\n"}


def test_no_file_is_touched_before_the_first_look(kernel: FakeKernel) -> None:
    chips_of(kernel, "ina3221")
    assert not kernel.opens and not kernel.listings


def test_a_file_is_read_through_one_descriptor_and_only_names_are_listed_again(
    kernel: FakeKernel,
) -> None:
    chip(kernel, 0, "ina3221", in1_input=5000, in1_label="VDD_IN")
    chip(kernel, 1, "nvme", temp1_input=40000)
    chips = chips_of(kernel, "ina3221")
    for _ in range(int(RELIST_S)):
        assert read(chips) == {"ina3221": b"5000\n"}
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/hwmon0/in1_input") == 1
    assert kernel.listings.count(FOLDER) == 1
    assert f"{FOLDER}/hwmon1/temp1_input" not in kernel.opens
    chips.close()
    assert not kernel.open_files


def test_a_chip_whose_number_moves_is_found_again(kernel: FakeKernel) -> None:
    chip(kernel, 3, "ina3221", in1_input=5000, in1_label="VDD_IN")
    chip(kernel, 4, "nvme", in1_input=1)
    chips = chips_of(kernel, "ina3221")
    assert read(chips) == {"ina3221": b"5000\n"}
    kernel.move(f"{FOLDER}/hwmon3", f"{FOLDER}/hwmon7")
    kernel.move(f"{FOLDER}/hwmon4", f"{FOLDER}/hwmon3")
    kernel.now += RELIST_SOON_S
    assert read(chips) == {"ina3221": "absent"}, "never the value of the one that took its number"
    kernel.now += 1
    assert read(chips) == {"ina3221": b"5000\n"}
    assert list(kernel.open_files.values()) == [f"{FOLDER}/hwmon7/in1_input"]


def test_a_chip_that_is_away_keeps_its_sensors_and_returns_with_those_it_has_then(
    kernel: FakeKernel,
) -> None:
    chip(kernel, 3, "ina3221", in1_input=5000, in1_label="VDD_IN")
    chips = chips_of(kernel, "ina3221")
    chips.look()
    kernel.remove(f"{FOLDER}/hwmon3")
    kernel.now += RELIST_S
    ((found, labels),) = chips.look()
    assert labels == ["VDD_IN"] and not found.present
    assert read(chips) == {"ina3221": "absent"}
    assert not kernel.open_files
    chip(kernel, 5, "ina3221", in1_input=5100, in1_label="VDD_IN", in2_input=1, in2_label="VDD_SOC")
    kernel.now += RELIST_S
    assert [labels for _, labels in chips.look()] == [["VDD_IN", "VDD_SOC"]]
    assert read(chips) == {"ina3221": b"5100\n"}


def test_a_driver_that_is_loaded_again_gives_its_chip_the_old_number(kernel: FakeKernel) -> None:
    chip(kernel, 0, "ina3221", in1_input=5000)
    chips = chips_of(kernel, "ina3221")
    assert read(chips) == {"ina3221": b"5000\n"}
    for volts in (5001, 5002):
        kernel.remove(f"{FOLDER}/hwmon0")
        chip(kernel, 0, "ina3221", in1_input=volts)
        kernel.now += RELIST_SOON_S
        assert read(chips) == {"ina3221": "absent"}
        kernel.now += 1
        assert read(chips) == {"ina3221": b"%d\n" % volts}


def test_of_two_chips_the_one_that_stays_keeps_its_label(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nvme", in1_input=1)
    chip(kernel, 1, "nvme", in1_input=2)
    chips = chips_of(kernel, "nvme")
    assert read(chips) == {"nvme": b"1\n", "nvme#2": b"2\n"}
    kernel.remove(f"{FOLDER}/hwmon0")
    kernel.now += RELIST_S
    assert read(chips) == {"nvme": "absent", "nvme#2": b"2\n"}
    chip(kernel, 9, "nvme", in1_input=3)
    kernel.now += RELIST_S
    assert read(chips) == {"nvme": b"3\n", "nvme#2": b"2\n"}


def test_a_file_that_a_chip_never_had_is_asked_for_seldom(kernel: FakeKernel) -> None:
    chip(kernel, 0, "nvme")
    chips = chips_of(kernel, "nvme")
    for _ in range(int(RELIST_S) * 5):
        assert read(chips) == {"nvme": "absent"}
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/hwmon0/in1_input") <= 7
    assert kernel.listings.count(FOLDER) <= 7


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.EACCES, "denied"), (errno.ENOENT, "absent"), (errno.EIO, "transient")],
)
def test_a_folder_that_cannot_be_listed_says_why(
    kernel: FakeKernel, error: int, reason: str
) -> None:
    chip(kernel, 0, "nvme", in1_input=1)
    kernel.faults[FOLDER] = error
    chips = chips_of(kernel, "nvme")
    assert chips.look() == []
    assert chips.no_chips == reason
    kernel.faults.clear()
    kernel.now += REPROBE_S
    assert read(chips) == {"nvme": b"1\n"}


class Unlistable(FakeKernel):
    """A device whose folders of chips may be entered and not listed, when that is switched on."""

    refuses = False

    def listdir(self, path: str) -> list[str]:
        if self.refuses and self.name(path) != FOLDER:
            raise PermissionError(errno.EACCES, path)
        return super().listdir(path)


def test_a_chip_that_can_no_longer_be_listed_keeps_the_files_it_had(tmp_path: Path) -> None:
    kernel = Unlistable(tmp_path)
    chip(kernel, 0, "ina3221", in1_input=5000, in1_label="VDD_IN")
    chips = chips_of(kernel, "ina3221")
    chips.look()
    kernel.refuses = True
    kernel.now += RELIST_S
    assert [labels for _, labels in chips.look()] == [["VDD_IN"]]
    assert read(chips) == {"ina3221": b"5000\n"}


@pytest.mark.parametrize("error", [errno.EACCES, errno.EINVAL, errno.ENODATA])
def test_a_name_that_cannot_be_read_costs_the_others_nothing(
    kernel: FakeKernel, error: int
) -> None:
    chip(kernel, 0, "nvme", in1_input=1)
    chip(kernel, 1, "nvme", in1_input=2)
    kernel.faults[f"{FOLDER}/hwmon0/name"] = error
    assert read(chips_of(kernel, "nvme")) == {"nvme": b"2\n"}


def test_an_old_driver_has_its_files_in_the_folder_device(kernel: FakeKernel) -> None:
    kernel.write(f"{FOLDER}/hwmon0/device/name", "w83627hf\n")
    kernel.write(f"{FOLDER}/hwmon0/device/in1_input", "3300\n")
    kernel.write(f"{FOLDER}/hwmon0/device/in1_label", "3V3\n")
    chips = chips_of(kernel, "w83627hf")
    assert [labels for _, labels in chips.look()] == [["3V3"]]
    assert read(chips) == {"w83627hf": b"3300\n"}


def test_hardware_that_is_plugged_in_again_and_again_does_not_fill_the_list(
    kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chips = Chips(kernel.root, lambda _: True, words, kernel)
    for number in range(MOST_CHIPS + 20):
        chip(kernel, 0, f"usb{number}", in1_input=number)
        kernel.now += RELIST_S
        found = read(chips)
        assert len(found) <= MOST_CHIPS
        assert found[f"usb{number}"] == b"%d\n" % number
        kernel.remove(f"{FOLDER}/hwmon0")
    for number in range(MOST_CHIPS + 20):
        chip(kernel, number, f"chip{number}", in1_input=number)
    kernel.now += RELIST_S
    assert len(read(chips)) == MOST_CHIPS
    assert len(kernel.open_files) == MOST_CHIPS
    assert not caplog.records


def test_numbers_are_those_between_the_two_ends(kernel: FakeKernel) -> None:
    chip(kernel, 0, "x", in1_input=1, in10_input=1, in2_input=1, in_input=1, in3_label="a")
    chip(kernel, 0, "x", inx_input=1, in99999_input=1, fan4_input=1, in5_input_max=1)
    ((found, _),) = chips_of(kernel, "x").look()
    assert found.numbers("in", "_input") == [1, 2, 10]


@given(st.binary(max_size=32))
def test_a_label_is_printable_text_whatever_the_bytes(content: bytes) -> None:
    text = printable(content)
    assert text.isprintable() and text.isascii() and len(text) <= len(content)


@given(st.lists(st.sampled_from(["a", "b", "a#2"])))
def test_no_two_labels_are_the_same(names: list[str]) -> None:
    labels: list[str] = []
    for name in names:
        labels.append(untaken(name, labels))
    assert len(labels) == len(set(labels))
    assert all(label.startswith(name) for label, name in zip(labels, names, strict=True))
