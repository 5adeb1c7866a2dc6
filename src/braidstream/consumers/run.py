"""`braidstream.run(a, b)`: several consumers in one process, until one signal stops all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from braidstream.consumers import tasks, threads


def run(*consumers: threads.Consumer | tasks.Consumer, until_empty: bool = False) -> None:
    """Run consumers of both kinds until all of them have stopped.

    SIGTERM and SIGINT stop all; so does an error of one of them, which is raised when the others have
    stopped. In an event loop of your own: `await asyncio.gather(a.run(), b.run())`.

    until_empty: each stops when it has handled all that there is to read.
    """
    if not consumers or not all(isinstance(each, threads.Consumer | tasks.Consumer) for each in consumers):
        raise TypeError(f"run: {consumers!r} given, it must be consumers: run(first, second).")
    threaded = [each for each in consumers if isinstance(each, threads.Consumer)]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(len(threaded), 1), "braidstream-consumer"))
        for each in threaded:
            stack.enter_context(threads.stopped_by_signals(each._stop_by_signal))
        asyncio.run(_run_all(consumers, pool, until_empty))


async def _run_all(
    consumers: tuple[threads.Consumer | tasks.Consumer, ...], pool: ThreadPoolExecutor, until_empty: bool
) -> None:
    loop = asyncio.get_running_loop()

    async def run_one(consumer: threads.Consumer | tasks.Consumer) -> None:
        try:
            if isinstance(consumer, threads.Consumer):
                await loop.run_in_executor(pool, lambda: consumer.run(until_empty=until_empty))
            else:
                await consumer.run(until_empty=until_empty)
        except BaseException:
            for each in consumers:
                each.stop()
            raise

    ended = await asyncio.gather(*map(run_one, consumers), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error
