"""Checks before anything is sent: is a server the region that the file says, and may two regions replicate?

Every refusal is a ConfigError: a retry does not help, an operator must change a file or a server.
"""

import asyncio
from typing import Final

from braidstream.errors import BraidError, ConfigError, LostPartError, ReplyError
from braidstream.model import keys
from braidstream.model.fields import ConfigField
from braidstream.model.region_config import Region
from braidstream.protocol.plan import Batch, Plan
from braidstream.replication.cluster_endpoint import spares_others
from braidstream.replication.endpoint import PlanRunner

CLAIM_S: Final = 15
RENEW_S: Final = 5.0


def check_region(found: Region, wanted: tuple[int, str], where: object) -> None:
    """The server at `where` must be the region that the file lists there."""
    if (found.id, found.name) != wanted:
        number, name = wanted
        raise ConfigError(
            f"the file says that {where} is region {number} ({name}), but the server says that it is region "
            f"{found.id} ({found.name}). Nothing is sent to it. Correct its url, id or name in the file."
        )
    if found.writer != found.id:
        raise ConfigError(
            f"bs:config of region {found.id} ({found.name}) has writer {found.writer}. Both numbers must be "
            "the same. Nothing is sent to it. Correct the field writer there."
        )
    if not found.library:  # also if its `braid init` was interrupted: it has no functions then
        raise LostPartError([ConfigField.LIBRARY], found.name.encode())


def check_pair(here: Region, there: Region) -> None:
    """Two regions may replicate if they have different numbers and neither has removed the other."""
    if here.id == there.id:
        raise ConfigError(
            f"both servers are region {here.id}. Two regions with one number would generate the same IDs. "
            "Correct the file, or make one of them a new region in an empty database."
        )
    for one, other in ((here, there), (there, here)):
        if other.writer in one.left:
            raise ConfigError(
                f"region {other.id} ({other.name}) was removed from region {one.id} ({one.name}) for good. "
                f"Stop the daemon of {other.name}. To use its server again, empty it and add it with a new "
                "number: braid region add"
            )


async def claim(target: PlanRunner, here: Region) -> None:
    """Only one server may replicate to a region as one number: two would generate the same IDs.

    A claim expires, so a server that replaces another one waits at most CLAIM_S.
    """
    try:
        holder = await target.run(_claim(here))
    except BraidError as error:
        # The node of a cluster that holds the claim is lost, or its slot moves: `keep_claim` tries again.
        if spares_others(error, target):
            return
        raise
    if holder not in (None, here.identity.encode()):
        raise ConfigError(
            f"another server replicates to this peer as region {here.id} ({here.name}). Two servers with one "
            "number generate the same IDs. Stop one of them, and make it a new region in an empty database."
        )


async def keep_claim(target: PlanRunner, here: Region) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await claim(target, here)


def _claim(here: Region) -> Plan[bytes | None]:
    """The owner of the claim after our attempt; None if the peer refuses writes now (full, say)."""
    key = keys.claim(here.writer)
    attempt = [("SET", key, here.identity, "NX", "EX", CLAIM_S), ("GET", key)]
    _, holder = yield Batch(attempt, attempt=True)
    if isinstance(holder, ReplyError):
        raise holder
    if holder == here.identity.encode():
        yield Batch([("EXPIRE", key, CLAIM_S)], attempt=True)
    return holder  # type: ignore[no-any-return]
