"""Define `Preview`, which predicts what a plan takes and costs, without running it.

1. The makespan at a service level is that percentile of the makespans of simulations whose costs
   are drawn from history. The makespan of a run in which every cost is at its percentile is shown
   next to it. It is far too pessimistic, because not everything is late at once.
2. Everything is computed once, on first use, and imports what it needs only then, because most
   previews are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.execution.costs import Costs, Sized
from shoal.execution.formatting import counted, figure, listed, nbytes_text, percent, seconds_text
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.reactions import name_of
from shoal.execution.timeline import Timeline
from shoal.planning.base import Conditions
from shoal.planning.effort import Effort, simulating_seconds
from shoal.types import SLA, Percentile, Resources, TaskId, WorkerId
from shoal.workflow import Workflow

if TYPE_CHECKING:
    from shoal.planning.prices import Cost, Prices

DRAWS = 40
"""How many simulations make up the distribution of a makespan."""
DRAWING_SECONDS = 2.0
"""How long to go on simulating; a few simulations always run."""
_FEW = 5


class Preview:
    """The prediction of what a plan takes and costs."""

    def __init__(
        self,
        plan: Plan,
        conditions: Conditions,
        sla: SLA = "median",
        *,
        planning: float = 0.0,
    ) -> None:
        self.plan = plan
        self.conditions = conditions
        self.sla = sla
        self.planning = planning
        """How many seconds planning took; 0 if the plan came from the cache."""
        self._known: dict[Hashable, float] = {}
        """Predicted makespans by the number of warm sandboxes and the sizes of constants, shared
        with later runs."""

    def again(
        self,
        workflow: Workflow,
        constants: Mapping[TaskId, Mapping[TaskId, int]],
        pool: Callable[[], WarmPool[Resources]],
    ) -> Preview:
        """Return the same plan for a later run of a workflow of the same shape."""
        needs = self.plan.workflow.needs
        plan = self.plan.of(workflow.needing(needs) if needs else workflow)
        predictions = self.conditions.predictions
        if isinstance(predictions, Sized):
            predictions = predictions.of(plan.workflow, constants)
        conditions = replace(self.conditions, pool=pool, predictions=predictions)
        preview = Preview(plan, conditions, self.sla)
        preview.constants = constants
        preview._known = self._known
        return preview

    def informed(self, conditions: Conditions) -> Preview:
        """Return the same plan with newer predictions."""
        return Preview(self.plan, conditions, self.sla)

    @property
    def basis(self) -> str:
        """What the predictions are based on, such as `2 runs`."""
        return self.conditions.predictions.basis

    @property
    def learnt(self) -> bool:
        """Whether the predictions are based on earlier runs."""
        return self.basis != "no history"

    @cached_property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        """The sizes of each task's large constants."""
        return self._costs.constants

    @cached_property
    def _costs(self) -> Costs:
        return self.conditions.predictions.at(self.sla)

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated run in which every cost is at the service level."""
        return self.conditions.simulate(self.plan, self._costs)

    @cached_property
    def workers(self) -> Mapping[WorkerId, Resources]:
        """The workers and their resources; for a flexible plan, those that it probably has."""
        return self.plan.workers or self.plan.workers_of(self.timeline.workers)

    def longest(self, task: TaskId) -> float:
        """Return the number of seconds that a task rarely exceeds."""
        costs = self.conditions.predictions.at(Percentile(95))
        spans = {span.task: span for span in self.timeline.of_kind("execute")}
        resources = self.plan.placements[task].resources
        sources = [spans[source].nbytes for source in self.plan.workflow.upstream[task]]
        constants = sum(self.constants.get(task, {}).values())
        return costs.execution(task, sum(sources) + constants, resources)

    @cached_property
    def makespans(self) -> list[float]:
        """The makespans of simulated runs with drawn costs, shortest first."""
        return self._drawn(DRAWING_SECONDS)

    def _drawn(self, seconds: float) -> list[float]:
        conditions = replace(self.conditions, seconds=seconds, effort=Effort())
        allowance = conditions.allowance()
        found: list[float] = []
        for seed in range(DRAWS):
            if allowance.spent and seed >= _FEW:
                break
            costs = self.conditions.predictions.sampled(seed)
            found.append(conditions.makespan(self.plan, costs))
        return sorted(found)

    @cached_property
    def makespan(self) -> float:
        """The predicted makespan at the service level."""
        return self._at_level(self.makespans)

    def _at_level(self, makespans: list[float]) -> float:
        p = 50.0 if self.sla == "median" else self.sla.p
        return level_of(makespans, p)

    def predicted(self, seconds: float) -> float:
        """Return the predicted makespan at the service level, computed in about `seconds`.

        If that is too short for a few simulations, one is used, in which every cost is at the
        service level.
        """
        about = self.conditions.pool().idle, self._sizes
        if about not in self._known:
            if _FEW * simulating_seconds(self.plan.workflow) <= seconds:
                found = self._at_level(self._drawn(seconds))
            else:
                found = self.timeline.makespan
            self._known.setdefault(about, found)  # concurrent callers get the same figure
        return self._known[about]

    @property
    def _sizes(self) -> Hashable:
        """What predictions for this plan depend on: the sizes of constants."""
        from shoal.metadata.features import amount_of

        amount = amount_of(self.plan.workflow)
        large = {name: n for sizes in self.constants.values() for name, n in sizes.items()}
        return tuple(amount.numbers.items()), amount.texts, tuple(large.values())

    @cached_property
    def prices(self) -> Prices:
        """The platform's prices."""
        from shoal.planning.prices import prices_of

        return prices_of(self.conditions.prices)

    @cached_property
    def cost(self) -> Cost:
        """The predicted cost of the run."""
        from shoal.planning.prices import cost_of

        return cost_of(self.plan, self.timeline, self.prices)

    @cached_property
    def critical_path(self) -> tuple[TaskId, ...]:
        """The tasks that determine the makespan."""
        from shoal.planning.critical_path import critical_path

        return critical_path(self.plan.workflow, self.timeline)

    def show(self, width: int = 100, color: bool = False) -> str:
        """Return the prediction as text, with a Gantt chart."""
        from shoal.execution.gantt import gantt_text

        return f"{self}\n\n{gantt_text(self.timeline, width=width, color=color)}"

    def __str__(self) -> str:
        plan, cost, level = self.plan, self.cost, _named(self.sla)
        shapes: dict[str, int] = {}
        for resources in self.workers.values():
            shapes[str(resources)] = shapes.get(str(resources), 0) + 1
        workers = ", ".join(f"{count:,} of {shape}" for shape, count in shapes.items())
        helped = {
            "pre-loaded": sum(p.preload for p in plan.placements.values()),
            "pre-warming": sum(bool(p.prewarm) for p in plan.placements.values()),
            "duplicable": sum(p.duplicable for p in plan.placements.values()),
        }
        notes = [f"{count:,} {what}" for what, count in helped.items() if count]
        made = f", made in {seconds_text(self.planning)}" if self.planning else ""
        lines = [
            f"plan of {counted(len(plan.workflow), 'task')} by {plan.planner or 'its planner'}, "
            f"from {self.basis}{made}",
            f"makespan   {seconds_text(self.makespan)} at {level} "
            f"({seconds_text(self.timeline.makespan)} if every cost were at {level})",
            f"workers    {len(self.workers):,}: {workers}; "
            f"{counted(cost.cold_starts, 'cold start')}",
            f"cost       {figure(cost.gb_seconds)} GB-seconds, "
            f"{counted(cost.invocations, 'invocation')}"
            f"{'' if self.prices.free else f': {_dollars(cost.price)}'} ({self.prices.platform})",
            f"moved      {nbytes_text(cost.nbytes)}",
        ]
        if notes:
            lines.append(f"tasks      {', '.join(notes)}")
        if plan.reactions:
            lines.append(f"reactions  {', '.join(map(name_of, plan.reactions))}")
        if plan.flexible:
            lines.append(
                "placement  dynamic: the worker that completes a task's inputs runs it or invokes "
                f"a new worker; at most {self.conditions.workers:,} run concurrently"
            )
        lines += [f"note       {note}" for note in plan.notes]
        return "\n".join(lines)

    def compare(self, other: Preview) -> str:
        """Return a table that compares this plan with another one."""
        rows = [("", _title(self), _title(other), "")]
        for what, mine, its, shown in (
            ("makespan", self.makespan, other.makespan, seconds_text),
            ("GB-seconds", self.cost.gb_seconds, other.cost.gb_seconds, figure),
            ("price", self.cost.price, other.cost.price, _dollars),
            ("workers", len(self.workers), len(other.workers), "{:,}".format),
            ("cold starts", self.cost.cold_starts, other.cost.cold_starts, "{:,}".format),
            ("bytes moved", self.cost.nbytes, other.cost.nbytes, nbytes_text),
        ):
            if what == "price" and self.prices.free and other.prices.free:
                continue
            change = percent(its / mine - 1, "+") if mine else ""
            rows.append((what, shown(mine), shown(its), change))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i])
                for i, cell in enumerate(row)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, self._moved(other)])

    def _moved(self, other: Preview) -> str:
        flexible = [p.plan.planner or "it" for p in (self, other) if p.plan.flexible]
        if flexible:
            return f"{' and '.join(flexible)}: tasks are placed at run time"
        moved = sum(
            placement.worker != other.plan.placements[task].worker
            for task, placement in self.plan.placements.items()
            if task in other.plan.placements
        )
        return f"{moved:,} of {len(self.plan.placements):,} tasks run on a different worker"

    def explain(self, task: str) -> str:
        """Explain in a sentence or two why a task runs where it does."""
        name = TaskId(task)
        if name not in self.plan.placements:
            raise UsageError(f"The workflow has no task {task!r}; {self._suggestion(task)}")
        return _Explanation(self, name).text()

    def _suggestion(self, task: str) -> str:
        """Return a hint that names the task closest to an unknown one."""
        from difflib import get_close_matches

        tasks = list(self.plan.placements)
        name, _, number = task.partition("#")
        names = {known.partition("#")[0]: known for known in reversed(tasks)}
        near = get_close_matches(name, names, 1)
        if not near:
            return f"it has {listed(tasks, 5)}."
        wanted = TaskId(f"{near[0]}#{number}")
        return f"did you mean {wanted if wanted in tasks else names[near[0]]!r}?"


