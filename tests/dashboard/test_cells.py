"""Figures of a device: the energy of a decoded token, with its rail or why it is not known."""

import pytest

from decodewatch.dashboard import cells
from decodewatch.shared.energy import NoEnergy, TokenEnergy

SECOND = 1_000_000


def test_the_energy_of_a_token_names_its_rail_and_what_it_is_of() -> None:
    total = TokenEnergy("device_watts:VDD_IN", 0.8412, 12.31, 4511, 312 * SECOND)
    part = TokenEnergy("power_watts:VDD_GPU_SOC", 0.5, 7.2, 4511, 312 * SECOND)
    cell = cells.token_energy((total, part))
    assert (cell.title, cell.value) == ("energy a decoded token", "841 mJ")
    assert cell.detail.replace("\\", "") == (
        "VDD_IN (whole device) · 12.3 W over 5 min of decode · 4,511 tokens"
    )
    assert cells.token_energy((part,)).detail.startswith(r"VDD\_GPU\_SOC · ")


def test_a_rail_that_somebody_else_named_is_inert() -> None:
    cell = cells.token_energy((TokenEnergy("power_watts:**b** :red[x]", 2, 20, 500, 90 * SECOND),))
    assert cell.value == "2.00 J" and r"\*\*b\*\*" in cell.detail and r"\[x\]" in cell.detail


@pytest.mark.parametrize(
    ("why", "value", "detail"),
    [
        ("no decode", "\N{EN DASH}", "no token decoded in the period"),
        ("no rail", "unknown", "no power rail of this machine could be read"),
        ("too few", "unknown", "needs 100 tokens and 10 s of decode with the power read"),
    ],
)
def test_without_the_energy_of_a_token_a_figure_says_why(
    why: NoEnergy, value: str, detail: str
) -> None:
    cell = cells.token_energy(why)
    assert cell.value == value and cell.detail.startswith(detail)
