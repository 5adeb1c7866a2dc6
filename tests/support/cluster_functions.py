"""Calls of every engine function, on one stream in a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterCrossSlotError, MovedError, ResponseError, TryAgainError

from braidstream import lua as functions
from braidstream.commands.expire import carry_out, expire_at
from braidstream.commands.table import TABLE
from braidstream.commands.xadd_idempotent import call
from braidstream.commands.xgroup import join_command
from braidstream.engine.redis_py import resp2
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.journal import apply_command
from braidstream.model.region import Region
from braidstream.model.registry import Registry
from braidstream.model.strand import Command, Strand
from braidstream.operations import log_upkeep
from braidstream.operations.adoption import adopt_command, append_command, release_command, set_aside_command
from braidstream.operations.later_promotion import promote
from braidstream.plan.append import ensure_command
from braidstream.plan.braid import delete_command
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan, Replies, run, unpack, wire
from braidstream.plan.view import View
from braidstream.replication.detect.sweep import glance_command
from braidstream.replication.heal.compare import list_ids
from braidstream.replication.link.batches import page_of_bytes
from braidstream.replication.link.stream_state import merge_command, read_state
from tests.support.cluster import Cluster
from tests.support.regions import apply

REFUSALS = (AskError, ClusterCrossSlotError, MovedError, TryAgainError)

# Says which key a function touches that it was not given.
GUARD = """
local given = {}
local SECOND = { XGROUP = true, XINFO = true }
local NO_KEY = { DBSIZE = true, FLUSHDB = true, INFO = true, SELECT = true, TIME = true }
local function check(name, ...)
  local first, second = ...
  local key = SECOND[name] and second or first
  if name == 'XREADGROUP' then key = select(-2, ...) end -- of one stream: ... STREAMS key id
  if not NO_KEY[name] and not given[key] then error('non local key: ' .. name .. ' ' .. tostring(key)) end
  if name == 'RENAME' and not given[second] then error('non local key: RENAME to ' .. tostring(second)) end
end
local function guarded_call(...)
  check(...)
  return redis.call(...)
end
local function guarded_pcall(...)
  check(...)
  return redis.pcall(...)
end
local function register_guarded(named, callback)
  local about = callback and { function_name = named, callback = callback } or named
  local inner = about.callback
  about.callback = function(keys, args)
    given = {}
    for _, key in ipairs(keys) do given[key] = true end
    return inner(keys, args)
  end
  redis.register_function(about)
end
"""
WAIT = (b"XREADGROUP", b"GROUP", b"g", b"ann", b"BLOCK", b"1", b"STREAMS")


class Nodes:
    """Sends each batch of one stream's plans where a cluster client would. Notes every command that went."""

    def __init__(self, cluster: Cluster, connections: list[Any]) -> None:
        self.ranges = list(zip(cluster.SLOTS, connections, strict=True))
        self.connections = connections
        self.home = connections[0]
        self.sent = list[Command]()

    def of(self, name: bytes) -> "Nodes":
        """From now on the stream is this one."""
        self.home = self._owner(keys.meta(name))
        return self

    def __call__(self, batch: Batch) -> Replies:
        if batch.atomic:
            return unpack(batch, self.exchange(self.home, wire(batch)), resp2)
        replies = [self.exchange(self._place(command), [command])[0] for command in batch.commands]
        return unpack(batch, replies, resp2)

    def exchange(self, conn: Any, commands: list[Command]) -> list[Any]:
        self.sent += commands
        replies = say(conn, *commands)
        for command, reply in zip(commands, replies, strict=True):
            assert not is_refused(reply), f"{command} -> {type(reply).__name__} {reply}"
        return replies

    def _place(self, command: Command) -> Any:
        key = _first_key(command)
        return self.home if key is None else self._owner(key)

    def _owner(self, key: bytes) -> Any:
        slot = key_slot(key)
        return next(conn for (first, last), conn in self.ranges if first <= slot <= last)


def is_refused(reply: Any) -> bool:
    return isinstance(reply, REFUSALS) or "non local key" in str(reply)


def say(conn: Any, *commands: Command) -> list[Any]:
    """Commands on one connection; errors come back as values."""
    conn.send_packed_command(conn.pack_commands(commands))
    return [_reply(conn) for _ in commands]


def _reply(conn: Any) -> Any:
    try:
        return conn.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _first_key(command: Command) -> bytes | None:
    """The key that a cluster client routes a command by."""
    word = command[0].decode() if isinstance(command[0], bytes) else str(command[0])
    if word in ("TIME", "CLIENT", "INFO", "UNWATCH"):
        return None
    at = {"FCALL": 3, "FCALL_RO": 3, "XINFO": 2, "XGROUP": 2, "OBJECT": 2}.get(word, 1)
    if word in ("XREAD", "XREADGROUP"):
        at = command.index("STREAMS") + 1
    key = command[at]
    assert isinstance(key, bytes), command
    return key


