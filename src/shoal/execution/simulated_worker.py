"""`Worker`: a worker as the simulator keeps track of it; `Faults`: what befalls it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from shoal.execution.duties import Duties
from shoal.execution.effects import Effect, Save
from shoal.execution.events import Announced, Arrived
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.execution.plan import Part
from shoal.types import TaskId, WorkerId

Order = tuple[Effect, dict[TaskId, Any]]
"""What is to be done, and the values that go along."""


class Faults(Protocol):
    """What goes wrong in a simulated run."""

    lease: float
    """Seconds after which a worker that was lost is started again."""

    def crashes(self, worker: WorkerId) -> bool:
        """Whether a worker is lost, just before it is told of an event."""
        ...

    def invocations(self, worker: WorkerId) -> int:
        """How often an invocation is carried out: once, never, or repeatedly."""
        ...

    def interrupts(self) -> bool:
        """Whether the store restarts just before it answers."""
        ...


@dataclass
class Worker:
    """One worker, through all of its starts."""

    part: Part
    epoch: int = 0
    machine: WorkerMachine | FlexibleMachine | None = None
    """None: not started, or parked."""
    duties: Duties | None = None
    """What its part asks of it, once it was started."""
    parking: bool = False
    """It asked the store to let it leave, and reads no mail until that answers."""
    sandbox: int = 0
    began: float = 0.0
    """When its latest start had its first event."""
    orders: deque[Order] = field(default_factory=deque)
    """What its courier is to do."""
    load: list[Order] = field(default_factory=list)
    """What of it is ready to go."""
    away: bool = False
    """The courier is under way."""
    departed: float = 0.0
    """When it last left with something."""
    saving: float = 0.0
    """Until when it is busy saving."""
    values: dict[TaskId, Any] = field(default_factory=dict)
    mailbox: list[Arrived | Announced] = field(default_factory=list)
    given: list[dict[TaskId, Any]] = field(default_factory=list)
    """The values that came with each message of the mailbox."""
    read: int = 0
    started: bool = False
    """Somebody has claimed its start."""
    entered: int = 0
    """The latest epoch that has begun: an invocation that is repeated does nothing."""
    lost: bool = False
    """A start was lost since it last parked."""
    refused: int = 0
    """The latest epoch that was lost: the store takes nothing more of it."""
    executed: tuple[TaskId, ...] = ()
    asked: set[tuple[TaskId, str | None]] = field(default_factory=set)
    """Marks of a flexible worker that the store hasn't got yet."""
    leaving: bool = False
    """It leaves with those, unless one is the last."""
    left: bool = False
    """It has: the store expects no more of it."""

    @property
    def reads(self) -> bool:
        """Whether it looks at its mail."""
        machine = self.machine
        return machine is not None and not machine.finished and not self.parking

    @property
    def saves(self) -> bool:
        """Whether its courier will leave with an output, or is to."""
        return any([isinstance(effect, Save) for effect, _ in (*self.load, *self.orders)])

    def forget_orders(self) -> None:
        """Of an earlier start."""
        self.orders.clear()
        self.load = []

    def taken(self, outputs: Sequence[TaskId]) -> dict[TaskId, Any]:
        """What travels of its memory."""
        return {output: self.values.get(output) for output in outputs}


class Trip(NamedTuple):
    """What a worker's courier leaves with."""

    worker: Worker
    load: list[Order]
    epoch: int
    sandbox: int
    last: Effect
    """Of the load: after `Finish` and `Park` nothing follows."""
