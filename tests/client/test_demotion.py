"""A pool of Sentinel whose connection still leads to a server that is a replica now."""

from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from tests.support.clients import Opener
from tests.support.regions import become, client_of
from tests.support.replicas import promote, replica_of
from tests.support.servers import Engine


class Sentinels:
    """Knows the primary, as sentinels do after a failover."""

    def __init__(self, engine: Engine, *, is_async: bool) -> None:
        self.engine, self._is_async = engine, is_async

    def discover_master(self, name: str) -> Any:
        place = ("127.0.0.1", self.engine.port)

        async def found() -> tuple[str, int]:
            return place

        return found() if self._is_async else place


def _client(opened: Opener, sentinels: Sentinels) -> Any:
    kind = redis.sentinel if opened.runner is None else redis.asyncio.sentinel
    pool: Any = kind.SentinelConnectionPool("main", sentinels, **opened.retry(3))
    if opened.runner is None:
        opened.stack.callback(pool.disconnect)
    else:
        opened.stack.callback(lambda: opened.runner.run(pool.disconnect()))
    return opened.constructed(connection_pool=pool)


@pytest.mark.parametrize("write", ["XADD", "XADD NOMKSTREAM", "pipeline", "MULTI"])
def test_a_write_that_a_replica_refused_goes_to_the_new_primary(
    opened: Opener, engine: Engine, write: str
) -> None:
    become(engine)
    with replica_of(engine) as replica:
        sentinels = Sentinels(engine, is_async=opened.runner is not None)
        client = _client(opened, sentinels)
        client.xadd("x", {"n": 0})
        promote(replica)
        sentinels.engine = replica
        with engine.client() as old:
            old.execute_command("REPLICAOF", "127.0.0.1", replica.port)
            try:
                if write.startswith("XADD"):
                    client.xadd("x", {"n": 1}, nomkstream="NOMKSTREAM" in write)
                else:
                    client.pipeline(transaction=write == "MULTI").xadd("x", {"n": 1}).execute()
            finally:
                old.execute_command("REPLICAOF", "NO", "ONE")
        with client_of(replica, decode_responses=True) as here:
            assert [fields["n"] for _, fields in here.xrange("x")] == ["0", "1"]
