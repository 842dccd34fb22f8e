"""Define `ShoalExecutor`, a `concurrent.futures.Executor` that runs functions on Shoal's workers.

1. A lane represents a worker. It is a thread that takes calls off the queue and runs them as a
   workflow of independent tasks on one worker, until the queue is empty. There are at most
   `max_workers` lanes.
2. A lane takes several calls at once only if they are expected to be short, judging by earlier
   calls of the same function; a call of an unknown function is taken alone. So a single call
   starts at once, a thousand short ones take a few runs, and long ones are spread over workers.
3. A future is done as soon as its own call is. If a call kills its worker's process, only that call
   fails: the others in its batch that have no result run again.
4. If a run fails for a reason other than a call (the store or the gateway is unavailable, or the
   session was closed), the executor is broken: all pending calls fail, and no more are accepted.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from shoal.client.run import Run
from shoal.engine import default_engine
from shoal.errors import NotPicklable, ShoalError, TaskError, UsageError
from shoal.integrations.calls import Reply, call_of, outcome_of
from shoal.session import Session
from shoal.settings import resolve
from shoal.types import TaskId
from shoal.workflow import Output, Task

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_TOGETHER = 0.1
"""The most seconds of expected work that a lane takes at once."""
_ALONE = 0.005
"""Seconds of work that are not split among lanes, because starting a run costs as much."""
_LATEST = 0.3
"""The weight of the latest call in the expected duration of a function's next call."""
_DEFAULTS = {
    "name": "executor",
    "history": False,
    "keep_seconds": 0.0,
    "planner": "spread",
    "progress": False,
}
"""Default options: independent calls need no plan and no history."""

_NO_SETTINGS = ("name", "planner", "platform", "store")
"""Options that are not settings, or may be objects, so that they are not checked as settings."""


@dataclass(slots=True)
class _SubmittedCall:
    """A submitted call."""

    future: Future[Any]
    output: Output[Reply]
    kind: str
    """The function's qualified name; calls of one kind are expected to take equally long."""


class _Batch:
    """The calls that a lane takes at once."""

    def __init__(
        self, works: Sequence[_SubmittedCall], learn: Callable[[str, float], None]
    ) -> None:
        self.works = dict(enumerate(works))
        """The calls without a result, by number. Finished calls are removed, so that dropping a
        future frees its result."""
        self.tasks: Sequence[TaskId] = ()
        """The task ids of all calls in the run."""
        self.run: Run | None = None
        self._learn = learn

    def arrived(self, number: int, reply: Reply) -> None:
        """Resolve the future of a call whose reply has arrived."""
        outcome = outcome_of(reply)
        if outcome.elapsed is not None:
            self._learn(self.works[number].kind, outcome.elapsed)
        if outcome.error is not None:
            self.fail(number, outcome.error)
        else:
            self.works.pop(number).future.set_result(outcome.value.pop())

    def fail(self, number: int, error: BaseException) -> None:
        """Fail the future of a call."""
        self.works.pop(number).future.set_exception(error)


