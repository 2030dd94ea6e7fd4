"""tegrastats: lines of every board and release, cut and joined, and a child that prints them."""

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.children import FastKernel, program, runs
from support.devices import FakeKernel, shown
from support.waiting import until

from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import open_sources
from decodewatch.agent.sources.kit.base import Reading, Value
from decodewatch.agent.sources.kit.files import REPROBE_S
from decodewatch.agent.sources.kit.kernel import Kernel
from decodewatch.agent.sources.tegrastats import (
    LINES_TO_TRY,
    MOST_CPUS,
    MOST_TOKENS,
    REST_S,
    STALE_S,
    Tegrastats,
    parse,
    records,
    tokens,
)
from decodewatch.shared.sensors import is_junction

LOGS = Path(__file__).parents[2] / "data" / "tegrastats"
ALL = {path.name: path.read_bytes() for path in sorted(LOGS.glob("*.txt"))}
MIB = 1 << 20
MHZ = 1_000_000


def found(line: str, *, end: str = "\n") -> dict[str, Value | str]:
    """What the only record of a line shows."""
    (record,) = parse((line + end).encode())
    return shown(record)


def log(name: str) -> list[dict[str, Value | str]]:
    return [shown(record) for record in parse(ALL[name])]


def minimal(rest: str) -> str:
    return f"RAM 6712/7620MB (lfb 12x4MB) CPU [38%@1497,2%@729] {rest}"


# every log


@pytest.mark.parametrize("name", ALL)
def test_every_token_of_every_log_is_known(name: str) -> None:
    unknown = {
        token
        for record in records(ALL[name])
        for token in tokens(record)
        if isinstance(token, bytes)
    }
    assert not unknown


def test_every_record_of_every_log_is_read() -> None:
    with (LOGS / "index.tsv").open() as table:
        rows = {row["file"]: row["lines"] for row in csv.DictReader(table, delimiter="\t")}
    assert rows.keys() == ALL.keys()
    for name, lines in rows.items():
        joined = 1 if "joined" in name else 0
        assert len(log(name)) == int(lines.split()[0]) + joined, name


@pytest.mark.parametrize("name", ALL)
def test_whatever_is_known_is_plausible(name: str) -> None:
    for record in parse(ALL[name]):
        check(record)


def check(record: list[Reading]) -> None:
    """What holds of every record, whatever was in it."""
    keys = [reading.key for reading in record]
    assert len(set(keys)) == len(keys)
    for reading in record:
        if reading.value is None:
            continue
        unit = reading.measurement.unit
        if unit == "share":
            assert 0 <= reading.value <= 1
        elif unit == "celsius":
            assert -40 < reading.value < 150
        elif unit == "hertz":
            assert 0 <= reading.value <= 20_000 * MHZ
        elif unit == "watts":
            assert 0 <= reading.value < 100_000
        else:
            assert reading.value >= 0


# boards


def test_a_nano_as_root() -> None:
    first = log("nano_4gb_l4t32.x_jp4.x_mixed.txt")[0]
    assert first == {
        "mem_total_bytes": 3964 * MIB,
        "mem_used_bytes": 534 * MIB,
        "mem_largest_free_blocks": 98,
        "mem_largest_free_block_bytes": 4 * MIB,
        "swap_total_bytes": 1982 * MIB,
        "swap_used_bytes": 5 * MIB,
        **{f"cpu_busy_share:cpu{n}": busy for n, busy in enumerate((0.16, 0.09, 0.0, 0.0))},
        **{f"cpu_hertz:cpu{n}": 204 * MHZ for n in range(4)},
        "dram_busy_share": 0.0,
        "dram_hertz": 204 * MHZ,
        "gpu_busy_share": 0.0,
        "gpu_hertz": 76 * MHZ,
        "engine_hertz:APE": 25 * MHZ,
        "temp_celsius:PLL": 34.0,
        "temp_celsius:CPU": 36.5,
        "temp_celsius:PMIC": 100.0,
        "temp_celsius:GPU": 36.0,
        "temp_celsius:AO": 39.5,
        "temp_celsius:thermal": 36.25,
        "power_watts:POM_5V_IN": 1.022,
        "power_watts:POM_5V_GPU": 0.0,
        "power_watts:POM_5V_CPU": 0.204,
        "device_watts:POM_5V_IN": 1.022,
    }