def guarded_library() -> str:
    """The engine functions, each of which fails if it touches a key that it was not given."""
    head, _, rest = functions.source().partition("\n")
    for native, guarded in (
        ("redis.call", "guarded_call"),
        ("redis.pcall", "guarded_pcall"),
        ("redis.register_function", "register_guarded"),
    ):
        rest = rest.replace(native, guarded)
    return head + GUARD + rest


@contextmanager
def nodes_of(cluster: Cluster, kind: type[Nodes] = Nodes) -> Iterator[Nodes]:
    connections = []
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("FUNCTION", "LOAD", "REPLACE", guarded_library())
        connections.append(redis.Connection(host="127.0.0.1", port=node.port, protocol=2))
    try:
        yield kind(cluster, connections)
    finally:
        for conn in connections:
            conn.disconnect()


def view_of_one() -> View:
    return View(Region(1, "r1", 1, "liberal", (1, 2, 3), is_cluster=True))


def neighbour(name: bytes) -> bytes:
    """Another name in the slot of this one."""
    tag = keys.meta(name).partition(b"{")[2].partition(b"}")[0]
    other = b"{" + tag + b"}-other"
    assert key_slot(keys.meta(other)) == key_slot(keys.meta(name))
    return other


def command(view: View, *words: bytes) -> Plan[Any]:
    return TABLE[words[0]].plan(view, list(words))


def _registry(view: View, said: Nodes, name: bytes) -> Registry:
    [reply] = said(Batch([registry_of(name)]))
    return view.learn(name, reply)