def level_of(makespans: list[float], p: float) -> float:
    """Return the makespan that one more draw stays within with a probability of `p` percent.

    Since n sorted draws leave n + 1 gaps for it, that is not quite the percentile of the n.
    """
    position = min(max((len(makespans) + 1) * p / 100 - 1, 0.0), len(makespans) - 1.0)
    below = int(position)
    above = min(below + 1, len(makespans) - 1)
    low, high = makespans[below], makespans[above]
    return low + (high - low) * (position - below)


class _Explanation:
    def __init__(self, preview: Preview, task: TaskId) -> None:
        self.preview = preview
        self.plan = preview.plan
        self.task = task
        self.placement = preview.plan.placements[task]
        from shoal.planning.estimates import Estimates

        self.estimates = Estimates(preview.plan.workflow, preview._costs)

    def text(self) -> str:
        worker = self.placement.worker
        if worker is None:
            return f"{self._dynamic_placement()} {self._when()}"
        where = f"{self.task} runs on {worker} ({self.placement.resources})"
        return f"{where} {self._reason()}. {self._when()}{self._extras()}"

    def _dynamic_placement(self) -> str:
        """Explain how a task of a flexible plan gets its worker."""
        sources = self.plan.workflow.upstream[self.task]
        worker = self.preview.timeline.placements[self.task]
        own = worker == WorkerId(self.task)
        how = "the client invokes a worker for it"
        if len(sources) == 1:
            how = f"it is ready after {sources[0]}, whose worker runs it"
            how += " if it has a free slot, or invokes one" if own else " too"
        elif sources:
            how = (
                f"the worker that finishes the last of its {len(sources):,} upstream tasks runs it"
            )
        predicted = "a worker of its own" if own else f"worker {worker}"
        return (
            f"{self.task} is placed at run time ({self.placement.resources}): {how}. "
            f"It is predicted to run on {predicted}."
        )

    def _reason(self) -> str:
        workflow, homes = self.plan.workflow, self.plan.placements
        worker = self.placement.worker
        asked = workflow.resources(self.task)
        if asked is not None:
            return "because it requests these resources"
        if len(self.plan.workers) == 1:
            return "because the plan has only one worker"
        sources = workflow.upstream[self.task]
        if not sources:
            beside = sum(p.worker == worker for p in homes.values()) - 1
            others = counted(beside, "other task")
            return f"to spread the first tasks evenly; it shares the worker with {others}"
        nbytes: dict[WorkerId | None, int] = {}
        for source in sources:
            home = homes[source].worker
            nbytes[home] = nbytes.get(home, 0) + self.estimates.output_nbytes[source]
        here, total = nbytes.get(worker, 0), sum(nbytes.values())
        if len(nbytes) == 1 and worker in nbytes:
            return f"because its whole input ({nbytes_text(total)}) is made there"
        if here and here == max(nbytes.values()):
            where = "there" if 2 * here > total else "there as on any other worker"
            share = "most" if 2 * here > total else "as much"
            shares = f"{nbytes_text(here)} of {nbytes_text(total)}"
            return f"because {share} of its input is made {where} ({shares})"
        if here:
            return f"where {nbytes_text(here)} of its {nbytes_text(total)} of input are made"
        return f"to run in parallel, although its input ({nbytes_text(total)}) is made elsewhere"

    def _when(self) -> str:
        span = next(s for s in self.preview.timeline.of_kind("execute") if s.task == self.task)
        path = self.preview.critical_path
        text = f"It is predicted to begin at {seconds_text(span.start)}"
        if self.task in path:
            at = path.index(self.task)
            text += f", after {path[at - 1]}," if at else ""
            return f"{text} and take {seconds_text(span.seconds)}; it is on the critical path."
        return f"{text} and take {seconds_text(span.seconds)}; it is not on the critical path."

    def _extras(self) -> str:
        placement = self.placement
        notes = []
        if placement.preload:
            notes.append("its inputs are fetched as they are saved")
        if placement.prewarm:
            count = sum(prewarm.count for prewarm in placement.prewarm)
            notes.append(f"it pre-warms {counted(count, 'sandbox', 'es')} for other tasks")
        if placement.duplicable:
            notes.append("workers that wait for it may run it too")
        return f" {'; '.join(notes).capitalize()}." if notes else ""


def _title(preview: Preview) -> str:
    return f"{preview.plan.planner or 'plan'} ({len(preview.workers):,})"


def _dollars(price: float) -> str:
    return f"${figure(price)}"


def _named(sla: SLA) -> str:
    return "the median" if sla == "median" else f"the {sla.p:g} % level"
