"""Idempotent production: XADD with IDMP or IDMPAUTO.

Producer and message ID identify a message. One function call looks it up, appends it and stores its ID
(lua/idempotence.lua); consecutive messages of one producer in a pipeline share a call. Such a call is
idempotent, so a client with `idempotent=True` resends it after a lost connection.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from braidstream.commands.arguments import FUNCTION_ARGUMENTS, Add, Argv, Trim, is_storage, parse_add
from braidstream.commands.removal import cap, trim_options
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import user_text
from braidstream.model.registry import Settings, iid_of
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.append import ensure_command, native_command
from braidstream.plan.lookup import (
    exists,
    is_stale,
    read_registry,
    refuse_other_types,
    refuse_unseen_types,
    registry_of,
    require_region,
    type_check,
)
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

# Messages per call: the engine does nothing else meanwhile.
AT_ONCE: Final = 50

Results = list[bytes | ReplyError | None]


def add(view: View, name: bytes, spec: Add) -> Plan[bytes | None]:
    """XADD of one message. One round trip; the first write to a stream takes one more.

    A duplicate is not appended: the reply is the ID of the first entry, also if it was deleted since.
    """
    [result] = yield from add_all(view, name, [spec])
    if isinstance(result, ReplyError):
        raise result
    return result


def add_all(view: View, name: bytes, specs: Sequence[Add]) -> Plan[Results]:
    """Messages of one producer, in order. One batch, unless the cache is stale.

    If another client changes the settings or deletes the stream between two calls, only the messages that
    were not appended are sent again: in the new era the others would not be recognised as duplicates.
    """
    home, results, todo = view.home(name), dict[int, Any](), list(range(len(specs)))
    known = True
    nomkstream = all(spec.nomkstream for spec in specs)
    create = view.needs_create(home) and not (nomkstream and not view.recall(name).exists)
    retries = Retries(f"others kept deleting {name!r}, or changing its settings")
    while True:
        attempt = retries.count()
        if create:
            yield from refuse_unseen_types(view, name)
            known = view.has_seen(home)
            if not known and (attempt or view.carriage.may_look_again):
                yield from require_region(view)
            view.expect_home(home)
        ensure = [ensure_command(home, view.recall(name).bell, known=known)] if create else []
        calls, sizes = add_commands(view, home, [specs[at] for at in todo])
        view.expect_settings(name, _settings(view, name))
        trims = specs[0].trim is not None  # then it is the only message
        end = [home.xinfo()] if trims else []
        last = [registry_of(name)] if trims else type_check(view, name)
        step = create and view.carriage.create_step(attempt)
        resend = _may_resend(view, specs, _settings(view, name))
        batch = Batch([*ensure, *end, *calls, *last], atomic=step, attempt=True, resend=resend)
        replies = yield batch
        if ensure and is_stale(replies[0]):
            view.forget_strand(home)
            yield from read_registry(view, name)
            continue
        _raise_errors(replies[: len(ensure)])
        before = len(ensure) + len(end)
        answers, stale = _answers(replies[before:][: len(calls)], sizes)
        rest = replies[before + len(calls) :]
        if answers and is_native(answers[0]):
            view.expect_native(name)
        results.update((at, _user(home, answer)) for at, answer in zip(todo, answers, strict=True) if answer)
        todo = [at for at in todo if at not in results]
        if stale is not None:
            view.expect_settings(name, stale)
        elif not todo:
            if not trims or _is_appended(answers[0], replies[before - 1]):
                yield from _trim(view, home, specs[0], rest)
            return [results[at] for at in range(len(specs))]
        elif nomkstream and not (view.carriage.may_look_again and (yield from exists(name))):
            yield from refuse_other_types(name, *(rest if specs[0].trim is None else ()))
            return [results.get(at) for at in range(len(specs))]
        else:
            create = True


def _settings(view: View, name: bytes) -> Settings:
    return view.recall(name).settings.current(has_peers=bool(view.region.journal_writer))


def _is_appended(answer: Any, info: Any) -> bool:
    """Whether a message was neither refused nor known: its entry is after the end that the strand had."""
    if not isinstance(answer, bytes) or answer.startswith(b"-"):
        return False
    native, _, owner = answer.lstrip(b"+").partition(b":")
    is_first = isinstance(info, ReplyError)
    return not owner and (is_first or ids.native(native) > ids.native(facts(info)[b"last-generated-id"]))


def _may_resend(view: View, specs: Sequence[Add], settings: Settings) -> bool:
    """Whether a resend by an idempotent client finds all messages: always for IDs that the client numbered;
    for IDs that the user chose, up to IDMP-MAXSIZE messages."""
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
    """The answer for each message, None if it was not appended; and the new settings, if they changed."""
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
    """The stream's settings, if a call was refused because its settings were stale."""
    return Settings.parse(error.text.removeprefix("BSSTALE ").encode())


