"""`XADD orders KEY ada * ...`: an append to a topic (model/topic.py), from any language.

It becomes the append to the stream of the key's partition, before anything else sees it:

    XADD orders KEY ada * item book   --->   XADD orders/0.5{164f} * item book
"""

import time
from typing import Final

from braidstream.clients.commands import read_topics
from braidstream.engine.resp import Words
from braidstream.errors import BraidError, ReplyError
from braidstream.gateway.client import Client
from braidstream.model.topic import FRESH_S, Topic, missing
from braidstream.plan.plan import arun

# Name, KEY, key, ID, field and value.
_LEAST: Final = 7


def names_key(words: Words) -> bool:
    """No other XADD has this word there: it is no ID."""
    return len(words) >= _LEAST and words[0].upper() == b"XADD" and words[2].upper() == b"KEY"


async def place(client: Client) -> BraidError | None:
    """Give the first commands of the queue the streams of their partitions. Returns why not."""
    name = client.queue[0][1]
    try:
        found = await _find(client, name)
    except BraidError as error:
        return error
    for at, words in enumerate(client.queue):
        if not names_key(words) or words[1] != name:
            break
        client.queue[at] = [words[0], found.streams[found.partition_of(words[3])], *words[4:]]
    return None


async def _find(client: Client, name: bytes) -> Topic:
    known = client.database.topics.get(name)
    if known is not None and time.monotonic() < known[1]:
        return known[0]
    await client.database.refresh_if_due()
    found = await arun(read_topics(client.database.view), client.send)
    until = time.monotonic() + FRESH_S
    client.database.topics = {each.name: (each, until) for each in found.values()}
    if name not in found:
        raise ReplyError(f"ERR {missing(name)}")
    return found[name]
