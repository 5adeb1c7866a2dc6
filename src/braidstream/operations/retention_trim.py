"""Carries out retention policies (model/retention_policy.py), in this region, in small steps.

    cut     now - max-age, by the slowest clock; over 95 % of max-bytes: a bit later than the oldest entry
    floor   the first entry that a group needs, here and in other regions, if the policy says `acked`
    hold    now - hold: entries before it go whatever groups need, if they are before the cut

Each strand is trimmed up to `max(min(cut, floor), hold)`, by one function (lua/entry.lua): a group may be
created between the look and the trim. IDs contain the time, so all regions cut at the same place. They do it
at once, each on its own copies, and nobody is elected: a trim removes a prefix, so trims commute and may be
repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import ids
from braidstream.model.ids import Id
from braidstream.model.registry import Registry, parse_each
from braidstream.model.retention_policy import STREAM, Policies, Policy
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.ask_peers import Needs
from braidstream.plan.lookup import read_registry, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# The most entries of a strand that one call removes.
AT_ONCE: Final = 10_000
# The most of a stream's time span, and of each strand's entries, that one step removes for max-bytes.
_SHARE: Final = 0.05
_SAMPLES: Final = 5
# Policies that are read; older ones do not count.
_MOST: Final = 10_000


def read_policies(view: View) -> Plan[Policies]:
    """Those that this region knows."""
    return Policies.of_entries((yield from read_entries(view)).items())


def read_entries(view: View) -> Plan[dict[Id, list[bytes]]]:
    """The entries that set policies. Two round trips, or one if there has never been a policy."""
    registry = yield from read_registry(view, STREAM)
    strands = [] if registry.is_log else registry.strands
    if not strands:
        return {}
    pages = yield Batch(
        [("XREVRANGE", strand.key, "+", "-", "COUNT", _MOST) for strand in strands], resend=True
    )
    return {
        strand.user(ids.native(id)): words
        for strand, page in zip(strands, pages, strict=True)
        for id, words in page
    }


@dataclass(frozen=True, slots=True)
class Due:
    """A stream with entries to remove, if no group needs them. reply: its registry as it was read."""

    name: bytes
    policy: Policy
    registry: Registry
    reply: list[Any]


def find_due(policies: Mapping[bytes, Policy], now_ms: int) -> Plan[tuple[list[Due], list[bytes]]]:
    """Which of these streams have too old entries, or are too large; and which have more than half of their
    max-bytes. Two round trips for all."""
    replies = yield Batch([registry_of(name) for name in policies], resend=True, attempt=True)
    raw = {
        name: [] if isinstance(each, ReplyError) else each
        for name, each in zip(policies, replies, strict=True)
    }
    found = {
        name: registry
        for name, registry in parse_each(raw, raw.values()).items()
        if registry.exists and not registry.is_log
    }
    asked = [
        (name, each) for name, registry in found.items() for each in _checks(policies[name], registry, now_ms)
    ]
    answers = (yield Batch([command for _, command in asked], resend=True, attempt=True)) if asked else []
    sizes, old = dict.fromkeys(found, 0), set[bytes]()
    for (name, command), answer in zip(asked, answers, strict=True):
        if isinstance(answer, int):
            sizes[name] += answer
        elif isinstance(answer, ReplyError):
            old |= {name} if answer.code == "NOPERM" else set()  # the step says so
        elif command[0] == "XRANGE" and answer:
            old.add(name)
    limits = {name: limit for name in found if (limit := policies[name].kept_bytes) is not None}
    due = old | {name for name, limit in limits.items() if sizes[name] > limit}
    near = [name for name, limit in limits.items() if sizes[name] > limit // 2]
    return [Due(name, policies[name], found[name], raw[name]) for name in found if name in due], near


def _checks(policy: Policy, registry: Registry, now_ms: int) -> list[Command]:
    end = b"(%d-0" % (policy.cut_ms(now_ms) or 0) if policy.max_age_s is not None else b"+"
    by_age = policy.max_age_s is not None or policy.is_acked_alone
    return [
        *(("XRANGE", strand.key, "-", end, "COUNT", 1) for strand in registry.strands if by_age),
        *(_usage(strand) for strand in registry.strands if policy.max_bytes is not None),
    ]


def _usage(strand: Strand) -> Command:
    return ("MEMORY", "USAGE", strand.key, "SAMPLES", _SAMPLES)


@dataclass(frozen=True, slots=True)
class Step:
    """removed: entries. waits: if none, for which group or region the rest waits; empty without a rest."""

    removed: int = 0
    waits: str = ""


def trim_step(due: Due, needs: Needs, now_ms: int) -> Plan[Step]:
    """One step. Call it again until it removes nothing."""
    policy, strands = due.policy, due.registry.strands
    wanted, shares = yield from _wanted(policy, strands, now_ms)
    if wanted is None or (policy.is_acked_alone and not due.registry.groups and not needs.acked):
        return Step()
    hold = min((policy.hold_ms(now_ms), 0), wanted)
    commands, why = list[Command](), list[str]()
    for strand in strands:
        limit, who = needs.holder(strand) if policy.acked else (ids.LAST, "")
        floor = min(wanted, ids.after(limit) or ids.LAST)
        words = (
            ids.text(wanted),
            ids.text(floor),
            ids.text(hold),
            int(policy.acked),
            shares.get(strand, AT_ONCE),
        )
        commands.append(("FCALL", "bs_strand_cut", 1, strand.key, *words))
        why.append(who)
    replies = yield Batch(commands, resend=True)
    removed = sum(each for each, _, _ in replies)
    held = [
        (strand, group, who)
        for strand, (_, group, is_held), who in zip(strands, replies, why, strict=True)
        if is_held and (needs.unknown or not policy.is_acked_alone)
    ]
    return Step(removed, "" if removed or not held else (yield from _holder(*held[0])))


def _holder(strand: Strand, group: bytes, who: str) -> Plan[str]:
    """The group that needs what is left, or the regions. A group that is known here may work elsewhere."""
    if not group:
        return who
    [consumers] = yield Batch([("XINFO", "CONSUMERS", strand.key, group)], resend=True, attempt=True)
    where = ", which has no consumers here" if consumers == [] else " of this region"
    return f"group {group.decode('utf-8', 'backslashreplace')}{where}"


def _wanted(
    policy: Policy, strands: Sequence[Strand], now_ms: int
) -> Plan[tuple[Id | None, dict[Strand, int]]]:
    """Entries before this ID are too old, or too many; None: there are none. For those that are too many: how
    many of each strand may go in one step."""
    if policy.is_acked_alone:
        return ids.LAST, {}
    cut_ms, shares = policy.cut_ms(now_ms) or 0, dict[Strand, int]()
    if policy.kept_bytes is not None:
        size_ms, found = yield from _cut_for_size(policy.kept_bytes, strands, now_ms)
        cut_ms, shares = (size_ms, found) if size_ms > cut_ms else (cut_ms, shares)
    return (cut_ms, 0) if cut_ms else None, shares


def _cut_for_size(most: int, strands: Sequence[Strand], now_ms: int) -> Plan[tuple[int, dict[Strand, int]]]:
    """The time (ms) up to which entries go now, because the stream is too large; 0 if it is not. And how many
    of each strand: much of a stream may have been written in a short part of its time.
    """
    commands = [command for strand in strands for command in (_usage(strand), strand.xinfo())]
    replies = yield Batch(commands, resend=True, attempt=True)
    for reply in replies:
        if isinstance(reply, ReplyError) and reply.code == "NOPERM":
            raise reply
    size = sum(each for each in replies[::2] if isinstance(each, int))
    if size <= most:
        return 0, {}
    share = min(_SHARE, 1 - most / size)
    infos = {
        strand: facts(each)
        for strand, each in zip(strands, replies[1::2], strict=True)
        if not isinstance(each, ReplyError)
    }
    ends = [
        (ids.native(info[b"first-entry"][0])[0], ids.native(info[b"last-entry"][0])[0])
        for info in infos.values()
        if info[b"first-entry"]
    ]
    first_ms = min((first for first, _ in ends), default=0)
    last_ms = min(max((last for _, last in ends), default=0), now_ms)
    shares = {strand: min(AT_ONCE, 1 + int(info[b"length"] * share)) for strand, info in infos.items()}
    return first_ms + 1 + int(max(0, last_ms - first_ms) * share), shares
