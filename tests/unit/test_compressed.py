"""The frames of compressed links: what is packed comes out again, and hostile frames are refused in time."""

import asyncio
import random

import pytest
import zstandard

from braidstream.engine.address import parse_address
from braidstream.engine.tunnel import (
    LARGEST_FRAME,
    MOST,
    OK,
    STORED,
    Packer,
    TunnelError,
    Unpacker,
    Via,
    open_tunnel,
    store,
)
from braidstream.errors import ConfigError


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def zstd(data: bytes, window_log: int = 20) -> bytes:
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize("seed", range(5))
def test_every_write_comes_out_at_once_however_the_network_cuts_it(seed: int) -> None:
    dice = random.Random(seed)
    packer, unpacker = Packer(), Unpacker()
    for _ in range(60):
        size = dice.choice([1, 50, 4_000, MOST - 1, MOST, MOST + 1, 5 * MOST])
        data = dice.choice([bytes(size), dice.randbytes(size), b"entry " * (size // 6 + 1)])
        packed = dice.choice([packer.pack, packer.pack, store])(data)
        found, at = b"", 0
        while at < len(packed):
            step = dice.randrange(1, 2 * MOST)
            found += b"".join(unpacker.unpack(packed[at : at + step]))
            at += step
        assert found == data


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (framed(zstd(bytes(1 << 26))), "stands for more than 131,072 bytes"),
        (framed(zstd(bytes(MOST + 1))), "stands for more than 131,072 bytes"),
        (framed(zstd(b"x", window_log=27)), "too much memory"),
        (framed(random.Random(1).randbytes(64)), "zstd"),
        ((LARGEST_FRAME + 1).to_bytes(4, "big"), "a frame has"),
        ((STORED | MOST + 1).to_bytes(4, "big"), "a frame has"),
        (bytes(4), "a frame has 0 bytes"),
        (STORED.to_bytes(4, "big"), "a frame has 0 bytes"),
    ],
    ids=[
        "bomb",
        "one byte too many",
        "window",
        "random",
        "large",
        "large and stored",
        "empty",
        "empty and stored",
    ],
)
def test_a_hostile_frame_is_refused(hostile: bytes, why: str) -> None:
    with pytest.raises(TunnelError, match=why):
        [*Unpacker().unpack(hostile)]


def test_small_frames_come_in_few_parts_and_large_ones_in_many() -> None:
    small = b"".join(store(b"x") for _ in range(20_000))
    assert [*Unpacker().unpack(small)] == [b"x" * 20_000]
    packer = Packer()
    bomb = b"".join(packer.pack(bytes(MOST)) for _ in range(100))
    assert [len(part) for part in Unpacker().unpack(bomb)] == [MOST] * 100


def test_a_bomb_keeps_no_event_loop_busy() -> None:
    """10 kB that stand for 64 MB, as a peer's receiver can send them: 500 MB were passed on at once."""
    packer = Packer()
    bomb = b"".join(packer.pack(bytes(MOST)) for _ in range(512))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(OK + bomb)
        await reader.read()
        writer.close()

    class Counting(asyncio.Protocol):
        taken = 0

        def data_received(self, data: bytes) -> None:
            self.taken += len(data)

    async def take() -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port, longest, before = server.sockets[0].getsockname()[1], 0, 0
        inner = await open_tunnel(Via("127.0.0.1", port, "tcp:"), "engine:1", Counting, tls=None)
        while before < 512 * MOST:
            longest, before = max(longest, inner.taken - before), inner.taken
            await asyncio.sleep(0)
        server.close()
        return longest

    assert asyncio.run(asyncio.wait_for(take(), 30)) <= 8 * MOST


@pytest.mark.parametrize(
    "receiver", ["tcp://h", "tcp://:6395", "tcp://h:0", "tls://user:secret@h:1", "tcp://h:1?ssl_ca_certs=/ca"]
)
def test_a_receiver_that_would_not_be_used_as_written_is_refused(receiver: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_address("redis://h").through(receiver)


def test_a_password_for_tls_does_not_go_through_a_receiver_without_tls() -> None:
    with pytest.raises(ConfigError, match="would be readable"):
        parse_address("rediss://:secret@h").through("tcp://h:6395")
    assert parse_address("rediss://:secret@h").through("tcp://127.0.0.1:6395").via is not None
