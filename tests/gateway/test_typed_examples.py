"""Examples of ST and IP (docs/design/requirements.md), typed into redis-cli at a gateway.

`<a>` stands for an ID: what is printed where it first stands is what it means from then on.
"""

from collections.abc import Iterator

import pytest

from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.typist import Typist, play


@pytest.fixture
def flavour() -> Flavour:
    return "redis-7.0"


@pytest.fixture(params=["strict", "liberal"])
def typist(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Typist]:
    become(engine, id_mode=request.param)
    one = Typist(engine, client_of(engine, decode_responses=True), request.param)
    yield one
    one.close()


@pytest.fixture
def liberal_typist(engine: Engine) -> Iterator[Typist]:
    become(engine, id_mode="liberal")
    one = Typist(engine, client_of(engine, decode_responses=True), "liberal")
    yield one
    one.close()


def test_iterating_a_stream(typist: Typist) -> None:
    play(typist, """
        > XADD writers * name Virginia surname Woolf
        "<a>"
        > XADD writers * name Jane surname Austen
        "<b>"
        > XADD writers * name Toni surname Morrison
        "<c>"
        > XLEN writers
        (integer) 3
        > XRANGE writers - + COUNT 2
        1) 1) "<a>"
           2) 1) "name"
              2) "Virginia"
              3) "surname"
              4) "Woolf"
        2) 1) "<b>"
           2) 1) "name"
              2) "Jane"
              3) "surname"
              4) "Austen"
        > XRANGE writers (<b> + COUNT 2
        1) 1) "<c>"
           2) 1) "name"
              2) "Toni"
              3) "surname"
              4) "Morrison"
        > XRANGE writers (<c> + COUNT 2
        (empty array)
        > XREVRANGE writers + - COUNT 1
        1) 1) "<c>"
           2) 1) "name"
              2) "Toni"
              3) "surname"
              4) "Morrison"
        > XRANGE writers <b> <b>
        1) 1) "<b>"
           2) 1) "name"
              2) "Jane"
              3) "surname"
              4) "Austen"
        > XDEL writers <b> <b>
        (integer) 1
        > XLEN writers
        (integer) 2
        > XRANGE somestream - +
        (empty array)
    """)  # fmt: skip


def test_reading_one_and_two_streams(typist: Typist) -> None:
    play(typist, """
        > XADD mystream * id 10
        "<a>"
        > XADD mystream * id 20
        "<b>"
        > XADD mystream * id 30
        "<c>"
        > XADD writers * name Jane
        "<w>"
        > XREAD COUNT 2 STREAMS mystream writers 0 0
        1) 1) "mystream"
           2) 1) 1) "<a>"
                 2) 1) "id"
                    2) "10"
              2) 1) "<b>"
                 2) 1) "id"
                    2) "20"
        2) 1) "writers"
           2) 1) 1) "<w>"
                 2) 1) "name"
                    2) "Jane"
        > XREAD COUNT 50 STREAMS mystream <b>
        1) 1) "mystream"
           2) 1) 1) "<c>"
                 2) 1) "id"
                    2) "30"
        > XREAD COUNT 50 STREAMS mystream $
        (nil)
        > XREAD BLOCK 10 STREAMS mystream $
        (nil)
        > XREAD STREAMS mystream writers 0
        (error) ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.
    """)  # fmt: skip


def test_explicit_ids_and_capped_streams(liberal_typist: Typist) -> None:
    play(liberal_typist, """
        > XADD mystream 0-0 id 1
        (error) ERR The ID specified in XADD must be greater than 0-0
        > XADD mystream 0-1 id 1
        "0-1"
        > XADD mystream 444444444-2 id 2
        "444444444-2"
        > XADD mystream 444444444-2 id 2
        (error) ERR The ID specified in XADD is equal or smaller than the target stream top item
        > XADD mystream 555555555 id 3
        "555555555-0"
        > XADD mystream 649085820 id 4
        "649085820-0"
        > XTRIM mystream MINID 649085820
        (integer) 3
        > XADD mystream MAXLEN = 2 649085820-1 id 5
        "649085820-1"
        > XADD mystream MAXLEN = 2 649085821-1 id 6
        "649085821-1"
        > XRANGE mystream - +
        1) 1) "649085820-1"
           2) 1) "id"
              2) "5"
        2) 1) "649085821-1"
           2) 1) "id"
              2) "6"
        > XTRIM mystream MAXLEN 1000
        (integer) 0
        > XTRIM mystream MAXLEN 1
        (integer) 1
        > XLEN mystream
        (integer) 1
    """)  # fmt: skip


def test_strict_mode_refuses_full_ids_and_says_what_to_do(engine: Engine) -> None:
    become(engine)
    one = Typist(engine, client_of(engine, decode_responses=True), "strict")
    try:
        assert one.type("XADD mystream 555555555-1 id 1").startswith("(error) ")
        play(one, """
            > XADD mystream 555555555 id 1
            "555555555-1"
        """)  # fmt: skip
    finally:
        one.close()


def test_lists_and_plain_keys_pass_unchanged(typist: Typist) -> None:
    play(typist, """
        > RPUSH queue one two three
        (integer) 3
        > LPOP queue 2
        1) "one"
        2) "two"
        > BLPOP queue 1
        1) "queue"
        2) "three"
        > PUBLISH channel message
        (integer) 0
        > XADD queue * id 1
        "<a>"
        > TYPE queue
        stream
    """)  # fmt: skip


def test_idempotent_production(typist: Typist) -> None:
    play(typist, """
        > XADD mystream IDMP producer-1 iid-1 * field value
        "<a>"
        > XADD mystream IDMP producer-1 iid-1 * field value
        "<a>"
        > XADD mystream IDMP producer-2 iid-1 * field value
        "<b>"
        > XADD mystream IDMPAUTO producer-2 * field value
        "<c>"
        > XADD mystream IDMPAUTO producer-2 * field value
        "<c>"
        > XADD mystream IDMPAUTO producer-2 * field other
        "<d>"
        > XLEN mystream
        (integer) 4
        > XRANGE mystream <a> <a>
        1) 1) "<a>"
           2) 1) "field"
              2) "value"
        > XCFGSET mystream IDMP-DURATION 100 IDMP-MAXSIZE 100
        OK
        > XADD mystream IDMP producer-1 iid-1 * field value
        "<a>"
        > XCFGSET mystream IDMP-DURATION 300 IDMP-MAXSIZE 1000
        OK
        > XADD mystream IDMP producer-1 iid-1 * field value
        "<e>"
        > XLEN mystream
        (integer) 5
        > XADD nostream NOMKSTREAM IDMP producer-1 iid-1 * field value
        (nil)
        > SET plain 1
        OK
        > XADD plain IDMP producer-1 iid-1 * field value
        (error) WRONGTYPE Operation against a key holding the wrong kind of value
        > XADD mystream IDMP producer-1 iid-1 MAXLEN * field value
        (error) ERR value is not an integer or out of range
        > XADD mystream IDMP producer-1 iid-2 IDMPAUTO producer-1 * field value
        (error) ERR syntax error, IDMP/IDMPAUTO specified multiple times
        > XCFGSET nostream IDMP-DURATION 300
        (error) ERR no such key
        > XCFGSET mystream IDMP-DURATION 86401
        (error) ERR IDMP-DURATION must be between 1 and 86400 seconds
    """)  # fmt: skip
    facts = typist.execute_command("XINFO", "STREAM", "mystream")
    told = dict(zip(facts[::2], facts[1::2], strict=True))
    names = ("idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates")
    assert [told[name] for name in names] == [300, 1000, 1, 1, 5, 3]
