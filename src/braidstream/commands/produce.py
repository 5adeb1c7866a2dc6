"""Idempotent production: XADD with IDMP or IDMPAUTO, XCFGSET, and what XINFO STREAM tells of it.

A message is known by its producer and its ID. Looking up, appending and remembering are one function
call (lua/idempotence.lua); messages of one producer that follow each other in a pipeline share one.
Sending such a call twice is as good as once, so a client that was told to (`idempotent=True`) may.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from braidstream.commands.arguments import (
    FUNCTION_ARGUMENTS,
    Add,
    Argv,
    Trim,
    fail,
    integer,
    option,
    parse_add,
    strict_id,
)
from braidstream.commands.trim import cap, trim_options
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.idempotence import Settings, iid_of
from braidstream.model.ids import user_text
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand
from braidstream.model.strand import facts as strand_facts
from braidstream.protocol.append import ensure_command, native_command
from braidstream.protocol.lookup import (
    exists,
    is_stale,
    look,
    read_registry,
    refuse_other_types,
    refuse_unseen_types,
    registry_of,
    type_check,
)
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import Retries
from braidstream.protocol.stream_view import View

# So many messages share one call: the engine does nothing else meanwhile.
AT_ONCE: Final = 50

Results = list[bytes | ReplyError | None]


def add(view: View, name: bytes, spec: Add) -> Plan[bytes | None]:
    """XADD of one message. One round trip; the first write to a stream takes one more.

    A message that is known is not appended: the answer is the ID it has, also if it was deleted since.
    """
    [result] = yield from add_all(view, name, [spec])
    if isinstance(result, ReplyError):
        raise result
    return result


def add_all(view: View, name: bytes, specs: Sequence[Add]) -> Plan[Results]:
    """Messages of one producer, in order: in the first batch, where the stream is as we know it.

    If another client changes the settings or deletes the stream between two calls, only the messages that
    were not appended are sent again: in the new era the others would not be known.
    """
    home, results, todo = view.home(name), dict[int, Any](), list(range(len(specs)))
    nomkstream = all(spec.nomkstream for spec in specs)
    create = view.needs_create(home) and not (nomkstream and not view.recall(name).exists)
    retries = Retries(f"others kept deleting {name!r}, or changing its settings")
    while True:
        attempt = retries.count()
        if create:
            yield from refuse_unseen_types(view, name)
            view.mark_created(home)
        ensure = [ensure_command(home, view.recall(name).bell)] if create else []
        calls, sizes = add_commands(view, home, [specs[at] for at in todo])
        view.expect_settings(name, view.recall(name).settings)
        last = [registry_of(name)] if specs[0].trim is not None else type_check(view, name)
        step = create and view.carriage.create_step(attempt)
        resend = _may_resend(view, specs, view.recall(name).settings)
        batch = Batch([*ensure, *calls, *last], atomic=step, attempt=True, resend=resend)
        replies = yield batch
        if ensure and is_stale(replies[0]):
            view.forget(name)
            yield from read_registry(view, name)
            continue
        _raise_errors(replies[: len(ensure)])
        answers, stale = _answers(replies[len(ensure) :][: len(calls)], sizes)
        told = replies[len(ensure) + len(calls) :]
        if answers and is_native(answers[0]):
            view.expect_native(name)
        results.update((at, _user(home, answer)) for at, answer in zip(todo, answers, strict=True) if answer)
        todo = [at for at in todo if at not in results]
        if stale is not None:
            view.expect_settings(name, stale)
        elif not todo:
            yield from _trim(view, home, specs[0], told)
            return [results[at] for at in range(len(specs))]
        elif nomkstream and not (view.carriage.may_look_again and (yield from exists(name))):
            yield from refuse_other_types(name, *(told if specs[0].trim is None else ()))
            return [results.get(at) for at in range(len(specs))]
        else:
            create = True


def _may_resend(view: View, specs: Sequence[Add], settings: Settings) -> bool:
    """Whether all are still known when an idempotent client sends them again: its own are, of those that the
    user named as many as are kept."""
    message = specs[0].message
    assert message is not None
    return bool(view.producer) and (
        is_numbered(view.producer, message.producer) or len(specs) <= settings.maxsize
    )


def _raise_errors(replies: list[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply


def _answers(replies: list[Any], sizes: list[int]) -> tuple[list[Any], Settings | None]:
    """What each message got, None where it was not appended; the settings to use instead, if they changed."""
    answers, stale = list[Any](), None
    for reply, size in zip(replies, sizes, strict=True):
        if not isinstance(reply, ReplyError):
            answers += reply
            continue
        changed = changed_settings(reply)
        stale = changed or stale
        answers += [None if changed else reply] * size
    return answers, stale


def changed_settings(error: ReplyError) -> Settings | None:
    """The settings that a stream has, where a call was refused because it knew others."""
    return Settings.parse(error.text.removeprefix("BSSTALE ").encode())


def add_commands(view: View, home: Strand, specs: Sequence[Add]) -> tuple[list[Command], list[int]]:
    """The calls, and how many messages are in each: never more than are kept of a producer."""
    settings = view.recall(home.name).settings
    most = min(AT_ONCE, settings.maxsize)
    calls, sizes, producer = list[Command](), list[int](), b""
    for spec in specs:
        assert spec.message is not None
        lane = _lane(view, spec.message.producer, most)
        if not calls or lane != producer or sizes[-1] == most:
            calls.append(call(home, settings, lane, view.region.journal_writer))
            sizes.append(0)
            producer = lane
        calls[-1] += message_words(spec, home)
        sizes[-1] += 1
    return calls, sizes


def _lane(view: View, producer: bytes, most: int) -> bytes:
    """Whose message it is. In a pipeline of an idempotent client each message has a number (`web/3.117`), and
    so many share a lane as are kept of it: all are still known when the pipeline is sent again."""
    return shared_lane(producer, most) if is_numbered(view.producer, producer) else producer


def shared_lane(numbered: bytes, most: int) -> bytes:
    own, _, number = numbered.rpartition(b".")
    return b"%b.%d" % (own, int(number) // most)


def is_numbered(client: bytes, producer: bytes) -> bool:
    """Whether a producer is a number in a lane of this idempotent client."""
    return bool(client) and producer.startswith(client + b"/") and b"." in producer[len(client) + 1 :]


def call(
    home: Strand, settings: Settings, producer: bytes, journal_writer: int, *, several: bool = True
) -> Command:
    """The call, up to its messages. With peers the journal tells them what was accepted, in the same step.

    several: else one message follows, without the number of its words.
    """
    function = "bs_idempotence_add" if several else "bs_idempotence_one"
    known = keys.known_messages(home.name, settings.era, producer)
    told = (keys.journal(home.name, journal_writer),) if journal_writer else ()
    where = keys.meta(home.name), home.key, *known, keys.about(home.name), *told
    return ("FCALL", function, len(where), *where, settings.text, home.writer, producer)


def message_words(spec: Add, home: Strand) -> Command:
    assert spec.message is not None
    iid = iid_of(spec.fields) if spec.message.iid is None else spec.message.iid
    words = (*trim_options(_native_trim(spec), home), b"*", *spec.fields)
    return (iid, len(words), *words)


def _native_trim(spec: Add) -> Trim | None:
    return spec.trim if spec.trim is not None and spec.trim.policy == b"KEEPREF" else None


def _user(home: Strand, answer: bytes | ReplyError) -> bytes | ReplyError:
    if isinstance(answer, ReplyError):
        return answer
    if answer.startswith(b"-"):
        return ReplyError(answer[1:].decode("utf-8", "replace"))
    return user_id(answer, home.writer)


def is_native(answer: Any) -> bool:
    """Whether an answer says that the engine itself knows the messages of the stream."""
    return type(answer) is bytes and answer.startswith(b"+")


def native_call(home: Strand, producer: Any) -> Command:
    """The command, up to the message's ID, where the engine itself knows messages (lua/settings.lua)."""
    return native_command(home.key, ("IDMP", producer))


