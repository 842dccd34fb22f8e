"""`SimulatedWorker`: a worker as the simulator tracks it; `Faults`: what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.execution.events import Announced, Arrived
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.machine import WorkerMachine
from shoal.execution.mail_model import Mailbox
from shoal.execution.obligations import Obligations
from shoal.execution.outbox import Outbox
from shoal.execution.plan import Part
from shoal.execution.simulated_store import Values
from shoal.execution.store_model import Starts
from shoal.types import Loss, Resources, TaskId, WorkerId

Message = tuple[Arrived | Announced, Values]
"""A message in a mailbox, and the outputs that travel with it."""


class Faults(Protocol):
    """Decides what goes wrong in a simulated run."""

    lease: float
    """Seconds that a worker may be silent."""
    waiting: float
    """Seconds that a start may wait for its platform, on top of its first lease."""
    restarts: int
    """How often a start may follow the same cause."""
    memory_limit_mb: int
    """The most memory that a worker can have."""

    def loss(self, worker: WorkerId, memory_mb: int) -> Loss | None:
        """How a worker is lost just before it handles an event; None: it isn't.

        Args:
            worker: The worker.
            memory_mb: The memory that it has.
        """
        ...

    def invocations(self, worker: WorkerId) -> int:
        """How often an invocation is carried out: once, never, or repeatedly."""
        ...

    def interrupts(self) -> bool:
        """Whether the store restarts just before it answers."""
        ...


@dataclass
class SimulatedWorker(Starts):
    """One worker, through all of its starts, with what the store knows of them."""

    part: Part
    machine: WorkerMachine | FlexibleMachine | None = None
    """None: not started, or parked."""
    obligations: Obligations | None = None
    """What its part asks of it; None until its first start."""
    parking: bool = False
    """It has asked to park, and reads no mail until the store answers."""
    alive: bool = False
    """Its gateway knows that it runs, or waits for a sandbox."""
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
    given: Values = field(default_factory=dict)
    """What it is started with, if it is flexible."""
    mailbox: Mailbox[Message] = field(default_factory=Mailbox)
    read: int = 0
    """The id of the last message that its latest start has read."""
    executed: tuple[TaskId, ...] = ()

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

    def grow(self, resources: Resources) -> None:
        """Have these resources from the next start on."""
        self.part = replace(self.part, resources=resources)

    def taken(self, outputs: Sequence[TaskId]) -> Values:
        """The values of outputs in its memory."""
        return {output: self.values.get(output) for output in outputs}
