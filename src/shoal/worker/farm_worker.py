"""A farm's worker: pulls tasks of its stage until it is told to leave.

1. A worker holds the tasks that it has taken. One round trip hands in their results and asks for
   the next. A worker with nothing to do waits for a letter with a task, or with the order to leave.
2. It takes several tasks at once only if earlier ones were so short that the batch takes a moment.
   If a task then takes longer, the tasks that haven't begun are given back.
3. A task that fails or can't be read doesn't end the worker: the failure is handed in, and the
   store decides whether to retry.
4. The farm has ended when its owner hasn't been heard from for a while. Then the worker leaves.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from shoal.errors import RunOver, ShoalError
from shoal.platform.invocation import Invocation
from shoal.storage.codec import Buffer, decode, encode
from shoal.storage.farm_queues import FarmStore, Settled
from shoal.storage.keys import signed_function, signed_value
from shoal.storage.letters import (
    Failure,
    FarmWorkerLetter,
    FunctionBroken,
    LeaveRequested,
    TasksAssigned,
    misaddressed,
)
from shoal.types import WorkerId
from shoal.worker.failure import failure_of, shown
from shoal.worker.heartbeat import alive
from shoal.worker.project_code import use_project_code
from shoal.worker.runtime import Running

_MOMENT = 0.005
"""Seconds that a batch of tasks may take."""
_MOST = 64
"""The most tasks in a batch."""
_BATCH_SECONDS = 10 * _MOMENT
"""Seconds after which tasks of a batch that haven't begun are given back."""
_CALMING = 0.98
"""By which factor the longest recent time of a task decays with each task."""

_stores: dict[tuple[str, float], FarmStore] = {}
"""Connections that the next worker in this sandbox may reuse."""


def work(invocation: Invocation, running: Running) -> bool:
    """Work for a farm; whether the sandbox can be reused."""
    where = (invocation.context.store, invocation.context.settings.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = FarmStore(*where, known=True)
    with contextlib.ExitStack() as undo:
        undo.callback(store.disconnect)
        undo.callback(_stores.pop, where, None)
        use_project_code(invocation, store)
        reusable = work_with(store, invocation, running)
        undo.pop_all()
    return reusable


def work_with(store: FarmStore, invocation: Invocation, running: Running) -> bool:
    """Join the farm and work; a start that isn't valid any more does nothing."""
    run, worker, key = invocation.run, invocation.worker, invocation.context.key
    try:
        with alive(store, invocation):
            packed = store.join(run, worker, invocation.epoch, death(worker))
        try:
            function, seconds = decode(packed, key, signed_function(stage_of(worker)))
        except Exception as error:  # noqa: BLE001 - the edge to the user's code: the owner is told
            failure = failure_of(error, worker, worker, "", key)
            store.post(run, FunctionBroken(worker, failure))
            return False
        return _Puller(store, invocation, key, function, seconds, running).run()
    except RunOver:
        return True


def stage_of(worker: str) -> int:
    """The stage of a worker: its name begins with the number."""
    return int(worker.partition(":")[0])


def death(worker: WorkerId) -> Failure:
    """The failure of a task that is given up because workers died while running it."""
    reason = "the worker's process ended while it had this task, as often as a task is tried"
    return Failure(worker, reason)


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
        self._lease = invocation.context.settings.lease
        self._key = key
        self._function = function
        self._ends: float | None = None
        """When to leave before the platform ends the worker."""
        if seconds is not None:
            clock = store.clock(self._run, None if invocation.served else invocation.start.sent)
            starting = max(0.0, clock.now() - invocation.sent(clock))
            self._ends = time.monotonic() + seconds - min(starting, seconds / 2)
        self._running = running
        self._longest = _MOMENT
        self._read = ""
        self._batch = threading.Condition()
        """Guards what follows, and wakes the thread that watches batches."""
        self._ahead: dict[str, Buffer] = {}
        """Tasks that haven't begun."""
        self._done: list[Settled] = []
        self._batches = 0
        self._giving_back = False
        """Tasks are on their way back to the queue."""
        self._relief: threading.Thread | None = None
        self._watching = False
        """Whether that thread is awake, so that it needs no wake-up."""
        self._over = False

    def run(self) -> bool:
        """Pull until told to leave."""
        try:
            while True:
                done = self._settled_tasks()
                with alive(self._store, self._invocation):
                    taken = self._store.take(
                        self._run, self._worker, self._epoch, self._read, self._most(), done
                    )
                if taken.leave:
                    return True
                self._work_off(taken.tasks or self._waited())
        finally:
            with self._batch:
                self._over = True
                self._batch.notify()

    def _settled_tasks(self) -> list[Settled]:
        """What is done; waits for tasks that are being given back, to avoid taking them again."""
        with self._batch:
            self._batch.wait_for(lambda: not self._giving_back)
            return self._done

    def _most(self) -> int:
        if self._ends is not None and time.monotonic() > self._ends:
            return 0
        return min(max(1, int(_MOMENT / self._longest)), _MOST)

    def _waited(self) -> Sequence[tuple[str, Buffer]]:
        """The tasks of the letters that came; none if none came, or the order to leave."""
        with alive(self._store, self._invocation):
            received = self._store.receive(self._run, self._worker, self._read, self._lease)
        tasks: list[tuple[str, Buffer]] = []
        for id_, letter in received:
            self._read = id_
            if not isinstance(letter, FarmWorkerLetter):
                raise misaddressed(letter)
            match letter:
                case TasksAssigned(_, assigned):
                    tasks += assigned
                case LeaveRequested():
                    pass  # the next time that it takes tasks, it is told to leave
                case _:
                    assert_never(letter)
        return tasks

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
            settled = self._settled(id_, given, began)
            with self._batch:
                self._done.append(settled)
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
        """Give back the tasks that haven't begun when a batch takes too long."""
        while True:
            with self._batch:
                self._watching = False
                self._batch.wait_for(lambda: self._ahead or self._over)
                self._watching, seen = True, self._batches
                self._batch.wait_for(lambda: self._over, _BATCH_SECONDS)
                if self._over:
                    return
                if self._batches != seen:
                    continue
                left, self._ahead = list(self._ahead), {}
                done = list(self._done)
                self._giving_back = bool(left)
            if left:
                self._give_back(left, done)

    def _give_back(self, tasks: Sequence[str], done: Sequence[Settled]) -> None:
        try:
            with contextlib.suppress(ShoalError):  # they stay held, and the worker will find out
                self._store.give_back(self._run, self._worker, self._epoch, tasks, done)
        finally:
            with self._batch:
                self._giving_back = False
                self._batch.notify_all()

    def _settled(self, id_: str, given: Buffer, began: float) -> Settled:
        value: Any = _UNREAD
        try:
            value = decode(given, self._key, signed_value(id_, self._stage))
            result = self._function(value)
            seconds = time.perf_counter() - began
            name = signed_value(id_, self._stage + 1)
            return Settled(id_, seconds, encode(result, self._key, name, what="a farm's result"))
        except Exception as error:  # noqa: BLE001 - the edge to the user's code: a `Failure`
            arguments = "" if value is _UNREAD else f"({shown(value)})"
            failure = failure_of(error, id_, self._worker, arguments, self._key)
            return Settled(id_, time.perf_counter() - began, [], failure)


_UNREAD = object()
