"""The scope of a group: which regions deliver which strands (lua/scope.lua writes it).

e:jobs   2.1 once                 version 2, set in region 1
w:jobs   1:3.2:0:0 2:4.2:3:0      region 2 owns the strands of region 1 (epoch 3), and gives its own to 3
w:jobs   1:5.2:0:1                region 2 took the strands of region 1 automatically
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from braidstream.model.region_config import Region

ONCE: Final = b"once"
EVERYWHERE: Final = b"everywhere"
_CLAIM: Final = re.compile(rb"([0-9]{1,4}):([0-9]{1,20})\.([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,20})\Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who delivers the strands of a region. to: the next owner; the owner delivers nothing new then."""

    epoch: int
    owner: int
    to: int = 0
    until_ms: int = 0

    @property
    def is_automatic(self) -> bool:
        """Taken by a daemon (replication/takeover.py), which gives it back."""
        return self.to == 0 and self.until_ms == 1


@dataclass(frozen=True, slots=True)
class Scope:
    """A group of scope `once`. owners: the claims, by region; without one a region owns its strands."""

    owners: dict[int, Claim] = field(default_factory=dict)

    def owner(self, writer: int, region: Region) -> int:
        """The region that delivers a writer's strands. If it left for good: the smallest remaining one."""
        claim = self.owners.get(writer)
        owner = writer if claim is None else claim.owner
        return min(region.writers) if owner in region.left else owner

    def owned(self, region: Region) -> list[int]:
        """The writers whose strands this region delivers."""
        writers = {*region.writers, *region.left, *self.owners}
        return sorted(writer for writer in writers if self.owner(writer, region) == region.writer)

    def is_owned(self, writer: int, region: Region) -> bool:
        return self.owner(writer, region) == region.writer

    def is_delivered(self, writer: int, region: Region) -> bool:
        """Whether new entries of a writer are delivered here: not while they are handed over."""
        claim = self.owners.get(writer)
        return self.is_owned(writer, region) and (claim is None or claim.to in (0, *region.left))


@lru_cache(maxsize=1_000)
def owners_of(value: bytes) -> dict[int, Claim]:
    claims = (_CLAIM.match(word) for word in value.split())
    found = (tuple(map(int, claim.groups())) for claim in claims if claim)
    return {region: Claim(epoch, owner, to, until) for region, epoch, owner, to, until in found}


def is_once(value: bytes) -> bool:
    return value.endswith(b" " + ONCE)
