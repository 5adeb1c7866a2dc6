"""The latest check-up of all regions, shared by all viewers."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from braidstream.admin.diagnosis import Finding
from braidstream.config import Config
from braidstream.inspection.checkup import check_up

# A check-up scans the keys of the servers. It is not repeated more often than this.
_FRESH_S: Final = 60.0
_WITHIN_S: Final = 15.0


@dataclass(slots=True)
class LatestFindings:
    """why: empty if the check-up was completed. at: when, in seconds since 1970.

    has_file: the regions are those of a file, not one by its URL.
    """

    has_file: bool = True
    findings: list[Finding] = field(default_factory=list)
    why: str = ""
    at: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def latest(self, regions: Config) -> "LatestFindings":
        async with self._lock:
            if time.time() - self.at > _FRESH_S:
                try:
                    async with asyncio.timeout(_WITHIN_S):
                        names = {each.name for each in regions.region}
                        self.findings = await check_up(regions, names, has_file=self.has_file)
                    self.why = ""
                except TimeoutError:
                    self.findings = []
                    self.why = f"It took more than {_WITHIN_S:g} s: a server has many keys. Run: braid doctor"
                self.at = time.time()
        return self
