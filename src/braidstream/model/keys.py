"""Every Redis key that braidstream uses, and the stream that a key belongs to.

    bs:config                 hash    the identity of this region
    bs:<w>:s:<tag>            stream  strand of writer w: generated IDs
    bs:<w>:c:<tag>            stream  strand of writer w: IDs that users chose
    bs:<w>:c.<g>:<tag>        stream  the same in life g: a deleted stream may start over
    bs:<w>:t:<tag>            stream  strand of a log: what writer w wrote as its home; IDs are 0-<offset>
    bs:<w>:t.<epoch>:<tag>    stream  the same in a later epoch (model/registry.py)
    bs:<w>:j:<tag>            stream  journal of writer w
    bs:<w>:q:<tag>            stream  in region w: what groups of other regions need (plan/ask_peers.py)
    bs:meta:<tag>             hash    the stream's strands and where each was cut (model/registry.py)
    bs:bell:<stamp>:<tag>     stream  empty; deleted when the groups of the stream change (strand.lua)
    bs:turn:<n>:<tag>:<group> stream  one entry: which consumer waits on the strands (commands/xreadgroup.py)
    bs:room:<n>:<tag>:<group> stream  of a log: readers wait for room in the pending list (log_group.lua)
    bs:look:<n>:<tag>:<group> string  of a log: a reader has just looked for entries that are due
    bs:gate:<n>:<tag>:<group> stream  of a log, empty: whether a native read may take new entries
    bs:waits:<n>:<tag>:<group>  zset  of a log: how many entries waiting readers may take
    bs:tick:<tag>             stream  of a log, at its home: which offset it had reached when; expires
    bs:team:<n>:<tag>:<group> hash    of a topic: which member of a group has which partitions (lua/team.lua)
    bs:alive:<n>:<tag>:<group>  zset  the members, and until when
    bs:call:<n>:<tag>:<group> stream  one entry: members wait for the next one
    bs:holder:<n>:<tag>:<group> hash  of a partition: who reads it for a group (teams.hold); expires
    bs:hold:<token>:<n>:<tag>:<group>  stream  empty; its reads name it; deleted when another member has it
    bs:daemons                hash    the region's daemons: each increments a counter while it runs
    bs:status                 hash    what each daemon knows of its links, for `braid status`; expires
    bs:tune                   hash    settings of `braid tune` that daemons read: `durability`
    bs:beats                  hash    the latest heartbeat of each region (model/region.py)
    bs:facts                  string  of a cluster: held while its facts are changed; expires
    bs:safe:<n>               string  of a cluster, on each primary: the durability gate writes it; expires
    bs:claim:<w>              string  the server that replicates to this region as writer w; expires
    bs:copy:<token>:<tag>     stream  a copy being made; becomes a `c` strand (commands/rename.py)
    bs:stray:<tag>            stream  entries written to the plain key, to be brought in
    bs:aside:<mark>:<tag>     stream  entries of a log, to be appended at its home
    bs:idmp:<tag>             hash    producers of the stream, and counts (see lua/idempotence.lua)
    bs:i.<era>:<n>:<tag><producer>   hash   known messages of a producer; n is the length of the tag
    bs:q.<era>:<n>:<tag><producer>   list   the same, in the order of arrival
    bs:stage:<token>:<tag>    list    rows that a Spark task has staged (spark/sink/ledger.py)
    bs:sink:<id>:<tag>        string  how far a Spark sink has published to this stream
    bs:sink:{<id>}            hash    which batch of a Spark sink is decided

All keys of one stream share a slot, and no two names share a key. <tag> has three forms. The first byte
says which:

    {orders}            a name without a hash tag: the whole name is the tag, same slot as the plain key
    +a{tag}b            a name with its own hash tag: kept, so that streams of one tag share a slot
    !{!}}odd            an empty name, or one that starts with `}`: braces around it would not make a tag

A name has at most NAME_BYTES: a stream with a longer one cannot be created. Daemons and lists ignore keys
with longer ones, which somebody wrote by hand: they send each key many times, so one of 40 MB would stop all
other streams.
"""

import re
from functools import lru_cache
from typing import Final, Literal

CONFIG: Final = b"bs:config"
DAEMONS: Final = b"bs:daemons"
STATUS: Final = b"bs:status"
TUNE: Final = b"bs:tune"
BEATS: Final = b"bs:beats"
FACTS_LOCK: Final = b"bs:facts"
PREFIX: Final = b"bs:"
NAME_BYTES: Final = 4_096
# Of a key beside the name: the longest prefix, with a stamp, a number, or a life.
_KEY_BYTES: Final = NAME_BYTES + 100

