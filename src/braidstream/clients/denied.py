"""NOPERM with what to type: a user that worked with redis-py may lack rights when the import changes."""

import re
from collections.abc import Sequence
from typing import Any, Final

from braidstream.commands.arguments import shown
from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError

_READS: Final = frozenset((b"XLEN", b"XRANGE", b"XREVRANGE", b"XREAD", b"XINFO"))
_WRITES: Final = frozenset((b"XADD", b"XDEL", b"XTRIM", b"XDELEX", b"XSETID", b"XCFGSET"))
_USER: Final = re.compile(r"User (\S+) has")
# What engines say if a function calls what its user may not. The older text names neither user nor command.
_IN_FUNCTION: Final = re.compile("ACL failure in script|The user executing the script can't")
# Words of messages: their functions need more rights.
_MESSAGES: Final = frozenset((b"IDMP", b"IDMPAUTO"))


def with_rights(error: ReplyError, conn: Any, commands: Sequence[list[bytes]]) -> ReplyError:
    """The same error; if a right is missing, with the command that prints what the user needs.

    commands: those that were refused, on streams or others.
    """
    if error.code != "NOPERM" and not _IN_FUNCTION.search(error.text):
        return error
    kinds, names = set[str](), dict[str, None]()
    for argv in commands:
        spec = TABLE.get(argv[0].upper())
        if spec is not None and argv[0][:1] in b"Xx" and spec.arity_error(argv) is None:
            kinds.add(_kind(argv))
            names |= dict.fromkeys(map(shown, spec.names(argv)))
    if not kinds:
        return error
    user, kinds = getattr(conn, "username", None), kinds - {"reader"} or kinds
    if any(
        argv[0].upper() == b"XCFGSET" or _MESSAGES & {word.upper() for word in argv[2:8]} for argv in commands
    ):
        kinds = kinds - {"writer"} | {"writer --idempotent"}
    text = error.text if error.code == "NOPERM" else f"NOPERM {error.text.removeprefix('ERR ')}"
    return ReplyError(advised(text, user, kinds, [*names]))


def _kind(argv: list[bytes]) -> str:
    """Of `braid acl`."""
    word, *more = (each.upper() for each in argv[:2])
    if word in _WRITES:
        return "writer"
    return "consumer" if word not in _READS or more[0] in (b"GROUPS", b"CONSUMERS") else "reader"


def advised(text: str, user: str | None, kinds: set[str], names: Sequence[str]) -> str:
    """The text of NOPERM, with the commands that print the rights. kinds: of `braid acl`."""
    found = _USER.search(text)
    user, streams = found[1] if found else user or "default", ",".join(names)
    keys = ", ".join(f"bs:*:{{{name}}}*" for name in names)
    typed = " and: ".join(f"braid acl {kind} --streams {streams} --user {user}" for kind in sorted(kinds))
    return (
        f"{text.rstrip('.')}. For {streams}, braidstream also uses bs:config and {keys}. "
        f"To print the rights that the user {user} needs: {typed}"
    )