def test_users_other_than_root_see_a_zero_that_is_none() -> None:
    """A Nano whose GPU is busy at 99 % says `EMC_FREQ 0%`, without a clock."""
    busy = log("nano_4gb_l4t32.x_jp4.x_mixed.txt")[5]
    assert busy["gpu_busy_share"] == 0.99
    assert busy["gpu_hertz"] == "denied"
    assert busy["dram_busy_share"] == busy["dram_hertz"] == "denied"


def test_without_a_token_for_the_memory_it_is_unknown() -> None:
    """Report 5: DataDog/datadog-agent PR#38102, an Orin whose user is not root."""
    record = found("CPU [0%@2201] GR3D_FREQ 0% cpu@42C")
    assert record["dram_busy_share"] == record["dram_hertz"] == "absent"
    assert record["gpu_busy_share"] == 0.0
    assert record["temp_celsius:cpu"] == 42.0
    for shows in log("orin_nano_8gb_l4t39.2_jp7.2_nonroot.txt"):
        assert shows["dram_busy_share"] == "absent"
        assert shows["gpu_busy_share"] == 0.33


def test_clocks_of_several_clusters() -> None:
    """Report 1: rbonghi/jetson_stats PR#894. The pattern matched half, and the load stayed 0."""
    record = found(minimal("GR3D_FREQ 12%@[1300,1300]"))
    assert record["gpu_busy_share"] == 0.12
    assert record["gpu_hertz"] == 1300 * MHZ
    assert record["gpu_hertz:gpc1"] == 1300 * MHZ
    assert found(minimal("GR3D_FREQ 0%@[306,305]"))["gpu_hertz"] == 306 * MHZ
    assert found(minimal("GR3D_FREQ 0%@[305]"))["gpu_hertz"] == 305 * MHZ


def test_a_thor_that_shows_no_load_of_its_gpu() -> None:
    """Report 2: DataDog/datadog-agent#52046. The whole check failed on a Thor."""
    record = found(
        minimal("EMC_FREQ 0%@665 GR3D_FREQ @[0,0,0] NVENC0_FREQ @0 VIN_SYS_5V0 5635mW/5635mW")
    )
    assert record["dram_busy_share"] == 0.0
    assert record["dram_hertz"] == 665 * MHZ
    assert record["gpu_busy_share"] == "unsupported"
    assert [record[f"gpu_hertz:gpc{number}"] for number in range(3)] == [0, 0, 0]
    assert record["engine_hertz:NVENC0"] == 0
    assert record["power_watts:VIN_SYS_5V0"] == 5.635


def test_the_second_cluster_is_no_part_of_the_load() -> None:
    """Report 3: DataDog/datadog-agent#17678."""
    (record,) = log("orin_nx_16gb_l4t35.3.1_jp5.1.1.txt")
    assert record["gpu_busy_share"] == 0.0
    assert record["gpu_hertz"] == 611 * MHZ
    assert record["engine_busy_share:GR3D2"] == 0.0
    assert record["power_watts:VDD_IN"] == 5.299
    assert found(minimal("GR3D_FREQ 90%@611 GR3D2_FREQ 0%@0"))["gpu_busy_share"] == 0.9


def test_columns_that_are_padded() -> None:
    """Report 4: DataDog/datadog-agent PR#34840."""
    record = log("agx_orin_32gb_l4t36_jp6_padded.txt")[0]
    assert record["gpu_busy_share"] == 0.0
    assert record["gpu_hertz"] == 305 * MHZ
    off = {key for key, value in record.items() if key.startswith("engine_hertz:") and value == 0}
    assert {"engine_hertz:NVENC", "engine_hertz:NVDEC", "engine_hertz:PVA0"} <= off
    assert not any(key.startswith("engine_busy_share") for key in record)