Kind = Literal["s", "c", "t", "p"]
GENERATED: Final = "s"  # a strand with IDs that the engine generates
CHOSEN: Final = "c"  # a strand with IDs that users chose
LOG: Final = "t"  # a strand of a log: its IDs are offsets
PLAIN: Final = "p"  # a plain stream, not managed by braidstream: its key is its name

_OWN_TAG = re.compile(rb"\A[^{]*\{[^}]+\}", re.DOTALL)
_STRAND = re.compile(rb"\Abs:([1-9][0-9]{0,3}):(s|c|t)(?:\.([1-9][0-9]*))?:([{+!].*)\Z", re.DOTALL)
_JOURNAL = re.compile(rb"\Abs:([1-9][0-9]{0,3}):j:([{+!].*)\Z", re.DOTALL)
_QUESTIONS = re.compile(rb"\Abs:([1-9][0-9]{0,3}):q:([{+!].*)\Z", re.DOTALL)
META: Final = b"bs:meta:"
_BELL = b"bs:bell:"
_TURN = b"bs:turn:"
_TAKES: Final = (b"bs:room:", b"bs:look:", b"bs:gate:", b"bs:waits:")
_TEAM: Final = (b"bs:team:", b"bs:alive:", b"bs:call:")
_HOLDER: Final = b"bs:holder:"
_HOLD: Final = b"bs:hold:"
_TICK = b"bs:tick:"
COPY: Final = b"bs:copy:"
_CLAIM = b"bs:claim:"
_SAFE = b"bs:safe:"
STRAY: Final = b"bs:stray:"
ASIDE: Final = b"bs:aside:"
_ABOUT = b"bs:idmp:"
_KNOWN = re.compile(rb"\Abs:[iq]\.[0-9]+:[0-9]+:[{+!]")
_STAGE = b"bs:stage:"
_SINK = b"bs:sink:"
# Of all other keys.
_PREFIXES: Final = (
    *(META, _BELL, _TURN, *_TAKES, *_TEAM, _HOLDER, _HOLD, _TICK, COPY, _CLAIM, _SAFE, _ABOUT, _STAGE, _SINK),
    *(STRAY, ASIDE),
)
_KINDS: Final[dict[bytes, Kind]] = {b"s": GENERATED, b"c": CHOSEN, b"t": LOG}


def tag(name: bytes) -> bytes:
    """The part of a key that contains the stream's name and decides its slot."""
    if has_own_tag(name):
        return b"+" + name
    if not name or name.startswith(b"}"):
        return b"!{!}" + name
    return b"{" + name + b"}"


def name_of_tag(text: bytes) -> bytes:
    if text.startswith(b"+"):
        return text[1:]
    return text[4:] if text.startswith(b"!") else text[1:-1]


def has_own_tag(name: bytes) -> bool:
    """Whether a name has a hash tag, which decides its slot."""
    return bool(_OWN_TAG.match(name))


def shares_slot(name: bytes) -> bool:
    """Whether the plain key `name` has the slot of the stream's own keys."""
    return has_own_tag(name) or (bool(name) and b"}" not in name)


def kind_of(text: bytes) -> Kind:
    """The kind of a strand, from a key or a label."""
    return _KINDS[text]


def of_writer(writer: int) -> bytes:
    """The prefix of the keys of a writer's strands and journals."""
    return PREFIX + b"%d:" % writer


def strand(name: bytes, kind: Kind, writer: int, life: int = 0) -> bytes:
    return name if kind == PLAIN else _of_strands(kind, writer, life) + tag(name)


@lru_cache
def _of_strands(kind: Kind, writer: int, life: int) -> bytes:
    return of_writer(writer) + kind.encode() + (b".%d:" % life if life else b":")


def journal(name: bytes, writer: int) -> bytes:
    return of_writer(writer) + b"j:" + tag(name)


def questions(name: bytes, writer: int) -> bytes:
    return of_writer(writer) + b"q:" + tag(name)


def meta(name: bytes) -> bytes:
    return META + tag(name)


def safe(number: int) -> bytes:
    """A key that the durability gate writes. Numbers are tried until the key is on the wanted primary."""
    return b"%b%d" % (_SAFE, number)


def claim(writer: int) -> bytes:
    return _CLAIM + b"%d" % writer


def bell(name: bytes, stamp: bytes) -> bytes:
    return _BELL + stamp + b":" + tag(name)


def turn(name: bytes, group: bytes) -> bytes:
    """The length of the tag separates it from the group."""
    return b"%b%d:%b:%b" % (_TURN, len(tag(name)), tag(name), group)


