"""Everything braidstream raises, each with a code that RESP replies, CLI JSON and the docs share.

Clients raise those of `clients/raised.py`, which are redis-py's exceptions as well.

BraidError
|-- ReplyError          an error reply, in the engine's own words: "ERR syntax error", "WRONGTYPE ..."
|   |-- RefusedError    we decline what the engine would do, and say why and what to use instead
|   |-- DamagedError    the registry of a stream cannot be read
|   `-- HomeError       a log is written in another region
|-- NotARegionError     the server has no bs:config yet
|-- RegionTakenError    the server already is another region
|-- LibraryError        the engine functions are missing, or newer than this client
|-- ConfigError         braid.toml is wrong, or lacks the region that was named
|   |-- ClusterError    the server is a node of a cluster
|   `-- LostPartError   bs:config lost a part, so the server lost data
|-- LostError           a connection to an engine was lost, or never made
|-- UnreachableError    none of the servers that a Spark job may use answers
|-- MissingStreamError  a Spark job names a stream that does not exist
|-- OptionError         a Spark option that is missing, unknown, or cannot be read
|-- DataLossError       entries went away before a Spark query read them
|-- NotReplicatedError  a Spark query needs entries that this region has not got yet
|-- MalformedError      an entry does not fit the schema of a Spark read
|-- SinkError           a Spark sink cannot write rows, or must not go on
|-- LakeError           a lake cannot be read, or must not be written
`-- JobError            a Spark job of `braid spark` failed
"""

from collections.abc import Sequence
from typing import Final

# How an engine refuses every write: its disk is broken, or it has too few replicas.
WRITES_REFUSED: Final = ("MISCONF", "NOREPLICAS")


class BraidError(Exception):
    """Base of all errors of braidstream."""

    code = "ERR"


