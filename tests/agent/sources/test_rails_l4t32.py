"""Power rails of JetPack 4: where the driver's folders are, by release and board."""

import errno
from pathlib import Path

import pytest
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources.kit.base import Reason, Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S
from decodewatch.agent.sources.rails_l4t32 import MOST_RAILS, RailsL4t32

DRIVER = "/sys/bus/i2c/drivers/ina3221x"
NANO = f"{DRIVER}/6-0040/iio:device0"

Rail = tuple[str, int | str, int | str, int | str | None]


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def rails(kernel: FakeKernel, folder: str, *channels: Rail) -> None:
    """A chip whose channels have a name, mV, mA and mW."""
    for number, (name, volts, amps, watts) in enumerate(channels):
        kernel.write(f"{folder}/rail_name_{number}", f"{name}\n")
        kernel.write(f"{folder}/in_voltage{number}_input", f"{volts}\n")
        kernel.write(f"{folder}/in_current{number}_input", f"{amps}\n")
        if watts is not None:
            kernel.write(f"{folder}/in_power{number}_input", f"{watts}\n")


def nano(kernel: FakeKernel, folder: str = NANO) -> None:
    """What tegrastats of a Nano showed as POM_5V_IN 1022, POM_5V_GPU 0, POM_5V_CPU 204."""
    rails(
        kernel,
        folder,
        ("POM_5V_IN", 5112, 200, 1022),
        ("POM_5V_GPU", 5112, 0, 0),
        ("POM_5V_CPU", 5112, 40, 204),
    )


NANO_SHOWS = {
    "power_watts:POM_5V_IN": 1.022,
    "rail_volts:POM_5V_IN": 5.112,
    "power_watts:POM_5V_GPU": 0.0,
    "rail_volts:POM_5V_GPU": 5.112,
    "power_watts:POM_5V_CPU": 0.204,
    "rail_volts:POM_5V_CPU": 5.112,
    "device_watts:POM_5V_IN": 1.022,
}


def power(source: RailsL4t32) -> dict[str, Value | str]:
    found = shown(source.read())
    return {key: value for key, value in found.items() if not key.startswith("rail_volts")}


@pytest.mark.parametrize(
    "folder",
    [
        NANO,
        f"{DRIVER}/6-0040/iio_device",
        "/sys/devices/7000c400.i2c/i2c-1/1-0040/iio:device0",
        "/sys/devices/50000000.host1x/546c0000.i2c/i2c-6/6-0040/iio:device0",
    ],
)
def test_a_nano_wherever_its_kernel_has_the_chip(kernel: FakeKernel, folder: str) -> None:
    nano(kernel, folder)
    assert shown(RailsL4t32(kernel.root, kernel).read()) == NANO_SHOWS


def test_a_chip_that_is_shown_in_two_places_is_one(kernel: FakeKernel) -> None:
    for folder in (NANO, NANO.replace("iio:device0", "iio_device")):
        nano(kernel, folder)
    nano(kernel, "/sys/devices/50000000.host1x/546c0000.i2c/i2c-6/6-0040/iio:device0")
    assert shown(RailsL4t32(kernel.root, kernel).read()) == NANO_SHOWS


def test_values_that_carry_their_unit(kernel: FakeKernel) -> None:
    rails(kernel, NANO, ("VDD_IN", "19072 mV", "153 ma", "2918 mW"))
    assert shown(RailsL4t32(kernel.root, kernel).read()) == {
        "power_watts:VDD_IN": 2.918,
        "rail_volts:VDD_IN": 19.072,
        "device_watts:VDD_IN": 2.918,
    }


def test_an_agx_xavier_is_the_sum_of_two_chips(kernel: FakeKernel) -> None:
    rails(
        kernel,
        f"{DRIVER}/1-0040/iio:device0",
        ("GPU", 19000, 0, 0),
        ("CPU", 19000, 16, 311),
        ("SOC", 19000, 49, 932),
    )
    rails(
        kernel,
        f"{DRIVER}/1-0041/iio:device1",
        ("CV", 19000, 0, 0),
        ("VDDRQ", 19000, 32, 621),
        ("SYS5V", 5000, 296, 1482),
    )
    kernel.write(f"{DRIVER}/uevent", "")
    source = RailsL4t32(kernel.root, kernel)
    assert power(source) == {
        "power_watts:GPU": 0.0,
        "power_watts:CPU": 0.311,
        "power_watts:SOC": 0.932,
        "power_watts:CV": 0.0,
        "power_watts:VDDRQ": 0.621,
        "power_watts:SYS5V": 1.482,
        "device_watts:sum": 3.346,
    }
    kernel.faults[f"{DRIVER}/1-0041/iio:device1/in_power0_input"] = errno.EIO
    assert power(source)["device_watts:sum"] == "transient", "a sum with a missing part is none"


def test_a_tx2_has_rails_on_its_carrier_and_channels_that_nothing_is_connected_to(
    kernel: FakeKernel,
) -> None:
    rails(kernel, f"{DRIVER}/0-0040/iio:device0", ("VDD_SYS_GPU", 19000, 4, 77), ("NC", 0, 0, 0))
    rails(kernel, f"{DRIVER}/0-0041/iio:device1", ("VDD_IN", 19056, 153, 2930), ("NC", 0, 0, 0))
    assert power(RailsL4t32(kernel.root, kernel)) == {
        "power_watts:VDD_SYS_GPU": 0.077,
        "power_watts:VDD_IN": 2.93,
        "device_watts:VDD_IN": 2.93,
    }


