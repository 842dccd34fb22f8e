"""Small workflows and plans written as data, and machines that check themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.execution.effects import Effect, Park
from shoal.execution.events import Event
from shoal.execution.machine import Rest, WorkerMachine
from shoal.execution.memory import Memory
from shoal.execution.plan import Placement, Plan, PlannedPart, Prewarm
from shoal.execution.reacting import ReactingMachine
from shoal.execution.reactions import Reaction
from shoal.types import MB_PER_CPU, Resources, TaskId, WorkerId
from shoal.workflow import Call, Task, Workflow

ONE_SLOT = Resources(memory_mb=MB_PER_CPU)

a, b, c, d, e, f, g = (TaskId(name) for name in "abcdefg")
w0, w1, w2, w3 = (WorkerId(f"w{number}") for number in range(4))


def nothing(*_: Any) -> None:
    """Stand in for the user's code, which these tests never run."""


_NOTHING = Task(nothing)


def workflow_of(
    wiring: Mapping[str, Sequence[str]],
    *,
    sinks: Sequence[str] | None = None,
    retries: Mapping[str, int] | None = None,
) -> Workflow:
    """Build a workflow from each task's upstream tasks; by default sinks have no consumers."""
    taken = {source for sources in wiring.values() for source in sources}
    if sinks is None:
        sinks = [task for task in wiring if task not in taken]
    calls = {TaskId(task): Call(_NOTHING, (), {}, {}, ()) for task in wiring}
    for task, count in (retries or {}).items():
        calls[TaskId(task)] = Call(Task(nothing, retries=count), (), {}, {}, ())
    upstream = {TaskId(task): tuple(map(TaskId, sources)) for task, sources in wiring.items()}
    return Workflow(calls, upstream, tuple(map(TaskId, sinks)))


def plan_of(
    wiring: Mapping[str, Sequence[str]],
    assignment: Mapping[str, Sequence[str]],
    *,
    sinks: Sequence[str] | None = None,
    retries: Mapping[str, int] | None = None,
    resources: Mapping[str, Resources] | None = None,
    linger: float | None = None,
    preload: Sequence[str] = (),
    prewarm: Mapping[str, tuple[Prewarm, ...]] | None = None,
    duplicable: Sequence[str] = (),
    expected: Mapping[str, tuple[float, float]] | None = None,
    limit: float | None = None,
    reactions: tuple[Reaction, ...] = (),
) -> Plan:
    """Build a plan from each worker's tasks, as in `{"w0": "abc", "w1": ["long", "names"]}`."""
    placements = {
        TaskId(task): Placement(
            WorkerId(worker),
            (resources or {}).get(worker, ONE_SLOT),
            preload=task in preload,
            prewarm=(prewarm or {}).get(task, ()),
            duplicable=task in duplicable,
        )
        for worker, tasks in assignment.items()
        for task in tasks
    }
    return Plan(
        workflow_of(wiring, sinks=sinks, retries=retries),
        placements,
        linger,
        expected={TaskId(task): found for task, found in (expected or {}).items()},
        limit=limit,
        reactions=reactions,
    )


def part_of(
    plan: Plan, worker: str, constants: Mapping[str, Sequence[str]] | None = None
) -> PlannedPart:
    """Return one worker's part of a plan."""
    named = {TaskId(t): tuple(map(TaskId, names)) for t, names in (constants or {}).items()}
    return next(part for part in plan.parts(named) if part.worker == worker)


