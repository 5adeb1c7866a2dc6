"""A user that lacks rights is told which command prints them: most often after the import has changed."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.clients.shared_multi_region import link_lag
from braidstream.operations.rights import program_rights
from tests.support.matrix import on_every_engine
from tests.support.servers import Engine

pytestmark = pytest.mark.every_engine

flavour = on_every_engine


@pytest.fixture
def app(engine: Engine, region: braidstream.Redis) -> Iterator[str]:
    """The URL of a user that was made for redis-py."""
    region.xadd("orders", {"n": 1})
    with engine.client() as operator:
        operator.execute_command(
            "ACL", "SETUSER", "app", "on", ">secret", "~orders", "+@stream", "+multi", "+exec"
        )
    yield engine.url.replace("redis://", "redis://app:secret@")
    with engine.client() as operator:
        operator.execute_command("ACL", "DELUSER", "app")


def advice(kind: str) -> str:
    return (
        "For orders, braidstream also uses bs:config and bs:*:{orders}*. "
        f"To print the rights that the user app needs: braid acl {kind} --streams orders --user app"
    )


def work(client: braidstream.Redis) -> None:
    consumer = braidstream.Consumer(client, "orders", group="billing")
    consumer.handler(lambda message: None)
    consumer.run(until_empty=True)


CALLS: dict[str, Callable[[Any], Any]] = {
    "writer": lambda client: client.xadd("orders", {"n": 1}),
    "reader": lambda client: client.xread({"orders": "0"}),
    "consumer": lambda client: client.xreadgroup("billing", "ann", {"orders": ">"}),
    "worker": work,
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_missing_right_names_user_keys_and_what_to_type(app: str, kind: str) -> None:
    with (
        braidstream.Redis.from_url(app) as client,
        pytest.raises(redis.exceptions.NoPermissionError) as raised,
    ):
        CALLS[kind](client)
    assert "'hgetall' command" in str(raised.value)
    assert str(raised.value).endswith(advice(kind))


def test_a_right_that_only_a_function_needs_is_told_too(app: str, engine: Engine) -> None:
    """As when a program with a writer's rights becomes idempotent."""
    with engine.client() as operator, braidstream.Redis.from_url(app, idempotent=True) as client:
        operator.execute_command("ACL", "SETUSER", "app", *program_rights("writer", ["orders"]))
        with pytest.raises(redis.exceptions.NoPermissionError) as raised:
            client.xadd("orders", {"n": 1})
        typed = "braid acl writer --idempotent --streams orders --user app"
        assert str(raised.value).endswith(f"that the user app needs: {typed}")
        rights = program_rights("writer", ["orders"], idempotent=True)
        operator.execute_command("ACL", "SETUSER", "app", *rights)
        assert client.xadd("orders", {"n": 1})
        # A client of several regions asks this before it goes back.
        assert client.run_plan(link_lag("eu-west")) is None


def test_a_pipeline_and_an_asyncio_client_say_the_same(app: str) -> None:
    async def add() -> None:
        async with braidstream.asyncio.Redis.from_url(app) as client:
            await client.xadd("orders", {"n": 1})

    with pytest.raises(
        redis.exceptions.NoPermissionError, match="braid acl writer --streams orders --user app"
    ):
        asyncio.run(add())
    with braidstream.Redis.from_url(app) as client:
        pipe = client.pipeline().xadd("orders", {"n": 1}).xack("orders", "billing", "1-1")
        with pytest.raises(redis.exceptions.NoPermissionError) as raised:
            pipe.execute()
    both = "braid acl consumer --streams orders --user app and: braid acl writer --streams orders --user app"
    assert both in str(raised.value)


def test_other_commands_keep_the_text_of_the_engine(app: str) -> None:
    with braidstream.Redis.from_url(app) as client, redis.Redis.from_url(app) as plain:
        for each in (client, plain):
            with pytest.raises(redis.exceptions.NoPermissionError) as raised:
                each.get("account")
            assert "braid" not in str(raised.value)
