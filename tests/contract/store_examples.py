"""What the tests of every store have in common: workers, marks, a run in full use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from observing import PATIENCE
from shoal.storage.base import (
    Announcement,
    Claim,
    Completion,
    Letter,
    MarkRequest,
    Opening,
    Store,
)
from shoal.storage.codec import Blob, Buffer
from shoal.storage.keys import CLIENT
from shoal.storage.resp import Connection
from shoal.types import RunId, TaskId, WorkerId

Connect = Callable[[], Store]

w0, w1, w2, w3 = (WorkerId(f"w{number}") for number in range(4))
t, u = TaskId("t#1"), TaskId("ü#2")

BINARY = b"\r\n$3\r\n\x00\xff\xfe*1\r\n\x80" + bytes(range(256))
LARGE = 100_000
"""More bytes than a script is given."""
LONG = 2_500_000
"""More bytes than the servers of these tests take at once."""


def keys_of(server: Connection, run: RunId) -> set[str]:
    return {str(key, "utf-8") for key in server.call("KEYS", f"shoal:{{{run}*")}


def mark(task: TaskId, owner: WorkerId, *producers: WorkerId, payload: bytes = b"") -> MarkRequest:
    return MarkRequest(task, owner, producers, payload)


def fields(letters: list[Letter]) -> list[tuple[Any, ...]]:
    return [(each.kind, each.name, *(bytes(part) for part in each.parts)) for each in letters]


def flat(buffer: Buffer | None) -> bytes | None:
    return None if buffer is None else bytes(buffer)


def in_background(function: Callable[..., Any], *args: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that calls a function, and where its result will be."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function(*args))
        except Exception as error:  # noqa: BLE001 - it is looked at by the test
            results.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread, results


def use(store: Store, run: RunId) -> None:
    """Have something of everything in a run."""
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
    store.complete(run, w0, 1, Completion(saves, marks, [Letter("output", "a")], executed=2))
    store.complete(run, w1, 1, Completion([("B", [b"B" * LARGE])], [mark(t, w2, w0, w1)]))
    store.complete(run, w1, 1, Completion(announcements=[Announcement(t, w1, b"saved")]))
    store.post(run, Letter("lost", w1, (b"why",)))
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
        run, w0, 1, Completion(letters=[Letter("output", "a")])
    ),
    "complete with an announcement": lambda store, run: store.complete(
        run, w0, 1, Completion(announcements=[Announcement(t, w1, b"")])
    ),
    "post": lambda store, run: store.post(run, Letter("lost", w0)),
    "park": lambda store, run: store.park(run, w0, 1, "", b""),
    "fetch": lambda store, run: store.fetch(run, ["a", "A"]),
    "receive": lambda store, run: store.receive(run, CLIENT, "", PATIENCE),
}


def started_again(store: Store, run: RunId) -> str:
    """A run in which worker w1 has parked and been claimed again, so that its epoch is 2."""
    store.open(run, Opening([w0, w1], outputs={"a": [b"kept"], "A": [b"K" * LARGE]}))
    store.enter(run, w1, 1)
    assert store.park(run, w1, 1, "", b"")
    assert store.complete(run, w0, 1, Completion((), [mark(t, w1, w0)])) == [Claim(w1, 2)]
    return store.receive(run, w1, "", 0)[-1].id
