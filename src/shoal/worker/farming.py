"""A farm's worker: pulls tasks of its stage until it is told to leave.

1. What it takes, it holds; with the results of what it held it asks for the next, in one round
   trip. With nothing to do it waits for a letter: a task, or the word to leave.
2. It takes several tasks at once only if those before took so little that all of them together
   take a moment. If one of them takes longer after all, the others are given back meanwhile.
3. A task that fails, or that can't be read, is no reason to end: what is known of it is handed in.
   The store decides whether it is tried again.
4. The farm is over when its owner hasn't been heard of for a while, and then the worker leaves.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.clock import RealClock
from shoal.errors import RunOver, ShoalError
from shoal.platform.base import Invocation
from shoal.storage.base import Letter
from shoal.storage.codec import Buffer, decode, encode
from shoal.storage.keys import signed_function, signed_value
from shoal.storage.queues import FarmStore, Settled, pairs
from shoal.worker.failure import failure_parts, shown
from shoal.worker.pulse import alive
from shoal.worker.runtime import Running

_MOMENT = 0.005
"""Seconds that a batch of tasks may take."""
_MOST = 64
"""Tasks in a batch."""
_PATIENCE = 10 * _MOMENT
"""Seconds after which tasks of a batch that haven't begun are given back."""
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
        _stores.pop(where, store).disconnect()
        raise


def work_with(store: FarmStore, invocation: Invocation, running: Running) -> bool:
    """Join the farm and work; a start that is over does nothing."""
    run, worker, key = invocation.run, invocation.worker, bytes.fromhex(invocation.key)
    try:
        with alive(store, invocation):
            packed = store.join(run, worker, invocation.epoch, death(worker))
        try:
            function, seconds = decode(packed, key, signed_function(stage_of(worker)))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            parts = failure_parts(error, worker, worker, "", key)
            store.post(run, Letter("broken", worker, parts))
            return False
        return _Puller(store, invocation, key, function, seconds, running).run()
    except RunOver:
        return True


def stage_of(worker: str) -> int:
    """The stage that a worker works for: its name begins with the number."""
    return int(worker.partition(":")[0])


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
        self._invocation = invocation
        self._run = invocation.run
        self._worker, self._epoch = invocation.worker, invocation.epoch
        self._stage = stage_of(invocation.worker)
        self._lease = invocation.lease
        self._key = key
        self._function = function
        self._ends: float | None = None
        """When it is to leave by itself, because the platform would end it."""
        if seconds is not None:
            starting = max(0.0, RealClock().now() - invocation.sent)
            self._ends = time.monotonic() + seconds - min(starting, seconds / 2)
        self._running = running
        self._longest = _MOMENT
        self._read = ""
        self._batch = threading.Condition()
        """Guards what follows, and tells the one who looks after batches of a new one."""
        self._ahead: dict[str, Buffer] = {}
        """Tasks that haven't begun."""
        self._done: list[Settled] = []
        self._batches = 0
        self._relief: threading.Thread | None = None
        self._watching = False
        """Somebody looks at batches, and needs no word of a new one."""
        self._over = False

    def run(self) -> bool:
        """Pull until told to leave."""
        try:
            while True:
                with alive(self._store, self._invocation):
                    taken = self._store.take(
                        self._run, self._worker, self._epoch, self._read, self._most(), self._done
                    )
                if taken.leave:
                    return True
                self._work_off(taken.tasks or self._waited())
        finally:
            with self._batch:
                self._over = True
                self._batch.notify()

    def _most(self) -> int:
        if self._ends is not None and time.monotonic() > self._ends:
            return 0
        return min(max(1, int(_MOMENT / self._longest)), _MOST)

    def _waited(self) -> Sequence[tuple[str, Buffer]]:
        """The tasks of the letters that came; none, if none came, or the word to leave."""
        with alive(self._store, self._invocation):
            letters = self._store.receive(self._run, self._worker, self._read, self._lease)
        if letters:
            self._read = letters[-1].id
        return [task for each in letters if each.kind == "tasks" for task in pairs(each.parts)]

    def _work_off(self, tasks: Sequence[tuple[str, Buffer]]) -> None:
        with self._batch:
            self._ahead, self._done = dict(tasks), []
            self._batches += 1
            if len(tasks) > 1:
                self._be_relieved()
        for id_, given in tasks:
            with self._batch:
                if self._ahead.pop(id_, None) is None:
                    continue
            self._running.set(0, int(id_, 16))
            began = time.perf_counter()
            self._done.append(self._settled(id_, given, began))
            self._longest = max(time.perf_counter() - began, _CALMING * self._longest, 1e-9)
        if tasks:
            self._running.clear(0)

    def _be_relieved(self) -> None:
        if self._relief is None:
            self._relief = threading.Thread(target=self._relieve, daemon=True)
            self._relief.start()
        elif not self._watching:
            self._batch.notify()

    def _relieve(self) -> None:
        """Give back what hasn't begun of a batch that takes too long."""
        while True:
            with self._batch:
                self._watching = False
                self._batch.wait_for(lambda: self._ahead or self._over)
                self._watching, seen = True, self._batches
                self._batch.wait_for(lambda: self._over, _PATIENCE)
                if self._over:
                    return
                if self._batches != seen:
                    continue
                left, self._ahead = list(self._ahead), {}
                done = list(self._done)
            if left:
                with contextlib.suppress(ShoalError):  # they stay held; the worker finds out
                    self._store.give_back(self._run, self._worker, self._epoch, left, done)

    def _settled(self, id_: str, given: Buffer, began: float) -> Settled:
        value: Any = _UNREAD
        try:
            value = decode(given, self._key, signed_value(id_, self._stage))
            result = self._function(value)
            seconds = time.perf_counter() - began
            name = signed_value(id_, self._stage + 1)
            return Settled(id_, seconds, encode(result, self._key, name, what="a farm's result"))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            arguments = "" if value is _UNREAD else f"({shown(value)})"
            facts, cause = failure_parts(error, id_, self._worker, arguments, self._key)
            return Settled(id_, time.perf_counter() - began, [cause], facts)


_UNREAD = object()
