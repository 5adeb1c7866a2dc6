"""Whether a process that listens would open its engine to the network: it needs no password.

The engine's protected-mode and bind do not help, because it sees the address of the process.
"""

import asyncio
from ssl import CERT_REQUIRED, SSLContext
from typing import Final

from braidstream.engine.address import Address, Listen
from braidstream.engine.connection import CONNECT_WITHIN_S, Connection, connect
from braidstream.errors import LostError, ReplyError
from braidstream.plan.plan import Batch

# The codes with which an engine refuses a command before a login.
DENIALS: Final = ("NOAUTH", "DENIED")


def needs_password(listen: Listen, tls: SSLContext | None) -> bool:
    """Whether only the engine's password protects it: clients of the network need no certificate."""
    return not listen.is_local and (tls is None or tls.verify_mode != CERT_REQUIRED)


async def is_exposed(address: Address, listen: Listen, tls: SSLContext | None) -> bool:
    """Whether clients of the network need neither a password nor a certificate."""
    return needs_password(listen, tls) and await needs_no_login(address)


async def needs_no_login(address: Address) -> bool:
    """Whether the engine accepts commands without a login."""
    try:
        conn = await connect(address.as_user(None, None).in_db(0))
        try:
            return await accepts(conn)
        finally:
            conn.close()
    except LostError:
        return False


async def accepts(conn: Connection) -> bool:
    """Whether the engine accepts commands on a new connection; the user may still lack the right to PING."""
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            [reply] = await conn.send(Batch([("PING",)], resend=True, attempt=True))
    except TimeoutError:
        conn.close()
        raise LostError(conn.name, "it does not answer", wrote=False) from None
    return not (isinstance(reply, ReplyError) and reply.code in DENIALS)
