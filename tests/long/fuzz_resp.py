"""`make fuzz`: atheris looks for bytes that break the parser of the gateway. Arguments are libFuzzer's."""

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["braidstream.engine.resp"]):
    from braidstream.engine.resp import Limits, Parser, Scanner

SLOW = Limits(bulk=4000, words=200, buffered=20_000)
FAST = Limits(bulk=5000, words=300, buffered=20_000)


def one(data: bytes) -> None:
    """The same commands and the same error, whole or torn, by the short way or the long one."""
    cut = data[0] if data else 0
    whole, torn, slow = Parser(FAST), Parser(FAST), Parser(SLOW)
    found = whole.feed(data)
    assert torn.feed(data[:cut]) + torn.feed(data[cut:]) == found
    assert torn.error == whole.error
    sizes = [len(word) for words in found for word in words]
    if max(sizes, default=0) < 4000 and max(map(len, found), default=0) < 200:
        assert slow.feed(data)[: len(found)] == found
    with contextlib.suppress(ValueError):  # the engine's side: the connection ends
        Scanner().feed(data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
