"""A Redis cluster as a region, and slots of it that move."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from redis.exceptions import ResponseError

from braidstream.clusters.bulk import Server
from braidstream.lua.cluster_facts import Facts, facts_library, read_facts
from braidstream.model.fields import ConfigField
from braidstream.operations.membership import initialise_cluster
from braidstream.plan.plan import send_one
from tests.support.servers import START_WITHIN_S, Engine, Flavour
from tests.support.waiting import eventually

# On a machine that is busy elsewhere, a node that moves slots answers late.
PATIENCE_S = 60


class Cluster:
    """Three masters that share the 16,384 slots. `add_replica` gives one of them a replica."""

    SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))

    def __init__(self, flavour: Flavour = "redis-7.0", *, args: Sequence[str] = ()) -> None:
        self.flavour, self.args = flavour, args
        self.nodes = [Engine(flavour, args=args, cluster=True) for _ in self.SLOTS]
        self.replicas = list[Engine]()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The first node; a cluster client finds the others."""
        return self.nodes[0].url

    def start(self) -> Self:
        """Start the nodes, introduce them, and wait until each of them sees a whole cluster."""
        try:
            for node in self.nodes:
                node.start()
            for epoch, (node, slots) in enumerate(zip(self.nodes, self.SLOTS, strict=True), start=1):
                with node.client() as client:
                    client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                    if node is not self.nodes[0]:
                        client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
            self._wait_until_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_whole(self) -> None:
        for node in self.nodes:
            eventually(
                partial(_sees_all, node, len(self.nodes)),
                within_s=START_WITHIN_S,
                why=f"node {node.port} should see a cluster of {len(self.nodes)} in state ok",
            )

    def stop(self) -> None:
        for node in (*self.nodes, *self.replicas):
            node.stop()

    def add_replica(self, primary: Engine) -> Engine:
        """A replica of a primary, in sync, that takes over if it fails."""
        replica = Engine(self.flavour, args=self.args, cluster=True)
        self.replicas.append(replica)
        replica.start()
        with replica.client() as client, primary.client() as source:
            identity = source.execute_command("CLUSTER MYID").decode()
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", primary.port)
            eventually(
                lambda: identity in str(client.execute_command("CLUSTER NODES")),
                within_s=START_WITHIN_S,
                why="the replica should know its primary",
            )
            client.execute_command("CLUSTER", "REPLICATE", identity)
            eventually(
                lambda: client.info("replication").get("master_link_status") == "up",
                within_s=START_WITHIN_S,
                why="the replica should be in sync",
            )
            eventually(
                lambda: all(_knows(node, replica) for node in self.nodes),
                within_s=START_WITHIN_S,
                why="all nodes should know the replica",
            )
        return replica

    @contextmanager
    def down(self, slot: int) -> Iterator[None]:
        """No node serves a slot: with full coverage, the engine's default, every command with a key fails."""
        owner = self.owner(slot)
        others = [node for node in self.nodes if node is not owner]
        for node in (owner, *others):
            with node.client() as client:
                client.execute_command("CLUSTER DELSLOTS", slot)
        try:
            for node in self.nodes:
                eventually(partial(_is_down, node), within_s=START_WITHIN_S, why="the cluster should be down")
            yield
        finally:
            with owner.client() as client:
                client.execute_command("CLUSTER ADDSLOTS", slot)
            self._wait_until_whole()

    def flush(self, *, keep_functions: bool = False) -> None:
        for node in self.nodes:
            node.flush(keep_functions=keep_functions)

    def owner(self, slot: int) -> Engine:
        """The node that served a slot at the start."""
        return next(
            node for (first, last), node in zip(self.SLOTS, self.nodes, strict=True) if first <= slot <= last
        )


def start_alone(flavour: Flavour) -> Engine:
    """A cluster of one node: cheap, where it is about the client and not about where slots are."""
    node = Engine(flavour, cluster=True).start()
    with node.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    eventually(partial(_sees_all, node, 1), within_s=START_WITHIN_S, why="the cluster should be up")
    return node


