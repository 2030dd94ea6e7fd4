"""CPU clocks: recorded boards, CPUs that go offline, values that cannot be true."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import FakeKernel, recorded, shown

from decodewatch.agent.sources import cpufreq
from decodewatch.agent.sources.cpufreq import (
    MOST_POLICIES,
    Cpufreq,
    mean_hertz,
    parse_residency,
    parse_word,
)
from decodewatch.agent.sources.kit.base import Value
from decodewatch.agent.sources.kit.files import RELIST_S, RELIST_SOON_S, REPROBE_S

CPUS = "/sys/devices/system/cpu"
FOLDER = f"{CPUS}/cpufreq"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def policy(kernel: FakeKernel, number: int, khz: int | str, most: int = 2_000_000) -> None:
    kernel.write(f"{FOLDER}/policy{number}/scaling_cur_freq", f"{khz}\n")
    kernel.write(f"{FOLDER}/policy{number}/scaling_max_freq", f"{most}\n")
    kernel.write(f"{FOLDER}/policy{number}/cpuinfo_max_freq", f"{most}\n")


def residency(kernel: FakeKernel, number: int, **ticks: int) -> None:
    """Write a time_in_state: `_729600=5021` is a line of it."""
    lines = "".join(f"{khz[1:]} {spent}\n" for khz, spent in ticks.items())
    kernel.write(f"{FOLDER}/policy{number}/stats/time_in_state", lines)


def mean(source: Cpufreq, number: int = 0) -> Value | str:
    return shown(source.read())[f"cpu_mean_hertz:policy{number}"]


def test_clocks_of_a_recorded_board(tmp_path: Path) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    assert shown(Cpufreq(kernel.root, kernel).read()) == {
        "cpu_hertz:policy0": 1_728_000_000,
        "cpu_max_hertz:policy0": 1_728_000_000,
        "cpu_min_hertz:policy0": 1_728_000_000,
        "cpu_hw_max_hertz:policy0": 1_728_000_000,
        "cpu_mean_hertz:policy0": "absent",
        "cpu_governor:policy0": "schedutil",
        "cpu_hertz:policy4": 1_728_000_000,
        "cpu_max_hertz:policy4": 1_728_000_000,
        "cpu_min_hertz:policy4": 1_728_000_000,
        "cpu_hw_max_hertz:policy4": 1_728_000_000,
        "cpu_mean_hertz:policy4": "absent",
        "cpu_governor:policy4": "schedutil",
    }


def test_the_clock_that_is_dangerous_to_read_is_not_read(tmp_path: Path) -> None:
    """Reading cpuinfo_cur_freq sets the kernel's idea of the clock, and logs where they differ."""
    kernel = recorded("orin_nano_super", tmp_path)
    for number in (0, 4):
        kernel.write(f"{FOLDER}/policy{number}/cpuinfo_cur_freq", "862000\n")
    Cpufreq(kernel.root, kernel).read()
    assert not any(path.endswith("cpuinfo_cur_freq") for path in kernel.opens)


def test_a_policy_that_nvpmodel_lowered_shows_its_lowest_clock(tmp_path: Path) -> None:
    kernel = recorded("agx_orin_64gb_r35", tmp_path)
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_min_hertz:policy8"] == 729_600_000
    assert found["cpu_max_hertz:policy8"] == 2_201_600_000


def test_a_phone_that_is_capped(tmp_path: Path) -> None:
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    kernel.faults.clear()
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_max_hertz:policy7"] == 1_900_800_000
    assert found["cpu_hw_max_hertz:policy7"] == 3_187_200_000


def test_a_denied_maximum_is_unknown_and_never_zero(tmp_path: Path) -> None:
    """Report 33: termux-packages#29844 and psutil#2743, where a maximum of 0 was divided by."""
    kernel = recorded("snapdragon_8plus_gen1_sm8475", tmp_path)
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_max_hertz:policy0"] == "denied"
    assert found["cpu_hw_max_hertz:policy0"] == 2_016_000_000
    assert found["cpu_hertz:policy0"] == 1_017_600_000
    assert found["cpu_max_hertz:policy4"] == 1_766_400_000


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EINVAL])
def test_a_policy_that_is_offline_is_unknown_and_never_zero(kernel: FakeKernel, error: int) -> None:
    """Report 36: psutil#2512 and #2628, where zeros of offline CPUs dragged the mean."""
    policy(kernel, 0, 1_500_000)
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.faults[f"{FOLDER}/policy4"] = error
    found = shown(source.read())
    assert found["cpu_hertz:policy4"] == "transient"
    assert found["cpu_hertz:policy0"] == 1_500_000_000
    kernel.faults.clear()
    assert shown(source.read())["cpu_hertz:policy4"] == 1_000_000_000


