"""The battery: a recorded phone, signs and units of vendors, several batteries, Termux."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown
from support.waiting import until

from decodewatch.agent.sources.battery import (
    MOST_BATTERIES,
    TERMUX_DEADLINE_S,
    TERMUX_EVERY_S,
    Battery,
    Files,
    parse,
    parse_termux,
)
from decodewatch.agent.sources.kit.base import REASONS, Reason, Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.kit.kernel import Kernel

FOLDER = "/sys/class/power_supply"
PHONE = "snapdragon_8plus_gen1_sm8475"
PROGRAM = "/data/data/com.termux/files/usr/bin/termux-battery-status"

PRINTED = {
    "present": True,
    "technology": "Li-poly",
    "health": "GOOD",
    "plugged": "UNPLUGGED",
    "status": "DISCHARGING",
    "temperature": 31.5,
    "voltage": 4000,
    "current": -412000,
    "percentage": 87,
    "level": 87,
    "scale": 100,
}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    made = FakeKernel(tmp_path)
    (tmp_path / "sys/class/power_supply").mkdir(parents=True)
    return made


def supply(kernel: FakeKernel, name: str, kind: str | None = "Battery", **files: Any) -> None:
    if kind is not None:
        kernel.write(f"{FOLDER}/{name}/type", f"{kind}\n")
    for file, content in files.items():
        kernel.write(f"{FOLDER}/{name}/{file}", f"{content}\n")


def battery(kernel: FakeKernel, name: str = "BAT0", **files: Any) -> None:
    """A battery of 12 V that is drawn with 1 A, but for what `files` says."""
    given = {"status": "Discharging", "voltage_now": 12000000, "current_now": 1000000, **files}
    supply(kernel, name, **{file: content for file, content in given.items() if content != ""})


def termux(kernel: FakeKernel, printed: str | bytes = json.dumps(PRINTED)) -> None:
    """A device that has Termux:API."""
    kernel.write(PROGRAM, "#!/bin/sh\n")
    kernel.write("/cmd/termux-battery-status.txt", printed)


def read(kernel: FakeKernel) -> dict[str, Value | str]:
    return shown(Battery(kernel.root, kernel).read())


def watts(kernel: FakeKernel) -> tuple[Value | str, Value | str]:
    found = read(kernel)
    return found["battery_watts"], found["device_watts:battery"]


# a recorded phone


def test_a_phone_that_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root sees it. Its driver counts what flows into the battery as negative."""
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    kernel = recorded(PHONE, tmp_path)
    kernel.faults.clear()
    assert read(kernel) == {
        "battery_share": 0.95,
        "battery_status": "Charging",
        "battery_watts": -1.766244,
        "temp_celsius:battery": 32.0,
        "device_watts:battery": "absent",
    }


