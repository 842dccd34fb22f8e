"""Background threads are reused for the next call."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from observing import eventually
from shoal.worker.threads import _idle, in_background


def test_an_idle_thread_takes_the_next_call() -> None:
    ran: SimpleQueue[threading.Thread] = SimpleQueue()
    in_background(lambda: ran.put(threading.current_thread()))
    first = ran.get(timeout=10)
    assert eventually(lambda: bool(_idle))
    kept = len(_idle)
    in_background(lambda: ran.put(threading.current_thread()))
    assert ran.get(timeout=10) in [t for t in threading.enumerate() if t.name == first.name]
    assert eventually(lambda: len(_idle) == kept)


def test_concurrent_calls_have_a_thread_each() -> None:
    together = threading.Barrier(6)
    done: SimpleQueue[int] = SimpleQueue()

    def call() -> None:
        together.wait(timeout=10)
        done.put(1)

    for _ in range(5):
        in_background(call)
    together.wait(timeout=10)
    assert sum(done.get(timeout=10) for _ in range(5)) == 5
