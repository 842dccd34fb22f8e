"""Flexible plans written as data, and flexible machines that check themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from execution_examples import ONE_SLOT, check_memory, workflow_of
from execution_strategies import SECONDS, SIZES
from hypothesis import strategies as st

from shoal.execution.effects import Effect, HandIn, Invoke, Leave, Mark
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.plan import Placement, Plan
from shoal.execution.policies import Forecast, Pace, Policies
from shoal.types import Resources, TaskId


def made_flexible(plan: Plan, resources: Resources, policies: Policies | None = None) -> Plan:
    """Return the plan without placements."""
    placement = Placement(None, resources)
    return replace(
        plan,
        placements=dict.fromkeys(plan.workflow.calls, placement),
        expected={},
        policies=policies or Policies(),
    )


_NAMES = [TaskId(f"t{number}") for number in range(16)]
_seconds = st.lists(st.sampled_from(SECONDS), min_size=16, max_size=16).map(
    lambda found: dict(zip(_NAMES, found, strict=True))
)
_paces = st.builds(Pace, st.sampled_from(SECONDS), st.sampled_from([0.0, 1e-5]))
forecasts = st.builds(
    Forecast, _seconds, _seconds, st.sampled_from(SECONDS), st.sampled_from(SECONDS)
)
policies = st.builds(
    Policies,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(SIZES),
    st.sampled_from([None, 1, 2, 10]),
    st.sampled_from([None, *SIZES]),
    _paces,
    _paces,
    st.none() | forecasts,
)
"""Each switch by itself, thresholds that some outputs reach, and right or wrong forecasts."""


def flexible_plan(
    wiring: Mapping[str, Sequence[str]],
    resources: Resources = ONE_SLOT,
    *,
    policies: Policies | None = None,
    limit: float | None = None,
    **options: Any,
) -> Plan:
    """Build a flexible plan from each task's upstream tasks."""
    workflow = workflow_of(wiring, **options)
    placements = dict.fromkeys(workflow.calls, Placement(None, resources))
    return Plan(workflow, placements, limit=limit, policies=policies or Policies())


def flexible_machine(
    wiring: Mapping[str, Sequence[str]],
    first: str,
    *,
    constants: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> CheckedFlexible:
    """Create the machine of the worker that starts with a task."""
    named = {TaskId(t): tuple(map(TaskId, names)) for t, names in (constants or {}).items()}
    part = flexible_plan(wiring, **options).common_part(named)
    return CheckedFlexible(part.begun_with(TaskId(first)))


class CheckedFlexible(FlexibleMachine):
    """A flexible machine that checks its invariants after each event."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stored: set[TaskId] = set()
        """Outputs known to be in the store."""

    def handle(self, event: Event, now: float = 0.0) -> list[Effect]:
        """The machine's effects."""
        effects = super().handle(event, now)
        if isinstance(event, Saved):
            self.stored.add(event.task)
        elif isinstance(event, Fetched):
            self.stored.update(event.outputs)
        for effect in effects:
            if isinstance(effect, Mark) and effect.held is not None:
                assert self._memory.held.issuperset(effect.held), "what is to stay isn't there"
                assert effect.held[0] == effect.producer
            elif isinstance(effect, Mark):
                assert self.stored.issuperset(effect.saved), "marked before it is saved"
                assert effect.inline + effect.saved == (effect.producer,)
            elif isinstance(effect, HandIn) and effect.saved:
                assert effect.task in self.stored, "handed in before it is saved"
            elif isinstance(effect, Invoke):
                self._check_invoked(effect)
            elif isinstance(effect, Leave):
                self._check_left(effects)
        self.check()
        return effects

    def _check_invoked(self, invoke: Invoke) -> None:
        rest = set(self.part.upstream[invoke.task]).difference(invoke.inline)
        assert not rest & self._memory._nbytes.keys() - self.stored, "an output is lost"

    def _check_left(self, effects: list[Effect]) -> None:
        marks = {(m.task, m.producer) for m in effects if isinstance(m, Mark) and m.held is None}
        assert marks == self._joins.marking.keys(), "leaves though a mark may be the last"
        left = [*self._taken, *self._kept, *self._memory.saving, *self._joins.delayed]
        assert not left, "leaves though there is something to do"

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        check_memory(self._memory)
        stages = [self._running, self._retries.pausing, set(self._memory.missing), self._recalled]
        assert sum(map(len, stages)) == len(set().union(*stages)), "a task in two stages"
        if not self.finished:
            assert set().union(*stages) == self._taken.keys()
        assert len(self._taken) <= self._slots or not self._slots
        assert not self._kept.keys() & self._taken.keys()
        assert not self._kept or len(self._taken) == self._slots, "a task waits for a free slot"
        memory, joins = self._memory, self._joins
        for task in (*self._running, *self._retries.pausing):
            assert memory.held.issuperset(self._inputs(task))
        for inputs in (*self._kept.values(), *joins.marking.values()):
            assert memory.held.issuperset(inputs)
        assert memory.held | memory.fetching.keys() | self._recalled == memory.uses.keys()
        assert {producer for _, producer in (*joins.marking, *joins.delayed)} <= memory.held
        assert not {o for _, o in joins.delayed} & memory.saved, "held, though it is saved"
        if not self._slots:
            assert not self._kept
            assert not joins.delayed
        if self.finished and not self._taken:
            assert not memory.held
            assert not self._giving
