"""A run ends with the right result whatever is lost.

Random workflows, plans and policies are simulated while workers are lost at any event, invocations
are lost or executed twice, messages arrive late or repeatedly, and the store restarts before it has
replied. Each run must end, and each sink must have the value of a sequential evaluation. A worker
that isn't lost executes each of its tasks at most once, whatever happens to the others.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle

from execution_strategies import (
    CONFIGURATIONS,
    BoundedClock,
    DrawnCosts,
    Scenario,
    WatchedPool,
    scenarios,
    value_of,
)
from flexible_examples import made_flexible, policies
from hypothesis import given
from hypothesis import strategies as st

from examples_drawn import examples
from shoal.execution.policies import Policies
from shoal.execution.simulator import Simulation
from shoal.types import Loss, LossReason, Resources, WorkerId


def _turns(counts: tuple[int, ...]) -> Iterator[bool]:
    """Yield True at the end of each count."""
    for count in counts:
        yield from [False] * (count - 1)
        yield True


@dataclass
class DrawnFaults:
    """Loses workers and invocations at drawn intervals."""

    losses: tuple[tuple[int, LossReason], ...]
    """The numbers of events, over all workers, before each loss, and how the worker is lost."""
    invoked: tuple[int, ...]
    """How often each of the next invocations is executed; later ones once."""
    interrupted: tuple[int, ...] = ()
    """The numbers of operations between two restarts of the store; afterwards there are none."""
    lease: float = 3.0
    waiting: float = 0.0
    restarts: int = 100
    memory_limit_mb: int = 2**20
    crashed: Counter[WorkerId] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._crashes = _turns(tuple(events for events, _ in self.losses))
        self._reasons = iter([reason for _, reason in self.losses])
        self._interrupts = _turns(self.interrupted)
        self._invocations = iter(self.invoked)

    def loss(self, worker: WorkerId, memory_mb: int) -> Loss | None:
        """Return the next loss if it is due."""
        if not next(self._crashes, False):
            return None
        self.crashed[worker] += 1
        reason = next(self._reasons)
        code = -signal.SIGKILL if reason is LossReason.DIED else None
        return Loss(reason, memory_mb=memory_mb, code=code)

    def invocations(self, worker: WorkerId) -> int:
        """Return the next count."""
        count = next(self._invocations, 1)
        self.crashed[worker] += not count
        return count

    def interrupts(self) -> bool:
        """Return whether the next loss is due."""
        return next(self._interrupts, False)


REASONS = [LossReason.VANISHED, LossReason.DIED, LossReason.OUT_OF_MEMORY]
"""Nobody sees that a worker vanishes; the gateway sees the others end."""

faults = st.builds(
    DrawnFaults,
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(REASONS)), max_size=12).map(tuple),
    st.lists(st.sampled_from([1, 0, 2, 1]), max_size=12).map(tuple),
    st.lists(st.integers(1, 8), max_size=8).map(tuple),
    st.sampled_from([0.5, 3.0]),
    st.sampled_from([0.0, 2.0]),
)


def survives(scenario: Scenario, lost: DrawnFaults) -> None:
    costs = DrawnCosts(scenario.seconds, scenario.sizes, scenario.constants())
    delays = cycle(scenario.repeats)
    simulation = Simulation(
        scenario.plan,
        costs,
        WatchedPool(scenario.capacity, scenario.idle_seconds),
        perform=value_of,
        repeats=lambda: next(delays),
        faults=lost,
        clock=BoundedClock(),
    )
    simulation.run()
    values = scenario.sequential()
    sinks = set(scenario.plan.workflow.sinks)
    assert simulation.results == {sink: values[sink] for sink in sinks}
    performed = Counter(simulation.performed)
    for task, placement in scenario.plan.placements.items():
        if placement.worker is not None and not lost.crashed[placement.worker]:
            assert performed[task, placement.worker] <= 1


limits = st.sampled_from([None, None, 1.0, 6.0])
"""How long the platform lets a start run."""


def limited(scenario: Scenario, limit: float | None) -> Scenario:
    return replace(scenario, plan=replace(scenario.plan, limit=limit))


@examples(800)
@given(scenarios(), faults, limits)
def test_planned_workers_survive_losses(
    scenario: Scenario, lost: DrawnFaults, limit: float | None
) -> None:
    survives(limited(scenario, limit), lost)


@examples(400)
@given(scenarios(), faults, limits, st.just(Policies()) | policies, st.sampled_from(CONFIGURATIONS))
def test_flexible_workers_survive_losses(
    scenario: Scenario,
    lost: DrawnFaults,
    limit: float | None,
    chosen: Policies,
    resources: Resources,
) -> None:
    flexible = made_flexible(scenario.plan, resources, chosen)
    survives(limited(replace(scenario, plan=flexible), limit), lost)
