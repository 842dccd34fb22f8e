"""`ShoalExecutor`: functions that are submitted one by one run on Shoal's workers.

1. A lane stands for a worker. It is a thread that takes calls off the queue, runs them as a
   workflow of independent tasks on one worker, and takes the next ones; it ends when there are
   none. There are at most `max_workers` lanes.
2. A lane takes several calls at a time only if they are expected to be short, judged by how long
   earlier calls of the same function took; one that isn't known is taken alone. So a lone call
   starts at once, a thousand small ones are a few runs, and long ones are spread as workers become
   free.
3. A future is done as soon as its own call is. A call that ends its worker's process fails alone:
   the calls that were taken with it and have no result are run again.
4. A run that fails for no call's sake (the store or the gateway is gone, the session was closed)
   breaks the executor: whatever has no result fails, and nothing more is taken.
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

from shoal.engine import default_engine
from shoal.errors import NotPicklable, ShoalError, TaskError, UsageError
from shoal.integrations.calls import Reply, call_of, outcome_of
from shoal.run import Run
from shoal.session import Session
from shoal.settings import resolve
from shoal.system import cores
from shoal.types import TaskId
from shoal.workflow import Output, Task

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_TOGETHER = 0.1
"""Seconds that the calls that a lane takes at once are expected to need."""
_ALONE = 0.005
"""Seconds: so little isn't shared out among lanes, for starting a run costs as much."""
_LATEST = 0.3
"""How much the latest call counts for what is expected of the next one of its function."""
_DEFAULTS = {
    "name": "executor",
    "history": False,
    "keep_seconds": 0.0,
    "planner": "spread",
    "progress": False,
}
"""Calls that have nothing to do with each other need no plan, and teach nothing."""

_NO_SETTINGS = ("name", "planner", "platform", "store")
"""What may be given beside settings, or as an object."""


@dataclass(slots=True)
class _Work:
    """A call that has been submitted."""

    future: Future[Any]
    output: Output[Reply]
    kind: str
    """Calls of the same kind are expected to take about as long."""


class _Batch:
    """The calls that a lane has taken at once."""

    def __init__(self, works: Sequence[_Work], learn: Callable[[str, float], None]) -> None:
        self.works = dict(enumerate(works))
        """Those that have no result. What is done isn't referred to, so that whoever takes a
        result out of its future, and drops it, has freed it."""
        self.tasks: Sequence[TaskId] = ()
        """What the run calls them all."""
        self._learn = learn

    def arrived(self, number: int, reply: Reply) -> None:
        """A call's result is there."""
        outcome = outcome_of(reply)
        if outcome.elapsed is not None:
            self._learn(self.works[number].kind, outcome.elapsed)
        if outcome.error is not None:
            self.fail(number, outcome.error)
        else:
            self.works.pop(number).future.set_result(outcome.value.pop())

    def fail(self, number: int, error: BaseException) -> None:
        """A call will have no result."""
        self.works.pop(number).future.set_exception(error)


class ShoalExecutor(Executor):
    """A `concurrent.futures.Executor` whose functions run on Shoal's workers."""

    def __init__(
        self, max_workers: int | None = None, *, session: Session | None = None, **settings: Any
    ) -> None:
        """Connect, or start what is embedded, unless that has been done.

        Args:
            max_workers: How many workers may be at work at once; default: the setting `workers`,
                else one for each core.
            session: Where to run; default: the session that `compute()` calls share.
            **settings: Any setting, and `name` and `planner`, as for `compute`.
        """
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers!r}.")
        resolve({name: value for name, value in settings.items() if name not in _NO_SETTINGS})
        self._options: dict[str, Any] = {**_DEFAULTS, **settings}
        self._session = session or default_engine.session(self._options)
        workers = self._options.pop("workers", None) or self._session.settings.workers
        self._most = max_workers or workers or cores()
        self._session.room.make(self._most, wanted=bool(max_workers or workers))
        self._lock = threading.Lock()
        self._queue: deque[_Work] = deque()
        self._lanes: set[threading.Thread] = set()
        self._runs: set[Run] = set()
        self._expected: dict[str, float] = {}
        self._down = False
        self._broken: BaseException | None = None

    @property
    def max_workers(self) -> int:
        """How many workers may be at work at once."""
        return self._most

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn(*args, **kwargs)` run on a worker.

        An argument or a function that can't be sent there is told of by the future.
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
            self._queue.append(_Work(future, output, kind))
            self._add_lane()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """What `fn` returns for each of the items, in their order.

        Args:
            fn: What to call.
            *iterables: One for each argument of `fn`; as many calls are made as the shortest has
                items.
            timeout: Seconds from now on after which waiting ends with `TimeoutError`.
            chunksize: How many calls to send as one. Short calls are sent together anyway; this
                saves what is spent on each.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize must be at least 1, not {chunksize!r}.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        lists = super().map(partial(_called, fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(lists)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; the session and its workers stay for who else uses them.

        Args:
            wait: Whether to return only when all futures are done.
            cancel_futures: Whether to cancel those that haven't begun.
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
        """Cancel what waits, but for what has begun and is to be run again."""
        with self._lock:
            works = list(self._queue)
            self._queue.clear()
        begun = [work for work in works if not work.future.cancel()]
        for work in works:
            if work.future.cancelled():
                work.future.set_running_or_notify_cancel()  # tells those who wait
        with self._lock:
            self._queue.extendleft(begun[::-1])
            if begun:
                self._add_lane()

    def kill_workers(self) -> None:
        """Stop at once: cancel what hasn't begun, end what has, and take nothing more."""
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
                batch = self._taken()
                if batch is None:
                    self._lanes.discard(threading.current_thread())
                    return
            try:
                self._run(batch)
            except TaskError as error:
                self._again(batch, error)
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                self._break(error)
                self._fail(batch, error)

    def _taken(self) -> _Batch | None:
        """The next calls that are expected to be done soon, or a single one."""
        works: list[_Work] = []
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
        run = self._session.submit(*outputs, arrived=batch.arrived, workers=1, **self._options)
        batch.tasks = run.workflow.sinks
        with self._lock:
            self._runs.add(run)
            broken = self._broken
        try:
            if broken is not None:
                run.cancel()
            run.values()
        finally:
            with self._lock:
                self._runs.discard(run)

    def _again(self, batch: _Batch, error: TaskError) -> None:
        """Fail the call that is to blame, and put those back that have no result."""
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
            log.error("an executor broke", exc_info=error)
        for work in left:
            if work.future.running() or work.future.set_running_or_notify_cancel():
                work.future.set_exception(_broken(error))

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        for number in list(batch.works):
            batch.fail(number, _broken(error))


def _broken(error: BaseException) -> BrokenExecutor:
    broken = BrokenExecutor(f"The executor can't go on: {error}")
    broken.__cause__ = error
    return broken


def _qualified(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # what a partial calls
    return getattr(inner, "__qualname__", type(inner).__qualname__)


def _chunks(calls: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(calls)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _called(function: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    """Several calls as one, on the worker."""
    return [function(*args) for args in calls]
