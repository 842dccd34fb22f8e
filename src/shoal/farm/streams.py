"""Define `Farm` and `Pipeline`, which process streams of tasks.

1. A farm is only a description until it is entered, so it can also be a stage of a pipeline.
2. Each stage of a pipeline has its own queue. A nested pipeline is replaced by its stages; a plain
   function is a farm with one worker.
3. Results are returned in the order of the inputs, or as they are completed. At most `capacity`
   tasks are in progress or have results that were not taken; then reading inputs pauses.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, Self

from shoal.engine import default_engine
from shoal.errors import TaskError, UsageError
from shoal.farm.autoscalers import SquareRootStaffing
from shoal.farm.deployed import DeadLetter, DeployedFarm
from shoal.farm.model import Autoscaler, Deadline, FarmModel, Limits, Observation
from shoal.farm.orders import Fifo, QueueOrder, order_named
from shoal.farm.stage import StageSpec
from shoal.session import Session
from shoal.types import Resources
from shoal.workflow import Task

CAPACITY = 1024
TRIES = 3


class Stream(ABC):
    """The base of farms and pipelines: tasks go in, results come out."""

    def __init__(self, tries: int, capacity: int, session: Session | None) -> None:
        if tries < 1 or capacity < 1:
            raise UsageError(f"tries={tries}, capacity={capacity}: both must be 1 or more.")
        self._tries = tries
        self._capacity = capacity
        self._session = session
        self._deployed: DeployedFarm | None = None

    @property
    @abstractmethod
    def stages(self) -> Sequence[StageSpec]:
        """The stages that each task passes, in order."""

    @property
    def deployed(self) -> DeployedFarm:
        """The running farm."""
        if self._deployed is None:
            raise UsageError("Not running; use it in a `with` block.")
        return self._deployed

    def __enter__(self) -> Self:
        if self._deployed is not None:
            raise UsageError("Already running; enter it only once at a time.")
        session = self._session or default_engine.session({})
        for spec in self.stages:
            if spec.autoscaler is not None:
                spec.autoscaler.reset()
        backend = session.farm_backend(sum(spec.limits.most for spec in self.stages))
        self._deployed = DeployedFarm(
            self.stages, backend, tries=self._tries, capacity=self._capacity
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        deployed, self._deployed = self.deployed, None
        deployed.close(cancel=kind is not None)

    def submit(self, value: Any) -> Future[Any]:
        """Submit one task; blocks while the farm is at capacity."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle(result: Any, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.deployed.submit(value, settle)
        return future

    def map(
        self, values: Iterable[Any], *, ordered: bool = True, return_errors: bool = False
    ) -> Iterator[Any]:
        """Process many tasks, and yield results while further inputs are read.

        Args:
            values: The tasks' inputs; may be a generator.
            ordered: Whether to yield results in the order of the inputs, or as they are completed.
            return_errors: Whether to yield the error of a failed task in place of its result.

        Raises:
            TaskError: A task failed for good; tasks in progress are completed, without results.
        """
        flow = _Flow(self.deployed, values, return_errors)
        try:
            yield from flow.in_order() if ordered else flow.as_completed()
        finally:
            flow.stop()

    def cancel(self) -> None:
        """Stop at once: tasks without a result fail with `RunCancelled`."""
        self.deployed.close(cancel=True)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the tasks that failed for good."""
        return self.deployed.dead_letters()


class Farm(Stream):
    """Workers that apply a function to a stream of tasks."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        workers: int | tuple[int, int] = (1, 32),
        start: int | None = None,
        resources: Resources | None = None,
        deadline: Deadline | None = None,
        order: QueueOrder | str | None = None,
        autoscaler: Autoscaler | Literal["square-root"] | None = "square-root",
        every: float = 8.0,
        expected: float | Callable[[Any], float] | None = None,
        tries: int = TRIES,
        capacity: int = CAPACITY,
        session: Session | None = None,
    ) -> None:
        """Describe a farm; it runs inside a `with` block.

        Args:
            function: The function to apply to each task's input.
            workers: The number of workers, or its minimum and maximum.
            start: The initial number of workers; default: the minimum.
            resources: The resources of each worker.
            deadline: When tasks are due.
            order: The order in which waiting tasks are taken; default: first in, first out.
            autoscaler: Decides how many workers there are; default: `SquareRootStaffing()`. With
                None, only `scale_by` changes their number.
            every: Seconds between the autoscaler's decisions.
            expected: How many seconds a task takes, as a number or a function of its input;
                default: the recent average.
            tries: How often to attempt a task before it fails for good.
            capacity: How many tasks may be in progress.
            session: The session to use; default: the one that `compute()` uses.
        """
        super().__init__(tries, capacity, session)
        limits = Limits(workers, workers) if isinstance(workers, int) else Limits(*workers)
        if autoscaler == "square-root":
            autoscaler = SquareRootStaffing() if limits.least < limits.most else None
        self._spec = StageSpec(
            function=function.function if isinstance(function, Task) else function,
            limits=limits,
            workers=limits.least if start is None else start,
            resources=resources or Resources(memory_mb=1024),
            deadline=deadline,
            order=Fifo() if order is None else order_named(order),
            autoscaler=autoscaler,
            expected=expected,
            every=every,
        )

    @property
    def stages(self) -> Sequence[StageSpec]:
        """The farm's only stage."""
        return (self._spec,)

    @property
    def model(self) -> FarmModel:
        """The farm's model: its workers, queue and statistics."""
        return self.deployed.stages[0].model

    @property
    def finished(self) -> bool:
        """Whether no task is in progress."""
        return self.unfinished == 0

    @property
    def unfinished(self) -> int:
        """The number of tasks in progress."""
        return self.deployed.pending

    def scale_by(self, workers: int) -> int:
        """Request a change in the number of workers; return the change that the limits allow."""
        return self.deployed.crew.scale_by(0, workers)

    def advance(self, seconds: float) -> Observation:
        """Wait, then observe the farm."""
        threading.Event().wait(seconds)
        return self.deployed.crew.observe()[0]


