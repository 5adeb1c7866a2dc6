"""A proxy that delays what passes, each way: `python -m bench.delay PORT ONE_WAY_MS` prints its own port."""

import asyncio
import sys


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Chunks leave in order, each `delay_s` after it came; the sender is slowed only by full buffers."""
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=4096)

    async def leave() -> None:
        while True:
            due, chunk = await held.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not chunk:
                writer.close()
                return
            writer.write(chunk)
            await writer.drain()

    leaving = asyncio.ensure_future(leave())
    while True:
        chunk = await reader.read(1 << 18)
        await held.put((loop.time() + delay_s, chunk))
        if not chunk:
            break
    await leaving


async def _serve(port: int, delay_s: float) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        await asyncio.gather(
            _pipe(reader, there[1], delay_s), _pipe(there[0], writer, delay_s), return_exceptions=True
        )

    server = await asyncio.start_server(meet, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1000))