class ShoalExecutor(Executor):
    """A `concurrent.futures.Executor` whose functions run on Shoal's workers."""

    def __init__(
        self, max_workers: int | None = None, *, session: Session | None = None, **settings: Any
    ) -> None:
        """Create the executor, and open the shared session if necessary.

        Args:
            max_workers: How many workers may run concurrently; default: the setting `workers`,
                else as many as the platform offers.
            session: The session to use; default: the one that `compute()` calls share.
            **settings: Any setting, and `name` and `planner`, as for `compute`.
        """
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers!r}.")
        resolve({name: value for name, value in settings.items() if name not in _NO_SETTINGS})
        self._options: dict[str, Any] = {**_DEFAULTS, **settings}
        self._session = session or default_engine.session(self._options)
        workers = self._options.pop("workers", None) or self._session.settings.workers
        self._most = self._session.room.workers(max_workers or workers)
        self._session.room.make(self._most, wanted=bool(max_workers or workers))
        self._lock = threading.Lock()
        self._queue: deque[_SubmittedCall] = deque()
        self._lanes: set[threading.Thread] = set()
        self._runs: set[Run] = set()
        self._expected: dict[str, float] = {}
        self._down = False
        self._broken: BaseException | None = None

    @property
    def max_workers(self) -> int:
        """How many workers may run concurrently."""
        return self._most

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` on a worker.

        If the function or an argument can't be pickled, the future fails with `NotPicklable`.
        """
        self._check_open()
        function = fn.function if isinstance(fn, Task) else fn
        future: Future[T] = Future()
        try:
            output = call_of(function, args, kwargs)
        except NotPicklable as error:
            future.set_exception(error)
            return future
        kind = f"{getattr(function, '__module__', '')}.{_qualified(function)}"
        with self._lock:
            self._check_open()
            self._queue.append(_SubmittedCall(future, output, kind))
            self._add_lane()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Call `fn` on each item, and yield the results in order.

        Args:
            fn: The function to call.
            *iterables: One for each argument of `fn`; the shortest determines the number of calls.
            timeout: How many seconds from now to wait before raising `TimeoutError`.
            chunksize: How many calls to send as one. Short calls are batched anyway; chunks also
                save the overhead of each call.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize must be at least 1, not {chunksize!r}.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        lists = super().map(partial(_call_all, fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(lists)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; the shared session and its workers stay open.

        Args:
            wait: Whether to return only when all futures are done.
            cancel_futures: Whether to cancel the calls that have not started.
        """
        with self._lock:
            self._down = True
        if cancel_futures:
            self._cancel_queue()
        if wait:
            with self._lock:
                lanes = list(self._lanes)
            for lane in lanes:
                lane.join()

    def _cancel_queue(self) -> None:
        """Cancel queued calls, except those that have started before and are to be retried."""
        with self._lock:
            works = list(self._queue)
            self._queue.clear()
        begun = [work for work in works if not work.future.cancel()]
        for work in works:
            if work.future.cancelled():
                work.future.set_running_or_notify_cancel()  # notifies waiters
        with self._lock:
            self._queue.extendleft(begun[::-1])
            if begun:
                self._add_lane()

    def kill_workers(self) -> None:
        """Stop at once: cancel queued calls, kill running ones, and accept no more."""
        self.shutdown(wait=False, cancel_futures=True)
        self._break(UsageError("its workers were killed."))
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.cancel()

    def _check_open(self) -> None:
        if self._broken is not None:
            raise _broken(self._broken)
        if self._down:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _add_lane(self) -> None:
        if len(self._lanes) < self._most:
            lane = threading.Thread(target=self._work, name="shoal-lane")
            lane.start()
            self._lanes.add(lane)

    def _work(self) -> None:
        """Run what is in the queue until it is empty."""
        while True:
            with self._lock:
                batch = self._next_batch()
                if batch is None:
                    self._lanes.discard(threading.current_thread())
                    return
            try:
                self._run(batch)
            except TaskError as error:
                self._retry(batch, error)
            except BaseException as error:  # noqa: BLE001 - the thread's edge: futures get it
                self._break(error)
                self._fail(batch, error)

    def _next_batch(self) -> _Batch | None:
        """Take the next calls that are expected to be short, or a single one."""
        works: list[_SubmittedCall] = []
        share = -(-len(self._queue) // self._most)
        seconds = 0.0
        while self._queue and (len(works) < share or seconds < _ALONE):
            seconds += self._expected.get(self._queue[0].kind, _TOGETHER)
            if works and seconds > _TOGETHER:
                break
            work = self._queue.popleft()
            if work.future.running() or work.future.set_running_or_notify_cancel():
                works.append(work)
        return _Batch(works, self._learn) if works else None

    def _learn(self, kind: str, seconds: float) -> None:
        before = self._expected.get(kind, seconds)
        self._expected[kind] = before + _LATEST * (seconds - before)

    def _run(self, batch: _Batch) -> None:
        if self._broken is not None:
            raise self._broken
        outputs = [work.output for work in batch.works.values()]

        def prepared(run: Run) -> None:
            batch.tasks, batch.run = run.workflow.sinks, run
            with self._lock:
                if self._broken is not None:
                    raise self._broken
                self._runs.add(run)

        try:
            self._session.run_here(
                *outputs, prepared=prepared, arrived=batch.arrived, workers=1, **self._options
            )
        finally:
            with self._lock:
                self._runs -= {batch.run}

    def _retry(self, batch: _Batch, error: TaskError) -> None:
        """Fail the call that caused the error, and requeue the others without a result."""
        blamed = [number for number in batch.works if batch.tasks[number] == error.task]
        for number in blamed or list(batch.works):
            batch.fail(number, error)
        with self._lock:
            self._queue.extendleft(reversed(batch.works.values()))

    def _break(self, error: BaseException) -> None:
        with self._lock:
            if self._broken is not None:
                return
            self._broken = error
            left = list(self._queue)
            self._queue.clear()
        if not isinstance(error, ShoalError):
            log.error("an executor is broken", exc_info=error)
        for work in left:
            if work.future.running() or work.future.set_running_or_notify_cancel():
                work.future.set_exception(_broken(error))

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        for number in list(batch.works):
            batch.fail(number, _broken(error))


def _broken(error: BaseException) -> BrokenExecutor:
    broken = BrokenExecutor(f"The executor is broken: {error}")
    broken.__cause__ = error
    return broken


def _qualified(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # the function of a partial
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def _chunks(calls: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(calls)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _call_all(function: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    """Make several calls on the worker."""
    return [function(*args) for args in calls]
