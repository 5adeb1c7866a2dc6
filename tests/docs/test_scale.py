"""The cost model: its tables are computed from what was measured, and hold together."""

import re

import pytest

from scripts import scale


def test_the_page_is_what_the_script_writes() -> None:
    text = scale.PAGE.read_text(encoding="utf-8")
    assert scale.page(text) == text, "run: make docs-scale"


def test_the_page_has_every_table_once() -> None:
    text = scale.PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- table: (\w+) -->", text)) == sorted(scale.TABLES)


def test_every_constant_that_was_measured_is_shown() -> None:
    assert set(scale.measured()["constants"]) == set(scale.MEANINGS)


@pytest.mark.parametrize(
    ("entries_a_day", "regions", "own_s", "copies_s"), [(86_400, 1, 1, 0), (86_400 * 50, 5, 10, 40)]
)
def test_a_region_writes_its_share_and_applies_the_rest(
    entries_a_day: float, regions: int, own_s: float, copies_s: float
) -> None:
    load = scale.Load(regions=regions, entries_a_day=entries_a_day)
    assert (load.own_s, load.copies_s) == (own_s, copies_s)
