"""`braid dead` as an operator runs it."""

import json

import pytest

import braidstream
from braidstream.clients.commands import ViewOf
from braidstream.consumers.dead_letters import DeadLetter, page, retry
from braidstream.errors import ReplyError
from braidstream.plan.plan import Plan
from tests.support.cli import braid
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine

flavour = on_the_newest


@pytest.fixture
def letters(region: braidstream.Redis) -> list[str]:
    """Three dead letters: of two groups, one of them with bytes and a field that occurs twice."""
    found = []
    for number, group, reason in ((1, "billing", "ValueError: no"), (2, "billing", "TimeoutError: late")):
        letter = DeadLetter("orders", f"{number}-1", group, "w", 5, reason, (b"order", b"%d" % number))
        found.append(region.execute_command("XADD", "orders.dead", "*", *letter.to_words()))
    odd = DeadLetter("orders", "3-1", "mail", "w", 1, "rejected: odd", (b"a", b"\xff", b"a", b"2"))
    found.append(region.execute_command("XADD", "orders.dead", "*", *odd.to_words()))
    region.xadd("orders.dead", {"no": "dead letter"})
    return found


def run(engine: Engine, *words: str, code: int = 0) -> str:
    done = braid("dead", *words, "--url", engine.url)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def test_list_shows_dead_letters_and_leaves_out_other_entries(engine: Engine, letters: list[str]) -> None:
    lines = run(engine, "list", "orders.dead").splitlines()
    assert [line.split()[0] for line in lines[1:]] == letters
    assert lines[1].split() == [letters[0], "orders", "1-1", "billing", "5", "ValueError:", "no"]
    told = json.loads(run(engine, "list", "orders.dead", "--reason", "Timeout", "--json"))
    assert [each["id"] for each in told["letters"]] == [letters[1]]
    told = json.loads(run(engine, "list", "orders.dead", "--group", "mail", "--count", "1", "--json"))
    assert [each["original"] for each in told["letters"]] == ["3-1"]
    assert run(engine, "list", "orders.dead", "--group", "no") == "orders.dead has no dead letters.\n"


def test_a_stream_that_does_not_exist_has_no_list(engine: Engine, region: braidstream.Redis) -> None:
    missing = braid("dead", "list", "nosuch.dead", "--url", engine.url)
    assert (missing.returncode, "there is no stream 'nosuch.dead'" in missing.stderr) == (1, True)


def test_show_prints_the_entry_and_says_if_there_is_none(engine: Engine, letters: list[str]) -> None:
    assert run(engine, "show", "orders.dead", letters[2]).splitlines()[-2:] == ["  a = \\xff", "  a = 2"]
    assert "traceback" not in run(engine, "show", "orders.dead", letters[2])
    assert run(engine, "show", "orders.dead", "5-5", code=1) == "orders.dead has no dead letter 5-5.\n"


@pytest.mark.parametrize("first", [b"order", b"dead.traceback"], ids=["any field", "a field of that name"])
@pytest.mark.parametrize("trace", ["Traceback:\n  KeyError: 'x'", ""], ids=["traceback", "none"])
def test_a_traceback_is_shown_and_is_no_field_of_the_entry(
    engine: Engine, region: braidstream.Redis, first: bytes, trace: str
) -> None:
    letter = DeadLetter("orders", "1-1", "mail", "w", 1, "KeyError: 'x'", (first, b"1"), trace)
    entry = region.execute_command("XADD", "orders.dead", "*", *letter.to_words())
    told = run(engine, "show", "orders.dead", entry)
    assert ("traceback:\nTraceback:\n  KeyError: 'x'\n" in told) == bool(trace)
    assert json.loads(run(engine, "show", "orders.dead", entry, "--json")).get("traceback", "") == trace
    run(engine, "retry", "orders.dead", entry)
    assert [fields for _, fields in region.xrange("orders")] == [{first.decode(): "1"}]


def test_retry_appends_the_entry_as_it_was_and_deletes_the_letter(
    engine: Engine, region: braidstream.Redis, letters: list[str]
) -> None:
    assert run(engine, "retry", "orders.dead", letters[0]) == "1 retried.\n"
    assert [fields for _, fields in region.xrange("orders")] == [{"order": "1"}]
    assert run(engine, "retry", "orders.dead", "--all", "--to", "again") == "2 retried.\n"
    with engine.client() as bare, braidstream.Redis.from_url(engine.url) as client:
        assert bare.ping()
        assert [fields for _, fields in client.xrange("again")] == [{b"order": b"2"}, {b"a": b"2"}]
    assert [fields for _, fields in region.xrange("orders.dead")] == [{"no": "dead letter"}]
    assert run(engine, "retry", "orders.dead", letters[0], code=1).startswith(
        "orders.dead has no dead letter"
    )


