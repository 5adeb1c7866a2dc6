"""Who may use the console, and what its answers allow a browser to do."""

import http.client
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from braidstream.consumers.dead_letters import DeadLetter
from braidstream.operations.membership import meet
from tests.support.cli import braid
from tests.support.consoles import console
from tests.support.daemons import IMPATIENT, write_config
from tests.support.forked import with_constants
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

SECRET: Final = "tr0ub4dor"
PATHS: Final = (
    "/",
    "/streams",
    "/stream?name=nosuch",
    "/entries?name=a&at=never",
    "/nosuch",
    "/static/console.js",
)


class Visit:
    """An answer of the console."""

    def __init__(
        self,
        url: str,
        path: str,
        *,
        form: Mapping[str, str] | None = None,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> None:
        place = urlsplit(url)
        conn = http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=30, source_address=(source, 0)
        )
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if form is None else urllib.parse.urlencode(form)
        if body is not None:
            given.setdefault("Content-Type", "application/x-www-form-urlencoded")
        conn.request("GET" if body is None else "POST", path, body, given)
        answer = conn.getresponse()
        self.status, self.headers = answer.status, answer.headers
        self.text = answer.read().decode()
        conn.close()

    @property
    def cookie(self) -> str:
        return (self.headers["Set-Cookie"] or "").partition(";")[0]

    @property
    def token(self) -> str:
        return self.text.partition('name="token" value="')[2].partition('"')[0]


@pytest.fixture
def config(engine: Engine, tmp_path: Path) -> Path:
    become(engine, region=1, name="region-1")
    return write_config(tmp_path / "braid.toml", {1: engine.url})


@pytest.fixture
def url(config: Path) -> Iterator[str]:
    with console(config) as found:
        yield found


@pytest.fixture
def impatient(config: Path) -> Iterator[str]:
    """A console that waits for a request for 4 s instead of 10."""
    with console(config, env=with_constants({"braidstream.console.web_app.REQUEST_WITHIN_S": 4.0})) as found:
        yield found


def test_every_answer_forbids_foreign_scripts_frames_and_caches(url: str) -> None:
    for path in PATHS:
        headers = Visit(url, path).headers
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == ("max-age=3600" if "static" in path else "no-store")
        assert "server" not in headers
    assert "HttpOnly; SameSite=Lax" in Visit(url, "/").headers["Set-Cookie"]


def test_a_site_whose_name_points_here_gets_nothing(url: str) -> None:
    assert Visit(url, "/", Host="localhost:1").status == 200
    assert Visit(url, "/", Host="[::1]:80").status == 200
    for host in (
        "evil.example",
        "evil.example:8380",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "a b",
    ):
        assert Visit(url, "/", Host=host).status == 403


def test_one_region_is_shown_by_its_url_without_a_file(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no braid.toml is
    become(engine, region=1, name="region-1")
    with client_of(engine) as client:
        client.xadd("orders", {"n": "1"})
        client.run_plan(meet([2]))  # a region that this console does not know
    file = tmp_path / "url"
    file.write_text(engine.url)
    for words in (("--url", engine.url), ("--url-file", str(file))):
        with console(None, *words) as url:
            assert "region-1" in Visit(url, "/").text
            assert "orders" in Visit(url, "/streams").text
            assert "region 2" not in Visit(url, "/doctor").text
    both = braid("console", "--url", engine.url, "--config", "braid.toml", "--listen", "0")
    assert both.returncode == 2
    assert "either --url or --config" in " ".join(both.stderr.split())


def test_the_retry_button_writes_only_into_the_stream_that_the_name_implies(
    config: Path, engine: Engine
) -> None:
    letter = DeadLetter("accounts", "1-1", "mail", "w", 1, "no", (b"forged", b"1"))
    with client_of(engine) as client, console(config, "--allow-write") as url:
        entry = client.execute_command("XADD", "orders.dead", "*", *letter.to_words())
        page = Visit(url, "/dead?name=orders.dead")
        form = {"token": page.token, "name": "orders.dead", "region": "region-1", "id": entry}
        refused = Visit(url, "/dead/retry", form=form, Cookie=page.cookie)
        assert refused.status == 400
        assert "nothing was retried" in refused.text
        assert "accounts" in refused.text
        assert (client.exists("accounts"), client.xlen("orders.dead")) == (0, 1)


def test_without_a_password_it_listens_on_this_machine_only(config: Path) -> None:
    done = braid("console", "--config", str(config), "--listen", "0.0.0.0:0")
    assert done.returncode == 2
    assert "set a password" in " ".join(done.stderr.split())


def test_a_password_is_needed_on_every_page_and_a_session_ends_with_log_out(config: Path) -> None:
    file = config.with_name("password")
    file.write_text(f"{SECRET}\n")
    with console(config, "--password-file", str(file)) as url:
        for path in ("/", "/streams", "/nosuch", "/tail/new?name=a"):
            answer = Visit(url, path)
            assert (answer.status, answer.headers["Location"]) == (303, "/login")
        login = Visit(url, "/login")
        sent = {"token": login.token, "password": SECRET}
        wrong = Visit(url, "/login", form={**sent, "password": "guess"}, Cookie=login.cookie)
        assert (wrong.status, SECRET in wrong.text) == (403, False)
        assert Visit(url, "/login", form=sent).status == 400  # without the cookie of the page
        assert (
            Visit(url, "/login", form=sent, Cookie=login.cookie, Origin="https://evil.example").status == 400
        )
        assert Visit(url, "/login", form=sent, Cookie=login.cookie, Sec_Fetch_Site="cross-site").status == 400
        done = Visit(url, "/login", form=sent, Cookie=login.cookie)
        assert (done.status, done.headers["Location"]) == (303, "/")
        assert done.cookie != login.cookie
        page = Visit(url, "/", Cookie=done.cookie)
        assert page.status == 200
        of_another_program = 'prefs={"a": 1}'  # on the same host, at another port
        assert Visit(url, "/", Cookie=f"{of_another_program}; {done.cookie}").status == 200
        assert Visit(url, "/logout", form={"token": "x"}, Cookie=done.cookie).status == 400
        assert Visit(url, "/logout", form={"token": page.token}, Cookie=done.cookie).status == 303
        assert Visit(url, "/", Cookie=done.cookie).status == 303


def test_connections_that_send_nothing_make_room_for_others(impatient: str) -> None:
    url, place = impatient, urlsplit(impatient)
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((place.hostname, place.port)))
        eventually(lambda: Visit(url, "/").status == 503, within_s=5, why="all places should be taken")
        eventually(lambda: Visit(url, "/").status == 200, within_s=30, why="the silent ones should be closed")