def test_rails_without_a_unit() -> None:
    """Report 6: henrygd/beszel PR#1631, before JetPack 5."""
    record = found(minimal("GPU@39.5C VDD_SYS_GPU 182/182"))
    assert record["temp_celsius:GPU"] == 39.5
    assert record["power_watts:VDD_SYS_GPU"] == 0.182


def test_a_thor_without_a_token_for_its_gpu() -> None:
    """Report 7: wendylabsinc/WendyOS PR#1316. The parser waited for the GPU's load."""
    record = found(minimal("gpu@62.906C/63.1C VDD_GPU 5145mW/4948mW"))
    assert record["temp_celsius:gpu"] == 62.906
    assert record["power_watts:VDD_GPU"] == 5.145
    assert record["gpu_busy_share"] == record["gpu_hertz"] == "absent"


def test_running_out_of_memory() -> None:
    """Report 43: the blocks shrink first; then memory and swap are full, and a process is gone."""
    episode = log("orin_nx_16gb_l4t36_jp6_nonroot_oom.txt")
    used = [record["mem_used_bytes"] for record in episode]
    swap = [record["swap_used_bytes"] for record in episode]
    blocks = [
        (record["mem_largest_free_blocks"], record["mem_largest_free_block_bytes"])
        for record in episode
    ]
    assert blocks[0] == (54, 4 * MIB)
    assert blocks[3] == (31, MIB), "before swap begins to fill"
    assert swap[3] == 3316 * MIB
    assert (used[6], swap[6]) == (15451 * MIB, 7822 * MIB)
    assert episode[6]["mem_total_bytes"] == 15656 * MIB
    assert (used[8], swap[8]) == (4299 * MIB, 3362 * MIB)


def test_the_oldest_board_has_one_clock_for_all_its_cpus() -> None:
    (record,) = log("tk1_l4t21.txt")
    assert [record[f"cpu_hertz:cpu{number}"] for number in range(4)] == [2218 * MHZ] * 4
    assert record["dram_busy_share"] == 0.03
    assert record["dram_hertz"] == 924 * MHZ
    assert record["gpu_hertz"] == 252 * MHZ


def test_cpus_that_are_off_keep_their_places() -> None:
    (record,) = log("orin_nx_16gb_l4t35.3.1_jp5.1.1.txt")
    assert record["cpu_busy_share:cpu3"] == 0.16
    assert [record[f"cpu_busy_share:cpu{number}"] for number in range(4, 8)] == ["absent"] * 4
    last = log("agx_thor_l4t39.2_jp7.2.txt")[2]
    assert last["cpu_busy_share:cpu2"] == "absent"
    assert last["cpu_hertz:cpu3"] == 2601 * MHZ


def test_sensors_that_are_off() -> None:
    """NVIDIA's -256 C is one whose part of the chip sleeps; on L4T 36 the token is missing."""
    record = log("agx_orin_l4t35_jp5.txt")[1]
    assert record["temp_celsius:GPU"] == record["temp_celsius:CV0"] == "implausible"
    assert record["temp_celsius:tj"] == 42.593
    assert "temp_celsius:gpu" not in log("agx_orin_64gb_l4t36.4.4_jp6.2.1_root.txt")[0]


@pytest.mark.parametrize("celsius", ["-1000", "-256", "-40", "150", "999999999"])
def test_a_temperature_that_cannot_be_true(celsius: str) -> None:
    assert found(minimal(f"GPU@{celsius}C"))["temp_celsius:GPU"] == "implausible"


def test_constants_and_limits_are_no_heat_of_the_chip() -> None:
    hottest = {
        label: value
        for record in log("tx2_8gb_l4t32.4_jp4.4.txt")[:1]
        for key, value in record.items()
        if key.startswith("temp_celsius:") and is_junction(label := key.partition(":")[2])
    }
    assert "PMIC" not in hottest and "Tboard" not in hottest and "Tdiode" not in hottest
    assert max(value for value in hottest.values() if not isinstance(value, str)) == 34.5


