"""What clients raise can be caught as people expect: by our class, and by redis-py's."""

import pytest
import redis

import braidstream
from tests.support.clients import Opener
from tests.support.regions import become
from tests.support.servers import Engine


def test_a_refusal_is_ours_and_an_error_reply(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url)
    client.xadd("orders", {"n": 1})
    with pytest.raises(braidstream.RefusedError, match="^XADD refused by braidstream") as raised:
        client.xadd("orders", {"n": 1}, id="1-1")
    assert isinstance(raised.value, redis.ResponseError)
    assert isinstance(raised.value, braidstream.BraidError)


@pytest.mark.parametrize("transaction", [True, False], ids=["MULTI", "pipeline"])
def test_a_refusal_in_a_pipeline_names_its_command(opened: Opener, engine: Engine, transaction: bool) -> None:
    become(engine)
    pipe = opened(engine.url).pipeline(transaction=transaction)
    pipe.xadd("orders", {"n": 1})
    pipe.xadd("orders", {"n": 1}, id="1-1")
    with pytest.raises(braidstream.RefusedError, match=r"Command # 2 \(XADD orders 1-1 n 1\)"):
        pipe.execute()


def test_a_server_that_is_no_region_is_an_error_of_redis_py_too(opened: Opener, engine: Engine) -> None:
    client = opened(engine.url)
    with pytest.raises(braidstream.NotARegionError, match="braid init"):
        client.xadd("orders", {"n": 1})
    with pytest.raises(redis.RedisError):
        client.pipeline().xadd("orders", {"n": 1}).execute()


def test_missing_functions_are_an_error_of_redis_py_too(opened: Opener, engine: Engine) -> None:
    become(engine)
    with engine.client() as operator:
        operator.function_flush()
    client = opened(engine.url)
    with pytest.raises(braidstream.LibraryError, match="braid init") as raised:
        client.xadd("orders", {"n": 1})
    assert isinstance(raised.value, redis.RedisError)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("XADD", "plain", "*", "a", "b"), "^WRONGTYPE Operation"),
        (("XADD", "orders", "*", "a"), "^wrong number of arguments for 'xadd'"),
    ],
)
def test_error_replies_are_redis_pys_in_its_words(
    opened: Opener, engine: Engine, command: tuple[str, ...], text: str
) -> None:
    become(engine)
    client = opened(engine.url)
    client.lpush("plain", "x")
    with pytest.raises(redis.ResponseError, match=text) as raised:
        client.execute_command(*command)
    assert type(raised.value) is redis.ResponseError


def test_codes_reach_redis_pys_classes(opened: Opener, engine: Engine) -> None:
    become(engine)
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~bs:*", "+hgetall")
        client = opened(engine.url.replace("//", "//app:secret@"))
        try:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.xadd("orders", {"n": 1})
        finally:
            operator.execute_command("ACL", "DELUSER", "app")


@pytest.mark.parametrize("appended", [False, True])
def test_a_stream_command_after_multi_by_hand_is_refused(
    opened: Opener, engine: Engine, appended: bool
) -> None:
    become(engine)
    client = opened(engine.url, single_connection_client=True)
    if appended:
        client.xadd("orders", {"n": 1})
    client.execute_command("MULTI")
    with pytest.raises(braidstream.RefusedError, match=r"Use pipeline\(\)"):
        client.xadd("orders", {"n": 1})
    client.execute_command("SET", "plain", "x")
    assert client.execute_command("EXEC") in ([b"OK"], [True])
    assert client.xadd("orders", {"n": 1})
    assert client.xlen("orders") == 1 + appended
    pipe = opened(engine.url).pipeline(transaction=False)
    for command in (("MULTI",), ("XADD", "orders", "*", "n", "1"), ("EXEC",)):
        pipe.execute_command(*command)
    with pytest.raises(braidstream.RefusedError, match=r"Use pipeline\(\)"):
        pipe.execute()
