"""Administrative verbs leave a line in the system log: who, what, where, and no password."""

import os
import socket
from pathlib import Path

import pytest

from braidstream.cli import adopt, region, system_log, tune
from braidstream.cli.main import app
from tests.support.regions import become
from tests.support.servers import Engine


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A system log, instead of the machine's."""
    place = str(tmp_path / "log")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(place)
    listening.settimeout(5)
    for module in (adopt, region, tune):
        monkeypatch.setattr(
            module, "log_change", lambda verb, **facts: system_log.log_change(verb, place, **facts)
        )
    monkeypatch.setenv("SSH_CLIENT", "192.0.2.7 51000 22")
    monkeypatch.setenv("SUDO_USER", "ann")
    return listening


def typed(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert ended.value.code == 0


def test_administrative_verbs_are_in_the_system_log(
    device: socket.socket, engine: Engine, tmp_path: Path
) -> None:
    become(engine)
    url = engine.url.replace("//", "//default:s3cret@")
    file = tmp_path / "braid.toml"
    file.write_text(
        f'[[region]]\nid = 1\nname = "us-east"\nurl = "{url}"\n'
        '[[region]]\nid = 2\nname = "eu-west"\nurl = "redis://127.0.0.1:1"\n'
    )
    with engine.client() as client:
        client.config_set("requirepass", "s3cret")
        client.auth("s3cret")
        client.xadd("native", {"n": "1"})
        typed("tune", "id-mode", "liberal", "--url", url)
        typed("tune", "durability", "none", "--config", str(file), "--region", "us-east")
        typed("adopt", "native", "--url", url, "--dry-run")
        typed("adopt", "native", "--url", url)
        typed("region", "remove", "eu-west", "--force", "--config", str(file))
        client.config_set("requirepass", "")
    lines = [device.recv(4096).decode() for _ in range(4)]
    seen = [line.partition("admin.changed ")[2].rstrip("\0") for line in lines]
    server = f"server=redis://127.0.0.1:{engine.port}"
    who = "user=ann client=192.0.2.7"
    assert [line.replace("/0", "") for line in seen] == [
        f'verb="tune id-mode" {who} value=liberal {server}',
        f'verb="tune durability" {who} value=none {server}',
        f"verb=adopt {who} streams=native what=adopted {server}",
        f'verb="region remove" {who} region=eu-west server=redis://127.0.0.1:1',
    ]
    # Facility authpriv (10), level info (6).
    assert all(line.startswith(f"<{10 * 8 + 6}>braid[{os.getpid()}]: ") for line in lines)


def test_without_a_system_log_nothing_fails_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system_log.log_change("adopt", str(tmp_path / "none"))
    assert capsys.readouterr().err == ""
