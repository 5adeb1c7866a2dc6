"""What a handler gets and wants: the message, a model made of its fields, or a list; how handling can fail.

def handle(message: Message) -> None
def handle(order: Order) -> None                      a dataclass, a pydantic model, a TypedDict
def handle(order: Order, message: Message) -> None    both
def handle(orders: list[Order]) -> None               with batch=
"""

import inspect
import os
import traceback
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidstream.model import ids

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


# ----------------------------------------------------------------------------------------------------
# An entry as a handler gets it.

# Fields that carry a trace, as W3C Trace Context defines them. See middleware.py.
TRACE_FIELDS: Final = frozenset(("traceparent", "tracestate"))


class Message(Mapping[str, str]):
    """One entry of a stream, on its way through a handler. It is a mapping of its fields, as text.

    stream: the stream it was appended to.
    id: its ID. Handling may be repeated after a crash: the ID is the same then. It is another one if a
    producer sent the message to two regions.
    attempt: 1 when it is handled for the first time, as far as the group knows.
    words: fields and values in turn, as they were appended.
    first_id: the ID that it had when it was handled first. It keeps that if a handler raises `Later`.
    """

    __slots__ = ("_fields", "attempt", "id", "stream", "words")

    def __init__(self, stream: str, id: str, words: Sequence[bytes], attempt: int = 1) -> None:
        self.stream, self.id, self.words, self.attempt = stream, id, words, attempt
        self._fields: dict[str, str] | None = None

    @property
    def first_id(self) -> str:
        return self.id

    @property
    def fields(self) -> dict[str, str]:
        """Fields and values as text. Raises UnicodeDecodeError if they are not UTF-8: use `raw` then."""
        if self._fields is None:
            text = [word.decode() for word in self.words]
            self._fields = dict(zip(text[::2], text[1::2], strict=True))
        return self._fields

    @property
    def raw(self) -> dict[bytes, bytes]:
        """Fields and values as bytes."""
        return dict(zip(self.words[::2], self.words[1::2], strict=True))

    @property
    def timestamp(self) -> float:
        """When it was appended, in seconds since 1970, by the clock of the region that it was appended in."""
        parsed = ids.parse(self.id.encode())
        assert parsed is not None, "the engine made this ID"
        return parsed[0] / 1000

    def __getitem__(self, field: str) -> str:
        return self.fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    # Two messages with the same fields are two.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Message({self.stream!r}, {self.id!r}, attempt={self.attempt})"


# ----------------------------------------------------------------------------------------------------
# One entry that a consumer has in hand, and how handling it can fail.

# How much of a traceback is logged and stored: this many frames and characters.
_MOST_FRAMES: Final = 20
_MOST_TRACE: Final = 4000
_HERE: Final = os.path.dirname(__file__)


class Reject(Exception):
    """Raise it in a handler to move the entry to the dead letters at once, without further attempts."""


class LapsedError(Exception):
    """The handler was not started: the session of this member of a team is over, and others have its work."""


@dataclass(slots=True, eq=False)
class Held:
    """One entry in hand.

    attempts: how many were started.
    is_counted: the engine counts the next attempt already.
    lease: until when no other consumer claims it.
    is_lost: another consumer has claimed it.
    is_again: the running attempt was counted on its own, before it started.
    is_suspect: its last attempt was in a process that crashed.
    traceback: where its last attempt failed, if it is dead.
    """

    message: Message
    stream: bytes
    id: bytes
    attempts: int
    is_counted: bool
    lease: float
    is_running: bool = False
    is_lost: bool = False
    is_again: bool = False
    is_suspect: bool = False
    key: Hashable = None
    traceback: str = ""

    @property
    def place(self) -> "Place":
        return self.stream, self.id


# What a handler gets at once: one entry, or a batch.
Work = list[Held]
# Where an entry is: its stream and its ID.
Place = tuple[bytes, bytes]
# An entry before and in its first attempt. Most need no second one, so no `Held` is made of it.
Fresh = tuple[Place, Message]