def test_a_policy_whose_folder_goes_and_returns(kernel: FakeKernel) -> None:
    policy(kernel, 0, 1_500_000)
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/policy4")
    for _ in range(300):
        kernel.now += 1
        found = shown(source.read())
        assert found["cpu_hertz:policy4"] == "absent"
        assert found["cpu_hertz:policy0"] == 1_500_000_000
    assert len(kernel.listings) <= 8
    policy(kernel, 4, 1_100_000)
    kernel.now += RELIST_S
    assert shown(source.read())["cpu_hertz:policy4"] == 1_100_000_000


def test_a_policy_that_comes_back_at_once_is_found_soon(kernel: FakeKernel) -> None:
    policy(kernel, 4, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.remove(f"{FOLDER}/policy4")
    policy(kernel, 4, 1_100_000)
    kernel.now += RELIST_SOON_S
    source.read()
    kernel.now += 1
    assert shown(source.read())["cpu_hertz:policy4"] == 1_100_000_000


def test_a_machine_without_cpufreq_says_so(kernel: FakeKernel) -> None:
    assert set(shown(Cpufreq(kernel.root, kernel).read()).values()) == {"absent"}


def test_a_denied_folder_is_said_as_such_and_left_alone(kernel: FakeKernel) -> None:
    kernel.faults[FOLDER] = errno.EACCES
    source = Cpufreq(kernel.root, kernel)
    for _ in range(int(REPROBE_S)):
        assert set(shown(source.read()).values()) == {"denied"}
        kernel.now += 1
    assert len(kernel.listings) == 1


def test_policies_beyond_the_bound_are_left_out(kernel: FakeKernel) -> None:
    for number in range(MOST_POLICIES + 3):
        policy(kernel, number, 1_000_000)
    source = Cpufreq(kernel.root, kernel)
    assert len(source.read()) == 6 * MOST_POLICIES
    source.close()
    assert not kernel.open_files


@pytest.mark.parametrize("khz", ["0", "<unknown>", "", "1.8", "-1728000", "999", "20000001"])
def test_what_is_no_clock_is_implausible(kernel: FakeKernel, khz: str) -> None:
    """Report 35: psutil#2049, where a clock of 1.8 stood beside a maximum of 1800."""
    policy(kernel, 0, khz)
    assert shown(Cpufreq(kernel.root, kernel).read())["cpu_hertz:policy0"] == "implausible"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOENT, "absent"),
        (errno.ENODEV, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EBUSY, "transient"),
        (errno.EINVAL, "transient"),
        (errno.EIO, "transient"),
    ],
)
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("scaling_cur_freq", "cpu_hertz"),
        ("scaling_max_freq", "cpu_max_hertz"),
        ("scaling_min_freq", "cpu_min_hertz"),
        ("cpuinfo_max_freq", "cpu_hw_max_hertz"),
        ("stats/time_in_state", "cpu_mean_hertz"),
        ("scaling_governor", "cpu_governor"),
    ],
)
def test_a_file_that_fails_costs_its_own_value_only(
    tmp_path: Path, file: str, key: str, error: int, reason: str
) -> None:
    kernel = recorded("orin_nano_super", tmp_path)
    residency(kernel, 0, _729600=100, _1728000=500)
    source = Cpufreq(kernel.root, kernel)
    source.read()
    kernel.faults[f"{FOLDER}/policy0/{file}"] = error
    residency(kernel, 0, _729600=100, _1728000=600)
    found = shown(source.read())
    assert found[f"{key}:policy0"] == reason
    others = {name for name in found if name.endswith(":policy0")} - {f"{key}:policy0"}
    assert all(found[name] in (1_728_000_000, "schedutil") for name in others)
    assert len(others) == 5


# the mean clock


def test_the_mean_clock_is_weighted_by_the_time_at_each(kernel: FakeKernel) -> None:
    policy(kernel, 0, 1_500_000)
    source = Cpufreq(kernel.root, kernel)
    found = []
    for low, high in ((1000, 2000), (1075, 2025), (1075, 2125), (1175, 2125)):
        residency(kernel, 0, _500000=low, _1500000=high)
        found.append(mean(source))
    assert found == ["transient", 750_000_000, 1_500_000_000, 500_000_000]