def test_a_thor_prints_each_power_and_temperature_with_its_maximum() -> None:
    record = log("agx_thor_l4t39.2_jp7.2.txt")[1]
    assert record["power_watts:VDD_CPU_SOC_MSS"] == 7.953, "now; not the mean, not the maximum"
    assert record["temp_celsius:cpu"] == 34.312
    assert record["engine_busy_share:VIC"] == 0.59
    assert record["engine_hertz:VIC"] == 423 * MHZ


def test_a_clock_of_the_memory_without_its_load() -> None:
    record = log("agx_thor_l4t39.2_jp7.2.txt")[3]
    assert record["dram_hertz"] == 4266 * MHZ
    assert record["dram_busy_share"] == "unsupported"


@pytest.mark.parametrize(
    ("name", "place", "rail", "watts"),
    [
        ("nano_4gb_l4t32.1_jp4.2_root.txt", 0, "POM_5V_IN", 0.877),
        ("tx1_l4t28_32.txt", 0, "VDD_IN", 2.532),
        ("tx2_8gb_l4t32.4_jp4.4.txt", 0, "VDD_IN", 1.84),
        ("xavier_nx_l4t32_jp4.txt", 0, "VDD_IN", 4.067),
        ("orin_nano_super_l4t36.4.3_jp6.2_root.txt", 2, "VDD_IN", 16.321),
        ("agx_orin_l4t35_jp5.txt", 1, "sum", 2.399 + 0.4 + 4.032 + 0.301),
        ("agx_orin_64gb_l4t36.4.4_jp6.2.1_root.txt", 0, "sum", 2.412 + 1.607 + 4.707),
        ("agx_thor_l4t39.2_jp7.2.txt", 0, "sum", 4.925 + 8.71 + 6.767),
        ("agx_thor_l4t39.2_jp7.2.txt", 2, "VIN", 124.486),
        ("tx2_8gb_l4t28_root.txt", 1, "VDD_IN", 1.776),
        ("agx_xavier_16gb_l4t32_nonroot.txt", 0, "sum", 0.463 + 0.618 + 2.936 + 0.309 + 3.306),
    ],
)
def test_the_power_of_the_whole_module(name: str, place: int, rail: str, watts: float) -> None:
    assert log(name)[place][f"device_watts:{rail}"] == pytest.approx(watts)


def test_an_agx_xavier_has_rails_named_like_its_engines() -> None:
    record = found(
        "RAM 721/31927MB (lfb 7291x4MB) SWAP 0/15963MB (cached 0MB) "
        "CPU [2%@1190,0%@1190,off,off] EMC_FREQ 0%@665 GR3D_FREQ 0%@318 APE 150 MTS fg 0% bg 0% "
        "AO@37.5C GPU@37.5C Tdiode@40C PMIC@100C thermal@36.9C "
        "GPU 0/0 CPU 311/311 SOC 932/932 CV 0/0 VDDRQ 621/621 SYS5V 1482/1482"
    )
    assert record["power_watts:GPU"] == 0.0
    assert record["power_watts:CPU"] == 0.311
    assert record["temp_celsius:GPU"] == 37.5
    assert record["device_watts:sum"] == pytest.approx(3.346)
    assert record["cpu_busy_share:cpu1"] == 0.0


def test_channels_that_no_rail_is_connected_to_are_left_out() -> None:
    assert not any("NC" in key for key in log("agx_orin_l4t35_jp5.txt")[1])


def test_two_of_one_name_are_told_apart() -> None:
    record = found(minimal("VDD_SOC 1mW/1mW VDD_SOC 2mW/2mW cpu@40C cpu@41C"))
    assert record["power_watts:VDD_SOC"] == 0.001
    assert record["power_watts:VDD_SOC#2"] == 0.002
    assert record["temp_celsius:cpu#2"] == 41.0


