"""`Reaction`: what an optimization puts into a plan so that workers react to what happens.

1. A worker tells each reaction of its plan about its events. The reaction answers with orders, from
   a closed set.
2. No order can change a result or have a run wait for ever. Each is one that a plan could have
   given beforehand, or changes only when something is done that is done anyway. An order that
   doesn't fit the worker or the moment is ignored, so the same reaction can serve all workers.
3. A reaction is pure: the same event and the same state of the worker give the same orders. So it
   does in simulation what it does in a run.
4. A reaction that raises, or gives something else than orders, ends the run with an error that
   names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from reprlib import Repr
from traceback import extract_tb
from typing import Protocol

from shoal.errors import ReactionError
from shoal.execution.events import Event
from shoal.execution.plan import Prewarm
from shoal.types import Resources, TaskId, WorkerId

LONGEST_LINGER = 10.0
"""Seconds. A run in which nothing happens for longer may count as stuck."""
_LONGEST_DELAY = 3600.0
_shortened = Repr()
_shortened.maxother = 200


@dataclass(frozen=True, slots=True)
class Preload:
    """Bring a task's inputs to its worker as early as possible.

    If the task is the worker's own, its large constants are fetched now. If not, each output of
    this worker for the task is fetched by the task's worker as soon as it is saved.
    """

    task: TaskId


@dataclass(frozen=True, slots=True)
class SaveEarly:
    """Save an output of this worker now, so that no restart repeats its task."""

    output: TaskId


@dataclass(frozen=True, slots=True)
class RunFirst:
    """Run a ready task before the others that are ready now."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class RunAfter:
    """Begin a ready task only when another one has ended that is ready or running here."""

    task: TaskId
    other: TaskId


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Run a copy of another worker's task in a slot that is free.

    The plan has to allow it (`Placement.duplicable`), and this worker has to have its inputs.
    """

    task: TaskId


@dataclass(frozen=True, slots=True)
class Linger:
    """From now on, wait so long before parking when there is nothing to do."""

    seconds: float
    """At most `LONGEST_LINGER`."""


Order = Preload | Prewarm | SaveEarly | RunFirst | RunAfter | Duplicate | Linger
"""What a reaction may answer. `Prewarm` has idle sandboxes ready after a delay."""


class WorkerView(Protocol):
    """What a reaction sees of a worker; it changes with the worker, so don't keep it."""

    @property
    def worker(self) -> WorkerId:
        """The worker's id."""
        ...

    @property
    def resources(self) -> Resources:
        """What the worker has."""
        ...

    @property
    def now(self) -> float:
        """Seconds since the run's start."""
        ...

    @property
    def tasks(self) -> Set[TaskId]:
        """The worker's own tasks."""
        ...

    @property
    def executed(self) -> Set[TaskId]:
        """Own tasks that are executed."""
        ...

    @property
    def running(self) -> Set[TaskId]:
        """Tasks and copies that are running."""
        ...

    @property
    def ready(self) -> tuple[TaskId, ...]:
        """Own tasks that wait for a slot, in the order in which they are to run."""
        ...

    @property
    def held(self) -> Set[TaskId]:
        """Outputs and large constants in memory."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing runs, is ready, or is being fetched or saved."""
        ...

    def nbytes(self, output: TaskId) -> int:
        """The size of an output in memory; 0 if it isn't known."""
        ...


class Reaction(Protocol):
    """How workers react to what happens."""

    def react(self, event: Event, worker: WorkerView) -> Iterable[Order] | None:
        """Give orders after an event; None: there are none."""
        ...


def orders_of(reaction: Reaction, event: Event, worker: WorkerView) -> tuple[Order, ...]:
    """Ask a reaction for orders; raises `ReactionError` if it fails."""
    try:
        given = reaction.react(event, worker)
        orders = () if given is None else tuple(given)
    except Exception as error:
        raise _broken(reaction, event, worker, f"raised {_described(error)}") from error
    for order in orders:
        if not _fits(order):
            what = f"gave {_shortened.repr(order)}, which is not a valid order"
            raise _broken(reaction, event, worker, what)
    return orders


def name_of(reaction: Reaction) -> str:
    """The name of a reaction: that of its class."""
    return type(reaction).__qualname__.rpartition("<locals>.")[2]


def called(reaction: Reaction) -> str:
    """What messages call a reaction, which may be an optimization itself."""
    kind = "optimization" if hasattr(reaction, "apply") else "reaction"
    return f"{kind} {name_of(reaction)}"


def _broken(reaction: Reaction, event: Event, worker: WorkerView, what: str) -> ReactionError:
    return ReactionError(
        f"The {called(reaction)} is broken: after {_shortened.repr(event)} on worker "
        f"{worker.worker}, its method `react` {what}."
    )


def _described(error: Exception) -> str:
    """An exception and where it was raised, in one line."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = extract_tb(error.__traceback__)
    return f"{text} (line {frames[-1].lineno} of {frames[-1].filename})"


def _fits(order: object) -> bool:
    """Whether something is an order whose fields have the right types and ranges."""
    match order:
        case Preload(name) | SaveEarly(name) | RunFirst(name) | Duplicate(name):
            return isinstance(name, str)
        case RunAfter(task, other):
            return isinstance(task, str) and isinstance(other, str)
        case Prewarm(resources, delay, count):
            whole = isinstance(count, int) and count >= 1
            return isinstance(resources, Resources) and whole and _between(delay, _LONGEST_DELAY)
        case Linger(seconds):
            return _between(seconds, LONGEST_LINGER)
        case _:
            return False


def _between(seconds: object, most: float) -> bool:
    return isinstance(seconds, int | float) and 0 <= seconds <= most