def say_every_function(said: Nodes, name: bytes) -> None:
    """Every engine function at least once, on a stream that is made and deleted here."""
    view = view_of_one()
    home = view.home(name)
    assert said(Batch([ensure_command(home)])) == [1]
    undo = ("FCALL", "bs_strand_undo_ensure", 2, keys.meta(name), home.key, home.label)
    assert said(Batch([undo, ensure_command(home)])) == [1, 1]
    assert run(apply(Strand(name, "s", 2), [((5, 5), [b"v", b"a"])]), said) == 1
    even = Strand(name, "s", 3).apply_even(ids.ZERO, (1, 2))
    assert said(Batch([(*even, b"5-6", b"v", b"a")])) == [1]
    assert run(command(view, b"XADD", name, b"7-7", b"v", b"a"), said) == b"7-7"
    assert run(command(view, b"XSETID", name, b"8-8"), said) == b"OK"
    for producer in (b"p", b"{", b"}:{x}"):
        message = (b"XADD", name, b"IDMP", producer, b"1", b"*", b"v", b"a")
        assert run(command(view, *message), said) == run(command(view, *message), said)
    assert b"pids-tracked" in run(command(view, b"XINFO", b"STREAM", name), said)
    assert run(command(view, b"XCFGSET", name, b"IDMP-MAXSIZE", b"5"), said) == b"OK"
    settings, writer = _registry(view, said, name).settings, view.region.journal_writer
    one = call(home, settings, b"p", writer, function="bs_idempotence_one")
    [added, known] = said(Batch([(*one, b"2", b"*", b"v", b"a")] * 2))
    assert known.lstrip(b"+").startswith(added.lstrip(b"+"))
    assert run(command(view, b"XGROUP", b"CREATE", name, b"g", b"0"), said) == b"OK"
    assert run(command(view, b"XGROUP", b"SETID", name, b"g", b"$"), said) == b"OK"
    assert run(command(view, b"XGROUP", b"SCOPE", name, b"g", b"ONCE"), said) == b"OK"
    assert run(command(view, b"XGROUP", b"SCOPE", name, b"g", b"EVERYWHERE"), said) == b"OK"
    assert run(command(view, *WAIT, name, b">"), said) is None
    words = (b"g", b"ann", 1, b"", home.registration, _registry(view, said, name).bell)
    assert said(Batch([("FCALL", "bs_group_read", 2, keys.meta(name), home.key, *words)])) == [[0, 0, []]]
    alone = View(replace(view.region, writers=(1,)))
    run(expire_at(alone, name, 4_102_444_800_000), said)
    assert run(command(alone, b"EXISTS", name), said) == 1
    run(expire_at(view, name, 4_102_444_800_000), said)
    assert run(carry_out(view, name), said) == 0
    assert run(command(view, b"PERSIST", name), said) == 1
    assert run(apply(Strand(name, "c", 2), [((3, 3), [b"v", b"a"])]), said) == 1
    assert run(command(view, b"XDELEX", name, b"DELREF", b"IDS", b"1", b"7-7"), said) == [1]
    ask = ("FCALL", "bs_group_ask", 1, keys.questions(name, 1), "ask", 1)
    assert len(said(Batch([ask, ask]))) == 2
    trim = ("FCALL", "bs_entry_trim", 1, Strand(name, "s", 2).key, 1, "s2:0", 100, 1, "DELREF", 0, 1, "5-5")
    assert said(Batch([trim])) == [0]
    cut = ("FCALL", "bs_strand_cut", 1, Strand(name, "s", 2).key, "9-9", "9-9", "0-0", 1, 10)
    assert said(Batch([cut])) == [[0, b"", 0]]
    user = run(command(view, b"XADD", name, b"*", b"later.delay", b"0", b"v", b"a"), said)
    due = [(home, home.native(ids.native(user))), (home, (1, 1))]
    [promoted, cancelled] = run(promote(view, name, due), said)
    assert isinstance(promoted, bytes)
    assert cancelled is None
    state = run(read_state(name, [], [2], home=1), said)
    assert run(read_state(name, [], [2]), said).meta == state.meta
    assert said(Batch([glance_command(name, (1, 2, 3))])) == [b""]  # there are strands of chosen IDs too
    assert said(Batch([merge_command(state, state, (1, 2, 3), home=1)])) == [1]
    assert run(list_ids(Strand(name, "s", 2), (0, 0), (9, 9)), said) == ([b"5-5"], None)
    [(_, page)] = said(Batch([page_of_bytes(Strand(name, "s", 2), (0, 0), 10)]))
    assert len(page) == 1
    bell = _registry(view, said, name).bell
    where = (keys.meta(name), Strand(name, "s", 2).key, keys.journal(name, 2), keys.bell(name, bell))
    mend = ("FCALL", "bs_strand_mend", len(where), *where, "s2", 0, bell, "0-0", 0, "5-5", 1, "0-0", 0)
    assert said(Batch([(*mend, "4-4", 2, "v", "a")])) == [1]
    bell = _registry(view, said, name).bell
    copied = (*where[:3], keys.copy(name, b"1.1.1"), keys.bell(name, bell))
    about = ("1", "", "3-3", "3-3", 0, 1, "s2", 0, bell, "0-0", 0, "5-5", 1, "0-0", 0)
    weave = ("FCALL", "bs_strand_weave", len(copied), *copied, *about, "3-3", 2, "v", "a")
    [woven] = said(Batch([weave]))
    assert not isinstance(woven, ReplyError), woven
    assert said(Batch([join_command(_registry(view, said, name), name, b"g", writer=1)])) == [0]
    strand = (2, keys.meta(name), Strand(name, "s", 2).key, "s2", 0)
    note = ("FCALL", "bs_strand_note", *strand, "00", "1-1", "1-1", 0, "1-1", "?1-1")
    assert said(Batch([note, ("FCALL", "bs_strand_trim", *strand, "1-1")])) == [0, 0]
    redo = ("FCALL", "bs_journal_redo", 2, keys.meta(name), keys.journal(name, 1), 0, "1-1", 0, 2)
    assert said(Batch([redo])) == [0]
    assert said(Batch([("FCALL", "bs_strand_raise", 2, keys.meta(name), home.key, "1-1", home.label)])) == [0]
    mark = ("FCALL", "bs_idempotence_mark", 2, keys.meta(name), home.key, "p", "1", "1-1")
    [unknown] = said(Batch([mark], attempt=True))
    assert isinstance(unknown, ReplyError)
    deletion = (b"1-1", [b"del", b"s2:0 5-5"])
    journal = apply_command(name, (2, 1), state.strands, [deletion], after=(0, 0))
    skip = ("FCALL", "bs_journal_skip", 1, keys.journal(name, 2), "2-2")
    assert said(Batch([journal, skip])) == [1, 1]
    say_the_team(said, name)
    assert run(command(view, b"XGROUP", b"CREATE", name, b"h", b"0"), said) == b"OK"
    assert run(command(view, b"XGROUP", b"DESTROY", name, b"g"), said) == 1
    assert run(command(view, b"COPY", name, neighbour(name), b"REPLACE"), said) == 1
    assert said(Batch([delete_command(name, _registry(view, said, name), 0)])) == [1]
    run(command(view, b"DEL", neighbour(name)), said)
    say_every_log_function(view, said, neighbour(name))
    if keys.shares_slot(name):
        _adopt_and_release(said, name)


