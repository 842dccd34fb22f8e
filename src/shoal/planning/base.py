"""Define `Planner`, which makes a plan for a workflow, and `Optimization`, which refines one.

Both are pure: the same workflow and conditions give the same plan. They score plans with
`Conditions.simulate`, which runs the same state machines as the workers, and limit how long they
take by what they simulate (see `effort`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Protocol

from shoal.clock import VirtualClock
from shoal.errors import PlanError
from shoal.execution.costs import Costs, Predictions
from shoal.execution.plan import Plan, Prewarm
from shoal.execution.policies import Policies
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import Timeline
from shoal.planning.arguments import is_number, is_whole
from shoal.planning.effort import Allowance, Effort
from shoal.planning.estimates import Estimates
from shoal.storage.keys import CLIENT
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.planning.prices import Prices

DEFAULT_PRICES = "aws-lambda"
"""Whose prices apply unless the platform has its own: an example."""
_LONGEST = 100
"""The longest worker id, in characters."""


@dataclass(frozen=True)
class Conditions:
    """The circumstances that a plan is made for."""

    predictions: Predictions
    workers: int
    """How many workers may run concurrently."""
    resources: Resources
    """A worker's resources, unless a task or the planner requests others."""
    pool: Callable[[], WarmPool[Resources]] = WarmPool
    """Creates a pool like the platform's, with the sandboxes that are warm now."""
    seconds: float | None = None
    """How long planning may take; None lets the planner choose."""
    memory_mb: int | None = None
    """The most memory that the platform gives a worker; None if unknown."""
    limit: float | None = None
    """How long the platform lets a function run; None for unlimited."""
    inline_nbytes: int | None = None
    """How many bytes an invocation may carry; None for as many as are worth it."""
    prices: str | Prices = DEFAULT_PRICES
    """What the platform charges: the name of a price list, or `Prices`."""
    memory_steps: Sequence[int] = ()
    """The sizes of memory that the platform offers, smallest first; empty: any size."""
    effort: Effort = field(default_factory=Effort, compare=False, repr=False)
    """How much was simulated so far."""

    def offered(self, configurations: Sequence[Resources]) -> list[Resources]:
        """Return those that the platform offers; if none, return all, so that validation fails."""
        found = [self.given(resources) for resources in configurations if self.offers(resources)]
        return list(dict.fromkeys(found)) or list(configurations)

    def given(self, asked: Resources) -> Resources:
        """Return what a worker gets that asks for these resources: the next size up."""
        return next_size(asked, self.memory_steps)

    def sized(self, plan: Plan) -> Plan:
        """Return the plan with what its workers are given."""
        if all(self.given(resources) == resources for resources in plan.configurations):
            return plan
        placements = {
            task: replace(
                placement,
                resources=self.given(placement.resources),
                prewarm=tuple(
                    replace(prewarm, resources=self.given(prewarm.resources))
                    for prewarm in placement.prewarm
                ),
            )
            for task, placement in plan.placements.items()
        }
        return replace(plan, placements=placements)

    def offers(self, resources: Resources) -> bool:
        """Return whether a worker can have these resources."""
        return self.memory_mb is None or resources.memory_mb <= self.memory_mb

    def simulate(self, plan: Plan, costs: Costs) -> Timeline:
        """Simulate a plan and return its timeline."""
        from shoal.execution.simulator import simulate

        clock, plan = VirtualClock(), self._carried_out(plan)
        timeline = simulate(plan, costs, self.pool(), clock, workers=self.workers)
        self.effort.add(clock.count)
        return timeline

    def makespan(self, plan: Plan, costs: Costs) -> float:
        """Simulate a plan and return only its makespan, which is faster."""
        from shoal.execution.simulator import makespan_of

        clock, plan = VirtualClock(), self._carried_out(plan)
        makespan = makespan_of(plan, costs, self.pool(), clock, workers=self.workers)
        self.effort.add(clock.count)
        return makespan

    def allowance(self) -> Allowance:
        """Return what planning may still do: simulations worth `seconds`."""
        return Allowance(self.effort, self.seconds)

    def _carried_out(self, plan: Plan) -> Plan:
        plan = self.sized(plan)
        return plan if plan.limit == self.limit else replace(plan, limit=self.limit)


