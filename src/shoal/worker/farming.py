"""A farm's worker: pulls tasks of its stage until it is told to leave.

1. What it takes, it holds; with the results of what it held it asks for the next, in one round
   trip. With nothing to do it waits for a letter: a task, or the word to leave.
2. It takes several tasks at once only if all of them together take a moment, so that none waits
   for the others, and no other worker for them.
3. A task that fails, or that can't be read, is no reason to end: what is known of it is handed in.
   The store decides whether it is tried again.
4. The farm is over when its owner hasn't been heard of for a while, and then the worker leaves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import RunOver
from shoal.platform.base import Invocation
from shoal.storage.base import Letter
from shoal.storage.codec import Buffer, decode, encode
from shoal.storage.queues import FarmStore, Settled, pairs
from shoal.worker.failure import failure_parts, shown
from shoal.worker.runtime import Running

_MOMENT = 0.005
"""Seconds that a batch of tasks may take."""
_MOST = 64
"""Tasks in a batch."""
_CALMING = 0.98
"""How the longest time of a task is forgotten, from one task to the next."""

_stores: dict[tuple[str, float], FarmStore] = {}
"""Connections that the next job in this sandbox may use again."""


def work(invocation: Invocation, running: Running) -> bool:
    """Work for a farm; whether the sandbox can be used again."""
    where = (invocation.store, invocation.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = FarmStore(*where, known=True)
    try:
        return work_with(store, invocation, running)
    except BaseException:
        _stores.pop(where, None)
        raise


def work_with(store: FarmStore, invocation: Invocation, running: Running) -> bool:
    """Join the farm and work; a start that is over does nothing."""
    run, worker, key = invocation.run, invocation.worker, bytes.fromhex(invocation.key)
    try:
        packed = store.join(run, worker, invocation.epoch, death(worker))
        try:
            function, seconds = decode(packed, key)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            parts = failure_parts(error, worker, "", key)
            store.post(run, Letter("broken", worker, parts))
            return False
        return _Puller(store, invocation, key, function, seconds, running).run()
    except RunOver:
        return True


def death(worker: str) -> bytes:
    """What to say of a task that is given up because workers died of it."""
    reason = "the worker's process ended while it had this task, as often as a task is tried"
    facts = {"worker": worker, "reason": reason, "arguments": "", "traceback": ""}
    return json.dumps(facts).encode()


class _Puller:
    def __init__(
        self,
        store: FarmStore,
        invocation: Invocation,
        key: bytes,
        function: Callable[[Any], Any],
        seconds: float | None,
        running: Running,
    ) -> None:
        self._store = store
        self._run = invocation.run
        self._worker, self._epoch = invocation.worker, invocation.epoch
        self._lease = invocation.lease
        self._key = key
        self._function = function
        self._ends = None if seconds is None else time.monotonic() + seconds
        """When it is to leave by itself, because the platform would end it."""
        self._running = running
        self._longest = _MOMENT
        self._read = ""

    def run(self) -> bool:
        """Pull until told to leave."""
        done: list[Settled] = []
        while True:
            taken = self._store.take(
                self._run, self._worker, self._epoch, self._read, self._most(), done
            )
            if taken.leave:
                return True
            done = self._work_off(taken.tasks or self._waited())

    def _most(self) -> int:
        if self._ends is not None and time.monotonic() > self._ends:
            return 0
        return min(max(1, int(_MOMENT / self._longest)), _MOST)

    def _waited(self) -> Sequence[tuple[str, Buffer]]:
        """The tasks of the letters that came; none, if none came, or the word to leave."""
        letters = self._store.receive(self._run, self._worker, self._read, self._lease)
        if letters:
            self._read = letters[-1].id
        return [task for each in letters if each.kind == "tasks" for task in pairs(each.parts)]

    def _work_off(self, tasks: Sequence[tuple[str, Buffer]]) -> list[Settled]:
        done = []
        for id_, given in tasks:
            self._running.set(0, int(id_, 16))
            began = time.perf_counter()
            done.append(self._settled(id_, given, began))
            self._longest = max(time.perf_counter() - began, _CALMING * self._longest, 1e-9)
        if tasks:
            self._running.clear(0)
        return done

    def _settled(self, id_: str, given: Buffer, began: float) -> Settled:
        value: Any = _UNREAD
        try:
            value = decode(given, self._key)
            result = self._function(value)
            seconds = time.perf_counter() - began
            return Settled(id_, seconds, encode(result, self._key, what="a farm's result"))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            arguments = "" if value is _UNREAD else f"({shown(value)})"
            facts, cause = failure_parts(error, self._worker, arguments, self._key)
            return Settled(id_, time.perf_counter() - began, [cause], facts)


_UNREAD = object()