def test_a_mean_clock_is_unknown_where_no_time_was_counted(kernel: FakeKernel) -> None:
    """Report 36: the CPUs of the policy are offline, which is not a clock of 0."""
    policy(kernel, 4, 1_500_000)
    residency(kernel, 4, _500000=10, _1500000=20)
    source = Cpufreq(kernel.root, kernel)
    mean(source, 4)
    assert mean(source, 4) == "transient"
    residency(kernel, 4, _500000=10, _1500000=30)
    assert mean(source, 4) == 1_500_000_000


def test_a_mean_clock_begins_anew_when_somebody_resets_the_counters(kernel: FakeKernel) -> None:
    policy(kernel, 0, 1_500_000)
    source = Cpufreq(kernel.root, kernel)
    found = []
    for low, high in ((1000, 2000), (1100, 2000), (5, 7), (5, 107)):
        residency(kernel, 0, _500000=low, _1500000=high)
        found.append(mean(source))
    assert found == ["transient", 500_000_000, "transient", 1_500_000_000]


def test_a_mean_clock_is_unknown_while_the_clocks_are_others(kernel: FakeKernel) -> None:
    """A boost clock came: how long it had run before is not known."""
    policy(kernel, 0, 1_500_000)
    source = Cpufreq(kernel.root, kernel)
    residency(kernel, 0, _500000=10, _1500000=20)
    mean(source)
    residency(kernel, 0, _500000=10, _1500000=20, _2000000=900)
    assert mean(source) == "transient"
    residency(kernel, 0, _500000=10, _1500000=20, _2000000=1000)
    assert mean(source) == 2_000_000_000


def test_a_mean_clock_across_a_failed_read_is_left_out(kernel: FakeKernel) -> None:
    policy(kernel, 0, 1_500_000)
    source = Cpufreq(kernel.root, kernel)
    residency(kernel, 0, _500000=10, _1500000=20)
    mean(source)
    kernel.faults[FOLDER] = errno.EBUSY
    mean(source)
    kernel.faults.clear()
    residency(kernel, 0, _500000=20, _1500000=20)
    assert mean(source) == "transient"
    residency(kernel, 0, _500000=30, _1500000=20)
    assert mean(source) == 500_000_000


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "500000 10\n1500000 2",
        "500000\n",
        "500000 10 3\n",
        "0 10\n",
        "500000 -1\n",
        "a b\n",
    ],
)
def test_a_time_in_state_that_is_not_whole_gives_no_mean(kernel: FakeKernel, content: str) -> None:
    policy(kernel, 0, 1_500_000)
    kernel.write(f"{FOLDER}/policy0/stats/time_in_state", content)
    source = Cpufreq(kernel.root, kernel)
    assert [mean(source), mean(source)] == ["implausible", "implausible"]


# kernels without a folder a policy


def cpu(kernel: FakeKernel, number: int, group: str, khz: int, file: str = "related_cpus") -> None:
    kernel.write(f"{CPUS}/cpu{number}/cpufreq/scaling_cur_freq", f"{khz}\n")
    kernel.write(f"{CPUS}/cpu{number}/cpufreq/{file}", f"{group}\n")


def clocks(source: Cpufreq) -> dict[str, Value | str]:
    found = shown(source.read()).items()
    return {key.removeprefix("cpu_hertz:"): value for key, value in found if "cpu_hertz:" in key}


@pytest.mark.parametrize("file", ["related_cpus", "affected_cpus"])
def test_an_old_kernel_has_the_files_in_a_folder_a_cpu(kernel: FakeKernel, file: str) -> None:
    for number in range(6):
        big = number in (1, 2)
        cpu(kernel, number, "1 2" if big else "0 3 4 5", 2_000_000 if big else 1_400_000, file)
    kernel.write(f"{CPUS}/cpuidle/current_driver", "none\n")
    source = Cpufreq(kernel.root, kernel)
    assert clocks(source) == {"policy0": 1_400_000_000, "policy1": 2_000_000_000}


def test_an_old_kernel_that_does_not_say_which_cpus_share_a_clock(kernel: FakeKernel) -> None:
    for number in range(2):
        kernel.write(f"{CPUS}/cpu{number}/cpufreq/scaling_cur_freq", "1400000\n")
    assert clocks(Cpufreq(kernel.root, kernel)) == {
        "policy0": 1_400_000_000,
        "policy1": 1_400_000_000,
    }


