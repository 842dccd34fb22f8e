"""Flexible plans written as data, and flexible machines that check themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from execution_examples import ONE_SLOT, workflow_of

from shoal.execution.effects import Effect, HandIn, Invoke, Mark
from shoal.execution.events import Event, Fetched, Saved
from shoal.execution.flexible import FlexibleMachine
from shoal.execution.plan import Placement, Plan
from shoal.types import Resources, TaskId


def made_flexible(plan: Plan, resources: Resources) -> Plan:
    """The plan without workers."""
    placement = Placement(None, resources)
    return replace(plan, placements=dict.fromkeys(plan.workflow.calls, placement), expected={})


def flexible_plan(
    wiring: Mapping[str, Sequence[str]], resources: Resources = ONE_SLOT, **options: Any
) -> Plan:
    """A flexible plan from each task's upstream tasks."""
    workflow = workflow_of(wiring, **options)
    return Plan(workflow, dict.fromkeys(workflow.calls, Placement(None, resources)))


def flexible_machine(
    wiring: Mapping[str, Sequence[str]],
    first: str,
    *,
    constants: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> CheckedFlexible:
    """The machine of the worker that begins with a task."""
    named = {TaskId(t): tuple(map(TaskId, names)) for t, names in (constants or {}).items()}
    (part,) = flexible_plan(wiring, **options).parts(named)
    return CheckedFlexible(part.begun_with(TaskId(first)))


class CheckedFlexible(FlexibleMachine):
    """A flexible machine that checks after each event that its state makes sense."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stored: set[TaskId] = set()
        """What is known to be in the store."""

    def handle(self, event: Event, now: float = 0.0) -> list[Effect]:
        """The machine's effects."""
        effects = super().handle(event, now)
        if isinstance(event, Saved):
            self.stored.add(event.task)
        elif isinstance(event, Fetched):
            self.stored.update(event.outputs)
        for effect in effects:
            if isinstance(effect, Mark):
                assert self.stored.issuperset(effect.saved), "marked before it is saved"
                assert effect.inline + effect.saved == (effect.producer,)
            elif isinstance(effect, HandIn) and effect.saved:
                assert effect.task in self.stored, "handed in before it is saved"
            elif isinstance(effect, Invoke):
                self._check_invoked(effect)
        self.check()
        return effects

    def _check_invoked(self, invoke: Invoke) -> None:
        rest = set(self._upstream[invoke.task]).difference(invoke.inline)
        assert not rest & self._nbytes.keys() - self.stored, "a small output is lost"

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        stages = [self._running, self._pausing, set(self._missing)]
        assert sum(map(len, stages)) == len(set().union(*stages)), "a task in two stages"
        if not self.finished:
            assert set().union(*stages) == self._taken
        assert len(self._taken) <= self._slots
        for task in (*self._running, *self._pausing):
            assert self._held.issuperset(self._inputs(task))
        assert self._held | self._fetching.keys() == self._uses.keys()
        assert all(count > 0 for count in self._uses.values())
        assert self._saved <= self._held
        assert self._saving.keys() <= self._held
        assert {producer for _, producer in self._marking} <= self._held
        if self.finished and not self._taken:
            assert not self._held
            assert not self._giving
