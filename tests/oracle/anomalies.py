"""What must never happen to a stream of many regions, each by its name. `find(history)` lists all of it.

lost          added, removed by nobody, and missing in the end
duplicated    there more often than it was added; a message that stands twice
reordered     out of ID order, or seen before an earlier entry of its strand
skipped       never given to a group's consumers in a region (scope ONCE: in any), and not acknowledged
resurrected   back after it was removed
acausal       written after reading an entry, with a smaller ID, though clocks were within the bound
diverged      regions that answer differently after quiescence, or not as the naive model does
generated twice  one ID was given to two entries (verdict.py)
invented      there though it was refused, or nobody wrote it (only a client log shows it: verdict.py)
"""

from collections import Counter, defaultdict
from collections.abc import Callable

from braidstream.model.ids import Id, text
from tests.oracle.answers import ascends, difference, times_over
from tests.oracle.convergence import (
    Accepted,
    Life,
    Messages,
    done_everywhere,
    living,
    loser,
    messages,
    surviving,
)
from tests.oracle.history import (
    Added,
    Answered,
    Entry,
    Generated,
    History,
    Left,
    Removed,
    Saw,
    Sent,
    Visible,
    user_id,
)

RANGE = "XRANGE"
GROUPS = "XINFO GROUPS"
MESSAGES = "XADD IDMP"

Streams = dict[tuple[int, str], Visible]


def _shown(entry: Entry) -> str:
    return f"{text(user_id(entry)).decode()} ({entry[0]})"


def _last_seen(history: History) -> Streams:
    return {(event.region, event.name): event.entries for event in history.of(Saw)}


def _surviving(history: History) -> dict[str, set[Entry]]:
    names = {event.name for event in history.of(Saw, Left)}
    return {name: surviving(history, name) for name in names}


def _messages(history: History) -> dict[str, Messages]:
    names = {event.name for event in history.of(Saw, Left)}
    return {name: messages(history, name) for name in names}


def _living(history: History) -> dict[str, dict[str, Life]]:
    names = {event.name for event in history.of(Answered, Left)}
    return {name: living(history, name) for name in names}


def known_as(sent: Messages) -> dict[str, str]:
    """What a region must answer to each message."""
    return {message: text(user_id(entry)).decode() for message, entry in sorted(sent.kept.items())}


def find_lost(history: History) -> list[str]:
    wanted, sent = _surviving(history), _messages(history)
    return [
        f"region {region} lacks {_shown(entry)} of {name}"
        for (region, name), seen in _last_seen(history).items()
        for entry in sorted(wanted[name] - sent[name].may_go - seen)
    ]


def find_duplicated(history: History) -> list[str]:
    added: dict[str, Counter[str]] = defaultdict(Counter)
    for event in history.of(Added):
        ids = (text(user_id(entry)).decode() for entry in event.entries)
        added[event.name].update(ids)
    sent = _messages(history)
    doubled = [
        f"region {region} has two entries of one message of {name}: {_shown(entry)} should have gone"
        for (region, name), seen in _last_seen(history).items()
        for entry in sorted(sent[name].goes & seen)
    ]
    return doubled + [
        f"region {event.region} has {entry} of {event.name} {times} times"
        for event in history.of(Answered)
        if event.question == RANGE
        for entry, times in times_over(event.answer, added[event.name]).items()
    ]


def find_reordered(history: History) -> list[str]:
    found, added, removed = list[str](), dict[str, set[Entry]](), set[tuple[str, Entry]]()
    smallest = Accepted()
    for event in history.of(Added, Sent, Removed, Saw, Answered):
        if isinstance(event, Added):
            added.setdefault(event.name, set()).update(event.entries)
        elif isinstance(event, Removed):
            removed |= {(event.name, entry) for entry in event.entries}
        elif isinstance(event, Sent):
            if goes := loser(smallest, event):
                removed.add((event.name, goes))
        elif isinstance(event, Saw):
            ends = dict[str, Entry]()
            for entry in sorted(event.entries):
                ends[entry[0]] = entry
            for entry in added.get(event.name, set()) - event.entries:
                end = ends.get(entry[0])
                if end is not None and entry < end and (event.name, entry) not in removed:
                    found.append(
                        f"region {event.region} sees {_shown(end)} of {event.name}, not {_shown(entry)}"
                    )
        elif event.question == RANGE and not ascends(event.answer):
            found.append(f"region {event.region} reads {event.name} out of order: {event.answer}")
    return found


