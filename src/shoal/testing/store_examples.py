"""Examples that the tests of every store share: workers, marks, a run in full use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from shoal.storage.base import (
    Announcement,
    Claim,
    Completion,
    MarkRequest,
    Opening,
    Store,
)
from shoal.storage.codec import Blob, Buffer
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, Received, WorkerLost, encode_letter
from shoal.testing.waiting import TIMEOUT
from shoal.types import Loss, LossReason, RunId, TaskId, WorkerId

Connect = Callable[[], Store]

w0, w1, w2, w3 = (WorkerId(f"w{number}") for number in range(4))
t, u = TaskId("t#1"), TaskId("ü#2")

BINARY = b"\r\n$3\r\n\x00\xff\xfe*1\r\n\x80" + bytes(range(256))
LARGE = 100_000
"""More bytes than a script takes as an argument."""
LONG = 2_500_000
"""More bytes than a server with the lowest limit accepts in one value."""


def mark(task: TaskId, owner: WorkerId, *producers: WorkerId, payload: bytes = b"") -> MarkRequest:
    """Return the sender's mark of a task that has an owner."""
    return MarkRequest(task, owner, producers, payload)


def fields(received: list[Received]) -> list[tuple[Any, ...]]:
    """Return letters as they travel: kind, name and parts."""
    encoded = [encode_letter(letter) for _, letter in received]
    return [(kind, name, *(bytes(part) for part in parts)) for kind, name, parts in encoded]


def kinds(received: list[Received]) -> list[str]:
    """Return the kinds of letters."""
    return [kind for kind, *_ in fields(received)]


def names(received: list[Received]) -> list[str]:
    """Return the names of the tasks or workers that letters are about."""
    return [name for _, name, *_ in fields(received)]


def flat(buffer: Buffer | None) -> bytes | None:
    """Return the bytes of a buffer; None if there is none."""
    return None if buffer is None else bytes(buffer)


def in_background(function: Callable[..., Any], *args: Any) -> tuple[threading.Thread, list[Any]]:
    """Call a function in a thread; return the thread and the list that its result goes to."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function(*args))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, results


def use(store: Store, run: RunId) -> None:
    """Open a run and use every part of the store."""
    store.open(
        run,
        Opening(
            [w0, w1],
            {w0: [b"part"], w2: [b"part"]},
            {"c": [b"c"], "C": [bytes(LARGE)], "L": [bytes(LONG)]},
        ),
    )
    store.enter(run, w0, 1)
    saves: list[tuple[str, Blob]] = [("a", [b"a"]), ("A", [b"A" * LARGE]), ("M", [bytes(LONG)])]
    marks = [mark(t, w2, w0, w1, payload=b"0"), mark(u, w3, w0)]
    store.complete(run, w0, 1, Completion(saves, marks, [OutputReady(TaskId("a"))], executed=2))
    store.complete(run, w1, 1, Completion([("B", [b"B" * LARGE])], [mark(t, w2, w0, w1)]))
    store.complete(run, w1, 1, Completion(announcements=[Announcement(t, w1, b"saved")]))
    store.post(run, WorkerLost(w1, Loss(LossReason.ERROR, detail="why")))
    assert store.park(run, w0, 1, "", b"[0]")


SAID: dict[str, Callable[[Store, RunId], Any]] = {
    "enter": lambda store, run: store.enter(run, w2, 1),
    "complete": lambda store, run: store.complete(run, w0, 1, Completion(executed=3)),
    "complete with a small output": lambda store, run: store.complete(
        run, w0, 1, Completion([("a", [b"a"])])
    ),
    "complete with a large output": lambda store, run: store.complete(
        run, w0, 1, Completion([("A", [bytes(LARGE)])])
    ),
    "complete with a long output": lambda store, run: store.complete(
        run, w0, 1, Completion([("L", [bytes(LONG)])])
    ),
    "complete with a mark": lambda store, run: store.complete(
        run, w0, 1, Completion((), [mark(t, w3, w0)])
    ),
    "complete with a letter": lambda store, run: store.complete(
        run, w0, 1, Completion(letters=[OutputReady(TaskId("a"))])
    ),
    "complete with an announcement": lambda store, run: store.complete(
        run, w0, 1, Completion(announcements=[Announcement(t, w1, b"")])
    ),
    "post": lambda store, run: store.post(run, WorkerLost(w0, Loss(LossReason.VANISHED))),
    "park": lambda store, run: store.park(run, w0, 1, "", b""),
    "fetch": lambda store, run: store.fetch(run, ["a", "A"]),
    "receive": lambda store, run: store.receive(run, CLIENT, "", TIMEOUT),
}


def started_again(store: Store, run: RunId) -> str:
    """Open a run in which w1 has parked and was claimed again, so that its epoch is 2."""
    store.open(run, Opening([w0, w1], outputs={"a": [b"kept"], "A": [b"K" * LARGE]}))
    store.enter(run, w1, 1)
    assert store.park(run, w1, 1, "", b"")
    assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 2)]
    return store.receive(run, w1, "", 0)[-1].id
