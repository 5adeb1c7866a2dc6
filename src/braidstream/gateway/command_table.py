"""COMMAND: the engine's table, and the commands that the gateway has and the engine lacks.

Cluster clients look there for the keys of a command, and refuse one that is not listed. The row of a command
of ours is that of a native command whose key is at the same place, with another name and arity. So it has the
shape that this engine sends in this protocol.
"""

from typing import Final

from braidstream.commands.glob import LONGEST, matcher
from braidstream.commands.table import TABLE
from braidstream.gateway.client_state import Client
from braidstream.net.resp import Status, Words, bulk, elements, encode
from braidstream.net.wire import pack

# Ours -> a native command of the same kind: its key is the first word.
_LIKE: Final = {
    **dict.fromkeys((b"TWRITE", b"TCFGSET", b"XCFGSET", b"XIDMPRECORD"), b"XADD"),
    **dict.fromkeys((b"TREAD", b"TACK", b"TEVICT", b"XDELEX", b"XACKDEL", b"XNACK"), b"XACK"),
}
_NATIVES: Final = (b"XADD", b"XACK")
_CATEGORIES: Final = frozenset((b"WRITE", b"STREAM", b"FAST"))
_NO_COMMAND: Final = b"-ERR Invalid command"
_NO_ARGUMENTS: Final = b"-ERR Invalid number of arguments specified for command\r\n"


async def answer(client: Client, words: Words) -> None:
    """COMMAND, with any subcommand."""
    about = words[1].upper() if len(words) > 1 else b"INFO"
    asked = words
    if about == b"COUNT" and len(words) == 2:
        asked = [words[0], b"LIST"]
    own = await client.own_connection()
    rows = (words[0], b"INFO", *_NATIVES)
    reply, natives = await own.collect(pack([tuple(asked), rows]), 2, writes=False)
    extend = _ABOUT.get(about)
    if extend is None or natives.startswith(b"-") or (reply.startswith(b"-") and b"GETKEYS" not in about):
        client.write(reply)
        return
    templates = dict(zip(_NATIVES, elements(natives), strict=True))
    client.write(extend(reply, words, templates, client.session.resp))


Templates = dict[bytes, bytes]


def _row(name: bytes, templates: Templates) -> bytes:
    """A row of COMMAND."""
    spec, template = TABLE[name], templates[_LIKE[name]]
    head = template[: template.index(b"\n") + 1]
    _, _, *rest = elements(template)
    arity = spec.least if spec.least == spec.most else -spec.least
    return head + bulk(name.lower()) + b":%d\r\n" % arity + b"".join(rest)


def _missing(reply: bytes) -> list[bytes]:
    """The commands that a reply of the engine does not name."""
    return [name for name in _LIKE if bulk(name.lower()) not in reply]


def _longer(reply: bytes, parts: list[bytes], size: int = 1) -> bytes:
    """An array or a map with more parts. size: how many of them its head counts for each part."""
    head, _, body = reply.partition(b"\r\n")
    return b"%b%d\r\n%b%b" % (head[:1], int(head[1:]) + size * len(parts), body, b"".join(parts))


def _info(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    asked = words[2:]
    if not asked:
        return _longer(reply, [_row(name, templates) for name in _missing(reply)])
    rows = list[bytes]()
    for word, row in zip(asked, elements(reply), strict=True):
        is_missing = row.startswith((b"*-1", b"$-1", b"_")) and word.upper() in _LIKE
        rows.append(_row(word.upper(), templates) if is_missing else row)
    return b"*%d\r\n%b" % (len(rows), b"".join(rows))


def _count(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    """The engine counts no subcommands; LIST, which was sent, names them."""
    return b":%d\r\n" % (sum(b"|" not in name for name in elements(reply)) + len(_missing(reply)))


def _list(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    names = _missing(reply)
    if len(words) > 2:  # LIST FILTERBY kind value, which the engine has accepted
        kind, value = words[3].upper(), words[4]
        if kind == b"PATTERN":
            matches = matcher(value[:LONGEST].lower())
            names = [name for name in names if matches(name.lower())]
        elif kind != b"ACLCAT" or value.upper() not in _CATEGORIES:
            names = []
    return _longer(reply, [bulk(name.lower()) for name in names])


def _docs(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    asked = {word.upper() for word in words[2:]} or _LIKE.keys()
    parts = [
        bulk(name.lower()) + encode(_about(name), resp, b"") for name in _missing(reply) if name in asked
    ]
    return _longer(reply, parts, 1 if reply.startswith(b"%") else 2)


def _about(name: bytes) -> dict[bytes, bytes]:
    return {b"summary": b"%b %b" % (name, TABLE[name].grammar.encode()), b"group": b"stream"}


def _keys(reply: bytes, words: Words, templates: Templates, resp: int) -> bytes:
    """COMMAND GETKEYS and GETKEYSANDFLAGS."""
    line = words[2:]
    if not reply.startswith(_NO_COMMAND) or line[0].upper() not in _LIKE:
        return reply
    spec = TABLE[line[0].upper()]
    if spec.arity_error(line) is not None:
        return _NO_ARGUMENTS
    if words[1].upper() == b"GETKEYS":
        return encode(spec.names(line), resp, b"")
    flags = [Status("RW"), Status("access"), Status("update")]
    return encode([[key, flags] for key in spec.names(line)], resp, b"")


_ABOUT: Final = {
    b"INFO": _info,
    b"COUNT": _count,
    b"LIST": _list,
    b"DOCS": _docs,
    b"GETKEYS": _keys,
    b"GETKEYSANDFLAGS": _keys,
}