def test_numbers_that_cannot_be_true() -> None:
    record = found(
        "RAM 7621/7620MB CPU [101%@1497,2%@-1,x] EMC_FREQ 7%@0 GR3D_FREQ 250%@99999 "
        "VDD_IN 4294967mW/1mW"
    )
    for key in (
        "mem_used_bytes",
        "cpu_busy_share:cpu0",
        "cpu_hertz:cpu1",
        "cpu_busy_share:cpu2",
        "dram_busy_share",
        "dram_hertz",
        "gpu_busy_share",
        "gpu_hertz",
        "power_watts:VDD_IN",
        "device_watts:VDD_IN",
    ):
        assert record[key] == "implausible", key
    assert record["cpu_busy_share:cpu1"] == 0.02
    assert record["mem_largest_free_blocks"] == "absent"


def test_a_sum_with_a_part_that_is_unknown_is_unknown() -> None:
    rails = "VDD_GPU_SOC 1mW/1mW VDD_CPU_CV 4294967mW/1mW VIN_SYS_5V0 1mW/1mW"
    assert found(minimal(rails))["device_watts:sum"] == "implausible"


def test_the_tokens_and_the_cpus_of_a_record_are_bounded() -> None:
    many = " ".join(f"rail{number} 1mW/1mW" for number in range(2 * MOST_TOKENS))
    cpus = ",".join(["1%@729"] * 2 * MOST_CPUS)
    record = found(f"RAM 1/2MB CPU [{cpus}] {many}")
    assert sum(key.startswith("power_watts:") for key in record) == MOST_TOKENS - 2
    assert sum(key.startswith("cpu_hertz:") for key in record) == MOST_CPUS


# where records begin and end


def test_joined_records_and_one_that_lost_its_head() -> None:
    first, second = log("orin_nx_16gb_l4t36_joined_and_truncated.txt")
    assert first["mem_used_bytes"] == 6567 * MIB
    assert second["mem_used_bytes"] == 6238 * MIB
    assert first["device_watts:VDD_IN"] == 12.673
    assert second["power_watts:VDD_SOC"] == 2.175


