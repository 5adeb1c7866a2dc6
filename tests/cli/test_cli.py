"""`braid init` and `braid tune id-mode` as an operator runs them: text, --json, exit codes, no secrets."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import braidstream
from braidstream import lua as functions
from braidstream.cli import spark, spark_run
from braidstream.cli.main import app
from braidstream.operations.membership import initialise
from tests.support import cli
from tests.support.daemons import write_config
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour, free_port

SECRET = "s3cr3t-pa55"
NAMED = ("--region", "1", "--name", "us-east")


def braid(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command; no secret may ever come out of it, and no traceback."""
    done = cli.braid(*words)
    for said in (done.stdout, done.stderr):
        assert "Traceback" not in said, said
        assert SECRET[:4] not in said, said
    return done


def unframed(text: str) -> str:
    """Without frames, colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[^\x00-\x7f]", " ", text).split())


def test_the_version_is_told() -> None:
    shown = f"braidstream {braidstream.__version__} (engine functions {functions.VERSION})\n"
    assert braid("--version").stdout == shown


def config(engine: Engine) -> dict[str, str]:
    with engine.client(decode_responses=True) as operator:
        return operator.hgetall("bs:config")


# braid init


def test_init_makes_a_database_a_region_and_says_so(engine: Engine) -> None:
    done = braid("init", "--url", engine.url, *NAMED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{engine.url} is region 1 (us-east), ID mode strict. "
        f"Engine functions: version {functions.VERSION}, loaded, was none.\n"
    )
    with client_of(engine) as client:
        assert client.xadd("x", {"n": "1"}) == client.xrange("x")[0][0]


def test_init_prints_its_facts_as_one_line_of_json(engine: Engine) -> None:
    done = braid("init", "--url", engine.url, *NAMED, "--json")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert json.loads(done.stdout) == {
        "region": 1,
        "name": "us-east",
        "writer": 1,
        "id_mode": "strict",
        "functions": {"version": functions.VERSION, "was": 0},
        "primaries": 1,
    }


def test_init_again_changes_nothing(engine: Engine) -> None:
    become(engine, id_mode="liberal")
    before = config(engine)
    done = braid("init", "--url", engine.url, *NAMED)
    assert (done.returncode, config(engine)) == (0, before)
    assert f"ID mode liberal. Engine functions: version {functions.VERSION}, already there." in done.stdout


def test_init_refuses_a_database_that_is_another_region_and_leaves_it(engine: Engine) -> None:
    become(engine)
    before = config(engine)
    done = braid("init", "--url", engine.url, "--region", "2", "--name", "us-east")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(
        f"error {engine.url}: this database already is region 1 (us-east), not region 2"
    )
    done = braid("init", "--url", engine.url, "--region", "1", "--name", "eu-west", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["code"], facts["url"]) == (1, "REGIONTAKEN", engine.url)
    assert "A region keeps its number and its name for life" in facts["error"]
    assert config(engine) == before


def test_init_refuses_a_server_that_evicts_any_key(flavour: Flavour) -> None:
    with Engine(flavour, args=["--maxmemory-policy", "allkeys-lru"]) as engine:
        done = braid("init", "--url", engine.url, *NAMED)
        assert (done.returncode, done.stdout, config(engine)) == (1, "", {})
        assert "maxmemory-policy allkeys-lru" in done.stderr
        assert "Set maxmemory-policy to noeviction" in done.stderr


@pytest.mark.parametrize("lost", ["library identity", "writer", "region", "writers", "identity"])
def test_init_refuses_a_server_that_lost_a_part_of_its_region(
    region: braidstream.Redis, engine: Engine, lost: str
) -> None:
    """It would seem whole again, and its peers would take what it lacks for deleted."""
    region.xadd("x", {"n": "1"})
    with engine.client() as operator:
        operator.hdel("bs:config", *lost.split())
    before = config(engine)
    done = braid("init", "--url", engine.url, *NAMED)
    assert (done.returncode, done.stdout, config(engine)) == (1, "", before)
    said = unframed(done.stderr)
    assert "this server lost data: bs:config lacks" in said
    assert "braid region rejoin us-east" in said
    # Without another region, what it says brings the rest back.
    [words] = re.findall("redis-cli HSET (.*), and run this again", said)
    with engine.client() as operator:
        operator.execute_command("HSET", *shlex.split(words))
    done = braid("init", "--url", engine.url, *NAMED)
    assert (done.returncode, region.xlen("x")) == (0, 1), done.stderr
    assert all(config(engine)[field] for field in lost.split())


def test_init_that_was_interrupted_is_completed(engine: Engine) -> None:
    with client_of(engine) as client:
        client.run_plan(initialise(1, "us-east"))
        with pytest.raises(braidstream.LibraryError, match="interrupted, or the server lost data"):
            client.xadd("x", {"n": "1"})
    assert "library" not in config(engine)
    assert braid("init", "--url", engine.url, *NAMED).returncode == 0
    assert config(engine)["library"] == str(functions.VERSION)


def test_init_does_not_put_older_functions_in_place_of_newer_ones(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.run_plan(functions.load(version=functions.VERSION + 1))
    done = braid("init", "--url", engine.url, *NAMED)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install -U braidstream" in done.stderr


# braid tune id-mode


def test_tune_changes_the_mode_and_says_so(region: braidstream.Redis, engine: Engine) -> None:
    for mode in ("semi-strict", "liberal"):
        done = braid("tune", "id-mode", mode, "--url", engine.url)
        assert (done.returncode, done.stderr, config(engine)["id-mode"]) == (0, "", mode)
        assert done.stdout == f"{engine.url}: region 1 (us-east) now has ID mode {mode}.\n"
    done = braid("tune", "id-mode", "strict", "--url", engine.url, "--json")
    assert (done.returncode, done.stderr, config(engine)["id-mode"]) == (0, "", "strict")
    assert json.loads(done.stdout) == {"region": 1, "name": "us-east", "id_mode": "strict"}


def test_tune_with_a_file_changes_all_regions(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as one, Engine(flavour) as two:
        for number, each in enumerate((one, two), 1):
            become(each, region=number, name=f"region-{number}")
        listed = write_config(tmp_path / "braid.toml", {1: one.url, 2: two.url})
        done = braid("tune", "id-mode", "liberal", "--config", str(listed))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == (
            f"{one.url}: region 1 (region-1) now has ID mode liberal.\n"
            f"{two.url}: region 2 (region-2) now has ID mode liberal.\n"
        )
        assert [config(each)["id-mode"] for each in (one, two)] == ["liberal", "liberal"]
        done = braid("tune", "id-mode", "strict", "--config", str(listed), "--json")
        assert [each["id_mode"] for each in json.loads(done.stdout)["regions"]] == ["strict", "strict"]
        one.kill()
        done = braid("tune", "id-mode", "liberal", "--config", str(listed))
        assert (done.returncode, config(two)["id-mode"]) == (1, "liberal")
        assert "not all regions have ID mode liberal now. Run this again. region-1:" in unframed(done.stderr)


def test_tune_of_a_database_that_is_no_region_says_how_to_make_it_one(engine: Engine) -> None:
    done = braid("tune", "id-mode", "liberal", "--url", engine.url)
    assert (done.returncode, done.stdout, config(engine)) == (1, "", {})
    assert "not a braidstream region yet" in done.stderr
    assert "braid init --url URL --region N --name NAME" in done.stderr
    done = braid("tune", "id-mode", "liberal", "--url", engine.url, "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, "NOREGION")


# A usage error is exit code 2, before any server is contacted.


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tune id-mode lenient", "semi-strict"),
        ("tune id-mode", "semi-strict"),
        ("init --region 0 --name us-east", "--region"),
        ("init --region 1024 --name us-east", "1023"),
        ("init --region one --name us-east", "--region"),
        ("init --region 1", "--name"),
        ("init --name us-east", "--region"),
        ("init --region 1 --name us-east --forced", "--forced"),
    ],
)
def test_misuse_exits_2_and_names_what_is_wrong(line: str, says: str) -> None:
    done = braid(*line.split(), "--url", "redis://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert says in unframed(done.stderr)


@pytest.mark.parametrize("line", ["init --region 1 --name us-east", "tune id-mode strict"])
def test_a_missing_url_is_misuse(line: str) -> None:
    done = braid(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "--url" in unframed(done.stderr)


# Trouble is exit code 1 and one line, without secrets.


def test_a_server_that_is_down_is_one_line() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = braid("init", *NAMED, "--url", f"redis://operator:{SECRET}@{address}/0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"error redis://{address}/0: ")
    assert "Connection refused" in done.stderr
    done = braid("tune", "id-mode", "strict", "--url", f"redis://operator:{SECRET}@{address}/0", "--json")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (1, "", 1)
    assert set(json.loads(done.stdout)) == {"error", "code", "url"}


def test_trouble_with_a_file_names_the_file_once(tmp_path: Path) -> None:
    missing = tmp_path / "braid.toml"
    done = braid("replicate", "--config", str(missing), "--region", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.replace("\n", "").startswith(f"error {missing}: cannot be read: No such file")
    done = braid("replicate", "--config", str(missing), "--region", "1", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["code"], facts["file"]) == (1, "CONFIG", str(missing))


def test_a_gateway_on_a_used_port_names_the_address_that_it_cannot_listen_on(engine: Engine) -> None:
    become(engine)
    used = f"127.0.0.1:{engine.port}"
    done = braid("gateway", "--url", engine.url, "--listen", used)
    assert (done.returncode, done.stdout) == (1, "")
    told = done.stderr.splitlines()[-1]
    assert (
        told == f"error {used}: cannot listen here: Address already in use. Choose another address: --listen"
    )
    done = braid("gateway", "--url", engine.url, "--listen", used, "--json")
    facts = json.loads(done.stdout)
    assert facts["listen"] == used
    assert "url" not in facts


def test_the_url_may_come_from_a_file_or_the_environment(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(engine.url + "\n")
    monkeypatch.setenv("BRAID_URL", f"redis://127.0.0.1:{free_port()}")
    done = braid("init", "--url-file", str(file), *NAMED)
    assert (done.returncode, done.stderr) == (0, "")
    assert config(engine)["region"] == "1"
    monkeypatch.setenv("BRAID_URL", engine.url)
    assert braid("tune", "id-mode", "liberal").returncode == 0
    assert config(engine)["id-mode"] == "liberal"
    assert braid("tune", "id-mode", "strict", "--url", engine.url).returncode == 0
    done = braid("init", "--url-file", str(tmp_path / "none"), *NAMED)
    assert done.returncode == 2
    assert "No such file" in unframed(done.stderr)
    monkeypatch.delenv("BRAID_URL")
    done = braid("init", *NAMED)
    assert done.returncode == 2
    assert "Missing option '--url'. Add --url, as in --url redis://localhost:6379" in unframed(done.stderr)
    monkeypatch.setenv("BRAID_URL", engine.url)
    missing = str(tmp_path / "braid.toml")
    done = braid("gateway", "--config", missing, "--region", "1")
    assert f"error {missing}" in done.stderr.replace("\n", ""), "a file is asked for, not the variable"
    done = braid("region", "add", "--config", missing, "--id", "3", "--name", "ap-south")
    assert (done.returncode, "Missing option" in done.stderr) == (1, False), "here it needs both"


def test_ddl_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "deltalake"):
        monkeypatch.setitem(sys.modules, name, None)
    told = CliRunner().invoke(app, ["spark", "ddl", "--table", "/lake/orders"])
    assert (told.exit_code, "pip install 'braidstream[spark]'" in told.output) == (2, True), told.output


def test_brackets_in_what_is_printed_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(typer.Exit):
        spark.need_spark()
    assert "pip install 'braidstream[spark]'" in capsys.readouterr().err
    spark_run.print_summary(False, "Compacted: [bold]orders", {"what": "[red]x[/red]"})
    spark_run.print_rows("keys", [{"[b]key": "[/]"}], str)
    said = capsys.readouterr().out
    assert all(text in said for text in ("[bold]orders", "[red]x[/red]", "[b]key", "[/]"))


def test_a_password_serves_and_never_shows(flavour: Flavour) -> None:
    with Engine(flavour, args=["--requirepass", SECRET]) as engine:
        address = f"127.0.0.1:{engine.port}"
        done = braid("init", "--url", f"redis://:{SECRET}@{address}", *NAMED)
        assert (done.returncode, done.stdout.split()[0]) == (0, f"redis://{address}")
        done = braid("tune", "id-mode", "liberal", "--url", f"redis://{address}?password={SECRET}")
        assert (done.returncode, done.stdout.split()[0]) == (0, f"redis://{address}:")
        for wrong in (f":{SECRET}x@{address}", address, f"nobody:{SECRET}@{address}"):
            done = braid("init", "--url", f"redis://{wrong}", *NAMED)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}/more@127.0.0.1:1",
        f"redis://:{SECRET}#more@127.0.0.1:1",
        f"redis://:{SECRET}?more@127.0.0.1:1",
        f"redis://:{SECRET}[@127.0.0.1:1",
        f"redis://[oops:{SECRET}@",
        f"redis://:{SECRET}@127.0.0.1:port",
        f"redis://127.0.0.1:1/?nonsense={SECRET}",
        f"redis://127.0.0.1:1/?socket_timeout={SECRET}",
        f"http://:{SECRET}@127.0.0.1:1",
        f":{SECRET}@127.0.0.1",
        "",
    ],
)
def test_an_address_that_makes_no_sense_is_told_without_its_secret(url: str) -> None:
    done = braid("init", "--url", url, *NAMED)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error ")


def test_an_address_that_makes_no_sense_is_told_in_json_too() -> None:
    done = braid("init", "--url", f"redis://:{SECRET}/more@127.0.0.1:1", *NAMED, "--json")
    assert (done.returncode, done.stderr, set(json.loads(done.stdout))) == (1, "", {"error", "code", "url"})


# Help.


@pytest.mark.parametrize(
    ("line", "example"),
    [
        ("init", "Example: braid init --url redis://localhost:6379 --region 1 --name us-east"),
        ("tune id-mode", "Example: braid tune id-mode liberal --config braid.toml"),
    ],
)
def test_help_shows_an_example(line: str, example: str) -> None:
    done = braid(*line.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert example in unframed(done.stdout)


def test_help_lists_the_verbs_and_a_bare_call_is_misuse() -> None:
    helped, bare = braid("--help"), braid()
    assert (helped.returncode, bare.returncode) == (0, 2)
    for verb in ("init", "tune"):
        assert verb in helped.stdout


def test_the_installed_command_is_this_one() -> None:
    [script] = entry_points(group="console_scripts", name="braid")
    assert script.value == "braidstream.cli:main"


@pytest.mark.parametrize("verb", ["gateway", "console"])
def test_a_certificate_that_is_missing_is_named(tmp_path: Path, verb: str) -> None:
    config = write_config(tmp_path / "braid.toml", {1: "redis://127.0.0.1:1"})
    words = ("--region", "region-1") if verb == "gateway" else ("--listen", "0")
    done = braid(verb, "--config", str(config), *words, "--tls-cert", str(tmp_path / "none.crt"))
    assert done.returncode == 1
    assert "none.crt: " in done.stderr
    assert "Traceback" not in done.stderr
