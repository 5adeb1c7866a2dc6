"""The fence of a region that lost its data: it refuses clients until `braid region rejoin` has restored it.

Running clients follow within a second. Of one server the fence is a field of `bs:config`, of a cluster one of
the facts on every primary.
"""

from braidstream.admin.membership import note_marked, set_fence
from braidstream.lua.cluster_facts import Facts
from braidstream.model.fields import ConfigField
from braidstream.model.region_config import Region
from braidstream.replication.cluster_endpoint import ClusterEndpoint
from braidstream.replication.cluster_region import change_facts
from braidstream.replication.endpoint import Endpoint


async def put_up(region: Endpoint) -> Region:
    """If there is a fence already, it says whether the region was empty. So it stays as it is."""
    if isinstance(region, ClusterEndpoint):
        return await change_facts(region, lambda facts: {ConfigField.FENCED: b"1", **facts})
    return await region.run(set_fence(True))


async def note_all_marked(region: Endpoint) -> None:
    """What clients wrote to an empty region is marked. Everything that comes now is restored."""
    if isinstance(region, ClusterEndpoint):
        await change_facts(region, lambda facts: {**facts, ConfigField.FENCED: b"1"})
    else:
        await region.run(note_marked())


async def take_down(region: Endpoint) -> None:
    if isinstance(region, ClusterEndpoint):
        await change_facts(region, _without_fence)
    else:
        await region.run(set_fence(False))


def _without_fence(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if name != ConfigField.FENCED}
