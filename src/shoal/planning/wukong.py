"""`WukongPlanner`: no placement at all, as in WUKONG: the workers decide where tasks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Literal, get_args

from shoal.execution.costs import Costs, Direction
from shoal.execution.plan import Placement, Plan
from shoal.execution.policies import (
    BIG_OUTPUT_NBYTES,
    LARGE_FAN_OUT,
    Forecast,
    Pace,
    Policies,
)
from shoal.planning.arguments import (
    check,
    check_resources,
    check_sla,
    is_whole,
    optimizations_of,
)
from shoal.planning.base import Conditions, Optimization
from shoal.planning.estimates import Estimates
from shoal.planning.homes import covering
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

Decide = Literal["threshold", "predicted"]
"""By what flexible workers decide: by the size of an output, or by what history predicts."""
_SIZES = (16 * 1024, 4 * 1024 * 1024)
"""Two transfers of these sizes say what any costs."""


class WukongPlanner:
    """Leaves placement to flexible workers (see `execution/flexible.py`), all of one configuration.

    At a fan-out a worker becomes one branch and invokes others for the rest; at a fan-in the worker
    whose output was the last goes on. Those beyond the setting `workers` wait until another one is
    done. Clustering and delayed I/O keep big outputs where they are; each can be switched off by
    itself.
    """

    def __init__(
        self,
        resources: Resources | None = None,
        *,
        fan_out_clustering: bool = True,
        fan_in_clustering: bool = True,
        delayed_io: bool = True,
        big_output_nbytes: int = BIG_OUTPUT_NBYTES,
        large_fan_out: int | None = LARGE_FAN_OUT,
        decide: Decide = "threshold",
        sla: SLA = "median",
        optimizations: Sequence[Optimization | type[Optimization]] = (),
    ) -> None:
        """Set it up.

        Args:
            resources: What each worker has; default: what the settings say. If a task asks for
                more, all workers have more.
            fan_out_clustering: Whether a worker runs all branches that take a big output itself,
                one after the other, rather than write it for others.
            fan_in_clustering: Whether a worker that is busy keeps a fan-in for which it has a big
                output, rather than invoke a worker that would have to fetch it.
            delayed_io: Whether a worker holds a big output that a fan-in isn't ready for while it
                has something else to do, rather than write it at once.
            big_output_nbytes: From which size on an output is big.
            large_fan_out: How many workers to be invoked at once are the fan-out invoker's to
                invoke; None: workers always invoke others themselves.
            decide: `predicted`: with history, the same decisions are taken by what is predicted to
                be sooner, whatever the size of an output, unless the simulated run is longer then.
            sla: How careful the predictions of its plans are.
            optimizations: What refines its plans, in this order; classes or objects. Those that
                need to know workers beforehand are left out, and the plan's notes say so.
        """
        check_resources(resources, "WukongPlanner")
        check_sla(sla, f"WukongPlanner(sla={sla!r})")
        where = f"WukongPlanner(decide={decide!r})"
        check(decide in get_args(Decide), where, "'threshold' or 'predicted'")
        where = f"WukongPlanner(big_output_nbytes={big_output_nbytes!r})"
        check(is_whole(big_output_nbytes, 0), where, "a whole number of bytes from 0")
        where = f"WukongPlanner(large_fan_out={large_fan_out!r})"
        fits = large_fan_out is None or is_whole(large_fan_out, 1)
        check(fits, where, "a whole number from 1, or None for never")
        self.resources = resources
        self.policies = Policies(
            fan_out_clustering, fan_in_clustering, delayed_io, big_output_nbytes, large_fan_out
        )
        self.decide = decide
        self.sla = sla
        self.optimizations = optimizations_of(optimizations, "WukongPlanner")

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """A plan for a workflow under these conditions."""
        default = self.resources or conditions.resources
        asked = [workflow.resources(task) for task in workflow.calls]
        resources = covering([default, *(each for each in asked if each is not None)])
        placements = dict.fromkeys(workflow.calls, Placement(None, resources))
        notes = () if resources == default else (f"All workers have {resources}: a task asks so.",)
        costs = conditions.predictions.at(self.sla)
        policies = replace(
            self.policies,
            inline_nbytes=conditions.inline_nbytes,
            save=_pace("save", costs, resources),
            fetch=_pace("fetch", costs, resources),
        )
        plan = Plan(workflow, placements, planner="wukong", policies=policies, notes=notes)
        if self.decide == "predicted":
            plan = _foreseeing(plan, conditions, costs, resources)
        return optimized(plan, conditions, costs, self.optimizations)


def _foreseeing(plan: Plan, conditions: Conditions, costs: Costs, resources: Resources) -> Plan:
    """The plan with what history predicts of it, if it is no slower; else it says that it isn't.

    A worker sees what is sooner for one task, not what that task keeps waiting.
    """
    if conditions.predictions.basis == "no history":
        note = "Workers decide by the size of outputs: there is no history to predict from yet."
        return replace(plan, notes=(*plan.notes, note))
    timeline = conditions.simulate(plan, costs)
    starts = [
        span.end - span.start
        for span in timeline.of_kind("cold start", "warm start")
        if plan.workflow.upstream[TaskId(span.worker)]
    ]
    forecast = Forecast(
        seconds=Estimates(plan.workflow, costs).seconds(resources),
        ends={span.task: span.end for span in timeline.of_kind("execute") if span.task},
        start=costs.invocation()
        + (median(starts) if starts else costs.startup(resources, warm=False)),
        message=costs.coordination(),
    )
    foreseeing = replace(plan, policies=replace(plan.policies, forecast=forecast))
    if conditions.makespan(foreseeing, costs) <= timeline.makespan:
        return foreseeing
    note = "Workers decide by the size of outputs: by predictions the run would take longer."
    return replace(plan, notes=(*plan.notes, note))


def _pace(direction: Direction, costs: Costs, resources: Resources) -> Pace:
    """What transfers cost, as a straight line through two of them."""
    few, many = _SIZES
    least, most = (costs.transfer(direction, nbytes, resources) for nbytes in _SIZES)
    per_byte = max(0.0, most - least) / (many - few)
    return Pace(max(0.0, least - few * per_byte), per_byte)
