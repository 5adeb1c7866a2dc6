"""Servers and clusters for bulk work (Spark): plans by key, and connections that carry raw bytes.

redis-py opens and authenticates a connection. Then a `Wire` sends and receives bytes on its socket
(bulk_wire.py). Of a cluster: bulk_cluster.py. Clients do not use this.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from braidstream.errors import OptionError
from braidstream.net.address import shown, split_sentinel
from braidstream.net.bulk_cluster import BulkCluster
from braidstream.net.bulk_wire import Wire
from braidstream.net.compat import QUICK_HELLO
from braidstream.net.sender import NotResentError, Sender
from braidstream.net.sentinel_pool import sentinel_pool
from braidstream.protocol.identify import INFO_CLUSTER, is_cluster
from braidstream.protocol.plan import Batch, Plan, run

__all__ = ["RedisError", "Server", "Wire", "shown"]

T = TypeVar("T")

TRIES = 3


class Server:
    """One server, or one cluster. `options` are redis-py's, as text or typed.

    The option cluster: whether it is one. Without it, the server is asked at the first use.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        typed = {name: _typed(name, value) for name, value in (options or {}).items()}
        self._is_cluster: bool | None = typed.pop("cluster", None)
        # RESP2, because the page parser reads only that. redis-py retries lost connections.
        settings = {"retry": Retry(ExponentialBackoff(cap=1.0), TRIES), **QUICK_HELLO, **typed}
        settings["protocol"] = 2
        group = split_sentinel(url)
        # Fails now if the URL is invalid, also for a cluster.
        parse_url(group.server if group else url)  # type: ignore[no-untyped-call]
        self.url = url
        self._settings = settings
        self._nodes: BulkCluster | None = None
        if self._is_cluster and group is not None:
            raise OptionError("redis.cluster", "sentinels watch one server, not a cluster")
        self._client: Any = None
        if group is not None:
            self._is_cluster = False
            self._client = redis.Redis(connection_pool=sentinel_pool(url, settings))
        elif not self._is_cluster:
            self._client = redis.Redis.from_url(url, **settings)
        if self._client is not None:
            self._client.connection_pool.make_connection()  # fails now on an unknown option; opens no socket

    def close(self) -> None:
        for each in (self._client, self._nodes):
            if each is not None:
                each.close()

    @property
    def is_cluster(self) -> bool:
        if self._is_cluster is None:
            self._is_cluster = _run(self._client.connection_pool, _asks_cluster())
        return self._is_cluster

    @property
    def _cluster(self) -> BulkCluster | None:
        """The cluster, connected on first use; None if it is one server."""
        if self._nodes is None and self.is_cluster:
            self._nodes = BulkCluster(self.url, self._settings)
        return self._nodes

    def by_node(self, items: Iterable[T], key_of: Callable[[T], bytes]) -> list[list[T]]:
        """Groups of items whose keys are on the same server."""
        if self._cluster is not None:
            return self._cluster.by_node(items, key_of)
        whole = [*items]
        return [whole] if whole else []

    def run(self, plan: Plan[T], key: bytes | None = None) -> T:
        """Run a plan on the server that holds a key; of a cluster, on any without a key."""
        if self._cluster is not None:
            return self._cluster.run(plan, key)
        return _run(self._client.connection_pool, plan)

    def run_everywhere(self, make: Any) -> list[Any]:
        """Run a plan on every primary."""
        return [run_here(make()) for run_here in self.each_primary()]

    def each_primary(self) -> list[Callable[[Plan[Any]], Any]]:
        """For every primary: a function that runs a plan on it, and there only."""
        pools = [self._client.connection_pool] if self._cluster is None else self._cluster.pools()
        return [partial(_run, pool) for pool in pools]

    @contextmanager
    def wire(self, key: bytes) -> Iterator[Wire]:
        """A raw connection to the server that holds a key. It is closed if the block raises."""
        if self._cluster is not None:
            with self._cluster.wire(key) as wire:
                yield wire
            return
        pool = self._client.connection_pool
        conn = pool.get_connection()
        try:
            yield Wire(conn)
        except BaseException:
            conn.disconnect()
            raise
        finally:
            pool.release(conn)

    def in_slot(self, key: bytes, work: Callable[[Wire], T]) -> T:
        """Work with a raw connection to the server that holds a key. On a cluster, a step of the work that
        was refused because the slot moves has done nothing, and all of the work begins again."""
        if self._cluster is not None:
            return self._cluster.in_slot(key, work)
        with self.wire(key) as wire:
            return work(wire)


def _asks_cluster() -> Plan[bool]:
    [info] = yield Batch([INFO_CLUSTER], resend=True, attempt=True)
    return is_cluster(info)


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name == "cluster":
        return value.lower() in ("true", "1", "yes")
    parser = URL_QUERY_ARGUMENT_PARSERS.get(name)
    return value if parser is None else parser(value)  # type: ignore[operator]


def _run(pool: Any, plan: Plan[T]) -> T:
    conn = pool.get_connection()
    try:
        return run(plan, Sender(conn))
    except NotResentError as lost:
        raise lost.for_user() from None
    except BaseException:
        conn.disconnect()
        raise
    finally:
        pool.release(conn)