# Codes of a node of a cluster that has not run the command: its slot is elsewhere, moves, or is not served.
REDIRECTS: Final = frozenset(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"))
# Codes of a server that cannot answer now: it is lost, it starts, or a script runs.
_AWAY: Final = REDIRECTS | {"LOST", "LOADING", "BUSY", "MASTERDOWN"}


class ReplyError(BraidError):
    """An error reply of the engine. The text is the whole line after the `-`, including its code."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = text.split(" ", 1)[0]

    @property
    def is_redirect(self) -> bool:
        """Whether a node of a cluster has not run the command."""
        return self.code in REDIRECTS

    @property
    def is_away(self) -> bool:
        """Whether the server cannot answer now, so that the reply says nothing about the key."""
        return self.code in _AWAY

    @property
    def is_client_unblock(self) -> bool:
        """Whether CLIENT UNBLOCK ended a wait. A key that is gone ends it with the same code."""
        return self.text.startswith("UNBLOCKED client unblocked")


class UnblockedError(ReplyError):
    """CLIENT UNBLOCK ended a wait as if its time were over, so the command answers nil.

    A plan has no clock: it would take the engine's nil for the end of a part of the wait, and wait again.
    """

    def __init__(self) -> None:
        super().__init__("UNBLOCKED client unblocked via CLIENT UNBLOCK TIMEOUT")


class RefusedError(ReplyError):
    """A command that would break a promise. The text says why, and what to use instead."""

    def __init__(self, command: str, why: str, instead: str) -> None:
        super().__init__(f"ERR {command} refused by braidstream: {why}. {instead}.")


# Why a registry cannot be read although each of its fields can.
HOSTILE = "many of its words have the same hash in Lua, which would keep the server busy"


class DamagedError(ReplyError):
    """The registry of a stream (`bs:meta`) has a field that no function writes. Other streams go on."""

    def __init__(self, stream: bytes, key: bytes, field: bytes, why: str = "") -> None:
        self.stream, self.key, self.field = stream, key, field
        name, where, what = (_shortened(word) for word in (stream, key, field))
        super().__init__(
            f"DAMAGED the registry of stream '{name}' cannot be read: {why}. Its field '{what}' is one of "
            f'many. Delete such fields: redis-cli HDEL "{where}" "{what}"'
            if why
            else f"DAMAGED the registry of stream '{name}' cannot be read: its field '{what}' is malformed. "
            "braidstream's functions did not write it. Restore its value, as another region has it: "
            f'redis-cli HGET "{where}" "{what}". Or delete the field: redis-cli HDEL "{where}" "{what}"'
        )


def _shortened(word: bytes) -> str:
    text = word.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= 100 else text[:100] + "..."


class HomeError(ReplyError):
    """A log is written in another region: `region` is its number. Nothing was written."""

    code = "HOME"

    def __init__(self, log: str, region: int, why: str = "") -> None:
        super().__init__(f"HOME {region} log '{log}' is written in region {region}{why}")
        self.log, self.region = log, region


class NotARegionError(BraidError):
    """The database has no `bs:config`, so it is not a region."""

    code = "NOREGION"

    def __init__(self) -> None:
        super().__init__(
            "this database is not a braidstream region yet. "
            "Make it one with: braid init --url URL --region N --name NAME. "
            "If it was a region, its server lost the data. Bring it back with: braid region rejoin NAME"
        )


class RegionTakenError(BraidError):
    """`braid init` on a database that is already another region."""

    code = "REGIONTAKEN"

    def __init__(self, *, has: str, wanted: str) -> None:
        super().__init__(
            f"this database already is {has}, not {wanted}. A region keeps its number and its name "
            "for life: IDs carry the number, and other regions know it by both. Name the region it is, "
            "or use an empty database."
        )


class LibraryError(BraidError):
    """The engine functions are missing, or of another version than this client needs."""

    code = "LIBRARY"


class ConfigError(BraidError):
    """The configuration file is missing or invalid."""

    code = "CONFIG"


class ClusterError(ConfigError):
    """The server is a node of a cluster, where this does not work yet."""

    code = "CLUSTER"

    def __init__(self) -> None:
        super().__init__(
            "this server is a node of a cluster, where this does not work. The clients for clusters are "
            "braidstream.RedisCluster and braidstream.asyncio.RedisCluster; the guide on clusters lists what "
            "else works. For the rest use a server with cluster-enabled no."
        )


class LostPartError(ConfigError):
    """`bs:config` of a server lost a part, so the server lost data. fields: what is missing."""

    code = "LOSTPART"

    def __init__(self, fields: Sequence[bytes], region: bytes, more: str = "") -> None:
        self.fields = tuple(fields)
        missing = ", ".join(field.decode() for field in fields)
        name = region.decode("utf-8", "replace") or "NAME"
        super().__init__(
            f"this server lost data: bs:config lacks {missing}. Stop the region's daemon and restore the "
            f"data from the other regions: braid region rejoin {name}{more}"
        )


class LostError(BraidError):
    """A connection to an engine was lost, or could not be opened.

    wrote: a write may have been applied; it must not be sent again blindly.
    """

    code = "LOST"

    def __init__(self, address: str, why: str, *, wrote: bool) -> None:
        unknown = (
            " A write had been sent and its reply is lost: it may or may not have been applied."
            if wrote
            else " Nothing was changed. Try again."
        )
        super().__init__(f"lost the engine at {address}: {why}.{unknown}")
        self.address, self.why, self.wrote = address, why, wrote


class UnreachableError(BraidError):
    """No server of a Spark job answers, or every one refuses the login."""

    code = "UNREACHABLE"

    @staticmethod
    def of(faults: Sequence[str]) -> "UnreachableError":
        """What is wrong with each server that was tried."""
        [*others, last] = faults
        text = "; ".join(faults) if others else last
        return UnreachableError(f"no server can be used: {text}" if others else text)


class MissingStreamError(BraidError):
    """A Spark query or job names a stream that does not exist."""

    code = "NOSTREAM"

    @staticmethod
    def of(names: Sequence[str], where: str, hint: str) -> "MissingStreamError":
        some = ", ".join(map(repr, names))
        return MissingStreamError(f"{where}: there is no stream {some}. {hint}")


class OptionError(BraidError):
    """A Spark option is missing, unknown or invalid."""

    code = "OPTION"

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"option {option}: {why}")


class DataLossError(BraidError):
    """Entries were removed before a Spark query read them, and failOnDataLoss is true."""

    code = "DATALOSS"


class NotReplicatedError(BraidError):
    """A Spark query needs entries that have not reached this region yet. Nothing is lost."""

    code = "NOTREPLICATED"


class MalformedError(BraidError):
    """An entry does not match the schema of a Spark read: in mode FAILFAST, or in a NOT NULL column."""

    code = "MALFORMED"


class SinkError(BraidError):
    """A Spark sink cannot write rows, or must not continue."""

    code = "SINK"


class LakeError(BraidError):
    """A lake is invalid, or must not be written."""

    code = "LAKE"


class JobError(BraidError):
    """A Spark job of `braid spark` failed. The text is the error of its task."""

    code = "JOB"
