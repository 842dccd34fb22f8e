"""Define `WukongPlanner`, which lets workers decide at run time where tasks run, as in WUKONG."""

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
from shoal.planning.grouping import covering
from shoal.planning.optimizations import optimized
from shoal.types import SLA, Resources, TaskId
from shoal.workflow import Workflow

Decide = Literal["threshold", "predicted"]
"""What flexible workers base decisions on: the size of an output, or predictions from history."""
_SIZES = (16 * 1024, 4 * 1024 * 1024)
"""The sizes of two transfers from which the cost of any other is interpolated."""


class WukongPlanner:
    """Leaves placement to flexible workers (see `execution/flexible.py`), all of one configuration.

    At a fan-out a worker runs one branch and invokes others for the rest; at a fan-in the worker
    that finishes last continues. Workers beyond the setting `workers` wait until another one is
    done. Clustering and delayed I/O keep large outputs where they are; each can be disabled
    separately.
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
        """Create the planner.

        Args:
            resources: The resources of each worker; default: those of the settings. If a task
                requests more, all workers have more.
            fan_out_clustering: Whether a worker runs all branches that take a big output itself,
                one after the other, rather than save it for others.
            fan_in_clustering: Whether a busy worker keeps a fan-in for which it has a big output,
                rather than invoke a worker that would have to fetch it.
            delayed_io: Whether a worker holds a big output for a fan-in that isn't ready, as long
                as it has other work, rather than save it at once.
            big_output_nbytes: The size from which an output is big.
            large_fan_out: The number of workers from which the fan-out invoker starts them; None
                if workers always invoke others themselves.
            decide: `threshold` decides by the size of outputs. `predicted` decides by what history
                predicts to be sooner, unless the simulated run is longer then.
            sla: How conservative predictions are.
            optimizations: The optimizations to apply, in this order; classes or objects. Those
                that need to know workers in advance are skipped, and the plan's notes say so.
        """
        check_resources(resources, "WukongPlanner")
        check_sla(sla, f"WukongPlanner(sla={sla!r})")
        where = f"WukongPlanner(decide={decide!r})"
        check(decide in get_args(Decide), where, "'threshold' or 'predicted'")
        where = f"WukongPlanner(big_output_nbytes={big_output_nbytes!r})"
        check(is_whole(big_output_nbytes, 0), where, "an integer of at least 0")
        where = f"WukongPlanner(large_fan_out={large_fan_out!r})"
        fits = large_fan_out is None or is_whole(large_fan_out, 1)
        check(fits, where, "an integer of at least 1, or None for never")
        self.resources = resources
        self.policies = Policies(
            fan_out_clustering, fan_in_clustering, delayed_io, big_output_nbytes, large_fan_out
        )
        self.decide = decide
        self.sla = sla
        self.optimizations = optimizations_of(optimizations, "WukongPlanner")

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Plan a workflow under these conditions."""
        default = self.resources or conditions.resources
        asked = [workflow.resources(task) for task in workflow.calls]
        resources = covering([default, *(each for each in asked if each is not None)])
        placements = dict.fromkeys(workflow.calls, Placement(None, resources))
        notes = (
            ()
            if resources == default
            else (f"All workers have {resources}, because a task requests it.",)
        )
        costs = conditions.predictions.at(self.sla)
        policies = replace(
            self.policies,
            inline_nbytes=conditions.inline_nbytes,
            save=_pace("save", costs, resources),
            fetch=_pace("fetch", costs, resources),
        )
        plan = Plan(workflow, placements, planner="wukong", policies=policies, notes=notes)
        if self.decide == "predicted":
            plan = _with_forecast(plan, conditions, costs, resources)
        return optimized(plan, conditions, costs, self.optimizations)


def _with_forecast(plan: Plan, conditions: Conditions, costs: Costs, resources: Resources) -> Plan:
    """Add a forecast to the plan if that makes it no slower, else a note that it doesn't.

    A worker sees what is faster for one task, not how that delays others.
    """
    if conditions.predictions.basis == "no history":
        note = "Workers decide by the size of outputs, because there is no history yet."
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
    forecasting = replace(plan, policies=replace(plan.policies, forecast=forecast))
    if conditions.makespan(forecasting, costs) <= timeline.makespan:
        return forecasting
    note = "Workers decide by the size of outputs, because predictions would lengthen the run."
    return replace(plan, notes=(*plan.notes, note))


def _pace(direction: Direction, costs: Costs, resources: Resources) -> Pace:
    """Return the cost of transfers as a linear function of their size."""
    few, many = _SIZES
    least, most = (costs.transfer(direction, nbytes, resources) for nbytes in _SIZES)
    per_byte = max(0.0, most - least) / (many - few)
    return Pace(max(0.0, least - few * per_byte), per_byte)