def test_an_app_on_that_phone_is_denied_the_charge_and_does_not_insist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports 39 and 40: jxlarrea/kiosk-satellite#138, Powerlevel9k#820."""
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    kernel = recorded(PHONE, tmp_path)
    source = Battery(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        found = shown(source.read())
        assert found["battery_share"] == "denied"
        assert found["battery_watts"] == -1.766244
        kernel.now += 1
    assert kernel.opens.count(f"{FOLDER}/battery/capacity") == 1
    assert not kernel.spawned, "this is no Termux"


def test_an_app_on_that_phone_asks_termux_for_the_charge_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report 40: Powerlevel9k#820."""
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    kernel = recorded(PHONE, tmp_path)
    termux(kernel)
    source = Battery(kernel.root, kernel)
    source.read()
    found = shown(source.read())
    assert found["battery_share"] == 0.87
    assert found["battery_status"] == "Charging"
    assert found["battery_watts"] == -1.766244


# signs


@pytest.mark.parametrize("current", [-412000, 412000])
def test_what_flows_out_is_positive_whatever_the_sign(kernel: FakeKernel, current: int) -> None:
    """Report 37: psutil#2605."""
    battery(kernel, current_now=current, voltage_now=4000000)
    assert watts(kernel) == (1.648, 1.648)


@pytest.mark.parametrize("current", [-412000, 412000])
def test_what_flows_in_is_negative_and_not_the_devices_power(
    kernel: FakeKernel, current: int
) -> None:
    battery(kernel, status="Charging", current_now=current, voltage_now=4000000)
    assert watts(kernel) == (-1.648, "absent")


@pytest.mark.parametrize("status", ["Full", "Not charging"])
def test_a_flow_without_a_direction_is_unknown(kernel: FakeKernel, status: str) -> None:
    battery(kernel, status=status, current_now=30000)
    assert watts(kernel) == ("unsupported", "absent")
    battery(kernel, status=status, current_now=0)
    assert watts(kernel) == (0.0, "absent")


def test_a_status_that_the_driver_does_not_know_says_nothing(kernel: FakeKernel) -> None:
    battery(kernel, status="Unknown")
    found = read(kernel)
    assert found["battery_status"] == found["battery_watts"] == "unsupported"
    assert found["device_watts:battery"] == "unsupported"


def test_a_device_that_draws_nothing_from_what_it_runs_on_does_not_measure_it(
    kernel: FakeKernel,
) -> None:
    battery(kernel, current_now=0)
    assert watts(kernel) == ("implausible", "implausible")
    battery(kernel, power_now=0)
    assert watts(kernel) == ("implausible", "implausible")


def test_a_battery_that_is_plugged_and_unplugged(kernel: FakeKernel) -> None:
    source = Battery(kernel.root, kernel)
    seen = []
    for status, current in (
        ("Discharging", -500000),
        ("Charging", 900000),
        ("Full", 0),
        ("Discharging", -600000),
    ):
        battery(kernel, status=status, current_now=current)
        found = shown(source.read())
        seen.append((found["battery_status"], found["battery_watts"]))
        kernel.now += RELIST_S
    assert seen == [
        ("Discharging", 6.0),
        ("Charging", -10.8),
        ("Full", 0.0),
        ("Discharging", 7.2),
    ]


# units


def test_a_driver_that_counts_milliamperes(kernel: FakeKernel) -> None:
    """Some of Samsung's do. 412 uA would be a device that is switched off."""
    battery(kernel, current_now=-412, voltage_now=4000000)
    assert watts(kernel) == (1.648, 1.648)


def test_a_small_number_while_charging_may_be_either_unit(kernel: FakeKernel) -> None:
    battery(kernel, status="Charging", current_now=1500, voltage_now=4000000)
    assert watts(kernel) == ("implausible", "absent")


def test_a_driver_that_is_known_to_count_microamperes_may_show_few(kernel: FakeKernel) -> None:
    source = Battery(kernel.root, kernel)
    seen = []
    for status, current in (("Charging", 1500), ("Charging", 900000), ("Charging", 1500)):
        battery(kernel, status=status, current_now=current, voltage_now=4000000)
        seen.append(shown(source.read())["battery_watts"])
    assert seen == ["implausible", -3.6, -0.006]


def test_a_number_that_is_neither_unit(kernel: FakeKernel) -> None:
    battery(kernel, current_now=12000)
    assert watts(kernel) == ("implausible", "implausible")


def test_the_power_is_what_the_battery_says_where_it_does(kernel: FakeKernel) -> None:
    battery(kernel, power_now=8500000, current_now="")
    assert watts(kernel) == (8.5, 8.5)
    battery(kernel, power_now=8000000, current_now=1)
    assert watts(kernel) == (8.0, 8.0)


@pytest.mark.parametrize(
    ("file", "content", "key"),
    [
        ("capacity", "101", "battery_share"),
        ("capacity", "-1", "battery_share"),
        ("capacity", "", "battery_share"),
        ("temp", "-2730", "temp_celsius:battery"),
        ("temp", "32000", "temp_celsius:battery"),
        ("temp", "2147483647", "temp_celsius:battery"),
        ("voltage_now", "4287", "battery_watts"),
        ("voltage_now", "0", "battery_watts"),
        ("current_now", "2147483647", "battery_watts"),
        ("power_now", "4294967295000", "battery_watts"),
        ("power_now", "none", "battery_watts"),
    ],
)
def test_what_cannot_be_true_is_discarded(
    kernel: FakeKernel, file: str, content: str, key: str
) -> None:
    """Report 26: htop-dev/htop#806 for the power."""
    battery(kernel)
    kernel.write(f"{FOLDER}/BAT0/{file}", content + "\n")
    assert read(kernel)[key] == "implausible"


@pytest.mark.parametrize(("temp", "celsius"), [(320, 32.0), (-105, -10.5), (1, 0.1)])
def test_the_temperature_is_in_tenths(kernel: FakeKernel, temp: int, celsius: float) -> None:
    battery(kernel, temp=temp)
    assert read(kernel)["temp_celsius:battery"] == celsius


def test_a_driver_that_knows_no_temperature_is_not_at_zero_degrees(kernel: FakeKernel) -> None:
    battery(kernel, temp=0)
    source = Battery(kernel.root, kernel)
    found = []
    for temp in (0, 312, 0, 14, 0):
        kernel.write(f"{FOLDER}/BAT0/temp", f"{temp}\n")
        found.append(shown(source.read())["temp_celsius:battery"])
    assert found == ["implausible", 31.2, "implausible", 1.4, 0.0]


# one bad file


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.ENODEV, "absent"),
        (errno.EAGAIN, "transient"),
        (errno.EINVAL, "transient"),
        (errno.ENODATA, "transient"),
        (errno.EIO, "transient"),
        (errno.ETIMEDOUT, "transient"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("capacity", {"battery_share"}),
        ("temp", {"temp_celsius:battery"}),
        ("current_now", {"battery_watts", "device_watts:battery"}),
        ("voltage_now", {"battery_watts", "device_watts:battery"}),
        ("status", {"battery_status", "battery_watts", "device_watts:battery"}),
    ],
)
def test_one_bad_file_costs_the_others_nothing(
    kernel: FakeKernel, error: int, reason: Reason, file: str, keys: set[str]
) -> None:
    battery(kernel, capacity=50, temp=250)
    before = read(kernel)
    kernel.faults[f"{FOLDER}/BAT0/{file}"] = error
    assert read(kernel) == {**before, **dict.fromkeys(keys, reason)}