def user_id(answer: bytes, writer: int) -> bytes:
    """`ms-n` or `+ms-n` is in our strand; `ms-n:w` is known, and stands in the strand of w."""
    native, known, owner = answer.lstrip(b"+").partition(b":")
    return user_text(native, int(owner) if known else writer)


def _trim(view: View, home: Strand, spec: Add, told: list[Any]) -> Plan[None]:
    """The cap counts the whole stream. The home strand was trimmed with the append; are there others?"""
    if spec.trim is None:
        return
    _raise_errors(told)
    registry = view.learn(home.name, told[0])
    if _native_trim(spec) is None or registry.strands != (home,):
        view.forget(home.name)
        plan = cap(view, home.name, spec.trim)
        yield from _resent(plan) if view.producer else plan


def _resent(plan: Plan[Any]) -> Plan[None]:
    """A plan whose batches may be sent again: capping twice is as good as once."""
    step: Callable[[Any], Batch] = plan.send
    value: Any = None
    while True:
        try:
            batch = step(value)
        except StopIteration:
            return
        try:
            step, value = plan.send, (yield replace(batch, resend=True))
        except ReplyError as error:
            step, value = plan.throw, error


def message_of(argv: Argv) -> Add | None:
    """An XADD that is a message and can share a call; None for any other."""
    try:
        spec = parse_add(argv)
    except ReplyError:
        return None
    return None if spec.message is None or len(spec.fields) > FUNCTION_ARGUMENTS else spec