@pytest.mark.parametrize("between", [b"", b" ", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("name", [name for name in ALL if "joined" not in name])
def test_however_two_records_are_joined_there_are_two(name: str, between: bytes) -> None:
    line = next(line for line in ALL[name].splitlines() if b"RAM " in line[:24])
    (alone,) = parse(line + b"\n")
    first, second = parse(line + between + line + b"\n")
    assert shown(second) == shown(alone)
    if between:
        assert shown(first) == shown(alone)
    else:  # its last number may have been cut
        assert set(known(first)) <= set(known(alone))


@pytest.mark.parametrize("name", ALL)
def test_a_log_that_was_coloured_is_read_as_it_was(name: str) -> None:
    for token in (b"RAM", b"CPU", b"@", b"mW"):
        coloured = ALL[name].replace(token, b"\x1b[01;31m\x1b[K" + token + b"\x1b[m\x1b[K")
        assert parse(coloured) == parse(ALL[name])


@pytest.mark.parametrize(
    "head",
    ["[sudo] password for nvidia: ", "23.07.2026 15:29:27 ", "2026-07-23T15:29:27+02:00 ",
     "07/23/2026 03:29:27 PM ", "jeu. 23 juil. 2026 15:29:27 ", "2026年07月23日 15:29:27 ",
     "Jul 23 15:29:27 nano tegrastats[99]: ", "1784820567 ", "\ufeff"],
)  # fmt: skip
def test_what_others_put_in_front_is_no_part_of_a_record(head: str) -> None:
    line = ALL["tx2_8gb_l4t28_root.txt"].splitlines(keepends=True)[0]
    for end in (b"\n", b"\r\n"):
        ended = line.rstrip() + end
        assert parse(head.encode() + ended) == parse(line)


def test_a_date_above_the_log_is_no_record() -> None:
    assert parse(b"Tue Jan 26 18:22:31 UTC 2021\n") == []
    record = found("Tue Jan 26 18:22:31 UTC 2021 RAM 896/7859MB (lfb 26x4MB)")
    assert not any(key.startswith("engine_") for key in record)


def test_the_order_of_the_tokens_does_not_matter() -> None:
    line = ALL["agx_orin_64gb_l4t36.4.4_jp6.2.1_root.txt"].splitlines()[0].decode()
    time_of_it, rest = line[:19], line[20:]
    pieces = re.split(r" (?=[A-Z]\w* \[|[A-Z]\w* (?:off|\d)|[a-z]\w*@)", rest)
    assert len(pieces) > 20
    random.Random(1).shuffle(pieces)
    assert found(" ".join([time_of_it, *pieces])) == found(line)


def test_a_head_in_front_of_a_record_is_not_a_part_of_it() -> None:
    record = found("D_IN 8133/3098 VDD_SOC 2079/1930 " + minimal("VDD_SOC 1/1"))
    assert record["power_watts:VDD_SOC"] == 0.001
    assert "power_watts:D_IN" not in record


@pytest.mark.parametrize("name", ALL)
def test_a_record_that_was_cut_anywhere_shows_no_number_that_it_did_not_have(name: str) -> None:
    for line in ALL[name].splitlines()[:3]:
        whole: dict[str, set[Value]] = {}
        for record in parse(line + b"\n"):
            for key, value in known(record):
                whole.setdefault(key, set()).add(value)
        for end in range(len(line)):
            for record in parse(line[:end]):
                for key, value in known(record):
                    assert value in whole[key], (line[:end], key)


def known(record: list[Reading]) -> list[tuple[str, Value]]:
    return [(reading.key, reading.value) for reading in record if reading.value is not None]


LINES = [line for content in ALL.values() for line in content.splitlines()]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_however_mangled_raise_or_show_what_cannot_be(data: st.DataObject) -> None:
    line = bytearray(data.draw(st.sampled_from(LINES)))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(line)))
        until_ = data.draw(st.integers(at, min(len(line), at + 30)))
        line[at:until_] = data.draw(
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b"RAM ", b"\n", b"@", b"%", b"-256C"])
            )
        )
    for record in parse(bytes(line)):
        check(record)


@given(st.binary(max_size=300))
def test_other_bytes_are_no_record(content: bytes) -> None:
    for record in parse(content):
        check(record)
        assert b"RAM" in content or b"CPU" in content or b"cpu" in content