def test_a_policy_of_an_old_kernel_outlives_its_first_cpu(kernel: FakeKernel) -> None:
    for number in range(4):
        cpu(kernel, number, "0 1 2 3", 1_000_000 + number)
    source = Cpufreq(kernel.root, kernel)
    assert clocks(source) == {"policy0": 1_000_000_000}
    kernel.remove(f"{CPUS}/cpu0/cpufreq")
    kernel.now += RELIST_SOON_S
    assert clocks(source) == {"policy0": "absent"}
    kernel.now += 1
    assert clocks(source) == {"policy0": 1_000_001_000}
    for number in range(1, 4):
        kernel.remove(f"{CPUS}/cpu{number}/cpufreq")
    kernel.now += RELIST_S
    assert clocks(source) == {"policy0": "absent"}
    cpu(kernel, 2, "0 1 2 3", 1_200_000)
    kernel.now += RELIST_S
    assert clocks(source) == {"policy0": 1_200_000_000}
    source.close()
    assert not kernel.open_files


def test_a_machine_without_cpufreq_is_listed_once_a_minute(kernel: FakeKernel) -> None:
    for number in range(4):
        kernel.write(f"{CPUS}/cpu{number}/online", "1\n")
    kernel.write(f"{FOLDER}/boost", "1\n")
    source = Cpufreq(kernel.root, kernel)
    for _ in range(int(RELIST_S) * 5):
        assert set(shown(source.read()).values()) == {"absent"}
        kernel.now += 1
    assert len(kernel.listings) <= 5 * (2 + 4)


# what the files can hold


@pytest.mark.parametrize(
    ("content", "shows"),
    [("schedutil\n", "schedutil"), ("power\xffsave\n", "power??save"), ("sche", "implausible"),
     ("\n", "implausible"), ("", "implausible")],
)  # fmt: skip
def test_a_governor_is_a_whole_printable_word(kernel: FakeKernel, content: str, shows: str) -> None:
    policy(kernel, 0, 1_500_000)
    kernel.write(f"{FOLDER}/policy0/scaling_governor", content)
    found = shown(Cpufreq(kernel.root, kernel).read())
    assert found["cpu_governor:policy0"] == shows


@given(st.binary(max_size=24))
def test_any_bytes_give_a_clock_or_none(content: bytes) -> None:
    value = cpufreq.parse(content)
    assert value is None or 10**6 <= value <= 20 * 10**9


@given(st.integers(1_000, 20_000_000))
def test_a_clock_cut_anywhere_is_not_taken_for_another(khz: int) -> None:
    content = b"%d\n" % khz
    assert cpufreq.parse(content) == khz * 1000
    assert all(cpufreq.parse(content[:end]) is None for end in range(len(content)))


@given(st.text("abc_\n", max_size=12).map(str.encode) | st.binary(max_size=12))
def test_any_bytes_give_a_whole_word_or_none(content: bytes) -> None:
    word = parse_word(content)
    assert word is None or content.endswith(b"\n")


residencies = st.dictionaries(st.integers(1_000, 20_000_000), st.integers(0, 2**63), max_size=40)


def written(ticks: dict[int, int]) -> bytes:
    return b"".join(b"%d %d\n" % line for line in ticks.items())


@given(st.binary(max_size=64), residencies)
def test_any_bytes_give_residencies_or_none(content: bytes, before: dict[int, int]) -> None:
    now = parse_residency(content)
    if now is not None:
        value = mean_hertz(before, now)
        assert value is None or min(now) * 1000 <= value <= max(now) * 1000


@given(residencies.filter(bool), st.data())
def test_a_time_in_state_cut_anywhere_gives_no_other_mean(
    now: dict[int, int], data: st.DataObject
) -> None:
    before = {khz: data.draw(st.integers(0, ticks)) for khz, ticks in now.items()}
    whole = written(now)
    assert parse_residency(whole) == now
    end = data.draw(st.integers(0, len(whole) - 1))
    cut = parse_residency(whole[:end])
    assert cut is None or mean_hertz(before, cut) is None


@given(residencies.filter(bool), st.data())
def test_a_mean_lies_between_the_clocks_that_ran(now: dict[int, int], data: st.DataObject) -> None:
    before = {khz: data.draw(st.integers(0, ticks)) for khz, ticks in now.items()}
    ran = [khz * 1000 for khz, ticks in now.items() if ticks > before[khz]]
    value = mean_hertz(before, now)
    if ran:
        assert value is not None
        assert min(ran) <= value <= max(ran)
    else:
        assert value is None
