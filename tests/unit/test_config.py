"""braid.toml: errors name the field, and contain no secrets."""

from pathlib import Path

import pytest

from braidstream.config import (
    TAKES,
    Config,
    GroupsConfig,
    RegionConfig,
    ScheduleConfig,
    Selection,
    load,
    with_region,
    without_region,
    write,
)
from braidstream.errors import ConfigError
from tests.support.cli import braid

GOOD = """
[[region]]
id = 1
name = "us-east"
url = "redis://127.0.0.1:7101"
gateway = "127.0.0.1:7201"

[[region]]
id = 2
name = "eu-west"
url = "rediss://link:${LINK_PASSWORD}@eu.example:7102"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "braid.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_regions_are_found_by_name_and_by_number(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD), {"LINK_PASSWORD": "hush"})
    assert config.named("us-east") is config.named("1")
    assert [peer.name for peer in config.peers_of("us-east")] == ["eu-west"]
    assert config.named("eu-west").url == "rediss://link:hush@eu.example:7102"
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("id = 2", "id = 1"), "two regions have the id 1"),
        (("eu-west", "us-east"), "two regions have the name 'us-east'"),
        (("id = 2", "id = 5000"), "region 'eu-west': id must be a number from 1 to 1023."),
        (
            ("id = 2", "number = 2"),
            "region 'eu-west': id is missing. region 'eu-west': there is no key 'number'.",
        ),
        (
            ('name = "eu-west"', 'nmae = "eu-west"'),
            "region number 2: there is no key 'nmae'. Did you mean name?",
        ),
        (("rediss://", "http://"), "region 'eu-west': url must be redis://"),
        (("7201", "here"), "region 'us-east': gateway must be HOST:PORT or unix:/path."),
        (("id = 2", 'id = 2\ninclude = "orders"'), "region 'eu-west': include must be a list of patterns"),
        (("id = 2", 'id = 2\ninclude = [""]'), "region 'eu-west': include must be a list of patterns"),
        (("id = 2", 'id = 2\ncompression = "gzip"'), "region 'eu-west': compression must be \"zstd\"."),
        (
            ("id = 1", "[groups]\ntakeover_after_s = 1\n[[region]]\nid = 1"),
            "groups: takeover_after_s must be a number of seconds from 5 to 86,400.",
        ),
        (("[[region]]", "[[regions"), "is not TOML"),
        (("${LINK_PASSWORD}", "${NOT_THERE}"), "wants ${NOT_THERE}"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, GOOD.replace(*change)), {"LINK_PASSWORD": "hush"})
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it lists no region. Each begins with a line [[region]]."),
        ("region = []", "region must be one table for each region: [[region]]."),
        ("region = 1", "region must be one table for each region: [[region]]."),
        ("region = [1]", "region number 1: region must be one table for each region: [[region]]."),
        ("regions = []", "there is no key 'regions'. Did you mean region?"),
    ],
)
def test_a_file_without_regions_is_told_in_words(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert said in str(caught.value)


def test_every_key_has_words_for_what_it_takes() -> None:
    tables = (RegionConfig, GroupsConfig, ScheduleConfig, Config)
    keys = {key for table in tables for key in table.model_fields}
    assert set(TAKES) == keys


def test_a_missing_file_and_a_missing_region_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load(tmp_path / "none.toml")
    config = load(written(tmp_path, GOOD), {"LINK_PASSWORD": "hush"})
    with pytest.raises(ConfigError, match="us-east, eu-west"):
        config.named("mars")


INLINE = """region = [
  {id = 1, name = "us-east", url = "redis://a"},
  {id = 2, name = "eu-west", url = "redis://b"},
]
"""


def test_a_file_that_cannot_be_changed_safely_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="Nothing was changed"):
        without_region(INLINE, 2)
    with pytest.raises(ConfigError, match="Nothing was changed"):
        with_region(INLINE, RegionConfig(id=3, name="ap-south", url="redis://c"))


def test_a_file_is_replaced_at_once_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "braid.toml"
    path.write_text("old")
    path.chmod(0o640)
    with path.open() as reader:
        write(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [*tmp_path.iterdir()] == [path]


def test_a_listed_region_is_not_added_again_at_another_server(tmp_path: Path) -> None:
    path = tmp_path / "braid.toml"
    path.write_text(INLINE)
    words = ("--id", "2", "--name", "eu-west", "--url", "redis://127.0.0.1:1", "--config", str(path))
    done = braid("region", "add", *words)
    assert done.returncode == 1
    assert "is listed with another url" in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", [("--include", "orders*"), ("--exclude", "*.tmp"), ("--gateway", "h:1")])
def test_a_listed_region_is_not_added_again_with_other_options(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    path = tmp_path / "braid.toml"
    path.write_text(INLINE)
    words = ("--id", "2", "--name", "eu-west", "--url", "redis://b", "--config", str(path))
    done = braid("region", "add", *words, *option)
    assert done.returncode == 1
    assert "is listed with another include, exclude or gateway" in " ".join(done.stderr.split())


def test_a_region_with_any_characters_is_added_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "braid.toml"
    path.write_text('[[region]]\nid = 1\nname = "us-east"\nurl = "redis://a"\n')
    odd = '\N{ROCKET} \x7f " \\ \n é'
    new = RegionConfig(id=2, name="eu-west", url="redis://b", include=(odd,))
    path.write_text(with_region(path.read_text(), new))
    assert load(path).named("eu-west") == new


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        ((), (), ["orders", "orders.tmp", "payments"]),
        (("orders*",), (), ["orders", "orders.tmp"]),
        ((), ("*.tmp",), ["orders", "payments"]),
        (("orders*", "pay?ents"), ("*.tmp",), ["orders", "payments"]),
        (("orders",), ("orders",), []),
    ],
)
def test_a_selection_takes_what_is_included_and_not_excluded(
    include: tuple[str, ...], exclude: tuple[str, ...], taken: list[str]
) -> None:
    chosen = Selection(include, exclude)
    assert [name for name in ("orders", "orders.tmp", "payments") if chosen.takes(name.encode())] == taken
