"""When a lost worker of a simulated run restarts, and when it is given up.

One task of one worker takes a second; starts take no time. The worker is lost when the task has
been executed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest
from execution_examples import ONE_SLOT, plan_of
from execution_strategies import BoundedClock

from shoal.errors import WorkflowError
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.metadata.predictions import DefaultCosts
from shoal.types import MB_PER_CPU, Loss, LossReason, Resources, TaskId, WorkerId

LEASE = 30.0
VANISHED = Loss(LossReason.VANISHED)
KILLED = Loss(LossReason.DIED, code=-signal.SIGKILL)
CRASHED = Loss(LossReason.DIED, code=1)
OUT_OF_MEMORY = Loss(LossReason.OUT_OF_MEMORY, memory_mb=ONE_SLOT.memory_mb)


class Costs(DefaultCosts):
    """Only execution takes time."""

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        """Return 0."""
        return 0.0

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        """Return a second."""
        return 1.0


@dataclass
class LateFaults:
    """Lose a worker at every second event: a start handles its first one, and its task's end."""

    losses: list[Loss]
    lost_invocations: int = 0
    lease: float = LEASE
    waiting: float = 0.0
    restarts: int = 3
    memory_limit_mb: int = 4 * MB_PER_CPU
    events: int = 0

    def loss(self, worker: WorkerId, memory_mb: int) -> Loss | None:
        """Return the next loss if it is due."""
        self.events += 1
        return self.losses.pop(0) if self.losses and self.events % 2 == 0 else None

    def invocations(self, worker: WorkerId) -> int:
        """Return 0 until enough invocations are lost."""
        self.lost_invocations -= 1
        return int(self.lost_invocations < 0)

    def interrupts(self) -> bool:
        """Return False."""
        return False


def makespan(faults: LateFaults) -> float:
    plan = plan_of({"a": []}, {"w0": ["a"]}, resources={"w0": ONE_SLOT})
    pool: WarmPool[Resources] = WarmPool()
    return Simulation(plan, Costs({}), pool, faults=faults, clock=BoundedClock()).run().makespan


def test_a_worker_that_is_seen_to_be_killed_restarts_at_once() -> None:
    assert 2 <= makespan(LateFaults([KILLED])) < 3


@pytest.mark.parametrize("faults", [LateFaults([VANISHED]), LateFaults([], lost_invocations=1)])
def test_what_nobody_sees_is_noticed_when_the_lease_expires(faults: LateFaults) -> None:
    assert LEASE < makespan(faults) < 2 * LEASE


def test_a_start_that_never_begins_may_wait_for_its_platform_first() -> None:
    faults = LateFaults([], lost_invocations=1, waiting=2 * LEASE)
    assert 3 * LEASE < makespan(faults) < 4 * LEASE


@pytest.mark.parametrize("loss", [VANISHED, KILLED])
def test_a_worker_that_is_lost_too_often_is_given_up(loss: Loss) -> None:
    assert makespan(LateFaults([loss] * 3)) >= 4
    with pytest.raises(WorkflowError, match=f"Worker w0 is given up: {loss.reason}"):
        makespan(LateFaults([loss] * 4))


def test_a_worker_that_crashed_by_itself_is_given_up() -> None:
    with pytest.raises(WorkflowError, match="Worker w0 is given up: died"):
        makespan(LateFaults([CRASHED]))


def test_a_worker_without_enough_memory_is_given_up_at_the_limit() -> None:
    assert makespan(LateFaults([OUT_OF_MEMORY])) < 3
    with pytest.raises(WorkflowError, match="Worker w0 is given up: out of memory"):
        makespan(LateFaults([OUT_OF_MEMORY], memory_limit_mb=MB_PER_CPU))
