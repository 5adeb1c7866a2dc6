"""The slots of commands with plans, before a cluster. No I/O."""

from typing import Final

from braidstream.gateway.session import spec_of
from braidstream.model import keys
from braidstream.net.resp import Words
from braidstream.net.routes import slot_of

# Commands about all keys: every primary is asked, and the answers are joined.
EVERYWHERE: Final = frozenset((b"SCAN", b"KEYS", b"DBSIZE", b"FLUSHDB", b"FLUSHALL", b"RANDOMKEY"))
# Their answers are numbers, so those of several slots can be added.
SUMMED: Final = frozenset((b"DEL", b"UNLINK", b"EXISTS", b"TOUCH"))
# They use the plain key and the stream of a name in one step.
IN_ONE_STEP: Final = frozenset((b"RENAME", b"RENAMENX", b"COPY", b"WATCH"))


def slots_of(words: Words) -> list[int]:
    """The slots of the streams, and of the plain keys where both are used in one step."""
    spec = spec_of(words)
    names = [] if spec is None or spec.arity_error(words) is not None else spec.names(words)
    found = dict.fromkeys(slot_of(keys.meta(name)) for name in names)
    if words[0].upper() in IN_ONE_STEP:
        found |= dict.fromkeys(map(slot_of, names))
    return list(found)


def is_split(words: Words) -> bool:
    """Whether a command is run for each node, or for each slot."""
    name = words[0].upper()
    return name in EVERYWHERE or (name in SUMMED and len(words) > 2 and len(slots_of(words)) > 1)


def split(words: Words) -> list[Words]:
    """A command whose answers are added, as one for each slot."""
    by_slot = dict[tuple[int, int], Words]()
    for name in words[1:]:
        by_slot.setdefault((slot_of(keys.meta(name)), slot_of(name)), [words[0]]).append(name)
    return list(by_slot.values())
