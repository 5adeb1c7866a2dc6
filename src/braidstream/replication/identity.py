"""Is a server the region that the file says, and may two regions talk? Asked before anything is sent.

Every refusal is a ConfigError: waiting does not help, somebody has to change a file or a server.
"""

from braidstream.braid import Region
from braidstream.errors import ConfigError


def check_region(found: Region, wanted: tuple[int, str], where: object) -> None:
    """The server at `where` must be the region that the file lists there."""
    if (found.id, found.name) != wanted:
        number, name = wanted
        raise ConfigError(
            f"the file says that {where} is region {number} ({name}), but the server says that it is region "
            f"{found.id} ({found.name}). Nothing is sent to it. Correct its url, id or name in the file."
        )


def check_pair(here: Region, there: Region) -> None:
    """Two regions may exchange entries: they have different numbers, and neither has removed the other."""
    if here.id == there.id:
        raise ConfigError(
            f"both servers are region {here.id}. Two regions with one number would mint the same IDs. "
            "Correct the file, or make one of them a new region in an empty database."
        )
    for one, other in ((here, there), (there, here)):
        if other.writer in one.left:
            raise ConfigError(
                f"region {other.id} ({other.name}) was removed from region {one.id} ({one.name}) for good. "
                f"Stop the daemon of {other.name}. To use its server again, empty it and add it with a new "
                "number: braid region add"
            )