def say_the_team(said: Nodes, name: bytes) -> None:
    """Two members share the partitions of a topic of this name, and leave."""

    def beat(member: str, session_ms: int, mark: bytes = b"", returned: str = "") -> Command:
        return ("FCALL", "bs_team_beat", 3, *keys.team(name, b"{g}"), member, session_ms, 4, mark, returned)

    [[mark, _, again_ms, is_new, listed]] = said(Batch([beat("ann", 60_000)]))
    assert (again_ms, is_new, listed) == (20, 1, b"")
    assert said(Batch([beat("bob", 1)]))[0][3] == 1  # it dies
    while (listed := said(Batch([beat("ann", 60_000)]))[0][4]) != b"0 1 2 3":
        assert listed in (b"", b"0 1", b"2 3")
    assert said(Batch([beat("ann", 60_000, mark)]))[0][4] == b"0 1 2 3"
    said(Batch([beat("ann", 60_000, b"", "3"), beat("bob", 60_000), beat("bob", 0)]))
    assert said(Batch([beat("ann", 0)]))[0][4] == b""
    assert said(Batch([("EXISTS", *keys.team(name, b"{g}"))])) == [0]
    first, second = (keys.hold(name, b"{g}", token) for token in (b"a", b"b"))
    where, holder = ("FCALL", "bs_team_hold"), keys.holder(name, b"{g}")
    assert said(Batch([(*where, 2, holder, first, b"{g}", 5, "a", "")])) == [b""]
    assert said(Batch([(*where, 3, holder, second, first, b"{g}", 6, "b", "a")])) == [b""]
    assert said(Batch([(*where, 2, holder, second, b"{g}", 6, "", "b")])) == [b""]
    assert said(Batch([("EXISTS", holder, first, second)])) == [0]


def say_every_log_function(view: View, said: Nodes, name: bytes) -> None:
    offset = run(command(view, b"TWRITE", name, b"tag", b"entry"), said)
    assert run(command(view, b"TCFGSET", name, b"BACKLOG", b"10"), said) == b"OK"
    assert run(command(view, b"TREAD", name, b"%d" % offset, b"10"), said) == [[offset, b"tag", b"entry"]]
    read = (b"TREAD", name, b"0", b"1", b"GROUP", b"g", b"RETRY", b"60000", b"60000")
    assert run(command(view, *read), said) == [[offset, b"tag", b"entry"]]
    assert run(command(view, *read), said) == []
    assert run(command(view, b"TACK", name, b"g", b"1-%d" % offset), said) == 1
    assert run(command(view, b"TWRITE", name, b"tag", b"next"), said) == offset + 1
    message = (b"TWRITE", name, b"IDMP", b"p", b"i", b"tag", b"third")
    assert [run(command(view, *message), said) for _ in range(2)] == [offset + 2] * 2
    assert run(command(view, b"TEVICT", name, b"OLDER", b"60000"), said) == 0
    for writer, force in ((2, False), (1, True)):
        epoch = log_upkeep.home_of(run(log_upkeep.read_log(name), said))
        assert run(log_upkeep.end_epoch(name, epoch, writer, force=force), said) > offset
    home = log_upkeep.strand_of_epoch(name, log_upkeep.home_of(run(log_upkeep.read_log(name), said)))
    entry = (b"t1.2", 0, offset, b"tag", b"entry")
    rescue = ("FCALL", "bs_log_rescue", 2, keys.meta(name), home.key, home.label, *entry)
    assert said(Batch([rescue])) == [1]
    copy = ("FCALL", "bs_log_copy", 2, home.key, keys.copy(name, b"c"))
    copied, *rest = said(Batch([copy, copy, ("UNLINK", keys.copy(name, b"c"))]))
    assert (copied, rest) == (0, [0, 1])
    run(log_upkeep.rewrite(home, b"token"), said)
    view.forget(name)
    run(command(view, b"DEL", name), said)


def _adopt_and_release(said: Nodes, name: bytes) -> None:
    """A native stream; one server has it in the slot of the stream, whatever its name."""
    view = view_of_one()
    said(Batch([("XADD", name, "1-1", "v", "a"), ("XGROUP", "CREATE", name, "g", "0")]))
    _registry(view, said, name)
    assert said(Batch([adopt_command(view, name)])) == [[1, 1]]
    view.forget(name)
    _registry(view, said, name)
    assert said(Batch([("DEL", name), ("XADD", name, "1-1", "v", "a")]))[0] == 1
    assert said(Batch([set_aside_command(name), append_command(view, name)])) == [1, 1]
    view.forget(name)
    _registry(view, said, name)
    assert said(Batch([release_command(view, name), ("DEL", name)])) == [-2, 1]
    assert said(Batch([("FCALL", "bs_native_unfence", 2, keys.meta(name), name)])) == [0]
