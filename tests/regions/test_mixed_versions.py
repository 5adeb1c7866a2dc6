"""Regions are upgraded one after the other: older engine functions are refused with the command to type."""

from pathlib import Path

import pytest

import braidstream
from braidstream import lua
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import client_of, make_older
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


def test_a_region_with_older_functions_is_refused_until_it_is_upgraded(
    flavour: Flavour, tmp_path: Path
) -> None:
    with Engine(flavour) as one, Engine(flavour) as two:
        numbered([one, two])
        make_older(two, lua.OLDEST - 1)
        config = write_config(tmp_path / "braid.toml", {1: one.url, 2: two.url})
        with (
            braidstream.Redis.from_url(two.url) as client,
            pytest.raises(braidstream.LibraryError) as refused,
        ):
            client.xadd("m", {"n": "1"})
        assert "braid init --url URL --region 2 --name region-2" in str(refused.value)
        with Daemon(config, 1) as daemon, client_of(one) as here:
            here.xadd("m", {"n": "1"})
            said = eventually(
                lambda: daemon.said("peer.misconfigured"), within_s=WITHIN_S, why="it is refused"
            )
            assert f"has version {lua.OLDEST - 1} of the braidstream functions" in said[0]
            assert "braid init --url URL --region 2 --name region-2" in said[0]
            with two.client() as there:
                assert there.keys("bs:1:*") == []
            done = braid("init", "--url", two.url, "--region", "2", "--name", "region-2")
            assert done.returncode == 0, done.stderr
            with client_of(two) as there:
                eventually(lambda: there.xlen("m") == 1, within_s=WITHIN_S, why="the link goes on")