def messages_of(task: Work | Fresh) -> list[Message]:
    return [task[1]] if isinstance(task, tuple) else [held.message for held in task]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an entry was not handled. delay: seconds until the next attempt; None if it is dead."""

    held: Held
    error: BaseException
    delay: float | None


def described(error: BaseException) -> str:
    """An error in one line. The text of an error may itself fail."""
    name = "rejected" if isinstance(error, Reject) else type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name


def traced(error: BaseException) -> str:
    """Where an error was raised, as Python shows it: the innermost frames. Empty for one that a handler
    raised on purpose (Reject), and for one that no code raised."""
    if isinstance(error, Reject) or error.__traceback__ is None:
        return ""
    try:
        frames = error.__traceback__
        while frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
            frames = frames.tb_next  # not those of the consumer
        shown = traceback.TracebackException(type(error), error, frames, limit=-_MOST_FRAMES)
        text = "".join(shown.format()).rstrip()
    except Exception:
        return ""
    half = _MOST_TRACE // 2
    return text if len(text) <= _MOST_TRACE else f"{text[:half]}\n  [...]\n{text[-half:]}"


# ----------------------------------------------------------------------------------------------------
# Handler


class Handler:
    """A user's function, and how its arguments are made of messages.

    decode: makes of a message what the function wants of it; None if it wants messages only.
    """

    def __init__(self, function: Callable[..., Any], *, is_batch: bool, body: str | None) -> None:
        self.function = function
        self.is_batch, self._body = is_batch, body
        kinds = _annotations(function)
        if is_batch:
            kinds = [_item(kind, function) for kind in kinds]
        elif any(typing.get_origin(kind) is list for kind in kinds):
            raise TypeError(
                f"{function!r} takes a list, and gets one entry. For lists: Consumer(..., batch=100)."
            )
        self._wants_message = [kind is Message or kind is inspect.Parameter.empty for kind in kinds]
        models = [kind for kind, plain in zip(kinds, self._wants_message, strict=True) if not plain]
        if not kinds or len(models) > 1 or len(kinds) > 2 or (len(kinds) == 2 and not models):
            raise TypeError(
                f"{function!r} must take the message, a model of its fields, or both: "
                "def handle(order: Order, message: Message)."
            )
        self._adapter = adapter(models[0]) if models else None
        # Called with one message and nothing else: most handlers, and the cheapest call.
        self.takes_message = not is_batch and self._wants_message == [True]

    @property
    def decodes(self) -> bool:
        return self._adapter is not None

    def decode(self, message: Message) -> Any:
        """The model of a message. Raises Reject if it is invalid: another attempt would not help."""
        from pydantic import ValidationError

        assert self._adapter is not None
        try:
            if self._body is None:
                return self._adapter.validate_python(_without_trace(message.fields))
            body = message.raw.get(self._body.encode())
            if body is None:
                raise Reject(f"it has no field {self._body!r}")
            return self._adapter.validate_json(body)
        except ValidationError as error:
            raise Reject(_shown(error)) from error
        except UnicodeDecodeError as error:
            raise Reject(f"its fields are not UTF-8: {error}") from error

    def arguments(self, messages: list[Message], models: list[Any]) -> tuple[Any, ...]:
        """What the function is called with."""
        if self.is_batch:
            return tuple(messages if plain else models for plain in self._wants_message)
        return tuple(messages[0] if plain else models[0] for plain in self._wants_message)


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether it is `async def`, also if it is an object that is called, or a functools.partial."""
    return inspect.iscoroutinefunction(_called(function))


def refuse_unawaited(function: Callable[..., Any]) -> None:
    """Refuse a function whose body would not run if it is called and not awaited."""
    called = _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"{function!r} is async def, and this consumer runs handlers in threads, which await nothing. "
            "Use braidstream.asyncio.Consumer, or a plain function."
        )
    if inspect.isgeneratorfunction(called):
        raise TypeError(f"{function!r} is a generator: it contains yield, so calling it runs nothing.")


def call_whole(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that must be done when it returns."""
    result = function(*arguments)
    if result is not None:
        refuse_unfinished(result)


def refuse_unfinished(result: Any) -> None:
    """A plain function may return a coroutine too."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"the handler returned a {type(result).__name__}, and this consumer awaits nothing: the entry "
            "was not handled. Use braidstream.asyncio.Consumer, or a plain function."
        )


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose body runs."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _without_trace(fields: dict[str, str]) -> dict[str, str]:
    """A model that forbids further fields need not know those of traces."""
    if TRACE_FIELDS.isdisjoint(fields):
        return fields
    return {name: value for name, value in fields.items() if name not in TRACE_FIELDS}


def adapter(kind: Any) -> "TypeAdapter[Any]":
    """What reads and writes a model. TypeError without pydantic."""
    try:
        from pydantic import TypeAdapter  # it takes long to import, and many handlers need none
    except ModuleNotFoundError:
        raise TypeError(f"{kind!r} needs pydantic. Run: pip install pydantic") from None
    return TypeAdapter(kind)


def _annotations(function: Callable[..., Any]) -> list[Any]:
    """The types of the parameters that must be given."""
    hints = typing.get_type_hints(_called(function))
    wanted = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        hints.get(name, inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in wanted and parameter.default is inspect.Parameter.empty
    ]


def _item(kind: Any, function: Callable[..., Any]) -> Any:
    if kind is inspect.Parameter.empty:
        return kind
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) not in (list, Sequence) or len(arguments) != 1:
        raise TypeError(f"{function!r} handles batches, so it must take a list: list[Message].")
    return arguments[0]


def _shown(error: "ValidationError") -> str:
    """Without the values: they may be secret, and stand in the entry anyway."""
    found = [
        f"{'.'.join(map(str, each['loc'])) or 'entry'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(found)
