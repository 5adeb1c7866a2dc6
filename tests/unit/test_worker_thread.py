"""The threads that run handlers: what they add to threading.Thread stays apart from its own names."""

import threading
from collections import deque

from braidstream.consumers.threads import Worker, WorkerPool


def test_a_worker_has_no_private_name_that_a_version_of_thread_may_use() -> None:
    """Python 3.13 sets Thread._handle: a method of that name was never called."""
    pool = WorkerPool(
        0, lambda work: (None, {}), lambda work, error, rejected: None, fresh=deque(), has_timeout=False
    )
    worker = Worker(pool)
    ours = {*vars(Worker), *vars(worker)} - {*dir(threading.Thread()), *dir(object)}
    assert [name for name in sorted(ours) if name.startswith("_")] == []
    assert not (ours & {*dir(threading.Thread)})
