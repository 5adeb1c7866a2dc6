"""The naive model of many regions: what all of them must come to, from what users did and saw.

    entries   everything that was added, less what somebody saw and took away (observed-remove)
    groups    one lives if one of its makers knew of every deletion of it (delete wins)
    acks      what was acknowledged, or passed by a group's start, in the life that the group has now
    messages  of the entries that one message got while regions were apart, the one with the smallest ID

Nothing here knows how regions talk, but for one thing: which deletions a region has heard of when a group
is made there. The history has notes that links take and deliver, and they are followed here.
"""

from collections import Counter
from dataclasses import dataclass, field

from braidstream.model.ids import Id
from tests.oracle.history import (
    Acked,
    Added,
    Answered,
    Destroyed,
    Entry,
    Forgot,
    History,
    Made,
    Moved,
    Noted,
    Removed,
    Sent,
    Told,
    user_id,
)

SETTINGS = "idempotence"

Which = tuple[str, str, int]  # ("a", "IDMP p 1 * f v", 0): a message to stream a, in the first era
Accepted = dict[Which, Entry]


def loser(smallest: Accepted, sent: Sent) -> Entry | None:
    """Of two entries for one message in one era the larger: from now on it may go. Keeps the smallest."""
    which = sent.name, sent.message, sent.era
    kept = smallest.setdefault(which, sent.entry)
    if kept == sent.entry:
        return None
    smallest[which], goes = sorted((kept, sent.entry), key=user_id)
    return goes


@dataclass
class Messages:
    """What must come of the messages of a stream.

    kept: those that every region must know in the end, and the entry that each has.
    goes: their other entries. may_go: those of messages that were forgotten, perhaps before regions met.
    """

    kept: dict[str, Entry] = field(default_factory=dict)
    goes: set[Entry] = field(default_factory=set)
    may_go: set[Entry] = field(default_factory=set)


def messages(history: History, name: str) -> Messages:
    smallest, losers = Accepted(), dict[Which, set[Entry]]()
    accepted, untold, last = dict[Entry, Which](), set[Which](), 0
    for event in history.of(Sent, Forgot, Answered):
        if event.name != name:
            continue
        if isinstance(event, Sent):
            which = event.name, event.message, event.era
            accepted.setdefault(event.entry, which)
            if goes := loser(smallest, event):
                losers.setdefault(which, set()).add(goes)
        elif isinstance(event, Forgot):
            untold |= {which for (strand, _), which in accepted.items() if strand == f"s{event.region}:0"}
        elif event.question == SETTINGS:
            last = max(last, event.answer.era)
    found = Messages()
    for which, entry in smallest.items():
        _, message, era = which
        if era < last or which in untold:
            found.may_go |= losers.get(which, set())
        else:
            found.kept[message] = entry
            found.goes |= losers.get(which, set())
    return found


def surviving(history: History, name: str) -> set[Entry]:
    """The entries that every region must have in the end."""
    entries = set[Entry]()
    for event in history.of(Added):
        if event.name == name:
            entries |= event.entries
    for event in history.of(Removed):
        if event.name == name:
            entries -= event.entries
    return entries - messages(history, name).goes


@dataclass
class Life:
    """A group in its present life: who acknowledged what, and what its starts passed over."""

    acked: dict[int, set[Id]] = field(default_factory=dict)
    passed: set[Id] = field(default_factory=set)
    upto: Id = (0, 0)
    moved: set[int] = field(default_factory=set)

    def is_done(self, entry: Id) -> bool:
        return entry <= self.upto or entry in self.passed or any(entry in ids for ids in self.acked.values())


Deletion = int | tuple[int, int]  # which one; of a deadline its version and its time


def _deletion(event: Destroyed) -> Deletion:
    if not event.deadline:
        return id(event)
    version, ms = event.deadline.split()
    return int(version), int(ms)


def _is_heard_of(deletion: Deletion, heard: set[Deletion]) -> bool:
    """Regions that are apart may set two deadlines. The later one stands for the earlier one too."""
    if isinstance(deletion, int):
        return deletion in heard
    deadlines = [other for other in heard if isinstance(other, tuple)]
    return all(any(other[part] >= deletion[part] for other in deadlines) for part in (0, 1))


def living(history: History, name: str) -> dict[str, Life]:
    """The groups that every region must have in the end."""
    deaths = [event for event in history.of(Destroyed) if event.name == name]
    known: dict[int, set[Deletion]] = {region: set() for region in range(1, history.regions + 1)}
    notes = dict[int, set[Deletion]]()
    lives = dict[str, Life]()

    def knows_all(region: int, group: str) -> bool:
        heard = known[region]
        return all(_is_heard_of(_deletion(death), heard) for death in deaths if death.group in (None, group))

    for event in history.events:
        if getattr(event, "name", None) != name:
            continue
        if isinstance(event, Destroyed):
            known[event.region].add(_deletion(event))
        elif isinstance(event, Noted):
            notes[event.note] = set(known[event.region])
        elif isinstance(event, Told):
            known[event.region] |= notes[event.note]
        elif isinstance(event, Made | Acked) and knows_all(event.region, event.group):
            if isinstance(event, Acked):
                if event.group not in lives:
                    continue  # its maker's region forgot that it made it, and a peer brought it back
                lives[event.group].acked.setdefault(event.region, set()).update(event.ids)
                continue
            life = lives.setdefault(event.group, Life())
            life.upto = max(life.upto, event.upto)
            life.passed |= set(map(user_id, event.passed))
            if isinstance(event, Moved):
                life.moved.add(event.region)
    return lives


def done_everywhere(history: History, name: str, life: Life) -> set[Id]:
    """IDs that no region may deliver: some region acknowledged each and all before it in its strand.

    Not those that stand twice: XACK acknowledges what there is, and the other may not have been there.
    """
    strands = dict[str, list[Id]]()
    for event in history.of(Added):
        if event.name == name:
            for strand, native in event.entries:
                strands.setdefault(strand, []).append(native)
    times = Counter(user_id((strand, native)) for strand, natives in strands.items() for native in natives)
    done = set[Id]()
    for region, acked in life.acked.items():
        if region in life.moved:
            continue  # XGROUP SETID: from then on it is that region's own business
        for strand, natives in strands.items():
            for native in sorted(natives):
                if user_id((strand, native)) not in acked:
                    break
                done.add(user_id((strand, native)))
    return {entry for entry in done if times[entry] == 1}
