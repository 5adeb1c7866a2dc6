"""CLUSTER, READONLY, READWRITE, ASKING, and which SELECT a cluster allows.

Without `--announce` a client sees one server, in no cluster. With it the gateway answers: announce.py.
"""

from braidstream.errors import ReplyError
from braidstream.gateway.announce import Announced, refusal_of
from braidstream.gateway.client_state import Client
from braidstream.gateway.session import NO_CLUSTER
from braidstream.net.resp import Words, error_line
from braidstream.net.wire import pack


async def answer(client: Client, words: Words) -> None:
    """One server answers itself. A node of a cluster would name the other nodes, so it does not."""
    announced = client.hub.announced
    if announced is not None:
        client.write(await _announced_reply(client, announced, words))
    elif client.nodes is not None:
        client.write(error_line(ReplyError(NO_CLUSTER)))
    else:
        client.session.note_sent(words)
        await (await client.own_connection()).relay(pack([tuple(words)]), 1)


async def _announced_reply(client: Client, announced: Announced, words: Words) -> bytes:
    refused = refusal_of(words)
    if refused is not None:
        return error_line(refused)
    return await _denial(client, words) or announced.reply_to(words, client.session.resp)


async def _denial(client: Client, words: Words) -> bytes | None:
    """The engine's error if the client has not logged in, lacks the right, or has miscounted the words.

    READONLY and ASKING would change the connection to a node of a cluster. READWRITE stands for them.
    """
    asked = words if words[0].upper() == b"CLUSTER" else [b"READWRITE", *words[1:]]
    [reply] = await (await client.own_connection()).collect(pack([tuple(asked)]), 1, writes=False)
    may_ask = not reply.startswith(b"-") or reply.startswith(b"-" + NO_CLUSTER.encode())
    return None if may_ask else reply


def selects_other(words: Words) -> bool:
    """Whether it is a SELECT of another database than 0, the only one of a cluster."""
    return words[0].upper() == b"SELECT" and words[1:] != [b"0"] and words[-1].isdigit()