class Pipeline(Stream):
    """A sequence of stages: functions, farms and other pipelines."""

    def __init__(
        self,
        *stages: Callable[[Any], Any] | Farm | Pipeline,
        tries: int = TRIES,
        capacity: int = CAPACITY,
        session: Session | None = None,
    ) -> None:
        """Describe a pipeline; it runs inside a `with` block.

        Args:
            *stages: The stages that each task passes, in order.
            tries: How often to attempt a task at each stage before it fails for good.
            capacity: How many tasks may be in progress.
            session: The session to use; default: the one that `compute()` uses.
        """
        super().__init__(tries, capacity, session)
        if not stages:
            raise UsageError("A pipeline needs at least one stage.")
        found = [s if isinstance(s, Stream) else Farm(s, workers=1) for s in stages]
        self._stages = [spec for stage in found for spec in stage.stages]

    @property
    def stages(self) -> Sequence[StageSpec]:
        """All stages, including those of nested farms and pipelines."""
        return self._stages


class _Flow:
    """One `map` over a farm: feeds inputs and yields results."""

    def __init__(self, farm: DeployedFarm, values: Iterable[Any], return_errors: bool) -> None:
        self._farm = farm
        self._return_errors = return_errors
        self._values = values
        self._outcomes: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._room = threading.Condition()
        self._fed = self._taken = 0
        self._stopped = False
        farm.watch(self._ended)
        self._feeder = threading.Thread(target=self._feed, name="shoal-farm-feeder", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        error: BaseException | None = None
        try:
            for number, value in enumerate(self._values):
                self._await_room()
                if self._stopped:
                    return
                self._farm.submit(value, partial(self._put, number))
                self._fed = number + 1
        except BaseException as broken:  # noqa: BLE001 - the thread's outermost edge: the reader gets it
            error = broken
        self._outcomes.put((-1, self._fed, error))

    def _put(self, number: int, value: Any, error: BaseException | None) -> None:
        self._outcomes.put((number, value, error))

    def _ended(self, error: BaseException) -> None:
        self._outcomes.put((-1, self._fed, error))

    def _await_room(self) -> None:
        capacity = self._farm.capacity
        if self._fed - self._taken >= capacity:
            with self._room:
                self._room.wait_for(lambda: self._fed - self._taken < capacity or self._stopped)

    def _count_taken(self) -> None:
        self._taken += 1
        if self._fed - self._taken >= self._farm.capacity // 2:
            with self._room:
                self._room.notify_all()

    def as_completed(self) -> Iterator[Any]:
        """Yield results as they are completed."""
        for _, value in self._arriving():
            self._count_taken()
            yield value

    def in_order(self) -> Iterator[Any]:
        """Yield results in the order of the inputs."""
        early: dict[int, Any] = {}
        following = 0
        for number, value in self._arriving():
            early[number] = value
            while following in early:
                self._count_taken()
                yield early.pop(following)
                following += 1

    def _arriving(self) -> Iterator[tuple[int, Any]]:
        total, came = None, 0
        while total is None or came < total:
            number, value, error = self._outcomes.get()
            if isinstance(error, TaskError) and number >= 0 and self._return_errors:
                value = error
            elif error is not None:
                raise error
            if number < 0:
                total = value
            else:
                came += 1
                yield number, value

    def stop(self) -> None:
        """Stop feeding inputs."""
        self._farm.unwatch(self._ended)
        with self._room:
            self._stopped = True
            self._room.notify_all()