def test_a_long_line_of_anything_is_read_in_no_time() -> None:
    began = time.perf_counter()
    for filler in (b"1", b"a", b"9/", b"@", b"[1,", b"x 1 ", b" "):
        parse(b"RAM 1/2MB CPU [" + filler * (60_000 // len(filler)) + b"\n")
    assert time.perf_counter() - began < 2


# the child


def board(root: Path, compatible: str = "nvidia,p3767-0005\0nvidia,tegra234\0") -> None:
    file = root / "proc/device-tree/compatible"
    file.parent.mkdir(parents=True)
    file.write_bytes(compatible.encode())


RECORD = (
    "10-08-2026 04:35:02 RAM 6712/7620MB (lfb 12x4MB) SWAP 369/3810MB (cached 8MB) "
    "CPU [38%@1497,2%@729,1%@729,0%@729,1%@729,0%@729] EMC_FREQ 61%@2133 GR3D_FREQ 99%@[612] "
    "APE 200 cpu@57.125C tj@58.312C VDD_IN 16321mW/11204mW"
)
VALUES = {
    "dram_busy_share": 0.61,
    "dram_hertz": 2133 * MHZ,
    "gpu_busy_share": 0.99,
    "gpu_hertz": 612 * MHZ,
    "mem_largest_free_blocks": 12,
    "mem_largest_free_block_bytes": 4 * MIB,
}
FIELDS = tuple(row.name for row in Tegrastats.measurements)


def nothing(reason: str) -> dict[str, Value | str]:
    return dict.fromkeys(FIELDS, reason)


@pytest.fixture
def jetson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a Jetson; what is put into `bin` is in PATH."""
    board(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


def tool(root: Path, script: str) -> None:
    program(root / "bin", "tegrastats", f'test "$*" = "--interval 1000" || exit 64\n{script}')


def shows(source: Tegrastats, expected: Mapping[str, Value | str]) -> None:
    """Wait until the source shows this."""
    until(lambda: shown(source.read()) == expected, what=str(expected))


def test_the_child_is_read(jetson: Path) -> None:
    tool(jetson, f"while sleep 0.02; do echo '{RECORD}'; done")
    kernel = FastKernel()
    source = Tegrastats(jetson, kernel)
    shows(source, VALUES)
    source.close()
    assert not runs(kernel.children[0].pid)


def test_a_child_that_prints_nothing(jetson: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Report 9: beszel#895."""
    tool(jetson, "exec sleep 60")
    kernel = FastKernel()
    source = Tegrastats(jetson, kernel)
    slowest = 0.0

    def ended() -> bool:
        nonlocal slowest
        began = time.monotonic()
        assert shown(source.read()) == nothing("transient")
        slowest = max(slowest, time.monotonic() - began)
        return not runs(kernel.children[0].pid)

    until(ended)
    assert slowest < 0.5
    assert len(caplog.records) == 1
    source.close()


def test_a_child_that_falls_silent_leaves_no_old_values(
    jetson: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tool(jetson, f"echo '{RECORD}'; exec sleep 60")
    kernel = FastKernel()
    source = Tegrastats(jetson, kernel)
    shows(source, VALUES)
    began = kernel.monotonic()
    shows(source, nothing("transient"))
    assert kernel.monotonic() - began <= STALE_S + 10
    until(lambda: (source.read(), caplog.records)[1])
    assert len(caplog.records) == 1
    source.close()


def test_a_child_that_is_killed(jetson: Path, caplog: pytest.LogCaptureFixture) -> None:
    tool(jetson, f"while sleep 0.02; do echo '{RECORD}'; done")
    kernel = FastKernel()
    source = Tegrastats(jetson, kernel)
    shows(source, VALUES)
    os.kill(kernel.children[0].pid, signal.SIGKILL)
    shows(source, nothing("transient"))
    shows(source, VALUES)
    assert len(kernel.children) == 2
    assert ["status=-9" in record.getMessage() for record in caplog.records] == [True]
    source.close()


def test_half_lines_and_joined_records(jetson: Path) -> None:
    half = len(RECORD) // 2
    tool(
        jetson,
        f"printf '%s' '{RECORD[half:]} {RECORD} '; sleep 0.05;"
        f" printf '%s' '{RECORD[:half]}'; sleep 0.05; echo '{RECORD[half:]}';"
        f" printf '%s' '{RECORD[:half].replace('6712', '1')}'; exec sleep 60",
    )
    source = Tegrastats(jetson, FastKernel())
    shows(source, VALUES)
    source.close()


def test_a_user_who_sees_nothing_of_the_memory_does_without_the_child(
    jetson: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It shows then what files show too; whether root asks is not asked: it shows."""
    line = RECORD.replace("EMC_FREQ 61%@2133 ", "").replace("99%@[612]", "99%")
    tool(jetson, f"while sleep 0.02; do echo '{line}'; done")
    kernel = FastKernel()
    source = Tegrastats(jetson, kernel)
    shows(
        source,
        {**VALUES, "dram_busy_share": "absent", "dram_hertz": "absent", "gpu_hertz": "denied"},
    )
    shows(source, nothing("denied"))
    assert not runs(kernel.children[0].pid)
    assert len(caplog.records) == 1
    assert f"shows_no_memory_clock lines={LINES_TO_TRY}" in caplog.text
    assert f"retry_s={REST_S:.0f}" in caplog.text
    for _ in range(100):
        source.read()
    assert len(kernel.children) == 1


def test_a_program_that_prints_something_else(jetson: Path) -> None:
    tool(jetson, "while sleep 0.02; do echo usage: tegrastats; done")
    source = Tegrastats(jetson, FastKernel())
    shows(source, nothing("implausible"))


def test_a_jetson_without_the_program(jetson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(jetson / "bin"))
    assert shown(Tegrastats(jetson, Kernel()).read()) == nothing("absent")


def test_nothing_is_started_on_another_board(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/device-tree/compatible", "raspberrypi,5-model-b\0brcm,bcm2712\0")
    source = Tegrastats(tmp_path, kernel)
    for _ in range(int(REPROBE_S) * 2):
        assert shown(source.read()) == nothing("absent")
        kernel.now += 1
    assert not kernel.spawned
    assert len(kernel.opens) == 2


def test_a_recorded_device_shows_what_was_recorded(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path)
    kernel.write("/proc/device-tree/compatible", "nvidia,p3971\0nvidia,tegra264\0")
    kernel.write("/cmd/tegrastats_--interval_1000.txt", RECORD + "\n")
    source = Tegrastats(tmp_path, kernel)
    for _ in range(3):
        assert shown(source.read()) == VALUES


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    off = AgentSettings(tegrastats="off", jtop="off", nvml="off").sources_off()
    assert off == {"tegrastats", "jtop", "nvml"}
    assert not AgentSettings().sources_off()
    names = {source.name for source in open_sources(tmp_path, without=off)}
    assert "meminfo" in names
    assert not names & off


# the command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decodewatch.shared.cli", "agent", "sources", *arguments],
        capture_output=True,
        text=True,
    )


def test_the_command_prints_one_object_a_record(tmp_path: Path) -> None:
    name = "agx_thor_l4t39.2_jp7.2.txt"
    done = command("--tegrastats", str(LOGS / name), "--json")
    assert done.returncode == 0, done.stderr
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    printed = [one["measurements"] for one in documents]
    assert len(printed) == 4
    assert [one["record"] for one in documents] == [1, 2, 3, 4]
    assert [one["time"] for one in documents] == [
        "07-23-2026 15:29:26",
        "07-23-2026 15:29:27",
        "08-08-2026 21:00:39",
        "08-08-2026 20:58:23",
    ]
    for measurements, record in zip(printed, log(name), strict=True):
        assert {
            one["name"]: one["reason"] if one["value"] is None else one["value"]
            for one in measurements
        } == record
        assert {one["source"] for one in measurements} == {"tegrastats"}


def test_the_command_prints_for_people() -> None:
    done = command("--tegrastats", str(LOGS / "orin_nano_super_l4t36.4.3_jp6.2_root.txt"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("dram_busy_share") == 3
    assert re.search(r"dram_busy_share +61 %", done.stdout)
    blocks = done.stdout.rstrip("\n").split("\n\n")
    assert all(blocks) and not any(block.startswith("\n") for block in blocks)
    assert [block.splitlines()[0] for block in blocks] == [
        "record 1, 09-21-2025 15:38:17",
        "record 2, 10-08-2026 04:38:21",
        "record 3, 10-08-2026 04:35:02",
    ]


def test_a_record_that_shows_nothing_is_a_block_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("RAM 9/1MB\nCPU [5%@100]\n")
    done = command("--tegrastats", str(tmp_path / "log"))
    heads = [block.splitlines()[0] for block in done.stdout.split("\n\n") if block]
    assert heads == ["record 1", "record 2"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_file_without_a_record_is_no_log(tmp_path: Path, flags: list[str]) -> None:
    file = tmp_path / "README.md"
    file.write_text("# A project\n\nNothing of a Jetson.\n")
    done = command("--tegrastats", str(file), *flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"decodewatch agent: no tegrastats record in {file}\n"


def test_the_command_refuses_a_log_that_is_not_there(tmp_path: Path) -> None:
    done = command("--tegrastats", str(tmp_path / "none.txt"))
    assert done.returncode == 2
    assert "none.txt cannot be read: No such file or directory" in done.stderr
