"""Our side as a cluster, and scripts that a cluster can answer.

In half of the scripts all names share a slot. In the others they lie on all nodes, and what needs one slot is
left out: the client refuses it before it sends anything.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import redis
from redis.crc import key_slot

from braidstream.clients.shared import new_session
from braidstream.commands.table import TABLE
from braidstream.model import keys
from braidstream.model.fields import ConfigField
from tests.oracle.differential.generator import PLAINS, STREAMS
from tests.oracle.differential.script import Call, IdMode, Mode, Ref, Script, Step, Word, command_of, upper
from tests.oracle.differential.sides import Servers, Sides
from tests.support.clients import Opener
from tests.support.cluster import Cluster, become_cluster, facts_of
from tests.support.servers import Engine, Flavour

TAG = b"{t}"
NAMES = frozenset(STREAMS + PLAINS)
EVERYWHERE = (b"KEYS", b"SCAN", b"DBSIZE", b"RANDOMKEY", b"FLUSHDB", b"FLUSHALL")
READS = (b"XREAD", b"XREADGROUP")


class OneCluster:
    """A cluster client whose replies have the shape that one server gives them."""

    def __init__(self, opened: Opener, cluster: Cluster, protocol: int) -> None:
        self.client = opened(cluster.url, protocol=protocol, **opened.retry(0))
        if opened.kind == "asyncio":
            self._theirs = self.client.target
            for name in set(self._theirs.response_callbacks) - {"COMMAND"}:  # it needs that one itself
                del self._theirs.response_callbacks[name]
            return
        self._theirs = self.client
        for node in self.client.get_nodes():
            self.client.get_redis_connection(node).response_callbacks = {}

    def forget(self) -> None:
        self._theirs.session = new_session(False, None, is_cluster=True)

    def execute_command(self, *argv: bytes) -> Any:
        if argv[0].upper() == b"SCAN" and len(argv) > 1:
            return self._scan(argv)
        # redis-py's own cluster client takes the command as text only.
        reply = self.client.execute_command(argv[0].decode(), *argv[1:])
        return next(iter(reply.values())) if argv[0].upper() in (b"FLUSHDB", b"FLUSHALL") else reply

    def _scan(self, argv: tuple[bytes, ...]) -> Any:
        """All pages of all nodes, as if they were the last one."""
        found = list[bytes]()
        for node in self.client.get_primaries():
            cursor: Any = argv[1]
            while True:
                page = self.client.execute_command(argv[0], cursor, *argv[2:], target_nodes=node)
                cursors, keys_ = page if isinstance(page[0], dict) else ({node.name: page[0]}, page[1])
                found += keys_
                cursor = cursors[node.name]
                if int(cursor) == 0:
                    break
        return [b"0", found]

    @contextmanager
    def pipeline(self, transaction: bool) -> Iterator[Any]:
        with self.client.pipeline(transaction=transaction) as pipe:
            yield TextCommands(pipe)


class TextCommands:
    """A pipeline that gets the command as text."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def execute_command(self, *argv: bytes) -> None:
        self._pipe.execute_command(argv[0].decode(), *argv[1:])

    def execute(self, raise_on_error: bool) -> Any:
        return self._pipe.execute(raise_on_error)


class ClusterServers(Servers):
    """A region that is a cluster, and a bare engine of the same kind."""

    def __init__(self, flavour: Flavour) -> None:
        self.flavour = flavour
        self._engine, self._cluster = Engine(flavour), Cluster(flavour)
        self._pools = list[redis.ConnectionPool]()
        self._stack = ExitStack()
        self._clients = dict[int, list[OneCluster]]()

    def _start(self) -> None:
        self._engine.start()
        self._cluster.start()
        become_cluster(self._cluster, id_mode="liberal")
        self._admins = [each.client() for each in (*self._cluster.nodes, self._engine)]
        for admin in self._admins:
            admin.config_set("stream-node-max-bytes", 0)
        self._bare = {protocol: self._pool(self._engine, protocol) for protocol in (2, 3)}
        # Two clients use the same streams: one of each kind.
        kinds = [Opener(kind, self._stack, "RedisCluster") for kind in ("sync", "asyncio")]
        self._clients = {
            protocol: [OneCluster(opened, self._cluster, protocol) for opened in kinds] for protocol in (2, 3)
        }

    def _stop(self) -> None:
        self._stack.close()
        for pool in self._pools:
            pool.disconnect()
        self._cluster.stop()
        self._engine.stop()

    def reset(self, protocol: int, node_entries: int, id_mode: IdMode) -> Sides:
        for admin in self._admins:
            admin.execute_command("FLUSHALL", "SYNC")
            admin.config_set("stream-node-max-entries", node_entries)
        facts_of(self._cluster, {ConfigField.ID_MODE: id_mode.encode()})
        bare = redis.Redis(connection_pool=self._bare[protocol])
        bare.response_callbacks = {}
        for client in self._clients[protocol]:
            client.forget()
        return Sides(self._engine, self._clients[protocol], bare)


def for_cluster(script: Script, *, spread: bool) -> Script:
    """The script, as far as a cluster can answer it. spread: names on all nodes."""
    steps = list[Step]()
    for step in script.steps:
        calls = [call if spread else _tagged(call) for call in step.calls]
        calls = [call for call in calls if _is_answered(call, step.mode)]
        if step.mode == "multi":
            while len(_slots(calls)) > 1:
                calls.pop()
        if calls and (step.mode != "multi" or _slots(calls)):
            steps.append(replace(step, calls=tuple(calls)))
    return replace(script, steps=tuple(steps))


def _is_answered(call: Call, mode: Mode) -> bool:
    """Whether redis-py and ours send a command at all, and to which node."""
    command = command_of(call)
    if command in EVERYWHERE:
        return mode == "single"
    if command not in TABLE:
        return len(call) > 1
    if command == b"COPY" and b"DB" in map(upper, call):  # a cluster has one database
        return False
    return command in READS or len(_slots([call])) < 2


def _slots(calls: Sequence[Call]) -> set[int]:
    """The slots of all names, as streams and as plain keys."""
    found = set[int]()
    for call in calls:
        argv = [word if isinstance(word, bytes) else b"0-0" for word in call]
        spec = TABLE.get(command_of(call))
        for name in argv[1:2] if spec is None else spec.names(argv):
            found |= {key_slot(name), key_slot(keys.meta(name))} if spec is not None else {key_slot(name)}
    return found


def _tagged(call: Call) -> Call:
    return (call[0], *(_with_tag(word) for word in call[1:]))


def _with_tag(word: Word) -> Word:
    if isinstance(word, Ref):
        return replace(word, name=TAG + word.name)
    return TAG + word if word in NAMES and word else word
