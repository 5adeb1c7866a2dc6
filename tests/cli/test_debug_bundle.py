"""`braid debug bundle`: all that a report needs, in a file that only its owner reads, without passwords."""

import gzip
import json
import stat
import tarfile
from pathlib import Path

import pytest

from tests.support.cli import braid
from tests.support.daemons import Daemon, write_config
from tests.support.regions import become, client_of
from tests.support.servers import NEWEST, Engine, Flavour, free_port

NEWER = pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
# In a URL, percent-encoded there, in a variable of the file, of sentinels, in another variable, in a log.
SECRETS = ["f1rst-passw0rd", 'sec%ond"pass/word', "th1rd-passw0rd", "f0urth-passw0rd", "f1fth-passw0rd"]
LOGGED = ["s1xth-passw0rd", "s3venth-passw0rd", "e1ghth-passw0rd"]


def unpacked(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as file:
        found = {}
        for member in file.getmembers():
            assert stat.S_IMODE(member.mode) == 0o600
            data = file.extractfile(member)
            assert data is not None
            found[member.name.removeprefix("braid-debug/")] = data.read().decode()
        return found


@NEWER
def test_a_bundle_has_all_parts_and_no_secret(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as one, Engine(flavour) as two:
        become(one, region=1, name="region-1")
        become(two, region=2, name="region-2")
        users = {one: ("link", SECRETS[0]), two: ("li:nk", SECRETS[1])}
        for engine, (user, password) in users.items():
            with engine.client() as operator:
                operator.execute_command("ACL", "SETUSER", user, "on", f">{password}", "~*", "&*", "+@all")
        with client_of(one) as client:
            client.xadd("orders", {"body": "in the entry"})
        urls = {
            1: one.url.replace("redis://", "redis://link:${LINK_PASSWORD}@"),
            2: two.url.replace("redis://", "redis://li%3Ank:sec%25ond%22pass%2Fword@"),
        }
        listen = f"127.0.0.1:{free_port()}"
        config = write_config(tmp_path / "braid.toml", urls, listen={1: listen})
        config.write_text(
            f"# the old password was {SECRETS[2]}\n{config.read_text()}"
            '[[region]]\nid = 3\nname = "region-3"\n'
            f'url = "redis+sentinel://127.0.0.1:1/m?sentinel_password={SECRETS[3]}"\n'
        )
        log = tmp_path / "braid.log"
        log.write_text(
            f"ERROR cannot log in to redis://link:{LOGGED[0]}@10.0.0.1:6379\n"
            f"config set requirepass {LOGGED[1]}\nsentinel_password={LOGGED[2]} and {SECRETS[0]}\n"
        )
        env = {"LINK_PASSWORD": SECRETS[0], "VAULT_TOKEN": SECRETS[4]}
        out = tmp_path / "report.tar.gz"
        with Daemon(config, 1, env=env) as daemon:
            daemon.tells("link.up peer=region-2")
            done = braid(
                "debug", "bundle", "--config", str(config), "--log", str(log), "--out", str(out), env=env
            )
        assert done.returncode == 0, done.stderr
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        parts = unpacked(out)
        told = json.loads(parts["versions.json"])
        assert {"braidstream", "functions", "packages"} <= told.keys()
        names = {each["name"] for each in json.loads(parts["status.json"])["regions"]}
        assert names == {"region-1", "region-2", "region-3"}
        assert {each["where"] for each in json.loads(parts["doctor.json"])} >= {"region-1", "region-3"}
        assert json.loads(parts["upgrade-1.json"])["programs"][0]["kind"] == "daemon"
        assert json.loads(parts["info-1.json"])[0]["role"] == "master"
        assert 'braid_events_total{region="region-1"' in parts["metrics-1-daemon.txt"]
        assert "cannot log in to redis://***@10.0.0.1:6379" in parts["log-1-braid.log"]
        assert one.url.removeprefix("redis://").partition("/")[0] in parts["config.json"]
        raw = gzip.decompress(out.read_bytes()).decode("utf-8", "replace") + done.stdout + done.stderr
        encoded = ["sec%25ond", "sec%ond", "in the entry"]
        assert [each for each in [*SECRETS, *LOGGED, *encoded] if each in raw] == []
        again = braid("debug", "bundle", "--config", str(config), "--out", str(out), env=env)
        assert (again.returncode, "File exists" in again.stderr) == (1, True)


@pytest.mark.parametrize("text", ['[[region]\nurl = "redis://u:f1rst-passw0rd@h"', "", "x = 1"], ids=repr)
def test_a_bundle_is_made_of_a_file_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(text)
    done = braid("debug", "bundle", "--config", str(config), "--out", str(tmp_path / "x.tar.gz"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parts"] == ["versions.json", "config.json", "error.txt"]
    parts = unpacked(tmp_path / "x.tar.gz")
    assert "braid.toml" in parts["error.txt"]
    assert "f1rst-passw0rd" not in str(parts)


def test_a_bundle_of_one_server_needs_no_file(engine: Engine, tmp_path: Path) -> None:
    become(engine, region=1, name="us-east")
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "link", "on", f">{SECRETS[0]}", "~*", "&*", "+@all")
    url = engine.url.replace("redis://", f"redis://link:{SECRETS[0]}@")
    done = braid("debug", "bundle", "--url", url, "--out", str(tmp_path / "x.tar.gz"))
    assert done.returncode == 0, done.stderr
    parts = unpacked(tmp_path / "x.tar.gz")
    assert {"versions.json", "status.json", "doctor.json", "upgrade-1.json", "info-1.json"} == parts.keys()
    assert SECRETS[0] not in str(parts)
