"""`Farm` and `Pipeline`: streams of tasks, as a user makes them.

1. A farm is a description until it is entered; so it can be a stage of a pipeline, too.
2. A pipeline's stages have queues of their own, one after the other. A pipeline within a pipeline
   is its stages; a plain function is a farm of one worker.
3. Results come in the order of the inputs, or as they are completed. As many as the capacity says
   are on their way or not taken yet; then the inputs wait.
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
from shoal.farm.orders import Fifo, Order, order_named
from shoal.farm.stage import StageSpec
from shoal.session import Session
from shoal.types import Resources
from shoal.workflow import Task

CAPACITY = 1024
TRIES = 3


class Stream(ABC):
    """What farms and pipelines have in common: tasks go in, results come out."""

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
        """What tasks pass, one after the other."""

    @property
    def deployed(self) -> DeployedFarm:
        """The farm at work."""
        if self._deployed is None:
            raise UsageError("It isn't at work: use it in a `with` statement.")
        return self._deployed

    def __enter__(self) -> Self:
        if self._deployed is not None:
            raise UsageError("It is at work already.")
        session = self._session or default_engine.session({})
        for spec in self.stages:
            if spec.autoscaler is not None:
                spec.autoscaler.reset()
        place = session.place(sum(spec.limits.most for spec in self.stages))
        self._deployed = DeployedFarm(
            self.stages, place, tries=self._tries, capacity=self._capacity
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        deployed, self._deployed = self.deployed, None
        deployed.close(cancel=kind is not None)

    def submit(self, value: Any) -> Future[Any]:
        """Have one task worked on; waits while there is no room."""
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
        """The results of many tasks, while further ones go in.

        Args:
            values: The tasks' inputs; they may come bit by bit.
            ordered: Whether results come in the order of the inputs, or as they are completed.
            return_errors: Whether the error of a task that was given up stands where its result
                would.

        Raises:
            TaskError: A task was given up; those that are on their way are worked off unseen.
        """
        flow = _Flow(self.deployed, values, return_errors)
        try:
            yield from flow.in_order() if ordered else flow.as_completed()
        finally:
            flow.stop()

    def cancel(self) -> None:
        """End at once: tasks without a result fail with `RunCancelled`."""
        self.deployed.close(cancel=True)

    def dead_letters(self) -> list[DeadLetter]:
        """The tasks that were given up."""
        return self.deployed.dead_letters()


class Farm(Stream):
    """A function, and workers that call it with what comes."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        workers: int | tuple[int, int] = (1, 32),
        start: int | None = None,
        resources: Resources | None = None,
        deadline: Deadline | None = None,
        order: Order | str | None = None,
        autoscaler: Autoscaler | Literal["square-root"] | None = "square-root",
        every: float = 8.0,
        expected: float | Callable[[Any], float] | None = None,
        tries: int = TRIES,
        capacity: int = CAPACITY,
        session: Session | None = None,
    ) -> None:
        """Describe a farm; it is at work within a `with` statement.

        Args:
            function: What is done with each task.
            workers: How many there may be: a number, or the least and the most.
            start: How many there are at first; default: the least.
            resources: What each worker has.
            deadline: When tasks are due.
            order: In which order waiting tasks are taken; default: as they came.
            autoscaler: Decides how many workers there are; default: `SquareRootStaffing()`. None:
                nobody does but who calls `scale_by`.
            every: Seconds between its decisions.
            expected: How many seconds a task takes, as a number or a function of its input;
                default: what tasks have taken of late.
            tries: How often a task is tried before it is given up.
            capacity: How many tasks may be on their way.
            session: Where it is at work; default: the one that `compute()` uses.
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
        """Itself."""
        return (self._spec,)

    @property
    def model(self) -> FarmModel:
        """What the farm knows of itself."""
        return self.deployed.stages[0].model

    @property
    def finished(self) -> bool:
        """No task is on its way."""
        return self.unfinished == 0

    @property
    def unfinished(self) -> int:
        """Tasks without an outcome yet."""
        return self.deployed.pending

    def scale_by(self, workers: int) -> int:
        """Ask for a change of the number of workers; returns what the limits leave of it."""
        return self.deployed.crew.scale_by(0, workers)

    def advance(self, seconds: float) -> Observation:
        """Let time pass, then look."""
        threading.Event().wait(seconds)
        return self.deployed.crew.look()[0]


class Pipeline(Stream):
    """Stages one after the other: functions, farms, and pipelines of them."""

    def __init__(
        self,
        *stages: Callable[[Any], Any] | Farm | Pipeline,
        tries: int = TRIES,
        capacity: int = CAPACITY,
        session: Session | None = None,
    ) -> None:
        """Describe a pipeline; it is at work within a `with` statement.

        Args:
            *stages: What tasks pass, one after the other.
            tries: How often a task is tried at each stage before it is given up.
            capacity: How many tasks may be on their way.
            session: Where it is at work; default: the one that `compute()` uses.
        """
        super().__init__(tries, capacity, session)
        if not stages:
            raise UsageError("A pipeline has at least one stage.")
        found = [s if isinstance(s, Stream) else Farm(s, workers=1) for s in stages]
        self._stages = [spec for stage in found for spec in stage.stages]

    @property
    def stages(self) -> Sequence[StageSpec]:
        """Its own, and those of the farms and pipelines within it."""
        return self._stages


class _Flow:
    """A stream through a farm: what was fed into it, and what came out."""

    def __init__(self, farm: DeployedFarm, values: Iterable[Any], return_errors: bool) -> None:
        self._farm = farm
        self._return_errors = return_errors
        self._values = values
        self._outcomes: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._room = threading.Condition()
        self._fed = self._taken = 0
        self._stopped = False
        farm.watchers.add(self._ended)
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
        except BaseException as broken:  # noqa: BLE001 - who takes the results is told
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

    def _took(self) -> None:
        self._taken += 1
        if self._fed - self._taken >= self._farm.capacity // 2:
            with self._room:
                self._room.notify_all()

    def as_completed(self) -> Iterator[Any]:
        """Results as they come."""
        for _, value in self._arriving():
            self._took()
            yield value

    def in_order(self) -> Iterator[Any]:
        """Results in the order of the inputs."""
        early: dict[int, Any] = {}
        following = 0
        for number, value in self._arriving():
            early[number] = value
            while following in early:
                self._took()
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
        """Feed no more."""
        self._farm.watchers.discard(self._ended)
        with self._room:
            self._stopped = True
            self._room.notify_all()