def test_without_a_power_it_is_voltage_times_current(kernel: FakeKernel) -> None:
    rails(kernel, NANO, ("POM_5V_IN", 5000, 300, None))
    assert power(RailsL4t32(kernel.root, kernel)) == {
        "power_watts:POM_5V_IN": 1.5,
        "device_watts:POM_5V_IN": 1.5,
    }


@pytest.mark.parametrize("board", ["orin_nano_super", "agx_thor_r38", "rpi5", "x86_oddities"])
def test_another_device_is_asked_rarely(tmp_path: Path, board: str) -> None:
    kernel = recorded(board, tmp_path)
    source = RailsL4t32(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert power(source) == {"power_watts": "absent", "device_watts": "absent"}
        kernel.now += 1
    assert len(kernel.listings) <= 5


def test_a_denied_folder_is_said_and_asked_rarely(kernel: FakeKernel) -> None:
    nano(kernel)
    kernel.faults[DRIVER] = errno.EACCES
    source = RailsL4t32(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert power(source) == {"power_watts": "denied", "device_watts": "denied"}
        kernel.now += 1
    assert kernel.listings.count(DRIVER) == 1
    kernel.faults.clear()
    assert shown(source.read()) == NANO_SHOWS


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "denied"),
        (errno.EAGAIN, "transient"),
        (errno.EINVAL, "transient"),
        (errno.ENODATA, "transient"),
        (errno.EIO, "transient"),
        (errno.EOPNOTSUPP, "unsupported"),
    ],
)
def test_one_bad_rail_costs_the_others_nothing(
    kernel: FakeKernel, error: int, reason: Reason
) -> None:
    nano(kernel)
    kernel.faults[f"{NANO}/in_power0_input"] = error
    assert power(RailsL4t32(kernel.root, kernel)) == {
        "power_watts:POM_5V_IN": reason,
        "power_watts:POM_5V_GPU": 0.0,
        "power_watts:POM_5V_CPU": 0.204,
        "device_watts:POM_5V_IN": reason,
    }


def test_a_driver_that_is_bound_again_under_another_number(kernel: FakeKernel) -> None:
    nano(kernel)
    source = RailsL4t32(kernel.root, kernel)
    assert shown(source.read()) == NANO_SHOWS
    kernel.move(f"{DRIVER}/6-0040", "/sys/away")
    for _ in range(int(RELIST_S) * 2):
        kernel.now += 1
        found = power(source)
        assert set(found.values()) == {"absent"}
        assert found.keys() == {key for key in NANO_SHOWS if not key.startswith("rail_volts")}
    assert len(kernel.listings) < 20
    assert not kernel.open_files
    kernel.move("/sys/away/iio:device0", f"{DRIVER}/6-0040/iio:device3")
    kernel.now += RELIST_S
    assert shown(source.read()) == NANO_SHOWS
    source.close()
    assert not kernel.open_files


def test_a_rail_never_shows_the_value_of_the_one_that_took_its_place(kernel: FakeKernel) -> None:
    nano(kernel)
    source = RailsL4t32(kernel.root, kernel)
    source.read()
    kernel.remove(NANO)
    rails(kernel, NANO, ("VDD_OTHER", 5000, 1000, 5000))
    for _ in range(2 * int(RELIST_SOON_S)):
        kernel.now += 1
        found = power(source)
        assert found["power_watts:POM_5V_IN"] == "absent"
    assert found["power_watts:VDD_OTHER"] == 5.0


def test_a_driver_that_names_its_rails_anew_does_not_fill_the_table(kernel: FakeKernel) -> None:
    source = RailsL4t32(kernel.root, kernel)
    for number in range(MOST_RAILS):
        rails(kernel, NANO, (f"A{number}", 5000, 100, 500), (f"B{number}", 5000, 100, 500))
        kernel.now += REPROBE_S
        found = [key for key in shown(source.read()) if key.startswith("power_watts:")]
    assert len(found) == MOST_RAILS


def test_half_the_name_of_a_rail_is_no_rail(kernel: FakeKernel) -> None:
    nano(kernel)
    kernel.write(f"{NANO}/rail_name_0", "POM_5V_I")
    assert not any("POM_5V_I" in key for key in power(RailsL4t32(kernel.root, kernel)))


def test_rails_of_one_name_are_told_apart(kernel: FakeKernel) -> None:
    rails(kernel, NANO, ("VDD", 5000, 100, 500))
    rails(kernel, f"{DRIVER}/6-0041/iio:device1", ("VDD", 5000, 200, 1000))
    source = RailsL4t32(kernel.root, kernel)
    assert power(source) == {
        "power_watts:VDD": 0.5,
        "power_watts:VDD#2": 1.0,
        "device_watts": "absent",
    }


def test_no_file_is_touched_before_the_first_read(kernel: FakeKernel) -> None:
    nano(kernel)
    RailsL4t32(kernel.root, kernel)
    assert not kernel.opens and not kernel.listings


def test_a_value_that_comes_later_is_found(kernel: FakeKernel) -> None:
    nano(kernel)
    kernel.remove(f"{NANO}/in_voltage2_input")
    source = RailsL4t32(kernel.root, kernel)
    assert shown(source.read())["rail_volts:POM_5V_CPU"] == "absent"
    nano(kernel)
    kernel.now += RELIST_SOON_S
    assert shown(source.read()) == NANO_SHOWS
