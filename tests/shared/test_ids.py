"""Device ids are safe as a topic level; new ids are unique and ordered."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodewatch.shared.errors import SettingsError
from decodewatch.shared.ids import check_device_id, is_device_id, uuid7


@pytest.mark.parametrize("name", ["orin-7", "A", "pi.5_lab", "0" * 64])
def test_a_plain_name_is_a_device_id(name: str) -> None:
    assert check_device_id(name) == name


@pytest.mark.parametrize(
    "name", ["", "a/b", "a+b", "#", "a b", "a\n", "\x07", "-a", ".", "é", "x" * 65, "a\u202eb"]
)
def test_a_name_that_could_change_a_topic_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a device id; 1 to 64 of the characters"):
        check_device_id(name)


@given(st.text(max_size=70))
def test_what_is_accepted_is_exactly_the_documented_form(name: str) -> None:
    documented = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name)
    assert is_device_id(name) == bool(documented and not name.endswith("\n"))


def test_ids_are_unique_version_7_and_sorted_by_time() -> None:
    first, *rest = made = [uuid7() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert re.fullmatch(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", first)
    assert rest[-1][:12] >= first[:12]
