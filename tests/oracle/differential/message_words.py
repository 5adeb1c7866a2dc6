"""Random words of idempotent production: which producer, which message, which settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.oracle.differential.script import Call

if TYPE_CHECKING:
    from tests.oracle.differential.generator import Maker

PRODUCERS: Final = (b"p", b"p", b"q", b"\xff\x00")


class MessageWords:
    """Chooses them for some scripts only: RENAME leaves known messages behind, which ends a sequence."""

    def __init__(self, make: "Maker") -> None:
        self._make = make
        self._used = make.chance(30)

    def weights(self) -> dict[Callable[[], Call], int]:
        return {self.configure: 2} if self._used else {}

    def due(self) -> bool:
        return self._used and self._make.chance(25)

    def message(self) -> Call:
        producer = self._make.pick(PRODUCERS)
        if self._make.chance(40):
            return (b"IDMPAUTO", producer)
        odd = self._make.chance(4)
        iid = self._make.pick((b"", b"\xff\x00")) if odd else b"%d" % self._make.dice.below(6)
        return (b"IDMP", producer, iid)

    def configure(self) -> Call:
        """XCFGSET. Durations are far longer than a run, so that nothing is forgotten by the clock."""
        words: Call = ()
        if self._make.chance(60):
            words += (b"IDMP-DURATION", self._make.pick((b"100", b"1000", b"86400", b"0", b"86401", b"x")))
        if not words or self._make.chance(50):
            sizes = (b"1", b"2", b"3", b"100", b"10000", b"0", b"10001", b"x")
            words += (b"IDMP-MAXSIZE", self._make.pick(sizes))
        if self._make.chance(5):
            words += self._make.pick(((b"IDMP-MAXSIZE", b"5"), (b"NOPE", b"1"), (b"IDMP-DURATION",)))
        return (b"XCFGSET", self._make.name(), *words)
