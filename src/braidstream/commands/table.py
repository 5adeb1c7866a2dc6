"""Wire name -> grammar, plan, reply shape. Read by the clients, the gateway and the docs build."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from braidstream.commands import (
    claims,
    expire,
    keyspace,
    native,
    removal,
    rename,
    tread,
    twrite,
    xack,
    xadd,
    xadd_idempotent,
    xgroup,
    xinfo,
    xread,
    xreadgroup,
)
from braidstream.commands.arguments import (
    Argv,
    is_storage,
    option,
    read_names,
    refuse_long_name,
    shown,
    storage_error,
    wrong_arity,
)
from braidstream.errors import ReplyError, UnblockedError
from braidstream.model import keys
from braidstream.plan.gather import Joining
from braidstream.plan.plan import Plan
from braidstream.plan.view import View

# How RESP3 shapes a reply that RESP2 sends as an array: {name: entries}, or a map of facts.
Shape = Literal["plain", "streams", "facts"]
# Commands that create streams, but not plain keys.
_CREATING: Final = (b"XADD", b"XGROUP", b"TWRITE", b"TCFGSET")


def _for_user(plan: Plan[Any], names: Argv) -> Plan[Any]:
    """The plan as users see it: nil if CLIENT UNBLOCK ends a wait, as in the engine. Errors name streams,
    never their keys."""
    try:
        return (yield from plan)
    except UnblockedError:
        return None
    except ReplyError as error:
        text = error.text
        for name in names if "'bs:" in text else ():
            text = re.sub(_key_in_text(name), f"'{shown(name)}'".replace("\\", r"\\"), text)
        if text == error.text:
            raise
        raise ReplyError(text) from None


def _key_in_text(name: bytes) -> str:
    """A pattern for a key of a stream in an error text of the engine, which ends a key at a zero byte."""
    tag = keys.tag(name).split(b"\0", 1)[0].replace(b"\r", b" ").replace(b"\n", b" ")
    return rf"'bs:[^'{{+!]+{re.escape(tag.decode('utf-8', 'replace'))}(:.*?)?'"


@dataclass(frozen=True, slots=True)
class Spec:
    """One command.

    multi: most calls need one batch, so a MULTI may contain them. A plan that needs more says so
        (`View.will_continue`).
    joining: how consecutive calls share one plan.
    """

    grammar: str
    build: Callable[[View, Argv], Plan[Any]]
    names: Callable[[Argv], Argv]
    least: int
    most: int | None = None
    shape: Shape = "plain"
    multi: bool = True
    subcommands: Mapping[bytes, tuple[int, int | None]] | None = None
    joining: Joining | None = None

    def plan(self, view: View, argv: Argv) -> Plan[Any]:
        """The plan for a command line. A wrong number of words is an error before any plan."""
        error = self.arity_error(argv)
        if error is not None:
            raise error
        names = self.names(argv)
        for name in names:
            if is_storage(name):
                raise storage_error(argv[0], name)
            if argv[0].upper() in _CREATING:
                refuse_long_name(argv[0], name)
        if argv[0][:1] in (b"X", b"x"):
            made = native.routed(view, argv, names, self._build)
        else:
            made = self._build(view, argv)
        return _for_user(made, names)

    def _build(self, view: View, argv: Argv) -> Plan[Any]:
        if not self.multi:
            view.will_continue()
        return self.build(view, argv)

    def arity_error(self, argv: Argv) -> ReplyError | None:
        """The error that the engine finds before it reads a key: in a MULTI the command is not queued."""
        command = argv[0].decode("ascii", "replace")
        if len(argv) < self.least or (self.most is not None and len(argv) > self.most):
            return wrong_arity(command)
        if not self.subcommands:
            return None
        bounds = self.subcommands.get(option(argv[1]))
        if bounds is None:
            text = f"ERR unknown subcommand '{shown(argv[1])}'. Try {command.upper()} HELP."
            return ReplyError(text)
        if len(argv) < bounds[0] or (bounds[1] is not None and len(argv) > bounds[1]):
            return wrong_arity(f"{command}|{shown(argv[1])}")
        return None


def _first(argv: Argv) -> Argv:
    return argv[1:2]


def _all(argv: Argv) -> Argv:
    return argv[1:]


def _pair(argv: Argv) -> Argv:
    return argv[1:3]


def _second(argv: Argv) -> Argv:
    return argv[2:3]


def _none(argv: Argv) -> Argv:
    return []


_TRIM = "MAXLEN|MINID [=|~] threshold [LIMIT count]"
_REFS = "[KEEPREF|DELREF|ACKED]"

TABLE: Final[dict[bytes, Spec]] = {
    b"XADD": Spec(
        f"key [NOMKSTREAM] {_REFS} [IDMPAUTO producer | IDMP producer iid] [{_TRIM}] "
        "*|id field value [field value ...]",
        xadd.add,
        _first,
        5,
        joining=Joining(xadd_idempotent.message_of, xadd_idempotent.joins, xadd_idempotent.add_all),
    ),
    b"XLEN": Spec("key", xread.length, _first, 2, 2),
    b"XRANGE": Spec("key start end [COUNT count]", xread.read_range, _first, 4),
    b"XREVRANGE": Spec("key end start [COUNT count]", xread.read_range_back, _first, 4),
    b"XREAD": Spec(
        "[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK ms] STREAMS key [key ...] id [id ...]",
        xread.read,
        read_names,
        4,
        shape="streams",
    ),
    b"XDEL": Spec("key id [id ...]", removal.delete_entries, _first, 3),
    b"XDELEX": Spec(f"key {_REFS} IDS numids id [id ...]", removal.delete_ex, _first, 5),
    b"XTRIM": Spec(
        f"key {_TRIM} [KEEPREF|DELREF|ACKED [EXCEPT numgroups group ...]]", removal.trim, _first, 4
    ),
    b"XSETID": Spec(
        "key last-id [ENTRIESADDED count] [MAXDELETEDID id]", xadd.set_id, _first, 3, multi=False
    ),
    b"XINFO": Spec(
        "STREAM key [FULL [COUNT count]] | HELP",
        xinfo.info,
        _second,
        2,
        shape="facts",
        subcommands=xinfo.SUBCOMMANDS,
    ),
    b"DEL": Spec("key [key ...]", keyspace.delete, _all, 2),
    b"UNLINK": Spec("key [key ...]", keyspace.delete, _all, 2),
    b"EXISTS": Spec("key [key ...]", keyspace.count_existing, _all, 2),
    b"TOUCH": Spec("key [key ...]", keyspace.touch, _all, 2),
    b"TYPE": Spec("key", keyspace.kind, _all, 2, 2),
    b"RENAME": Spec("key newkey", rename.rename, _pair, 3, 3, multi=False),
    b"RENAMENX": Spec("key newkey", rename.rename_if_new, _pair, 3, 3, multi=False),
    b"COPY": Spec("source destination [REPLACE]", rename.copy, _pair, 3, multi=False),
    b"EXPIRE": Spec("key seconds [NX|XX|GT|LT]", expire.expire, _first, 3),
    b"PEXPIRE": Spec("key milliseconds [NX|XX|GT|LT]", expire.expire, _first, 3),
    b"EXPIREAT": Spec("key unix-time-seconds [NX|XX|GT|LT]", expire.expire, _first, 3),
    b"PEXPIREAT": Spec("key unix-time-milliseconds [NX|XX|GT|LT]", expire.expire, _first, 3),
    b"TTL": Spec("key", expire.time_to_live, _first, 2, 2),
    b"PTTL": Spec("key", expire.time_to_live, _first, 2, 2),
    b"EXPIRETIME": Spec("key", expire.time_to_live, _first, 2, 2),
    b"PEXPIRETIME": Spec("key", expire.time_to_live, _first, 2, 2),
    b"PERSIST": Spec("key", expire.persist, _first, 2, 2),
    b"OBJECT": Spec(
        "ENCODING|IDLETIME|FREQ|REFCOUNT key | HELP",
        keyspace.describe,
        _second,
        2,
        subcommands=keyspace.OBJECT,
    ),
    b"DUMP": Spec("key", rename.dump, _first, 2, 2),
    b"RESTORE": Spec(
        "key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]", rename.restore, _first, 4
    ),
    b"SCAN": Spec("cursor [MATCH pattern] [COUNT count] [TYPE type]", keyspace.scan, _none, 2, multi=False),
    b"KEYS": Spec("pattern", keyspace.list_keys, _none, 2, 2, multi=False),
    b"RANDOMKEY": Spec("", keyspace.pick_key, _none, 1, 1, multi=False),
    b"DBSIZE": Spec("", keyspace.count_keys, _none, 1, 1, multi=False),
    b"FLUSHDB": Spec("[ASYNC|SYNC]", keyspace.flush, _none, 1, multi=False),
    b"FLUSHALL": Spec("[ASYNC|SYNC]", keyspace.flush, _none, 1, multi=False),
    b"WATCH": Spec("key [key ...]", keyspace.watch, _all, 2, multi=False),
    b"XGROUP": Spec(
        "CREATE|SETID key group id|$ [MKSTREAM] [ENTRIESREAD n] [SCOPE EVERYWHERE|ONCE] | "
        "DESTROY key group | "
        "CREATECONSUMER|DELCONSUMER key group consumer | SCOPE key group EVERYWHERE|ONCE | "
        "TAKE key group REGION id | GIVE key group REGION id TO REGION id [TIMEOUT ms] | HELP",
        xgroup.manage,
        _second,
        2,
        subcommands=xgroup.SUBCOMMANDS,
        multi=False,
    ),
    b"XREADGROUP": Spec(
        "GROUP group consumer [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK ms] "
        "[CLAIM min-idle] [NOACK] STREAMS key [key ...] id [id ...]",
        xreadgroup.read_group,
        read_names,
        7,
        shape="streams",
    ),
    b"XACK": Spec("key group id [id ...]", xack.acknowledge, _first, 4),
    b"XPENDING": Spec("key group [[IDLE min-idle] start end count [consumer]]", xack.pending, _first, 3),
    b"XCLAIM": Spec(
        "key group consumer min-idle id [id ...] "
        "[IDLE ms] [TIME ms] [RETRYCOUNT n] [FORCE] [JUSTID] [LASTID id]",
        claims.claim,
        _first,
        6,
    ),
    b"XAUTOCLAIM": Spec(
        "key group consumer min-idle start [COUNT count] [JUSTID]", claims.claim_idle, _first, 6
    ),
    b"XACKDEL": Spec(f"key group {_REFS} IDS numids id [id ...]", removal.acknowledge_and_delete, _first, 6),
    b"XNACK": Spec(
        "key group SILENT|FAIL|FATAL IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
        claims.give_back,
        _first,
        7,
    ),
    b"XCFGSET": Spec(
        "key [IDMP-DURATION seconds] [IDMP-MAXSIZE messages] [RAISE]", xinfo.configure, _first, 2
    ),
    b"XIDMPRECORD": Spec("key producer iid id", xinfo.record, _first, 5, 5),
    b"TWRITE": Spec(
        "key [IDMP producer iid] tag entry | "
        "key [IDMP producer iid] [BACKLOG count] [MAXAGE ms] ENTRIES tag entry [tag entry ...]",
        twrite.write,
        _first,
        4,
    ),
    b"TREAD": Spec(
        "key offset count [BLOCK ms] [GROUP name [FIRST|LAST]] [RETRY retry-ms expire-ms] [WITHINFO] [SKIP]",
        tread.read,
        _first,
        4,
    ),
    b"TACK": Spec("key group offset|from-to [offset|from-to ...]", tread.acknowledge, _first, 4, multi=False),
    b"TEVICT": Spec("key offset | key -count | key OLDER ms", twrite.evict, _first, 3, 4, multi=False),
    b"TCFGSET": Spec("key [PENDING count] [BACKLOG count] [MAXAGE ms]", twrite.configure, _first, 4),
}