def _knows(node: Engine, other: Engine) -> bool:
    with node.client() as client:
        nodes = client.execute_command("CLUSTER NODES")
    return any(
        place.endswith(f":{other.port}") and "slave" in about["flags"] for place, about in nodes.items()
    )


def become_cluster(
    cluster: Cluster | Engine, *, region: int = 1, name: str = "us-east", id_mode: str = "strict"
) -> None:
    """Do to a cluster what `braid init` does. id_mode: as `braid tune id-mode` will set it."""
    with closing(Server(cluster.url, {"cluster": True})) as server:
        initialise_cluster(server.each_primary(), region, name)
    if id_mode != "strict":
        facts_of(cluster, {ConfigField.ID_MODE: id_mode.encode()})


def facts_of(cluster: Cluster | Engine, changed: Facts) -> None:
    """Change facts of the region on every node."""
    with closing(Server(cluster.url, {"cluster": True})) as server:
        for run_here in server.each_primary():
            text = facts_library(run_here(read_facts()) | changed)
            run_here(send_one(("FUNCTION", "LOAD", "REPLACE", text)))


class SlotMove:
    """A slot on its way from one node to another: keys go one by one, as `redis-cli --cluster reshard` moves
    them. At the end it is back where it was, so that the next test finds the cluster as it should be.

    between: source and target, if they are not those of the start; then no other node is told.
    """

    def __init__(self, cluster: Cluster, slot: int, between: tuple[Engine, Engine] | None = None) -> None:
        self.cluster, self.slot = cluster, slot
        self.told = [] if between else cluster.nodes
        if between:
            self.source, self.target = between
        else:
            self.source = cluster.owner(slot)
            self.target = cluster.nodes[(cluster.nodes.index(self.source) + 1) % len(cluster.nodes)]

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.target is not self.cluster.owner(self.slot):
            self.finish()
            self.source, self.target = self.target, self.source
            self.begin()
        self.finish()

    def begin(self) -> None:
        with (
            self.source.client(socket_timeout=PATIENCE_S) as source,
            self.target.client(socket_timeout=PATIENCE_S) as target,
        ):
            here, there = (each.execute_command("CLUSTER MYID").decode() for each in (source, target))
            target.execute_command("CLUSTER SETSLOT", self.slot, "IMPORTING", here)
            source.execute_command("CLUSTER SETSLOT", self.slot, "MIGRATING", there)

    def left(self) -> list[bytes]:
        """The keys that are still at the source."""
        with self.source.client(socket_timeout=PATIENCE_S) as source:
            return list(source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 100_000))

    def move(self, *some: bytes) -> None:
        """Move keys; all that are left if none is named."""
        with self.source.client(socket_timeout=PATIENCE_S) as source:
            for key in some or self.left():
                source.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000, "REPLACE")

    def finish(self) -> None:
        """Move the rest, and tell every node who owns the slot now."""
        with self.target.client(socket_timeout=PATIENCE_S) as target:
            there = target.execute_command("CLUSTER MYID").decode()
        while True:
            self.move()
            try:
                for node in (self.target, self.source, *self.told):
                    with node.client(socket_timeout=PATIENCE_S) as client:
                        client.execute_command("CLUSTER SETSLOT", self.slot, "NODE", there)
            except ResponseError as error:  # a client created a key there since
                if "keys" not in str(error):
                    raise
                continue
            return


def _is_down(node: Engine) -> bool:
    with node.client() as client:
        return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "fail")


def _sees_all(node: Engine, size: int) -> bool:
    with node.client() as client:
        info = client.execute_command("CLUSTER INFO")
    wanted = {"cluster_state": "ok", "cluster_slots_ok": "16384", "cluster_size": str(size)}
    return bool(wanted.items() <= info.items())
