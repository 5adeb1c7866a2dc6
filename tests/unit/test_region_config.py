"""`bs:config`, parsed: numbers that no region can have are refused, and a part that was lost is noticed."""

import pytest

from braidstream.errors import ConfigError, LostPartError, NotARegionError
from braidstream.model.region import Region

FIRST = {
    "region": "1",
    "name": "us-east",
    "id-mode": "strict",
    "writer": "1",
    "writers": "1",
    "topology": "1",
}
DONE = {**FIRST, "identity": "f00", "library": "26"}
USED = {**DONE, "writers": "1 2", "left": "", "met": "7", "run": "f00", "alive": "9", "generated": "9 f00 -"}


def parse(config: dict[str, str]) -> Region:
    return Region.parse([word.encode() for pair in config.items() for word in pair])


def without(config: dict[str, str], *fields: str) -> dict[str, str]:
    return {field: value for field, value in config.items() if field not in fields}


@pytest.mark.parametrize("field", ["writer", "writers", "left"])
@pytest.mark.parametrize("number", ["0", "-5", "1024", "100000000000000", "1e+14"])
def test_a_writer_outside_the_range_is_refused(field: str, number: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse({**USED, field: number})


@pytest.mark.parametrize(
    "config", [FIRST, {**FIRST, "identity": "f00"}, DONE, USED, without(USED, "generated")]
)
def test_a_config_at_every_step_of_a_region_is_whole(config: dict[str, str]) -> None:
    assert parse(config).name == "us-east"


@pytest.mark.parametrize("field", [*FIRST, "identity", "library", "run", "alive"])
def test_a_config_without_a_field_that_it_had_is_of_a_server_that_lost_data(field: str) -> None:
    with pytest.raises(LostPartError, match=f"lacks {field}. .* braid region rejoin") as error:
        parse(without(USED, field))
    assert error.value.fields == (field.encode(),)


def test_a_config_of_which_one_field_is_left_is_of_a_server_that_lost_data() -> None:
    for field in USED:
        with pytest.raises(LostPartError):
            parse({field: USED[field]})
    with pytest.raises(NotARegionError):
        parse({})


HOSTILE = {
    "topology": "9" * 4_000,
    "behind:2": "9" * 4_000,
    "behind:" + "9" * 4_000: "5",
    "doubts": "0-" + "9" * 4_000,
    "generated": "9" * 4_000 + " x +",
    "library": "x" * 60_000,
    "writers": "2 " * 40_000,
    "x" * 70_000: "",
}


@pytest.mark.parametrize("field", HOSTILE, ids=[field[:8] for field in HOSTILE])
def test_a_config_that_a_hostile_peer_wrote_is_refused_with_a_short_error(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**USED, field: HOSTILE[field]})
    assert len(str(caught.value)) < 500
