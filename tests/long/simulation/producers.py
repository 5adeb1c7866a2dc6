"""Programs that send each message until they hear of it, in whichever region they reach."""

from random import Random
from typing import Final

from tests.long.simulation.witness import Witness

# The last two leave it to the content which message it is.
PRODUCERS: Final = ("p", "q", "auto-p", "auto-q")


class Producers:
    """doubtful: messages to each stream without a reply. Another region may resend them."""

    def __init__(self, dice: Random, witness: Witness) -> None:
        self.dice, self.witness = dice, witness
        self.doubtful: dict[str, list[str]] = {}
        self.made = 0

    def send(self, region: int, name: str, *trim: object) -> None:
        """Some messages of one producer, old and new ones, in one go."""
        doubtful = self.doubtful.setdefault(name, [])
        producer = self.dice.choice(PRODUCERS)
        messages = list[str]()
        for _ in range(1 if trim else self.dice.choice((1, 1, 1, 2, 4))):
            again = [message for message in doubtful if message.split()[1] == producer]
            if again and self.dice.random() < 0.6:
                messages.append(self.dice.choice(again))
            else:
                messages.append(self._message(producer))
        self.witness.send(region, name, messages, *trim)
        for message in dict.fromkeys(messages):
            heard = self.dice.random() < 0.5
            if heard and message in doubtful:
                doubtful.remove(message)
            elif not heard and message not in doubtful:
                doubtful.append(message)

    def _message(self, producer: str) -> str:
        """The words of XADD for a message."""
        self.made += 1
        if producer.startswith("auto"):
            return f"IDMPAUTO {producer} * f m{self.made}"
        return f"IDMP {producer} {self.made} * f m{self.made}"

    def finish(self) -> None:
        """The storm is over: what is doubtful is sent once more, here or there."""
        for name, messages in self.doubtful.items():
            for message in messages:
                self.witness.send(self.dice.choice(list(self.witness.seats)), name, [message])
        self.doubtful.clear()