def add_commands(view: View, home: Strand, specs: Sequence[Add]) -> tuple[list[Command], list[int]]:
    """The calls, and the number of messages in each: at most IDMP-MAXSIZE."""
    settings = _settings(view, home.name)
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
    """The producer name of a message. A pipeline of an idempotent client numbers its messages (`numbered`),
    and at most IDMP-MAXSIZE of them share a lane, so a resend of the whole pipeline finds all of them."""
    return shared_lane(producer, most) if is_numbered(view.producer, producer) else producer


def numbered(lane: bytes, number: int) -> bytes:
    """The producer name for a message of an idempotent client, 0 if it is not in a pipeline. Names that users
    choose hardly contain a zero byte."""
    return b"%b\0%d" % (lane, number)


def shared_lane(producer: bytes, most: int) -> bytes:
    lane, _, number = producer.rpartition(b"\0")
    return numbered(lane, int(number) // most)


def is_numbered(client: bytes, producer: bytes) -> bool:
    """Whether this idempotent client chose the producer: it is a number in one of its lanes (`web/3`)."""
    lane, _, number = producer.rpartition(b"\0")
    own, _, count = lane.rpartition(b"/")
    return bool(client) and own == client and count.isdigit() and number.isdigit()


def call(
    home: Strand,
    settings: Settings,
    producer: bytes,
    journal_writer: int,
    *,
    function: str = "bs_idempotence_add",
    former: Iterable[int] = (),
) -> Command:
    """The call without its messages. With peers the function also writes accepted messages to the journal.

    former: the writers of a log before us, whose journals the function looks at.
    """
    known = keys.known_messages(home.name, settings.era, producer)
    journals = [keys.journal(home.name, writer) for writer in (journal_writer, *former) if writer]
    where = keys.meta(home.name), home.key, *known, keys.about(home.name), *journals
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
    """Whether an answer says that the engine deduplicates the stream's messages natively."""
    return type(answer) is bytes and answer.startswith(b"+")


def native_call(home: Strand, producer: Any) -> Command:
    """The command without the message, if the engine deduplicates natively (lua/idempotence.lua)."""
    return native_command(home.key, ("IDMP", producer))


def user_id(answer: bytes, writer: int) -> bytes:
    """The user's ID: `ms-n` and `+ms-n` are in our strand; `ms-n:w` is a duplicate in the strand of w."""
    native, known, owner = answer.lstrip(b"+").partition(b":")
    return user_text(native, int(owner) if known else writer)


def _trim(view: View, home: Strand, spec: Add, replies: list[Any]) -> Plan[None]:
    """MAXLEN counts the whole stream. The append trimmed the home strand; trim the others."""
    if spec.trim is None:
        return
    _raise_errors(replies)
    registry = view.learn(home.name, replies[0])
    if _native_trim(spec) is None or registry.strands != (home,):
        yield from cap(view, home.name, spec.trim)


def message_of(argv: Argv) -> Add | None:
    """An XADD that is a message and can share a call; None for any other."""
    if not any(word[:4].upper() == b"IDMP" for word in argv[2:]):
        return None  # its plan parses it
    if len(argv[1]) > keys.NAME_BYTES or is_storage(argv[1]):
        return None  # its plan refuses the name
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
