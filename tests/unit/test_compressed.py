"""The frames of compressed links: what is packed comes out again, and hostile frames are refused in time."""

import random

import pytest
import zstandard

from braidstream.engine.address import parse_address
from braidstream.engine.tunnel import LARGEST_FRAME, MOST, STORED, Packer, TunnelError, Unpacker, store
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