def find_acausal(history: History) -> list[str]:
    return [
        f"region {event.region} saw {_shown(entry)} of {event.name} and generated {_shown(event.entry)}"
        for event in history.of(Generated)
        for entry in sorted(event.seen)
        if user_id(entry) >= user_id(event.entry)
    ]


def find_resurrected(history: History) -> list[str]:
    found, seen, gone = list[str](), Streams(), Streams()
    for event in history.of(Saw):
        where = event.region, event.name
        gone[where] = gone.get(where, frozenset()) | (seen.get(where, frozenset()) - event.entries)
        seen[where] = event.entries
        back = event.entries & gone[where]
        found += [
            f"region {event.region} sees {_shown(entry)} of {event.name} again" for entry in sorted(back)
        ]
    wanted, sent = _surviving(history), _messages(history)
    for (region, name), entries in _last_seen(history).items():
        back = entries - wanted[name] - sent[name].goes
        found += [f"region {region} still has {_shown(entry)} of {name}" for entry in sorted(back)]
    return found


def find_skipped(history: History) -> list[str]:
    found, wanted, lives, sent = list[str](), _surviving(history), _living(history), _messages(history)
    anywhere = dict[tuple[str, str], set[Id]]()
    for event in history.of(Left):
        anywhere.setdefault((event.name, event.group), set()).update(event.ids)
    for event in history.of(Left):
        life = lives[event.name].get(event.group)
        if life is None:
            continue
        given = anywhere[event.name, event.group] if event.once else event.ids
        for entry in sorted(wanted[event.name] - sent[event.name].may_go):
            if user_id(entry) not in given and not life.is_done(user_id(entry)):
                found.append(
                    f"region {event.region}, group {event.group} of {event.name} never gets {_shown(entry)}"
                )
    return found


def find_diverged(history: History) -> list[str]:
    found, wanted, lives = list[str](), _surviving(history), _living(history)
    answers = dict[tuple[str, str], dict[int, object]]()
    for event in history.of(Answered):
        answers.setdefault((event.name, event.question), {})[event.region] = event.answer
    for (name, question), said in answers.items():
        first = next(iter(said.values()))
        if differs := difference(said):
            found.append(f"{question} of {name}: {differs}")
        if len(said) != history.regions:
            found.append(f"{question} of {name}: only regions {sorted(said)} answer")
        if question == GROUPS and first != sorted(lives[name]):
            found.append(f"groups of {name}: {first}, and the model has {sorted(lives[name])}")
        if question == MESSAGES and first != (known := known_as(messages(history, name))):
            found.append(f"messages of {name}: {first}, and the model has {known}")
    givers = defaultdict[tuple[str, str, Id], set[int]](set)
    for event in history.of(Left):
        for entry in event.ids if event.once else ():
            givers[event.name, event.group, entry].add(event.region)
    for (name, group, entry), regions in givers.items():
        # Two strands may have an entry with this ID each, if users chose it.
        if len(regions) > max(1, sum(user_id(each) == entry for each in wanted[name])):
            found.append(f"regions {sorted(regions)} all give {entry} of {name} to group {group}")
    for event in history.of(Left):
        life = lives[event.name].get(event.group)
        if life is None or event.region in life.moved:
            continue
        there = {user_id(entry) for entry in wanted[event.name]}
        again = event.ids & there & done_everywhere(history, event.name, life)
        if again:
            found.append(
                f"region {event.region}, group {event.group} of {event.name} gives again what is done: "
                f"{sorted(again)}"
            )
    return found


ANOMALIES: dict[str, Callable[[History], list[str]]] = {
    "lost": find_lost,
    "duplicated": find_duplicated,
    "reordered": find_reordered,
    "skipped": find_skipped,
    "resurrected": find_resurrected,
    "acausal": find_acausal,
    "diverged": find_diverged,
}


def find(history: History) -> dict[str, list[str]]:
    """Every anomaly that occurs, by name."""
    return {name: found for name, look in ANOMALIES.items() if (found := look(history))}