def takes(name: bytes, group: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The keys of a group of a log: room, look, gate, waits. They expire."""
    rest = b"%d:%b:%b" % (len(tag(name)), tag(name), group)
    room, look, gate, waits = (prefix + rest for prefix in _TAKES)
    return room, look, gate, waits


def team(topic: bytes, group: bytes) -> tuple[bytes, bytes, bytes]:
    """The keys of a group of a topic: team, alive, call. They expire."""
    rest = b"%d:%b:%b" % (len(tag(topic)), tag(topic), group)
    shares, alive, call = (prefix + rest for prefix in _TEAM)
    return shares, alive, call


def team_field(member: bytes) -> bytes:
    """Which partitions a member of a team has."""
    return b"h:" + member


def holder(name: bytes, group: bytes) -> bytes:
    return b"%b%d:%b:%b" % (_HOLDER, len(tag(name)), tag(name), group)


def hold(name: bytes, group: bytes, token: bytes) -> bytes:
    return b"%b%b:%d:%b:%b" % (_HOLD, token, len(tag(name)), tag(name), group)


def tick(name: bytes) -> bytes:
    return _TICK + tag(name)


def copy(name: bytes, token: bytes) -> bytes:
    return COPY + token + b":" + tag(name)


def stray(name: bytes) -> bytes:
    return STRAY + tag(name)


def name_of_stray(key: bytes) -> bytes | None:
    """The stream of a key that `stray` made; None for any other key."""
    return name_of_tag(key[len(STRAY) :]) if key.startswith(STRAY) else None


def aside(name: bytes, mark: bytes) -> bytes:
    return ASIDE + mark + b":" + tag(name)


def parse_aside(key: bytes) -> tuple[bytes, bytes] | None:
    """Name and mark of a key that `aside` made; None for any other key."""
    mark, _, rest = key.removeprefix(ASIDE).partition(b":")
    name = name_of_tag(rest) if key.startswith(ASIDE) else None
    return None if name is None else (name, mark)


def is_left_over(key: bytes) -> bool:
    """Whether FLUSHDB may unlink a key: an unfinished copy, messages of a producer, a question."""
    forms = (_KNOWN, _QUESTIONS)
    return key.startswith((COPY, _ABOUT, STRAY, ASIDE)) or any(form.match(key) for form in forms)


def about(name: bytes) -> bytes:
    return _ABOUT + tag(name)


def known_messages(name: bytes, era: int, producer: bytes) -> tuple[bytes, bytes]:
    """The known messages of a producer: (map, queue).

    The tag comes before the producer, so the stream decides the slot. Its length separates the two.
    """
    rest = b"%d:%d:%b%b" % (era, len(tag(name)), tag(name), producer)
    return b"bs:i." + rest, b"bs:q." + rest


def stage(name: bytes, token: bytes) -> bytes:
    return _STAGE + token + b":" + tag(name)


def sink(identity: bytes, name: bytes) -> bytes:
    """How far a sink has published to one stream. It has that stream's slot."""
    return _SINK + identity + b":" + tag(name)


def sink_ledger(identity: bytes) -> bytes:
    return _SINK + b"{" + identity + b"}"


def name_of_meta(key: bytes) -> bytes | None:
    """The stream of a registry key; None for any other key."""
    if len(key) > _KEY_BYTES or not key.startswith(META):
        return None
    name = name_of_tag(key[len(META) :])
    return name if len(name) <= NAME_BYTES else None


def parse_strand(key: bytes) -> tuple[bytes, Kind, int, int] | None:
    """(name, kind, writer, life) of a strand's key; None for any other key."""
    found = _STRAND.match(key) if len(key) <= _KEY_BYTES else None
    if found is None or len(name := name_of_tag(found[4])) > NAME_BYTES:
        return None
    kind = kind_of(found[2])
    return name, kind, int(found[1]), int(found[3] or 0)


def parse_journal(key: bytes) -> tuple[bytes, int] | None:
    """(name, writer) of a journal's key; None for any other key."""
    return _name_and_writer(_JOURNAL, key)


def parse_questions(key: bytes) -> tuple[bytes, int] | None:
    """The same of a key that `questions` made."""
    return _name_and_writer(_QUESTIONS, key)


def _name_and_writer(form: re.Pattern[bytes], key: bytes) -> tuple[bytes, int] | None:
    found = form.match(key) if len(key) <= _KEY_BYTES else None
    if found is None or len(name := name_of_tag(found[2])) > NAME_BYTES:
        return None
    return name, int(found[1])


def is_of_stream(key: bytes) -> bool:
    """Whether a key has data of a stream: its registry, a strand or a journal."""
    return key.startswith(META) or any(form.match(key) for form in (_STRAND, _JOURNAL))


def is_ours(key: bytes) -> bool:
    """Whether a key belongs to braidstream. KEYS and SCAN hide it."""
    if key in (CONFIG, DAEMONS, STATUS, BEATS, FACTS_LOCK) or key.startswith(_PREFIXES):
        return True
    return any(form.match(key) for form in (_STRAND, _JOURNAL, _QUESTIONS, _KNOWN))
