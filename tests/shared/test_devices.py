"""The table of known devices: its arithmetic holds, and each board finds its own row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.shared import devices
from decodewatch.shared.devices import CONFIDENCES, RULES, KnownDevice

ROWS = list(devices.rows())
GIB = 1 << 30
KIB = 1024


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_peak_is_width_times_transfers(row: KnownDevice) -> None:
    if row.mts is None:
        assert row.gb_per_s is None and row.most_mts is not None
        return
    assert row.gb_per_s is not None
    assert row.gb_per_s == pytest.approx(row.bus_bits / 8 * row.mts / 1000, rel=0.004)
    assert row.hertz is not None
    assert row.bytes_per_second(row.hertz) == pytest.approx(row.gb_per_s * 1e9, rel=0.004)
    assert row.can_run_at(row.hertz)
    assert row.most_mts is None or row.most_mts > row.mts


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_says_what_it_is_and_where_that_comes_from(row: KnownDevice) -> None:
    assert row.name and row.memory and row.source and row.confidence in CONFIDENCES
    assert row.loaded_by in ("cpu", "gpu")
    assert row.match and all(rule.kind in RULES and rule.value for rule in row.match)


def test_no_two_rows_have_one_id_or_one_rule_for_one_size_of_memory() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    rules = [
        (rule.kind, rule.value, size)
        for row in ROWS
        for rule in row.match
        for size in (rule.memory_gib or (None,))
    ]
    assert len(set(rules)) == len(rules)


def of_tree(*compatible: str, memory: int | None = None) -> str | None:
    found = devices.find(compatible, memory_bytes=memory)
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("compatible", "kib", "expected"),
    [
        ("nvidia,p3768-0000+p3767-0005-super nvidia,p3767-0005 nvidia,tegra234", 7802844,
         "jetson-orin-nano-8gb-super"),
        ("nvidia,p3768-0000+p3767-0005 nvidia,p3767-0005 nvidia,tegra234", 7802844,
         "jetson-orin-nano-8gb"),
        ("nvidia,p3768-0000+p3767-0004 nvidia,p3767-0004 nvidia,tegra234", 3_700_000,
         "jetson-orin-nano-4gb"),
        ("nvidia,p3768-0000+p3767-0000 nvidia,p3767-0000 nvidia,tegra234", 16_000_000,
         "jetson-orin-nx"),
        ("nvidia,p3737-0000+p3701-0005 nvidia,p3701-0005 nvidia,tegra234", 64_349_184,
         "jetson-agx-orin"),
        # A carrier board of somebody else: the chip and the memory say which module it is.
        ("acme,carrier nvidia,tegra234", 64_349_184, "jetson-agx-orin"),
        ("acme,carrier nvidia,tegra234", 16_000_000, "jetson-orin-nx-16gb"),
        ("acme,carrier nvidia,tegra234", 7_700_000, "jetson-orin-8gb"),
        ("nvidia,p4071-0000+p3834-0008 nvidia,p3834-0008 nvidia,tegra264", 128_790_000,
         "jetson-agx-thor-t5000"),
        ("nvidia,p9999-0000 nvidia,tegra264", 64_000_000, "jetson-thor-t4000"),
        ("nvidia,p3449-0000+p3668-0000 nvidia,tegra194", 7_015_000, "jetson-xavier-nx"),
        ("nvidia,p2972-0000 nvidia,tegra194", 32_690_000, "jetson-agx-xavier"),
        ("nvidia,p2822-0000+p2888-0006 nvidia,tegra194", 7_800_000, "jetson-agx-xavier-8gb"),
        # An AGX Xavier, or a Xavier NX, whose bus is half as wide.
        ("acme,carrier nvidia,tegra194", 15_900_000, None),
        ("nvidia,p3450-0000 nvidia,jetson-nano nvidia,tegra210", 4_059_000, "jetson-nano"),
        ("nvidia,p2771-0000-0888 nvidia,tegra186", 8_100_000, "jetson-tx2-8gb"),
        ("raspberrypi,5-model-b brcm,bcm2712", 8_200_000, "raspberry-pi-5"),
        ("raspberrypi,4-compute-module brcm,bcm2711", 3_900_000, "raspberry-pi-4"),
        ("radxa,rock-5b rockchip,rk3588", 16_000_000, "rk3588-lpddr4x"),
        ("radxa,rock-5b-plus rockchip,rk3588", 16_000_000, "rk3588-lpddr5"),
        # The vendor's kernels call the same boards by other names.
        ("rockchip,rk3588s-orangepi-5 rockchip,rk3588", 16_000_000, "rk3588-lpddr4x"),
        ("rockchip,rk3588s-orangepi-5b rockchip,rk3588", 16_000_000, "rk3588-lpddr4x"),
        ("rockchip,rk3588s-orangepi-5-pro rockchip,rk3588", 16_000_000, "rk3588-lpddr5"),
        ("someone,board rockchip,rk3588s", 16_000_000, "rk3588"),
        ("oneplus,enchilada qcom,sdm845", 8_000_000, "sdm845"),
        ("apple,j313 apple,t8103 apple,arm-platform", 8_000_000, "apple-m1"),
        ("nvidia,tegra999", 8_000_000, None),
    ],
)  # fmt: skip
def test_a_device_tree_finds_its_row(compatible: str, kib: int, expected: str | None) -> None:
    assert of_tree(*compatible.split(), memory=kib * KIB) == expected


def test_without_its_size_of_memory_a_chip_of_several_modules_has_no_row() -> None:
    assert of_tree("acme,carrier", "nvidia,tegra234") is None
    assert of_tree("acme,carrier", "nvidia,tegra264") == "tegra264"
    assert of_tree("nvidia,p3737-0000+p3701-0005", "nvidia,tegra234") == "jetson-agx-orin"


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("Intel(R) N100", "intel-n100"),
        ("Intel(R) Core(TM) i3-N305", "intel-n305"),
        ("12th Gen Intel(R) Core(TM) i7-1260P", "intel-core-12"),
        ("13th Gen Intel(R) Core(TM) i7-1355U", "intel-core-13"),
        ("Intel(R) Core(TM) Ultra 7 155H", "intel-core-ultra-1"),
        ("Intel(R) Core(TM) Ultra 7 258V", "intel-core-ultra-200v"),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", "amd-ryzen-7040-8040"),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "amd-ryzen-ai-max"),
        ("Apple M1 Pro", "apple-m1-pro"),
        ("Apple M1", "apple-m1"),
        ("AMD EPYC", None),
        ("", None),
    ],
)
def test_a_processors_name_finds_its_row(cpu: str, expected: str | None) -> None:
    found = devices.find(cpu=cpu, memory_bytes=16 * GIB)
    assert (None if found is None else found.id) == expected


def test_a_phone_is_found_by_the_name_of_its_chip() -> None:
    found = devices.find(socs=["taro", "sm8475"])
    assert found is not None and found.id == "sm8475" and found.gb_per_s == 51.2
    # Where Android is too old to know the chip's name, its code name is all there is.
    found = devices.find(socs=["KONA", "kona", "qcom"])
    assert found is not None and found.id == "sm8250"
    found = devices.find(socs=["GS101"])
    assert found is not None and found.id == "tensor-g1" and found.mts is None
    found = devices.find(socs=["Tensor G3"])
    assert found is not None and found.mts is None and found.bus_bits == 64


def test_a_clock_that_means_no_limit_is_none_of_the_devices() -> None:
    (nano,) = (row for row in ROWS if row.id == "jetson-orin-nano-8gb")
    assert nano.can_run_at(2_133_000_000) and nano.can_run_at(3_199_000_000)
    assert nano.can_run_at(204_000_000)
    for limit in (0, 4_294_967_295, 9_223_372_036_854_775_807, -1):
        assert not nano.can_run_at(limit)


@given(
    st.lists(st.text(max_size=20), max_size=4), st.text(max_size=40), st.integers(0, 1 << 45)
)  # fmt: skip
def test_no_name_that_somebody_wrote_makes_the_lookup_fail(
    names: list[str], cpu: str, memory: int
) -> None:
    devices.find(names, socs=names, products=names, cpu=cpu, memory_bytes=memory)
