"""`SimulatedWorker`: a worker as the simulator tracks it; `Faults`: what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.execution.events import Announced, Arrived
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.execution.obligations import Obligations
from shoal.execution.outbox import Outbox
from shoal.execution.plan import Part
from shoal.execution.store_model import Starts
from shoal.types import TaskId, WorkerId

Values = dict[TaskId, Any]
"""Outputs that travel with an order."""


class Faults(Protocol):
    """Decides what goes wrong in a simulated run."""

    lease: float
    """Seconds after which a lost worker is restarted."""

    def crashes(self, worker: WorkerId) -> bool:
        """Whether a worker crashes just before it handles an event."""
        ...

    def invocations(self, worker: WorkerId) -> int:
        """How often an invocation is carried out: once, never, or repeatedly."""
        ...

    def interrupts(self) -> bool:
        """Whether the store restarts just before it answers."""
        ...


@dataclass
class SimulatedWorker(Starts):
    """One worker, through all of its starts."""

    part: Part
    machine: WorkerMachine | FlexibleMachine | None = None
    """None: not started, or parked."""
    obligations: Obligations | None = None
    """What its part asks of it; None until its first start."""
    parking: bool = False
    """It has asked to park, and reads no mail until the store answers."""
    sandbox: int = 0
    began: float = 0.0
    """When its latest start handled its first event."""
    outbox: Outbox[Values] = field(default_factory=lambda: Outbox(0.0))
    """What its latest start has to send."""
    away: bool = False
    """Its courier is busy."""
    attended: bool = False
    """A slot carries the courier's orders out, and runs no task until they are done."""
    waiting: TaskId | None = None
    """The task that this slot runs next."""
    running: int = 0
    """How many tasks it is running."""
    values: Values = field(default_factory=dict)
    mailbox: list[Arrived | Announced] = field(default_factory=list)
    given: list[Values] = field(default_factory=list)
    """The values that came with each message in the mailbox."""
    read: int = 0
    refused: int = 0
    """The latest lost epoch. The store refuses whatever that start still sends."""
    executed: tuple[TaskId, ...] = ()
    left: bool = False
    """The store knows that it has left, and expects no more of it."""

    @property
    def reads(self) -> bool:
        """Whether it reads its mail."""
        machine = self.machine
        return machine is not None and not machine.finished and not self.parking

    def begin(self, outbox: Outbox[Values]) -> None:
        """Begin a start with an empty outbox and idle slots."""
        self.outbox = outbox
        self.away = self.attended = False
        self.waiting, self.running = None, 0

    def taken(self, outputs: Sequence[TaskId]) -> Values:
        """The values of outputs in its memory."""
        return {output: self.values.get(output) for output in outputs}