def joins(view: View, one: Add, other: Add) -> bool:
    """Whether two messages of one stream can share a plan."""
    if one.message is None or other.message is None:
        return False
    same = one.message.producer == other.message.producer or (
        is_numbered(view.producer, one.message.producer)
        and is_numbered(view.producer, other.message.producer)
    )
    return same and one.trim is None and other.trim is None and one.nomkstream == other.nomkstream


def configure(view: View, argv: Argv) -> Plan[bytes]:
    """XCFGSET: how long, and how many messages of a producer, to remember. A change forgets all of them."""
    name = argv[1]
    try:
        duration, maxsize = _settings(argv)
    except ReplyError:
        if not (yield from look(view, name)).exists:  # the engine looks for the key first
            fail("ERR no such key")
        raise
    known = view.recall(name)
    if known.exists:
        view.expect_settings(name, known.settings.changed(duration, maxsize))
    words = tuple(b"" if value is None else value for value in (duration, maxsize))
    where = (keys.meta(name),) if view.region.journal_writer else (keys.meta(name), view.home(name).key)
    call: Command = ("FCALL", "bs_idempotence_configure", len(where), *where, *words)
    replies = yield Batch([call, *type_check(view, name)], attempt=True)
    reply, *kind = replies
    if view.carriage.may_look_again:
        view.forget(name)
    if isinstance(reply, ReplyError):
        if reply.code != "BSNOKEY":
            raise reply
        yield from refuse_other_types(name, *kind)
        fail("ERR no such key")
    return b"OK"


def record(view: View, argv: Argv) -> Plan[bytes]:
    """XIDMPRECORD: records an existing entry as the message with this ID.

    Only where the engine itself knows the messages: without peers, on engines that have the command.
    """
    name, producer, iid = argv[1:4]
    entry = strict_id(argv[4])
    if not producer:
        fail("ERR producer ID must be non-empty")
    if not iid:
        fail("ERR idempotent ID must be non-empty")
    if not (yield from look(view, name)).exists:
        fail("ERR no such key")
    home = view.home(name)
    native = home.exact(entry)
    if view.region.journal_writer:
        raise _not_recorded()
    if native is None:
        fail("ERR No such message in stream")
    words = (2, keys.meta(name), home.key, producer, iid, ids.text(native))
    [reply] = yield Batch([("FCALL", "bs_idempotence_mark", *words)], attempt=True)
    view.forget(name)
    if isinstance(reply, ReplyError):
        raise _not_recorded() if reply.code == "BSOURS" else reply
    return b"OK"