# what is no battery of the device


def test_chargers_ports_and_the_battery_of_a_mouse_are_left_out(kernel: FakeKernel) -> None:
    flows = {"voltage_now": 20000000, "current_now": 3000000}
    supply(kernel, "AC", "Mains", online=1)
    supply(kernel, "ucsi-source-psy-USBC000:001", "USB", online=1, **flows)
    supply(kernel, "usb", "USB", **flows)
    supply(kernel, "hidpp_battery_0", scope="Device", capacity=5, status="Discharging")
    assert set(read(kernel).values()) == {"absent"}
    battery(kernel, scope="System", capacity=50)
    assert read(kernel)["battery_share"] == 0.5


def test_a_battery_whose_type_is_denied_is_known_by_its_name(kernel: FakeKernel) -> None:
    battery(kernel, "battery", capacity=50)
    supply(kernel, "usb", "USB")
    for name in ("battery", "usb"):
        kernel.faults[f"{FOLDER}/{name}/type"] = errno.EACCES
    assert read(kernel)["battery_share"] == 0.5


def test_a_gauge_beside_the_battery_of_a_phone_is_not_another_one(kernel: FakeKernel) -> None:
    battery(kernel, "battery")
    battery(kernel, "maxfg")
    assert watts(kernel) == (12.0, 12.0)


