"""Search for the best plan for `AutoPlanner`, scoring plans with the simulator.

1. `candidates` proposes plans. While there is time, `improvement` changes the best of them a
   little, again and again. `finalists` chooses one by the goal. Then come the optimizations, and
   weaker workers off the critical path.
2. The plan returned is never slower, in simulation, than those of the other planners under the same
   conditions, if there was time to simulate them.
3. If there is no time to simulate anything, a workflow with less work than a worker takes to start
   runs on one worker, and any other is spread evenly.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.execution.plan import Plan
from shoal.planning.base import Conditions, Optimization
from shoal.planning.candidates import Candidates
from shoal.planning.effort import Allowance, simulating_seconds
from shoal.planning.estimates import Estimates
from shoal.planning.finalists import Goal, chosen
from shoal.planning.improvement import Improvement
from shoal.planning.nonuniform import downgraded, strongest_first
from shoal.planning.optimizations import applied, forced, needs_workers, optimization_of
from shoal.planning.scoring import Scored, Scores
from shoal.planning.spread import spread
from shoal.types import TaskId
from shoal.workflow import Workflow

_SHARE = 0.05
"""The share of the predicted makespan that planning may take by default."""
_PROPOSING, _IMPROVING, _DRAWING = 0.6, 0.6, 0.2
"""The shares of the limit by which candidates and their improvement end, and that draws take."""
_LEAST_SECONDS = 0.05
"""The seconds that planning may always take."""
_MOST_SECONDS = 10.0
"""The most seconds that planning takes by default."""


class Search:
    """One search for a plan."""

    def __init__(self, goal: Goal, workflow: Workflow, conditions: Conditions) -> None:
        self.goal = goal
        self.workflow = workflow
        self.configurations = strongest_first(
            conditions.offered(goal.resources or [conditions.resources])
        )
        self.costs = conditions.predictions.at(goal.sla)
        self.estimates = Estimates(workflow, self.costs)
        about = self._rough_makespan(conditions.workers)
        self.given = goal.seconds or conditions.seconds
        self.limit = self.given or _share_of(about)
        """The seconds that the search may take."""
        self.begun = conditions.effort.seconds
        self.conditions = replace(conditions, seconds=self.limit / 4)
        self.scores = Scores(self.conditions, self.costs, goal.prices, max(0.5, 2 * about))
        self.candidates = Candidates(
            self.scores, self.configurations, self.estimates, goal.sla, self.limit
        )
        self.optimizations = [optimization_of(given) for given in goal.optimizations]

    def _rough_makespan(self, workers: int) -> float:
        """Estimate the makespan from the total work and the longest path."""
        kind = self.configurations[0]
        seconds = self.estimates.seconds(kind)
        ways: dict[TaskId, float] = {}
        for task, sources in self.workflow.upstream.items():
            ways[task] = seconds[task] + max([ways[s] for s in sources], default=0.0)
        return max(max(ways.values()), sum(seconds.values()) / (workers * kind.slots))

    @property
    def simulated(self) -> bool:
        """Whether there was time to simulate plans."""
        return bool(self.scores.all)

    def best(self) -> Plan:
        """Return the best plan found in time."""
        if simulating_seconds(self.workflow) > self.limit:
            return self._finished(self._unsimulated())
        self._propose()
        self._extend()
        self._improve()
        return self._finished(self._refined(chosen(self.goal, self.scores, _DRAWING * self.limit)))

    def _unsimulated(self) -> Plan:
        """Return a sensible plan if there is no time to simulate."""
        kind = self.configurations[0]
        work = sum(self.estimates.seconds(kind).values())
        start = self.costs.startup(kind, warm=False) + self.costs.coordination()
        workers = 1 if work < 2 * start else self.conditions.workers
        return spread(self.workflow, workers, kind)

    def _until(self, share: float) -> Allowance:
        """Return what is left of a share of the limit."""
        spent = self.conditions.effort.seconds - self.begun
        return Allowance(self.conditions.effort, share * self.limit - spent)

    def _propose(self) -> None:
        allowance = self._until(_PROPOSING)
        for propose in self.candidates.all():
            propose()
            if allowance.spent:
                return

    def _extend(self) -> None:
        """Take a share of the fastest plan's makespan: transfers weren't estimated."""
        if self.given is None:
            self.limit = max(self.limit, _share_of(self.scores.fastest.makespan))

    def _improve(self) -> None:
        kind, keep_all = self.configurations[0], not self.goal.plain
        allowance = self._until(_IMPROVING)
        Improvement(self.scores, self.candidates, kind, allowance, keep_all=keep_all).run()

    def _refined(self, scored: Scored) -> Plan:
        """Apply the optimizations that shorten the plan, and downgrade workers."""
        plan, makespan, allowance = scored.plan, scored.makespan, self._until(0.95)
        if plan.linger == self.scores.linger and not allowance.spent:
            parking = self.scores.score(replace(plan, linger=0.5))
            if parking.makespan <= makespan and parking.gb_seconds < scored.gb_seconds:
                plan = parking.plan
        for optimization in self._fitting(plan):
            if allowance.spent:
                break
            trial = applied(optimization, plan, self.conditions, self.costs)
            tried = self.scores.score(trial)
            if tried.makespan < makespan * (1 - 1e-6):
                plan, makespan = trial, tried.makespan
        if len(self.configurations) > 1 and not allowance.spent:
            plan = downgraded(plan, self.conditions, self.costs, self.configurations, allowance)
        return plan

    def _fitting(self, plan: Plan) -> list[Optimization]:
        return [o for o in self.optimizations if not (plan.flexible and needs_workers(o))]

    def _finished(self, plan: Plan) -> Plan:
        plan = replace(plan, planner=f"auto ({plan.planner})")
        return forced(plan, self.conditions, self.costs)


def _share_of(makespan: float) -> float:
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, _SHARE * makespan))
