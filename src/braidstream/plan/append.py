"""The plain append: which XADD is one, how it is sent, how to read its reply, how to create a missing strand.

    user      XADD orders * amount 7                        1589929244828-5121
    native    XADD bs:1:s:{orders} NOMKSTREAM * amount 7    1589929244828-5, or nil: the strand is missing
    ensure    FCALL bs_strand_ensure ...                    creates the strand if it is missing

Each caller uses the cheapest form for it:

    plan      `native_command`          XADD of any shape; create.py creates a missing strand
    client    `command_of`              words, from the arguments of redis-py's xadd()
    gateway   `packed_run`, `splice`    bytes: of parsed commands, or received bytes with the name replaced
    Spark     `row_start`               bytes: in a MULTI after `ensure_command`, so without NOMKSTREAM

All forms must send the same: tests/client/test_one_append.py appends in each of them and compares what the
engine receives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from braidstream.model import keys
from braidstream.model.ids import user_text
from braidstream.model.registry import bell
from braidstream.model.strand import COUNTS, HEADS, Command, Strand, bulk, pack_one

# So many native IDs of a millisecond are translated by a table.
_TAILS: Final = 1024
# Bytes of an append up to and with its name, without those that differ.
_BEFORE_NAME: Final = len(b"\r\n$4\r\nXADD\r\n\r\n\r\n")
# Words of a row before its fields: XADD key *; of a log XADD key NOMKSTREAM 0-*
ROW_WORDS: Final = 3
LOG_ROW_WORDS: Final = 4
# What a caller that has seen a strand says to the functions that would create it.
KNOWN: Final = b"known"


@dataclass(frozen=True, slots=True)
class Home:
    """The strand that plain appends to a stream go to.

    create: the command that creates it; ensure: its bytes. start: those of an append, before its fields and
    without the number of its words.
    """

    strand: Strand
    key: bytes = field(init=False)
    create: Command = field(init=False)
    ensure: bytes = field(init=False)
    start: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.strand.key)
        object.__setattr__(self, "create", ensure_command(self.strand, known=True))
        object.__setattr__(self, "ensure", pack_one(self.create))
        object.__setattr__(self, "start", _start(self.key) + b"$10\r\nNOMKSTREAM\r\n")


Homes = Mapping[Any, Home]


# Commands


def is_plain(words: Sequence[bytes]) -> bool:
    """Whether a command line is a plain append."""
    return len(words) >= 5 and words[2] == b"*" and len(words) % 2 == 1 and words[0].upper() == b"XADD"


def native_command(key: bytes, words: Iterable[Any]) -> Command:
    """An append that does not create the strand. words: everything after the key."""
    return ("XADD", key, "NOMKSTREAM", *words)


def command_of(args: tuple[Any, ...], homes: Homes) -> Command | None:
    """The native command for the arguments of redis-py's xadd(); None if it is not a plain append, or its
    home strand is not cached."""
    if args[0] != "XADD" or len(args) < 5 or args[2] != "*" or not len(args) % 2:
        return None
    try:
        home = homes.get(args[1])
    except TypeError:  # a name that is not hashable, like a bytearray
        return None
    return None if home is None else ("XADD", home.key, "NOMKSTREAM", *args[2:])


def ensure_command(strand: Strand, stamp: bytes = b"", *, plain: bool = True, known: bool = False) -> Command:
    """Create a strand if it is missing. BSSTALE if it has groups and `stamp` is not that of the bell.

    That of a log also if its home is elsewhere. plain: not if there is a plain key of the name. known: the
    caller has seen the strand, so BSSTALE if this server never had it. It was emptied, and may be no region.
    """
    function = "bs_log_ensure" if strand.is_of_log else "bs_strand_ensure"
    names = (strand.name,) if plain and keys.shares_slot(strand.name) else ()
    where = (keys.meta(strand.name), strand.key, *names, *bell(strand.name, stamp))
    words = (stamp, KNOWN) if known else (stamp,) if stamp else ()
    return ("FCALL", function, len(where), *where, strand.label, *words)


def undo_command(strand: Strand) -> Command:
    """Delete a strand if it is still empty: it was created for an append that was refused."""
    return ("FCALL", "bs_strand_undo_ensure", 2, keys.meta(strand.name), strand.key, strand.label)


# Bytes


def packed_run(commands: Iterable[list[bytes]], homes: Homes) -> tuple[list[list[bytes]], list[bytes]]:
    """The leading plain appends to cached strands among parsed commands, and their bytes."""
    run: list[list[bytes]] = []
    packed: list[bytes] = []
    for words in commands:
        # `is_plain`, inlined: every append through a gateway takes this path.
        if len(words) < 5 or words[2] != b"*" or not len(words) & 1 or words[0].upper() != b"XADD":
            break
        home = homes.get(words[1])
        if home is None:
            break
        packed.append(pack_one((b"XADD", home.key, b"NOMKSTREAM", *words[2:])))
        run.append(words)
    return run, packed


def splice(data: bytes, homes: Homes) -> tuple[bytes, bytes, int] | None:
    """For received bytes that are nothing but one append, or several alike: (key, bytes to send, number of
    appends). In each the strand's key replaces the name. Before several comes one `ensure`."""
    tokens = data.split(b"\r\n")
    words = COUNTS.get(tokens[0])
    if words is None or words < 5 or not words & 1:
        return None
    if len(tokens) == 2 * words + 2:
        if tokens[2] != b"XADD" or tokens[6] != b"*" or tokens[-1] or (home := homes.get(tokens[4])) is None:
            return None
        try:
            if [HEADS[len(word)] for word in tokens[2:-1:2]] != tokens[1:-1:2]:
                return None
        except IndexError:
            return None
        before = _BEFORE_NAME + len(tokens[0]) + len(tokens[3]) + len(tokens[4])
        return home.key, b"*%d\r\n%b%b" % (words + 1, home.start, data[before:]), 1
    uniform = uniform_appends(data, tokens, words)
    if uniform is None:
        return None
    start, name, count = uniform
    home = homes.get(name)
    if home is None:
        return None
    return home.key, home.ensure + data.replace(start, b"*%d\r\n%b" % (words + 1, home.start)), count