def test_a_connection_that_reads_no_answer_is_closed(impatient: str) -> None:
    place = urlsplit(impatient)
    assert place.port is not None
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.connect((place.hostname, place.port))
        # More answers than the two sockets hold: the console would wait until the first ones are read.
        reader.sendall(b"GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_200)
        between = f":{place.port:04X} 0100007F:{reader.getsockname()[1]:04X} 01 "  # 01: established
        assert between in Path("/proc/net/tcp").read_text()
        eventually(
            lambda: between not in Path("/proc/net/tcp").read_text(), within_s=40, why="it should be closed"
        )


def test_after_ten_wrong_passwords_even_the_right_one_from_there_waits(config: Path) -> None:
    with console(config, env={"BRAID_CONSOLE_PASSWORD": SECRET}) as url:
        login = Visit(url, "/login")
        for number in range(10):
            form = {"token": login.token, "password": f"guess {number}"}
            assert Visit(url, "/login", form=form, Cookie=login.cookie).status == 403
        form = {"token": login.token, "password": SECRET}
        assert "Wait a minute" in Visit(url, "/login", form=form, Cookie=login.cookie).text
        assert Visit(url, "/login", form=form, Cookie=login.cookie, source="127.0.0.2").status == 303


def test_a_proxy_names_the_user_and_nobody_else_may(config: Path) -> None:
    with console(config, "--proxy-header", "X-User") as url:
        assert Visit(url, "/").status == 403
        assert "ann &lt;b&gt;" in Visit(url, "/", X_User="ann <b>", Host="console.example").text
    with console(config, "--proxy-header", "X-User", "--proxy-from", "192.0.2.7") as url:
        assert Visit(url, "/", X_User="ann").status == 403


def test_no_page_shows_a_password_of_a_server(engine: Engine, tmp_path: Path) -> None:
    become(engine, region=1, name="region-1")
    with engine.client() as client:
        client.execute_command("ACL", "SETUSER", "viewer", "on", f">{SECRET}", "~*", "&*", "+@all")
    with_password = engine.url.replace("redis://", f"redis://viewer:{SECRET}@")
    dead = f"redis://viewer:{SECRET}@127.0.0.1:1"
    config = write_config(tmp_path / "braid.toml", {1: with_password, 2: dead})
    try:
        with console(config) as url:
            for path in (*PATHS, "/streams?region=region-2", "/stream?region=region-2&name=a"):
                assert SECRET not in Visit(url, path).text
            assert Visit(url, "/streams?region=region-2").status == 502
    finally:
        with engine.client() as client:
            client.execute_command("ACL", "DELUSER", "viewer")


def test_a_connection_that_died_silently_is_left(engine: Engine, tmp_path: Path) -> None:
    """The server's host vanished and is back; nobody has told the console that the connection is gone."""
    become(engine, region=1, name="region-1")
    with Proxy(engine.port) as way:
        config = write_config(tmp_path / "braid.toml", {1: way.url})
        with console(config, env=IMPATIENT) as url:
            assert Visit(url, "/streams").status == 200
            way.swallow()
            assert "no answer within" in Visit(url, "/streams").text
            way.forget()
            eventually(
                lambda: Visit(url, "/streams").status == 200, within_s=30, why="a new connection should work"
            )
