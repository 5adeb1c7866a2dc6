"""Our side as a gateway before a cluster; the bare engine is one server."""

from contextlib import suppress

from braidstream.model.fields import ConfigField
from tests.oracle.differential.script import IdMode
from tests.oracle.differential.sides import Servers, Sides
from tests.oracle.differential.spoken import Spoken
from tests.support.cluster import Cluster, become_cluster, facts_of
from tests.support.gateways import Served
from tests.support.servers import Engine, Flavour


class ClusterGatewayServers(Servers):
    """Three primaries and a gateway, and a bare engine of the same kind."""

    def __init__(self, flavour: Flavour) -> None:
        super().__init__(flavour, gateway=True)
        self._engines = [Engine(flavour)]
        self._cluster = Cluster(flavour)

    def _start(self) -> None:
        self._engines[0].start()
        self._cluster.start()
        become_cluster(self._cluster, id_mode="liberal")
        self._nodes = [node.client() for node in (*self._cluster.nodes, *self._engines)]
        for node in self._nodes:
            node.config_set("stream-node-max-bytes", 0)
        self._gateway = Served(self._cluster.url).__enter__()

    def _stop(self) -> None:
        super()._stop()
        with suppress(AttributeError):
            for node in self._nodes:
                node.close()
        self._cluster.stop()

    def reset(self, protocol: int, node_entries: int, id_mode: IdMode) -> Sides:
        assert self._gateway is not None
        for node in self._nodes:
            node.execute_command("FLUSHALL", "SYNC")
            node.config_set("stream-node-max-entries", node_entries)
        facts_of(self._cluster, {ConfigField.ID_MODE: id_mode.encode()})
        self._gateway.forget()
        self._hang_up()
        ports = (self._gateway.port, self._gateway.port, self._engines[0].port)
        self._lines = [Spoken(port, protocol) for port in ports]
        return Sides(self._engines[0], self._lines[:2], self._lines[2], self._gateway)