def _not_recorded() -> RefusedError:
    why = "the engine alone would know of it, and here others have to"
    return RefusedError("XIDMPRECORD", why, "Use XADD IDMP")


_OPTIONS: Final = {
    b"IDMP-DURATION": (86_400, "IDMP-DURATION must be between 1 and 86400 seconds"),
    b"IDMP-MAXSIZE": (10_000, "IDMP-MAXSIZE must be between 1 and 10000 entries"),
}


def _settings(argv: Argv) -> tuple[int | None, int | None]:
    given = dict[bytes, int]()
    for at in range(2, len(argv), 2):
        word = option(argv[at])
        if word not in _OPTIONS or at + 1 == len(argv):
            fail("ERR syntax error")
        if word in given:
            fail(f"ERR {word.decode()} specified multiple times")
        most, text = _OPTIONS[word]
        value = integer(argv[at + 1])
        given[word] = value if 1 <= value <= most else fail(f"ERR {text}")
    if not given:
        fail("ERR At least one parameter must be specified")
    return given.get(b"IDMP-DURATION"), given.get(b"IDMP-MAXSIZE")


_FACTS: Final = (
    b"idmp-duration",
    b"idmp-maxsize",
    b"pids-tracked",
    b"iids-tracked",
    b"iids-added",
    b"iids-duplicates",
)
# XINFO STREAM looks at so many producers, so many in one call.
_COUNTED: Final = 10_000
_COUNTED_AT_ONCE: Final = 500


def about_command(name: bytes) -> Command:
    return ("HGETALL", keys.about(name))


def facts(
    name: bytes, registry: Registry, asked: list[Any], native: dict[bytes, Any]
) -> Plan[dict[bytes, Any]]:
    """What XINFO STREAM adds for a stream that uses it, in one or two more round trips.

    asked: who its producers are, where that was asked already.
    native: what the engine says of the home strand, or of another where there is none. That counts where the
    engine itself knows the messages, and for streams that have none, on engines that always tell.
    """
    settings = registry.idempotence
    if settings is None or registry.native:
        return {fact: native[fact] for fact in _FACTS if fact in native}
    [reply] = asked or (yield Batch([about_command(name)], resend=True))
    if isinstance(reply, ReplyError):
        raise reply
    about = strand_facts(reply)
    listed = [
        field[1:]
        for field, value in about.items()
        if field.startswith(b"=") and value.startswith(b"%d:" % settings.era)
    ]
    producers = messages = 0
    commands = _count_commands(name, settings, listed[:_COUNTED])
    for count in (yield Batch(commands, resend=True)) if commands else ():
        producers, messages = producers + count[0], messages + count[1]
    ours = about.get(b"since") == b"%d" % settings.since
    counts = [int(about.get(field, 0)) if ours else 0 for field in (b"added", b"duplicates")]
    told = (settings.duration_s, settings.maxsize, producers, messages, *counts)
    return dict(zip(_FACTS, told, strict=True))


def _count_commands(name: bytes, settings: Settings, producers: list[bytes]) -> list[Command]:
    commands = list[Command]()
    for at in range(0, len(producers), _COUNTED_AT_ONCE):
        known = (keys.known_messages(name, settings.era, each) for each in producers[at:][:_COUNTED_AT_ONCE])
        where = [key for pair in known for key in pair]
        commands.append(("FCALL_RO", "bs_idempotence_count", len(where), *where, settings.text))
    return commands