def machine_of(
    wiring: Mapping[str, Sequence[str]],
    assignment: Mapping[str, Sequence[str]],
    worker: str = "w0",
    *,
    constants: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> CheckedMachine:
    """Create the machine of one worker of such a plan."""
    part = part_of(plan_of(wiring, assignment, **options), worker, constants)
    return CheckedReactingMachine(part) if part.reactions else CheckedMachine(part)


def check_memory(memory: Memory) -> None:
    """Raise AssertionError if an invariant that holds between events is broken."""
    assert all(count > 0 for count in memory.uses.values())
    for output in memory.held:
        assert output in memory.uses, f"{output} is held for nobody"
    assert memory.saved <= memory.held
    assert memory.saving.keys() <= memory.held
    assert memory._nbytes.keys() <= memory.held
    assert not memory._unneeded
    waiting = Counter(task for tasks in memory.fetching.values() for task in tasks)
    assert waiting == memory.missing


class CheckedMachine(WorkerMachine):
    """A machine that checks its invariants after each event."""

    def handle(self, event: Event, now: float = 0.0) -> list[Effect]:
        """The machine's effects."""
        effects = super().handle(event, now)
        self.check()
        for park in [effect for effect in effects if isinstance(effect, Park)]:
            done = self._arrived <= self._executed
            assert park.again or done, "parks before it has done what arrived"
            needed = self._lacks.keys() | self._copies.vouched.keys()
            assert self._memory.held & needed <= self._memory.saved
            assert not self._copies.scheduled
            assert not self._prewarming.timed, "parks with warm-ups to come"
        return effects

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        memory, obligations = self._memory, self._obligations
        check_memory(memory)
        ready = {obligations.order[rank] for rank in self._ready}
        stages = [self._executed, self._running, self._retries.pausing, ready, set(memory.missing)]
        stages.append(self.put_off)
        assert sum(map(len, stages)) == len(set().union(*stages)), "a task in two stages"
        assert len(self._running) <= self._slots
        for count in (*self._lacks.values(), *self._owes.values()):
            assert count >= 0
        for task in (*self._running, *self._retries.pausing, *ready, *self.put_off):
            assert not self._lacks.get(task)
            assert memory.held.issuperset(obligations.inputs[task])
        assert memory.held.isdisjoint(self._lacks.keys() - self._executed), "held before executed"
        self._check_copies()
        busy = self._running or self._ready or self._retries.pausing
        assert self._rest is Rest.NONE or self._late or not busy
        if self.finished and not self._failed():
            self.check_nothing_left()

    @property
    def put_off(self) -> set[TaskId]:
        """Ready tasks that a reaction lets run after others."""
        return set()

    def _check_copies(self) -> None:
        copies, memory = self._copies, self._memory
        assert copies.begun.isdisjoint(copies.open)
        assert copies.scheduled <= copies.open.keys()
        assert self._running - self._lacks.keys() <= copies.begun
        assert copies.open.keys().isdisjoint(memory.held | memory.fetching.keys())
        for task in copies.scheduled:
            assert memory.held.issuperset(copies.open[task].upstream)
        for task in copies.begun:
            assert memory.held.issuperset(self.part.copies[task].upstream)

    def check_nothing_left(self) -> None:
        """Raise AssertionError if a finished machine holds or owes anything."""
        assert not self._memory.held
        assert not self._memory.uses
        assert not any(self._owes.values())
        assert not self._memory.saving
        assert not self._memory.fetching
        assert not self._memory.missing
        assert not self._copies.open
        assert not self._copies.begun
        assert not self._prewarming.timed

    def _failed(self) -> bool:
        return len(self._executed) < len(self.part.tasks)


class CheckedReactingMachine(CheckedMachine, ReactingMachine):
    """The same for a machine that asks reactions."""

    @property
    def put_off(self) -> set[TaskId]:
        """Ready tasks that a reaction lets run after others."""
        return {task for tasks in self._put_off.values() for task in tasks}

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        super().check()
        known = self._obligations
        assert [known.order[known.rank[task]] for task in known.rank] == [*known.rank]
        active = self._running | {known.order[rank] for rank in self._ready} | self.put_off
        assert self._put_off.keys() <= active, "a task waits for one that doesn't run"
        assert not self.put_off or self._running or self._ready, "all tasks wait for each other"