@pytest.mark.parametrize("board", ["orin_nano_super", "rpi5", "x86_oddities"])
def test_a_device_without_a_battery_says_so(
    tmp_path: Path, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERMUX_VERSION", raising=False)
    kernel = recorded(board, tmp_path)
    source = Battery(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        found = shown(source.read())
        kernel.now += 1
    assert set(found.values()) == {"absent"}
    assert len(kernel.listings) + len(kernel.opens) <= 2
    assert not kernel.spawned


# several batteries


def test_a_laptop_with_two_batteries_draws_the_sum(kernel: FakeKernel) -> None:
    battery(kernel, "BAT0", power_now=8000000, capacity=40, temp=300)
    battery(kernel, "BAT1", power_now=0, status="Not charging", capacity=90)
    found = read(kernel)
    assert found["battery_share"] == 0.4
    assert found["battery_share:BAT1"] == 0.9
    assert found["temp_celsius:battery"] == 30.0
    assert found["temp_celsius:BAT1"] == "absent"
    assert found["device_watts:battery"] == 8.0
    kernel.faults[f"{FOLDER}/BAT1/power_now"] = errno.EIO
    assert read(kernel)["device_watts:battery"] == "transient", "a sum with a missing part is none"


def test_a_battery_that_is_taken_out_and_put_back(kernel: FakeKernel) -> None:
    battery(kernel, "BAT0", capacity=40)
    battery(kernel, "BAT1", capacity=90)
    source = Battery(kernel.root, kernel)
    before = shown(source.read())
    kernel.move(f"{FOLDER}/BAT0", "/sys/away")
    for _ in range(2 * int(RELIST_SOON_S)):
        kernel.now += 1
        found = shown(source.read())
        assert found["battery_share"] == found["battery_watts"] == "absent"
        assert found["battery_share:BAT1"] == 0.9
        assert found["device_watts:battery"] == "absent"
    kernel.move("/sys/away", f"{FOLDER}/BAT0")
    kernel.now += RELIST_S
    assert shown(source.read()) == before
    source.close()
    assert not kernel.open_files


def test_batteries_are_bounded(kernel: FakeKernel) -> None:
    for number in range(MOST_BATTERIES + 3):
        battery(kernel, f"BAT{number}")
    assert len(read(kernel)) == 4 * MOST_BATTERIES + 1


def test_no_file_is_touched_before_the_first_read(kernel: FakeKernel) -> None:
    battery(kernel)
    Battery(kernel.root, kernel)
    assert not kernel.opens and not kernel.listings and not kernel.spawned


# Termux


def test_a_phone_whose_folder_is_denied_asks_termux_once_a_minute(kernel: FakeKernel) -> None:
    kernel.faults[FOLDER] = errno.EACCES
    termux(kernel)
    source = Battery(kernel.root, kernel)
    source.read()
    for _ in range(2 * int(TERMUX_EVERY_S)):
        assert shown(source.read()) == {
            "battery_share": 0.87,
            "battery_status": "Discharging",
            "battery_watts": 1.648,
            "temp_celsius:battery": 31.5,
            "device_watts:battery": "denied",
        }, "the device's power is not a minute old"
        kernel.now += 1
    assert kernel.spawned == [(PROGRAM,)] * 2
    assert kernel.listings == [FOLDER]
    source.close()


def test_in_termux_the_program_is_found_by_its_name(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMUX_VERSION", "0.118.0")
    kernel.write("/cmd/termux-battery-status.txt", json.dumps(PRINTED))
    source = Battery(kernel.root, kernel)
    source.read()
    assert shown(source.read())["battery_share"] == 0.87
    assert kernel.spawned == [("termux-battery-status",)]


def test_termux_without_its_add_on_is_asked_rarely(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMUX_VERSION", "0.118.0")
    kernel.faults[FOLDER] = errno.EACCES
    source = Battery(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(shown(source.read()).values()) == {"denied"}
        kernel.now += 1
    assert len(kernel.spawned) == 1


def test_a_battery_that_sysfs_tells_everything_of_is_not_asked_of_termux(
    kernel: FakeKernel,
) -> None:
    battery(kernel, "battery", capacity=50, temp=250)
    termux(kernel)
    read(kernel)
    assert not kernel.spawned


def test_a_program_that_waits_forever_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Termux:API without its app. A real child, and a clock that is moved."""

    class Clock(Kernel):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    program = tmp_path / "bin/termux-battery-status"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $$ > $0.pid\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("TERMUX_VERSION", "0.118.0")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    kernel = Clock()
    source = Battery(tmp_path, kernel)
    written = tmp_path / "bin/termux-battery-status.pid"
    source.read()
    until(lambda: written.exists() and written.read_text().endswith("\n"))
    pid = int(written.read_text())
    kernel.now += TERMUX_DEADLINE_S + 1
    assert set(shown(source.read()).values()) == {"absent"}
    assert not kernel.process_exists(pid)
    source.close()


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"status": "NOT_CHARGING"}, "battery_status", "Not charging"),
        ({"status": "FULL"}, "battery_status", "Full"),
        ({"status": "CHARGING"}, "battery_watts", -1.648),
        ({"status": "UNKNOWN"}, "battery_status", "unsupported"),
        ({"status": 3}, "battery_status", "unsupported"),
        ({"status": None}, "battery_status", "absent"),
        ({"current": None}, "battery_watts", "absent"),
        ({"voltage": None}, "battery_watts", "absent"),
        ({"current": 1500}, "battery_watts", 6.0),
        ({"percentage": True}, "battery_share", "implausible"),
        ({"percentage": "87"}, "battery_share", "implausible"),
        ({"percentage": 870}, "battery_share", "implausible"),
        ({"percentage": 10**400}, "battery_share", "implausible"),
        ({"temperature": float("nan")}, "temp_celsius:battery", "implausible"),
        ({"temperature": -214748364.8}, "temp_celsius:battery", "implausible"),
    ],
)
def test_members_of_what_termux_prints(
    changes: dict[str, Any], key: str, expected: float | str
) -> None:
    printed = {**PRINTED, **changes}
    kept = {name: value for name, value in printed.items() if value is not None}
    assert shown(parse_termux(json.dumps(kept).encode()))[key] == expected


@pytest.mark.parametrize(
    "printed", [b"", b"[]", b"87", b"null", b"{", b"[" * 100_000, b"\xff", b"command not found\n"]
)
def test_what_is_no_object_tells_nothing(printed: bytes) -> None:
    assert {reading.reason for reading in parse_termux(printed)} == {"implausible"}


def test_what_termux_prints_cut_anywhere_tells_nothing() -> None:
    printed = json.dumps(PRINTED, indent=2).encode() + b"\n"
    assert {reading.reason for reading in parse_termux(printed)} == {None}
    for end in range(len(printed) - 2):
        assert not any(reading.known for reading in parse_termux(printed[:end]))


# any bytes


def plausible(found: dict[str, Value | str]) -> None:
    for key, lowest, highest in (
        ("battery_share", 0, 1),
        ("battery_watts", -1000, 1000),
        ("temp_celsius:battery", -40, 150),
    ):
        value = found[key]
        assert value in REASONS if isinstance(value, str) else lowest <= value <= highest


CONTENTS = st.one_of(
    st.sampled_from(REASONS),
    st.binary(max_size=24),
    st.sampled_from([b"Charging\n", b"Discharging\n", b"Full\n"]),
    st.integers(-(10**20), 10**20).map(lambda number: b"%d\n" % number),
    st.integers(-100, 5_000_000).map(lambda number: b"%d\n" % number),
)


@given(st.lists(CONTENTS, min_size=6, max_size=6), st.booleans())
def test_any_contents_give_plausible_values_or_reasons(contents: list[Any], micro: bool) -> None:
    files = Files(*contents)
    found = shown(parse(files, in_micro=micro))
    plausible(found)
    if isinstance(files.status, str):
        assert found["battery_status"] == found["battery_watts"] == files.status


@given(
    st.one_of(
        st.binary(max_size=64),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(PRINTED)), inner)
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_anything_that_termux_prints_gives_plausible_values_or_reasons(printed: bytes) -> None:
    plausible(shown(parse_termux(printed)))


@given(st.sampled_from(["Charging", "Discharging", "Full", "Not charging"]), st.integers(0, 12))
def test_a_status_that_was_cut_is_no_other(word: str, end: int) -> None:
    whole = f"{word}\n".encode()
    content = whole[:end]
    found = shown(parse(Files(content, "absent", "absent", "absent", "absent", "absent")))
    assert found["battery_status"] == (word if content == whole else "implausible")