def next_size(asked: Resources, steps: Sequence[int]) -> Resources:
    """Return what a worker gets that asks for these resources on a platform with these sizes."""
    sizes = [size for size in steps if size >= asked.memory_mb]
    return replace(asked, memory_mb=sizes[0]) if sizes and sizes[0] != asked.memory_mb else asked


def validated(plan: Plan, workflow: Workflow, conditions: Conditions) -> Plan:
    """Return the plan if workers can execute it, else raise an error that names the broken rule."""
    if not isinstance(plan, Plan):
        raise PlanError("a planner returns a Plan", f"this one returned {type(plan).__name__}")
    if plan.workflow is not workflow:
        raise PlanError(
            "a plan must be for the workflow that its planner was given",
            "this one is for another; dataclasses.replace(plan, workflow=…) fixes that",
        )
    unknown = [task for task in plan.placements if task not in workflow.calls]
    if unknown:
        raise PlanError("a plan has only the workflow's tasks", f"{unknown[0]!r} isn't one")
    _check_fields(plan)
    if plan.ranks is not None:
        unranked = [task for task in workflow.calls if task not in plan.ranks]
        if unranked:
            raise PlanError("a plan with ranks ranks every task", f"{unranked[0]!r} has none")
    for task in workflow.calls:
        _check_placement(plan, task, conditions)
    _check_workers(plan, conditions)
    plan = conditions.sized(plan)
    return replace(plan, limit=conditions.limit) if conditions.limit is not None else plan


def check_limit(plan: Plan, conditions: Conditions) -> None:
    """Raise an error if a task is predicted to exceed the platform's time limit."""
    if conditions.limit is None or conditions.predictions.basis == "no history":
        return
    estimates = Estimates(plan.workflow, conditions.predictions.at("median"))
    for task, placement in plan.placements.items():
        seconds = estimates.seconds(placement.resources)[task]
        if seconds > conditions.limit:
            raise PlanError(
                "no task may take longer than the platform lets a function run",
                f"{task!r} takes about {seconds:.3g} s of {conditions.limit:g} with "
                f"{placement.resources}; split it, or give it more CPUs",
            )


def _check_fields(plan: Plan) -> None:
    """Check that every field has the type and range that simulator and workers expect."""
    notes, linger, limit = plan.notes, plan.linger, plan.limit
    lines = isinstance(notes, tuple | list) and all(isinstance(note, str) for note in notes)
    for name, fits, rule in (
        ("planner", isinstance(plan.planner, str), "a plan has its planner's name"),
        ("notes", lines, "notes are a tuple of strings"),
        ("linger", linger is None or is_number(linger, 0), "a worker lingers for 0 s or more"),
        ("limit", limit is None or is_number(limit, 0), "a worker has 0 s or more"),
        ("duplication_gain", is_number(plan.duplication_gain, 0), "a copy saves 0 s or more"),
        ("policies", isinstance(plan.policies, Policies), "flexible workers have Policies"),
        ("unmet", isinstance(plan.unmet, str), "the goal that a plan misses is a string"),
        ("ranks", isinstance(plan.ranks, Mapping | None), "ranks are a dict from task to number"),
        ("expected", isinstance(plan.expected, Mapping), "expected times are a dict by task"),
    ):
        if not fits:
            raise PlanError(rule, f"`{name}` is {shortened(getattr(plan, name))}")
    _check_reactions(plan)
    for task, rank in (plan.ranks or {}).items():
        if type(rank) is not int and not is_number(rank):
            raise PlanError("a rank is a number", f"that of {task!r} is {rank!r}")
    for task, times in plan.expected.items():
        pair = isinstance(times, tuple | list) and len(times) == 2
        if not (pair and all(is_number(seconds, 0) for seconds in times)):
            raise PlanError(
                "a task's expected times are two numbers of seconds: how long it runs, and when "
                "its output is available",
                f"those of {task!r} are {shortened(times)}",
            )


