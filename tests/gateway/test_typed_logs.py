"""RCP 11, typed into redis-cli at a gateway, by both protocols. What it prints is what the document says."""

from collections.abc import Iterator

import pytest
import redis

from tests.support.gateways import Served
from tests.support.matrix import on_every_engine
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.typist import Typist, play

flavour = on_every_engine


@pytest.fixture(params=[2, 3])
def typist(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Typist]:
    become(engine)
    one = Typist(engine, client_of(engine, decode_responses=True))
    one.type(f"HELLO {request.param}")
    yield one
    one.close()


def test_writing_and_reading_by_offset(typist: Typist) -> None:
    play(
        typist,
        """
        > TWRITE log tag1 msg1
        (integer) 1
        > TWRITE log tag2 msg2
        (integer) 2
        > twrite log entries a 1 b 2 c 3
        1) (integer) 3
        2) (integer) 4
        3) (integer) 5
        > TREAD log 1 2
        1) 1) (integer) 1
           2) "tag1"
           3) "msg1"
        2) 1) (integer) 2
           2) "tag2"
           3) "msg2"
        > TREAD log 5 10
        1) 1) (integer) 5
           2) "c"
           3) "3"
        > TREAD log 6 10
        (empty array)
        > TREAD log 6 10 BLOCK 10
        (nil)
        > TREAD log 1 0 WITHINFO
        1) 1) (integer) 1
           2) (integer) 5
        > TEVICT log 2
        (integer) 2
        > TREAD log 1 3 WITHINFO
        1) 1) (integer) 3
           2) (integer) 5
        2) (nil)
        3) (nil)
        4) 1) (integer) 3
           2) "a"
           3) "1"
        > TREAD log 1 1 SKIP
        1) 1) (integer) 3
           2) "a"
           3) "1"
        > TWRITE log BACKLOG 1000 ENTRIES d 4
        1) (integer) 6
        > TEVICT log -1000
        (integer) 0
        > TWRITE log IDMP me 1 e 5
        (integer) 7
        > TWRITE log IDMP me 1 e 5
        (integer) 7
        > TWRITE log IDMP me 2 BACKLOG 1000 ENTRIES f 6 g 7
        1) (integer) 8
        2) (integer) 9
        > TWRITE log IDMP me 2 BACKLOG 1000 ENTRIES f 6 g 7
        1) (integer) 8
        2) (integer) 9
        > TCFGSET log PENDING 100 BACKLOG 5000
        OK
        > TYPE log
        stream
        > OBJECT ENCODING log
        "log"
        > XADD log * field value
        (error) ERR XADD refused by braidstream: 'log' is a log, its offsets are generated. Use TWRITE.
        > XADD log 0-9 field value
        (error) ERR XADD refused by braidstream: 'log' is a log, its offsets are generated. Use TWRITE.
        > DEL log
        (integer) 1
        > TWRITE log tag10 msg10
        (integer) 10
        """,
    )


@pytest.mark.parametrize("protocol", [2, 3])
def test_logs_in_a_multi(served: Served, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol) as client, client.pipeline() as pipe:
        pipe.execute_command("TWRITE", "log", "t", "1")
        pipe.execute_command("TWRITE", "log", "ENTRIES", "t", "2", "t", "3")
        pipe.execute_command("TREAD", "log", 2, 10)
        pipe.execute_command("TREAD", "log", 1, 1, "BLOCK", 0)
        pipe.execute_command("TREAD", "log", 4, 1, "BLOCK", 0)
        rows = [[n, b"t", b"%d" % n] for n in (1, 2, 3)]
        assert pipe.execute() == [1, [2, 3], rows[1:], rows[:1], []]


def test_what_is_wrong_is_said(typist: Typist) -> None:
    play(
        typist,
        """
        > TREAD log
        (error) ERR wrong number of arguments for 'tread' command
        > TREAD log a 1
        (error) ERR offset is not an integer or out of range
        > TREAD log 1 a
        (error) ERR count is not an integer or out of range
        > TREAD log 1 1 BLOCK -1
        (error) ERR timeout is negative
        > TWRITE log ENTRIES a 1 b
        (error) ERR wrong number of arguments for 'twrite' command
        > TEVICT log OLDER
        (error) ERR syntax error
        > SET text value
        OK
        > TWRITE text a 1
        (error) WRONGTYPE Operation against a key holding the wrong kind of value
        > TREAD text 1 1
        (error) WRONGTYPE Operation against a key holding the wrong kind of value
        """,
    )