def test_retry_writes_only_into_the_stream_that_the_name_implies(
    engine: Engine, region: braidstream.Redis, letters: list[str]
) -> None:
    """Whoever may append to orders.dead chooses dead.stream, and would use the rights of the operator."""
    forged = DeadLetter("accounts", "1-1", "mail", "w", 1, "no", (b"forged", b"1"))
    entry = region.execute_command("XADD", "orders.dead", "*", *forged.to_words())
    told = run(engine, "retry", "orders.dead", "--all", code=1)
    assert told.startswith("3 retried, 1 left: ")
    assert "('accounts')" in told
    assert "--from STREAM --to STREAM" in told
    assert (region.exists("accounts"), region.xlen("orders")) == (0, 3)
    told = json.loads(run(engine, "retry", "orders.dead", entry, "--json", code=1))
    assert (told["code"], told["left"]) == ("OTHERSTREAM", {entry: "accounts"})
    with pytest.raises(ReplyError, match="does not imply"):
        retry("orders.dead", [(entry.encode(), forged)], None)
    other = DeadLetter("mails", "1-1", "mail", "w", 1, "no", (b"mail", b"1"))
    region.execute_command("XADD", "orders.dead", "*", *other.to_words())
    words = ("--all", "--from", "accounts", "--to", "accounts")
    assert run(engine, "retry", "orders.dead", *words) == "1 retried.\n"
    assert (region.xlen("accounts"), region.exists("mails")) == (1, 0)


def test_retry_to_a_log_is_refused_and_deletes_nothing(
    engine: Engine, region: braidstream.Redis, letters: list[str]
) -> None:
    region.twrite("book", "order", "0")
    done = braid("dead", "retry", "orders.dead", "--all", "--to", "book", "--url", engine.url)
    assert done.returncode != 0
    assert "'book' is a log" in done.stdout + done.stderr
    told = json.loads(run(engine, "list", "orders.dead", "--json"))
    assert [each["id"] for each in told["letters"]] == letters


@pytest.mark.parametrize("trip", range(1, 9))
def test_two_who_retry_a_letter_at_once_append_it_once(
    engine: Engine, region: braidstream.Redis, letters: list[str], trip: int
) -> None:
    """The other one is as fast as can be, before any round trip of the first."""
    ends = letters[0], letters[1]
    chosen = [(entry, letter) for entry, letter in region.converse(page("orders.dead", *ends, 9)) if letter]
    trips = 0

    def overtaken(view_of: ViewOf) -> Plan[list[str | None]]:
        nonlocal trips
        plan = retry("orders.dead", chosen, None)(view_of)
        batch = next(plan)
        while True:
            trips += 1
            if trips == trip:
                run(engine, "retry", "orders.dead", letters[0])
            try:
                batch = plan.send((yield batch))
            except StopIteration as stop:
                return list(stop.value)

    with braidstream.Redis.from_url(engine.url) as client:
        found = client.converse(overtaken)
    assert [each is None for each in found] == [trip <= trips, False]
    assert sorted(fields["order"] for _, fields in region.xrange("orders")) == ["1", "2"]
    assert region.xlen("orders.dead") == 2


def test_a_letter_is_retried_while_new_ones_arrive_all_the_time(
    engine: Engine, region: braidstream.Redis, letters: list[str]
) -> None:
    [(entry, letter)] = region.converse(page("orders.dead", letters[0], letters[0], 1))
    assert letter is not None

    def crowded(view_of: ViewOf) -> Plan[list[str | None]]:
        plan = retry("orders.dead", [(entry, letter)], None)(view_of)
        batch = next(plan)
        while True:
            region.xadd("orders.dead", {"another": "letter"})
            try:
                batch = plan.send((yield batch))
            except StopIteration as stop:
                return list(stop.value)

    with braidstream.Redis.from_url(engine.url) as client:
        assert client.converse(crowded) == [region.xrange("orders")[0][0]]
    assert region.xrange("orders.dead", letters[0], letters[0]) == []


def test_a_letter_in_a_native_stream_is_retried_once(engine: Engine, region: braidstream.Redis) -> None:
    letter = DeadLetter("orders", "1-1", "billing", "w", 5, "no", (b"order", b"1"))
    with engine.client() as bare:
        entry = bare.execute_command("XADD", "orders.dead", "*", *letter.to_words())
        for _ in range(2):
            region.converse(retry("orders.dead", [(entry, letter)], None))
        assert (bare.xlen("orders.dead"), region.xlen("orders")) == (0, 1)


def test_drop_deletes_letters(engine: Engine, region: braidstream.Redis, letters: list[str]) -> None:
    assert run(engine, "drop", "orders.dead", letters[0], letters[1]) == "2 dropped.\n"
    assert run(engine, "drop", "orders.dead", "--all") == "1 dropped.\n"
    assert region.xlen("orders.dead") == 1
    assert region.exists("orders") == 0


def test_ids_or_all_must_be_given(engine: Engine, letters: list[str]) -> None:
    for words in (["drop", "orders.dead"], ["retry", "orders.dead", letters[0], "--all"]):
        done = braid("dead", *words, "--url", engine.url)
        assert done.returncode == 2
        assert "--all" in done.stderr
