"""What is set up badly in a region, what that means, and what to type: behind `braid doctor`.

Each check is a function from what was read to findings. Nothing here writes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

from braidstream.commands.rename import made_s
from braidstream.errors import DamagedError, ReplyError
from braidstream.lua import read_changed
from braidstream.model import keys
from braidstream.model.later import LATER, target_of
from braidstream.model.region import Region
from braidstream.model.retention_policy import Policies
from braidstream.model.strand import Command, facts
from braidstream.operations.adoption import NativeStream, find_native
from braidstream.operations.cluster_map import READ_NODES, ClusterNode, by_itself, place_text
from braidstream.operations.requirements import CURE, drops_transactions, read_default_user
from braidstream.operations.retention_trim import read_policies
from braidstream.operations.rights import lacking
from braidstream.operations.streams import (
    GroupWork,
    LargeStream,
    find_damaged,
    find_large,
    find_work,
    unlimited,
)
from braidstream.operations.words import printable
from braidstream.plan.lookup import info_facts, read_ms, read_region, scan_page
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
#
# Copies that a client left behind: it was killed in the middle of COPY, RENAME, RESTORE or DUMP, or of
# `braid spark audit --repair`. Those of `braid log compact` expire.
#
# Clients also delete their copy after an error. A client that was killed cannot, and a program cannot know
# whether a copy is still being made: for a large stream that takes long. So `braid doctor` names the old
# ones.

# Younger ones may still be under way.
_OLD_S: Final = 3_600


@dataclass(frozen=True, slots=True, order=True)
class UnfinishedCopy:
    key: bytes
    age_s: int


def find_unfinished() -> Plan[list[UnfinishedCopy]]:
    """Copies that were begun an hour ago or earlier, sorted. Scans the database."""
    now_s = (yield from read_ms()) // 1_000
    found, cursor = set[UnfinishedCopy](), 0
    while True:
        cursor, listed = yield from scan_page(cursor, keys.COPY + b"*")
        ages = ((key, now_s - began) for key in listed if (began := made_s(key)) is not None)
        found.update(UnfinishedCopy(key, age_s) for key, age_s in ages if age_s >= _OLD_S)
        if not cursor:
            return sorted(found)


# ----------------------------------------------------------------------------------------------------
# Doctor

T = TypeVar("T")
Level = Literal["error", "warning", "note"]

# The daemon gets pushes of changed keys as a normal client: it does not SUBSCRIBE. With less room a burst of
# writes cuts it off.
_PUSH_BYTES: Final = 8 * 1024 * 1024
_NAMED: Final = 5
_COVERAGE: Final = b"cluster-require-full-coverage"
_SETTINGS: Final = ("save", "appendonly", "client-output-buffer-limit", "maxclients", _COVERAGE)
_STRAND: Final = keys.strand(b"doctor", keys.GENERATED, 1)
# What clients, gateway and daemon send, with keys of theirs, and what functions run for them.
# docs/rights.md lists all rights.
_NEEDED: Final = (
    ("FCALL", "bs_strand_ensure", "1", keys.meta(b"doctor")),
    ("XADD", _STRAND, "*", "f", "v"),
    ("XRANGE", _STRAND, "-", "+"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", _STRAND, ">"),
    ("XINFO", "STREAM", _STRAND),
    ("XINFO", "GROUPS", _STRAND),
    ("XACK", _STRAND, "g", "1-1"),
    ("XDEL", _STRAND, "1-1"),
    ("XTRIM", _STRAND, "MAXLEN", "0"),
    ("XSETID", _STRAND, "1-1"),
    ("XPENDING", _STRAND, "g"),
    ("XGROUP", "CREATE", _STRAND, "g", "0"),
    ("XGROUP", "SETID", _STRAND, "g", "0"),
    ("XGROUP", "DESTROY", _STRAND, "g"),
    ("UNLINK", _STRAND),
    ("HGETALL", keys.CONFIG),
    ("HSETNX", keys.CONFIG, "f", "v"),
    ("HINCRBY", keys.CONFIG, "f", "1"),
    ("HDEL", keys.CONFIG, "f"),
    ("HSET", keys.STATUS, "f", "v"),
    ("CLIENT", "TRACKING", "ON"),
    ("INFO",),
    ("SCAN", "0"),
    ("TIME",),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """check: one word, for scripts. text: what it means; fix: what to do or type. nodes: which ones, of a
    cluster."""

    level: Level
    check: str
    where: str
    text: str
    fix: str
    nodes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return place_text(self.where, self.nodes)


@dataclass(frozen=True, slots=True)
class CheckedUser:
    """A user on a server, for `braid doctor --user`.

    what: who logs in as it. rights: those that it needs.
    lacks: those that it does not have; None if there is no such user. error: why they are unknown.
    """

    name: str
    what: str
    rights: tuple[str, ...]
    lacks: tuple[str, ...] | None = ()
    error: str = ""

    def check(self) -> Plan["CheckedUser"]:
        try:
            found = yield from lacking(self.name, self.rights)
        except ReplyError as error:
            return replace(self, error=error.text)
        return replace(self, lacks=None if found is None else tuple(found))


@dataclass(frozen=True, slots=True)
class Setup:
    """How a region's server, or a node of its cluster, is set up. settings: empty if CONFIG is forbidden.

    strays: native streams under the name of a managed one; natives: other native streams.
    denied: commands that the user may not run; None if that cannot be checked.
    checked: the user of `braid doctor --user`.
    unchecked: why native streams, or copies, could not be looked for.
    copies: those that killed clients left.
    changed: why the engine functions are not ours.
    damaged: of each stream whose registry cannot be read, why.
    work: groups that consumers read now, or that entries wait for.
    later: a stream that entries wait for, empty if there is none.
    large: streams that use much memory; policies: of retention, None if another node of a cluster has them.
    default_is_whole: whether the user default may run everything; None if that cannot be checked.
    """

    name: str
    region: Region
    info: dict[bytes, bytes]
    settings: dict[bytes, bytes] = field(default_factory=dict)
    strays: tuple[bytes, ...] = ()
    natives: tuple[bytes, ...] = ()
    user: str = ""
    denied: tuple[str, ...] | None = None
    unchecked: str = ""
    node: ClusterNode | None = None
    copies: tuple[UnfinishedCopy, ...] = ()
    checked: "CheckedUser | None" = None
    default_is_whole: bool | None = None
    damaged: tuple[str, ...] = ()
    work: tuple[GroupWork, ...] = ()
    changed: str = ""
    large: tuple[LargeStream, ...] = ()
    policies: Policies | None = None
    later: bytes = b""

    def number(self, fact: bytes) -> int:
        return int(self.info.get(fact, b"0"))


def read_setup(
    name: str,
    node: ClusterNode | None = None,
    region: Region | None = None,
    user: CheckedUser | None = None,
) -> Plan[Setup]:
    """Read it. Native streams and unfinished copies are found by SCAN: many round trips on a large server.

    node: of a cluster. region: which one that is; a node may lack the facts. user: whose rights to check too.
    """
    region = (yield from read_region()) if region is None else region
    [info, settings, own_user] = yield Batch(
        [("INFO",), ("CONFIG", "GET", *_SETTINGS), ("ACL", "WHOAMI")], resend=True, attempt=True
    )
    known = {} if isinstance(settings, ReplyError) else facts(settings)
    who = "" if isinstance(own_user, ReplyError) else own_user.decode("utf-8", "replace")
    denied = yield from _denied(who)
    checked = None if user is None else (yield from user.check())
    whole = yield from read_default_user()
    native, copies, unchecked = list[NativeStream](), list[UnfinishedCopy](), ""
    damaged, work, later = list[DamagedError](), list[GroupWork](), list[bytes]()
    large, policies = list[LargeStream](), None
    if node is None or node.is_primary:
        copies, why = yield from _looked_for("unfinished copies", find_unfinished())
        native, unchecked = yield from _looked_for("native streams", find_native())
        damaged, unread = yield from _looked_for("damaged streams", find_damaged())
        large, _ = yield from _looked_for("large streams", find_large())
        policies = yield from _read_policies(region)
        if region.peers:
            work, _ = yield from _looked_for("consumers", find_work(region))
            later, _ = yield from _looked_for("entries for later", find_later())
        unchecked = unchecked or why or unread
    strays = tuple(stream.name for stream in native if stream.is_stray)
    natives = tuple(stream.name for stream in native if not stream.is_stray)
    if node is not None:
        [listed] = yield Batch([READ_NODES], resend=True, attempt=True)
        node = by_itself(node, listed)
    return Setup(
        name,
        region,
        info_facts(info),
        settings=known,
        strays=strays,
        natives=natives,
        user=who,
        denied=denied,
        unchecked=unchecked,
        node=node,
        copies=tuple(copies),
        checked=checked,
        default_is_whole=whole,
        damaged=tuple(each.text for each in damaged),
        work=tuple(work),
        changed=(yield from read_changed()),
        large=tuple(large),
        policies=policies,
        later=next(iter(later), b""),
    )


def _read_policies(region: Region) -> Plan[Policies | None]:
    try:
        return (yield from read_policies(View(region)))
    except ReplyError:
        return None


def find_later() -> Plan[list[bytes]]:
    """Streams that entries wait for, or have waited for. Scans the database."""
    found, cursor = list[bytes](), 0
    while True:
        cursor, listed = yield from scan_page(cursor, keys.META + b"*" + LATER)
        names = [keys.name_of_meta(key) for key in listed]
        found += [target for name in names if name and (target := target_of(name)) is not None]
        if not cursor:
            return sorted(found)


def _looked_for(what: str, plan: Plan[list[T]]) -> Plan[tuple[list[T], str]]:
    """What was found, and why nothing could be, as without the right to SCAN."""
    try:
        return (yield from plan), ""
    except ReplyError as error:
        return [], f"{what} could not be looked for: {error}"


def _denied(user: str, also: Sequence[Command] = ()) -> Plan[tuple[str, ...] | None]:
    if not user:
        return None
    needed: list[Command] = [*_NEEDED, *also]
    replies = yield Batch([("ACL", "DRYRUN", user, *words) for words in needed], resend=True, attempt=True)
    if any(isinstance(reply, ReplyError) for reply in replies):
        return None
    checked = zip(needed, replies, strict=True)
    return tuple(dict.fromkeys(str(words[0]) for words, reply in checked if bytes(reply) != b"OK"))


def missing_rights(*also: Command) -> Plan[str]:
    """Before a region is changed: which rights the user lacks that are needed there later; or an empty text.

    also: what the caller itself sends. A user without +acl is not checked.
    """
    [user] = yield Batch([("ACL", "WHOAMI")], resend=True, attempt=True)
    who = "" if isinstance(user, ReplyError) else user.decode("utf-8", "replace")
    denied = yield from _denied(who, also)
    return f"the user {who} may not run {', '.join(denied)}." if denied else ""


def diagnose(
    setups: Sequence[Setup],
    listed: dict[int, str] | None,
    durability: dict[str, str],
    *,
    takes_over: bool = True,
) -> list[Finding]:
    """listed: the regions of the file, by number; None without a file. durability: what it says, by name.
    takes_over: whether it has `takeover_after_s`."""
    found, regions = list[Finding](), dict[str, Setup]()
    for setup in setups:
        looks = (_eviction, _version, _faults, _persistence, _buffers, _clients, _rights, _user_rights)
        checks = [check(setup) for check in (*looks, _functions, _cluster)]
        checks.append(_replicas(setup, durability.get(setup.name, "")))
        nodes = () if setup.node is None else (setup.node.name,)
        found += [replace(finding, nodes=nodes) for some in checks for finding in some]
        regions[setup.name] = _joined(regions.get(setup.name, setup), setup)
    for whole in regions.values():
        found += [
            *_strays(whole),
            *_damaged(whole),
            *_copies(whole),
            *_unlimited(whole),
            *(() if takes_over else _waiting(whole)),
            *(() if listed is None else _drift(whole, listed)),
        ]
    all_of_them = [*regions.values()]
    return _folded([*found, *_modes(all_of_them), *_twice(all_of_them), *_unattended(all_of_them)])


def _twice(regions: Sequence[Setup]) -> Iterable[Finding]:
    """Groups whose workers in several regions each get every entry."""
    where = dict[tuple[bytes, bytes], list[str]]()
    for setup in regions:
        for each in setup.work:
            if each.works and not each.is_once:
                where.setdefault((each.stream, each.group), []).append(setup.name)
    for (stream, group), names in sorted(where.items()):
        if len(names) > 1:
            text = (
                f"group {printable(group)} of {printable(stream)} has the scope EVERYWHERE, and workers in "
                f"{' and '.join(names)}: each of these regions handles every entry."
            )
            fix = (
                f"If each entry is to be handled once: braid group scope once --streams {printable(stream)} "
                f"--group {printable(group)} --region {names[0]}"
            )
            yield Finding("warning", "everywhere", names[0], text, fix)


def _unattended(regions: Sequence[Setup]) -> Iterable[Finding]:
    """Groups of scope ONCE whose entries wait in a region without workers, as after workers went back."""
    where = dict[tuple[bytes, bytes], list[Setup]]()
    for setup in regions:
        for each in setup.work:
            if each.works:
                where.setdefault((each.stream, each.group), []).append(setup)
    for setup in regions:
        for each in setup.work:
            others = where.get((each.stream, each.group), [])
            if each.waiting and others and not each.works:
                stream, group = printable(each.stream), printable(each.group)
                text = (
                    f"group {group} of {stream} has the scope ONCE, and entries that only this region "
                    f"delivers; its workers are in {' and '.join(other.name for other in others)}."
                )
                fix = (
                    f"Run workers here too. Or hand the work over: braid group give --from {each.waiting[0]} "
                    f"--to {others[0].region.id} --streams {stream} --group {group} --timeout 10 "
                    f"--region {setup.name}"
                )
                yield Finding("warning", "unattended", setup.name, text, fix)


def _joined(one: Setup, two: Setup) -> Setup:
    """Two nodes of a cluster: the streams of both."""
    strays, natives = {*one.strays, *two.strays}, {*one.natives, *two.natives}
    return replace(
        one,
        strays=tuple(sorted(strays)),
        natives=tuple(sorted(natives - strays)),
        unchecked=one.unchecked or two.unchecked,
        copies=tuple(sorted({*one.copies, *two.copies})),
        damaged=tuple(sorted({*one.damaged, *two.damaged})),
        work=tuple(sorted({*one.work, *two.work})),
        large=tuple(sorted({*one.large, *two.large})),
        policies=one.policies or two.policies,
        later=one.later or two.later,
    )


def _folded(found: Sequence[Finding]) -> list[Finding]:
    """The same finding of several nodes, as one."""
    nodes = dict[Finding, list[str]]()
    for each in found:
        nodes.setdefault(replace(each, nodes=()), []).extend(each.nodes)
    return [replace(each, nodes=tuple(some)) for each, some in nodes.items()]


def _cluster(setup: Setup) -> Iterable[Finding]:
    if setup.node is None:
        return
    if setup.settings.get(_COVERAGE) == b"yes":
        text = "while no node serves one slot, this one refuses commands on all slots."
        yield Finding("note", "coverage", setup.name, text, f"CONFIG SET {_COVERAGE.decode()} no")
    if setup.node.moving:
        slots = ", ".join(map(str, sorted(setup.node.moving)[:_NAMED]))
        text = f"slots move from or to this node ({slots}). No stream or group can be created in them now."
        fix = "Wait for the end of the resharding. If none is under way: redis-cli --cluster fix"
        yield Finding("warning", "moving", setup.name, text, fix)


def _eviction(setup: Setup) -> Iterable[Finding]:
    policy = setup.info.get(b"maxmemory_policy", b"noeviction").decode()
    if policy.startswith("allkeys"):
        text = f"maxmemory-policy {policy} may evict a stream, and with it entries and IDs."
        fix = "CONFIG SET maxmemory-policy noeviction"
        yield Finding("error", "eviction", setup.name, text, fix)
    if setup.info and not setup.number(b"maxmemory"):
        text = "maxmemory is not set: a growing stream can use all memory of the machine."
        fix = "CONFIG SET maxmemory to about 70 % of the machine's memory"
        yield Finding("note", "maxmemory", setup.name, text, fix)


def _version(setup: Setup) -> Iterable[Finding]:
    if setup.info.get(b"redis_version") == b"8.10.2" and b"valkey_version" not in setup.info:
        text = "Redis 8.10.2 cannot load some of its own streams: it may not start from its append-only file."
        fix = "Use Redis 8.6, Valkey 9.1 or a later version: see the guide on servers."
        yield Finding("note", "engine", setup.name, text, fix)


def _persistence(setup: Setup) -> Iterable[Finding]:
    if not setup.settings:
        return
    if setup.settings.get(b"appendonly") == b"no" and not setup.settings.get(b"save"):
        text = "neither AOF nor RDB is on: after a restart the server is empty, and "
        text += "must rejoin." if setup.region.peers else "all is lost: there is no other region."
        yield Finding("warning", "persistence", setup.name, text, "CONFIG SET appendonly yes")


def _faults(setup: Setup) -> Iterable[Finding]:
    if why := drops_transactions(setup.info, setup.default_is_whole):
        yield Finding("error", "aof-user", setup.name, why, f"{CURE}.")


def _buffers(setup: Setup) -> Iterable[Finding]:
    words = setup.settings.get(b"client-output-buffer-limit", b"").split()
    if b"normal" in words:
        hard = int(words[words.index(b"normal") + 1])
        if 0 < hard < _PUSH_BYTES:
            text = f"normal clients may have {hard:,} bytes waiting: a burst of writes cuts the daemon off."
            fix = 'CONFIG SET client-output-buffer-limit "normal 256mb 64mb 60"'
            yield Finding("warning", "output-buffer", setup.name, text, fix)


def _clients(setup: Setup) -> Iterable[Finding]:
    most, now = int(setup.settings.get(b"maxclients", b"0")), setup.number(b"connected_clients")
    if most and now > 0.8 * most:
        text = f"{now:,} of {most:,} connections are in use. More clients will be refused."
        fix = "Raise maxclients and the limit of open files, or let clients use a gateway."
        yield Finding("warning", "clients", setup.name, text, fix)


def _strays(setup: Setup) -> Iterable[Finding]:
    if setup.unchecked:
        yield Finding("note", "unchecked", setup.name, setup.unchecked, "Run it with an administrator's URL.")
    if setup.strays:
        text = (
            f"native streams under the names of managed streams: {_some(setup.strays)}. A client writes "
            "directly to the server, and readers of the stream do not see these entries."
        )
        fix = "Let that client use braidstream or a gateway, then run: braid adopt --strays --url URL"
        yield Finding("error", "stray", setup.name, text, fix)
    if setup.natives:
        text = f"native streams, which are not replicated: {_some(setup.natives)}."
        fix = "To replicate one: braid adopt NAME --url URL. To keep it native: nothing."
        yield Finding("note", "native", setup.name, text, fix)


def _functions(setup: Setup) -> Iterable[Finding]:
    if setup.changed:
        text = (
            f"the engine functions: {setup.changed}. They run with the rights of all clients and daemons, so "
            "who replaces them may do everything with all streams."
        )
        where = f"--url URL --region {setup.region.id} --name {setup.region.name}"
        fix = (
            "If you have just upgraded, run the newer braid doctor. Otherwise find out who may run FUNCTION "
            f"LOAD (ACL LIST), and load them again: braid init --force {where}"
        )
        yield Finding("error", "functions", setup.name, text, fix)


def _damaged(setup: Setup) -> Iterable[Finding]:
    for text in setup.damaged[:_NAMED]:
        what, _, fix = text.removeprefix("DAMAGED ").partition(" Restore ")
        yield Finding(
            "error", "damaged", setup.name, f"{what} The stream is not replicated.", f"Restore {fix}"
        )
    if len(setup.damaged) > _NAMED:
        text = f"{len(setup.damaged) - _NAMED:,} more registries cannot be read."
        yield Finding("error", "damaged", setup.name, text, "Run this again when these are mended.")


def _copies(setup: Setup) -> Iterable[Finding]:
    if setup.copies:
        oldest = max(each.age_s for each in setup.copies) // 60
        text = (
            f"unfinished copies use memory: {_some([each.key for each in setup.copies])}. The oldest is "
            f"{oldest:,} minutes old. A client was killed in COPY, RENAME, RESTORE, DUMP or "
            "braid spark audit --repair."
        )
        fix = "If no such command has been running that long, delete each of them: UNLINK KEY"
        yield Finding("warning", "copies", setup.name, text, fix)


def _unlimited(setup: Setup) -> Iterable[Finding]:
    """Memory is the price of streams: what has no limit fills the server some day."""
    policies = setup.policies or Policies()
    for each in sorted(setup.large, key=lambda each: -each.size)[:_NAMED]:
        for text, fix in unlimited(each, policies.of(each.name))[:_NAMED]:
            yield Finding("note", "retention", setup.name, text, fix)


def _waiting(setup: Setup) -> Iterable[Finding]:
    """Only the region that wrote an entry for later appends it, unless another one takes over."""
    if setup.later:
        name = printable(setup.later)
        text = f"without takeover_after_s, entries that wait for {name} wait for a region that is lost."
        yield Finding("note", "later", setup.name, text, "Add to braid.toml: [groups] takeover_after_s = 60")


def _rights(setup: Setup) -> Iterable[Finding]:
    if setup.denied:
        text = f"the user {setup.user} may not run {', '.join(setup.denied)}."
        fix = f"ACL SETUSER {setup.user} ... as in the guides on servers and replication security"
        yield Finding("error", "rights", setup.name, text, fix)
    elif setup.denied is None:
        who = f"user {setup.user}" if setup.user else "URL's user"
        text = f"the rights of the {who} cannot be checked without +acl."
        fix = "Run it with an administrator's URL, and to check another user, such as link: --user link"
        yield Finding("note", "rights", setup.name, text, fix)


def _user_rights(setup: Setup) -> Iterable[Finding]:
    user = setup.checked
    if user is None:
        return
    if user.error:
        text = f"the rights of {user.name} could not be checked: {user.error}."
        yield Finding(
            "warning", "user", setup.name, text, "Run it with an administrator's URL: it needs +acl."
        )
    elif user.lacks is None:
        fix = f"ACL SETUSER {user.name} on >PASSWORD {' '.join(user.rights)}"
        yield Finding("error", "user", setup.name, f"there is no user {user.name}.", fix)
    elif user.lacks:
        text = f"the user {user.name} lacks rights that {user.what} needs."
        yield Finding("error", "user", setup.name, text, f"ACL SETUSER {user.name} {' '.join(user.lacks)}")


def _replicas(setup: Setup, durability: str) -> Iterable[Finding]:
    if setup.node is not None and not setup.node.is_primary:
        return
    have = setup.number(b"connected_slaves")
    wanted = int(durability.partition(":")[2] or 0) if durability.startswith("replicas") else 0
    if have < wanted:
        text = f"durability is {durability}, but {have} replicas are connected: peers get nothing."
        yield Finding("error", "replicas", setup.name, text, "Bring the replicas back, or change durability.")
    elif setup.info and not have:
        peers = setup.region.peers
        lost = "the entries that no peer has yet" if peers else "all entries"
        fix = 'Add a replica, and set durability = "replicas:1" in braid.toml.' if peers else "Add a replica."
        text = f"it has no replica: if its machine is lost, so are {lost}."
        yield Finding("note", "replicas", setup.name, text, fix)


def _drift(setup: Setup, listed: dict[int, str]) -> Iterable[Finding]:
    unknown = [number for number in setup.region.writers if number not in listed]
    missing = [name for number, name in listed.items() if number not in setup.region.writers]
    if unknown:
        numbers = ", ".join(map(str, unknown))
        text = f"the server knows region {numbers}, and the file does not list it."
        fix = "Add it to the file; or, if it is gone for good: braid region remove"
        yield Finding("error", "unlisted", setup.name, text, fix)
    if missing:
        text = f"the server has not met {', '.join(missing)} yet, which the file lists."
        yield Finding(
            "warning", "unmet", setup.name, text, f"Start its daemon: braid replicate --region {setup.name}"
        )


def _modes(setups: Sequence[Setup]) -> Iterable[Finding]:
    modes = {setup.region.id_mode for setup in setups}
    if len(modes) > 1:
        text = "regions have different ID modes: " + ", ".join(
            f"{setup.name} {setup.region.id_mode}" for setup in setups
        )
        yield Finding(
            "warning", "id-mode", "all regions", text + ".", "braid tune id-mode MODE --config FILE"
        )


def _some(names: Sequence[bytes]) -> str:
    shown = ", ".join(name.decode("utf-8", "backslashreplace") for name in sorted(names)[:_NAMED])
    return f"{shown}, ..." if len(names) > _NAMED else shown