def _check_reactions(plan: Plan) -> None:
    reactions: object = plan.reactions
    if not isinstance(reactions, tuple):
        raise PlanError("`reactions` is a tuple", f"it is {shortened(reactions)}")
    for reaction in reactions:
        if isinstance(reaction, type) or not callable(getattr(reaction, "react", None)):
            raise PlanError(
                "a reaction is an object with a method `react(event, worker)`",
                f"there is {shortened(reaction)}",
            )
    if reactions and plan.flexible:
        raise PlanError(
            "only workers with tasks of their own have reactions", "none of its tasks has a worker"
        )


def _check_workers(plan: Plan, conditions: Conditions) -> None:
    for worker, resources in plan.workers.items():
        if not (isinstance(worker, str) and 0 < len(worker) <= _LONGEST and worker.isprintable()):
            raise PlanError(
                f"a worker's id has 1 to {_LONGEST} printable characters", f"there is {worker!r}"
            )
        if worker == CLIENT:
            raise PlanError(
                f"no worker may be called {CLIENT!r}, which stands for the client",
                f"task {_first(plan, worker)!r} is placed there",
            )
        if not conditions.offers(resources):
            raise PlanError(
                f"the platform offers workers at most {conditions.memory_mb} MB",
                f"task {_first(plan, worker)!r} on {worker} has {resources}",
            )
    free = [task for task, placement in plan.placements.items() if placement.worker is None]
    if free and not plan.flexible:
        raise PlanError(
            "either every task has a worker or none has",
            f"{len(free)} of {len(plan.placements)} have none, including {free[0]!r}",
        )
    together = min(conditions.workers, conditions.pool().capacity)
    if plan.linger is None and len(plan.workers) > together:
        raise PlanError(
            "workers that never park must all be able to run concurrently",
            f"the plan has {len(plan.workers)} workers and only {together} can; set `linger`, or "
            "raise `workers`",
        )


def _check_placement(plan: Plan, task: TaskId, conditions: Conditions) -> None:
    placement, asked = plan.placements[task], plan.workflow.resources(task)
    has = placement.resources
    if not isinstance(has, Resources):
        raise PlanError(
            "a worker has Resources(memory_mb=…)",
            f"task {task!r} on {placement.worker} has {has!r}",
        )
    if asked and (has.memory_mb < asked.memory_mb or has.cpu_share < asked.cpu_share):
        raise PlanError(
            "a task gets at least the resources that it requests",
            f"{task!r} requests {asked}, and {placement.worker} has {has}",
        )
    if placement.prewarm != ():
        _check_prewarms(placement.prewarm, task, conditions)


def _check_prewarms(prewarms: object, task: TaskId, conditions: Conditions) -> None:
    if not isinstance(prewarms, tuple):
        raise PlanError("`prewarm` is a tuple", f"that of {task!r} is {shortened(prewarms)}")
    for prewarm in prewarms:
        if not (isinstance(prewarm, Prewarm) and isinstance(prewarm.resources, Resources)):
            raise PlanError(
                "sandboxes are pre-warmed with Prewarm(Resources(memory_mb=…))",
                f"{task!r} has {prewarm!r}",
            )
        if not (is_number(prewarm.delay, 0) and is_whole(prewarm.count, 1)):
            raise PlanError(
                "a task pre-warms at least one sandbox, after a delay of 0 s or more",
                f"{task!r} pre-warms {prewarm.count!r} after {prewarm.delay!r} s",
            )
        if not conditions.offers(prewarm.resources):
            raise PlanError(
                f"the platform offers sandboxes at most {conditions.memory_mb} MB",
                f"{task!r} pre-warms one of {prewarm.resources}",
            )


def _first(plan: Plan, worker: WorkerId) -> TaskId:
    return next(task for task, found in plan.placements.items() if found.worker == worker)


class Planner(Protocol):
    """Decides which worker runs which task, and with which resources."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Plan a workflow under these conditions."""
        ...


class Optimization(Protocol):
    """Refines a plan."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return a plan that is no worse; `costs` are those that the planner used."""
        ...

    def force(
        self, plan: Plan, tasks: Sequence[TaskId], conditions: Conditions, costs: Costs
    ) -> Plan:
        """Apply this optimization to the tasks that request it."""
        return self.apply(plan, conditions, costs)