def row_start(key: bytes) -> bytes:
    """The bytes of `XADD key *` without the number of words. A command before it creates the strand."""
    return _start(key) + b"$1\r\n*\r\n"


def log_row_start(key: bytes) -> bytes:
    """The same for a log, whose strand must exist."""
    return _start(key) + b"$10\r\nNOMKSTREAM\r\n$3\r\n0-*\r\n"


def _start(key: bytes) -> bytes:
    return b"$4\r\nXADD\r\n$%d\r\n%b\r\n" % (len(key), key)


def uniform_appends(data: bytes, tokens: list[bytes], words: int) -> tuple[bytes, bytes, int] | None:
    """Check that bytes are two or more complete plain appends to one name, each with as many words.

    tokens: the bytes, split at line ends. words: in the first command. Returns (bytes of each up to and
    including the name, name, number of appends); None for other bytes. It compares columns of words, which
    costs a fraction of parsing each command.
    """
    stride = 1 + 2 * words
    times, over = divmod(len(tokens) - 1, stride)
    if over or times < 2 or tokens[-1]:
        return None
    tokens.pop()
    for at in range(7):
        if tokens[at::stride].count(tokens[at]) != times:
            return None
    _, four, command, head, name, one, star = tokens[:7]
    try:
        if (
            star != b"*"
            or one != b"$1"
            or four != b"$4"
            or command.upper() != b"XADD"
            or head != HEADS[len(name)]
        ):
            return None
        for at in range(8, stride, 2):
            if list(map(HEADS.__getitem__, map(len, tokens[at::stride]))) != tokens[at - 1 :: stride]:
                return None
    except IndexError:
        return None
    start = b"\r\n".join(tokens[:5]) + b"\r\n"
    # Fields and values could contain the same bytes; then `replace` would change them.
    return (start, name, times) if data.count(start) == times else None


# Replies


def packed_reply(native: bytes, writer: int) -> bytes:
    """The user ID of a native one as a RESP reply (`ids.user_text` returns the text alone)."""
    if native[13:14] == b"-":  # milliseconds have 13 digits until the year 2286
        tail = _tails(writer).get(native[14:])
        if tail is not None:
            return b"%b%b%b" % (tail[0], native[:14], tail[1])
    return bulk(user_text(native, writer))


@cache
def _tails(writer: int) -> dict[bytes, tuple[bytes, bytes]]:
    """By native sequence: the bytes of the reply before the milliseconds, and after them."""
    tails = dict[bytes, tuple[bytes, bytes]]()
    for n in range(_TAILS):
        text = user_text(b"0-%d" % n, writer)[2:]
        tails[b"%d" % n] = b"$%d\r\n" % (14 + len(text)), text + b"\r\n"
    return tails
